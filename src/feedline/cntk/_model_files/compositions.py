"""Operations that CNTK composes of primitive ones: the compositions, for files that CNTK reads.

Each recipe gets the node and its operands, and returns what computes the same by operations that a file has, or by
other compositions. With a name it becomes a block of that kind in the file, over placeholders in place of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline.cntk._model_files.dictionaries import ALL_STATIC, FileAxis
from feedline.cntk._nodes import constant_node, element_type
from feedline.networks import Node, Type, apply

# Operations that exist in files only: selecting steps, and putting them back; attributes are those of `Where`.
GATHER_PACKED, SCATTER_PACKED = "file.gather_packed", "file.scatter_packed"


@dataclass(frozen=True, slots=True)
class Composition:
    """What computes an operation in a file.

    Attributes:
        build: function of nodes for the operands.
        block: kind of the block; empty: the composition stands by itself.
        attributes: settings of the block.
    """

    build: Callable[..., Node]
    block: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


def composition(node: Node) -> Composition | None:
    """Return the composition for a node; None if files have its operation, or nothing like it."""
    recipe = _RECIPES.get(node.op)
    return None if recipe is None else recipe(node)


def file_axis(axis: int, rank: int) -> FileAxis:
    """Return an axis of a sample of ``rank`` axes as a file has it."""
    return FileAxis(rank - 1 - axis if axis >= 0 else -axis - 1)


# ---- building -----------------------------------------------------------------------------------------


def _made(op: str, *inputs: Any, **attributes: Any) -> Node:
    """Apply an operation; numbers become constants of the type of the first other operand."""
    own = next((element_type(x) for x in inputs if isinstance(x, Node)), "float32")
    nodes = [x if isinstance(x, Node) else constant_node(np.array(x, own)) for x in inputs]
    return apply(op, nodes, attributes)


def _positive(x: Node) -> Node:
    return _made("greater", x, 0.0)


def _below_zero(x: Node, otherwise: Node) -> Node:
    return _made("element_select", _made("less", x, 0.0), otherwise, x)


def _steps(x: Node, value: float) -> Node:
    """A number for each step of the operand's sequences."""
    return _made("sequence_broadcast_as", value, x)


def _within(x: Node, steps: int) -> Node:
    """1 for the first steps of each sequence, or for the last ones if negative; 0 for the others."""
    return _made("delay", _steps(x, 0.0), 1.0, steps=steps)


def _raw(op: str, inputs: tuple[Node, ...], result: Type, **attributes: Any) -> Node:
    return Node(op, inputs, attributes, result)


def _simple(block: str, build: Callable[..., Node]) -> Callable[[Node], Composition]:
    return lambda node: Composition(build, block)


def _inline(build: Callable[..., Node]) -> Callable[[Node], Composition]:
    return lambda node: Composition(build)


# ---- operations on elements ---------------------------------------------------------------------------


def _leaky(node: Node) -> Composition:
    alpha = float(node.attributes.get("alpha", 0.01))
    return Composition(lambda x: _below_zero(x, _made("element_times", alpha, x)), "LeakyReLU", {"alpha": alpha})


def _hard_sigmoid(node: Node) -> Composition:
    alpha, beta = float(node.attributes["alpha"]), float(node.attributes["beta"])

    def build(x: Node) -> Node:
        line = _made("plus", _made("element_times", x, alpha), beta)
        line = _made("element_select", _made("less", line, 1.0), line, 1.0)
        return _made("element_select", _made("greater", line, 0.0), line, 0.0)

    return Composition(build, "HardSigmoid", {"alpha": alpha, "beta": beta})


def _binary_cross_entropy(output: Node, target: Node) -> Node:
    small, one_and_small = float(np.float32(1e-6)), float(np.float32(1 + 1e-6))
    hit = _made("element_times", target, _made("log", _made("plus", small, output)))
    miss = _made("element_times", _made("minus", 1.0, target), _made("log", _made("minus", one_and_small, output)))
    return _made("negate", _made("plus", hit, miss))


# ---- along axes ---------------------------------------------------------------------------------------


def _softmax(node: Node) -> Composition | None:
    axis, rank = node.attributes.get("axis", -1), len(node.shape)
    if axis is None or rank <= 1:
        return None  # a primitive operation

    def build(x: Node) -> Node:
        moved = _made("exp", _made("minus", x, _made("reduce_max", x, axis=(axis,))))
        return _made("element_divide", moved, _made("reduce_sum", moved, axis=(axis,)))

    return Composition(build, "Softmax", {"axis": file_axis(axis, rank)})


def _log_softmax(node: Node) -> Composition:
    axis, rank = node.attributes.get("axis", -1), len(node.shape)

    def build(x: Node) -> Node:
        return _made("minus", x, _made("reduce_log_sum_exp", x, axis=None if axis is None else (axis,)))

    return Composition(build, "LogSoftmax", {"axis": FileAxis(ALL_STATIC) if axis is None else file_axis(axis, rank)})


