"""Reductions over static axes, and over the batch and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from feedline._facades import defined_in
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.axis import Axis
from feedline.cntk.ops._function import Function
from feedline.cntk.ops._operation_helpers import axis_number, axis_numbers, build, one_axis, with_name
from feedline.errors import CompatError


def _reduction(op: str, noun: str) -> Callable[..., Function]:
    def function(x: Any, axis: Any = None, keepdims: bool = True, name: str = "") -> Function:
        return _reduce(op, x, axis, keepdims, name)

    over = "over an axis or a list of axes, which remain with length 1, unless ``keepdims`` is False."
    return with_name(
        function, op, f"Return the {noun} {over}\n\n    None means the whole sample, which gives a single number.\n    "
    )


reduce_sum = _reduction("reduce_sum", "sum")
reduce_mean = _reduction("reduce_mean", "mean")
reduce_max = _reduction("reduce_max", "maximum")
reduce_min = _reduction("reduce_min", "minimum")
reduce_prod = _reduction("reduce_prod", "product")
reduce_log_sum_exp = _reduction("reduce_log_sum_exp", "logarithm of the sum of exponentials")
reduce_l1 = _reduction("reduce_l1", "sum of absolute values")
reduce_l2 = _reduction("reduce_l2", "root of the sum of squares")
reduce_sum_square = _reduction("reduce_sum_square", "sum of squares")


def argmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Return the index of the largest element along an axis, or of a flattened sample."""
    return build("argmax", [x], {"axis": one_axis(axis, None)}, name)


def argmin(x: Any, axis: Any = None, name: str = "") -> Function:
    """Return the index of the smallest element along an axis, or of a flattened sample."""
    return build("argmin", [x], {"axis": one_axis(axis, None)}, name)


def _reduce(op: str, x: Any, axis: Any, keepdims: bool, name: str) -> Function:
    how = op.removeprefix("reduce_")
    settings = {} if keepdims else {"keepdims": False}
    if isinstance(axis, (list, tuple)) and any(isinstance(a, Axis) and a.is_batch_axis for a in axis):
        static_axes = tuple(axis_number(a) for a in axis if not (isinstance(a, Axis) and a.is_batch_axis))
        return build("reduce_batch", [x], {"how": how, "axis": static_axes, **settings}, name)
    if isinstance(axis, Axis) and not axis.is_static_axis:
        if axis == Axis.all_axes():
            return build("reduce_everything", [x], {"how": how}, name)
        if axis.is_batch_axis:
            return build("reduce_batch", [x], {"how": how}, name)
        return _along_sequences(how, x, name)
    if axis is None or axis == Axis.all_static_axes():
        return build(op, [x], {"axis": None}, name)
    return build(op, [x], {"axis": tuple(axis_numbers(axis)), **settings}, name)


def _along_sequences(how: str, x: Any, name: str) -> Function:
    """Reduce each sequence to one sample."""
    if how in ("sum", "mean", "max"):
        return build(f"sequence_reduce_{how}", [x], None, name)

    def over(kind: str, operand: Any) -> Function:
        return build(f"sequence_reduce_{kind}", [operand], None, "")

    if how == "min":
        return build("negate", [over("max", build("negate", [x], None, ""))], None, name)
    if how == "l1":
        return build("sequence_reduce_sum", [build("abs", [x], None, "")], None, name)
    if how in ("l2", "sum_square"):
        squares = build("square", [x], None, "")
        if how == "sum_square":
            return build("sequence_reduce_sum", [squares], None, name)
        return build("sqrt", [over("sum", squares)], None, name)
    if how == "log_sum_exp":
        top = build("stop_gradient", [over("max", x)], None, "")
        moved = build("minus", [x, build("sequence_broadcast_as", [top, x], None, "")], None, "")
        return build("plus", [build("log", [over("sum", build("exp", [moved], None, ""))], None, ""), top], None, name)
    raise CompatError(
        f"expected a static axis for reduce_{how}, got the sequence axis: use sequence.reduce_sum of logs"
    )


if not TYPE_CHECKING:  # type checkers find out themselves
    take_plain_settings(globals())
    __all__ = defined_in(globals())
