"""The arrays of a message in one buffer, in the order of the keys, each array aligned to 64 bytes.

Both sides know the order, the shapes and the dtypes, so nothing else is sent. A server stores its arrays in such
buffers, so that keys initialised together are pulled without a copy. Received arrays are read-only. Ray copies one
large array into its memory in half the time that many small ones take, hence one buffer.

Messages are not trusted: a buffer is checked against its layout before a pointer is made of it, and counts and row
numbers against their array. A mismatch is a `StoreError` that names the sender.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from feedline.errors import StoreError
from feedline.kvstore.aligned import Field, Layout
from feedline.kvstore.base import Key
from feedline.kvstore.compression import compression
from feedline.kvstore.parameter_server.placement import RowRange

#: A key of a push and its encoding: None for dense, a number of rows, or the parameters of a compression.
Item = tuple[Key, int | dict[str, Any] | None]


def fields_of(item: Item, shape: Sequence[int], dtype: Any) -> list[Field]:
    """Return the fields that carry one key of a push to a stored array of this shape and dtype.

    Raises:
        StoreError: the encoding does not fit the stored array.
    """
    key, encoding = item
    if encoding is None:
        return [(shape, dtype)]
    if isinstance(encoding, dict):
        code = compression(encoding)
        code.check(key, dtype)
        return [code.code_shape(shape)]
    if type(encoding) is not int or not shape or not 0 <= encoding <= shape[0]:
        most = shape[0] if shape else 0
        raise StoreError(f"expected 0 to {most} rows of key {key!r}, got {encoding!r}")
    return [((encoding,), torch.int64), ((encoding, *shape[1:]), dtype)]


def value_of(item: Item, arrays: Sequence[Any], stored: Any) -> Any:
    """Decode the value of one key of a push from the arrays that carry it.

    Raises:
        StoreError: row numbers are out of range, or not strictly ascending.
    """
    key, encoding = item
    if encoding is None:
        return arrays[0]
    if isinstance(encoding, int):
        ids, rows = arrays
        if encoding and not (ids[0] >= 0 and ids[-1] < len(stored) and bool((ids[1:] > ids[:-1]).all())):
            raise StoreError(
                f"expected ascending rows within 0 to {len(stored) - 1} of key {key!r}, got {encoding} from "
                f"{int(ids[0])} to {int(ids[-1])}"
            )
        return torch.sparse_coo_tensor(ids[None], rows, stored.shape, is_coalesced=True, check_invariants=False)
    value = torch.empty_like(stored)
    compression(encoding).decode_sums([((arrays[0],), value)])
    return value


def slice_rows(tensor: Any, part: RowRange) -> Any:
    """Return the rows of a part. A scalar has one part, itself."""
    all_rows = not tensor.dim() or (part.start == 0 and part.stop == tensor.shape[0])
    return tensor if all_rows else tensor[part.start : part.stop]


def receive_buffer(array: Any, size: int | None = None, sender: str = "a peer") -> Any:
    """Return a buffer received from Ray as a tensor that shares its memory, or a copy if that is not aligned.

    Args:
        array: received object.
        size: expected size in bytes. None means any.
        sender: sender named by an error.

    Raises:
        StoreError: the object is not a buffer, or has another size.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StoreError(f"expected an array of bytes from {sender}, got {got}")
    if size is not None and array.nbytes != size:
        raise StoreError(f"expected {size} bytes from {sender}, got {array.nbytes}: its keys or shapes differ")
    return _as_tensor(array)


def receive_ids(array: Any, rows: int, sender: str = "a peer") -> Any:
    """Return row numbers received from Ray as a tensor that shares their memory, or a copy if that is not aligned.

    Raises:
        StoreError: the object is not an array of row numbers, or a number is not below ``rows``.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1 or not array.flags.c_contiguous:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StoreError(f"expected row numbers in int64 from {sender}, got {got}")
    if array.size and not (array.min() >= 0 and array.max() < rows):
        raise StoreError(f"expected rows 0 to {rows - 1} from {sender}, got {array.min()} to {array.max()}")
    return _as_tensor(array)


def _as_tensor(array: Any) -> Any:
    if array.ctypes.data % 16:
        array = array.copy()
    if not array.nbytes:
        return torch.empty(0, dtype=torch.from_numpy(array[:0].copy()).dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def to_buffer(tensors: Sequence[Any]) -> Any:
    """Copy tensors into one new buffer."""
    layout = Layout([(tensor.shape, tensor.dtype) for tensor in tensors])
    buffer = torch.empty(layout.size, dtype=torch.uint8)
    layout.write(buffer, [[tensor] for tensor in tensors])
    return buffer


def dtype_name(dtype: Any) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """Return ``torch.float32`` for ``float32``.

    Raises:
        StoreError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise StoreError(f"expected the name of a torch dtype, got {name!r}")
    return dtype
