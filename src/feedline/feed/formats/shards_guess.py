"""Recognise folders of shards by their index.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from feedline.feed.files.paths import PathLike, open_regular

INDEX = "index.json"
"""The file that describes the shards of a folder."""

MOST_INDEX = 1 << 30
"""Bytes of an index that is read."""


def is_mds(path: Path) -> bool:
    """Return whether a folder's index lists shards as MosaicML Streaming's ``MDSWriter`` writes them."""
    return _is_list(_found(path), "shards")


def is_litdata(path: Path) -> bool:
    """Return whether a folder's index lists chunks as LitData's ``optimize`` writes them."""
    found = _found(path)
    return _is_list(found, "chunks") and isinstance(found.get("config"), dict)


def is_litdata_chunk(file: Path) -> bool:
    """Return whether a file is one of the chunks that LitData's index beside it lists."""
    chunks = _found(file.parent).get("chunks") if is_litdata(file.parent) else None
    return any(isinstance(one, dict) and one.get("filename") == file.name for one in chunks or ())


def folder_of(path: PathLike) -> Path:
    """Return the folder that a path names, itself or by its index."""
    found = Path(path)
    return found.parent if found.name == INDEX else found


def _found(path: Path) -> dict[str, Any]:
    try:
        return read_index(path)
    except (OSError, ValueError):
        return {}


def _is_list(found: dict[str, Any], key: str) -> bool:
    return isinstance(found.get(key), list)


def read_index(folder: Path) -> dict[str, Any]:
    """Return what the index of a folder holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no object of JSON, or larger than `MOST_INDEX`.
    """
    with open_regular(folder / INDEX) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_INDEX:
            raise ValueError(f"expected at most {MOST_INDEX} bytes, got {size}")
        raw = file.read()
    try:
        found = json.loads(raw)
    except RecursionError as error:
        raise ValueError("objects too deep in one another") from error
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, got {type(found).__name__}")
    return found
