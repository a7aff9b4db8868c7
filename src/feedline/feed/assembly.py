"""Chunks in memory by slot, and minibatches copied out of them.

This is a thin layer over the native gatherer: it assigns slots to chunks and turns arrays into values. One call of the
gatherer copies all streams of the chosen sequences, without the GIL.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Value
from feedline.data.chunk import gatherer_of, give, makers, values_of
from feedline.errors import DataError
from feedline.feed.unique import distinct


class ChunkSet:
    """The chunks that sequences can currently be gathered from.

    Attributes:
        schema: the streams.
        sequence_bytes: mean bytes of a sequence, over all chunks so far. 0 before the first.
        copied_bytes: bytes of the values that were returned so far.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._gatherer = gatherer_of(schema)
        self._makers = makers(schema)
        self._free: list[int] = []
        self._damaged: dict[int, Chunk] = {}  # by slot: chunks with unreadable sequences
        self._ragged = [False] * len(schema)
        self._top = self._sequences = self._bytes = self.copied_bytes = 0
        self.sequence_bytes = 0.0
        self._release = weakref.finalize(self, _native.release_memory)
        self._release.atexit = False

    def release(self) -> None:
        """Free the memory that waits for further minibatches, and that of the delivered ones once they are gone."""
        self._release()

    def add(self, chunk: Chunk) -> int:
        """Add a chunk and return its slot. The chunk's arrays are referenced, not copied."""
        slot = self._free_slot()
        try:
            if chunk.errors:
                self._damaged[slot] = chunk
            give(self._gatherer, slot, chunk)
            for i, value in enumerate(chunk.values.values()):
                self._ragged[i] |= not value.one_sample_each
        except BaseException:
            self._give_back(slot)
            raise
        self._bytes += chunk.nbytes
        self._sequences += chunk.num_sequences
        self.sequence_bytes = self._bytes / max(self._sequences, 1)
        return slot

    def _free_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot, self._top = self._top, self._top + 1
        return slot

    def _give_back(self, slot: int) -> None:
        """Free a slot whose chunk could not be added, unless an interrupt came after it was added."""
        if slot not in self._gatherer.slots:
            self._damaged.pop(slot, None)
            self._free.append(slot)

    def errors(self, slots: NDArray[np.uint32], index: NDArray[np.int64]) -> dict[int, DataError]:
        """Return the errors of unreadable sequences among those at ``index`` of the chunks at ``slots``, by place.

        Damage that shows only in the bytes of a mapped file is not among them: reading these raises.
        """
        errors: dict[int, DataError] = {}
        if not self._damaged:
            return errors
        for slot in distinct(slots).tolist():
            chunk = self._damaged.get(slot)
            if chunk is not None:
                places = np.flatnonzero(slots == slot).tolist()
                errors |= {i: chunk.errors[row] for i in places if (row := int(index[i])) in chunk.errors}
        return errors

    def keep(self, slots: set[int]) -> None:
        """Remove all chunks except those at ``slots``, even one whose `add` was interrupted.

        A gather in progress keeps the chunks that it copies from.
        """
        for slot in self._gatherer.slots:
            if slot not in slots:
                self._gatherer.remove(slot)
        self._damaged = {slot: chunk for slot, chunk in self._damaged.items() if slot in slots}
        self._free = [slot for slot in range(self._top) if slot not in slots]

    def drop(self, slot: int) -> None:
        """Remove the chunk at ``slot``. See `keep`."""
        self._damaged.pop(slot, None)
        self._gatherer.remove(slot)
        self._free.append(slot)

    def stage(
        self,
        fetcher: _native.Fetcher,
        slots: NDArray[np.uint32],
        index: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
        keep: list[int],
    ) -> _native.Staged:
        """Begin to read sequences, or runs of them, of chunks in mapped files into memory. See `_native.Gatherer`.

        Raises:
            IndexError: as `gather`.
        """
        return self._gatherer.stage(fetcher, slots, index, counts, keep)

    def unstage(self, staged: _native.Staged, which: NDArray[np.int64] | None) -> dict[str, Value]:
        """Return the values of staged sequences, or of those at the places ``which``.

        Raises:
            BadEntriesError, DataError: as `gather`.
        """
        return self._values(staged.gather(which))

    def adopt(self, staged: _native.Staged, run: int, of: int, first: int, count: int) -> int:
        """Add a staged run as a chunk and return its slot.

        Args:
            staged: fetch that has ended.
            run: number of the run in it.
            of: slot of the chunk that the run is a part of, whose unreadable sequences are then also the run's.
            first, count: index in that chunk of the run's first sequence, and number of its sequences.
        """
        slot = self._free_slot()
        try:
            if of in self._damaged:
                self._damaged[slot] = self._damaged[of].slice(first, first + count)
            self._gatherer.adopt(slot, staged, run)
        except BaseException:
            self._give_back(slot)
            raise
        return slot

    def lacking(
        self,
        fetcher: _native.Fetcher,
        slots: NDArray[np.uint32],
        index: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
        *,
        most: int,
        pages: int,
    ) -> int:
        """Return how many of at most ``most`` runs are not in the page cache. See `_native.Gatherer`."""
        return self._gatherer.lacking(fetcher, slots, index, counts, most, pages)

    def gather(self, slots: NDArray[np.uint32], index: NDArray[np.int64]) -> dict[str, Value]:
        """Return one value per stream with copies of the sequences ``index`` of the chunks at ``slots``.

        Raises:
            IndexError: no chunk at a slot, or an index outside its sequences.
            BadEntriesError: sequences hold impossible entries. `values_of` makes values of its arrays.
            DataError: a mapped file was truncated, has changed, or its disk fails.
        """
        if len(index) == 0:
            ragged = zip(self.schema.items(), self._ragged, strict=True)
            return {name: Value.empty(stream, r) for (name, stream), r in ragged}
        return self._values(self._gatherer.gather(slots, index))

    def gather_parts(
        self, slots: NDArray[np.uint32], index: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> list[dict[str, Value]] | None:
        """Return the result of `gather` for the places between each of ``ends`` and the next, none of them empty, as
        views of one array for each column of a stream. Return None if `gather` would raise an error about these
        sequences.

        Raises:
            IndexError, DataError: as `gather`.
        """
        gathered = self._gatherer.gather_parts(slots, index, ends)
        if gathered is None:
            return None
        parts, nbytes = gathered
        self.copied_bytes += nbytes
        return [values_of(self._makers, arrays) for arrays in parts]

    def start(self, slots: NDArray[np.uint32], index: NDArray[np.int64]) -> _native.Copy:
        """Begin `gather` in a native thread, for at least one sequence. `finish` returns the result.

        Chunks may be added and removed meanwhile. The copy may be dropped at any time.

        Raises:
            IndexError: as `gather`.
        """
        return self._gatherer.start(slots, index)

    def finish(self, copy: _native.Copy) -> dict[str, Value]:
        """Return the values of a started copy. Copies the sequences that are not copied yet, and waits for the others.

        Raises:
            DataError: as `gather`.
        """
        return self._values(copy.result())

    def _values(self, arrays: Sequence[tuple[Any, ...]]) -> dict[str, Value]:
        """Return the arrays of a gatherer as values, and count their bytes."""
        self.copied_bytes += sum([array.nbytes for parts in arrays for array in parts if array is not None])
        return values_of(self._makers, arrays)
