"""Recognise folders of shards by their index.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from feedline.feed.files.paths import PathLike, open_regular

INDEX = "index.json"
"""The file that describes the shards of a folder."""

MAX_INDEX = 1 << 30
"""Largest size of an index in bytes. A larger one is refused."""


def is_mds(path: Path) -> bool:
    """Return whether a folder's index lists shards as MosaicML Streaming's ``MDSWriter`` writes them."""
    return _is_list(_index_of(path), "shards")


def is_litdata(path: Path) -> bool:
    """Return whether a folder's index lists chunks as LitData's ``optimize`` writes them."""
    index = _index_of(path)
    return _is_list(index, "chunks") and isinstance(index.get("config"), dict)


def is_litdata_chunk(file: Path) -> bool:
    """Return whether LitData's index next to a file lists it as a chunk."""
    chunks = _index_of(file.parent).get("chunks") if is_litdata(file.parent) else None
    return any(isinstance(chunk, dict) and chunk.get("filename") == file.name for chunk in chunks or ())


def folder_of(path: PathLike) -> Path:
    """Return the folder at a path, or the folder of an index if the path is an index."""
    folder = Path(path)
    return folder.parent if folder.name == INDEX else folder


def _index_of(path: Path) -> dict[str, Any]:
    try:
        return read_index(path)
    except (OSError, ValueError):
        return {}


def _is_list(index: dict[str, Any], key: str) -> bool:
    return isinstance(index.get(key), list)


def read_index(folder: Path) -> dict[str, Any]:
    """Return the content of the index of a folder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON object, or larger than `MAX_INDEX`.
    """
    with open_regular(folder / INDEX) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_INDEX:
            raise ValueError(f"expected at most {MAX_INDEX} bytes, got {size}")
        raw = file.read()
    try:
        index = json.loads(raw)
    except RecursionError as error:
        raise ValueError("objects nested too deeply") from error
    if not isinstance(index, dict):
        raise ValueError(f"expected an object, got {type(index).__name__}")
    return index
