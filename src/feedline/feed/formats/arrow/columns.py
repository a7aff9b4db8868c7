"""Columns of Arrow tables as streams: the stream that a column becomes by its type, and its values.

=================================  =============================================
column                             stream
=================================  =============================================
numbers, bools, also as            dense, shape ()
dictionaries
timestamps, dates, times,          dense int64, with a unit
durations
decimals                           dense float64, or int64 with a unit, if declared
binary, string (also large, view,  bytes, str
dictionary-encoded)
struct<bytes, path>                bytes, as Hugging Face stores images and audio
fixed-size list of these           dense, a dimension per level (`arrow.fixed_shape_tensor`: with its shape)
list of any of the above           the same, ragged
lists that have equal lengths      dense, if declared: `Stream((3, 224, 224))`, or of Hugging Face's Array2D to Array5D
list of struct<index, value>       sparse, if declared (or written from a store)
structs, lists of structs          their fields by path, see `column_paths`; declared as bytes: JSON text
=================================  =============================================
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Schema, Stream, Value
from feedline.data.chunk import LazyErrors
from feedline.data.schema import PRESENT
from feedline.data.value import BytesValue, DenseValue, SparseValue
from feedline.errors import DataError, SchemaError
from feedline.feed.byte_strings import TooLargeError, from_arrow, kind_of, nulls_of
from feedline.feed.formats.arrow.column_paths import (
    ColumnPath,
    field_at,
    is_list,
    locate,
    nested_paths,
    storage,
    value_paths,
)
from feedline.feed.formats.arrow.field_items import FieldItems
from feedline.feed.formats.arrow.json_columns import check_writable, is_nested, json_texts
from feedline.feed.formats.arrow.quantities import (
    as_integers,
    decimal_integers,
    decimal_numbers,
    quantity_of,
    stored_dtype,
    too_large,
)
from feedline.feed.formats.missing import (
    Filling,
    any_of_sample,
    fill,
    fill_rows,
    filling_of,
    mask_of,
    remedy,
    with_masks,
)
from feedline.feed.formats.store import stream_columns
from feedline.feed.formats.widening import WAY_OUT
from feedline.feed.joined_values import join_values
from feedline.feed.protocol import CHUNK_MEMORY, Ints, NullCount

Flags = NDArray[np.bool_]

UNREADABLE = {
    "dense": "expected numbers, got a null",
    "sparse": "expected entries with indices in range and no null",
    "str": "expected text, got a null",
    "bytes": "expected bytes, got a null",
}
_PICTURED = "of a struct with a path: the file that it names is not in the data"


class Column(NamedTuple):
    """How a column is read.

    Attributes:
        field: name of the column, or path to the value.
        stream: the stream that it becomes.
        ragged: whether its outermost lists are sequences.
        null_means: reason why it has nulls, if that is known.
        dims: lengths that the inner lists must have, outermost first, where their type does not fix them.
        filling: what becomes of nulls. None: their sequences cannot be read.
        value_bits: bits that a number takes in the file.
        path: the way to the values.
        json: Arrow type of values that become their JSON text. None: they are read as they are.
    """

    field: str
    stream: Stream
    ragged: bool
    dims: tuple[int, ...] = ()
    null_means: str = ""
    filling: Filling | None = None
    value_bits: int = 0
    path: ColumnPath = ColumnPath("")
    json: Any = None

    @property
    def unreadable(self) -> str:
        """The message for a sequence that cannot be read."""
        if self.stream.unit is not None and self.stream.unit.startswith("decimal"):
            return "expected decimals that int64 can count, and no null (float64 holds all, rounded)"
        if self.dims:
            return f"expected lists of {' x '.join(map(str, self.dims))} numbers, got others or a null"
        return f"{UNREADABLE[self.stream.kind]}{f' ({self.null_means})' if self.null_means else ''}"


class UnreadableRows:
    """The sequences of a chunk that cannot be read.

    Args:
        columns: columns by stream.
        count: number of sequences of the chunk.
        path: path of their file.
        first: index of the first sequence in the corpus, or of each sequence, int64 (count,).
    """

    def __init__(self, columns: Mapping[str, Column], count: int, path: str, first: int | Ints) -> None:
        self._columns, self._path, self._first = columns, path, first
        self._streams = list(columns)
        self._count = count
        self._at_fault: NDArray[np.int32] | None = None  # first unreadable stream of each sequence, or -1

    def mark(self, name: str, bad: Flags | None) -> None:
        """Mark the sequences in the mask ``bad``, whose stream ``name`` cannot be read. None marks no sequence."""
        if bad is not None and bad.any():
            if self._at_fault is None:
                self._at_fault = np.full(self._count, -1, np.int32)
            self._at_fault[bad & (self._at_fault < 0)] = self._streams.index(name)

    def errors(self) -> LazyErrors:
        """Return the errors of the sequences that cannot be read."""
        at_fault = self._at_fault
        rows = np.empty(0, np.intp) if at_fault is None else np.flatnonzero(at_fault >= 0)
        return LazyErrors(rows, self._error)

    def _error(self, i: int) -> DataError:
        assert self._at_fault is not None
        name = self._streams[self._at_fault[i]]
        column = self._columns[name]
        return DataError(
            _unreadable(column),
            path=self._path,
            sequence=self._first + i if isinstance(self._first, int) else int(self._first[i]),
            stream=name,
            hint=_ways_out(name, column) if column.filling is None else None,
        )


def _unreadable(column: Column) -> str:
    return f"{column.unreadable} in column {column.field!r}"


def _ways_out(name: str, column: Column) -> str:
    return f'{remedy(name, column.stream)}, or on_error="skip" to leave such sequences out'


def null_count(name: str, column: Column, count: int) -> NullCount:
    """Return the nulls of a stream, and what to do about them if they are not filled."""
    return NullCount(count, None if column.filling is not None else (_unreadable(column), _ways_out(name, column)))


class Source(NamedTuple):
    """A file with columns.

    Attributes:
        path: path of the file.
        schema: its Arrow schema.
        damage_error: function that returns the error for a message about the file, such as "footer cannot be read".
    """

    path: str
    schema: Any
    damage_error: Callable[[str], DataError]

    @contextlib.contextmanager
    def converting_errors(self, what: str) -> Iterator[None]:
        """Return a context in which errors of pyarrow, and of NumPy over its results, become a DataError about
        ``what``."""
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, EOFError, IndexError) as error:
            raise self.damage_error(f"{what} cannot be read: {error}") from error


StreamChoice = Sequence[str] | Mapping[str, Stream] | None
"""Names of columns, or declarations by stream name. With None, columns become streams by their types."""


# ---- which streams --------------------------------------------------------------------------------------


def choose(sources: Sequence[Source], streams: StreamChoice, defines_size: str | None) -> dict[str, Column]:
    """Return the columns to read, by stream name. Without ``streams``, these are all columns that can be streams.

    Warns of columns that cannot.

    Raises:
        SchemaError: a column is missing, cannot be a stream, differs from its declaration or between files, or no
            column can be a stream.
        DataError: a column has a damaged declaration.
        TypeError: ``streams`` is a string.
    """
    check_names(streams)
    by_stream = _choose_all(sources[0]) if streams is None else _choose_declared(sources[0], streams)
    for source in sources[1:]:
        _check_same_types(source, sources[0], by_stream)
    return with_size(by_stream, defines_size)


def check_names(streams: StreamChoice) -> None:
    """Check that names of columns are not a single string.

    Raises:
        TypeError: they are.
    """
    if isinstance(streams, str):
        raise TypeError(f"expected a list of column names, got the string {streams!r}; write [{streams!r}]")


def with_size(by_stream: dict[str, Column], defines_size: str | None) -> dict[str, Column]:
    """Return columns of which the stream ``defines_size`` defines the size of minibatches, unless it is None.

    Raises:
        SchemaError: there is no such stream.
    """
    if defines_size is None:
        return by_stream
    if defines_size not in by_stream:
        raise SchemaError(f"expected defines_size to be one of {', '.join(by_stream)}, got {defines_size!r}")
    return {
        name: column._replace(stream=replace(column.stream, defines_size=name == defines_size))
        for name, column in by_stream.items()
    }


def _choose_all(source: Source) -> dict[str, Column]:
    import pyarrow as pa

    by_stream: dict[str, Column] = {}
    left_out: list[str] = []
    for field in source.schema:
        with source.converting_errors(f"column {field.name!r}"):
            alone = source._replace(schema=pa.schema([field]))  # others may have its name
            column = column_at(alone, ColumnPath(field.name), field.name, None)
        if column is None or not field.name:
            left_out.append(f"{field.name!r} ({_shorten(field.type)})")
        elif len(source.schema.get_all_field_indices(field.name)) > 1:
            raise duplicate_error(source, field.name)
        else:
            by_stream[field.name] = column
    nested = nested_paths(source.schema)
    if not by_stream:
        within = f"\nDeclare values within columns by their paths: {_shorten(', '.join(nested), 400)}" if nested else ""
        raise SchemaError(
            f"expected a column of numbers, bytes or text in {source.path}, which has\n{source.schema}{within}"
        )
    if left_out:
        warn_of_left_out(source, left_out)
    return by_stream


def warn_of_left_out(source: Source, left_out: Sequence[str]) -> None:
    """Warn of columns that are not streams."""
    nested = _shorten(", ".join(nested_paths(source.schema)), 400)
    warnings.warn(
        f"columns that are not streams by themselves are not read from {source.path}: {', '.join(left_out)}. To "
        "silence this warning, pass the names of the streams that you want as `streams`. Lists of lists of equal "
        "lengths are dense if declared with their shape, such as fl.Stream((28, 28)), and lists of struct<index, "
        f"value> are sparse if declared so. {f'Within columns are, by path, {nested}. ' if nested else ''}Structs and "
        'lists are JSON text if declared as fl.Stream(dtype="bytes")',
        stacklevel=5,
    )


def _choose_declared(source: Source, streams: Sequence[str] | Mapping[str, Stream]) -> dict[str, Column]:
    by_stream: dict[str, Column] = {}
    for name in streams:
        declared = streams[name] if isinstance(streams, Mapping) else None
        field = (declared.field if declared is not None else None) or name
        path = locate(source.schema, field, source.path)
        with source.converting_errors(f"column {field!r}"):
            column = column_at(source, path, field, declared)
        if column is None:
            raise unfit_error(source, field, field_at(source.schema, path).type, name)
        if declared is not None:
            column = apply_declaration(source, name, column, declared)
        by_stream[name] = column
    return by_stream


def unfit_error(source: Source, field: str, kind: Any, name: str) -> SchemaError:
    """Return the error for values of a type that cannot be the stream ``name``."""
    within = [inner for inner in value_paths(source.schema) if inner.startswith(field) and inner != field]
    by_path = f"read the values within it by their paths ({_shorten(', '.join(within), 400)}), " if within else ""
    return SchemaError(
        f"expected numbers, bytes or text in column {field!r} of {source.path}, got {_shorten(kind)}; "
        f'{by_path}declare its JSON text as {name}=fl.Stream(dtype="bytes"), the shape of lists of equal lengths '
        f"as {name}=fl.Stream((28, 28)), or a list of struct<index, value> as "
        f"{name}=fl.Stream(shape=..., sparse=True)"
    )


def column_at(source: Source, path: ColumnPath, field: str, declared: Stream | None) -> Column | None:
    """Return the column of the values at a path, or None if they cannot be a stream.

    Raises:
        SchemaError: they cannot be written as JSON, as declared.
    """
    import pyarrow as pa

    kind = field_at(source.schema, path)
    value = kind.type
    if declared is not None and declared.kind == "bytes" and is_nested(value) and not _has_bytes(value):
        check_writable(value, field, [path.column, *path.steps], source.path)
        return Column(field, Stream(dtype="bytes"), path.in_list, path=path, json=value)
    if path.in_list:
        value = pa.list_(value)
    column = _infer(source, pa.field(field, value, metadata=kind.metadata), declared)
    return None if column is None else column._replace(path=path)


def _has_bytes(kind: Any) -> bool:
    """Return whether a nested type is of byte strings, or of structs with bytes and a path, which are read as such."""
    kind = storage(kind)
    while is_list(kind) and _string_kind(kind) is None:
        kind = storage(kind.value_type)
    return _string_kind(kind) == "bytes"


def _infer(source: Source, field: Any, declared: Stream | None = None) -> Column | None:
    """Return the stream of a column by its type. A sparse stream needs a declaration, here or in the metadata."""
    import pyarrow as pa

    note = (field.metadata or {}).get(stream_columns.METADATA_KEY)
    noted = None
    if note is not None:
        try:
            noted = stream_columns.parse(json.loads(note))
        except (ValueError, RecursionError) as error:
            raise DataError(f"column {field.name!r} has a damaged declaration: {error}", path=source.path) from error
    kind, ragged = storage(field.type), False
    strings = _string_kind(kind)
    if strings is None and is_list(kind):
        strings, ragged = _string_kind(kind.value_type), True
    if strings is not None:
        if noted is not None and (noted.kind != strings):
            raise _metadata_error(source, field, noted)
        item = storage(kind.value_type) if ragged else kind
        null_means = _PICTURED if pa.types.is_struct(item) else ""
        return Column(field.name, noted or Stream(dtype=strings), ragged, null_means=null_means)
    ragged, declared_dtype = False, None if declared is None else declared.dtype
    dense = _dense_stream(field.type, declared_dtype)
    if dense is None and is_list(kind):
        if (column := _equal_lists_column(field, kind, declared)) is not None:
            return column
        inner = storage(kind.value_type)
        dense, ragged = _dense_stream(inner, declared_dtype), True
        if dense is None:
            ragged = is_list(inner)
            entry = inner.value_type if ragged else inner
            stream = declared if declared is not None else noted
            if not (pa.types.is_struct(entry) and entry.num_fields == 2 and stream is not None and stream.sparse):
                return None
            value = number_type(entry.field(1).type)
            if not (
                pa.types.is_integer(entry.field(0).type) and (pa.types.is_float32(value) or pa.types.is_float64(value))
            ):
                return None
            dtype = value.to_pandas_dtype()
            return Column(field.name, Stream(stream.shape, dtype, True, defines_size=stream.defines_size), ragged)
    if dense is None:
        return None
    if noted is not None:
        stored = np.dtype(np.uint8) if noted.dtype == np.bool_ else noted.dtype
        if noted.sparse or noted.size != dense.size or stored != dense.dtype:
            raise _metadata_error(source, field, noted)
        dense = noted
    return Column(field.name, dense, ragged, value_bits=_value_bits(kind))


def _value_bits(kind: Any) -> int:
    """Return the bits that a number takes in columns of a type: numbers, or fixed-size lists of these."""
    import pyarrow as pa

    while pa.types.is_fixed_size_list(kind) or is_list(kind):
        kind = storage(kind.value_type)
    return int(number_type(kind).bit_width)


def _equal_lists_column(field: Any, kind: Any, declared: Stream | None) -> Column | None:
    """Return the column of lists that are declared to have equal lengths, nested or not, or None if they are not."""
    levels, leaf = 0, kind
    while is_list(leaf):
        levels, leaf = levels + 1, storage(leaf.value_type)
    dense = _dense_stream(leaf, None if declared is None else declared.dtype)
    if dense is None or (declared is not None and (declared.sparse or declared.is_bytes)):
        return None
    fixed = dense.shape
    shape = declared.shape if declared is not None else _shape_in_metadata(field)
    # A shape of the size of an item declares sequences of items.
    if shape is None or (levels == 1 and None not in shape and math.prod(shape) == math.prod(fixed)):
        return None
    if len(shape) == levels + len(fixed) and (levels > 1 or shape[1:] == fixed):
        dims, ragged = shape[:levels], shape[0] is None
    elif len(shape) == levels - 1 + len(fixed) and levels > 1:
        dims, ragged = (None, *shape[: levels - 1]), True
    elif levels == 1 and shape and None not in shape:
        # A flat list of as many numbers as the declared shape has.
        width = max(1, math.prod(fixed))
        if math.prod(shape) % width:
            return None
        return Column(field.name, replace(dense, shape=shape), False, (math.prod(shape) // width,))
    else:
        return None
    lengths = tuple(dim for dim in dims if dim is not None)
    if len(lengths) + ragged != levels:
        return None
    return Column(field.name, replace(dense, shape=(*lengths, *fixed)), ragged, lengths)


def _shape_in_metadata(field: Any) -> tuple[Any, ...] | None:
    """Return the shape of Hugging Face's types Array2D to Array5D. Its first dimension may be None."""
    shape = getattr(field.type, "shape", None)  # of a type that `datasets` has registered
    metadata = field.metadata or {}
    if metadata.get(b"ARROW:extension:name", b"").startswith(b"datasets.features.features.Array"):
        try:
            shape = json.loads(metadata[b"ARROW:extension:metadata"])[0]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return None
    if not isinstance(shape, (list, tuple)) or not shape:
        return None
    if any(type(dim) is not int or not 0 <= dim < 2**31 for dim in shape[1:]):
        return None
    first = shape[0]
    return tuple(shape) if first is None or (type(first) is int and 0 <= first < 2**31) else None


