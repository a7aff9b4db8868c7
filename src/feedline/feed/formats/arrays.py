"""Arrays as a corpus: in memory, mapped by NumPy, or read on demand.

Arrays are not copied, whatever their strides: a chunk is a view, a memory map remains one, and sliding windows over
tokens take the memory of the tokens. Lists of sequences are packed once into one array. Reading a chunk costs a few
microseconds and no I/O, or one read for data that is read when sliced (see `lazy_rows`). The parts of a memory map that
are not in memory are fetched ahead, as for a store (see `fetching_reader`).
"""

from __future__ import annotations

import copy
import mmap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.maps import MappedRange
from feedline.data.value import BytesValue, DenseValue, as_arrays, bytes_before, strings_from_list, unmasked
from feedline.errors import DataError, SchemaError
from feedline.feed.byte_strings import from_array, is_arrow, whole_arrow
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.mapped_arrays import mapped_ranges
from feedline.feed.files.truncation_guard import seals_of
from feedline.feed.formats.lazy_rows import LazyRows, chunk_rows, is_lazy
from feedline.feed.protocol import (
    ChunkInfo,
    Deserializer,
    Growing,
    Ints,
    LengthsOfStreams,
    Mapped,
    RandomAccess,
    Sliceable,
)

_MIN_WARNED_BYTES = 64 << 20  # copies of at least this size cause a warning
_STRINGS = (str, bytes, bytearray, memoryview)


