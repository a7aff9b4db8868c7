"""Rows that belong together, as sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from feedline.data import Chunk, Value
from feedline.data.value import BytesValue
from feedline.errors import DataError, SchemaError
from feedline.feed.composed.frames import take_rows
from feedline.feed.files.digest import ContentDigest
from feedline.feed.joined_values import in_sequences, join_values
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, chunk_starts, num_chunks, read_slice

_PIECE_BYTES = 16 << 20


class GroupedRows(Deserializer):
    """The sequences of a corpus, of one sample each, as longer sequences of consecutive ones.

    A chunk has the long sequences that begin in a chunk of the corpus. As a chunk of `read`, a long sequence is
    unreadable if one of its samples is.

    Args:
        corpus: corpus of rows, which knows its sizes.
        within: name of a stream of which the samples of a long sequence have the same value, and neighbouring
            sequences have not. It is read completely. Or the length of each long sequence, int64 (m,), at least 1.

    Attributes:
        bounds: int64 (sequences + 1,): sequence i has the rows ``bounds[i]:bounds[i + 1]`` of the corpus.

    Raises:
        DataError: a sequence is unreadable where ``within`` changes.
        SchemaError: there is no such stream, it is sparse, or does not have one sample for each sequence.
        ValueError: lengths that are not those of all rows.
    """

    def __init__(self, corpus: Deserializer, within: Any) -> None:
        self.corpus, self.schema, self.name = corpus, corpus.schema, corpus.name
        self._row_starts = chunk_starts(corpus)
        count = int(self._row_starts[-1])
        self.bounds = _bounds_by_value(corpus, within, count) if isinstance(within, str) else _bounds(within, count)
        first = np.searchsorted(self.bounds[:-1], self._row_starts)  # the first sequence that begins in each chunk
        self._numbers: Ints = np.flatnonzero(np.diff(first))
        self._firsts: Ints = np.append(first[self._numbers], len(self.bounds) - 1)
        bytes_of = np.array([info.bytes for info in corpus.chunks()], np.float64)
        rows = np.diff(self.bounds[self._firsts])
        share = rows / np.maximum(np.diff(self._row_starts)[self._numbers], 1)
        sizes = np.rint(bytes_of[self._numbers] * share).astype(np.int64)
        self._infos = [ChunkInfo(*numbers) for numbers in np.stack([np.diff(self._firsts), rows, sizes], 1).tolist()]

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk, with stored bytes in proportion to rows."""
        return self._infos

    def lengths(self, ordinals: Ints) -> Ints:
        """Return the rows of the sequences ``ordinals``, int64 (n,)."""
        lengths: Ints = self.bounds[ordinals + 1] - self.bounds[ordinals]
        return lengths

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest and the bounds."""
        content = ContentDigest()
        content.text(self.corpus.digest().encode())
        content.text(np.ascontiguousarray(self.bounds, "<i8").tobytes())
        return content.hexdigest(b" grouped")

    def paths(self) -> list[str]:
        """Return the paths of the corpus."""
        return list(self.corpus.paths())

    def close(self) -> None:
        """Close the corpus."""
        self.corpus.close()

    def read(self, chunk: int) -> Chunk:
        """Return the long sequences that begin in a chunk. Raises the errors of the corpus."""
        sequences, unreadable = self.read_rows(chunk)
        firsts = next(iter(sequences.values.values())).offsets
        errors: dict[int, DataError] = {}
        for row, error in sorted(unreadable.items()):
            errors.setdefault(int(np.searchsorted(firsts, row, side="right")) - 1, error)
        return Chunk(self.schema, sequences.values, errors, seals=sequences.seals)

    def read_rows(self, chunk: int) -> tuple[Chunk, dict[int, DataError]]:
        """Return the long sequences that begin in a chunk, and the errors of single rows, by their index in that chunk.

        Rows that are unreadable have arbitrary values. Raises the errors of the corpus.
        """
        number = int(self._numbers[chunk])
        bounds = self.bounds[self._firsts[chunk] : self._firsts[chunk + 1] + 1]
        first, end = int(bounds[0]), int(bounds[-1])
        start, stop = self._row_starts[number : number + 2].tolist()
        parts = [read_slice(self.corpus, number, first - start, min(end, stop) - start)]
        if end > stop:
            parts.append(self.corpus.select(np.arange(stop, end)))
        errors: dict[int, DataError] = {}
        at = first
        for part in parts:
            errors |= {at - first + row: error.located(sequence=at + row) for row, error in part.errors.items()}
            at += part.num_sequences
        values = {
            name: in_sequences(join_values([_one_sample_each(part, name) for part in parts]), bounds - first)
            for name in self.schema
        }
        return Chunk(self.schema, values, seals=[seal for part in parts for seal in part.seals]), errors


def _one_sample_each(chunk: Chunk, name: str) -> Value:
    """Return the rows of a chunk. Those of unreadable sequences are arbitrary."""
    value = chunk[name]
    if value.one_sample_each:
        return value
    lengths = value.lengths
    for row in np.flatnonzero(lengths != 1).tolist():
        if row not in chunk.errors:
            raise SchemaError(
                f"expected one sample for each sequence in `{name}`, as sequences of rows need, got {lengths[row]}"
            )
    present = lengths == 1
    return take_rows(value, np.where(present, value.offsets[:-1], 0), present)


def _bounds_by_value(corpus: Deserializer, name: str, count: int) -> Ints:
    """Return where the value of a stream changes. Unreadable rows belong to the sequence around them.

    Raises:
        DataError: a row is unreadable where the value changes, or is the first or the last one.
        SchemaError: there is no such stream of single values.
    """
    stream = corpus.schema.get(name)
    if stream is None or stream.sparse or stream.shape:
        raise SchemaError(
            f"expected a stream with shape () for rows that belong together, got {stream or 'none'} as `{name}` in "
            f"{corpus.name}, which has {', '.join(corpus.schema)}"
        )
    begins: list[Ints] = []
    last: tuple[int, Any] = (-1, None)  # the row before, and its value
    error: DataError | None = None
    for number in range(num_chunks(corpus)):
        for first, piece in _pieces(corpus, number):
            readable = np.array([i for i in range(piece.num_sequences) if i not in piece.errors], np.int64)
            error = next(iter(piece.errors.values()), error)
            if not len(readable):
                continue
            samples = _single_values(name, piece.take(readable)[name], corpus)
            rows, before = readable + first, np.append(last[0], readable[:-1] + first)
            differs = np.append([last[0] < 0 or bool(last[1] != samples[0])], samples[1:] != samples[:-1])
            if (unclear := differs & (rows - before > 1)).any():
                raise _unclear(name, corpus, int(rows[unclear][0]) - 1, error)
            begins.append(rows[differs])
            last = int(rows[-1]), samples[-1]
    if last[0] != count - 1:
        raise _unclear(name, corpus, count - 1, error)
    return np.concatenate([*begins, [count]]).astype(np.int64)


def _pieces(corpus: Deserializer, number: int) -> Iterator[tuple[int, Chunk]]:
    """Yield pieces of a chunk, with the number of their first row."""
    first = int(chunk_starts(corpus)[number])
    for piece in corpus.read(number).pieces(_PIECE_BYTES):  # copies, as views of files must not be looked at
        yield first, piece
        first += piece.num_sequences


def _single_values(name: str, value: Value, corpus: Deserializer) -> np.ndarray[Any, Any]:
    if (value.lengths != 1).any():
        raise SchemaError(f"expected one sample for each sequence in `{name}` of {corpus.name}, got several or none")
    samples: list[Any] = value.samples() if isinstance(value, BytesValue) else []
    if not samples:
        return np.asarray(value.dense().rows)
    array = np.empty(len(samples), object)
    array[:] = samples
    return array


def _unclear(name: str, corpus: Deserializer, row: int, error: DataError | None) -> DataError:
    reason = "" if error is None else f": {error.what}"
    return DataError(
        f"expected readable rows where `{name}` changes, to know which rows belong together, got others{reason}",
        path=corpus.name,
        sequence=row,
        hint="pass the lengths of the sequences as within",
    )


def _bounds(lengths: Any, count: int) -> Ints:
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"expected the name of a stream, or lengths of sequences, int64 (m,), got {lengths!r:.60}")
    array = array.astype(np.int64)
    if (array < 1).any() or array.sum() != count:
        raise ValueError(
            f"expected lengths of at least 1 with a sum of {count}, the rows of the corpus, got a sum of {array.sum()}"
        )
    bounds: Ints = np.concatenate([[0], np.cumsum(array)])
    return bounds
