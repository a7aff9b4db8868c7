"""Batches of arrays in files. Rows that are not in memory are fetched ahead.

The order determines the rows of the next batches. Rows in the page cache are copied from there, as from any array.
Other rows are fetched a few thousand items ahead, with many reads in flight, bypassing the page cache. In the order
of the data large blocks are read instead. The readers of mapped files do all of this, as they do for a source.

A read error belongs to its item: it is raised for its batch, with file and byte, or the item is skipped.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Value
from feedline.errors import DataError
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.mapped_arrays import may_be_mapped
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.loader.batches import PlannedBatches
from feedline.feed.loader.executors import AHEAD_BYTES, RemainingBatches
from feedline.feed.loader.fetch import Fetched
from feedline.feed.loader.gather import Columns
from feedline.feed.loader.order import Planned
from feedline.feed.protocol import Ints, fetches_ahead
from feedline.feed.reading.copy_ahead import STAGED, STAGED_BYTES
from feedline.feed.reading.io_stalls import ITEMS, Waits
from feedline.feed.reading.row_reader import RowReader
from feedline.feed.reading.sequential_reader import SequentialReader
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import ORDERS, ChunkTable


def in_files(columns: Columns) -> ArrayDeserializer | None:
    """Return the columns as a corpus of one chunk if some of them are memory-mapped files, else None."""
    # Bools are read as bytes, whatever values they hold.
    rows = [r.view(np.uint8) if r.dtype == np.bool_ else r for r in columns.rows]
    if not all(array.nbytes for array in rows) or not any(map(may_be_mapped, rows)):
        return None
    corpus = ArrayDeserializer({str(i): array for i, array in enumerate(rows)}, chunk_sequences=len(rows[0]))
    return corpus if fetches_ahead(corpus) else None


class _StagedBatch(NamedTuple):
    """A planned batch: its rows, their chunks and places unless they are the usual ones, and the fetch for them."""

    planned: Planned
    rows: Ints
    at: tuple[NDArray[np.uint32], Ints] | None
    staged: _native.Staged | None


class StagedExecutor:
    """The `Executor` of columns that are files.

    Args:
        remaining: remaining batches of the sweep.
        columns: columns that batches are gathered from.
        corpus: the same columns, from `in_files`.
        batches: the batches of all sweeps.
    """

    def __init__(
        self, remaining: RemainingBatches, columns: Columns, corpus: ArrayDeserializer, batches: PlannedBatches
    ) -> None:
        self._remaining, self._columns, self._skip = remaining, columns, batches.options.quarantine is not None
        self._looks_ahead = batches.order is not None  # a user's sampler is not read ahead
        self._stats, self._chunks = Stats(), ChunkSet(corpus.schema)
        ascending = batches.in_order and columns.all_rows
        order = ORDERS["feedline-1"](ChunkTable(corpus.chunks()), 0, not ascending, None)
        reader = SequentialReader if ascending else RowReader
        self._reader = reader(corpus, order, self._chunks, self._stats, None)
        if not ascending:
            self._reader.waits = Waits(next(iter(corpus.paths()), corpus.name), ITEMS)
        self._item_bytes = sum(array[:1].nbytes for array in columns.rows) + STAGED_BYTES
        self._planned: Planned | None = None
        self._waiting: deque[_StagedBatch] = deque()
        self._waiting_items = 0  # items in `_waiting`
        self._ended = False

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        self._fill()
        waiting = self._waiting
        if not waiting:
            raise StopIteration
        head = waiting[0]
        waiting_items = self._waiting_items - len(head.rows)
        try:
            fetched = self._make(head)
        except Exception:
            self._waiting_items = waiting_items
            del waiting[0]
            raise
        self._waiting_items = waiting_items
        del waiting[0]
        return head.planned, fetched

    def close(self) -> None:
        """Release the rows that were fetched."""
        self._waiting.clear()
        self._reader.close()

    def _fill(self) -> None:
        waiting = self._waiting
        while not self._ended and (not waiting or self._has_room()):
            planned = self._planned
            if planned is None:
                try:
                    planned = self._planned = self._remaining.next()
                except StopIteration:
                    self._ended = True
                    return
            try:
                entry = self._begin(planned)
            except Exception:
                if waiting:
                    return  # raised when its turn comes: the batches before it are valid
                self._planned = None
                raise
            waiting_items = self._waiting_items + len(entry.rows)
            self._planned, self._waiting_items = None, waiting_items
            waiting.append(entry)

    def _has_room(self) -> bool:
        if not self._looks_ahead or not self._reader.stages:
            return False
        return self._waiting_items < min(STAGED, AHEAD_BYTES // self._item_bytes)

    def _begin(self, planned: Planned) -> _StagedBatch:
        rows = self._columns.rows_at(planned.indices)
        reader = self._reader
        if reader.finds(rows):
            return _StagedBatch(planned, rows, None, None)
        at = reader.take_ordinals(rows)
        return _StagedBatch(planned, rows, at, reader.stage(*at) if reader.stages and len(rows) else None)

    def _make(self, head: _StagedBatch) -> Fetched:
        waited, staged = self._stats.wait_seconds, head.staged
        try:
            errors, batch = ({}, self._copy(head)) if staged is None else self._unstage(staged, head.rows)
        except DataError:  # part of it was left in a file that has been truncated since
            if not self._skip:
                raise
            staged = self._reader.stage_again(*(head.at or self._reader.in_files(head.rows)))
            if staged is None:
                raise
            errors, batch = self._unstage(staged, head.rows)
        count = len(head.rows) - len(errors)
        reading = self._stats.wait_seconds - waited
        return Fetched(batch, count, _bad_items(head.planned, errors), reading, 0.0)

    def _copy(self, head: _StagedBatch) -> Any:
        if head.at is None:
            return self._columns.gather(head.rows)
        return self._batch(self._chunks.gather(*head.at))

    def _unstage(self, staged: _native.Staged, rows: Ints) -> tuple[dict[int, DataError], Any]:
        errors = self._reader.wait(staged, rows)
        if not errors:
            return errors, self._batch(self._chunks.unstage(staged, None))
        if not self._skip:
            raise errors[min(errors)]
        good = np.array([i for i in range(len(rows)) if i not in errors], np.int64)
        return errors, self._batch(self._chunks.unstage(staged, good)) if len(good) else None

    def _batch(self, values: dict[str, Value]) -> Any:
        parts = zip(self._columns.rows, values.values(), strict=True)
        return self._columns.build([value.rows.view(column.dtype) for column, value in parts])


def _bad_items(planned: Planned, errors: dict[int, DataError]) -> list[tuple[int, str, str]]:
    keys, listed = planned.keys, []
    for i, error in sorted(errors.items()):
        key = keys + i if isinstance(keys, int) else int(keys[i])
        listed.append((key, repr(int(planned.indices[i])), f"{type(error).__name__}: {error}"))
    return listed
