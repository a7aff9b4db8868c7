"""Arrays of a message: bytes, with the little that a server must know to read them; and back.

Arrays are NumPy arrays of uint8, which every dtype can be seen as. They share the memory of the tensors, both ways;
what came in a message is not to be written to.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from feedline.kvstore.base import Key
from feedline.kvstore.compression import Compression, compression
from feedline.kvstore.parts import Part

#: One key of a push: the key; ``dense`` (one array), ``rows`` (ids and rows), or the parameters of its compression.
Item = tuple[Key, str | dict[str, Any]]


def packed(value: Any, part: Part) -> tuple[str, list[Any]]:
    """Kind and arrays of one part of a value: contiguous, or coalesced rows; on the CPU."""
    if value.layout is torch.strided:
        return "dense", [as_bytes(sliced(value, part))]
    ids = value.indices()[0]
    low, high = (int(torch.searchsorted(ids, bound)) for bound in (part.start, part.stop))
    return "rows", [as_bytes(ids[low:high] - part.start), as_bytes(value.values()[low:high].contiguous())]


def coded(value: Any, part: Part, coding: Compression, residual: Any, left: Any) -> tuple[dict[str, Any], list[Any]]:
    """Parameters and codes of one part of a dense value; what they leave is written to ``left``."""
    piece = sliced(value, part)
    shape, dtype = coding.code_shape(piece.shape)
    codes = torch.empty(shape, dtype=dtype)
    coding.encode(piece, residual, left, codes)
    return coding.parameters(), [as_bytes(codes)]


def unpacked(kind: str | dict[str, Any], arrays: Iterator[Any], stored: Any) -> Any:
    """The value that `packed` or `coded` made arrays of, in the dtype and shape of ``stored``."""
    if kind == "dense":
        return as_tensor(next(arrays), stored.dtype, stored.shape)
    if kind == "rows":
        ids = as_tensor(next(arrays), torch.int64, (-1,))
        rows = as_tensor(next(arrays), stored.dtype, (len(ids), *stored.shape[1:]))
        return torch.sparse_coo_tensor(ids[None], rows, stored.shape, is_coalesced=True, check_invariants=False)
    assert isinstance(kind, dict)
    coding = compression(kind)
    value = torch.empty_like(stored)
    shape, dtype = coding.code_shape(stored.shape)
    coding.decode(as_tensor(next(arrays), dtype, shape), value)
    return value


def sliced(tensor: Any, part: Part) -> Any:
    """The rows of a part; a number alone is its own part."""
    return tensor[part.start : part.stop] if tensor.dim() else tensor


def as_bytes(tensor: Any) -> Any:
    """The memory of a contiguous CPU tensor, as an array of uint8."""
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def as_tensor(array: Any, dtype: Any, shape: Any) -> Any:
    """A tensor on the memory of an array of uint8; copied where it is not aligned."""
    if not array.nbytes:
        return torch.empty([max(0, n) for n in shape], dtype=dtype)
    if array.ctypes.data % 16:
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array).view(dtype).view(shape)


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """``torch.float32`` for ``float32``."""
    return getattr(torch, name)
