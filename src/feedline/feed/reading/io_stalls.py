"""Measure how long a source waits for the disk, and warn once, with advice, if it waits too long.

The warning comes only if waiting takes most of the time over some seconds. Some waiting is normal, above all at the
start. The measure also determines whether the page cache should keep the data.
"""

from __future__ import annotations

import logging
import time

# Minimum seconds observed, minimum share of them spent waiting, and seconds after which counting restarts.
MIN_S, SHARE, RESTART_S = 10.0, 0.5, 60.0

# A disk is slow if it delivers fewer bytes a second while a source waits for it, over at least this many seconds. A
# faster disk is read past the page cache almost as fast as data is copied through the page cache.
SLOW_BYTES_S, SLOW_AFTER_S = 500e6, 0.5

_warned: set[tuple[str, str]] = set()  # per process, as every sweep of a loader creates a source

_log = logging.getLogger("feedline")


class Waits:
    """Accounts for the time that a source waits for the disk.

    Args:
        name: name of the corpus.
        advice: advice for the warning.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self._began: float | None = None
        self._seconds, self._bytes = 0.0, 0
        self._all_seconds, self._all_bytes = 0.0, 0

    @property
    def slow(self) -> bool:
        """Whether the source waits for a disk that is much slower than the page cache."""
        seconds = self._all_seconds
        return seconds >= SLOW_AFTER_S and self._all_bytes <= seconds * SLOW_BYTES_S

    def add(self, seconds: float, disk_bytes: int) -> None:
        """Record a wait of ``seconds``. ``disk_bytes`` are all bytes that the source has read from the disk so far."""
        now = time.perf_counter()
        self._all_seconds += seconds
        self._all_bytes = disk_bytes
        if self._began is None or now - self._began > RESTART_S:
            self._began, self._seconds, self._bytes = now - seconds, 0.0, disk_bytes
        self._seconds += seconds
        elapsed = now - self._began
        if elapsed < MIN_S or self._seconds < SHARE * elapsed or (self._name, self._advice) in _warned:
            return
        _warned.add((self._name, self._advice))
        _log.warning(
            "%s: %.0f %% of the last %.0f s were spent waiting for the disk, which delivered %.0f MB/s: %s",
            self._name,
            100 * self._seconds / elapsed,
            elapsed,
            (disk_bytes - self._bytes) / elapsed / 1e6,
            self._advice,
        )


WHOLE = (
    "a whole shuffle of data that is not in memory reads single sequences. Pass shuffle=fl.Window(bytes=256 << 20), "
    "which reads in large pieces; or write it in random order once, fl.convert(..., shuffle=seed), and read that with "
    "shuffle=False"
)
BLOCKS = (
    "it is read ahead in large pieces, so the disk is the bottleneck. A compressed store is smaller if the data "
    'compresses: fl.convert(..., compression="auto"); or use a faster disk, or enough memory for all of it'
)
NOT_AHEAD = "read_ahead is less than a window, so each window waits for the rest of it; leave it out, or raise it"
ITEMS = (
    "items of arrays that are not in memory are read one by one. Write them in random order once, "
    "fl.convert(..., shuffle=seed), and read the store without shuffle; or use fl.MinibatchSource with "
    "shuffle=fl.Window(bytes=256 << 20)"
)
