"""Compositions of primitive operations, for operations that CNTK composes in its files.

Each recipe takes a node and its operands, and returns the same computation by operations that a file has, or by other
compositions. With a name it becomes a block of that kind in the file, over placeholders in place of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feedline.cntk._model_files.file_values import ALL_STATIC, FileAxis
from feedline.cntk._nodes import constant_node
from feedline.networks import Node, Type, apply
from feedline.networks.traverse import element_type

# Operations that only files have: selecting steps, and putting them back. They have the attributes of `Where`.
GATHER_PACKED, SCATTER_PACKED = "file.gather_packed", "file.scatter_packed"


@dataclass(frozen=True, slots=True)
class Composition:
    """The computation of an operation in a file.

    Attributes:
        build: function of nodes for the operands.
        block: kind of the block. Empty: the composition is written without a block.
        attributes: settings of the block.
    """

    build: Callable[..., Node]
    block: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


def composition(node: Node) -> Composition | None:
    """Return the composition for a node, or None if files have its operation, or no equivalent."""
    recipe = _RECIPES.get(node.op)
    return None if recipe is None else recipe(node)


def without_packing(node: Node) -> Node | None:
    """Return the composition of an operation by operations that the data's lengths do not decide, or None."""
    recipe = composition(node)
    built = None if recipe is None else recipe.build(*node.inputs)
    if built is not None and built.op in (GATHER_PACKED, SCATTER_PACKED):
        return None  # how many steps remain is known at run time only
    return built


def file_axis(axis: int, rank: int) -> FileAxis:
    """Return an axis of a sample of ``rank`` axes in a file's numbering."""
    return FileAxis(rank - 1 - axis if axis >= 0 else -axis - 1)


# ---- building -----------------------------------------------------------------------------------------


def _apply(op: str, *inputs: Any, **attributes: Any) -> Node:
    """Apply an operation. Numbers become constants of the first node's element type."""
    dtype = next((element_type(x) for x in inputs if isinstance(x, Node)), "float32")
    nodes = [x if isinstance(x, Node) else constant_node(np.array(x, dtype)) for x in inputs]
    return apply(op, nodes, attributes)


def _positive(x: Node) -> Node:
    return _apply("greater", x, 0.0)


def _below_zero(x: Node, otherwise: Node) -> Node:
    return _apply("element_select", _apply("less", x, 0.0), otherwise, x)


def _steps(x: Node, value: float) -> Node:
    """Return a node with a number for each step of the operand's sequences."""
    return _apply("sequence_broadcast_as", value, x)


def _within(x: Node, steps: int) -> Node:
    """Return a node with 1 for the first steps of each sequence, or the last ones if negative, and 0 elsewhere."""
    return _apply("delay", _steps(x, 0.0), 1.0, steps=steps)


def _raw(op: str, inputs: tuple[Node, ...], result: Type, **attributes: Any) -> Node:
    return Node(op, inputs, attributes, result)


def _simple(block: str, build: Callable[..., Node]) -> Callable[[Node], Composition]:
    return lambda node: Composition(build, block)


def _inline(build: Callable[..., Node]) -> Callable[[Node], Composition]:
    return lambda node: Composition(build)


# ---- operations on elements ---------------------------------------------------------------------------


def _leaky(node: Node) -> Composition:
    alpha = float(node.attributes.get("alpha", 0.01))
    return Composition(lambda x: _below_zero(x, _apply("element_times", alpha, x)), "LeakyReLU", {"alpha": alpha})


def _hard_sigmoid(node: Node) -> Composition:
    alpha, beta = float(node.attributes["alpha"]), float(node.attributes["beta"])

    def build(x: Node) -> Node:
        line = _apply("plus", _apply("element_times", x, alpha), beta)
        line = _apply("element_select", _apply("less", line, 1.0), line, 1.0)
        return _apply("element_select", _apply("greater", line, 0.0), line, 0.0)

    return Composition(build, "HardSigmoid", {"alpha": alpha, "beta": beta})


def _binary_cross_entropy(output: Node, target: Node) -> Node:
    small, one_and_small = float(np.float32(1e-6)), float(np.float32(1 + 1e-6))
    hit = _apply("element_times", target, _apply("log", _apply("plus", small, output)))
    miss = _apply("element_times", _apply("minus", 1.0, target), _apply("log", _apply("minus", one_and_small, output)))
    return _apply("negate", _apply("plus", hit, miss))


# ---- along axes ---------------------------------------------------------------------------------------


def _softmax(node: Node) -> Composition | None:
    axis, rank = node.attributes.get("axis", -1), len(node.shape)
    if axis is None or rank <= 1:
        return None  # a primitive operation

    def build(x: Node) -> Node:
        moved = _apply("exp", _apply("minus", x, _apply("reduce_max", x, axis=(axis,))))
        return _apply("element_divide", moved, _apply("reduce_sum", moved, axis=(axis,)))

    return Composition(build, "Softmax", {"axis": file_axis(axis, rank)})


