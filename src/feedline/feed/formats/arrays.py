"""Arrays in memory, mapped by NumPy, or read from elsewhere when they are sliced, as a corpus.

Arrays are never copied, whatever their strides: a chunk is a view, a memory map stays one, and windows that slide over
tokens take the memory of the tokens. Lists of sequences are packed once into one array. Reading a chunk costs a few
microseconds and no I/O; of data that is read when it is sliced (see `lazy`), a read of the chunk. What of a memory map
is not in memory is fetched ahead of need, as of a store (see `fetching`).
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.maps import MappedRange
from feedline.data.value import DenseValue, SparseValue, as_arrays, unmasked
from feedline.errors import DataError, SchemaError
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.mapped_arrays import mapped_ranges
from feedline.feed.files.seals import seals_of
from feedline.feed.formats.lazy import LazyRows, chunk_rows, is_lazy
from feedline.feed.protocol import ChunkInfo, Deserializer

_WORTH_TELLING = 64 << 20  # bytes


class ArrayDeserializer(Deserializer):
    """Sequences that are already arrays.

    The schema is inferred: dtype and shape of a stream are those of its data. Data of a stream may be

    - an array ``(N, *shape)``, one sample a sequence: NumPy (memory maps and any views too), or anything on the CPU
      with ``__dlpack__`` or ``numpy()``, such as a torch tensor; not copied;
    - anything else with ``shape``, ``dtype`` and slicing, such as an HDF5 dataset or a Zarr array: read chunk by chunk
      when needed, never as a whole. Such a corpus has no random access: it is shuffled in windows;
    - a SciPy sparse matrix ``(N, classes)``, one sample a sequence; the entries of a CSR matrix with int32
      indices are not copied;
    - a list with one array ``(length, *shape)`` or SciPy sparse matrix ``(length, classes)`` a sequence;
      a flat list of numbers counts as an array. Lists are packed into one array, once;
    - a `Value`.

    Args:
        streams: data by stream name.
        chunk_sequences: sequences in a chunk; the last one may be shorter. None: 65536, or, where data is read when it
            is sliced, as many as make 32 MiB of it, in whole blocks as they are stored.
        defines_size: name of the stream whose lengths count against the minibatch budget; None: the longest
            stream of each sequence.
        arrays: more data, by stream name.

    Raises:
        SchemaError: no stream, or streams with different numbers of sequences.
        TypeError: data of a kind or dtype that cannot be fed (objects, strings, records).
        ValueError: data of an impossible shape, or tensors that are not on the CPU.
        DataError: no sequence at all.
    """

    random_access = True
    sliceable = True
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
        data = {**(streams or {}), **arrays}
        if len(data) < len(streams or {}) + len(arrays):
            raise SchemaError(f"expected each stream once, got twice: {', '.join(set(streams or {}) & set(arrays))}")
        if defines_size is not None and defines_size not in data:
            raise SchemaError(f"expected defines_size to be one of {', '.join(data)}, got {defines_size!r}")
        self._columns = {
            name: LazyRows(name, given) if is_lazy(given) else _as_value(name, given) for name, given in data.items()
        }
        self._values = {name: column for name, column in self._columns.items() if isinstance(column, Value)}
        lazy = [column for column in self._columns.values() if isinstance(column, LazyRows)]
        self.schema = Schema({name: _stream(c, name == defines_size) for name, c in self._columns.items()})
        counts = {name: len(column) for name, column in self._columns.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"`{name}` has {count}" for name, count in counts.items())
            raise SchemaError(f"expected the same number of sequences in all streams, got: {listed}")
        self._count = next(iter(counts.values()))
        if self._count == 0:
            raise DataError(f"expected at least one sequence, got none in {', '.join(f'`{n}`' for n in data)}")
        if lazy:
            self.random_access = self.sliceable = False
        every = [array for value in self._values.values() for array in as_arrays(value) if array is not None]
        maps = [found for found in map(_map_of, every) if found is not None]
        self.in_memory = not lazy and not maps
        self._ranges = [] if lazy else mapped_ranges(every)
        self.fetchable = bool(self._ranges)
        self._mapped = sorted({str(found.filename) for found in maps if getattr(found, "filename", None) is not None})
        self._step = int(chunk_sequences or (chunk_rows(lazy) if lazy else 65536))
        self._seals = seals_of(every)
        self._table: list[ChunkInfo] | None = None

    def chunks(self) -> list[ChunkInfo]:
        """Size of every chunk; ``bytes`` are those of the rows."""
        if self._table is None:
            starts = np.arange(0, self._count, self._step)
            bounds = np.append(starts, self._count)
            sequences = np.diff(bounds)
            lengths = self.lengths(np.arange(self._count)) if self._ragged() else None
            samples = sequences if lengths is None else np.add.reduceat(lengths, starts)
            sizes = sum(_cumulative_bytes(column)(bounds) for column in self._columns.values())
            stored = np.diff(np.asarray(sizes))
            rows = zip(sequences.tolist(), samples.tolist(), stored.tolist(), strict=True)
            self._table = [ChunkInfo(*row) for row in rows]
        return self._table

    def read(self, chunk: int) -> Chunk:
        """Views of the sequences of chunk number ``chunk``, or what was read of them now.

        Raises:
            DataError: data that is read when it is sliced cannot be read, or is not what was promised.
        """
        start = chunk * self._step
        if not 0 <= start < self._count:
            raise IndexError(f"expected a chunk number from 0 to {len(self.chunks()) - 1}, got {chunk}")
        return self.read_slice(chunk, 0, min(self._step, self._count - start))

    def read_slice(self, chunk: int, start: int, stop: int) -> Chunk:
        """The same of the sequences ``start:stop`` of chunk number ``chunk``."""
        a, b = chunk * self._step + start, chunk * self._step + stop
        values = {
            name: column.slice(a, b) if isinstance(column, Value) else Value.from_dense(column[a:b])
            for name, column in self._columns.items()
        }
        return Chunk(self.schema, values, seals=self._seals)

    def files(self, chunks: Sequence[int]) -> Sequence[MappedRange]:
        """The mapped files that arrays are views of, whatever the chunks."""
        return self._ranges

    def __getstate__(self) -> dict[str, Any]:
        # Another process gets copies of the arrays, and nothing of its own is mapped where it was here.
        return {**self.__dict__, "_ranges": [], "fetchable": False}

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Samples of the sequences ``ordinals``, int64 (n,); None if every sequence has one. O(n)."""
        ragged = self._ragged()
        if not ragged:
            return None
        all_ragged = len(ragged) == len(self._columns) or self.schema.size_stream is not None
        longest = np.zeros(len(ordinals), np.int64) if all_ragged else np.ones(len(ordinals), np.int64)
        for value in ragged:
            bounds = value.offsets
            np.maximum(longest, bounds[ordinals + 1] - bounds[ordinals], out=longest)
        return longest

    def paths(self) -> list[str]:
        """The files that NumPy has mapped."""
        return self._mapped

    def digest(self) -> str:
        """32 hex digits over counts, sizes and three blocks of each array."""
        digest = ContentDigest()
        for column in self._columns.values():
            if isinstance(column, LazyRows):
                digest.numbers(len(column), len(column))
                digest.array(column)
                continue
            digest.numbers(column.num_sequences, column.num_samples)
            for array in as_arrays(column):
                if array is not None:
                    digest.array(array)
        return digest.hexdigest()

    def _ragged(self) -> list[Value]:
        """The values with lengths of their own among those that count against the minibatch budget."""
        size = self.schema.size_stream
        counted = [value for name, value in self._values.items() if size in (None, name)]
        return [value for value in counted if not value.one_sample_each]


