"""Time without a sign of life from another process, the only criterion by which a process is presumed to hang.

On a busy machine everything may take a hundred times as long, so that a deadline by the clock cannot distinguish a slow
process from one that hangs. Time counts only while nothing is heard.
"""

from __future__ import annotations


class Silence:
    """Time spent listening to another process since it was last heard.

    Each wait counts for its planned duration, even if it took longer. A listener that was delayed itself, because the
    machine was busy or suspended or by SIGSTOP, was not listening.

    Args:
        limit_s: seconds of silence that are too long.

    Attributes:
        seconds: length of the silence so far.
    """

    __slots__ = ("_limit_s", "seconds")

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self.seconds = limit_s, 0.0

    def reset(self) -> None:
        """Begin again, as the other process was heard."""
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add a wait of ``seconds`` in which nothing was heard."""
        self.seconds += seconds

    @property
    def too_long(self) -> bool:
        """Whether the silence has reached its limit."""
        return self.seconds >= self._limit_s
