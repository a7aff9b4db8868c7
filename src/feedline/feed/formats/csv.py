"""CSV files as chunks, for conversion: text is parsed once, and fed from a store.

Parsed by Arrow block by block, so memory is bounded by some blocks. A row is a sequence of one sample.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, SchemaError
from feedline.feed.files.paths import open_file


def read_csv_chunks(
    path: str | os.PathLike[str],
    streams: Mapping[str, str | Sequence[str]] | None = None,
    *,
    dtype: str | Mapping[str, str] | None = None,
    delimiter: str = ",",
    block_bytes: int = 16 << 20,
    on_block: Callable[[int], None] | None = None,
) -> Iterator[Chunk]:
    """The rows of a CSV file with a header, in chunks; a cell that is empty makes its row unreadable.

    Args:
        path: the file.
        streams: by stream name one column (samples of shape ()) or a list of columns (samples are vectors);
            None: one stream per column.
        dtype: element type of all streams, or by stream name; None: what the cells of the first block look
            like, int64, float64 or bool.
        delimiter: one character.
        block_bytes: bytes of text parsed at a time.
        on_block: called with the bytes read so far after each block.

    Raises:
        DataError: no rows, a row with another number of cells, a cell that is no number of its column's type.
        SchemaError: a column is missing, or holds no numbers.
    """
    import pyarrow as pa
    from pyarrow import csv

    name = os.fspath(path)
    header = _header(name, delimiter)
    wanted = {key: [cols] if isinstance(cols, str) else list(cols) for key, cols in (streams or {}).items()}
    if not wanted:
        wanted = {column: [column] for column in header}
    scalar = {key for key in wanted if streams is None or isinstance(streams[key], str)}
    for key, cols in wanted.items():
        if missing := [column for column in cols if column not in header]:
            raise SchemaError(
                f"expected the columns {', '.join(missing)} for stream `{key}` in {name}, "
                f"whose header has {', '.join(header)}"
            )
    types = dict(dtype) if isinstance(dtype, Mapping) else {} if dtype is None else dict.fromkeys(wanted, dtype)
    if unknown := [key for key in types if key not in wanted]:
        raise SchemaError(f"expected dtypes of {', '.join(wanted)}, got one of {', '.join(unknown)}")
    kinds = {
        col: pa.from_numpy_dtype(np.dtype(types[key])) for key, cols in wanted.items() if key in types for col in cols
    }
    columns = list(dict.fromkeys(column for cols in wanted.values() for column in cols))
    schema: Schema | None = None
    first = 0
    try:
        with open_file(name, -1) as file:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(block_size=block_bytes, use_threads=False),
                parse_options=csv.ParseOptions(delimiter=delimiter),
                convert_options=csv.ConvertOptions(
                    column_types=kinds, include_columns=columns, strings_can_be_null=True
                ),
            )
            for batch in reader:
                values, errors = _values(batch, wanted, scalar, name, first)
                if schema is None:
                    schema = Schema({key: Stream(value.shape, value.dtype) for key, value in values.items()})
                if batch.num_rows:
                    yield Chunk(schema, values, errors)
                first += batch.num_rows
                if on_block is not None:
                    on_block(file.tell())
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"expected rows of numbers: {error}",
            path=name,
            hint="for numbers that look like integers at first, pass dtype='float32'",
        ) from error
    if first == 0:
        raise DataError("expected at least one row, got none", path=name)


def _header(path: str, delimiter: str) -> list[str]:
    import csv

    try:
        with io.TextIOWrapper(open_file(path, -1), encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"expected a CSV file with a header: {error}", path=path) from error
    if not header:
        raise DataError("expected a CSV file with a header, got an empty one", path=path)
    if len(set(header)) < len(header):
        twice = sorted({column for column in header if header.count(column) > 1})
        raise DataError(f"expected every column once in the header, got twice: {', '.join(twice)}", path=path)
    return header


def _values(
    batch: Any, wanted: Mapping[str, list[str]], scalar: set[str], path: str, first: int
) -> tuple[dict[str, Value], dict[int, DataError]]:
    values: dict[str, Value] = {}
    errors: dict[int, DataError] = {}
    for key, names in wanted.items():
        cells = []
        for name in names:
            numbers, empty = _cells(batch.column(name), name, path)
            for i in np.flatnonzero(empty).tolist():
                errors.setdefault(
                    i,
                    DataError(
                        f"expected a number in column {name!r}, got nothing",
                        path=path,
                        sequence=first + i,
                        hint='pass on_error="skip" to leave such rows out and count them',
                    ),
                )
            cells.append(numbers)
        values[key] = Value.from_dense(cells[0] if key in scalar else np.stack(cells, axis=1))
    return values, errors


def _cells(column: Any, name: str, path: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise SchemaError(
            f"expected numbers in column {name!r} of {path}, got {kind}; leave it out: "
            f"streams={{...}} names the columns to take"
        )
    empty = column.is_null().to_numpy(zero_copy_only=False)
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    return column.to_numpy(zero_copy_only=False), empty
