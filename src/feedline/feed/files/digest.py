"""Digests of content, which identify a corpus in a saved state.

A digest covers counts, sizes and three blocks of each array or file (head, middle, tail), so it costs the same for a
gigabyte as for a terabyte. It detects replaced, grown or re-encoded data, but not a single byte changed in place
outside the blocks.
"""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO

import numpy as np

from feedline import _native

BLOCK_BYTES = 64 << 10
"""Bytes of each of the three blocks."""


class ContentDigest:
    """Hashes numbers and blocks."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def numbers(self, *values: int) -> None:
        """Add integers."""
        self._hash.update((",".join(map(str, values)) + ";").encode())

    def text(self, text: bytes) -> None:
        """Add a text. An empty one changes nothing."""
        self._hash.update(text)

    def array(self, array: Any) -> None:
        """Add the size of an array, or of an object that slices like an array, and complete rows from its head, middle
        and tail."""
        # Imported here, as it imports all of `feedline.data`. Most datasets of a loader are digested without an array,
        # or not at all.
        from feedline.feed.files.mapped_arrays import in_reach

        self.numbers(array.nbytes, len(array))
        if array.nbytes == 0:
            return
        rows = max(1, BLOCK_BYTES * len(array) // array.nbytes)
        for start in _block_starts(len(array), rows):
            part = np.asarray(array[start : start + rows])
            with in_reach(part):
                # A copy: if the array is mapped from a truncated file, that raises a DataError.
                self._hash.update(_native.copied(part).tobytes())

    def file(self, file: BinaryIO, size: int) -> None:
        """Add the size of a file and blocks from its head, middle and tail."""
        self.numbers(size)
        for start in _block_starts(size, BLOCK_BYTES):
            file.seek(start)
            self._hash.update(file.read(BLOCK_BYTES))

    def hexdigest(self, end: bytes = b"") -> str:
        """Return 32 hex digits of the added content, in order, and of ``end`` behind it, which is not added."""
        whole = self._hash.copy()
        whole.update(end)
        return whole.hexdigest()


def _block_starts(size: int, block: int) -> list[int]:
    last = max(0, size - block)
    return sorted({0, last // 2, last})
