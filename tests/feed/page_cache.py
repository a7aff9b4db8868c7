"""The page cache as tests see it: how much of files it holds, and emptied of them."""

from __future__ import annotations

import gc
import os
import time

import numpy as np

from feedline import system
from feedline.feed.files import disk

MIB = 1 << 20


def evict(paths, leave=MIB):
    """Have the page cache drop the files. Return whether at most ``leave`` bytes of them stayed.

    Files that an earlier feed still maps stay until it is collected. The portable version cannot ask for it.
    """
    for _ in range(20 if system.KNOWS_PAGE_CACHE else 0):
        gc.collect()
        disk.evict(paths)
        if held(paths) <= leave:
            return True
        time.sleep(0.05)
    return False


def held(paths, begin=0.0, end=1.0):
    """Bytes of (a part of) the files in the page cache. The query reads nothing."""
    from feedline import _native

    total = 0
    for path in paths:
        size = os.path.getsize(path)
        first, last = int(size * begin), int(size * end)
        if last - first < 1:
            continue
        mapped = np.memmap(path, np.uint8, "r")
        fetcher = _native.Fetcher(depth=1)
        number = fetcher.add(path, size, mapped.ctypes.data, None, False)
        total += 4096 * fetcher.held(number, first, last - first, 1 << 30)
    return total
