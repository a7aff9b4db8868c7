"""JSON Lines: a `Deserializer` for files with a JSON object per line, each a sequence.

Guarantees and cost are as for `rows`. Files may be compressed, see `files.compressed_text`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feedline import _native
from feedline.data import Stream
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike
from feedline.feed.formats.hive_folders import warn_of_unread_columns
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_file import UNPACK_BYTES, IndexedFile, packing_of_text
from feedline.feed.formats.indexed.rows import (
    CHUNK_TEXT,
    MAX_ROW,
    RowsDeserializer,
    excerpt,
    head_text,
    index_error,
)
from feedline.feed.formats.indexed.value_paths import Steps, escape_key, join_steps, steps_of
from feedline.feed.formats.widening import SchemaRule, is_union, report
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, declared_streams

_FIRST_ROWS = 100
_LEAST_ROWS = 10  # of each of many files
_MAX_NESTED = 16
_KINDS = {"0": "a number", "i": "an integer", "t": "true or false", '"': "a string", "[": "a list", "{": "an object"}

_log = logging.getLogger("feedline")


class JSONLinesDeserializer(RowsDeserializer):
    """Rows of JSON Lines files (``.jsonl``, ``.ndjson``), also in ``.gz`` and ``.zst``. Each object is a sequence.

    A value nested as deep as its stream's shape is one sample: a number for ``fl.Stream(())``, a list of four for
    ``fl.Stream(4)``. Nested one level deeper it is a list of samples, of any length. Strings are samples of
    ``dtype="str"``. ``dtype="bytes"`` takes any value as its JSON text, for a transform to decode.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`, also as keyword arguments. ``field`` is the path of keys to the value,
            ``"meta.score"``, by default the stream's name. A dot within a key is written ``\\.``. After a key, ``[]``
            leads to the items of its list: ``"messages[].content"`` is a sample of each object. Other keys are
            skipped. By default streams are inferred from the first 100 rows, see `infer_json_streams`.
        sequences: names of the streams with a list of samples in a row, beside those with ``[]`` in their path. By
            default these are the streams whose values are lists of samples in one of the first 100 rows.
        chunk_size: bytes of text per chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the text of a chunk, and the decoded chunk, may take.
        unpack: bytes of disk that the text of a file may take in the cache, if it is a single large frame of Zstandard,
            which can only be read from its beginning.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        schema: ``"union"`` infers streams from the first rows of all files, 100 in all and at least 10 of each.
        stream_kwargs: more streams.

    Raises:
        SchemaError: two streams read the same value, or JSON cannot fill a stream.
        DataError: a file is missing, empty or damaged, its first rows show no streams, or the index cannot be written.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Stream] | None = None,
        *,
        sequences: Sequence[str] | None = None,
        chunk_size: int = CHUNK_TEXT,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        unpack: int = UNPACK_BYTES,
        progress: Progress = None,
        schema: SchemaRule = "strict",
        **stream_kwargs: Stream,
    ) -> None:
        super().__init__(path, chunk_size=chunk_size, cache=cache, memory_bytes=memory, unpack=unpack, schema=schema)
        paths = self._paths
        declared = declared_streams(streams, stream_kwargs)
        shown: set[str] = set()
        self._inferred = not declared and not is_union(schema)
        rows: list[dict[str, Any]] = []
        if not declared or sequences is None:
            rows = _distinct_rows(paths, reports=not declared) if is_union(schema) else first_rows(paths[0])
        if not declared:
            declared, shown = _infer_streams(rows, paths[0])
            warn_of_unread_columns(paths, path, self.name, {key for row in rows for key in row})
        self._take_streams(declared)
        keys = {name: steps_of(stream.field or name) for name, stream in declared.items()}
        _check_paths(keys)
        if sequences is None:
            shown |= {name for name, stream in declared.items() if _holds_lists(rows, keys[name], stream)}
        elif unknown := set(sequences) - declared.keys():
            raise SchemaError(f"expected names of streams in `sequences`, got {', '.join(sorted(unknown))}")
        of_items = {name for name, path in keys.items() if None in path}
        self._ragged = frozenset(of_items.union(shown if sequences is None else sequences))
        fields = self._fields("JSON")
        routes = [[None if key is None else key.encode() for key in path] for path in keys.values()]
        self._parser = _native.JsonParser(fields, routes, memory)
        size_at = self._streams.size_at
        # Only lists of samples make the index depend on the declarations.
        counter = _native.JsonParser(fields, routes, CHUNK_MEMORY) if self._ragged else None
        counted: Any = [[list(keys.values()), fields, size_at]] if self._ragged else []
        kind = IndexKind(
            self._chunk_size,
            ["jsonl", *counted],
            lambda: _native.RowIndexer.json(counter, size_at, MAX_ROW),
            index_error,
            packing=packing_of_text,
        )
        self._identity = f"jsonl {list(keys.values())} {sorted(self._ragged)};"
        self._arguments["sequences"] = sorted(self._ragged)
        self._index(kind, progress)

    def _describe(
        self, file: IndexedFile, record: Any, code: str, stream: str | None, *, shown: str, byte: bytes
    ) -> tuple[str, str | None]:
        what, hint = self._describe_row(record, code, stream, shown, byte)
        if stream is not None and self._inferred and file is not self._files[0]:
            other = f'streams are those of {self._files[0].source}: schema="union" infers them from all files'
            hint = other if hint is None else f"{hint}; {other}"
        return what, hint

    def _describe_row(
        self, record: Any, code: str, stream: str | None, shown: str, byte: bytes
    ) -> tuple[str, str | None]:
        expected, got = int(record["expected"]), int(record["got"])
        where = "" if stream is None else f" for stream `{stream}`"
        actual = f"got `{shown}`" if shown else "got the end of the line"
        kind = _KINDS.get(chr(expected), "") if 0 <= expected < 128 else ""
        if code == "not_an_object":
            return f"expected a JSON object, {actual}", None
        if code == "missing":
            field = self._streams[stream or ""].field or stream
            return f"expected the key `{field}`{where}, got none in the row", self._remedy(stream)
        if code == "twice":
            return f"expected a key once{where}, got it again: `{shown}`", None
        if code == "null_value":
            return f"expected {kind}{where}, got null", self._remedy(stream)
        if code == "wrong_type":
            return f"expected {kind}{where}, {actual}", self._remedy_of_lists(stream, chr(expected), byte)
        if code == "out_of_range":
            return f"expected an integer of {self._streams[stream or ''].dtype.name}{where}, {actual}", None
        if code == "too_many_values":
            return f"expected {expected} values{where}, got more: `{shown}`", "declare the shape that the file has"
        if code == "too_few_values":
            return f"expected {expected} values{where}, got {got}: `{shown}`", "declare the shape that the file has"
        if code == "bad_text":
            return f"expected text in UTF-8 without half surrogates{where}, {actual}", None
        if code == "bad_string":
            return f"expected a string of JSON{where}, got a control byte or an unknown escape: `{shown}`", None
        if code == "too_deep":
            return "expected values nested at most 512 deep, got a deeper one", None
        return f"expected JSON{where}, {actual}", None

    def _remedy_of_lists(self, stream: str | None, expected: str, byte: bytes) -> str | None:
        """Return what to do if rows were expected to hold lists of samples and this one has none, or the reverse."""
        if stream in self._ragged and expected == "[":
            others = sorted(self._ragged - {stream})
            return (
                f"`{stream}` has a list of samples in one of the first {_FIRST_ROWS} rows, or is named in sequences=, "
                f"so every row must have one; if that row is the wrong one, pass sequences={others}"
            )
        return "if rows hold lists of samples, name the stream in sequences=" if byte == b"[" else None


def first_rows(path: Path, count: int = _FIRST_ROWS) -> list[dict[str, Any]]:
    """Return the JSON objects among the first ``count`` rows of a file.

    Raises:
        DataError: the file cannot be read.
    """
    head, complete = head_text(path)
    try:
        lines: list[Any] = head.decode().split("\n")
    except UnicodeDecodeError:  # of one row, or of one that was cut
        lines = list(head.split(b"\n"))
    if not complete:
        lines.pop()  # the last line may be cut
    rows = []
    for line in [line for line in lines if line.strip()][:count]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _distinct_rows(paths: Sequence[Path], *, reports: bool) -> list[dict[str, Any]]:
    """Return the first rows of files, of one file for all whose first rows have the same types.

    Args:
        paths: paths of the files.
        reports: whether to log how the streams of the files differ.
    """
    count = max(_FIRST_ROWS // len(paths), _LEAST_ROWS)
    shown: dict[Any, list[dict[str, Any]]] = {}
    for path in paths:
        of_file = first_rows(path, count)
        shown.setdefault(frozenset(_type_of(row) for row in of_file), of_file)
    rows = [row for of_file in shown.values() for row in of_file]
    if reports and len(shown) > 1:
        report(str(paths[0]), _changes(list(shown.values()), rows))
    return rows


def _type_of(value: Any) -> Any:
    """Return what decides about the stream of a value: its type, and the types in it. Integers of 64 bits differ."""
    if isinstance(value, dict):
        return tuple((key, _type_of(item)) for key, item in value.items())
    if isinstance(value, list):
        return len(value), frozenset(_type_of(item) for item in value)
    return (int, value < -(2**63), value < 0, value >= 2**63, value >= 2**64) if type(value) is int else type(value)


def _changes(files: Sequence[list[dict[str, Any]]], rows: list[dict[str, Any]]) -> list[str]:
    """Return how streams differ between the rows of files and all rows."""
    of_files, union = [_FirstRows() for _ in files], _FirstRows()
    for first, of_file in zip(of_files, files, strict=True):
        first.infer(of_file)
    union.infer(rows)
    changes = []
    for name, stream in union.streams.items():
        types = dict.fromkeys(first.streams[name].dtype.name for first in of_files if name in first.streams)
        if others := ", ".join(kind for kind in types if kind != stream.dtype.name):
            changes.append(f"`{name}` is {stream.dtype.name} for {others}")
    return changes


def _check_paths(paths: Mapping[str, Steps]) -> None:
    for name, path in paths.items():
        if path.count(None) > 1:
            raise SchemaError(
                f"expected at most one list on the way to a stream, got `{name}` at {join_steps(path)}; declare the "
                f'outer list as its JSON text: fl.Stream(dtype="bytes", field={join_steps(path[: path.index(None)])!r})'
            )
        for longer_name, longer in paths.items():
            if name != longer_name and longer[: len(path)] == path:
                raise SchemaError(
                    f"expected streams of separate values, got `{name}` at {join_steps(path)} and `{longer_name}` at "
                    f"{join_steps(longer)}"
                )
            if None in path and path.index(None) < len(longer) and _differ_first(path, longer) == path.index(None):
                raise SchemaError(
                    f"expected a key to lead to a list or to an object, got `{name}` at {join_steps(path)} and "
                    f"`{longer_name}` at {join_steps(longer)}"
                )


def _differ_first(path: Steps, other: Steps) -> int:
    """Return the place of the first step in which two paths differ, -1 if one begins with the other."""
    pairs = zip(path, other, strict=False)
    return next((at for at, (step, other_step) in enumerate(pairs) if step != other_step), -1)


def _holds_lists(rows: Sequence[dict[str, Any]], keys: Steps, stream: Stream) -> bool:
    """Return whether a stream has a list of samples in one of the rows."""
    if (stream.is_bytes and not stream.is_text) or None in keys:
        return False
    for row in rows:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if _depth(value) == len(stream.shape) + 1:
            return True
    return False


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while any(isinstance(entry, list) for entry in level) and depth <= 33:
        depth += 1
        level = [item for entry in level if isinstance(entry, list) for item in entry]
    return depth


# ---- inference ----------------------------------------------------------------------------------------


def infer_json_streams(path: PathLike) -> dict[str, Stream]:
    """Infer the streams of a JSON Lines file from its first 100 rows (at most 4 MiB of text), in order of appearance.

    Keys that all of these rows have, and not as null, are streams. Keys of nested objects are named by their path.
    Numbers and booleans become int64, float64 or bool, strings become text. Lists of one length in all rows are
    vectors, other lists are lists of samples. Any other value (mixed types, lists of objects) becomes a stream of
    bytes, its JSON text.

    Raises:
        DataError: none of these rows is a JSON object, or no key is in all of them.
    """
    return _infer_streams(first_rows(Path(path)), Path(path))[0]


def _infer_streams(rows: list[dict[str, Any]], path: Path) -> tuple[dict[str, Stream], set[str]]:
    first = _FirstRows()
    if rows:
        first.infer(rows)
    if not first.streams:
        if not rows:
            raise _no_row_error(path)
        got = f"keys that not all rows have: {', '.join(first.left_out[:5])}" if first.left_out else "none"
        masked = "" if not first.left_out else ", with missing= or mask=True for keys that some rows lack"
        raise DataError(
            f"expected JSON objects with keys that all of the first {_FIRST_ROWS} rows have, got {got}",
            path=str(path),
            hint=f"write one object per line, or declare the streams: x=fl.Stream(shape=...){masked}",
        )
    if first.left_out:
        _log.warning("%s: no streams, as some first rows lack them or have null: %s", path, ", ".join(first.left_out))
    return first.streams, first.ragged


def _no_row_error(path: Path) -> DataError:
    """Return the error for a file without a JSON object among its first rows."""
    text, complete = head_text(path)
    first, newline, _ = text.lstrip().partition(b"\n")
    declare = "declare the streams: x=fl.Stream(shape=...)"
    if not newline and not complete:
        what = f"expected a row that ends within {len(text)} bytes to infer its streams, got a longer one"
        return DataError(what, path=str(path), hint=declare)
    got = f"`{excerpt(first)}`" if first else "none"
    what = f"expected a JSON object in one of the first {_FIRST_ROWS} rows, got {got}"
    return DataError(what, path=str(path), hint=f"write one object per line, or {declare}")


class _FirstRows:
    """The streams of the first rows.

    Attributes:
        streams: streams by path.
        ragged: paths of the streams with a list of samples in a row.
        left_out: paths of keys that some rows lack.
    """

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.ragged: set[str] = set()
        self.left_out: list[str] = []

    def infer(self, rows: list[dict[str, Any]], prefix: str = "", level: int = 0) -> None:
        for key in dict.fromkeys(key for row in rows for key in row):
            name = prefix + escape_key(key)
            values: list[Any] = [row.get(key) for row in rows]
            if not key or any(value is None for value in values):
                self.left_out.append(name)
            elif all(isinstance(value, dict) and value for value in values) and level < _MAX_NESTED:
                self.infer(values, f"{name}.", level + 1)
            else:
                self.streams[name], several = _stream(values)
                if several:
                    self.ragged.add(name)


def _stream(values: list[Any]) -> tuple[Stream, bool]:
    """Return the stream of some values, and whether they are lists of samples."""
    raw = Stream(dtype="bytes"), False
    depths = {_depth(value) for value in values}
    leaves = values
    for _ in range(max(depths)):
        leaves = [item for entry in leaves for item in (entry if isinstance(entry, list) else [entry])]
    kinds = {type(leaf) for leaf in leaves}
    if kinds == {str}:
        return (Stream(dtype="str"), depths == {1}) if depths in ({0}, {1}) else raw
    if kinds == {bool}:
        dtype = "bool"
    elif kinds == {int} and all(-(2**63) <= leaf < 2**64 for leaf in leaves):
        dtype = "uint64" if max(leaves) >= 2**63 else "int64"
        if dtype == "uint64" and min(leaves) < 0:
            dtype = "float64"
    elif kinds and kinds <= {int, float}:
        dtype = "float64"
    else:
        return raw
    if depths == {0}:
        return Stream((), dtype), False
    shapes = {_shape(value) for value in values}
    if len(shapes) == 1 and (shape := shapes.pop()) is not None and 0 not in shape:
        return Stream(shape, dtype), False
    inner = {_shape(item) for value in values if isinstance(value, list) for item in value}
    if len(inner) == 1 and (shape := inner.pop()) is not None and len(depths - {1} if shape else depths) == 1:
        return Stream(shape, dtype), True
    return raw


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, or None if their lengths differ."""
    if not isinstance(value, list):
        return ()
    inner = {_shape(item) for item in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *(inner.pop() or () if inner else ()))
