"""Arrays whose memory is that of files: NumPy's memory maps and views of them, tensors over them, `mmap` objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.maps import MappedRange, Maps


def mapped_ranges(arrays: Iterable[NDArray[Any]]) -> list[MappedRange]:
    """The mapped files in which some of ``arrays`` lie, each once; only those that lie there without gaps count."""
    foreign = [array for array in arrays if array.nbytes and array.flags.c_contiguous and not _owned(array)]
    if not foreign:
        return []
    maps = Maps()
    found = (maps.range_at(array.ctypes.data, array.nbytes) for array in foreign)
    return list(dict.fromkeys(one for one in found if one is not None))


def _owned(array: Any) -> bool:
    """Whether the memory is NumPy's own, which is in no file."""
    while isinstance(array, np.ndarray):
        if array.flags.owndata:
            return True
        array = array.base
    return isinstance(array, bytes)
