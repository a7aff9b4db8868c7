"""The link that all connections of a server share: how long each piece of a body has to wait.

`Link` is a schedule, not a thread: a sender asks for some bytes and is told when the last of them has crossed. Pieces
queue in the order in which senders ask, so connections share the bandwidth evenly. An idle link saves nothing up, but a
sender that wakes late, up to `SLACK_S`, catches up: the rate is kept by a busy machine too. A call costs a microsecond.
"""

from __future__ import annotations

import threading

SMALLEST, LARGEST = 64 << 10, 256 << 10  # bytes of a piece
SLACK_S = 0.02


class Link:
    """A bandwidth.

    Args:
        bytes_per_second: of all senders together. None for no limit.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ValueError(f"expected a positive number of bytes per second, got {bytes_per_second}")
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = float("-inf")

    @property
    def piece(self) -> int:
        """Bytes that a sender should ask for at once: about a millisecond's."""
        return min(LARGEST, max(SMALLEST, int((self.bytes_per_second or 0) / 1000)))

    def crosses(self, size: int, now: float, since: float | None = None) -> float:
        """Return the time at which `size` bytes have crossed.

        Args:
            size: bytes.
            now: the time.
            since: when the previous piece of the same body crossed. None for the first.
        """
        if self.bytes_per_second is None:
            return now
        begin = now if since is None else min(now, max(since, now - SLACK_S))
        with self._lock:
            self._free_at = max(self._free_at, begin) + size / self.bytes_per_second
            return self._free_at
