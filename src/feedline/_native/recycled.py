"""Arrays of minibatches in memory that is used again once no reference to it is left.

Fresh memory costs a page fault for each of its pages, which can take longer than the copy that fills it. These arrays
behave like any others. When the last reference to one is gone, with all views and tensors over it, its memory becomes
the next array of about that size. Kernels allocate their results in the same memory, which is one for the process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feedline import _native


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of undefined content, as `numpy.empty` does: C-contiguous and writable."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes < _native.MIN_RECYCLED_BYTES or kind.hasobject:  # the allocator reuses small pieces by itself
        return np.empty(shape, kind)
    owner: Any = _native.ArrayMemory(nbytes)
    return np.ndarray(shape, kind, owner)


def concatenate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the rows of all ``arrays``, one after another. They have the same dtype and the same rows' shape."""
    first = arrays[0]
    out = empty((sum(map(len, arrays)), *first.shape[1:]), first.dtype)
    return np.concatenate(arrays, out=out)