def _metadata_error(source: Source, field: Any, noted: Stream) -> DataError:
    return DataError(f"metadata declares column {field.name!r} of type {field.type} as {noted}", path=source.path)


def _string_kind(kind: Any) -> str | None:
    """Return ``"bytes"`` or ``"str"`` for a column of strings, or of structs with bytes and a path, else None."""
    import pyarrow as pa

    kind = storage(kind)
    if pa.types.is_struct(kind):
        names = {kind.field(i).name for i in range(kind.num_fields)}
        return "bytes" if names == {"bytes", "path"} and kind_of(kind.field("bytes").type) == "bytes" else None
    return kind_of(kind)


def duplicate_error(source: Source, field: str) -> SchemaError:
    """Return the error for a file with several columns of a name."""
    return SchemaError(f"expected a single column {field!r} in {source.path}, got several of that name")


def _dense_stream(kind: Any, dtype: np.dtype[Any] | None = None) -> Stream | None:
    """Return the stream of numbers, of fixed-size lists of these, or of Arrow's tensors with axes in order, else None.

    Args:
        kind: the type.
        dtype: the declared dtype, if there is one.
    """
    import pyarrow as pa

    shape: list[int] = []
    leaf = storage(kind)
    while pa.types.is_fixed_size_list(leaf):
        shape.append(leaf.list_size)
        leaf = leaf.value_type
    quantity = quantity_of(number_type(leaf), dtype)
    if quantity is None:
        return None
    if getattr(kind, "extension_name", None) == "arrow.fixed_shape_tensor":
        if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
            return None
        shape = kind.shape
    return Stream(tuple(shape), quantity.dtype, unit=quantity.unit)


