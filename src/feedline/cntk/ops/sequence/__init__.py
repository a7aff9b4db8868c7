"""`cntk.ops.sequence`, also `cntk.sequence`: operations along sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.cntk._names import explain
from feedline.cntk._nodes import node_of, nodes_of
from feedline.cntk.axis import Axis
from feedline.cntk.ops._graphs import alias
from feedline.cntk.ops._leaves import input_variable as fed
from feedline.cntk.ops.functions import Function
from feedline.cntk.variables import Variable
from feedline.errors import CompatError
from feedline.networks import apply

__all__ = [
    "broadcast_as",
    "delay",
    "first",
    "future_value",
    "gather",
    "input",
    "input_variable",
    "is_first",
    "is_last",
    "last",
    "past_value",
    "reduce_max",
    "reduce_sum",
    "scatter",
    "slice",
    "softmax",
    "where",
]


def input_variable(
    shape: Any,
    dtype: Any = None,
    needs_gradient: bool = False,
    is_sparse: bool = False,
    sequence_axis: Axis | None = None,
    name: str = "",
) -> Variable:
    """A variable that is fed sequences."""
    axes = [Axis.default_batch_axis(), sequence_axis or Axis.default_dynamic_axis()]
    return fed(shape, dtype, needs_gradient, is_sparse, axes, name)


input = input_variable


def first(seq: Any, name: str = "") -> Function:
    """The first sample of each sequence."""
    return _made("sequence_first", [seq], name)


def last(seq: Any, name: str = "") -> Function:
    """The last sample of each sequence."""
    return _made("sequence_last", [seq], name)


def is_first(seq: Any, name: str = "") -> Function:
    """1 at the first sample of each sequence, else 0."""
    return _made("sequence_is_first", [seq], name)


def is_last(seq: Any, name: str = "") -> Function:
    """1 at the last sample of each sequence, else 0."""
    return _made("sequence_is_last", [seq], name)


def broadcast_as(operand: Any, broadcast_as_operand: Any, name: str = "") -> Function:
    """One sample a sequence, repeated for each sample of another variable's sequences."""
    return _made("sequence_broadcast_as", [operand, broadcast_as_operand], name)


def delay(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """The sample ``time_step`` steps before; negative: after; 0: the operand itself.

    Args:
        x: sequences, or a placeholder that will be.
        initial_state: before the first, or after the last, sample: a number (None: 0), or one sample a sequence.
        time_step: how many steps.
        name: its name.
    """
    if time_step == 0:
        return alias(x, name)
    operands = nodes_of(x, 0 if initial_state is None else initial_state)
    return Function.of([apply("delay", operands, {"steps": int(time_step)}, name)])


def past_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """As `delay`, into the past."""
    return delay(x, initial_state, _positive(time_step), name)


def future_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """As `delay`, into the future."""
    return delay(x, initial_state, -_positive(time_step), name)


def reduce_sum(seq: Any, name: str = "") -> Function:
    """Sum of the samples of each sequence."""
    return _made("sequence_reduce_sum", [seq], name)


def reduce_max(seq: Any, name: str = "") -> Function:
    """Maximum over the samples of each sequence, element by element."""
    return _made("sequence_reduce_max", [seq], name)


def softmax(seq: Any, name: str = "") -> Function:
    """Exponentials divided by their sum over each sequence, element by element."""
    return _made("sequence_softmax", [seq], name)


def gather(seq: Any, condition: Any, new_sequence_axis_typeinfo: Any = None, name: str = "") -> Function:
    """The samples at which a condition is not 0, along an axis of their own.

    Raises:
        CompatError: an axis that is a multiple of another one.
    """
    if new_sequence_axis_typeinfo is not None:
        raise CompatError("expected no new_sequence_axis_typeinfo: lengths follow from the condition")
    return _made("sequence_gather", [seq, condition], name)


def where(condition: Any, name: str = "") -> Function:
    """The numbers of the steps at which a condition is not 0."""
    return _made("sequence_where", [condition], name)


def scatter(seq: Any, condition: Any, new_sequence_axis_typeinfo: Any = None, name: str = "") -> Function:
    """What `gather` took, back at its steps; 0 elsewhere.

    Raises:
        CompatError: an axis that is a multiple of another one.
    """
    if new_sequence_axis_typeinfo is not None:
        raise CompatError("expected no new_sequence_axis_typeinfo: lengths follow from the condition")
    return _made("sequence_scatter", [seq, condition], name)


def slice(seq: Any, begin_index: int, end_index: int, name: str = "") -> Function:
    """Steps of each sequence, counted from its end if negative; an ``end_index`` of 0 is the end."""
    return _made("sequence_slice", [seq], name, {"begin": begin_index, "end": end_index})


def _positive(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"expected a positive time_step, got {steps}")
    return int(steps)


def _made(op: str, operands: Sequence[Any], name: str, attributes: Mapping[str, Any] | None = None) -> Function:
    return Function.of([apply(op, [node_of(x) for x in operands], attributes, name)])


def __getattr__(name: str) -> Any:
    raise explain("cntk.ops.sequence", name)
