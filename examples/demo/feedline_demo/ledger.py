"""A record of what a feed delivered, and a digest of it that does not depend on where minibatches were cut.

One ledger per process: a file of records, one per minibatch, each appended with a single write, so that a killed
process leaves whole records and at most one torn record at the end. A digest runs over the columns of all sequences
(ids, lengths, indices, values) in delivered order: equal digests mean the same bytes in the same order, whatever the
minibatch size.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Minibatch
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.errors import DataError

Columns = dict[str, NDArray[Any]]


class Record(NamedTuple):
    """One rank's share of one minibatch.

    Attributes:
        position, end: samples on the axis before and after the global minibatch.
        columns: what was delivered, one entry per sequence, sample or value; see `columns_of`.
    """

    position: int
    end: int
    columns: Columns


def columns_of(minibatch: Minibatch) -> Columns:
    """Return everything that a minibatch delivers, as flat columns that can be joined with the next one's."""
    columns: Columns = {"ids": minibatch.ids}
    for name, value in minibatch.items():
        columns[f"{name}.lengths"] = value.lengths
        if isinstance(value, SparseValue):
            columns[f"{name}.counts"] = np.diff(value.indptr)
            columns[f"{name}.indices"] = value.indices
            columns[f"{name}.values"] = value.values
        elif isinstance(value, BytesValue):
            columns[f"{name}.sizes"] = value.sizes
            columns[f"{name}.bytes"] = value.data
        else:
            assert isinstance(value, DenseValue)
            columns[f"{name}.rows"] = value.rows
    return columns


class LedgerWriter:
    """Appends to a ledger; see the module.

    Args:
        path: the file, which must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  # lives as long as the process

    def write(self, minibatch: Minibatch) -> None:
        """Append what ``minibatch`` delivered."""
        record = io.BytesIO()
        columns = columns_of(minibatch)
        begin = minibatch.position.samples
        np.save(record, np.array([begin, begin + minibatch.global_samples, len(columns)], np.int64))
        for name, column in columns.items():
            np.save(record, np.frombuffer(name.encode(), np.uint8))
            np.save(record, column)
        self._file.write(len(record.getbuffer()).to_bytes(8, "little") + record.getbuffer())


def read_ledger(path: Path, until: int | None = None) -> Iterator[Record]:
    """Return the records up to ``until`` samples of the axis, where a minibatch must end; None: all.

    Whatever a killed process wrote after ``until``, perhaps a torn record, is ignored.

    Raises:
        DataError: no minibatch ends at ``until``, or a torn record before it.
    """
    end = 0
    with open(path, "rb") as file:
        while until is None or end < until:
            header = file.read(8)
            if not header and until is None:
                return  # the end, between two records
            body = file.read(int.from_bytes(header, "little"))
            if len(header) < 8 or len(body) < int.from_bytes(header, "little"):
                raise DataError("expected a whole record, got a torn one or the end", path=str(path), byte=file.tell())
            record = _decode(body)
            end = record.end
            yield record
    if end != until:
        raise DataError(f"expected a minibatch that ends at {until} samples, got one at {end}", path=str(path))


def _decode(body: bytes) -> Record:
    file = io.BytesIO(body)
    position, end, count = np.load(file, allow_pickle=False).tolist()
    columns: Columns = {}
    for _ in range(count):
        name = np.load(file, allow_pickle=False).tobytes().decode()
        columns[name] = np.load(file, allow_pickle=False)
    return Record(position, end, columns)


def merge(ledgers: list[Iterator[Record]]) -> Iterator[Columns]:
    """Return the global minibatches: the shares of all ranks, in rank order.

    Raises:
        DataError: ranks took part in different minibatches.
    """
    for parts in zip(*ledgers, strict=True):
        if len({part.position for part in parts}) != 1:
            raise DataError(f"expected all ranks at one place, got {[part.position for part in parts]}")
        for part in parts:
            yield part.columns


class Digest:
    """A running digest of columns; equal for equal sequences in equal order, wherever they were cut."""

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}
        self.sequences = 0

    def update(self, columns: Columns) -> None:
        """Add what was delivered next."""
        self.sequences += len(columns["ids"])
        for name, column in columns.items():
            running = self._columns.get(name)
            if running is None:
                kind = f"{name} {column.dtype.str} {column.shape[1:]}"
                running = self._columns[name] = hashlib.blake2b(kind.encode(), digest_size=16)
            running.update(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """32 hex digits."""
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(self._columns):
            whole.update(self._columns[name].digest())
        return whole.hexdigest()


def digest(columns: Iterable[Columns]) -> Digest:
    """Return the digest of all minibatches."""
    running = Digest()
    for part in columns:
        running.update(part)
    return running
