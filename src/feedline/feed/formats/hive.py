"""Columns that are not in files but in the names of their folders: ``label=a/part-0.parquet``.

Hive's layout, which Spark, pyarrow, DuckDB, pandas and polars write. Names and values are percent-encoded.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Container, Sequence
from pathlib import Path
from urllib.parse import unquote

from feedline.data.schema import encodable
from feedline.errors import DataError

Columns = dict[str, list[int | None] | list[str | None]]
"""By name, a value for each file. None: a null, or the file is in no folder of that name."""

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def hive_columns(paths: Sequence[str], root: object) -> Columns:
    """Return the columns that the folders of files are named after, of integers if all values are, else of text.

    Args:
        paths: paths of the files.
        root: the path that the user passed. Only folders below it count, or below the folder that all files share.

    Raises:
        DataError: a name or a value is not UTF-8.
    """
    folders = _pairs_of(paths, root)
    for path, pairs in zip(paths, folders, strict=True):
        if bad := [text for pair in pairs.items() for text in pair if text is not None and not encodable(text)]:
            raise DataError(
                f"expected folders that are named in UTF-8, as they are a column, got {os.fsencode(bad[0])!r}",
                path=path,
                hint="rename the folder",
            )
    columns: Columns = {}
    for name in dict.fromkeys(name for pairs in folders for name in pairs):
        texts = [pairs.get(name) for pairs in folders]
        present = [text for text in texts if text is not None]
        if present and all(_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in present):
            columns[name] = [None if text is None else int(text) for text in texts]
        else:
            columns[name] = texts
    return columns


def tell_left_out(paths: Sequence[str | os.PathLike[str]], root: object, name: str, columns: Container[str]) -> None:
    """Warn of columns in names of folders, for a corpus called ``name`` that has only the ``columns`` in its files."""
    folders = _pairs_of(paths, root)
    if named := [key for key in dict.fromkeys(key for pairs in folders for key in pairs) if key not in columns]:
        warnings.warn(
            f"columns that are only in the names of folders are not read from {name}: {', '.join(named)}. Write the "
            "data as Parquet, for which they are read. Or, to silence this warning, pass the names of the streams "
            "that you want as `streams`",
            stacklevel=3,
        )


def _pairs_of(paths: Sequence[str | os.PathLike[str]], root: object) -> list[dict[str, str | None]]:
    parents = [os.path.dirname(os.path.abspath(path)) for path in paths]
    folder = root if isinstance(root, (str, os.PathLike)) and os.path.isdir(root) else os.path.commonpath(parents)
    top = os.path.abspath(os.fspath(folder))
    return [_pairs(os.path.relpath(parent, top)) for parent in parents]


def _pairs(path: str) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    for part in Path(path).parts:
        name, equals, value = part.partition("=")
        if name and equals:
            pairs[_unquoted(name)] = None if value == NULL else _unquoted(value)
    return pairs


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogateescape")