def _stream(column: Value | LazyRows, defines_size: bool) -> Stream:
    if isinstance(column, Value):
        return Stream(column.shape, column.dtype, column.is_sparse, defines_size=defines_size)
    return Stream(column.stream.shape, column.stream.dtype, defines_size=defines_size)


def _as_value(name: str, data: Any) -> Value:
    try:
        value = _convert(data)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise type(error)(f"{error} (stream `{name}`)") from error
    if value.dtype.kind not in "biufc":
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
        return DenseValue(_packed(data.rows), data.offsets)
    if isinstance(data, Value):
        return data
    if hasattr(data, "tocsr"):
        return Value.from_scipy(data)
    if isinstance(data, (list, tuple)):
        return _from_list(data)
    if isinstance(data, np.ndarray):
        return _from_array(data)
    if hasattr(data, "__dlpack__"):
        # torch hands out the memory of a tensor with a sign that is still to be turned, and says nothing.
        resolved = data.resolve_neg() if hasattr(data, "resolve_neg") else data
        try:
            return _from_array(np.from_dlpack(resolved))
        except (BufferError, RuntimeError, TypeError) as error:
            raise ValueError(f"{error}; hand over a CPU array, for torch x.detach().cpu()") from error
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
        raise ValueError("expected an array (N, ...) with one row a sequence, got a scalar")
    array = unmasked(array)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"expected numbers or bools, got dtype {array.dtype}; encode it first, e.g. as class indices")
    return Value.from_dense(array)


def _packed(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows without gaps; says so where that takes much more memory than the view did."""
    lies_in = sum((n - 1) * abs(step) for n, step in zip(rows.shape, rows.strides, strict=True)) + rows.itemsize
    if rows.nbytes > max(_WORTH_TELLING, 2 * lies_in):
        warnings.warn(
            f"rows of sequences of several samples are copied, as they are a view with strides {rows.strides}: "
            f"{rows.nbytes} bytes in place of the {lies_in} that they lie in",
            stacklevel=2,
        )
    return np.ascontiguousarray(rows)


def _from_list(items: Sequence[Any]) -> Value:
    if len(items) == 0:
        raise ValueError("expected at least one sequence: the shape of a sample cannot be told from none")
    if hasattr(items[0], "tocsr"):
        return Value.from_sequences(items, dtype=np.result_type(*{item.dtype for item in items}))
    arrays = [unmasked(item) for item in items]
    if any(array.dtype.kind not in "biufc" for array in arrays):
        kinds = ", ".join(sorted({str(array.dtype) for array in arrays}))
        raise TypeError(f"expected sequences of numbers or bools, got dtype {kinds}")
    if all(array.ndim == 0 for array in arrays):
        return _from_array(np.asarray(items))
    return Value.from_sequences(arrays)


def _cumulative_bytes(value: Value | LazyRows) -> Any:
    """A function from ordinals (n,) to the bytes of all rows before each of them."""
    if isinstance(value, LazyRows):
        return lambda ordinals: ordinals * value.row_bytes

    def before(ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = ordinals if value.one_sample_each else value.offsets[ordinals]
        if isinstance(value, SparseValue):
            return value.indptr[rows] * (4 + value.dtype.itemsize)
        return rows * (value.dtype.itemsize * int(np.prod(value.shape, dtype=np.int64)))

    return before


def _map_of(array: Any) -> Any:
    """The file mapped by NumPy or through `mmap` that an array is a view of; None if it is in memory."""
    while array is not None and not isinstance(array, (np.memmap, mmap.mmap)):
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return array
