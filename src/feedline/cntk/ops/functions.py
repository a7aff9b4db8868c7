"""`cntk.ops.functions`: functions, blocks and user functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.cntk._names import names_of
from feedline.cntk.device import DeviceDescriptor
from feedline.cntk.ops._function import CloneMethod as CloneMethod
from feedline.cntk.ops._function import Function as Function
from feedline.cntk.ops._function import ModelFormat as ModelFormat
from feedline.cntk.ops._user_function import UserFunction as UserFunction

__all__, __getattr__ = names_of(__name__)


def load_model(model: str, device: DeviceDescriptor | None = None, format: Any = None) -> Function:
    """Load a function. See `Function.load`."""
    return Function.load(model, device, format)


def BlockFunction(op_name: str, name: str = "") -> Callable[[Callable[..., Any]], Function]:
    """Return a decorator like `Function` that wraps the graph in a block."""
    return lambda f: Function(f, make_block=True, op_name=op_name, name=name)
