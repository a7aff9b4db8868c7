"""`mxnet.ndarray` (`mx.nd`): arrays, as far as stores and their updaters need them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.mxnet._names import explain
from feedline.mxnet.context import Context, current_context
from feedline.mxnet.ndarray import sparse
from feedline.mxnet.ndarray._dense import NDArray, torch_dtype

__all__ = [
    "NDArray",
    "arange",
    "array",
    "empty",
    "full",
    "ones",
    "ones_like",
    "sparse",
    "waitall",
    "zeros",
    "zeros_like",
]


def full(shape: Any, val: float, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array of one number."""
    ctx = current_context() if ctx is None else ctx
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return NDArray(torch.full(shape, val, dtype=torch_dtype(dtype), device=ctx.device), ctx)


def zeros(shape: Any, ctx: Context | None = None, dtype: Any = None, stype: str = "default") -> Any:
    """Zeros; of ``stype`` ``"row_sparse"`` without any row."""
    return full(shape, 0, ctx, dtype) if stype == "default" else sparse.zeros(stype, shape, ctx, dtype)


def ones(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Ones."""
    return full(shape, 1, ctx, dtype)


def empty(shape: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """An array to be written to; it holds zeros until then."""
    return full(shape, 0, ctx, dtype)


def zeros_like(data: NDArray) -> NDArray:
    """Zeros of the same shape, dtype and context."""
    return NDArray(torch.zeros_like(data.tensor), data.context)


def ones_like(data: NDArray) -> NDArray:
    """Ones of the same shape, dtype and context."""
    return NDArray(torch.ones_like(data.tensor), data.context)


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A copy of an array or of nested lists; float32 unless told otherwise, or unless it is an NDArray."""
    ctx = current_context() if ctx is None else ctx
    if isinstance(source_array, NDArray):
        wanted = source_array.tensor.dtype if dtype is None else torch_dtype(dtype)
        return NDArray(source_array.tensor.to(ctx.device, wanted, copy=True), ctx)
    wanted = torch_dtype(dtype)
    found = np.array(source_array)
    if found.dtype == object:
        raise TypeError("expected an array or nested lists of equal lengths, got ragged ones")
    return NDArray(torch.from_numpy(found).to(ctx.device, wanted), ctx)


def arange(
    start: float, stop: float | None = None, step: float = 1.0, ctx: Context | None = None, dtype: Any = None
) -> NDArray:
    """Numbers from ``start`` up to ``stop``, or from 0 up to ``start``."""
    ctx = current_context() if ctx is None else ctx
    first, last = (0, start) if stop is None else (start, stop)
    return NDArray(torch.arange(first, last, step, device=ctx.device).to(torch_dtype(dtype)), ctx)


def waitall() -> None:
    """Wait until CUDA devices have done what they were told; on the CPU nothing is ever outstanding."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def __getattr__(name: str) -> Any:
    raise explain("mxnet.ndarray", name)
