"""Seals of mapped files: bytes near their ends that tell, read again, whether a file was cut.

A page that lies wholly behind a file's new end cannot be read any more, which a native copy notices. What is left of
the page with the new end in it reads as zeros. So the last byte of a file that is not zero is looked at after a copy:
if the file was cut at or before it, it is gone or zero; if it was cut behind it, nothing that was read is wrong.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native

_BYTES = 8


def seals_of(arrays: Iterable[NDArray[Any]]) -> list[NDArray[np.uint8]]:
    """A seal, uint8 (8,), for every read-only map that some of the arrays are views of.

    Maps that may be written to have none: their owner may have a reason to change the last byte.

    Raises:
        DataError: a file was cut already.
    """
    maps = {}
    for array in arrays:
        base: Any = array
        while isinstance(base, (np.ndarray, memoryview)):
            base = base.obj if isinstance(base, memoryview) else base.base
        if isinstance(base, mmap.mmap) and memoryview(base).readonly and len(base) >= _BYTES:
            maps[id(base)] = base
    return [_seal(np.frombuffer(base, np.uint8)) for base in maps.values()]


def _seal(whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
    page = (len(whole) - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    used = np.flatnonzero(_native.copied(whole[page:]))
    last = page + int(used[-1]) if len(used) else len(whole) - 1
    start = max(0, min(last, len(whole) - _BYTES))
    return whole[start : start + _BYTES]
