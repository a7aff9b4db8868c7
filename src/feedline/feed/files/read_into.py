"""Read from files into the caller's memory, completely or with gaps where the disk fails."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.feed.files.paths import reading
from feedline.feed.files.remote import preadv


def read_exactly(file: BinaryIO, into: NDArray[np.uint8], offset: int, path: Path) -> None:
    """Fill ``into`` from the file at ``offset``, without the GIL.

    Raises:
        DataError: the file is too short, or its disk fails.
    """
    with reading(path, offset):
        _fill(file, into, offset, path)


def _fill(file: BinaryIO, into: NDArray[np.uint8], offset: int, path: Path) -> None:
    """Implement `read_exactly`, but raise the OSError of a failing disk."""
    view, done = into.data, 0
    while done < len(into):
        n = preadv(file, view[done:], offset + done)
        if n == 0:
            raise DataError(
                f"expected {len(into)} bytes from byte {offset} on, got {done}: the file was truncated",
                path=str(path),
                byte=offset + done,
            )
        done += n


def read_most(file: BinaryIO, into: NDArray[np.uint8], offset: int, path: Path) -> list[tuple[int, int, int]]:
    """Fill ``into`` like `read_exactly`. Bytes that the disk cannot read become spaces.

    Returns:
        The gaps: (first byte, end byte, errno), a page or less each.
    """
    try:
        _fill(file, into, offset, path)
    except OSError as error:
        page, end = mmap.PAGESIZE, offset + len(into)
        if offset // page == (end - 1) // page:
            into[:] = ord(" ")
            return [(offset, end, error.errno or errno.EIO)]
        # Split at page boundaries: a disk loses whole pages.
        half = max((offset + end) // 2 // page, offset // page + 1) * page - offset
        return [*read_most(file, into[:half], offset, path), *read_most(file, into[half:], offset + half, path)]
    return []
