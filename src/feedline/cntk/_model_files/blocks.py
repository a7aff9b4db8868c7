"""Blocks of CNTK's files that are single operations here.

CNTK composes many functions of primitive operations, and marks the composition as a block. Any block can be loaded by
what is inside; those below have operations that are safer numerically (a cross entropy that does not overflow), accept
sparse labels, or say directly what indices of packed rows say in a roundabout way. As scripts may call their own blocks
by the same names, what is inside has to be what CNTK puts there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feedline.cntk._model_files.dictionaries import ALL_STATIC, DYNAMIC
from feedline.cntk._model_files.functions import FileFunction, FileModel
from feedline.cntk._model_files.operators import python_axis


@dataclass(frozen=True, slots=True)
class Known:
    """An operation that stands for a block.

    Attributes:
        op: name of the operation.
        inputs: identifiers of its operands.
        attributes: its settings.
    """

    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


def known(model: FileModel, block: FileFunction) -> Known | None:
    """Return the operation that stands for a block; None if there is none."""
    recognize = _KNOWN.get(block.block)
    if recognize is None:
        return None
    root = model.functions.get(block.root)
    return None if root is None else recognize(model, block, root)


def _normalized(op: str) -> Callable[..., Known | None]:
    """Recognize a softmax, whose axis is a setting of the block."""

    def recognize(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
        axis = block.attributes.get("axis")
        if axis is None or len(block.arguments) != 1 or axis.index == DYNAMIC:
            return None
        number = None if axis.index == ALL_STATIC else python_axis(axis)
        return Known(op, (block.arguments[0][1],), {"axis": number})

    return recognize


def _cross_entropy(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    """A logarithm of a sum of exponentials, minus the product of targets and scores."""
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


def _of_pair(model: FileModel, op: str, scored: FileFunction, product: FileFunction, **more: Any) -> Known | None:
    axis, scores = scored.attributes["axis"], model.source(scored.inputs[0])
    targets = [model.source(uid) for uid in product.inputs]
    if scores not in targets or len(targets) != 2:
        return None
    targets.remove(scores)
    number = None if axis.index == ALL_STATIC else python_axis(axis)
    return Known(op, (scores, targets[0]), {"axis": number, **more})


def _classification_error(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    """1 minus the target at the largest score; or, along an axis, whether the largest scores are at the targets."""
    if root.kind == "Minus":
        product = model.computed_by(root.inputs[1], "TransposeTimes")
        best = product and model.computed_by(product.inputs[1], "Hardmax")
        if product is None or best is None:
            return None
        inputs = (model.source(best.inputs[0]), model.source(product.inputs[0]))
        return Known("classification_error", inputs, {"axis": -1, "top": 1})
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
    return Known("classification_error", inputs, {"axis": python_axis(axis), "top": 1})


def _within(model: FileModel, uid: str, turned: bool) -> int | None:
    """Return k of the flags of all steps but the first k, or for negative k the last; None for anything else.

    Args:
        model: model of the file.
        uid: identifier of the flags.
        turned: whether they are wanted the other way round: of the first or last k steps only.
    """
    if turned:
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
    found = _within(model, uid, True)
    if found is not None and found > 0:
        return found
    found = _within(model, uid, False)
    return found if found is not None and found < 0 else None


def _end(model: FileModel, uid: str) -> int | None:
    """Return the step at which the selection of flags ends: ``first k`` for k, and ``1 - last k`` for -k."""
    found = _within(model, uid, False)
    if found is not None and found > 0:
        return found
    found = _within(model, uid, True)
    return found if found is not None and found < 0 else None


def _sequence_slice(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    """A range of steps, selected by flags of the steps from its begin on, and of those before its end."""
    if root.kind != "GatherPacked" or len(block.arguments) != 1:
        return None
    index = model.computed_by(root.inputs[1], "PackedIndex")
    where = index and model.computed_by(index.inputs[1], "Where")
    if where is None:
        return None
    flags = where.inputs[0]
    both = model.computed_by(flags, "ElementTimes")
    begin: int | None
    end: int | None
    if both is not None:
        begin, end = _begin(model, both.inputs[0]), _end(model, both.inputs[1])
    else:
        begin, end = _begin(model, flags), _end(model, flags)
        begin, end = (0, end) if begin is None else (begin, 0)
    if begin is None or end is None:
        return None
    data = (block.arguments[0][1],)
    if (begin, end) == (0, 1):
        return Known("sequence_first", data)
    if (begin, end) == (-1, 0):
        return Known("sequence_last", data)
    return Known("sequence_slice", data, {"begin": begin, "end": end})


def _rooted(op: str, *kinds: str) -> Callable[..., Known | None]:
    """Recognize a block by its number of operands and what computes its result."""

    def recognize(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
        chain: FileFunction | None = root
        for kind in kinds[:-1]:
            if chain is None or chain.kind != kind:
                return None
            chain = model.computed_by(chain.inputs[0], kinds[kinds.index(kind) + 1])
        if chain is None or chain.kind != kinds[-1] or len(block.arguments) != 1:
            return None
        return Known(op, (block.arguments[0][1],))

    return recognize


def _selected(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    scatters = block.block == "Sequence::Scatter"
    index = model.computed_by(root.inputs[1], "PackedIndex") if len(root.inputs) > 1 else None
    where = index and model.computed_by(index.inputs[1], "Where")
    if where is None or root.kind != ("ScatterPacked" if scatters else "GatherPacked"):
        return None
    if not scatters and where.attributes.get("newSequenceAxisLengthScalingFactor", 1) == 0:
        return None  # perhaps one sample of each sequence: loaded by what is inside
    op = "sequence_scatter" if scatters else "sequence_gather"
    return Known(op, (model.source(root.inputs[0]), model.source(where.inputs[0])))


def _spread(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    if root.kind != "ReconcileDynamicAxis":
        return None
    return Known("sequence_broadcast_as", (model.source(root.inputs[0]), model.source(root.inputs[1])))


def _sequence_reduction(model: FileModel, block: FileFunction, root: FileFunction) -> Known | None:
    """A reduction of the steps that were unpacked to an axis before all others."""
    steps = model.computed_by(root.inputs[0], "UnpackSequence") if root.kind == "ReduceElements" else None
    op = {"Sum": "sequence_reduce_sum", "Max": "sequence_reduce_max"}.get(root.attributes.get("reductionOpName", ""))
    if steps is None or op is None or len(block.arguments) != 1:
        return None
    if root.attributes.get("reductionKeepDimensions", True):
        return None
    return Known(op, (block.arguments[0][1],))


_KNOWN: dict[str, Callable[[FileModel, FileFunction, FileFunction], Known | None]] = {
    "Softmax": _normalized("softmax"),
    "LogSoftmax": _normalized("log_softmax"),
    "CrossEntropyWithSoftmax": _cross_entropy,
    "ClassificationError": _classification_error,
    "Sequence::IsFirst": _rooted("sequence_is_first", "PastValue", "ReconcileDynamicAxis"),
    "Sequence::IsLast": _rooted("sequence_is_last", "FutureValue", "ReconcileDynamicAxis"),
    "Sequence::Slice": _sequence_slice,
    "Sequence::Gather": _selected,
    "Sequence::Scatter": _selected,
    "Sequence::BroadcastAs": _spread,
    "Sequence::ReduceElements": _sequence_reduction,
}
