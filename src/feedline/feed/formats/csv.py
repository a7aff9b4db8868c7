"""CSV: a `Deserializer` for files of cells between delimiters, each row a sequence.

Guarantees and cost are as for `rows`. Files may be compressed, see `files.compressed_text`.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from feedline import _native
from feedline.data import Stream
from feedline.data.schema import encodable
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import PathLike, name_of
from feedline.feed.formats.hive_folders import warn_of_unread_columns
from feedline.feed.formats.indexed.file_index import Cache, IndexKind
from feedline.feed.formats.indexed.indexed_file import UNPACK_BYTES, IndexedFile, packing_of_text
from feedline.feed.formats.indexed.rows import (
    CHUNK_TEXT,
    MAX_ROW,
    RowLayout,
    RowsDeserializer,
    head_text,
    index_error,
    utf16_error,
)
from feedline.feed.formats.widening import WAY_OUT, SchemaRule, filled_in, is_union, report, unfilled_error
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import CHUNK_MEMORY, declared_streams

Columns = Stream | str | Sequence[str]
"""A stream: its declaration, or the name of a column (scalars), or names (vectors), whose type is inferred."""

_FIRST_ROWS = 100
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|infinity)|[+-]?nan", re.IGNORECASE | re.ASCII)
_ENCODING = "if it is in another encoding, convert it: iconv -f LATIN1 -t UTF-8"
_LINE_ENDS = "expected lines that end in \\n or \\r\\n, got one that ends in \\r alone"
_CONVERT_LINE_ENDS = "convert the line ends: tr '\\r' '\\n' < old.csv > new.csv; or quote cells that hold \\r"
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_SEPARATOR = re.compile(r'"?sep=[^\r\n]"?\r?\n', re.IGNORECASE)


class CSVDeserializer(RowsDeserializer):
    """Rows of CSV files, also in ``.gz`` and ``.zst``: each row is a sequence of one sample.

    Cells may be in double quotes, with delimiters, line breaks and doubled quotes inside. Blanks around numbers and
    blank lines are ignored. A row with another number of cells, or with a cell that is not of its stream's type (an
    empty cell is no number), is unreadable.

    Args:
        path: a file, a list of files (read as their concatenation), a folder or a glob pattern (sorted by path).
        streams: stream name to `Stream`, also as keyword arguments. ``field`` names the column, by default the stream's
            name. For a vector it can be a pattern such as ``"pixel*"``, whose columns are the values in the order of
            the file. Or stream name to the name of a column (scalars), or to a list of names (vectors), whose types are
            inferred. By default each column is a stream.
        columns: for vectors: stream name to the names of its columns, in order.
        header: whether the first row has the names of the columns. By default it has, unless one of its cells is a
            number. Without a header columns are named ``"0"``, ``"1"`` and so on. A column without a name is
            ``"Unnamed: 0"``, with its number.
        delimiter: one character. By default it is the one of comma, semicolon, tab and ``|`` that cuts the first rows
            into the most cells, the same number in each.
        chunk_size: bytes of text per chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the text of a chunk, and the decoded chunk, may take.
        unpack: bytes of disk that the text of a file may take in the cache, as for `JSONLinesDeserializer`.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        schema: ``"union"`` takes files with other columns, or columns in another order, and infers types from the first
            rows of all files. ``missing`` and ``mask`` fill columns that a file lacks.
        stream_kwargs: more streams.

    Types are inferred from the first 100 rows (at most 4 MiB of text), without empty cells: int64, float64, bool
    (``true``, ``false``), else text.

    Raises:
        SchemaError: a column is missing, or cells cannot fill a stream.
        DataError: a file is missing, empty or damaged, has other columns than the first, or its index cannot be
            written.
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        streams: Mapping[str, Columns] | None = None,
        *,
        columns: Mapping[str, Sequence[str]] | None = None,
        header: bool | None = None,
        delimiter: str | None = None,
        chunk_size: int = CHUNK_TEXT,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        unpack: int = UNPACK_BYTES,
        progress: Progress = None,
        schema: SchemaRule = "strict",
        **stream_kwargs: Columns,
    ) -> None:
        if delimiter is not None and (
            len(delimiter) != 1 or not delimiter.isascii() or delimiter.isalnum() or delimiter in '"\r\n+-.'
        ):
            raise ValueError(f"expected as delimiter one ASCII character of no number or quote, got {delimiter!r}")
        super().__init__(path, chunk_size=chunk_size, cache=cache, memory_bytes=memory, unpack=unpack, schema=schema)
        paths = self._paths
        union = is_union(schema)
        declarations = declared_streams(streams, stream_kwargs)
        infers = not declarations or not all(isinstance(what, Stream) for what in declarations.values())
        head = _Head(paths[0], delimiter, header)
        table = _CsvColumns()
        table.add(head, paths[0], infers)
        for next_path in paths[1:]:
            next_head = _Head(next_path, head.delimiter, head.header)
            if not union and next_head.names != head.names:
                raise DataError(
                    f"expected the columns {', '.join(head.names)}, as in {name_of(paths[:1])}, got "
                    f"{', '.join(next_head.names)}",
                    path=str(next_path),
                    hint=WAY_OUT,
                )
            table.add(next_head, next_path, infers and union)
        declared: dict[str, Stream] = {}
        places: dict[str, list[str]] = {}
        if not declarations:
            warn_of_unread_columns(paths, path, self.name, table.names)
            declarations = {name: name for name in table.names}
        for name, what in declarations.items():
            declared[name], places[name] = _resolve_stream(name, what, table, (columns or {}).get(name), str(paths[0]))
        if unknown := (columns or {}).keys() - declared.keys():
            raise SchemaError(f"expected columns= only for declared streams, got it for {', '.join(sorted(unknown))}")
        self._take_streams(declared)
        fields = dict(zip(declared, self._fields("CSV"), strict=True))
        layouts = {names: self._layout(table, names, places, fields, head.delimiter) for names in table.headers}
        self._layouts = {str(at): layouts[names] for at, names in table.of_files.items()}
        if len(layouts) > 1:
            self._report(places)
        skip = int(head.header)
        kind = IndexKind(
            self._chunk_size,
            ["csv", head.delimiter, skip],
            lambda: _native.RowIndexer.csv(ord(head.delimiter), skip, MAX_ROW),
            index_error,
            packing=packing_of_text,
        )
        self._identity = f"csv {head.delimiter} {skip} {layouts[tuple(head.names)].targets};"
        self._arguments |= {"columns": places, "header": head.header, "delimiter": head.delimiter}
        self._index(kind, progress)

    def _layout(
        self,
        table: _CsvColumns,
        names: tuple[str, ...],
        places: Mapping[str, Sequence[str]],
        fields: Mapping[str, Any],
        delimiter: str,
    ) -> _CsvLayout:
        """Return how rows with the columns ``names`` are parsed.

        Raises:
            SchemaError: a column is in several streams, or the rows lack a column of a stream that does not fill it,
                or all columns of all streams.
        """
        at = {name: k for k, name in enumerate(names)}
        present = [name for name, cells in places.items() if all(cell in at for cell in cells)]
        targets: list[tuple[int, int]] = [(-1, 0)] * len(names)
        for name, cells in places.items():
            lost = [cell for cell in cells if cell not in at]
            if lost and (len(lost) < len(cells) or name not in self._fillings):
                other = next(path for header, path in table.headers.items() if lost[0] in header)
                raise unfilled_error(name, self._streams[name], lost[0], str(table.headers[names]), str(other))
            for k, cell in enumerate([] if lost else cells):
                if targets[at[cell]][0] >= 0:
                    raise SchemaError(f"expected a column in one stream, got {cell!r} in several, one of them `{name}`")
                targets[at[cell]] = (present.index(name), k)
        if not present:  # most likely a file with another delimiter or header, of which no cell would be read
            wanted = ", ".join(dict.fromkeys(cell for cells in places.values() for cell in cells))
            raise SchemaError(
                f"expected one of the columns {wanted} in {table.headers[names]}, which has {', '.join(names)}, cut at "
                f"{delimiter!r}: write it again as the other files are, or leave it out"
            )
        parser = _native.CsvParser([fields[name] for name in present], targets, ord(delimiter), self._memory_bytes)
        return _CsvLayout(RowLayout(parser, present), names, targets)

    def _file_identity(self, file: IndexedFile) -> bytes:
        first, layout = self._layouts[str(self._paths[0])], self._layouts[str(file.source)]
        return b"" if layout is first else f"{layout.rows.streams} {layout.targets};".encode()

    def _report(self, places: Mapping[str, Sequence[str]]) -> None:
        """Log which streams some files lack."""
        of_files = list(self._layouts.values())
        counts = {name: sum(name not in layout.rows.streams for layout in of_files) for name in places}
        report(str(self._paths[0]), [filled_in(name, n, len(of_files)) for name, n in counts.items() if n])

    def _layout_of(self, file: IndexedFile) -> RowLayout:
        return self._layouts[str(file.source)].rows

    def _describe(
        self, file: IndexedFile, record: Any, code: str, stream: str | None, *, shown: str, byte: bytes
    ) -> tuple[str, str | None]:
        expected, got = int(record["expected"]), int(record["got"])
        if code in ("too_many_cells", "too_few_cells"):
            return f"expected {expected} cells, got {got}", None
        column = f"column {self._layouts[str(file.source)].names[expected]!r} ({expected + 1})"
        cell = shown if byte == b'"' else shown.split(self._arguments["delimiter"])[0]
        if code == "empty_cell":
            return f"expected a number in {column}, got an empty cell", self._remedy(stream)
        if code == "open_quote":
            return f"expected a quote that closes the cell in {column}, got none: `{shown}`", None
        if code == "cell_text":
            return f"expected text in UTF-8 in {column}, got the byte 0x{got:02x}", _ENCODING
        if code == "cell_return":
            return f"{_LINE_ENDS} in {column}: `{cell}`", _CONVERT_LINE_ENDS
        dtype = self.schema[stream or ""].dtype
        kind = {"b": "true or false", "i": "an integer", "u": "an integer"}.get(dtype.kind, "a number")
        if code == "cell_range":
            return f"expected an integer of {dtype.name} in {column}, got `{cell}`", None
        return f"expected {kind} in {column}, got `{cell}`", None


