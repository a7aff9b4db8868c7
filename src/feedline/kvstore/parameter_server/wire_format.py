"""Arrays of a message: one run of bytes, each array at the next multiple of 64, in the order of its keys.

Whoever reads it knows the order, the shapes and the dtypes, so nothing else is sent. A server keeps what it stores in
such runs, so that a pull of what was initialised together is sent as it lies there. What came in a message is not to be
written to. One run, since Ray copies one large array into its memory in half the time that many take.

No message is trusted: a run is held against its layout before a pointer is made of it, and counts and row numbers
against the array that they are of. What does not fit is a `StoreError` that names the sender.
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
#: One key of a push: the key; None for a dense value, the number of rows, or the parameters of its compression.
Item = tuple[Key, int | dict[str, Any] | None]
#: What is to be read or written: shape and dtype.
Field = tuple[Sequence[int], Any]


class Layout:
    """Where the arrays of a message lie in its run.

    Args:
        fields: shape and dtype of each.

    Attributes:
        size: bytes of the run.
        begins: of each array, in bytes.
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
        """The arrays of a run (a tensor of uint8) as tensors on its memory.

        Raises:
            StoreError: of this and the methods below: the run has another size.
        """
        self._check(run)
        return [self._view(run, i) for i in range(len(self._fields))]

    def write(self, run: Any, sources: Sequence[Sequence[Any]]) -> None:
        """Put the sum of each list of tensors to its place."""
        self._move(run, sources, True)

    def read(self, run: Any, targets: Sequence[Sequence[Any]]) -> None:
        """Copy each array to all tensors of a list."""
        self._move(run, targets, False)

    def _check(self, run: Any) -> None:
        """The last look at a run before pointers into it are made."""
        if run.numel() != self.size or run.dtype is not torch.uint8 or not run.is_contiguous() or not run.is_cpu:
            raise StoreError(f"expected a run of {self.size} bytes, got {run.numel()} elements of {run.dtype}")

    def _view(self, run: Any, i: int) -> Any:
        begin, (shape, dtype) = self.begins[i], self._fields[i]
        return run[begin : begin + self._counts[i] * dtype.itemsize].view(dtype).view(tuple(shape))

    def _move(self, run: Any, tensors: Sequence[Sequence[Any]], write: bool) -> None:
        self._check(run)
        # As `merging.run`, but without a tensor for each place: of many small arrays, that is most of the cost.
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
    """What carries one key of a push, of which a server has such an array.

    Raises:
        StoreError: it cannot come so.
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
    """The value of one key of a push, from the arrays that carry it.

    Raises:
        StoreError: rows that the key does not have, or that are not each there once, ascending.
    """
    key, kind = item
    if kind is None:
        return arrays[0]
    if isinstance(kind, int):
        ids, rows = arrays
        if kind and not (ids[0] >= 0 and ids[-1] < len(stored) and bool((ids[1:] > ids[:-1]).all())):
            raise StoreError(
                f"expected rows of key {key!r} ascending within 0 to {len(stored) - 1}, got {kind} from {int(ids[0])} "
                f"to {int(ids[-1])}"
            )
        return torch.sparse_coo_tensor(ids[None], rows, stored.shape, is_coalesced=True, check_invariants=False)
    value = torch.empty_like(stored)
    compression(kind).decode(arrays[0], value)
    return value


def sliced(tensor: Any, part: RowRange) -> Any:
    """The rows of a part; a number alone is its own part."""
    whole = not tensor.dim() or (part.start == 0 and part.stop == tensor.shape[0])
    return tensor if whole else tensor[part.start : part.stop]


def received(array: Any, size: int | None = None, sender: str = "a peer") -> Any:
    """A run as it came from Ray: a tensor on its memory, copied where that is not aligned.

    Args:
        array: what came.
        size: bytes that it has to have; None: any.
        sender: whom an error names.

    Raises:
        StoreError: it is no run, or of another size.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        got = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise StoreError(f"expected an array of bytes from {sender}, got {got}")
    if size is not None and array.nbytes != size:
        raise StoreError(f"expected {size} bytes from {sender}, got {array.nbytes}: it has other keys or shapes")
    return _seen(array)


def received_ids(array: Any, rows: int, sender: str = "a peer") -> Any:
    """Row numbers as they came from Ray: a tensor on their memory.

    Raises:
        StoreError: they are none, or not of an array of so many rows.
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
    """Copies of tensors, as one run."""
    layout = Layout([(tensor.shape, tensor.dtype) for tensor in tensors])
    run = torch.empty(layout.size, dtype=torch.uint8)
    layout.write(run, [[tensor] for tensor in tensors])
    return run


def dtype_name(dtype: Any) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> Any:
    """``torch.float32`` for ``float32``.

    Raises:
        StoreError: there is no such dtype.
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise StoreError(f"expected the name of a dtype of torch, got {name!r}")
    return found
