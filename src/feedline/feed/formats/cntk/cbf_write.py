"""Write CNTK's binary format (CBF). `CBFDeserializer` and CNTK 2.7 read the same numbers back.

Cost: one vectorised pass. Memory takes one piece of a chunk of the source, and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.data import Value
from feedline.data.value import DenseValue, SparseValue
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.cntk.cbf import MAGIC, UNIT, VERSION, CbfField
from feedline.feed.protocol import Deserializer, Ints, num_chunks, whole_number

_PIECE = 8 << 20
_MAX_DIM = 2**31 - 1


class CbfWriter:
    """Writes chunks, then the header.

    Args:
        file: file to write. It must be at its start.
        fields: streams, in their order.

    Raises:
        ValueError: CBF cannot describe a stream.
    """

    def __init__(self, file: BinaryIO, fields: Sequence[CbfField]) -> None:
        for field in fields:
            if not field.name or not field.name.isascii():
                raise ValueError(f"expected the name of a stream in ASCII, got {field.name!r}")
            if not 1 <= field.dim <= _MAX_DIM:
                raise ValueError(
                    f"expected 1 to {_MAX_DIM} values in a sample of stream `{field.name}`, got {field.dim}"
                )
        self.fields = list(fields)
        self._file = file
        self._table: list[tuple[int, int, int]] = []
        self._at = file.write(struct.pack("<QI", MAGIC, VERSION))

    def chunk(self, values: Sequence[Sequence[Value]]) -> None:
        """Write a chunk: parts of its sequences, each with one value per stream.

        Raises:
            ValueError: a sequence or a chunk has too many samples.
        """
        lengths = [np.max([value.lengths for value in part], axis=0) for part in values]
        counts = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
        if counts.sum() >= 2**32:
            raise ValueError(f"expected fewer than 2**32 samples in a chunk, got {counts.sum()}; lower chunk_size")
        self._table.append((self._at, len(counts), int(counts.sum())))
        self._put(counts.astype("<u4"))
        for number, field in enumerate(self.fields):
            for part in values:
                self._put(_bytes_of(part[number], field))

    def finish(self) -> None:
        """Write the header. Nothing can be written afterwards."""
        header_at = self._at
        self._put(struct.pack("<QII", MAGIC, len(self._table), len(self.fields)))
        for field in self.fields:
            name, kind = field.name.encode(), int(field.dtype == np.float64)
            self._put(struct.pack("<BI", field.sparse, len(name)) + name + struct.pack("<BI", kind, field.dim))
        for row in self._table:
            self._put(struct.pack("<qII", *row))
        self._put(struct.pack("<q", header_at))

    def _put(self, data: bytes | NDArray[Any]) -> None:
        if isinstance(data, np.ndarray):
            data = data.tobytes()
        self._file.write(data)
        self._at += len(data)


def write_cbf(
    path: PathLike,
    source: Deserializer | Mapping[str, Any] | None = None,
    *,
    chunk_size: int = UNIT,
    dtype: str | None = None,
    **streams: Any,
) -> None:
    """Write a corpus as a CBF file, which appears complete or not at all.

    Sequences come in the order of the source. CBF stores no keys: a reader numbers the sequences.

    Args:
        path: path of the file. An existing file is replaced.
        source: a `Deserializer` (for a path: `open_corpus`), or a mapping from stream names to data as
            `ArrayDeserializer` takes it, also as keyword arguments.
        chunk_size: approximate bytes of a chunk. A sequence is never cut.
        dtype: ``"float32"`` or ``"float64"``, the only element types of CBF. By default float64 for float64, and
            float32 for all others.
        streams: more data, by stream name.

    Raises:
        ValueError: there is no stream, CBF cannot describe a stream, or the element type cannot hold integers.
        DataError: a sequence of the source is unreadable, or the disk is full.
    """
    whole_number("chunk_size", chunk_size, 1)
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f'expected dtype "float32", "float64" or None, got {dtype!r}')
    if isinstance(source, Deserializer):
        if streams:
            raise ValueError(f"expected a deserializer or arrays, got both: {', '.join(streams)}")
        corpus = source
    else:
        corpus = ArrayDeserializer(source or {}, **streams)
    with atomic_file(Path(path)) as file:
        writer = CbfWriter(file, [_field(name, stream, dtype) for name, stream in corpus.schema.items()])
        pieces: list[list[Value]] = []
        size = 0
        for number in range(num_chunks(corpus)):
            chunk = corpus.read(number)
            for piece in chunk.pieces(min(_PIECE, chunk_size)):
                for error in piece.errors.values():
                    raise error
                pieces.append([piece[name] for name in corpus.schema])
                size += piece.nbytes
                if size >= chunk_size:
                    writer.chunk(pieces)
                    pieces, size = [], 0
        if pieces:
            writer.chunk(pieces)
        writer.finish()


def _field(name: str, stream: Any, dtype: str | None) -> CbfField:
    kind = np.dtype(dtype or (np.float64 if stream.dtype == np.float64 else np.float32))
    return CbfField(name, stream.sparse, kind, stream.size)


def _bytes_of(value: Value, field: CbfField) -> NDArray[np.uint32]:
    """Return the bytes of a stream's sequences as words of 4 bytes. All sizes in CBF are multiples of 4."""
    lengths = value.lengths
    if isinstance(value, SparseValue):
        return _sparse_words(value, field, lengths)
    assert isinstance(value, DenseValue)
    rows = _numbers(value.rows.reshape(len(value.rows), field.dim), field)
    words = rows.reshape(-1).view("<u4")
    out = np.empty(len(lengths) + len(words), "<u4")
    width = rows.shape[1] * rows.itemsize // 4
    prefixes = np.arange(len(lengths)) + (np.cumsum(lengths) - lengths) * width
    out[prefixes] = lengths
    is_data = np.ones(len(out), np.bool_)
    is_data[prefixes] = False
    out[is_data] = words
    return out


def _sparse_words(value: SparseValue, field: CbfField, lengths: Ints) -> NDArray[np.uint32]:
    base = int(value.indptr[0])
    counts = np.diff(value.indptr)
    indices = value.checked_indices()[base : int(value.indptr[-1])]
    numbers = _numbers(value.values[base : int(value.indptr[-1])], field)
    rows = np.repeat(np.arange(len(counts)), counts)
    if ((np.diff(indices) < 0) & (np.diff(rows) == 0)).any():
        order = np.lexsort((indices, rows))
        indices, numbers = indices[order], numbers[order]
    bounds = np.concatenate([[0], np.cumsum(counts)])
    ends = np.cumsum(lengths)
    stored = bounds[ends] - bounds[ends - lengths]
    width = field.dtype.itemsize // 4
    sizes = 2 + stored * (width + 1) + lengths
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), "<u4")
    out[starts], out[starts + 1] = lengths, stored
    out[_places(starts + 2, stored * width)] = np.ascontiguousarray(numbers).view("<u4")
    out[_places(starts + 2 + stored * width, stored)] = indices
    out[_places(starts + 2 + stored * (width + 1), lengths)] = counts
    return out


def _places(starts: Ints, counts: Ints) -> Ints:
    """Return for each i the ``counts[i]`` consecutive numbers from ``starts[i]`` on."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def _numbers(array: NDArray[Any], field: CbfField) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.ascontiguousarray(array.real, field.dtype)
        exact = array.dtype.kind in "fb" or (array.dtype.kind in "iu" and (numbers.astype(array.dtype) == array).all())
    if not exact:
        raise ValueError(f"expected numbers that {field.dtype} can hold in stream `{field.name}`, got {array.dtype}")
    return numbers
