"""MXNet's operators on arrays: `mxnet.ndarray`'s functions, from the table of `mxnet.symbol`'s operators.

Each runs the operator's function on the arrays' tensors, without autograd and as in testing. Inputs come first, then
settings. ``out`` is an array to write to. Numbers and NumPy arrays become arrays on the other inputs' device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline.mxnet.base import MXNetError
from feedline.mxnet.context import current_context
from feedline.mxnet.ndarray import NDArray
from feedline.mxnet.symbol._make import arrange
from feedline.mxnet.symbol._node import Node, within
from feedline.mxnet.symbol._operator import CALLED, Operator
from feedline.mxnet.symbol._parameters import to_text


def invoke(called: str, inputs: Sequence[Any], settings: Mapping[str, Any], out: Any = None) -> Any:
    """Run an operator.

    Args:
        called: any name of the operator.
        inputs: arrays in the operator's order.
        settings: settings by name.
        out: array that gets the result, or a list of them. None means new arrays.

    Returns:
        An array, or a list of them for an operator with several outputs.

    Raises:
        MXNetError: settings, shapes or a number of inputs that the operator does not take.
    """
    operator = CALLED[called]
    attributes = {key: to_text(value) for key, value in settings.items()}
    if operator.variadic:
        attributes.setdefault("num_args", str(len(inputs)))
    node = Node(operator, called, attributes)
    expected = node.input_names
    present = [x for x in inputs if x is not None]
    if len(present) != len(expected) or len(inputs) != len(expected):
        raise MXNetError(f"{called}: expected arrays for {', '.join(expected) or 'nothing'}, got {len(present)}")
    context = next((x.context for x in inputs if isinstance(x, NDArray)), current_context())
    with torch.no_grad(), within(called):
        result = operator.bind(node.p, False)(*(_tensor(x, context) for x in inputs))
    several = result if isinstance(result, tuple) else (result,)
    arrays = [NDArray(x, context) for x in several[: node.visible]]
    if out is None:
        return arrays[0] if len(arrays) == 1 else arrays
    for target, array in zip(out if isinstance(out, (list, tuple)) else [out], arrays, strict=True):
        array.copyto(target)
    return out


def _tensor(value: Any, context: Any) -> Any:
    if isinstance(value, NDArray):
        return value.tensor
    if hasattr(value, "todense"):
        return value.todense().tensor
    return torch.as_tensor(np.asarray(value, np.float32), device=context.device)


def function(called: str) -> Callable[..., Any]:
    """Return the function ``mx.nd.<called>``."""
    operator = CALLED[called]

    def run(*args: Any, out: Any = None, name: str | None = None, **kwargs: Any) -> Any:
        inputs, settings = arrange(operator, called, args, kwargs, NDArray)
        return invoke(called, inputs, settings, out)

    run.__name__ = run.__qualname__ = called
    run.__doc__ = _describe(operator, called)
    return run


def _describe(operator: Operator, called: str) -> str:
    below = "any number of arrays" if operator.variadic else f"arrays {operator.inputs}" if operator.inputs else "none"
    settings = ", ".join(operator.parameters) or "none"
    return (
        f"`{operator.name}` of MXNet on arrays: {below}. Settings: {settings}. Returns an NDArray, or a list of them."
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {name: function(name) for name in CALLED if not name.startswith("_")}
