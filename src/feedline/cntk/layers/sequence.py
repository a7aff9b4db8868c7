"""`cntk.layers.sequence`: layers along sequences. Steps run by a fused kernel of torch if it has one."""

from __future__ import annotations

import numbers
from typing import Any

from feedline.cntk import ops
from feedline.cntk._names import names_of
from feedline.cntk._nodes import node_of
from feedline.cntk._settings import take_plain_settings
from feedline.cntk._tracing import block_of
from feedline.cntk.default_options import default_override_or, overridable
from feedline.cntk.layers._layer_helpers import layer
from feedline.cntk.layers.higher_order_layers import as_function
from feedline.cntk.ops import sequence
from feedline.cntk.ops._operation_helpers import at_least
from feedline.cntk.ops.functions import Function
from feedline.cntk.ops.sequence import input_variable as input_variable
from feedline.cntk.variables import Constant, placeholder
from feedline.networks import apply
from feedline.networks.traverse import close

__all__, __getattr__ = names_of(__name__)


@overridable
def Delay(T: int = 1, initial_state: Any = default_override_or(0), name: str = "") -> Function:
    """Return a layer that delays samples by T steps, or advances them if T is negative."""
    return layer(lambda x: sequence.delay(x, initial_state, T), "Delay", name)


@overridable
def PastValueWindow(
    window_size: int, axis: Any, go_backwards: Any = default_override_or(False), name: str = ""
) -> Function:
    """Return a layer of two outputs: the last samples of each sequence, spliced along an axis, and a mask of them."""
    at_least(1, window_size=window_size)
    end, sign = (sequence.first, -1) if go_backwards else (sequence.last, 1)

    def window(x: Any) -> Any:
        ones = sequence.broadcast_as(Constant(1.0, (1,)), x)
        values = [end(sequence.delay(x, 0, sign * t)) for t in range(window_size)]
        valid = [end(sequence.delay(ones, 0, sign * t)) for t in range(window_size)]
        return ops.splice(*values, axis=axis, name="value"), ops.splice(*valid, axis=axis, name="valid")

    return layer(window, "PastValueWindow", name)


@overridable
def Recurrence(
    step_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Function:
    """Return a layer that runs a step over each sequence, ``x -> h``.

    Args:
        step_function: function ``(states..., x) -> states``.
        go_backwards: whether to run from the last sample to the first.
        initial_state: state before the first step: a number, an array, a variable, or one of these for each state.
        return_full_state: whether to return all states, not only the first.
        name: name of the layer.

    Raises:
        TypeError: a step that returns another number of states than it takes.
    """
    step = as_function(step_function)
    states = _states(step)
    initial = list(initial_state) if isinstance(initial_state, tuple) else [initial_state] * len(states)
    x = placeholder(name="x")
    return _run(step, initial, x, [x], bool(go_backwards), return_full_state, "Recurrence", name)


@overridable
def RecurrenceFrom(
    step_function: Any,
    go_backwards: Any = default_override_or(False),
    return_full_state: bool = False,
    name: str = "",
) -> Function:
    """Return a `Recurrence` with initial states as arguments, ``(states..., x) -> h``."""
    step = as_function(step_function)
    initial = [placeholder(name=f"initial_{v.name}") for v in _states(step)]
    x = placeholder(name="x")
    return _run(step, initial, x, [*initial, x], bool(go_backwards), return_full_state, "RecurrenceFrom", name)


@overridable
def Fold(
    folder_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Function:
    """Return a `Recurrence` that returns only the result of the last step."""
    recurrence = Recurrence(folder_function, go_backwards, initial_state, return_full_state)
    end = sequence.first if go_backwards else sequence.last

    def fold(x: Any) -> Any:
        return tuple(end(state) for state in recurrence(x).outputs)

    return layer(fold, "Fold", name)


def UnfoldFrom(
    generator_function: Any, until_predicate: Any = None, length_increase: float = 1, name: str = ""
) -> Function:
    """Return a layer that generates sequences from a state, ``(initial_state, dynamic_axes_like) -> sequences``.

    Their lengths are the lengths of ``dynamic_axes_like``, times ``length_increase``, or shorter if ``until_predicate``
    ends them. All steps are computed in either case.

    Args:
        generator_function: function ``state -> output``, the next state, or ``state -> (output, next state)``. It may
            contain recurrences along the generated sequence.
        until_predicate: function ``output -> number``. A sequence ends with the first output for which it is 1.
        length_increase: ratio of the generated length to the length of ``dynamic_axes_like``, rounded up.
        name: name of the layer.

    Raises:
        TypeError: a generator with more than two results.
    """
    generator = as_function(generator_function)
    if len(generator.outputs) > 2:
        raise TypeError(
            f"expected a generator state -> output, or (output, state), got {len(generator.outputs)} results"
        )

    def unfold(initial_state: Any, dynamic_axes_like: Any) -> Any:
        steps = apply("sequence_ones", [node_of(dynamic_axes_like)], {"factor": float(length_increase)})
        state = placeholder(name="state")
        before = apply("sequence_broadcast_as", [sequence.past_value(state, initial_state).node, steps])
        ends = [v.node for v in generator(Function.of([before])).outputs]
        output = Function.of(close(ends[:1], {state.node: ends[-1]})[:1])
        if until_predicate is None:
            return output
        ended = sequence.past_value(as_function(until_predicate)(output))
        return sequence.gather(output, Recurrence(lambda on, end: on * (1 - end), initial_state=1)(ended))

    return layer(unfold, "UnfoldFrom", name, inputs=("initial_state", "dynamic_axes_like"))


def _states(step: Function) -> tuple[Any, ...]:
    # Variables that a step captures are not states.
    arguments = step.arguments[: len(step._order) or None]
    states = arguments[:-1]
    if not states or len(states) != len(step.outputs):
        raise TypeError(
            f"expected a step (states..., x) -> states, got {len(arguments)} arguments and {len(step.outputs)} results"
        )
    return states


def _run(
    step: Function,
    initial: list[Any],
    x: Any,
    arguments: list[Any],
    backwards: bool,
    return_full_state: bool,
    op_name: str,
    name: str,
) -> Function:
    full = return_full_state and len(initial) > 1
    fused = step.step is not None and not full and all(_plain(s) for s in initial)
    roots = [_fuse(step, initial, x, backwards)] if fused else _loop(step, initial, x, backwards)
    nodes = [a.node for a in arguments]
    blocks = block_of(roots if full else roots[:1], nodes, op_name, name)
    return Function.of(blocks, nodes, step._members)


def _plain(state: Any) -> bool:
    """Return whether a value is a number or an array. A variable may have a sequence axis."""
    return isinstance(state, (numbers.Number, Constant)) or not hasattr(state, "node")


def _fuse(step: Function, initial: list[Any], x: Any, backwards: bool) -> Any:
    kernel = step.step
    weights = [node_of(w) for w in kernel.weights]
    states = [node_of(s) for s in initial]
    return apply(kernel.op, [x.node, *weights, *states], {**kernel.attributes, "backwards": backwards}, step.name)


def _loop(step: Function, initial: list[Any], x: Any, backwards: bool) -> list[Any]:
    states = [placeholder(name=v.name) for v in _states(step)]
    sign = -1 if backwards else 1
    before = [sequence.delay(s, i, sign) for s, i in zip(states, initial, strict=True)]
    after = step(*before, x)
    ends = [v.node for v in after.outputs]
    return close(ends, {s.node: end for s, end in zip(states, ends, strict=True)})[: len(ends)]


take_plain_settings(globals())
