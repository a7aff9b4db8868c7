"""Time without a sign of life from another process: the only criterion by which a process is presumed to hang.

On a busy machine everything may take a hundred times as long, so that a deadline by the clock cannot distinguish a slow
process from one that hangs. The time counts only while nothing is heard.
"""

from __future__ import annotations


class Silence:
    """Time spent listening to another process since it was last heard.

    Each wait counts for its planned duration, even if it took longer: a listener that was delayed itself, by a busy
    machine, by SIGSTOP or by a suspended machine, was not listening.

    Args:
        limit_s: seconds of silence that are too long.

    Attributes:
        seconds: length of the silence so far.
    """

    __slots__ = ("_limit_s", "seconds")

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self.seconds = limit_s, 0.0

    def heard(self) -> None:
        """Note that the other process was heard."""
        self.seconds = 0.0

    def passed(self, seconds: float) -> None:
        """Note a wait of ``seconds`` in which nothing was heard."""
        self.seconds += seconds

    @property
    def too_long(self) -> bool:
        """Whether the silence has reached its limit."""
        return self.seconds >= self._limit_s