def _log_softmax(node: Node) -> Composition:
    axis, rank = node.attributes.get("axis", -1), len(node.shape)

    def build(x: Node) -> Node:
        return _apply("minus", x, _apply("reduce_log_sum_exp", x, axis=None if axis is None else (axis,)))

    return Composition(build, "LogSoftmax", {"axis": FileAxis(ALL_STATIC) if axis is None else file_axis(axis, rank)})


def _norm(block: str, first: str, last: str = "") -> Callable[[Node], Composition]:
    def recipe(node: Node) -> Composition:
        axis, keep = node.attributes.get("axis"), node.attributes.get("keepdims")
        settings = {} if keep is None else {"keepdims": keep}

        def build(x: Node) -> Node:
            total = _apply("reduce_sum", _apply(first, x), axis=axis, **settings)
            return _apply(last, total) if last else total

        return Composition(build, block)

    return recipe


def _of_all(op: str) -> Callable[[Node], Composition | None]:
    """Return the recipe of a reduction of absolute values or squares over the batch, or everything."""

    def recipe(node: Node) -> Composition | None:
        how = node.attributes["how"]
        parts = {"l1": ("abs", ""), "l2": ("square", "sqrt"), "sum_square": ("square", "")}.get(how)
        if parts is None:
            return None
        attributes = {**node.attributes, "how": "sum"}

        def build(x: Node) -> Node:
            total = _apply(op, _apply(parts[0], x), **attributes)
            return _apply(parts[1], total) if parts[1] else total

        return Composition(build)

    return recipe


def _gather(node: Node) -> Composition | None:
    axis = node.attributes.get("axis")
    index_rank, rank = len(node.inputs[0].shape), len(node.inputs[1].shape)
    at = 0 if axis is None else axis % rank
    if at == 0:
        return None  # a primitive operation
    first = (at, *(i for i in range(rank) if i != at))
    # The axes of the index come first in the result. They belong in the place of the gathered axis.
    back = (*range(index_rank, index_rank + at), *range(index_rank), *range(index_rank + at, index_rank + rank - 1))

    def build(index: Node, reference: Node) -> Node:
        gathered = _apply("gather", index, _apply("transpose", reference, perm=first), axis=None)
        return _apply("transpose", gathered, perm=back)

    return Composition(build, "GatherOp")


def _top_k(node: Node) -> Composition | None:
    """Compose a top-k along an axis other than the last, which files do not have."""
    get, rank = node.attributes, len(node.shape)
    axis = get["axis"] % rank
    if axis == rank - 1:
        return None  # a primitive operation
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]

    def build(x: Node) -> Node:
        best = _apply("top_k", _apply("transpose", x, perm=tuple(order)), k=get["k"], axis=-1, indices=get["indices"])
        return _apply("transpose", best, perm=tuple(order))

    return Composition(build)


# ---- criteria -----------------------------------------------------------------------------------------


def _product(node: Node, x: Node, y: Node) -> Node:
    """Multiply scores and targets along the axis of a criterion: a dot product for vectors."""
    axis = node.attributes.get("axis", -1)
    if axis == -1:
        return _apply("times_transpose", x, y)
    return _apply("reduce_sum", _apply("element_times", y, x), axis=None if axis is None else (axis,))


def _cross_entropy(node: Node) -> Composition:
    axis = node.attributes.get("axis", -1)

    def build(scores: Node, target: Node) -> Node:
        total = _apply("reduce_log_sum_exp", scores, axis=None if axis is None else (axis,))
        return _apply("minus", total, _product(node, scores, target))

    return Composition(build, "CrossEntropyWithSoftmax")


def _classification_error(node: Node) -> Composition | None:
    axis, top = node.attributes.get("axis", -1), node.attributes.get("top", 1)
    if top > 1:
        return None  # a primitive operation

    def build(scores: Node, target: Node) -> Node:
        if axis == -1:
            return _apply("minus", 1.0, _apply("times_transpose", _apply("hardmax", scores, axis=None), target))
        best = _apply("equal", scores, _apply("reduce_max", scores, axis=(axis,)))
        wrong = _apply("reduce_sum", _apply("not_equal", target, best), axis=(axis,))
        return _apply("reduce_mean", _apply("greater_equal", wrong, 1.0), axis=None)

    return Composition(build, "ClassificationError")


def _squared_error(output: Node, target: Node) -> Node:
    difference = _apply("minus", output, target)
    return _apply("reduce_sum", _apply("element_times", difference, difference), axis=None)


# ---- sequences ----------------------------------------------------------------------------------------


