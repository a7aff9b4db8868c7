"""Arrays that lie in a file or elsewhere and are read when they are sliced: HDF5 datasets, Zarr arrays, and their like.

Anything with ``shape``, ``dtype`` and slicing that is no array in memory counts as one. Guarantees: nothing is read but
the rows asked for, by one thread at a time, as not every library bears several; what is handed over is compared with
what was promised.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Stream
from feedline.errors import DataError
from feedline.feed.per_process import PerProcess
from feedline.feed.protocol import CHUNK_MEMORY

CHUNK_BYTES = 32 << 20
"""Bytes of rows that make a chunk, unless told otherwise."""


def is_lazy(data: Any) -> bool:
    """Whether ``data`` has to be sliced to be read, as opposed to what is in memory or can be mapped."""
    if isinstance(data, (np.ndarray, list, tuple)) or not all(
        hasattr(data, n) for n in ("shape", "dtype", "__getitem__")
    ):
        return False
    # Memory that can be looked at, in any of the ways it is offered; tables of pandas are in memory too.
    return not any(hasattr(data, n) for n in ("__array_interface__", "__dlpack__", "numpy", "tocsr", "iloc"))


class LazyRows:
    """Rows that are read when they are asked for.

    Args:
        name: of the stream, for errors.
        data: an object ``(N, *shape)`` as `is_lazy` describes it.

    Attributes:
        stream: what a row is.
        step: rows that are best read together, as the data is stored in such blocks; 1 where it does not say.

    Raises:
        TypeError: its elements are no numbers.
        ValueError: it has no rows.
    """

    def __init__(self, name: str, data: Any) -> None:
        shape = tuple(int(n) for n in data.shape)
        if not shape:
            raise ValueError(f"expected data (N, ...) with one row a sequence for stream `{name}`, got a scalar")
        # Zero rows say which dtype NumPy makes of the data's own.
        dtype = np.asarray(data[0:0]).dtype
        if dtype.kind not in "biufc":
            raise TypeError(
                f"expected numbers or bools for stream `{name}`, got dtype {dtype}; encode it first, e.g. as class "
                "indices or one-hot rows"
            )
        self._name, self._data, self._count = name, data, shape[0]
        self.stream = Stream(shape[1:], dtype)
        stored = getattr(data, "chunks", None)
        first = stored[0] if isinstance(stored, tuple) and stored else None
        self.step = int(first) if isinstance(first, (int, np.integer)) and first > 0 else 1
        self._path = _name_of(data)  # now, as it may be closed when it is wanted
        self._turn = PerProcess(threading.Lock)

    def __len__(self) -> int:
        return self._count

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory."""
        return self.stream.size * self.stream.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows in memory."""
        return self._count * self.row_bytes

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Rows ``start:stop``, read now.

        Raises:
            DataError: they cannot be read, or are others than were promised.
        """
        start, stop, _ = rows.indices(self._count)
        try:
            with self._turn.get():
                found = np.ascontiguousarray(self._data[start:stop])
        except Exception as error:
            raise DataError(
                f"cannot read rows {start} to {stop - 1}: {type(error).__name__}: {error}",
                path=self._path,
                sequence=start,
                stream=self._name,
            ) from error
        expected = (stop - start, *self.stream.shape)
        if found.shape != expected or found.dtype != self.stream.dtype:
            raise DataError(
                f"expected rows {start} to {stop - 1} of stream `{self._name}` as {self.stream.dtype} {expected}, got "
                f"{found.dtype} {found.shape}",
                path=self._path,
                sequence=start,
                stream=self._name,
            )
        return found


def _name_of(data: Any) -> str:
    """What errors call the data: a name of its own where it has one."""
    name = getattr(data, "name", None)
    file = getattr(getattr(data, "file", None), "filename", None)
    if isinstance(file, str):
        return file
    return name if isinstance(name, str) and name else type(data).__name__


def chunk_rows(columns: list[LazyRows]) -> int:
    """How many rows make a chunk of `CHUNK_BYTES` of all columns, in whole blocks of the one stored in the largest."""
    row = max(1, sum(column.row_bytes for column in columns))
    rows, block = max(1, CHUNK_BYTES // row), max(column.step for column in columns)
    return rows if block * row > CHUNK_MEMORY else max(1, rows // block) * block
