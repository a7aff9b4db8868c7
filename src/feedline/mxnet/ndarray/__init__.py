"""`mxnet.ndarray` (`mx.nd`): arrays, and MXNet's operators on them, the same as for its symbols."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch

from feedline.mxnet._names import names_of
from feedline.mxnet.context import Context, current_context
from feedline.mxnet.ndarray import _functions, sparse
from feedline.mxnet.ndarray._dense import NDArray as NDArray
from feedline.mxnet.ndarray._dense import torch_dtype
from feedline.mxnet.ndarray._files import load as load
from feedline.mxnet.ndarray._files import load_frombuffer as load_frombuffer
from feedline.mxnet.ndarray._files import save as save

__all__, _missing = names_of(__name__)
globals().update({name: getattr(_functions, name) for name in _functions.__all__})


def __getattr__(name: str) -> Any:
    """Look up an operator, or `mxnet.random`, which are built on arrays."""
    if name == "random":
        return importlib.import_module("feedline.mxnet.random")
    if name in __all__:
        return importlib.import_module("feedline.mxnet._imperative").FUNCTIONS[name]
    return _missing(name)


def full(shape: Any, val: float, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Return an array filled with one number."""
    ctx = current_context() if ctx is None else ctx
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return NDArray(torch.full(shape, val, dtype=torch_dtype(dtype), device=ctx.device), ctx)


def zeros(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str = "default") -> Any:
    """Return an array of zeros, with ``stype="row_sparse"`` one without rows."""
    return full(shape, 0, ctx, dtype) if stype == "default" else sparse.zeros(stype, shape, ctx, dtype)


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Return an array of ones."""
    return full(shape, 1, ctx, dtype)


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Return an array to be written to. It contains zeros."""
    return full(shape, 0, ctx, dtype)


def zeros_like(data: NDArray) -> NDArray:
    """Return zeros of the same shape, dtype and context."""
    return NDArray(torch.zeros_like(data.tensor), data.context)


def ones_like(data: NDArray) -> NDArray:
    """Return ones of the same shape, dtype and context."""
    return NDArray(torch.ones_like(data.tensor), data.context)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Return a copy of an array or of nested lists, by default in float32, or in an NDArray's dtype."""
    ctx = current_context() if ctx is None else ctx
    if isinstance(source_array, NDArray):
        element_type = source_array.tensor.dtype if dtype is None else torch_dtype(dtype)
        return NDArray(source_array.tensor.to(ctx.device, element_type, copy=True), ctx)
    element_type = torch_dtype(dtype)
    values = np.array(source_array)
    if values.dtype == object:
        raise TypeError("expected an array or nested lists of equal lengths, got ragged ones")
    return NDArray(torch.from_numpy(values).to(ctx.device, element_type), ctx)


def arange(
    start: float, stop: float | None = None, step: float = 1.0, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """Return numbers from ``start`` up to ``stop``, or from 0 up to ``start``."""
    ctx = current_context() if ctx is None else ctx
    first, last = (0, start) if stop is None else (start, stop)
    return NDArray(torch.arange(first, last, step, device=ctx.device).to(torch_dtype(dtype)), ctx)


def waitall() -> None:
    """Synchronize with CUDA devices. Operations on the CPU are synchronous."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
