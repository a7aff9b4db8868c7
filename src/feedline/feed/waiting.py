"""A source that waits for the disk says so, once, with what would help.

Only if waiting is most of the time, over some seconds: at the start everybody waits, and a little is nobody's concern.
"""

from __future__ import annotations

import logging
import time

# Of so many seconds at least half were spent waiting; after so many, counting begins anew.
SECONDS, SHARE, ANEW = 10.0, 0.5, 60.0

_told: set[tuple[str, str]] = set()  # in this process, as every sweep of a loader has a source of its own

_log = logging.getLogger("feedline")


class Waits:
    """How long a source waits for the disk.

    Args:
        name: of the corpus.
        advice: what would help.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self._began: float | None = None
        self._seconds, self._bytes = 0.0, 0

    def add(self, seconds: float, disk_bytes: int) -> None:
        """The source has just waited so long; ``disk_bytes`` are all that it has read from the disk so far."""
        now = time.perf_counter()
        if self._began is None or now - self._began > ANEW:
            self._began, self._seconds, self._bytes = now - seconds, 0.0, disk_bytes
        self._seconds += seconds
        elapsed = now - self._began
        if elapsed < SECONDS or self._seconds < SHARE * elapsed or (self._name, self._advice) in _told:
            return
        _told.add((self._name, self._advice))
        _log.warning(
            "%s: %.0f %% of the last %.0f s went into waiting for the disk, which gave %.0f MB/s: %s",
            self._name,
            100 * self._seconds / elapsed,
            elapsed,
            (disk_bytes - self._bytes) / elapsed / 1e6,
            self._advice,
        )


WHOLE = (
    "a whole shuffle of what is not in memory reads sequences one by one. Pass shuffle=fl.Window(bytes=256 << 20), "
    "which reads in large pieces; or write it in random order once, fl.convert(..., shuffle=seed), and read that with "
    "shuffle=False"
)
BLOCKS = (
    "it is read in large pieces and ahead of need, so the disk is what limits. A store takes fewer bytes where they "
    'can be compressed: fl.convert(..., compression="auto"); or give the machine a faster disk, or memory for all of it'
)
NOT_AHEAD = "read_ahead is less than a window, so that the rest of each is waited for; leave it out, or raise it"
ITEMS = (
    "items of arrays that are not in memory are read one by one. Write them in random order once, "
    "fl.convert(..., shuffle=seed), and read the store without shuffle; or use fl.MinibatchSource with "
    "shuffle=fl.Window(bytes=256 << 20)"
)