class _Head:
    """The first rows of a file.

    Attributes:
        delimiter: the delimiter.
        header: whether the first row has the names of the columns.
        names: names of the columns.
        rows: the first rows, without the header.
    """

    def __init__(self, path: Path, delimiter: str | None, header: bool | None) -> None:
        wrong = functools.partial(DataError, path=str(path))
        text, complete = head_text(path)
        decoded = text.decode("utf-8", "surrogateescape")
        self.delimiter = _sniff_delimiter(decoded, complete) if delimiter is None else delimiter
        rows, returned = _rows(decoded, self.delimiter, complete)
        if returned is not None:
            byte = len(decoded[:returned].encode("utf-8", "surrogateescape"))
            raise wrong(_LINE_ENDS, byte=byte, hint=_CONVERT_LINE_ENDS)
        if not rows:
            raise wrong("expected a CSV file with at least one row, got none in its first 4 MiB")
        self.header = not any(_NUMBER.fullmatch(cell.strip()) for cell in rows[0]) if header is None else bool(header)
        self.names = rows.pop(0) if self.header else [str(k) for k in range(len(rows[0]))]
        self.rows = rows
        if (separator := _SEPARATOR.match(decoded)) is not None:
            message = f"expected rows, got `{separator[0].strip()}`, which tells Excel the delimiter"
            raise wrong(message, byte=0, hint="remove the first line: tail -n +2 old.csv > new.csv")
        # pandas names its index so, and the cells after a last delimiter. A table that it wrote twice has several.
        for k, name in enumerate(self.names):
            if not name:
                candidates = (f"Unnamed: {k}{'.1' * again}" for again in itertools.count())
                self.names[k] = next(name for name in candidates if name not in self.names)
        if bad := [name for name in self.names if not encodable(name) or "\0" in name]:
            if text.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise utf16_error(path)
            what = bad[0].encode("utf-8", "surrogateescape")
            hint = _ENCODING.replace("LATIN1", "UTF-16LE") if b"\0" in what else _ENCODING
            raise wrong(f"expected the names of columns in UTF-8, got {what!r}", hint=hint)
        if len(set(self.names)) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise wrong(f"expected every column once in the header, got twice: {', '.join(twice)}")


