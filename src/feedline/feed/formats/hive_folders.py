"""Columns that are not in files but in the names of their folders: ``label=a/part-0.parquet``.

This is Hive's layout, which Spark, pyarrow, DuckDB, pandas and polars write. Names and values are percent-encoded.
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
from feedline.feed.files.paths import PathLike

Columns = dict[str, list[int | None] | list[str | None]]
"""By name, a value for each file. A value is None for a null, and for a file in no folder of that name."""

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def hive_columns(paths: Sequence[str], root: object) -> Columns:
    """Return the columns in the names of folders. They are integers if all values of a column are, else text.

    Args:
        paths: paths of the files.
        root: the path that the user passed. If it is no folder, the deepest folder with all files takes its place. Only
            folders below it count.

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


def warn_of_unread_columns(paths: Sequence[PathLike], root: object, name: str, columns: Container[str]) -> None:
    """Warn of columns in names of folders, for the corpus ``name``, which reads only the ``columns`` in its files."""
    folders = _pairs_of(paths, root)
    if unread := [key for key in dict.fromkeys(key for pairs in folders for key in pairs) if key not in columns]:
        warnings.warn(
            f"columns that are only in the names of folders are not read from {name}: {', '.join(unread)}. Write the "
            "data as Parquet, for which they are read. Or, to silence this warning, pass the names of the streams that "
            "you want as `streams`",
            stacklevel=3,
        )


def _pairs_of(paths: Sequence[PathLike], root: object) -> list[dict[str, str | None]]:
    parents = [os.path.dirname(os.path.abspath(path)) for path in paths]
    folder = root if isinstance(root, (str, os.PathLike)) and os.path.isdir(root) else os.path.commonpath(parents)
    top = os.path.abspath(os.fspath(folder))
    return [_pairs(os.path.relpath(parent, top)) for parent in parents]


def _pairs(path: str) -> dict[str, str | None]:
    pairs: dict[str, str | None] = {}
    for part in Path(path).parts:
        name, equals, value = part.partition("=")
        if name and equals:
            pairs[_unquote(name)] = None if value == NULL else _unquote(value)
    return pairs


def _unquote(text: str) -> str:
    return unquote(text, errors="surrogateescape")