def _norm(block: str, first: str, last: str = "") -> Callable[[Node], Composition]:
    def recipe(node: Node) -> Composition:
        axis, keep = node.attributes.get("axis"), node.attributes.get("keepdims")
        more = {} if keep is None else {"keepdims": keep}

        def build(x: Node) -> Node:
            total = _made("reduce_sum", _made(first, x), axis=axis, **more)
            return _made(last, total) if last else total

        return Composition(build, block)

    return recipe


def _of_all(op: str) -> Callable[[Node], Composition | None]:
    """Reductions over the batch, or everything, of absolute values or squares."""

    def recipe(node: Node) -> Composition | None:
        how = node.attributes["how"]
        parts = {"l1": ("abs", ""), "l2": ("square", "sqrt"), "sum_square": ("square", "")}.get(how)
        if parts is None:
            return None
        attributes = {**node.attributes, "how": "sum"}

        def build(x: Node) -> Node:
            total = _made(op, _made(parts[0], x), **attributes)
            return _made(parts[1], total) if parts[1] else total

        return Composition(build)

    return recipe


def _gather(node: Node) -> Composition | None:
    axis = node.attributes.get("axis")
    index_rank, rank = len(node.inputs[0].shape), len(node.inputs[1].shape)
    at = 0 if axis is None else axis % rank
    if at == 0:
        return None  # a primitive operation
    first = (at, *(i for i in range(rank) if i != at))
    # Axes of the result: those of the index come first, and belong where the gathered one was.
    back = (*range(index_rank, index_rank + at), *range(index_rank), *range(index_rank + at, index_rank + rank - 1))

    def build(index: Node, reference: Node) -> Node:
        found = _made("gather", index, _made("transpose", reference, perm=first), axis=None)
        return _made("transpose", found, perm=back)

    return Composition(build, "GatherOp")


def _top_k(node: Node) -> Composition | None:
    """The largest along another axis than the last, which files do not have."""
    get, rank = node.attributes, len(node.shape)
    axis = get["axis"] % rank
    if axis == rank - 1:
        return None  # a primitive operation
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]

    def build(x: Node) -> Node:
        best = _made("top_k", _made("transpose", x, perm=tuple(order)), k=get["k"], axis=-1, indices=get["indices"])
        return _made("transpose", best, perm=tuple(order))

    return Composition(build)


# ---- criteria -----------------------------------------------------------------------------------------


def _product(node: Node, x: Node, y: Node) -> Node:
    """Scores times targets along the axis of a criterion, which of two vectors leaves one number."""
    axis = node.attributes.get("axis", -1)
    if axis == -1:
        return _made("times_transpose", x, y)
    return _made("reduce_sum", _made("element_times", y, x), axis=None if axis is None else (axis,))


def _cross_entropy(node: Node) -> Composition:
    axis = node.attributes.get("axis", -1)

    def build(scores: Node, target: Node) -> Node:
        total = _made("reduce_log_sum_exp", scores, axis=None if axis is None else (axis,))
        return _made("minus", total, _product(node, scores, target))

    return Composition(build, "CrossEntropyWithSoftmax")


def _classification_error(node: Node) -> Composition | None:
    axis, top = node.attributes.get("axis", -1), node.attributes.get("top", 1)
    if top > 1:
        return None  # a primitive operation

    def build(scores: Node, target: Node) -> Node:
        if axis == -1:
            return _made("minus", 1.0, _made("times_transpose", _made("hardmax", scores, axis=None), target))
        best = _made("equal", scores, _made("reduce_max", scores, axis=(axis,)))
        wrong = _made("reduce_sum", _made("not_equal", target, best), axis=(axis,))
        return _made("reduce_mean", _made("greater_equal", wrong, 1.0), axis=None)

    return Composition(build, "ClassificationError")


def _squared_error(output: Node, target: Node) -> Node:
    difference = _made("minus", output, target)
    return _made("reduce_sum", _made("element_times", difference, difference), axis=None)


# ---- sequences ----------------------------------------------------------------------------------------


def _flags(x: Node, begin: int, end: int) -> Node:
    parts = []
    if begin:
        parts.append(_made("minus", 1.0, _within(x, begin)) if begin > 0 else _within(x, begin))
    if end:
        parts.append(_within(x, end) if end > 0 else _made("minus", 1.0, _within(x, end)))
    return parts[0] if len(parts) == 1 else _made("element_times", *parts)


def _sequence_slice(begin: int, end: int, node: Node) -> Composition:
    length = end - begin

    def build(x: Node) -> Node:
        result = Type(x.type.shape, node.type.axes)
        factors = {"scaling": 0 if length > 0 else 1, "additive": length}
        return _raw(GATHER_PACKED, (x, _flags(x, begin, end)), result, **factors)

    return Composition(build, "Sequence::Slice")


