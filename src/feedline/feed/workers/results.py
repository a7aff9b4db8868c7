"""Outcomes of units, and statistics of the workers that ran them."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from feedline.feed.workers.failure import Failure
from feedline.feed.workers.memory import SharedSegment, SharedSpan
from feedline.feed.workers.message import decode


class Outcome(abc.ABC):
    """A result or failure that has not been taken.

    Attributes:
        why: the exception that `take` will raise, if it was raised in a thread.
    """

    why: BaseException | None = None

    @abc.abstractmethod
    def take(self) -> Any:
        """Return the result, or raise the failure."""

    def drop(self) -> None:  # noqa: B027  # most hold nothing
        """Discard the outcome and release its memory."""


class Failed(Outcome):
    """The outcome of a unit that raised, or whose workers died."""

    def __init__(self, why: Failure | BaseException) -> None:
        self.why = None if isinstance(why, Failure) else why
        self._failure = why

    def take(self) -> Any:
        """Raise the failure."""
        if isinstance(self._failure, Failure):
            self._failure.throw()
        raise self._failure


class LocalOutcome(Outcome):
    """The outcome of a unit that ran in this process."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def take(self) -> Any:
        """Return the result unchanged."""
        return self._value


class Arrived(Outcome):
    """A result in shared memory."""

    def __init__(self, segments: dict[int, SharedSegment], pieces: list[SharedSpan], text: bytes | SharedSpan) -> None:
        self._segments, self._pieces, self._text = segments, pieces, text
        self._windows: dict[int, memoryview] = {}

    def take(self) -> Any:
        """Return the tree. Its arrays are views of the memory, and keep it alive."""
        # May be interrupted and called again, so finished steps are kept: nothing is lent twice or returned early.
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
        pid: its process id. For a thread, the id of this process.
        units: number of results and failures it returned.
        seconds: seconds it spent on them.
        bytes: bytes of the results, large buffers and pickle. 0 for threads, whose results are not copied.
        restarts: number of times it died and was replaced.
        copied_bytes: bytes of memory of the process that forked it which it has copied since its first second, as it
            wrote to it. Reading a Python object writes its reference count. 0 as long as nobody has looked.
    """

    index: int
    pid: int = 0
    units: int = 0
    seconds: float = 0.0
    bytes: int = 0
    restarts: int = 0
    copied_bytes: int = 0


@dataclass(slots=True)
class Taken:
    """How results were taken from workers.

    Attributes:
        results: number of results.
        seconds: time to take them: to map their memory and to unpickle the rest.
        ready: sum, over these results, of the share of the units in flight that were done.
    """

    results: int = 0
    seconds: float = 0.0
    ready: float = 0.0

    def add(self, seconds: float, done: int, in_flight: int) -> None:
        """Add a result that took ``seconds``, while ``done`` of the units ``in_flight`` were done."""
        self.results += 1
        self.seconds += seconds
        self.ready += done / max(done, in_flight, 1)


def short(unit: Any) -> str:
    """Return a short description of a unit for errors."""
    text = repr(unit)
    return text if len(text) <= 200 else text[:200] + "..."
