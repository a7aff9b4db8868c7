"""`cntk.ops.sequence`, also `cntk.sequence`: operations along sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk._nodes import node_of, nodes_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk.axis import Axis
from feedline.cntk.ops._graphs import alias
from feedline.cntk.ops._leaves import input_variable as fed
from feedline.cntk.ops._operation_helpers import with_name
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Variable
from feedline.errors import CompatError
from feedline.networks import apply

__all__, __getattr__ = names_of(__name__)


def input_variable(
    shape: Any,
    dtype: Any = None,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    sequence_axis: Axis | None = None,
    name: str = "",
) -> Variable:
    """Return an input for sequences."""
    axes = [Axis.default_batch_axis(), sequence_axis or Axis.default_dynamic_axis()]
    return fed(shape, dtype, needs_gradient, is_sparse, axes, name)


input = input_variable


def _each(op: str, doc: str) -> Callable[..., Function]:
    def function(seq: Any, name: str = "") -> Function:
        return _build(f"sequence_{op}", [seq], name)

    return with_name(function, op, doc)


first = _each("first", "Return the first sample of each sequence.")
last = _each("last", "Return the last sample of each sequence.")
is_first = _each("is_first", "Return 1 at the first sample of each sequence, else 0.")
is_last = _each("is_last", "Return 1 at the last sample of each sequence, else 0.")
reduce_sum = _each("reduce_sum", "Return the sum of the samples of each sequence.")
reduce_max = _each("reduce_max", "Return the element-wise maximum over the samples of each sequence.")
softmax = _each("softmax", "Return exponentials divided by their element-wise sum over each sequence.")


def broadcast_as(operand: Any, broadcast_as_operand: Any, name: str = "") -> Function:
    """Repeat the single sample of each sequence for each sample of another variable's sequences."""
    return _build("sequence_broadcast_as", [operand, broadcast_as_operand], name)


def delay(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """Delay samples by ``time_step`` steps. A negative step advances them, 0 returns the operand itself.

    Args:
        x: sequences, or a placeholder for them.
        initial_state: value before the first, or after the last sample: a number (None means 0), one sample per
            sequence, or sequences, of which a past value takes the last steps and a future value the first ones. A
            sequence of one step repeats.
        time_step: number of steps.
        name: name of the operation.
    """
    if time_step == 0:
        return alias(x, name)
    operands = nodes_of(x, 0 if initial_state is None else initial_state)
    return Function.of([apply("delay", operands, {"steps": int(time_step)}, name)])


def past_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """Delay samples by ``time_step`` steps. See `delay`."""
    return delay(x, initial_state, _positive(time_step), name)


def future_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """Advance samples by ``time_step`` steps. See `delay`."""
    return delay(x, initial_state, -_positive(time_step), name)


def gather(seq: Any, condition: Any, new_sequence_axis_typeinfo: Any = None, name: str = "") -> Function:
    """Select the samples at which a condition is 1, along a new sequence axis. See `where` for other numbers.

    Args:
        seq: sequences.
        condition: number for each sample.
        new_sequence_axis_typeinfo: two numbers (factor, addend), which promise ``factor * length + addend`` samples of
            a sequence. Results of equal numbers are along the same sequences. Of (0, 1), one sample for each sequence,
            the result has no sequence axis. None means that the condition alone determines the lengths.
        name: name of the operation.

    Raises:
        ValueError: when it runs, another number of samples than promised.
    """
    attributes = {} if new_sequence_axis_typeinfo is None else {"lengths": _two(new_sequence_axis_typeinfo)}
    return _build("sequence_gather", [seq, condition], name, attributes)


def where(condition: Any, name: str = "") -> Function:
    """Return the indices of the steps at which a condition is 1, along a new sequence axis.

    Another number repeats the step. With fractions, a step comes until there are as many steps as the sum of the
    condition so far: ``[1.5, 1.5]`` gives ``[0, 0, 1]``.
    """
    return _build("sequence_where", [condition], name)


def scatter(seq: Any, condition: Any, new_sequence_axis_typeinfo: Any = None, name: str = "") -> Function:
    """Put samples selected by `gather` back at their steps, with 0 elsewhere. Samples of the same step are added.

    Raises:
        CompatError: ``new_sequence_axis_typeinfo`` other than (1, 0). The result is as long as the condition.
    """
    if new_sequence_axis_typeinfo is not None and _two(new_sequence_axis_typeinfo) != (1, 0):
        raise CompatError(
            f"expected new_sequence_axis_typeinfo=(1, 0) or None, as the result is as long as the condition, got "
            f"{new_sequence_axis_typeinfo}"
        )
    return _build("sequence_scatter", [seq, condition], name)


def slice(seq: Any, begin_index: int, end_index: int, name: str = "") -> Function:
    """Return a range of steps of each sequence. Negative indices count from its end, and an end of 0 is its end.

    A range of one step, such as (1, 2) or (-1, 0), has no sequence axis, as `first` and `last`.
    """
    begin, end = int(begin_index), int(end_index)
    if end - begin != 1:
        return _build("sequence_slice", [seq], name, {"begin": begin, "end": end})
    if begin >= 0:
        return first(slice(seq, begin, 0) if begin else seq, name)
    return last(slice(seq, 0, end) if end else seq, name)


def unpack(x: Any, padding_value: float, no_mask_output: bool = False, name: str = "") -> Function:
    """Return the steps of each sequence as an axis of a sample, and a mask of the steps.

    Args:
        x: sequences of samples, (*shape).
        padding_value: value of the steps after the end of shorter sequences.
        no_mask_output: whether to return the steps only.
        name: name of the operation.

    Returns:
        A function of one or two outputs, each with a batch axis only: the steps, (longest, *shape), whose number is a
        `FreeDimension`, and the mask, (longest,), with 1 for steps and 0 for padding.
    """
    node = node_of(x)
    steps = apply("sequence_unpacked", [node], {"padding": float(padding_value)}, name)
    return Function.of([steps] if no_mask_output else [steps, apply("sequence_mask", [node], {}, name)])


def _two(typeinfo: Any) -> tuple[int, int]:
    factor, addend = (int(n) for n in typeinfo)
    return factor, addend


def _positive(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"expected a positive time_step, got {steps}")
    return int(steps)


def _build(op: str, operands: Sequence[Any], name: str, attributes: Mapping[str, Any] | None = None) -> Function:
    return Function.of([apply(op, [node_of(x) for x in operands], attributes, name)])


take_plain_settings(globals())
