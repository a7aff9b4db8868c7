"""Arrays that are read when they are sliced: HDF5 datasets, Zarr arrays, and the like.

Any object with ``shape``, ``dtype`` and slicing that is not in memory counts as such an array. Only the requested rows
are read, by one thread at a time, as not every library is thread-safe. Rows are compared with the declared shape and
dtype.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feedline.concurrency.fork_local import PerProcess
from feedline.data import Stream, Value
from feedline.errors import DataError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.protocol import CHUNK_MEMORY, Ints

CHUNK_BYTES = 32 << 20
"""Bytes of rows in a chunk, by default."""


def is_lazy(data: Any) -> bool:
    """Return whether ``data`` is read only when it is sliced, unlike data in memory and data that can be mapped."""
    is_array = all(hasattr(data, n) for n in ("shape", "dtype", "__getitem__"))
    if isinstance(data, (np.ndarray, list, tuple)) or not is_array:
        return False
    # These attributes mark data in memory, in one form or another, including pandas tables (iloc).
    return not any(hasattr(data, n) for n in ("__array_interface__", "__dlpack__", "numpy", "tocsr", "iloc"))


class LazyRows:
    """Rows that are read on demand.

    Args:
        name: name of the stream, for errors.
        data: an object ``(N, *shape)`` as for `is_lazy`.

    Attributes:
        stream: declaration of a row.
        step: rows per stored block, which are best read together, or 1 if the size of blocks is unknown.
        offsets: bounds of the samples of each row, int64 (rows + 1,), or None if each row is one sample.

    Raises:
        TypeError: its elements are not numbers.
        ValueError: it has no rows.
    """

    offsets: Ints | None = None

    def __init__(self, name: str, data: Any) -> None:
        shape = tuple(int(n) for n in data.shape)
        if not shape:
            raise ValueError(f"expected data (N, ...) with one row per sequence for stream `{name}`, got a scalar")
        # An empty slice has the dtype to which NumPy converts the data.
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
        self._path = _name_of(data)  # looked up now, as the file may be closed when an error needs its name
        self._turn = PerProcess(threading.Lock)

    def __len__(self) -> int:
        return self._count

    def head(self, rows: int) -> Self:
        """Return the first rows."""
        head = copy.copy(self)
        head._count = rows
        return head

    @property
    def one_sample_each(self) -> bool:
        """Whether every row has exactly one sample."""
        return self.offsets is None

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row in memory."""
        return self.stream.size * self.stream.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Number of bytes of all rows in memory."""
        return self._count * self.row_bytes

    def read(self, start: int, stop: int) -> tuple[Value, dict[int, DataError]]:
        """Return the rows ``start:stop``, and the errors of unreadable rows by index.

        Raises:
            DataError: no row can be read.
        """
        return Value.from_dense(self[start:stop]), {}

    def add_to(self, digest: ContentDigest) -> None:
        """Add the size, and rows from head, middle and tail."""
        digest.numbers(len(self), len(self))
        digest.array(self)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Read the rows ``start:stop``.

        Raises:
            DataError: they cannot be read, or differ from the declared shape or dtype.
        """
        start, stop, _ = rows.indices(self._count)
        where: Any = {"path": self._path, "sequence": start, "stream": self._name}
        try:
            with self._turn.get():
                values = np.ascontiguousarray(self._data[start:stop])
        except Exception as error:
            what = f"cannot read rows {start} to {stop - 1}: {type(error).__name__}: {error}"
            raise DataError(what, **where) from error
        expected = (stop - start, *self.stream.shape)
        if values.shape != expected or values.dtype != self.stream.dtype:
            raise DataError(
                f"expected rows {start} to {stop - 1} of stream `{self._name}` as {self.stream.dtype} {expected}, got "
                f"{values.dtype} {values.shape}",
                **where,
            )
        return values


def _name_of(data: Any) -> str:
    """Return the name of the data for errors."""
    name = getattr(data, "name", None)
    file = getattr(getattr(data, "file", None), "filename", None)
    if isinstance(file, str):
        return file
    return name if isinstance(name, str) and name else type(data).__name__


def chunk_rows(columns: list[LazyRows]) -> int:
    """Return the number of rows in a chunk of about `CHUNK_BYTES`: whole blocks of the column with the largest ones."""
    row = max(1, sum(column.row_bytes for column in columns))
    rows, block = max(1, CHUNK_BYTES // row), max(column.step for column in columns)
    return rows if block * row > CHUNK_MEMORY else max(1, rows // block) * block
