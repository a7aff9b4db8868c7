"""Read a file sequentially and ahead of need, bypassing the page cache if it does not hold the file."""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.files.paths import status_of
from feedline.feed.files.read_into import read_exactly
from feedline.feed.files.remote import remote_of

_AHEAD = 8  # blocks in flight
_LOOK_AT = 256  # pages of the file checked for residency


def blocks(file: BinaryIO, path: Path, size: int, block_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of an open file of ``size`` bytes, in blocks of ``block_bytes``, each valid until the next.

    Raises:
        DataError: the file is too short, or its disk fails.
    """
    buffer = np.empty(min(block_bytes, size), np.uint8)
    fetched = _fetch(file, path, size, block_bytes)
    for start in range(0, size, block_bytes):
        block = next(fetched, None)
        if block is None:  # in memory, or the fetch failed
            block = buffer[: size - start]
            read_exactly(file, block, start, path)
        yield block


def _fetch(file: BinaryIO, path: Path, size: int, block_bytes: int) -> Iterator[NDArray[np.uint8] | None]:
    """Yield blocks that native threads read, and None for a block that failed. Yield nothing if the page cache holds
    the file."""
    if not size or remote_of(file) is not None:
        return  # the file of an object reads ahead by itself
    about = status_of(file)
    fetcher = _native.Fetcher(depth=2 * _AHEAD, keep_bytes=_AHEAD * block_bytes)
    with contextlib.ExitStack() as stack:
        try:
            mapped = stack.enter_context(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
            view = np.frombuffer(mapped, np.uint8)
            address = view.ctypes.data
            del view
            number = fetcher.add(str(path), size, address, (about.st_dev, about.st_ino))
            if fetcher.held(number, 0, size, _LOOK_AT) == min(_LOOK_AT, -(-size // mmap.PAGESIZE)):
                return
        except (OSError, ValueError):
            return  # an ordinary read reports the error
        waiting: deque[_native.Fetch] = deque()
        begun = 0
        while begun < size or waiting:
            while begun < size and len(waiting) < _AHEAD:
                waiting.append(fetcher.read([(number, begun, min(block_bytes, size - begun))]))
                begun += block_bytes
            (piece,) = waiting.popleft().result()
            yield None if isinstance(piece, tuple) else np.frombuffer(memoryview(piece), np.uint8)
