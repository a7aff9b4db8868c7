"""Datasets that are arrays: a batch is one native gather instead of a loop.

This covers torch's `TensorDataset`, arrays and tensors, tuples and dictionaries of them (columns of equal length), and
torch's `Subset` of any of these. The batch equals, to the byte, what reading and collating item by item would give, but
costs no more than a copy. Everything else, including subclasses of these, is read item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.files.truncation_guard import seals_of
from feedline.feed.loader.collate import torch_side
from feedline.feed.protocol import Ints


class Columns:
    """Columns with the same number of rows, from which batches are gathered.

    Args:
        rows: arrays (n, ...), at least one.
        build: function that makes the batch from the gathered arrays.
        picks: int64, the row of each item. None if item i is row i.

    Attributes:
        rows, build: see above.
        all_rows: whether item i is row i.
    """

    def __init__(self, rows: list[NDArray[Any]], build: Callable[[list[Any]], Any], picks: Ints | None = None) -> None:
        self.rows, self.build, self._picks, self.all_rows = rows, build, picks, picks is None
        self._length = len(rows[0]) if picks is None else len(picks)
        self._gatherer = _native.Gatherer([None] * len(rows))
        self._gatherer.add(0, [(array, None) for array in rows], seals_of(rows))

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Any) -> Any:
        """Return the batch of the items at ``indices``. Negative ones count from the end.

        Raises:
            IndexError, TypeError: see `rows_at`.
        """
        return self.gather(self.rows_at(indices))

    def gather(self, rows: Ints) -> Any:
        """Return the batch of ``rows``.

        Raises:
            DataError: the file of the rows was truncated, or its disk fails.
        """
        return self.build([part[0] for part in self._gatherer.gather(None, rows)])

    def rows_at(self, indices: Any) -> Ints:
        """Return the rows of the items at ``indices``. Negative ones count from the end.

        Raises:
            IndexError: an index is out of range.
            TypeError: an index is not an integer.
        """
        which = np.asarray(indices)
        if which.dtype.kind not in "iu" and which.size:
            raise TypeError(f"expected integers as indices of arrays, got {which.dtype}")
        which = which.astype(np.int64, copy=False)
        if len(which) and int(which.min()) < 0:
            which = np.where(which < 0, which + self._length, which)
        if len(which) and not 0 <= which.min() <= which.max() < self._length:
            raise IndexError(f"expected indices from {-self._length} to {self._length - 1}, got {indices!r:.200}")
        if self._picks is not None:
            which = self._picks[which]
        return np.ascontiguousarray(which)

    def subset(self, picks: Ints) -> Columns:
        """Return only the items at ``picks``."""
        if len(picks) and not -self._length <= picks.min() <= picks.max() < self._length:
            raise IndexError(
                f"expected indices of a Subset from {-self._length} to {self._length - 1}, got {picks.min()} to "
                f"{picks.max()}"
            )
        picks = np.where(picks < 0, picks + self._length, picks)
        return Columns(self.rows, self.build, picks if self._picks is None else self._picks[picks])


def columns_of(dataset: Any) -> Columns | None:
    """Return ``dataset`` as columns, or None if it cannot be gathered."""
    torch = torch_side()
    if torch is not None and type(dataset) is torch.Subset:
        parent = columns_of(dataset.dataset)
        picks = None if parent is None else np.asarray(dataset.indices)
        if parent is None or picks is None or (picks.dtype.kind not in "iu" and picks.size) or picks.ndim != 1:
            return None
        return parent.subset(picks.astype(np.int64, copy=False))
    if torch is not None and type(dataset) is torch.TensorDataset:
        return _columns(list(dataset.tensors), lambda parts: parts)
    if _is_array(dataset):
        return _columns([dataset], lambda parts: parts[0])
    if type(dataset) is tuple and dataset and all(_is_array(column) for column in dataset):
        return _columns(list(dataset), lambda parts: parts)
    if type(dataset) is dict and dataset and all(_is_array(column) for column in dataset.values()):
        names = list(dataset)
        return _columns(list(dataset.values()), lambda parts: dict(zip(names, parts, strict=True)))
    return None


def columnar(dataset: Any) -> bool:
    """Return whether a dataset is a tuple or dictionary of columns, which cannot be indexed by item.

    Raises:
        ValueError: columns differ in length.
    """
    if type(dataset) is tuple:
        columns = list(dataset)
    elif isinstance(dataset, Mapping):
        columns = list(dataset.values())
    else:
        return False
    if not columns or not all(_is_array(column) for column in columns):
        return False
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise ValueError(f"expected columns of equal length, got {sorted(lengths)}")
    return True


class ColumnItems:
    """A tuple or dictionary of columns as a map-style dataset, for reading item by item."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns

    def __len__(self) -> int:
        first = next(iter(self._columns.values())) if isinstance(self._columns, Mapping) else self._columns[0]
        return len(first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self._columns, Mapping):
            return {name: column[index] for name, column in self._columns.items()}
        return tuple(column[index] for column in self._columns)


def _is_array(value: Any) -> bool:
    torch = torch_side()
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return torch is not None and type(value) is torch.Tensor and value.ndim > 0


def _columns(columns: list[Any], build: Callable[[list[Any]], Any]) -> Columns | None:
    torch = torch_side()
    rows = []
    for column in columns:
        array = column
        if torch is not None and type(column) is torch.Tensor:
            if column.requires_grad or not torch.is_plain(column):
                return None
            array = column.numpy()
        if type(array) not in (np.ndarray, np.memmap) or array.ndim == 0 or not array.flags.c_contiguous:
            return None
        if array.dtype not in _DTYPES or not len(columns) or len(array) != len(columns[0]):
            return None
        rows.append(array)
    if not rows:
        return None
    if torch is None:
        return Columns(rows, build)
    from_numpy = torch.from_numpy
    return Columns(rows, lambda parts: build([from_numpy(part) for part in parts]))


# The dtypes that collation accepts both with torch and without.
_DTYPES = frozenset(np.dtype(name) for name in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"))
