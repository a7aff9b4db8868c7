"""Columns of files whose schemas differ: each stream has the narrowest type that holds the values of all files.

A file without a column, or with nulls for all of it, lacks its values. They are filled as the declaration says.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from feedline.data import Stream
from feedline.errors import SchemaError
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.formats.arrow import columns as arrow_columns
from feedline.feed.formats.arrow.column_paths import ColumnPath, field_at, path_of, value_paths
from feedline.feed.formats.arrow.columns import Column, Rows, Source, StreamChoice
from feedline.feed.formats.missing import lacking
from feedline.feed.formats.widening import filled_in, report, unfilled_error, widened


class United(NamedTuple):
    """Columns of files.

    Attributes:
        columns: columns by stream.
        lacking: for each file, the paths of the columns in use of which it has no values.
    """

    columns: dict[str, Column]
    lacking: list[frozenset[ColumnPath]]


def choose(sources: Sequence[Source], streams: StreamChoice, defines_size: str | None, *, union: bool) -> United:
    """Return the columns to read. See `columns.choose` for files that must have the same ones, without ``union``.

    Raises:
        SchemaError: see `columns.choose`. Or no type holds the values of all files, or some files lack values of a
            column, and its stream does not fill them.
    """
    if not union:
        return United(arrow_columns.choose(sources, streams, defines_size), [frozenset()] * len(sources))
    arrow_columns.check_names(streams)
    files = _Files(sources)
    names = list(files.kinds if streams is None else streams)
    columns: dict[str, Column] = {}
    left_out: list[str] = []
    for name in names:
        declared = streams[name] if isinstance(streams, Mapping) else None
        column = files.column(name, declared)
        if column is not None:
            columns[name] = column
        elif streams is None:
            left_out.append(files.shown(name))
        else:
            field = (declared and declared.field) or name
            first = files.kinds_at(files.path(field))[0]
            raise arrow_columns.unfit_error(first.source, field, first.field.type, name)
    if not columns:
        raise SchemaError(f"expected a column of numbers, bytes or text in {sources[0].path}, got none")
    if left_out:
        arrow_columns.warn_of_left_out(sources[0], left_out)
    files.check_filled(columns)
    files.report(columns)
    return United(arrow_columns.with_size(columns, defines_size), files.lacking(columns))


class _ColumnKind(NamedTuple):
    """A column as the first file of a kind has it."""

    source: Source
    field: Any


class _Files:
    """The columns of files.

    Attributes:
        kinds: by name, the columns of that name that differ in their type, in the order of the files.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        import pyarrow as pa

        self._sources = sources
        self._by_schema: dict[bytes, list[int]] = {}
        for i, source in enumerate(sources):
            self._by_schema.setdefault(source.schema.serialize().to_pybytes(), []).append(i)
        self.kinds: dict[str, list[_ColumnKind]] = {}
        known: set[tuple[Any, ...]] = set()
        for places in self._by_schema.values():
            source = sources[places[0]]
            names = set()
            for field in source.schema:
                if field.name in names:
                    raise arrow_columns.duplicate_error(source, field.name)
                if pa.types.is_null(field.type):
                    self.kinds.setdefault(field.name, [])
                    continue
                names.add(field.name)
                key = field.name, field.type, str(field.metadata)
                if key not in known:
                    known.add(key)
                    self.kinds.setdefault(field.name, []).append(_ColumnKind(source, field))

    def path(self, field: str) -> ColumnPath:
        """Return the way to the values of a column, or of a path."""
        return path_of(field, self.kinds, self._sources[0].path)

    def kinds_at(self, path: ColumnPath) -> list[_ColumnKind]:
        """Return the fields at a path that differ in their type, in the order of the files."""
        if not path.steps:
            return self.kinds.get(path.column, [])
        by_type: dict[Any, _ColumnKind] = {}
        for source in self._schemas():
            if _has(source, path):
                field = field_at(source.schema, path)
                by_type.setdefault(field.type, _ColumnKind(source, field))
        return list(by_type.values())

    def _schemas(self) -> list[Source]:
        """Return the first file of each schema."""
        return [self._sources[places[0]] for places in self._by_schema.values()]

    def column(self, name: str, declared: Stream | None) -> Column | None:
        """Return the column of a stream, or None if it cannot be a stream.

        Raises:
            SchemaError: no file has it, its types have nothing in common, or they do not fit the declaration.
        """
        field = (declared.field if declared is not None else None) or name
        path = self.path(field)
        kinds = self.kinds_at(path)
        if not kinds:
            if declared is None and field in self.kinds:
                return None
            raise SchemaError(
                f"expected values of a column {field!r} in one of {len(self._sources)} files from "
                f"{self._sources[0].path} on, which have {', '.join(map(repr, self._value_paths()))}"
            )
        parts: list[tuple[Source, Column]] = []
        for source, _ in kinds:
            with source.converting_errors(f"column {field!r}"):
                part = arrow_columns.column_at(source, path, field, declared)
            if part is None or not field:
                return None
            parts.append((source, part))
        source, merged = functools.reduce(functools.partial(_merge, name), parts)
        if declared is None:
            return merged
        if not declared.is_bytes and widened(merged.stream.dtype, declared.dtype) == declared.dtype:
            merged = merged._replace(stream=replace(merged.stream, dtype=declared.dtype))
        return arrow_columns.apply_declaration(source, name, merged, declared)

    def shown(self, name: str) -> str:
        """Return the name of a column, and its first type."""
        return f"{name!r} ({self.kinds[name][0].field.type if self.kinds[name] else 'null'})"

    def _value_paths(self) -> list[str]:
        return list(dict.fromkeys(path for source in self._schemas() for path in value_paths(source.schema)))

    def lacking(self, columns: Mapping[str, Column]) -> list[frozenset[ColumnPath]]:
        """Return for each file the paths of the columns in use of which it has no values."""
        used = frozenset(column.path for column in columns.values())
        lacking: list[frozenset[ColumnPath]] = [frozenset()] * len(self._sources)
        for source, places in zip(self._schemas(), self._by_schema.values(), strict=True):
            if absent := frozenset(path for path in used if not _has(source, path)):
                for i in places:
                    lacking[i] = absent
        return lacking

    def _lacking(self, path: ColumnPath) -> Iterator[int]:
        for source, places in zip(self._schemas(), self._by_schema.values(), strict=True):
            if not _has(source, path):
                yield from places

    def check_filled(self, columns: Mapping[str, Column]) -> None:
        """Check that columns that some files lack are filled.

        Raises:
            SchemaError: some are not.
        """
        for name, column in columns.items():
            i = next(self._lacking(column.path), None)
            if i is not None and column.filling is None:
                other = self.kinds_at(column.path)[0].source.path
                raise unfilled_error(name, column.stream, column.field, self._sources[i].path, other)

    def report(self, columns: Mapping[str, Column]) -> None:
        """Log which columns differ between files."""
        if len(self._by_schema) == 1:
            return
        changes = []
        for name, column in columns.items():
            types = [str(kind.field.type) for kind in self.kinds_at(column.path)]
            if len(set(types)) > 1:
                changes.append(f"`{name}` is {column.stream.dtype.name} for {', '.join(dict.fromkeys(types))}")
            if count := sum(1 for _ in self._lacking(column.path)):
                changes.append(filled_in(name, count, len(self._sources)))
        report(self._sources[0].path, changes)


