"""Outcomes of units, and statistics of the workers that ran them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from feedline.feed.workers.failure import Failure
from feedline.feed.workers.memory import SharedSegment, SharedSpan
from feedline.feed.workers.message import decode


class Outcome(Protocol):
    """A result or failure that has not been taken.

    Attributes:
        why: the exception that `take` will raise, if it was raised in a thread.
    """

    why: BaseException | None

    def take(self) -> Any:
        """Return the result, or raise the failure."""

    def drop(self) -> None:
        """Discard the outcome and release what it holds."""


class Failed:
    """The outcome of a unit that raised, or whose workers died."""

    __slots__ = ("_failure", "why")

    def __init__(self, why: Failure | BaseException) -> None:
        self.why: BaseException | None = None if isinstance(why, Failure) else why
        self._failure = why

    def take(self) -> Any:
        """Raise the failure."""
        if isinstance(self._failure, Failure):
            self._failure.throw()
        raise self._failure

    def drop(self) -> None:
        """Do nothing: no memory is held."""


class LocalOutcome:
    """The outcome of a unit that ran in this process."""

    __slots__ = ("_value", "why")

    def __init__(self, value: Any) -> None:
        self._value = value
        self.why: BaseException | None = None

    def take(self) -> Any:
        """Return the result unchanged."""
        return self._value

    def drop(self) -> None:
        """Do nothing: no memory is held."""


class Arrived:
    """A result in shared memory."""

    __slots__ = ("_pieces", "_segments", "_text", "_windows", "why")

    def __init__(self, segments: dict[int, SharedSegment], pieces: list[SharedSpan], text: bytes | SharedSpan) -> None:
        self.why: BaseException | None = None
        self._segments, self._pieces, self._text = segments, pieces, text
        self._windows: dict[int, memoryview] = {}

    def take(self) -> Any:
        """Return the tree. Its arrays are views of the memory, and keep it alive."""
        # May be interrupted and called again, so finished steps are kept: nothing is lent twice or given back early.
        windows = self._windows
        for number, segment in list(self._segments.items()):
            if number not in windows:
                windows[number] = segment.window()
            del self._segments[number]
            segment.lend(windows[number])
        buffers = [windows[number][offset : offset + nbytes] for number, offset, nbytes in self._pieces]
        text = self._text
        return decode(text if isinstance(text, bytes) else windows[text[0]][text[1] : text[1] + text[2]], buffers)

    def drop(self) -> None:
        """Return the memory to the worker."""
        segments, self._segments = self._segments, {}
        for segment in segments.values():
            segment.give_back()


@dataclass(slots=True)
class WorkerStats:
    """Statistics of one worker.

    Attributes:
        index: number of the worker.
        pid: its process id; this process's for a thread.
        units: results and failures it returned.
        seconds: time it spent on them.
        bytes: size of the results, large buffers and pickle; 0 for threads, whose results are not copied.
        restarts: times it died and was replaced.
    """

    index: int
    pid: int = 0
    units: int = 0
    seconds: float = 0.0
    bytes: int = 0
    restarts: int = 0


@dataclass(slots=True)
class PoolStats:
    """Statistics of a pool.

    Attributes:
        workers: statistics by worker.
        restarts: times a worker died and was replaced.
        stages: seconds by stage as the task measured them, summed over workers.
    """

    workers: list[WorkerStats]
    restarts: int = 0
    stages: dict[str, float] = field(default_factory=dict)
