"""Columns that are in no file but in the names of its folders: ``label=a/part-0.parquet``.

Hive's layout, which Spark, pyarrow, DuckDB, pandas and polars write. Names and values are percent-encoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

Columns = dict[str, list[int | None] | list[str | None]]
"""By name, a value for each file; None: a null, or the file is in no folder of that name."""

NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)


def hive_columns(paths: Sequence[str], given: object) -> Columns:
    """Return the columns that the folders of files are named after: of integers where all values are, else of text.

    Args:
        paths: the files.
        given: what they were given as. Only folders in it count; if it is none, in the one that all have in common.
    """
    parents = [os.path.dirname(os.path.abspath(path)) for path in paths]
    folder = given if isinstance(given, (str, os.PathLike)) and os.path.isdir(given) else os.path.commonpath(parents)
    root = os.path.abspath(os.fspath(folder))
    found = [_pairs(os.path.relpath(parent, root)) for parent in parents]
    columns: Columns = {}
    for name in dict.fromkeys(name for pairs in found for name in pairs):
        texts = [pairs.get(name) for pairs in found]
        known = [text for text in texts if text is not None]
        if known and all(_INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 for text in known):
            columns[name] = [None if text is None else int(text) for text in texts]
        else:
            columns[name] = texts
    return columns


def _pairs(path: str) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for part in Path(path).parts:
        name, equals, value = part.partition("=")
        if name and equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found
