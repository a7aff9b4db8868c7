"""Arrays whose memory is that of files: NumPy's memory maps and views of them, tensors over them, `mmap` objects."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.maps import MappedRange, Maps

# Memory of somebody else's making, such as a tensor's, is looked up from this size on: a look takes a millisecond.
_WORTH_A_LOOK = 256 << 20


def mapped_ranges(arrays: Iterable[NDArray[Any]]) -> list[MappedRange]:
    """The mapped files in which some of ``arrays`` lie, each once; only those that lie there without gaps count."""
    foreign = [array for array in arrays if array.nbytes and array.flags.c_contiguous and may_be_mapped(array)]
    if not foreign:
        return []
    maps = Maps(shared=True)
    found = (maps.range_at(array.ctypes.data, array.nbytes) for array in foreign)
    return list(dict.fromkeys(one for one in found if one is not None))


def may_be_mapped(array: Any) -> bool:
    """Whether it is worth to look whether an array lies in a file."""
    size = array.nbytes
    while isinstance(array, np.ndarray):
        if array.flags.owndata:
            return False
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap) or (size >= _WORTH_A_LOOK and not isinstance(array, bytes))
