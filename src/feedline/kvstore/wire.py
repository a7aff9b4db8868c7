"""Arrays of a message: one run of bytes, each array at the next multiple of 64, in the order of its keys.

Whoever reads it knows the order, the shapes and the dtypes, so nothing else is sent. A server keeps what it stores in
such runs, so that a pull of what was initialised together is sent as it lies there. What came in a message is not to be
written to. One run, since Ray copies one large array into its memory in half the time that many take.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from feedline.kvstore.base import Key
from feedline.kvstore.compression import compression
from feedline.kvstore.parts import Part

ALIGNMENT = 64
#: One key of a push: the key; None for a dense value, the number of rows, or the parameters of its compression.
Item = tuple[Key, int | dict[str, Any] | None]
#: What is to be read or written: shape and dtype.
Field = tuple[Sequence[int], Any]


def laid_out(fields: Iterable[Field]) -> tuple[list[int], int]:
    """Where each array begins in a run, and the bytes of the run."""
    begins, end = [], 0
    for shape, dtype in fields:
        begins.append(end)
        end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return begins, end


def views(run: Any, fields: Sequence[Field]) -> list[Any]:
    """The arrays of a run (a tensor of uint8) as tensors on its memory."""
    return [
        run[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))
        for begin, (shape, dtype) in zip(laid_out(fields)[0], fields, strict=True)
    ]


def fields_of(item: Item, shape: Sequence[int], dtype: Any) -> list[Field]:
    """What carries one key of a push, of which a server has such an array."""
    kind = item[1]
    if kind is None:
        return [(shape, dtype)]
    if isinstance(kind, int):
        return [((kind,), torch.int64), ((kind, *shape[1:]), dtype)]
    return [compression(kind).code_shape(shape)]


def value_of(item: Item, arrays: Sequence[Any], stored: Any) -> Any:
    """The value of one key of a push, from the arrays that carry it."""
    kind = item[1]
    if kind is None:
        return arrays[0]
    if isinstance(kind, int):
        ids, rows = arrays
        return torch.sparse_coo_tensor(ids[None], rows, stored.shape, is_coalesced=True, check_invariants=False)
    value = torch.empty_like(stored)
    compression(kind).decode(arrays[0], value)
    return value


def sliced(tensor: Any, part: Part) -> Any:
    """The rows of a part; a number alone is its own part."""
    return tensor[part.start : part.stop] if tensor.dim() else tensor


def received(array: Any) -> Any:
    """A run as it came from Ray: a tensor on its memory, copied where that is not aligned."""
    if array.ctypes.data % 16:
        array = array.copy()
    if not array.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def as_run(tensors: Sequence[Any]) -> Any:
    """Copies of tensors, as one run."""
    fields = [(tensor.shape, tensor.dtype) for tensor in tensors]
    run = torch.empty(laid_out(fields)[1], dtype=torch.uint8)
    for view, tensor in zip(views(run, fields), tensors, strict=True):
        view.copy_(tensor)
    return run


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """``torch.float32`` for ``float32``."""
    return getattr(torch, name)
