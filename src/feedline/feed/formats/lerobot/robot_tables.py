"""The tables in the folder meta of a robot dataset: JSON Lines in version 2, Parquet in version 3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.value import BytesValue
from feedline.errors import DataError, SchemaError, shown
from feedline.feed.files.paths import looking, open_file, status_of
from feedline.feed.formats.arrow.parquet import ParquetDeserializer
from feedline.feed.formats.lerobot.robot_info import HINT
from feedline.feed.protocol import Ints

_MAX_BYTES = 1 << 30  # of a file of JSON Lines


class TableColumns:
    """Columns of Parquet files, which are read at once.

    Args:
        files: paths of the files, in order.
        names: names of the columns.
    """

    def __init__(self, files: Sequence[Path], names: Sequence[str]) -> None:
        self._path = str(files[0])
        corpus = ParquetDeserializer([str(file) for file in files], list(names))
        chunks = [corpus.read(number) for number in range(len(corpus.chunks()))]
        for chunk in chunks:
            for error in chunk.errors.values():
                raise error
        self._parts = {name: [chunk[name] for chunk in chunks] for name in names}

    def integers(self, name: str) -> Ints:
        """Return a column of integers, int64 (rows,).

        Raises:
            DataError: it has other values.
        """
        numbers = self._numbers(name)
        if numbers.dtype.kind not in "iu" or (numbers.dtype == np.uint64 and (numbers >= 2**63).any()):
            raise self._error("integers", name, numbers)
        return numbers.astype(np.int64)

    def times(self, name: str) -> NDArray[np.float64]:
        """Return a column of seconds, float64 (rows,).

        Raises:
            DataError: it has other values.
        """
        numbers = self._numbers(name)
        if numbers.dtype.kind not in "iuf" or not (numbers >= 0).all() or not np.isfinite(numbers).all():
            raise self._error("seconds from 0 on", name, numbers)
        return numbers.astype(np.float64)

    def texts(self, name: str) -> list[str]:
        """Return a column of texts.

        Raises:
            DataError: it has other values.
        """
        texts: list[str] = []
        for part in self._parts[name]:
            if not isinstance(part, BytesValue) or not part.text or not part.one_sample_each:
                raise self._error("texts", name, part)
            try:
                texts += part.tolist()
            except UnicodeDecodeError as error:
                raise self._error("texts in UTF-8", name, error.object) from error
        return texts

    def _numbers(self, name: str) -> NDArray[Any]:
        for part in self._parts[name]:
            if isinstance(part, BytesValue) or part.is_sparse or part.shape or not part.one_sample_each:
                raise self._error("numbers", name, part)
        return np.concatenate([part.rows for part in self._parts[name]])

    def _error(self, expected: str, name: str, got: Any) -> DataError:
        got = got.dtype if isinstance(got, np.ndarray) and got.dtype.kind not in "iuf" else got
        return DataError(f"expected {expected} in column {name!r}, got {shown(got, 80)}", path=self._path, hint=HINT)


def text_column(file: Path) -> str:
    """Return the name of the only column of texts in a Parquet file.

    Raises:
        DataError, SchemaError: the file cannot be read, or has none or several.
    """
    corpus = ParquetDeserializer(str(file))
    names = [name for name, stream in corpus.schema.items() if stream.is_text]
    if len(names) != 1:
        raise SchemaError(f"expected one column of texts in {file}, got {', '.join(names) or 'none'}; {HINT}")
    return names[0]


def parquet_files(folder: Path) -> list[Path]:
    """Return the files ``chunk-000/file-000.parquet`` and so on below a folder, in order.

    Raises:
        DataError: there are none.
    """
    with looking(folder):
        files = sorted(folder.glob("*/*.parquet"))
    if not files:
        raise DataError("expected files such as chunk-000/file-000.parquet, got none", path=str(folder), hint=HINT)
    return files


def json_lines(path: Path) -> Iterator[tuple[dict[str, Any], Callable[[str, Any], DataError]]]:
    """Yield the object of each line of a file, and a function that returns the error for a value that is not as
    expected.

    Raises:
        DataError: the file cannot be read, or a line is no object.
    """
    with open_file(path) as file:
        if (size := status_of(file).st_size) > _MAX_BYTES:
            raise DataError(f"expected at most {_MAX_BYTES} bytes, got {size}", path=str(path))
        text = file.read()
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line.strip():
            continue

        def error(expected: str, got: Any, number: int = number) -> DataError:
            what = f"expected {expected}, got {shown(got, 80)}"
            return DataError(what, path=str(path), line=number, hint=HINT)

        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as failure:
            raise error("an object in JSON", line[:80]) from failure
        if not isinstance(row, dict):
            raise error("an object", row)
        yield row, error


def integer(row: dict[str, Any], key: str, error: Callable[[str, Any], DataError]) -> int:
    """Return an integer from 0 on of a line.

    Raises:
        DataError: it is another value.
    """
    value = row.get(key)
    if type(value) is not int or not 0 <= value < 2**62:
        raise error(f"an integer from 0 on as {key}", value)
    return value
