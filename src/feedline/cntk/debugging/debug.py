"""`cntk.debugging.debug`: step through a graph node by node, from a prompt."""

from __future__ import annotations

import ast
import functools
import logging
import pdb
import sys
from collections.abc import Callable
from typing import Any, TextIO

from feedline.cntk._names import names_of
from feedline.cntk._nodes import node_of
from feedline.cntk._tracing import roots_of
from feedline.cntk.cntk_py import set_computation_network_trace_level as set_computation_network_trace_level
from feedline.cntk.ops import output_variable, user_function
from feedline.cntk.ops._function import Function, operand_of
from feedline.cntk.ops.functions import UserFunction
from feedline.networks import Node, replace, topological

__all__, __getattr__ = names_of(__name__)

_log = logging.getLogger("feedline")

DEBUG_USAGE = """\
    Commands:
        n            go on to the next node
        n NUMBER     go on by this number of nodes
        u f, u b     go on to the forward pass, or to the backward pass
        u NAME       go on to a node of this name
        u LAMBDA     go on until it is true: lambda arg, node: len(node.shape) == 3
        c            go on to the end
        p            print the node's result, or backwards its gradients
        d            start Python's debugger
        q            quit"""

# When a command that goes on should stop.
_Until = Callable[[str, Any, Any], bool]


class _Stepper:
    """The prompt, and the current command, shared by all nodes of a model."""

    def __init__(self, names: set[str], read: TextIO, write: TextIO, leave: Callable[[int], Any]) -> None:
        self._names, self._in, self._out, self._leave = names, read, write, leave
        self._until: _Until | None = None
        self._last = ""

    def stop_at(self, direction: str, data: Any, node: Any) -> None:
        """Print the position of the run, and execute commands until one goes on."""
        if direction != self._last:
            self._print(f"{'=' * 35} {direction:<8} {'=' * 35}\n")
        self._last = direction
        self._print(f"\n{node!r} with uid '{node.uid}'\n")
        if self._until is not None and not self._until(direction, data, node):
            return
        self._until = None
        while not self._execute(self._command(direction), direction, data):
            pass

    def _command(self, direction: str) -> str:
        self._print(f"[CNTK {direction}] >>> ")
        line = self._in.readline()
        return line.strip() if line else "q"  # the end of the input

    def _execute(self, command: str, direction: str, data: Any) -> bool:
        """Execute a command, and return whether it goes on."""
        letter, argument = command[:1], command[1:].strip()
        if letter == "n" and (not argument or argument.isdigit()):
            self._until = _after(int(argument or 1) - 1)
        elif command == "c":
            self._until = lambda way, data, node: False
        elif letter == "u" and argument:
            self._until = self._condition(argument)
            return self._until is not None
        elif command == "p":
            self._print(f"{'Input' if direction == 'forward' else 'Root gradients'}: \n{data}\n")
            return False
        elif command == "d":
            pdb.set_trace()
        elif command == "q":
            self._leave(0)
        else:
            self._print(DEBUG_USAGE + "\n" if command else "")
            return False
        return True

    def _condition(self, text: str) -> _Until | None:
        if text.startswith("lambda"):
            try:
                ast.parse(text, mode="eval")
            except SyntaxError:
                self._print(DEBUG_USAGE + "\n")
                return None
            import numpy as np

            true = eval(text, {"np": np})
            return lambda way, data, node: bool(true(data, node))
        if text in self._names:
            return lambda way, data, node: node.name == text
        for direction in ("backward", "forward"):
            if direction.startswith(text):
                return lambda way, data, node: way == direction
        self._print(f'Your model does not contain a node with name "{text}"\n')
        return None

    def _print(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _after(count: int) -> _Until:
    remaining = [count]

    def until(way: str, data: Any, node: Any) -> bool:
        remaining[0] -= 1
        return remaining[0] < 0

    return until


class _Stop(UserFunction):
    """The unchanged result of a node, with a stop in both directions."""

    def __init__(self, node: Any, stepper: _Stepper, shown: Any) -> None:
        super().__init__([node], as_numpy=True)
        self._stepper, self._shown = stepper, shown

    def forward(  # type: ignore[override]  # as in CNTK
        self, argument: Any, outputs: Any = None, device: Any = None, outputs_to_retain: Any = None
    ) -> Any:
        """See `UserFunction.forward`."""
        self._stepper.stop_at("forward", argument, self._shown)
        return None, argument

    def backward(  # type: ignore[override]  # as in CNTK
        self, state: Any, root_gradients: Any, variables: Any = None
    ) -> Any:
        """See `UserFunction.backward`."""
        self._stepper.stop_at("backward", root_gradients, self._shown)
        return root_gradients

    def infer_outputs(self) -> list[Any]:
        """Return the type of the operand."""
        (of,) = self.inputs
        return [output_variable(of.shape, of.dtype, of.dynamic_axes)]


def debug_model(
    model: Any, in_stream: Any = None, out_stream: Any = None, exit_func: Callable[[int], Any] = sys.exit
) -> Function:
    """Return a copy of a model that stops after each node, forwards and backwards, and asks for a command.

    Inputs, and nodes inside recurrences, have no stops. Parameters are shared with the model.

    Args:
        model: function.
        in_stream: stream from which commands are read, see `DEBUG_USAGE`. None means the standard input.
        out_stream: stream to which the prompt is written. None means the standard output.
        exit_func: function called with 0 to quit, also at the end of the input.
    """
    roots = roots_of(model)
    order = [node for node in topological(roots) if node.op not in ("input", "placeholder", "loop")]
    read, write = in_stream or sys.stdin, out_stream or sys.stdout
    stepper = _Stepper({node.name for node in order if node.name}, read, write, exit_func)
    exchanged: dict[Node, Node] = {}
    for node in order:
        if "block" in node.attributes and not node.attributes.get("instance"):
            continue  # the nodes inside have stops
        (current,) = replace([node], exchanged) if exchanged else [node]
        stop = user_function(_Stop(operand_of(current), stepper, operand_of(node)))
        exchanged[node] = node_of(stop)
    return Function.of(replace(roots, exchanged))


_checked = False


def set_checked_mode(enable: bool) -> None:
    """Make torch check gradients for NaN, and name the operation that caused them."""
    import torch

    global _checked
    _checked = bool(enable)
    torch.autograd.set_detect_anomaly(_checked)


def get_checked_mode() -> bool:
    """Return the last value of `set_checked_mode`."""
    return _checked


@functools.cache
def _warn_of_timing() -> None:
    _log.warning("the times of single nodes are not measured: use start_profiler() and enable_profiler()")


def set_node_timing(enable: bool) -> None:
    """Accept the setting without effect, and warn once: the profiler has the times of operations."""
    if enable:
        _warn_of_timing()
