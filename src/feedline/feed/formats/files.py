"""Which files a path stands for, in an order that does not depend on the machine."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from feedline.errors import DataError

PathLike = str | os.PathLike[str]
INDEX_SUFFIX = ".feedline-index"


def list_files(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """The files of a corpus.

    Args:
        path: a file; a list of files, taken as listed; a folder, all of whose visible files are taken; or a glob
            pattern (``**`` for any depth). Folder and pattern are sorted by the bytes of the path relative to the
            folder or to the pattern's fixed part; indexes, which lie beside their texts, are no files of theirs.

    Raises:
        DataError: nothing matches. Files that are named are not looked for.
        ValueError: an empty list.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [Path(p) for p in path]
    one = Path(path)
    if one.is_dir():
        found = [p for p in one.iterdir() if p.is_file() and not p.name.startswith(".")]
    elif one.exists() or not glob.has_magic(str(path)):
        return [one]
    else:
        found = [Path(p) for p in glob.glob(str(path), recursive=True) if os.path.isfile(p)]
    found = [p for p in found if p.suffix != INDEX_SUFFIX]
    if not found:
        raise DataError(f"expected files at {path}, got none")
    return sorted(found, key=lambda p: os.fsencode(p.as_posix()))


def open_file(path: Path) -> BinaryIO:
    """The file at ``path``, open for reading without a buffer.

    Raises:
        DataError: it cannot be opened.
    """
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror}", path=str(path)) from error
