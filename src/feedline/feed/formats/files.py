"""Which files a path stands for, in an order that does not depend on the machine."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

PathLike = str | os.PathLike[str]


def list_files(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """The files of a corpus.

    Args:
        path: a file; a list of files, taken as listed; a folder, all of whose visible files are taken; or a glob
            pattern (``**`` for any depth). Folder and pattern are sorted by the bytes of the path relative to the
            folder or to the pattern's fixed part.

    Raises:
        FileNotFoundError: no such file, or nothing matches.
        ValueError: an empty list.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [Path(p) for p in path]
    one = Path(path)
    if one.is_dir():
        found = [
            p for p in one.iterdir() if p.is_file() and not p.name.startswith(".") and p.suffix != ".feedline-index"
        ]
    elif one.exists() or not glob.has_magic(str(path)):
        return [one]
    else:
        found = [Path(p) for p in glob.glob(str(path), recursive=True) if os.path.isfile(p)]
    if not found:
        raise FileNotFoundError(f"expected files at {path}, got none")
    return sorted(found, key=lambda p: os.fsencode(p.as_posix()))
