"""Find arrays that lie in mapped files: NumPy's memory maps and views of them, tensors over them, `mmap` objects."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.maps import MappedRange, Maps

# Minimum bytes of foreign memory, such as a tensor's, to be looked up: that takes a millisecond.
_WORTH_A_LOOK_BYTES = 256 << 20


def mapped_ranges(arrays: Iterable[NDArray[Any]]) -> list[MappedRange]:
    """Return the mapped files that some of ``arrays`` lie in, each once; only contiguous arrays count."""
    foreign = [array for array in arrays if array.nbytes and array.flags.c_contiguous and may_be_mapped(array)]
    if not foreign:
        return []
    maps = Maps(shared=True)
    found = (maps.range_at(array.ctypes.data, array.nbytes) for array in foreign)
    return list(dict.fromkeys(one for one in found if one is not None))


def may_be_mapped(array: Any) -> bool:
    """Return whether an array may lie in a file, so that it is worth looking up."""
    size = array.nbytes
    while isinstance(array, np.ndarray):
        if array.flags.owndata:
            return False
        array = array.base
    if isinstance(array, memoryview):
        array = array.obj
    return isinstance(array, mmap.mmap) or (size >= _WORTH_A_LOOK_BYTES and not isinstance(array, bytes))
