"""Arrays of a message: one run of bytes, in the order of the keys, each array aligned to 64 bytes.

Both sides know the order, the shapes and the dtypes, so nothing else is sent. A server stores its arrays in such runs,
so that keys initialised together are pulled without a copy. Received arrays are read-only. Ray copies one large array
into its memory in half the time that many small ones take, hence the single run.

Messages are not trusted: a run is checked against its layout before a pointer is made of it, and counts and row numbers
against their array. A mismatch is a `StoreError` that names the sender.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from feedline import _native
from feedline.errors import StoreError
from feedline.kvstore import merging
from feedline.kvstore.base import Key
from feedline.kvstore.compression import compression
from feedline.kvstore.parameter_server.placement import RowRange

ALIGNMENT = 64
#: A key of a push and its encoding: None for dense, a number of rows, or the parameters of a compression.
Item = tuple[Key, int | dict[str, Any] | None]
#: Shape and dtype of an array in a run.
Field = tuple[Sequence[int], Any]


class Layout:
    """Offsets of the arrays of a message within its run.

    Args:
        fields: shape and dtype of each array.

    Attributes:
        size: size of the run in bytes.
        begins: offset of each array in bytes.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self.begins: list[int] = []
        self._fields = fields
        self._counts = [math.prod(shape) for shape, _ in fields]
        end = 0
        for count, (_, dtype) in zip(self._counts, fields, strict=True):
            self.begins.append(end)
            end += -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.size = end

    def views(self, run: Any) -> list[Any]:
        """Return the arrays of a run (a tensor of uint8) as tensors that share its memory.

        Raises:
            StoreError: the run has another size; also raised by the methods below.
        """
        self._check(run)
        return [self._view(run, i) for i in range(len(self._fields))]

    def write(self, run: Any, sources: Sequence[Sequence[Any]]) -> None:
        """Write the sum of each list of tensors to its array."""
        self._move(run, sources, True)

    def read(self, run: Any, targets: Sequence[Sequence[Any]]) -> None:
        """Copy each array to all tensors of a list."""
        self._move(run, targets, False)

    def _check(self, run: Any) -> None:
        """Raise StoreError unless pointers into the run are safe."""
        if run.numel() != self.size or run.dtype is not torch.uint8 or not run.is_contiguous() or not run.is_cpu:
            raise StoreError(f"expected a run of {self.size} bytes, got {run.numel()} elements of {run.dtype}")

    def _view(self, run: Any, i: int) -> Any:
        begin, (shape, dtype) = self.begins[i], self._fields[i]
        return run[begin : begin + self._counts[i] * dtype.itemsize].view(dtype).view(tuple(shape))

    def _move(self, run: Any, tensors: Sequence[Sequence[Any]], write: bool) -> None:
        self._check(run)
        # As `merging.run`, but without a tensor for each array, which would be most of the cost of many small ones.
        base, rest = run.data_ptr(), []
        native: dict[Any, list[tuple[int, list[int], list[int]]]] = {torch.float32: [], torch.float64: []}
        for i, given in enumerate(tensors):
            dtype = self._fields[i][1]
            if dtype in native and all([t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in given]):  # noqa: C419
                theirs, ours = [t.data_ptr() for t in given], [base + self.begins[i]]
                native[dtype].append((self._counts[i], theirs, ours) if write else (self._counts[i], ours, theirs))
            else:
                place = [self._view(run, i)]
                rest.append((given, place) if write else (place, given))
        for dtype, batch in native.items():
            if batch:
                _native.merge(batch, dtype.itemsize, torch.get_num_threads())
        merging.run(rest)


def fields_of(item: Item, shape: Sequence[int], dtype: Any) -> list[Field]:
    """Return the fields that carry one key of a push to a stored array of this shape and dtype.

    Raises:
        StoreError: the encoding does not fit the stored array.
    """
    key, kind = item
    if kind is None:
        return [(shape, dtype)]
    if isinstance(kind, dict):
        chosen = compression(kind)
        chosen.check(key, dtype)
        return [chosen.code_shape(shape)]
    if type(kind) is not int or not shape or not 0 <= kind <= shape[0]:
        most = shape[0] if shape else 0
        raise StoreError(f"expected 0 to {most} rows of key {key!r}, got {kind!r}")
    return [((kind,), torch.int64), ((kind, *shape[1:]), dtype)]


def value_of(item: Item, arrays: Sequence[Any], stored: Any) -> Any:
    """Decode the value of one key of a push from the arrays that carry it.

    Raises:
        StoreError: row numbers are out of range, or not strictly ascending.
    """
    key, kind = item
    if kind is None:
        return arrays[0]
    if isinstance(kind, int):
        ids, rows = arrays
        if kind and not (ids[0] >= 0 and ids[-1] < len(stored) and bool((ids[1:] > ids[:-1]).all())):
            raise StoreError(
                f"expected ascending rows within 0 to {len(stored) - 1} of key {key!r}, got {kind} from {int(ids[0])} "
                f"to {int(ids[-1])}"
            )
        return torch.sparse_coo_tensor(ids[None], rows, stored.shape, is_coalesced=True, check_invariants=False)
    value = torch.empty_like(stored)
    compression(kind).decode_sums([((arrays[0],), value)])
    return value


def sliced(tensor: Any, part: RowRange) -> Any:
    """Return the rows of a part; a scalar is its own part."""
    whole = not tensor.dim() or (part.start == 0 and part.stop == tensor.shape[0])
    return tensor if whole else tensor[part.start : part.stop]


def received(array: Any, size: int | None = None, sender: str = "a peer") -> Any:
    """Return a run received from Ray as a tensor that shares its memory, or a copy if that is not aligned.

    Args:
        array: received object.
        size: expected size in bytes; None: any.
        sender: sender named by an error.

    Raises:
        StoreError: the object is no run, or has another size.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StoreError(f"expected an array of bytes from {sender}, got {got}")
    if size is not None and array.nbytes != size:
        raise StoreError(f"expected {size} bytes from {sender}, got {array.nbytes}: its keys or shapes differ")
    return _seen(array)


def received_ids(array: Any, rows: int, sender: str = "a peer") -> Any:
    """Return row numbers received from Ray as a tensor that shares their memory, or a copy if that is not aligned.

    Raises:
        StoreError: the object is no array of row numbers, or a number is not below ``rows``.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1 or not array.flags.c_contiguous:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StoreError(f"expected row numbers in int64 from {sender}, got {got}")
    if array.size and not (array.min() >= 0 and array.max() < rows):
        raise StoreError(f"expected rows 0 to {rows - 1} from {sender}, got {array.min()} to {array.max()}")
    return _seen(array)


def _seen(array: Any) -> Any:
    if array.ctypes.data % 16:
        array = array.copy()
    if not array.nbytes:
        return torch.empty(0, dtype=torch.from_numpy(array[:0].copy()).dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


def as_run(tensors: Sequence[Any]) -> Any:
    """Copy tensors into one new run."""
    layout = Layout([(tensor.shape, tensor.dtype) for tensor in tensors])
    run = torch.empty(layout.size, dtype=torch.uint8)
    layout.write(run, [[tensor] for tensor in tensors])
    return run


def dtype_name(dtype: Any) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """Return ``torch.float32`` for ``float32``.

    Raises:
        StoreError: torch has no such dtype.
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise StoreError(f"expected the name of a torch dtype, got {name!r}")
    return found