def _has(source: Source, path: ColumnPath) -> bool:
    """Return whether a file has values at a path."""
    import pyarrow as pa

    field = field_at(source.schema, path)
    return field is not None and not pa.types.is_null(field.type)


def _merge(name: str, a: tuple[Source, Column], b: tuple[Source, Column]) -> tuple[Source, Column]:
    """Return the column that holds the values of two.

    Raises:
        SchemaError: there is none.
    """
    (source, first), (other, second) = a, b
    dtype = widened(first.stream.dtype, second.stream.dtype)
    same = (first.ragged, first.dims, first.json) == (second.ragged, second.dims, second.json)
    if dtype is None or not same or replace(first.stream, dtype=dtype) != replace(second.stream, dtype=dtype):
        raise SchemaError(
            f"expected values of column {first.field!r} (stream `{name}`) that one type holds exactly, got "
            f"{_shown(first)} in {source.path} and {_shown(second)} in {other.path}; write one of them again, or open "
            "them as two corpora"
        )
    bits = min(first.value_bits, second.value_bits)
    return source, first._replace(stream=replace(first.stream, dtype=dtype), value_bits=bits)


def _shown(column: Column) -> str:
    text = "" if column.json is None else f", the JSON text of {column.json}"
    return f"{'lists of ' if column.ragged else ''}{column.stream}{text}"


def lacking_rows(column: Column, count: int, memory_bytes: int) -> Rows:
    """Return the sequences of a file that lacks a column.

    Raises:
        TooLargeError: they take more than ``memory_bytes``.
    """
    assert column.filling is not None
    size = 0 if column.ragged else count * column.stream.size * max(1, column.stream.dtype.itemsize)
    if size > memory_bytes:
        raise TooLargeError(size)
    value, present = lacking(column.stream, count, column.filling, ragged=column.ragged)
    return Rows(value, None, present)