def number_type(kind: Any) -> Any:
    """Return the type of the values of a dictionary, or the type itself."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def apply_declaration(source: Source, name: str, column: Column, declared: Stream) -> Column:
    """Return the column of a declared stream.

    Raises:
        SchemaError: the column is another one than declared.
    """
    stream = column.stream
    unit = declared.unit if stream.unit is None else stream.unit
    same_unit = declared.unit in (None, unit)
    if (
        declared.sparse != stream.sparse
        or declared.dtype != stream.dtype
        or declared.size != stream.size
        or not same_unit
    ):
        where = f"column {column.field!r} of {source.path}"
        raise SchemaError(f"expected {declared} for stream `{name}`, got {stream} in {where}")
    return column._replace(stream=replace(declared.delivered(), unit=unit), filling=filling_of(declared))


def ragged_of(columns: Mapping[str, Column]) -> set[str]:
    """Return the names of ragged streams, and of their masks."""
    ragged = {name for name, column in columns.items() if column.ragged}
    return ragged | {name + PRESENT for name in ragged}


def used_once(columns: Mapping[str, Column]) -> set[str]:
    """Return the names of the columns that a single stream is read from."""
    counts = Counter(column.path.column for column in columns.values())
    return {name for name, count in counts.items() if count == 1}


def fillings_of(columns: Mapping[str, Column]) -> dict[str, Filling]:
    """Return what becomes of nulls, by stream."""
    return {name: column.filling for name, column in columns.items() if column.filling is not None}


def schema_of(columns: Mapping[str, Column]) -> Schema:
    """Return the streams of columns, and the masks that they declare."""
    return with_masks({name: column.stream for name, column in columns.items()}, fillings_of(columns))


def _shorten(shown: Any, size: int = 80) -> str:
    text = str(shown)
    return text if len(text) <= size else f"{text[: size - 3]}..."


def _check_same_types(source: Source, first: Source, by_stream: Mapping[str, Column]) -> None:
    """Check that two files have the same types of columns."""
    for name, column in by_stream.items():
        kind, first_kind = field_at(source.schema, column.path), field_at(first.schema, column.path).type
        if kind is None or kind.type != first_kind:
            raise SchemaError(
                f"expected the same type of column {column.field!r} (stream `{name}`) in all files, got {first_kind} "
                f"in {first.path} and {'none' if kind is None else kind.type} in {source.path}; {WAY_OUT}"
            )


# ---- values of Arrow's arrays ---------------------------------------------------------------------------


class Rows(NamedTuple):
    """The sequences of a column.

    Attributes:
        value: their samples.
        bad: mask of the sequences that cannot be read, or None if all can be.
        present: bool, one a sample, for a column with a mask, else None.
    """

    value: Value
    bad: Flags | None
    present: Value | None

    def into(self, values: dict[str, Value], name: str) -> None:
        """Add the samples and their mask to the values of a chunk."""
        values[name] = self.value
        if self.present is not None:
            values[name + PRESENT] = self.present


def decode(array: Any, column: Column, memory_bytes: int = CHUNK_MEMORY, *, changeable: bool = False) -> Rows:
    """Return the rows of a chunked array. If it is ``changeable``, nulls are filled in its own memory.

    Raises:
        TooLargeError: they take more than ``memory_bytes``.
    """
    pieces: list[Rows] = []
    taken_bytes = 0
    for piece in array.chunks:
        try:
            items = ArrowItems(piece, memory_bytes - taken_bytes, changeable=changeable)
            pieces.append(value_of(items, column, memory_bytes - taken_bytes))
        except TooLargeError as error:
            raise TooLargeError(error.args[0] + taken_bytes) from None
        taken_bytes += pieces[-1].value.nbytes
    bad = [np.zeros(value.num_sequences, np.bool_) if bad is None else bad for value, bad, _ in pieces]
    masks = [present for _, _, present in pieces if present is not None]
    value = join_values([piece.value for piece in pieces])
    return Rows(value, np.concatenate(bad), join_values(masks) if masks else None)


class ArrowItems:
    """The `FieldItems` of one of Arrow's arrays.

    Args:
        array: the array.
        memory_bytes: bytes that decoding it may take.
        changeable: whether nothing else refers to its memory.
    """

    mapped = False

    def __init__(self, array: Any, memory_bytes: int, *, changeable: bool = False) -> None:
        self._array, self._memory_bytes = getattr(array, "storage", array), memory_bytes
        self._changeable = changeable

    @property
    def has_fields(self) -> bool:
        """See `FieldItems`."""
        return bool(self._array.type.num_fields)

    def __len__(self) -> int:
        return len(self._array)

    def _with(self, array: Any) -> ArrowItems:
        return ArrowItems(array, self._memory_bytes, changeable=self._changeable)

    def nulls(self) -> Flags:
        """See `FieldItems.nulls`."""
        return nulls_of(self._array)

    def lists(self) -> tuple[Ints, ArrowItems]:
        """See `FieldItems.lists`."""
        if (fixed := self.fixed_size_lists()) is not None:
            return np.arange(len(self) + 1, dtype=np.int64) * fixed[0], fixed[1]
        if hasattr(self._array, "sizes"):
            return self._list_views()
        bounds = self._array.offsets.to_numpy().astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        return bounds - first, self._with(self._array.values.slice(first, last - first))

    def _list_views(self) -> tuple[Ints, ArrowItems]:
        """Return lists that may lie in any order and overlap."""
        starts, sizes = (part.to_numpy().astype(np.int64) for part in (self._array.offsets, self._array.sizes))
        sizes = np.where(self.nulls(), 0, sizes)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        values, some = self._array.values, sizes > 0
        first = int(starts[some][0]) if some.any() else 0
        if (starts[some] - first == bounds[:-1][some]).all():  # in order, without gaps
            return bounds, self._with(values.slice(first, int(bounds[-1])))
        # An item is copied as often as lists overlap.
        deepest = int(_overlap(starts[some], (starts + sizes)[some]).max(initial=0))
        size = max(int(bounds[-1]) * 8, deepest * values.nbytes)
        if size > self._memory_bytes:
            raise TooLargeError(size)
        at = np.repeat(starts - bounds[:-1], sizes) + np.arange(bounds[-1])
        return bounds, self._with(values.cast(_without_views(values.type)).take(at))

    def fixed_size_lists(self) -> tuple[int, ArrowItems] | None:
        """See `FieldItems.fixed_size_lists`."""
        size = getattr(self._array.type, "list_size", None)
        if size is None:
            return None
        # `values` is the child without the slice, and `flatten` drops nulls: neither keeps rows in place.
        return size, self._with(self._array.values.slice(self._array.offset * size, len(self._array) * size))

    def field(self, which: int | str) -> ArrowItems:
        """See `FieldItems.field`."""
        return self._with(self._array.field(which))

    def strings(self) -> tuple[Ints, NDArray[np.uint8]]:
        """See `FieldItems.strings`."""
        strings = from_arrow(self._array, self._memory_bytes)
        return strings.bounds, strings.data

    def numbers(self, dtype: np.dtype[Any] | None) -> NDArray[Any]:
        """See `FieldItems.numbers`."""
        numbers = _numbers(self._array, self._memory_bytes, dtype)
        return numbers if dtype is None else numbers.astype(dtype, copy=False)  # stores hold bools as bytes

    def too_large(self, dtype: np.dtype[Any]) -> Flags | None:
        """See `FieldItems.too_large`."""
        array = _without_dictionary(self._array, self._memory_bytes)
        return too_large(decimal_integers(array)) if holds_less(dtype, array.type) else None

    def to_memory(self, array: NDArray[Any]) -> NDArray[Any]:
        """See `FieldItems.to_memory`."""
        return array

    def changeable(self, numbers: NDArray[Any]) -> bool:
        """See `FieldItems.changeable`. Arrow says whether it has allocated the memory."""
        return self._changeable and numbers.flags.writeable and numbers.flags.c_contiguous


def value_of(items: FieldItems, column: Column, memory_bytes: int) -> Rows:
    """Return the sequences of a column.

    Raises:
        ValueError: buffers contradict each other.
        TooLargeError: they take more than ``memory_bytes``.
        DataError: a mapped file was truncated, or its disk fails.
    """
    items = at_path(items, column.path.steps)
    lost: Flags | None = None  # lists that are null
    offsets: Ints | None = None
    if column.ragged:
        lost = items.nulls()
        offsets, items = items.lists()
    value: Value
    if column.json is not None:
        value, bad, missing = _json_rows(items, column, offsets, memory_bytes)
    elif column.stream.is_bytes:
        value, bad, missing = _string_rows(items, column.stream, offsets)
    elif column.stream.sparse:
        value, bad, missing = _sparse_rows(items, column.stream, offsets)
    else:
        value, bad, missing = _dense_rows(items, column, offsets, memory_bytes)
    present = None
    if column.filling is None:
        bad = _union(bad, None if missing is None else any_of_sample(missing))
    else:
        if lost is not None and offsets is not None and lost.any():
            value, offsets, bad, missing = _without_lists(value, lost, bad, missing)
        if missing is not None and isinstance(value, DenseValue) and items.changeable(value.rows):
            fill_rows(value.rows, missing, column.filling)
        else:
            value = fill(value, missing, column.filling)
        present = mask_of(value, missing) if column.filling.mask else None
        lost = None
    if bad is not None and offsets is not None:
        bad = any_of(bad, offsets)
    return Rows(value, _union(lost, bad), present)


def _without_lists(
    value: Value, lost: Flags, bad: Flags | None, missing: Flags | None
) -> tuple[Value, Ints, Flags | None, Flags | None]:
    """Return samples without those of the lists that are null, whose content is undefined, and the masks of samples."""
    lengths = np.where(lost, 0, value.lengths)
    keep = np.flatnonzero(~np.repeat(lost, value.lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if len(keep) < value.num_samples:
        bad, missing = (None if flags is None else flags[keep] for flags in (bad, missing))
    if isinstance(value, DenseValue):
        rows = DenseValue(value.rows).select(keep).rows
        return DenseValue(rows, offsets), offsets, bad, missing
    if isinstance(value, SparseValue):
        some = SparseValue(value.indptr, value.indices, value.values, value.shape[0]).select(keep)
        return SparseValue(some.indptr, some.indices, some.values, some.shape[0], offsets), offsets, bad, missing
    assert isinstance(value, BytesValue)
    strings = BytesValue(value.bounds, value.data, None, text=value.text).select(keep)
    return BytesValue(strings.bounds, strings.data, offsets, text=value.text), offsets, bad, missing


def lengths_of(items: FieldItems, column: Column) -> Ints:
    """Return the number of samples of each sequence of a ragged column.

    Raises:
        As `value_of`.
    """
    items = at_path(items, column.path.steps)
    lengths: Ints = np.diff(items.lists()[0])
    lost = None if column.filling is None else items.nulls()
    return lengths if lost is None else np.where(lost, 0, lengths)


def at_path(items: FieldItems, steps: tuple[str | None, ...]) -> FieldItems:
    """Return the items that ``steps`` lead to from some items, or the lists of them. Null if any item on the way is."""
    if not steps:
        return items
    missing: Flags | None = None
    for at, step in enumerate(steps):
        if step is None:
            return _PathItems(items, missing, steps[at + 1 :])
        missing = _union(missing, items.nulls())
        items = items.field(step)
    return _PathItems(items, missing)


class _PathItems:
    """Items on a path.

    Args:
        items: the items.
        missing: mask of the items that are null as structs around them are, or None.
        steps: what follows within the lists, if they are lists.
    """

    def __init__(self, items: FieldItems, missing: Flags | None, steps: tuple[str | None, ...] = ()) -> None:
        self._items, self._missing, self._steps = items, missing, steps
        self.mapped, self.has_fields = items.mapped, items.has_fields
        self.fixed_size_lists, self.field = items.fixed_size_lists, items.field
        self.strings, self.numbers, self.to_memory = items.strings, items.numbers, items.to_memory
        self.too_large, self.changeable = items.too_large, items.changeable

    def __len__(self) -> int:
        return len(self._items)

    def nulls(self) -> Flags | None:
        """See `FieldItems.nulls`."""
        return _union(self._missing, self._items.nulls())

    def lists(self) -> tuple[Ints, FieldItems]:
        """See `FieldItems.lists`."""
        bounds, items = self._items.lists()
        return bounds, at_path(items, self._steps)


def _overlap(begins: Ints, ends: Ints) -> Ints:
    """Return how many ranges are open after each begin or end of one."""
    at = np.concatenate([ends, begins])  # at the same place, a range ends before another one begins
    change = np.repeat([-1, 1], len(begins))
    return np.cumsum(change[np.argsort(at, kind="stable")])


def _without_views(kind: Any) -> Any:
    """Return a type with plain strings in place of views of strings, of which Arrow takes no items."""
    import pyarrow as pa

    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_views(field.type)) for field in fields])
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind


def _json_rows(
    items: FieldItems, column: Column, offsets: Ints | None, memory_bytes: int
) -> tuple[BytesValue, Flags | None, Flags | None]:
    bounds, data = json_texts(items, column.json, memory_bytes)
    return BytesValue(bounds, data, offsets, text=False), None, items.nulls()


def _string_rows(
    items: FieldItems, stream: Stream, offsets: Ints | None
) -> tuple[BytesValue, Flags | None, Flags | None]:
    missing = items.nulls()
    if items.has_fields:
        items = items.field("bytes")
        missing = _union(missing, items.nulls())
    bounds, data = items.strings()
    return BytesValue(bounds, data, offsets, text=stream.is_text), None, missing


def _sparse_rows(
    items: FieldItems, stream: Stream, offsets: Ints | None
) -> tuple[SparseValue, Flags | None, Flags | None]:
    missing = items.nulls()
    indptr, entries = items.lists()
    index, values = entries.field(0), entries.field(1)
    wrong = _union(entries.nulls(), _union(index.nulls(), values.nulls()))
    numbers = index.numbers(None)
    if numbers.dtype != np.int32 or not index.mapped:  # indices in a file are checked when they are copied
        wide = index.to_memory(numbers)
        outside: Flags = np.asarray((wide < 0) | (wide >= stream.size))
        wrong = _union(wrong, outside)
        numbers = np.where(outside, 0, wide).astype(np.int32)
    data = values.numbers(stream.dtype)
    bad = None
    if wrong is not None:
        # The number in the place of a null is undefined.
        numbers = np.where(wrong, 0, index.to_memory(numbers)).astype(np.int32)
        bad = any_of(wrong, indptr)
    return SparseValue(indptr, numbers, data, stream.size, offsets), bad, missing


def _dense_rows(
    items: FieldItems, column: Column, offsets: Ints | None, memory_bytes: int
) -> tuple[DenseValue, Flags | None, Flags | None]:
    """Return rows, the mask of those that cannot be read, and the mask of missing values, (rows, values of a row)."""
    stream, count = column.stream, len(items)
    levels: list[tuple[Ints, Flags]] = []
    for _ in column.dims:
        nulls, length = items.nulls(), len(items)
        bounds, items = items.lists()
        levels.append((bounds, np.zeros(length, np.bool_) if nulls is None else nulls))
    inner, width, missing = len(items), 1, _column(items.nulls())
    while (fixed := items.fixed_size_lists()) is not None:
        size, items = fixed
        width *= size
        nulls = items.nulls()
        missing = _union(
            None if missing is None else np.repeat(missing, size, axis=1),
            None if nulls is None else nulls.reshape(inner, width),
        )
    rows, outside = items.numbers(stream.dtype), items.too_large(stream.dtype)
    bad: Flags | None = None if outside is None else np.asarray(outside.reshape(inner, width).any(axis=1))
    if levels:
        rows, bad, missing = _listed_rows(
            rows.reshape(inner, width), bad, missing, levels, column=column, items=items, memory_bytes=memory_bytes
        )
    return DenseValue(rows.reshape(count, *stream.shape), offsets), bad, missing


def _listed_rows(
    rows: NDArray[Any],
    bad_items: Flags | None,
    missing: Flags | None,
    levels: Sequence[tuple[Ints, Flags]],
    *,
    column: Column,
    items: FieldItems,
    memory_bytes: int,
) -> tuple[NDArray[Any], Flags, Flags | None]:
    """Return rows of lists that should have equal lengths, as `_dense_rows` does."""
    fit = functools.partial(
        equal_lists_rows, levels=levels, dims=column.dims, memory_bytes=memory_bytes, to_memory=items.to_memory
    )
    if bad_items is None:
        bad_items = np.zeros(len(rows), np.bool_)
    if column.filling is None:
        values, bad = fit(rows, bad_items if missing is None else bad_items | any_of_sample(missing))
        return values, bad, None
    values, bad = fit(rows, bad_items)
    lost = levels[0][1]
    of_rows = np.zeros(values.shape, np.bool_) if missing is None else np.array(fit(missing, bad_items)[0])
    of_rows[lost] = True
    return values, bad & ~lost, of_rows


def _column(flags: Flags | None) -> Flags | None:
    return None if flags is None else flags[:, None]


def _union(a: Flags | None, b: Flags | None) -> Flags | None:
    return b if a is None else a if b is None else a | b


def equal_lists_rows(
    items: NDArray[Any],
    bad_items: Flags,
    levels: Sequence[tuple[Ints, Flags]],
    dims: Sequence[int],
    *,
    memory_bytes: int,
    to_memory: Callable[[NDArray[Any]], NDArray[Any]],
) -> tuple[NDArray[Any], Flags]:
    """Return rows of lists that should have equal lengths: a view if all have them, else a copy with zeros.

    Args:
        items: the items of the innermost lists, (n, width).
        bad_items: mask of the items that cannot be read, (n,).
        levels: bounds of the lists, outermost first, and the mask of the null lists. Bounds ascend and fit.
        dims: lengths of the lists.
        memory_bytes: bytes that a copy may take.
        to_memory: function that copies items that are mapped.

    Returns:
        The rows (number of outermost lists, values of a row), and the mask of the rows that cannot be read.

    Raises:
        TooLargeError: the copy would take more than ``memory_bytes``.
    """
    good = ~bad_items
    for (bounds, nulls), dim in reversed(list(zip(levels, dims, strict=True))):
        good = (np.diff(bounds) == dim) & ~nulls & ~any_of(~good, bounds)
    count, per_row = len(good), math.prod(dims)
    starts = levels[0][0][:-1]
    for bounds, _ in levels[1:]:
        starts = bounds[starts]
    width = items.shape[1] * per_row
    if good.all() and count:
        first = int(starts[0])
        return items[first : first + count * per_row].reshape(count, width), ~good
    if not good.any():
        return np.broadcast_to(np.zeros((), items.dtype), (count, width)), ~good
    size = count * width * items.dtype.itemsize
    if size > memory_bytes:
        raise TooLargeError(size)
    rows = np.zeros((count, per_row, items.shape[1]), items.dtype)
    rows[good] = to_memory(items)[starts[good][:, None] + np.arange(per_row)]
    return rows.reshape(count, width), ~good


def any_of(flags: Flags, bounds: Ints) -> Flags:
    """Return for each range of flags whether any of them is set."""
    if not flags.any():
        return np.zeros(len(bounds) - 1, np.bool_)
    before = np.concatenate([[0], np.cumsum(flags)])
    any_set: Flags = before[bounds[1:]] > before[bounds[:-1]]
    return any_set


def _numbers(array: Any, memory_bytes: int, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    import pyarrow as pa

    array = _without_dictionary(array, memory_bytes)
    if pa.types.is_decimal(array.type):
        return decimal_numbers(decimal_integers(array), array.type.scale, dtype)
    array = as_integers(array)
    if array.null_count and not pa.types.is_boolean(array.type):
        stored = stored_dtype(array.type)
        if (buffer := array.buffers()[1]) is not None:
            return np.frombuffer(buffer, stored, len(array), array.offset * stored.itemsize)
    if array.null_count:
        zero = pa.scalar(0, pa.int64()).cast(array.type) if not pa.types.is_float16(array.type) else np.float16(0)
        array = array.fill_null(zero)
    numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return numbers


def _without_dictionary(array: Any, memory_bytes: int) -> Any:
    """Return an array with the values of its dictionary instead of their indices.

    Raises:
        TooLargeError: they take more than ``memory_bytes``.
    """
    if not hasattr(array, "dictionary"):
        return array
    size = len(array) * max(1, array.dictionary.type.bit_width // 8)
    if size > memory_bytes:  # may be many times the size of the indices
        raise TooLargeError(size)
    return array.dictionary_decode()


def holds_less(dtype: np.dtype[Any], kind: Any) -> bool:
    """Return whether numbers of a type may be too large for a dtype: decimals for int64."""
    import pyarrow as pa

    return dtype == np.int64 and pa.types.is_decimal(kind)
