"""Chunks in memory by slot, and minibatches copied out of them.

A thin layer over the native gatherer: slots are handed out here, arrays become values here. One gather copies
all streams of all chosen sequences in one call without the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Value
from feedline.data.chunk import gatherer_of, give
from feedline.data.value import DenseValue, SparseValue


class ChunkSet:
    """The chunks that sequences may be gathered from right now.

    Attributes:
        schema: the streams.
        sequence_bytes: mean size of a sequence, over all chunks so far; 0 before the first.
    """

    __slots__ = ("_bytes", "_free", "_gatherer", "_makers", "_ragged", "_sequences", "_top", "schema", "sequence_bytes")

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._gatherer = gatherer_of(schema)
        self._makers = [(name, stream.shape[0] if stream.sparse else None) for name, stream in schema.items()]
        self._free: list[int] = []
        self._ragged = [False] * len(schema)
        self._top = self._sequences = self._bytes = 0
        self.sequence_bytes = 0.0

    def add(self, chunk: Chunk) -> int:
        """Take a chunk in; returns its slot. The chunk's arrays are kept, not copied."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._top = self._top, self._top + 1
        try:
            give(self._gatherer, slot, chunk)
            for i, value in enumerate(chunk.values.values()):
                if not value.one_sample_each:
                    self._ragged[i] = True
        except BaseException:
            if slot not in self._gatherer.slots:  # it may have been taken in, and the rest interrupted
                self._free.append(slot)
            raise
        self._bytes += chunk.nbytes
        self._sequences += chunk.num_sequences
        self.sequence_bytes = self._bytes / max(self._sequences, 1)
        return slot

    def keep(self, slots: set[int]) -> None:
        """Let all chunks go but those at ``slots``, also one that nobody knows of, as taking it in was interrupted.

        A gather under way keeps what it copies from.
        """
        for slot in self._gatherer.slots:
            if slot not in slots:
                self._gatherer.remove(slot)
        self._free = [slot for slot in range(self._top) if slot not in slots]

    def drop(self, slot: int) -> None:
        """Let the chunk at ``slot`` go; as `keep`."""
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
        """Begin to bring sequences, or runs of them, of chunks in mapped files into memory; see `_native.Gatherer`.

        Raises:
            IndexError: as `gather`.
        """
        return self._gatherer.stage(fetcher, slots, index, counts, keep)

    def unstage(self, staged: _native.Staged, which: NDArray[np.int64] | None) -> dict[str, Value]:
        """The values of sequences that were staged, or of those at the places ``which``.

        Raises:
            BadEntriesError, DataError: as `gather`.
        """
        return self.values(staged.gather(which))

    def adopt(self, staged: _native.Staged, run: int) -> int:
        """Take in a run that was staged, as a chunk; returns its slot."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._top = self._top, self._top + 1
        try:
            self._gatherer.adopt(slot, staged, run)
        except BaseException:
            if slot not in self._gatherer.slots:
                self._free.append(slot)
            raise
        return slot

    def lacking(
        self,
        fetcher: _native.Fetcher,
        slots: NDArray[np.uint32],
        index: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
        most: int,
        pages: int,
    ) -> int:
        """How many of at most ``most`` runs are not in the page cache; see `_native.Gatherer`."""
        return self._gatherer.lacking(fetcher, slots, index, counts, most, pages)

    def gather(self, slots: NDArray[np.uint32], index: NDArray[np.int64]) -> dict[str, Value]:
        """One value per stream with the sequences ``index`` of the chunks at ``slots``; copies.

        Raises:
            IndexError: no chunk at a slot, or an index outside its sequences.
            BadEntriesError: sequences hold impossible entries; `values` makes values of its arrays.
            DataError: a mapped file was cut, has changed, or its disk fails.
        """
        if len(index) == 0:
            ragged = zip(self.schema.items(), self._ragged, strict=True)
            return {name: Value.empty(stream, r) for (name, stream), r in ragged}
        return self.values(self._gatherer.gather(slots, index))

    def start(self, slots: NDArray[np.uint32], index: NDArray[np.int64]) -> _native.Copy:
        """Begin what `gather` does, for at least one sequence; a native thread copies and `finish` hands it out.

        Chunks may come and go meanwhile; dropping the copy is safe at any time.

        Raises:
            IndexError: as `gather`.
        """
        return self._gatherer.start(slots, index)

    def finish(self, copy: _native.Copy) -> dict[str, Value]:
        """The values of a copy that was started; copies what is not copied yet and waits for the rest.

        Raises:
            DataError: as `gather`.
        """
        return self.values(copy.result())

    def values(self, arrays: list[tuple[Any, ...]]) -> dict[str, Value]:
        """What was gathered, one value per stream."""
        values: dict[str, Value] = {}
        for (name, classes), parts in zip(self._makers, arrays, strict=True):
            if classes is None:
                values[name] = DenseValue(*parts)
            else:
                indptr, indices, data, offsets = parts
                values[name] = SparseValue(indptr, indices, data, classes, offsets)
        return values
