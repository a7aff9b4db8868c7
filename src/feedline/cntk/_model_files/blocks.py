"""Blocks of CNTK's files that are single operations in feedline.

CNTK composes many functions of primitive operations, and marks the composition as a block. Any block can be loaded by
its content. The blocks below have an operation that is safer numerically (a cross entropy that does not overflow),
accepts sparse labels, or needs no indices of packed rows. Scripts may give their own blocks the same names, so the
content must match CNTK's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.cntk._model_files.dictionaries import ALL_STATIC, DYNAMIC
from feedline.cntk._model_files.functions import FileFunction, FileModel
from feedline.cntk._model_files.operators import python_axis


@dataclass(frozen=True, slots=True)
class Replacement:
    """An operation that replaces a block.

    Attributes:
        op: name of the operation.
        inputs: identifiers of its operands.
        attributes: its settings.
    """

    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


def recognize(model: FileModel, block: FileFunction) -> Replacement | None:
    """Return the operation that replaces a block, or None."""
    recognize = _RECOGNIZERS.get(block.block)
    if recognize is None:
        return None
    root = model.functions.get(block.root)
    return None if root is None else recognize(model, block, root)


def _normalize(op: str) -> Callable[..., Replacement | None]:
    """Recognize a softmax, whose axis is a setting of the block."""

    def recognize(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
        axis = block.attributes.get("axis")
        if axis is None or len(block.arguments) != 1 or axis.index == DYNAMIC:
            return None
        number = None if axis.index == ALL_STATIC else python_axis(axis)
        return Replacement(op, (block.arguments[0][1],), {"axis": number})

    return recognize


def _cross_entropy(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    """Recognize a logarithm of a sum of exponentials, minus the product of targets and scores."""
    if root.kind != "Minus":
        return None
    total = model.computed_by(root.inputs[0], "ReduceElements")
    product = model.computed_by(root.inputs[1], "TransposeTimes", "ReduceElements")
    if total is None or product is None or total.attributes.get("reductionOpName") != "LogSum":
        return None
    if product.kind == "ReduceElements":
        product = model.computed_by(product.inputs[0], "ElementTimes")
    axis = total.attributes.get("axis")
    return None if product is None or axis is None else _of_pair(model, "cross_entropy_with_softmax", total, product)


def _of_pair(model: FileModel, op: str, scored: FileFunction, product: FileFunction) -> Replacement | None:
    axis, scores = scored.attributes["axis"], model.source(scored.inputs[0])
    targets = [model.source(uid) for uid in product.inputs]
    if scores not in targets or len(targets) != 2:
        return None
    targets.remove(scores)
    number = None if axis.index == ALL_STATIC else python_axis(axis)
    return Replacement(op, (scores, targets[0]), {"axis": number})


def _classification_error(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    """Recognize 1 minus the target at the largest score, or, along an axis, whether scores and targets differ."""
    if root.kind == "Minus":
        product = model.computed_by(root.inputs[1], "TransposeTimes")
        best = product and model.computed_by(product.inputs[1], "Hardmax")
        if product is None or best is None:
            return None
        inputs = (model.source(best.inputs[0]), model.source(product.inputs[0]))
        return Replacement("classification_error", inputs, {"axis": -1, "top": 1})
    wrong = model.computed_by(root.inputs[0], "GreaterEqual") if root.kind == "ReduceElements" else None
    count = wrong and model.computed_by(wrong.inputs[0], "ReduceElements")
    differs = count and model.computed_by(count.inputs[0], "NotEqual")
    best = differs and model.computed_by(differs.inputs[1], "Equal")
    top = best and model.computed_by(best.inputs[1], "ReduceElements")
    if differs is None or top is None or top.attributes.get("reductionOpName") != "Max":
        return None
    axis = top.attributes.get("axis")
    if axis is None or axis.index == ALL_STATIC:
        return None
    inputs = (model.source(top.inputs[0]), model.source(differs.inputs[0]))
    return Replacement("classification_error", inputs, {"axis": python_axis(axis), "top": 1})


def _within(model: FileModel, uid: str, inverted: bool) -> int | None:
    """Return k if flags select all steps but the first k, -k if all but the last k, or None.

    Args:
        model: model of the file.
        uid: identifier of the flags.
        inverted: whether the flags select the first or last k steps instead.
    """
    if inverted:
        minus = model.computed_by(uid, "Minus")
        if minus is None:
            return None
        uid = minus.inputs[1]
    shifted = model.computed_by(uid, "PastValue", "FutureValue")
    if shifted is None or model.computed_by(shifted.inputs[0], "ReconcileDynamicAxis") is None:
        return None
    steps = int(shifted.attributes.get("offset", 1))
    return steps if shifted.kind == "PastValue" else -steps


def _begin(model: FileModel, uid: str) -> int | None:
    """Return the first step that flags select: ``1 - first k`` for k, and ``last k`` for -k."""
    steps = _within(model, uid, True)
    if steps is not None and steps > 0:
        return steps
    steps = _within(model, uid, False)
    return steps if steps is not None and steps < 0 else None


def _end(model: FileModel, uid: str) -> int | None:
    """Return the step at which the selection of flags ends: ``first k`` for k, and ``1 - last k`` for -k."""
    steps = _within(model, uid, False)
    if steps is not None and steps > 0:
        return steps
    steps = _within(model, uid, True)
    return steps if steps is not None and steps < 0 else None


def _sequence_slice(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    """Recognize a range of steps, selected by flags of the steps from its begin on and of the steps before its end."""
    if root.kind != "GatherPacked" or len(block.arguments) != 1:
        return None
    index = model.computed_by(root.inputs[1], "PackedIndex")
    where = index and model.computed_by(index.inputs[1], "Where")
    if where is None:
        return None
    flags = where.inputs[0]
    product = model.computed_by(flags, "ElementTimes")
    begin: int | None
    end: int | None
    if product is not None:
        begin, end = _begin(model, product.inputs[0]), _end(model, product.inputs[1])
    else:
        begin, end = _begin(model, flags), _end(model, flags)
        begin, end = (0, end) if begin is None else (begin, 0)
    if begin is None or end is None:
        return None
    data = (block.arguments[0][1],)
    if end - begin == 1 and (begin, end) not in ((0, 1), (-1, 0)):
        return None  # a single step, which the content of the block selects
    if (begin, end) == (0, 1):
        return Replacement("sequence_first", data)
    if (begin, end) == (-1, 0):
        return Replacement("sequence_last", data)
    return Replacement("sequence_slice", data, {"begin": begin, "end": end})


def _match_root(op: str, *kinds: str) -> Callable[..., Replacement | None]:
    """Recognize a block of one operand by the operations that compute its result."""

    def recognize(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
        chain: FileFunction | None = root
        for kind in kinds[:-1]:
            if chain is None or chain.kind != kind:
                return None
            chain = model.computed_by(chain.inputs[0], kinds[kinds.index(kind) + 1])
        if chain is None or chain.kind != kinds[-1] or len(block.arguments) != 1:
            return None
        return Replacement(op, (block.arguments[0][1],))

    return recognize


def _select(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    scatters = block.block == "Sequence::Scatter"
    index = model.computed_by(root.inputs[1], "PackedIndex") if len(root.inputs) > 1 else None
    where = index and model.computed_by(index.inputs[1], "Where")
    if where is None or root.kind != ("ScatterPacked" if scatters else "GatherPacked"):
        return None
    if not scatters and where.attributes.get("newSequenceAxisLengthScalingFactor", 1) == 0:
        return None  # perhaps one sample of each sequence: loaded by its content
    op = "sequence_scatter" if scatters else "sequence_gather"
    return Replacement(op, (model.source(root.inputs[0]), model.source(where.inputs[0])))


def _spread(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    if root.kind != "ReconcileDynamicAxis":
        return None
    return Replacement("sequence_broadcast_as", (model.source(root.inputs[0]), model.source(root.inputs[1])))


def _sequence_reduction(model: FileModel, block: FileFunction, root: FileFunction) -> Replacement | None:
    """Recognize a reduction of steps that were unpacked to the first axis."""
    steps = model.computed_by(root.inputs[0], "UnpackSequence") if root.kind == "ReduceElements" else None
    op = {"Sum": "sequence_reduce_sum", "Max": "sequence_reduce_max"}.get(root.attributes.get("reductionOpName", ""))
    if steps is None or op is None or len(block.arguments) != 1:
        return None
    if root.attributes.get("reductionKeepDimensions", True):
        return None
    return Replacement(op, (block.arguments[0][1],))


_RECOGNIZERS: dict[str, Callable[[FileModel, FileFunction, FileFunction], Replacement | None]] = {
    "Softmax": _normalize("softmax"),
    "LogSoftmax": _normalize("log_softmax"),
    "CrossEntropyWithSoftmax": _cross_entropy,
    "ClassificationError": _classification_error,
    "Sequence::IsFirst": _match_root("sequence_is_first", "PastValue", "ReconcileDynamicAxis"),
    "Sequence::IsLast": _match_root("sequence_is_last", "FutureValue", "ReconcileDynamicAxis"),
    "Sequence::Slice": _sequence_slice,
    "Sequence::Gather": _select,
    "Sequence::Scatter": _select,
    "Sequence::BroadcastAs": _spread,
    "Sequence::ReduceElements": _sequence_reduction,
}