class _Cells:
    """The first cells of a column, or of several: whether they are numbers, and the range of integers."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.low = self.high = 0

    def add(self, cells: Sequence[str]) -> None:
        """Add cells. Empty ones do not count."""
        cells = [stripped for cell in cells if (stripped := cell.strip())]
        if not cells:
            return
        if all(_INTEGER.fullmatch(cell) for cell in cells):
            numbers = [int(cell) if len(cell) < 30 else 2**70 for cell in cells]
            self.kinds.add("integer")
            self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)
        elif all(_NUMBER.fullmatch(cell) for cell in cells):
            self.kinds.add("number")
        else:
            self.kinds.add("bool" if all(cell.lower() in ("true", "false") for cell in cells) else "str")

    @property
    def dtype(self) -> str:
        """The narrowest type of all cells."""
        if self.kinds == {"integer"}:
            if self.low >= -(2**63) and self.high < 2**63:
                return "int64"
            return "uint64" if self.low >= 0 and self.high < 2**64 else "float64"
        if self.kinds and self.kinds <= {"integer", "number"}:
            return "float64"
        return "bool" if self.kinds == {"bool"} else "str"


class _CsvColumns:
    """The columns of files.

    Attributes:
        names: names of all columns, in the order of the files, as keys.
        headers: the first file with each header.
        of_files: the header of each file.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.headers: dict[tuple[str, ...], Path] = {}
        self.of_files: dict[Path, tuple[str, ...]] = {}
        self._cells: dict[str, _Cells] = {}

    def add(self, head: _Head, path: Path, infers: bool) -> None:
        """Add a file, and what its first cells are if types are inferred from them."""
        names = tuple(head.names)
        self.names |= dict.fromkeys(names)
        self.headers.setdefault(names, path)
        self.of_files[path] = names
        if infers:
            rows = [row for row in head.rows if len(row) == len(names)]
            for k, name in enumerate(names):
                self._cells.setdefault(name, _Cells()).add([row[k] for row in rows])

    def dtype(self, columns: Sequence[str]) -> str:
        """Return the type of the cells of columns."""
        cells = _Cells()
        for column in columns:
            cells.kinds |= self._cells[column].kinds
            cells.low, cells.high = min(cells.low, self._cells[column].low), max(cells.high, self._cells[column].high)
        return cells.dtype