class ArrayDeserializer(Deserializer, RandomAccess, Sliceable, Mapped, Growing, LengthsOfStreams):
    """Sequences from arrays.

    The schema is inferred: a stream has the dtype and shape of its data. The data of a stream may be

    - an array ``(N, *shape)``, one sample per sequence: NumPy (also memory maps and views), or anything on the CPU with
      ``__dlpack__`` or ``numpy()``, such as a torch tensor. It is not copied.
    - any other object with ``shape``, ``dtype`` and slicing, such as an HDF5 dataset or a Zarr array: read chunk by
      chunk on demand, never as a whole. Such a corpus has no random access: it is shuffled in windows.
    - a SciPy sparse matrix ``(N, classes)``, one sample per sequence. The entries of a CSR matrix with int32 indices
      are not copied.
    - a list with one array ``(length, *shape)`` or SciPy sparse matrix ``(length, classes)`` per sequence. A flat list
      of numbers counts as an array. Lists are packed into one array, once.
    - byte strings or texts, of any length: a list with one, or a list of them, per sequence, a NumPy array ``(N,)`` of
      dtype S, U or object, or an Arrow array of binary or string type, whose bytes are not copied (views, dictionaries
      and several chunks are packed). NumPy cannot distinguish NULs at the end of S from padding, so they are dropped.
    - a `Value`.

    Args:
        streams: data by stream name.
        chunk_sequences: sequences per chunk. The last chunk may be shorter. By default 65536, or for data that is read
            when sliced, 32 MiB of it, in whole stored blocks.
        defines_size: name of the stream whose lengths count towards the minibatch budget, by default the longest stream
            of each sequence.
        arrays: more data, by stream name.

    Attributes:
        num_sequences: number of sequences.
        step: sequences per chunk.

    Raises:
        SchemaError: there is no stream, or streams have different numbers of sequences.
        TypeError: data have an unsupported kind or dtype (objects, records, dates).
        ValueError: data have an impossible shape, or tensors are not on the CPU.
        DataError: there is no sequence.
    """

    name = "arrays"

    def __init__(
        self,
        streams: Mapping[str, Any] | None = None,
        /,
        *,
        chunk_sequences: int | None = None,
        defines_size: str | None = None,
        **arrays: Any,
    ) -> None:
        if chunk_sequences is not None and chunk_sequences < 1:
            raise ValueError(f"expected chunk_sequences of at least 1, got {chunk_sequences}")
        try:
            by_name = {} if streams is None else {**streams}
        except TypeError:
            what = f"expected a mapping from stream name to data, got {type(streams).__name__}"
            raise TypeError(f"{what}; write ArrayDeserializer(x=...)") from None
        data = {**by_name, **arrays}
        if len(data) < len(by_name) + len(arrays):
            raise SchemaError(f"expected each stream once, got twice: {', '.join(set(by_name) & set(arrays))}")
        if defines_size is not None and defines_size not in data:
            raise SchemaError(f"expected defines_size to be one of {', '.join(data)}, got {defines_size!r}")
        self._columns = {
            name: item
            if isinstance(item, LazyRows)
            else LazyRows(name, item)
            if is_lazy(item)
            else _as_value(name, item)
            for name, item in data.items()
        }
        lazy = [column for column in self._columns.values() if isinstance(column, LazyRows)]
        self.schema = Schema({name: _stream(c, name == defines_size) for name, c in self._columns.items()})
        counts = {name: len(column) for name, column in self._columns.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"`{name}` has {count}" for name, count in counts.items())
            raise SchemaError(f"expected the same number of sequences in all streams, got: {listed}")
        self.num_sequences = next(iter(counts.values()))
        if self.num_sequences == 0:
            raise DataError(f"expected at least one sequence, got none in {', '.join(f'`{n}`' for n in data)}")
        parts = [array for column in self._columns.values() if isinstance(column, Value) for array in as_arrays(column)]
        parts = [array for array in parts if array is not None]
        maps = [entry for entry in map(_map_of, parts) if entry is not None]
        self.in_memory = not lazy and not maps
        self._ranges = [] if lazy else mapped_ranges(parts)
        self._lacks = (RandomAccess, Sliceable, Mapped) if lazy else () if self._ranges else (Mapped,)
        self._mapped = sorted({str(entry.filename) for entry in maps if getattr(entry, "filename", None) is not None})
        self.step = int(chunk_sequences or (chunk_rows(lazy) if lazy else 65536))
        self._seals = seals_of(parts)
        self._table: list[ChunkInfo] | None = None

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts the rows."""
        if self._table is None:
            starts = np.arange(0, self.num_sequences, self.step)
            bounds = np.append(starts, self.num_sequences)
            sequences = np.diff(bounds)
            lengths = self.lengths(np.arange(self.num_sequences)) if self._ragged_offsets() else None
            samples = sequences if lengths is None else np.add.reduceat(lengths, starts)
            sizes = sum(_bytes_before(column, bounds) for column in self._columns.values())
            stored = np.diff(np.asarray(sizes))
            rows = zip(sequences.tolist(), samples.tolist(), stored.tolist(), strict=True)
            self._table = [ChunkInfo(*row) for row in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Return the sequences of chunk number ``chunk``: views, except of data that is read when sliced.

        Raises:
            DataError: data that is read when sliced cannot be read, or differs from its declared shape or dtype.
        """
        start = chunk * self.step
        if not 0 <= start < self.num_sequences:
            raise IndexError(f"expected a chunk number from 0 to {len(self.chunks()) - 1}, got {chunk}")
        return self.read_slice(chunk, 0, min(self.step, self.num_sequences - start))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """Return the sequences ``start:stop`` of chunk number ``chunk`` in the same way."""
        a, b = chunk * self.step + start, chunk * self.step + stop
        values, errors = {}, {}
        for name, column in self._columns.items():
            if isinstance(column, Value):
                values[name] = column.slice(a, b)
            else:
                values[name], lost = column.read(a, b)
                errors.update(lost)
        return Chunk(self.schema, values, errors, seals=self._seals)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedRange]:
        """Return the mapped files of all arrays, the same for any chunks."""
        return self._ranges

    def __getstate__(self) -> dict[str, Any]:
        # Pickled arrays are copies, not mappings.
        return {**self.__dict__, "_ranges": [], "_lacks": (*self._lacks, Mapped)}

    def lengths(self, ordinals: Ints) -> Ints | None:
        """Return the samples of the sequences ``ordinals``, int64 (n,), or None if every sequence has one. O(n)."""
        ragged = self._ragged_offsets()
        if not ragged:
            return None
        plain = len(ragged) < len(self._columns) and self.schema.size_stream is None
        longest = np.full(len(ordinals), int(plain), np.int64)
        for bounds in ragged:
            np.maximum(longest, bounds[ordinals + 1] - bounds[ordinals], out=longest)
        return longest

    def stream_lengths(self, stream: str) -> Callable[[Ints], Ints]:
        """See `LengthsOfStreams.stream_lengths`."""
        bounds = self._columns[stream].offsets
        if bounds is None or self._columns[stream].one_sample_each:
            return lambda ordinals: np.ones(len(ordinals), np.int64)
        return lambda ordinals: bounds[ordinals + 1] - bounds[ordinals]

    def paths(self) -> list[str]:
        """Return the paths of files that NumPy has mapped."""
        return self._mapped

    def digest(self) -> str:
        """Return 32 hex digits over counts, sizes and three blocks of each array."""
        digest = ContentDigest()
        for column in self._columns.values():
            if isinstance(column, LazyRows):
                column.add_to(digest)
                continue
            digest.numbers(column.num_sequences, column.num_samples)
            for array in as_arrays(column):
                if array is not None:
                    digest.array(array)
        return digest.hexdigest()

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest of all. See `Growing.digests`."""
        yield len(self.chunks()), self.digest()

    def shorter(self, sequences: int) -> Iterator[ArrayDeserializer]:
        """Yield the corpus of the first sequences. See `Growing.shorter`."""
        first = copy.copy(self)
        first._columns = {
            name: column.slice(0, sequences) if isinstance(column, Value) else column.head(sequences)
            for name, column in self._columns.items()
        }
        first.num_sequences, first._table = sequences, None
        yield first

    def _ragged_offsets(self) -> list[Ints]:
        """Return the offsets of the ragged columns that count towards the minibatch budget."""
        size = self.schema.size_stream
        counted = [column for name, column in self._columns.items() if size in (None, name)]
        return [column.offsets for column in counted if not column.one_sample_each and column.offsets is not None]


def _stream(column: Value | LazyRows, defines_size: bool) -> Stream:
    if isinstance(column, Value):
        return Stream(column.shape, column.dtype, column.is_sparse, defines_size=defines_size)
    return Stream(column.stream.shape, column.stream.dtype, defines_size=defines_size)


def _as_value(name: str, data: Any) -> Value:
    try:
        value = _convert(data)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise type(error)(f"{error} (stream `{name}`)") from error
    if value.dtype.kind not in "biufc" and not isinstance(value, BytesValue):
        raise TypeError(
            f"expected numbers or bools for stream `{name}`, got dtype {value.dtype}; "
            f"encode it first, e.g. as class indices or one-hot rows"
        )
    if value.is_sparse and value.dtype not in (np.float32, np.float64):
        raise TypeError(
            f"expected float32 or float64 for sparse stream `{name}`, got {value.dtype}; "
            f"convert it with .astype('float32')"
        )
    return value


def _convert(data: Any) -> Value:
    if isinstance(data, DenseValue) and not data.one_sample_each and not data.rows.flags.c_contiguous:
        return DenseValue(_copy_contiguous(data.rows), data.offsets)
    if isinstance(data, Value):
        return data
    if is_arrow(data):
        return whole_arrow(data)
    if hasattr(data, "tocsr"):
        return Value.from_scipy(data)
    if isinstance(data, (list, tuple)):
        return _from_list(data)
    if isinstance(data, np.ndarray):
        return _from_array(data)
    if hasattr(data, "__dlpack__"):
        # torch exports a tensor with a pending negation without applying or reporting it.
        resolved = data.resolve_neg() if hasattr(data, "resolve_neg") else data
        try:
            return _from_array(np.from_dlpack(resolved))
        except (BufferError, RuntimeError, TypeError) as error:
            raise ValueError(f"{error}; pass a CPU array, for torch x.detach().cpu()") from error
    if hasattr(data, "numpy"):
        return _from_array(np.asarray(data.numpy()))
    if hasattr(data, "__array__"):
        return _from_array(np.asarray(data))
    raise TypeError(
        f"expected a NumPy array, SciPy sparse matrix, torch tensor, Value or list of sequences, "
        f"got {type(data).__name__}"
    )


def _from_array(array: NDArray[Any]) -> Value:
    if array.ndim == 0:
        raise ValueError("expected an array (N, ...) with one row per sequence, got a scalar")
    array = unmasked(array)
    if array.dtype.kind in "SU" or (array.dtype.kind == "O" and len(array) and isinstance(array.flat[0], _STRINGS)):
        return from_array(array)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"expected numbers or bools, got dtype {array.dtype}; encode it first, e.g. as class indices")
    return Value.from_dense(array)


def _copy_contiguous(rows: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous copy of rows. Warn if it takes much more memory than the view."""
    view_bytes = sum((n - 1) * abs(step) for n, step in zip(rows.shape, rows.strides, strict=True)) + rows.itemsize
    if rows.nbytes > max(_MIN_WARNED_BYTES, 2 * view_bytes):
        warnings.warn(
            f"rows of ragged sequences are copied, as they are a view with strides {rows.strides}: "
            f"{rows.nbytes} bytes instead of the {view_bytes} of the view",
            stacklevel=2,
        )
    return np.ascontiguousarray(rows)