def _chosen_slice(node: Node) -> Composition:
    begin, end = node.attributes["begin"], node.attributes["end"]
    if not begin and not end:
        return Composition(lambda x: x)
    return _sequence_slice(begin, end, node)


def _selected(node: Node) -> Composition:
    def build(x: Node, condition: Node) -> Node:
        return _raw(GATHER_PACKED, (x, condition), Type(x.type.shape, node.type.axes))

    return Composition(build, "Sequence::Gather")


def _scattered(node: Node) -> Composition:
    def build(x: Node, condition: Node) -> Node:
        return _raw(SCATTER_PACKED, (x, condition), Type(x.type.shape, condition.type.axes))

    return Composition(build, "Sequence::Scatter")


def _sequence_reduction(op: str, padding: float) -> Callable[[Node], Composition]:
    def build(x: Node) -> Node:
        return _made(op, _made("sequence_unpacked", x, padding=padding), axis=(0,), keepdims=False)

    return lambda node: Composition(build, "Sequence::ReduceElements")


def _sequence_mean(x: Node) -> Node:
    return _made("element_divide", _made("sequence_reduce_sum", x), _made("sequence_reduce_sum", _steps(x, 1.0)))


def _sequence_softmax(x: Node) -> Node:
    moved = _made("exp", _made("minus", x, _made("sequence_broadcast_as", _made("sequence_reduce_max", x), x)))
    return _made("element_divide", moved, _made("sequence_broadcast_as", _made("sequence_reduce_sum", moved), x))


def _sequence_ones(node: Node) -> Composition | None:
    return Composition(lambda x: _steps(x, 1.0)) if node.attributes["factor"] == 1 else None


_RECIPES: dict[str, Callable[[Node], Composition | None]] = {
    "square": _inline(lambda x: _made("element_times", x, x)),
    "ceil": _inline(lambda x: _made("negate", _made("floor", _made("negate", x)))),
    "round": _inline(lambda x: _made("floor", _made("plus", x, 0.5))),
    "element_divide": _simple("ElementDivide", lambda a, b: _made("element_times", a, _made("reciprocal", b))),
    "element_max": _simple("ElementMax", lambda a, b: _made("element_select", _made("greater", a, b), a, b)),
    "element_min": _simple("ElementMin", lambda a, b: _made("element_select", _made("less", a, b), a, b)),
    "element_and": _simple("And", lambda a, b: _positive(_made("element_times", _positive(a), _positive(b)))),
    "element_or": _simple("Or", lambda a, b: _positive(_made("plus", _positive(a), _positive(b)))),
    "element_xor": _simple("Xor", lambda a, b: _made("not_equal", _positive(a), _positive(b))),
    "element_not": _simple("Not", lambda x: _made("plus", _made("negate", _positive(x)), 1.0)),
    "leaky_relu": _leaky,
    "param_relu": _simple("PReLU", lambda alpha, x: _below_zero(x, _made("element_times", alpha, x))),
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _simple("Softplus", lambda x: _made("log_add_exp", x, 0.0)),
    "softsign": _simple("Softsign", lambda x: _made("element_divide", x, _made("plus", _made("abs", x), 1.0))),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "reduce_l1": _norm("ReduceL1", "abs"),
    "reduce_l2": _norm("ReduceL2", "square", "sqrt"),
    "reduce_sum_square": _norm("ReduceSumSquare", "square"),
    "reduce_batch": _of_all("reduce_batch"),
    "reduce_everything": _of_all("reduce_everything"),
    "gather": _gather,
    "top_k": _top_k,
    "cross_entropy_with_softmax": _cross_entropy,
    "classification_error": _classification_error,
    "squared_error": _simple("SquaredError", _squared_error),
    "binary_cross_entropy": _simple("BinaryCrossEntropy", _binary_cross_entropy),
    "sequence_first": lambda node: _sequence_slice(0, 1, node),
    "sequence_last": lambda node: _sequence_slice(-1, 0, node),
    "sequence_slice": _chosen_slice,
    "sequence_is_first": _simple("Sequence::IsFirst", lambda x: _within(x, 1)),
    "sequence_is_last": _simple("Sequence::IsLast", lambda x: _within(x, -1)),
    "sequence_gather": _selected,
    "sequence_scatter": _scattered,
    "sequence_reduce_sum": _sequence_reduction("reduce_sum", 0.0),
    "sequence_reduce_max": _sequence_reduction("reduce_max", -float("inf")),
    "sequence_reduce_mean": _simple("Sequence::ReduceMean", _sequence_mean),
    "sequence_softmax": _simple("Sequence::Softmax", _sequence_softmax),
    "sequence_ones": _sequence_ones,
}