class _CsvLayout(NamedTuple):
    """How the rows of a file are parsed, the names of its columns, and the stream and place of each, or -1."""

    rows: RowLayout
    names: Sequence[str]
    targets: Sequence[tuple[int, int]]


def _rows(text: str, delimiter: str, complete: bool) -> tuple[list[list[str]], int | None]:
    """Return the cells of the first rows, as the native parser cuts them, and the position of the first carriage return
    that ends a line alone, or None."""
    # Without Python's `csv`, whose limit of 128 KiB a cell can only be changed for the whole process.
    d = re.escape(delimiter)
    cells = re.compile(
        rf'(?:"(?P<quoted>[^"]*+(?:""[^"]*+)*+)"(?P<more>[^{d}\n]*)|"(?P<open>[\s\S]*)|(?P<plain>[^{d}\n]*))'
        rf"(?P<end>{d}|\n|\Z)"
    )
    rows, row, begin = [], list[str](), 0
    returned: int | None = None
    for cell in cells.finditer(text):
        quoted, trailing, unclosed, plain, end = cell.groups()
        inner = unclosed if quoted is None else quoted
        bare = plain or trailing or ""
        if returned is None and "\r" in bare[: len(bare) - (end != delimiter)]:
            returned = cell.start("end") - len(bare) + bare.index("\r")
        row.append(plain if inner is None else inner.replace('""', '"') + (trailing or ""))
        if end == delimiter:
            continue
        row[-1] = row[-1].removesuffix("\r")
        if text[begin : cell.end()].strip("\r\n"):
            rows.append(row)
        row, begin = [], cell.end()
        if len(rows) > _FIRST_ROWS + 1:
            return rows[:-1], returned
    return rows if complete else rows[:-1], returned


def _sniff_delimiter(text: str, complete: bool) -> str:
    best, max_cells = ",", 1
    for delimiter in _DELIMITERS:
        counts = {len(row) for row in _rows(text, delimiter, complete)[0]}
        if len(counts) == 1 and (count := counts.pop()) > max_cells:
            best, max_cells = delimiter, count
    return best


def _resolve_stream(
    name: str, what: Columns, table: _CsvColumns, columns: Sequence[str] | None, path: str
) -> tuple[Stream, list[str]]:
    """Return the declaration of a stream, and its columns."""
    if not isinstance(what, Stream):
        cells = [what] if isinstance(what, str) else [str(cell) for cell in what]
        _check_columns(name, cells, table, path)
        dtype = table.dtype(cells)
        if isinstance(what, str):
            return Stream(dtype=dtype) if dtype == "str" else Stream((), dtype), cells
        if dtype == "str":
            raise SchemaError(
                f"expected numbers in the columns {', '.join(cells)} of {path} for stream `{name}`, got text; a stream "
                "of text has one column"
            )
        return Stream(len(cells), dtype), cells
    if columns is not None:
        cells = [str(cell) for cell in columns]
    elif what.shape and (what.field or name) not in table.names:
        pattern = what.field or name
        cells = [cell for cell in table.names if fnmatch.fnmatchcase(cell, pattern)]
        if not cells:
            raise SchemaError(
                f"expected columns that match {pattern!r} for stream `{name}` in {path}, got {', '.join(table.names)}; "
                "name them: columns={...}"
            )
    else:
        cells = [what.field or name]
    _check_columns(name, cells, table, path)
    if len(cells) != what.size:
        raise SchemaError(
            f"expected {what.size} columns for stream `{name}` of shape {what.shape}, got {len(cells)} in {path}: "
            f"{', '.join(cells[:8])}"
        )
    return what, cells


def _check_columns(name: str, cells: Sequence[str], table: _CsvColumns, path: str) -> None:
    if missing := [cell for cell in cells if cell not in table.names]:
        raise SchemaError(
            f"expected the columns {', '.join(missing)} for stream `{name}` in {path}, "
            f"which has {', '.join(table.names)}"
        )