def _from_list(items: Sequence[Any]) -> Value:
    if len(items) == 0:
        raise ValueError("expected at least one sequence: the shape of a sample cannot be inferred without one")
    if _holds_strings(items):
        return strings_from_list(items)
    if hasattr(items[0], "tocsr"):
        return Value.from_sequences(items, dtype=np.result_type(*{item.dtype for item in items}))
    arrays = [unmasked(item) for item in items]
    if any(array.dtype.kind not in "biufc" for array in arrays):
        kinds = ", ".join(sorted({str(array.dtype) for array in arrays}))
        raise TypeError(f"expected sequences of numbers or bools, got dtype {kinds}")
    if all(array.ndim == 0 for array in arrays):
        return _from_array(np.asarray(items))
    return Value.from_sequences(arrays)


def _holds_strings(items: Sequence[Any]) -> bool:
    """Return whether the first sample of a list, in any sequence, is a byte string or text."""
    for item in items:
        if isinstance(item, _STRINGS):
            return True
        if isinstance(item, (list, tuple)) and not item:
            continue
        return isinstance(item, (list, tuple)) and isinstance(item[0], _STRINGS)
    return False


def _bytes_before(column: Value | LazyRows, ordinals: Ints) -> Ints:
    """Return the bytes of all rows before each ordinal."""
    if isinstance(column, Value):
        return bytes_before(column, ordinals)
    if column.offsets is None:
        return ordinals * column.row_bytes
    return column.offsets[ordinals] * column.stream.dtype.itemsize


def _map_of(array: Any) -> Any:
    """Return the NumPy or `mmap` mapping of an array, or None if the array is in memory."""
    while array is not None and not isinstance(array, (np.memmap, mmap.mmap)):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array