def _flags(x: Node, begin: int, end: int) -> Node:
    parts = []
    if begin:
        parts.append(_apply("minus", 1.0, _within(x, begin)) if begin > 0 else _within(x, begin))
    if end:
        parts.append(_within(x, end) if end > 0 else _apply("minus", 1.0, _within(x, end)))
    return parts[0] if len(parts) == 1 else _apply("element_times", *parts)


def _sequence_slice(begin: int, end: int, node: Node) -> Composition:
    length = end - begin

    def build(x: Node) -> Node:
        result = Type(x.type.shape, node.type.axes)
        factors = {"scaling": 0 if length > 0 else 1, "additive": length}
        return _raw(GATHER_PACKED, (x, _flags(x, begin, end)), result, **factors)

    return Composition(build, "Sequence::Slice")


def _slice_of_steps(node: Node) -> Composition:
    begin, end = node.attributes["begin"], node.attributes["end"]
    if not begin and not end:
        return Composition(lambda x: x)
    return _sequence_slice(begin, end, node)


def _select(node: Node) -> Composition:
    lengths = node.attributes.get("lengths")
    factors = {} if lengths is None else {"scaling": lengths[0], "additive": lengths[1]}

    def build(x: Node, condition: Node) -> Node:
        return _raw(GATHER_PACKED, (x, condition), Type(x.type.shape, node.type.axes), **factors)

    return Composition(build, "Sequence::Gather")


def _scatter(node: Node) -> Composition:
    def build(x: Node, condition: Node) -> Node:
        return _raw(SCATTER_PACKED, (x, condition), Type(x.type.shape, condition.type.axes))

    return Composition(build, "Sequence::Scatter")


def _sequence_reduction(op: str, padding: float) -> Callable[[Node], Composition]:
    def build(x: Node) -> Node:
        return _apply(op, _apply("sequence_unpacked", x, padding=padding), axis=(0,), keepdims=False)

    return lambda node: Composition(build, "Sequence::ReduceElements")


def _sequence_mean(x: Node) -> Node:
    return _apply("element_divide", _apply("sequence_reduce_sum", x), _apply("sequence_reduce_sum", _steps(x, 1.0)))


def _sequence_softmax(x: Node) -> Node:
    moved = _apply("exp", _apply("minus", x, _apply("sequence_broadcast_as", _apply("sequence_reduce_max", x), x)))
    return _apply("element_divide", moved, _apply("sequence_broadcast_as", _apply("sequence_reduce_sum", moved), x))


def _sequence_ones(node: Node) -> Composition | None:
    return Composition(lambda x: _steps(x, 1.0)) if node.attributes["factor"] == 1 else None


_RECIPES: dict[str, Callable[[Node], Composition | None]] = {
    "square": _inline(lambda x: _apply("element_times", x, x)),
    "ceil": _inline(lambda x: _apply("negate", _apply("floor", _apply("negate", x)))),
    "round": _inline(lambda x: _apply("floor", _apply("plus", x, 0.5))),
    "element_divide": _simple("ElementDivide", lambda a, b: _apply("element_times", a, _apply("reciprocal", b))),
    "element_max": _simple("ElementMax", lambda a, b: _apply("element_select", _apply("greater", a, b), a, b)),
    "element_min": _simple("ElementMin", lambda a, b: _apply("element_select", _apply("less", a, b), a, b)),
    "element_and": _simple("And", lambda a, b: _positive(_apply("element_times", _positive(a), _positive(b)))),
    "element_or": _simple("Or", lambda a, b: _positive(_apply("plus", _positive(a), _positive(b)))),
    "element_xor": _simple("Xor", lambda a, b: _apply("not_equal", _positive(a), _positive(b))),
    "element_not": _simple("Not", lambda x: _apply("plus", _apply("negate", _positive(x)), 1.0)),
    "leaky_relu": _leaky,
    "param_relu": _simple("PReLU", lambda alpha, x: _below_zero(x, _apply("element_times", alpha, x))),
    "hard_sigmoid": _hard_sigmoid,
    "softplus": _simple("Softplus", lambda x: _apply("log_add_exp", x, 0.0)),
    "softsign": _simple("Softsign", lambda x: _apply("element_divide", x, _apply("plus", _apply("abs", x), 1.0))),
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
    "sequence_slice": _slice_of_steps,
    "sequence_is_first": _simple("Sequence::IsFirst", lambda x: _within(x, 1)),
    "sequence_is_last": _simple("Sequence::IsLast", lambda x: _within(x, -1)),
    "sequence_gather": _select,
    "sequence_scatter": _scatter,
    "sequence_reduce_sum": _sequence_reduction("reduce_sum", 0.0),
    "sequence_reduce_max": _sequence_reduction("reduce_max", -float("inf")),
    "sequence_reduce_mean": _simple("Sequence::ReduceMean", _sequence_mean),
    "sequence_softmax": _simple("Sequence::Softmax", _sequence_softmax),
    "sequence_ones": _sequence_ones,
}
