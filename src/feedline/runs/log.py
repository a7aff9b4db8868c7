"""The log of a run: JSON lines, one per event, each with ``event`` and ``samples`` (label samples so far).

A killed process leaves a torn last line, and the one that resumes writes again what the first wrote after its last
checkpoint. The result has each part of the run once, as it was trained the last time.
Cost: one pass; memory for what ``keep`` returns for each line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from feedline.errors import DataError
from feedline.runs.fields import whole, words

T = TypeVar("T")
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunLog(Generic[T]):
    """What was found.

    Attributes:
        events: events in order of samples, each once.
        starts: label samples at which a process began or resumed, in file order.
        lines: number of lines, including repeated and torn ones.
        torn: number of lines that are not JSON, as a kill leaves them.
    """

    events: list[T]
    starts: list[int]
    lines: int
    torn: int


class LogReader(Generic[T]):
    """Reader of a log that may still grow.

    Args:
        path: path of the file.
        keep: function from a line to what to remember of it.
    """

    def __init__(self, path: str | os.PathLike[str], keep: Callable[[Line], T]) -> None:
        self._path, self._keep = Path(path), keep
        self._begin()

    def _begin(self) -> None:
        self._kept: dict[tuple[str, int], T] = {}
        self._starts: list[int] = []
        self._lines = self._torn = 0
        self._at = 0  # bytes read
        self._file: tuple[int, int] | None = None  # device and inode

    def read_on(self, ended: bool = False) -> bool:
        """Read the lines that were added since the last call; a file that was replaced or cut is read from its start.

        Args:
            ended: whether a last line without an end counts; otherwise it is left for the next call.

        Returns:
            Whether there were any.

        Raises:
            OSError: the file cannot be read.
            DataError: a line is JSON but not an event.
        """
        with self._path.open("rb") as file:
            now = os.fstat(file.fileno())
            if (now.st_dev, now.st_ino) != self._file or now.st_size < self._at:
                self._begin()
                self._file = (now.st_dev, now.st_ino)
            file.seek(self._at)
            before = self._lines
            for text in file:
                if not (ended or text.endswith(b"\n")):
                    break
                self._at += len(text)
                self._add(text)
        return self._lines > before

    def _add(self, text: bytes) -> None:
        self._lines += 1
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # undecodable bytes too
            self._torn += 1
            return
        try:
            event, samples = words(line["event"], "event"), whole(line["samples"], "samples")
            if event == "start":
                # The resumed process writes again whatever was logged after the place where it resumed.
                self._kept = {key: old for key, old in self._kept.items() if key[1] <= samples}
                self._starts.append(samples)
            self._kept.pop((event, samples), None)
            self._kept[event, samples] = self._keep(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"expected an event of a training session, got {text[:80]!r} ({error!r})",
                path=str(self._path),
                line=self._lines,
                hint="JsonLines and `feedline bench --log` write such files",
            ) from error

    def log(self) -> RunLog[T]:
        """Return what was read so far."""
        events = [self._kept[key] for key in sorted(self._kept, key=lambda key: key[1])]
        return RunLog(events, list(self._starts), self._lines, self._torn)


def log_feed(path: str | os.PathLike[str], source: Any, *, step: int, size: int, event: str = "progress") -> None:
    """Append a line that says where a source stands, for ``feedline audit``.

    Write one before the first minibatch of a process, by ``event="start"``, then every so many steps and at the end;
    under a schedule of sizes, whenever the size changes.

    Args:
        path: path of the log, created if missing.
        source: a `MinibatchSource`.
        step: minibatches that the run has been fed before, by all processes one after the other.
        size: size of the next minibatches, in samples of all ranks.
        event: ``"start"``, ``"progress"`` or ``"end"``.

    Raises:
        ValueError: another event, or a step or size that cannot be.
        OSError: the file cannot be written.
    """
    if event not in ("start", "progress", "end"):
        raise ValueError(f"expected the event 'start', 'progress' or 'end', got {event!r}")
    if whole(size, "size") == 0:
        raise ValueError("expected a size of at least 1, got 0")
    feed = feed_record(source, whole(step, "step"), size)
    line = json.dumps(
        {"event": event, "samples": feed["state"]["samples"], "time": round(time.time(), 3), "feed": feed}
    )
    with open_log(path) as file:
        file.write(line + "\n")


def feed_record(source: Any, step: int, size: int) -> dict[str, Any]:
    """Return what an audit needs of a source, in JSON types."""
    return {"step": step, "size": size, "state": source.state_dict()}


def open_log(path: str | os.PathLike[str]) -> TextIO:
    """Open a log to append lines to it; one that a crash has torn is ended, so that the next is not lost with it."""
    with open(path, "ab+") as before:
        if before.tell():
            before.seek(-1, os.SEEK_END)
            if before.read(1) != b"\n":
                before.write(b"\n")
    return open(path, "a", encoding="utf-8")  # the caller closes it


def read_log(path: str | os.PathLike[str], keep: Callable[[Line], T]) -> RunLog[T]:
    """Read a whole log.

    Args:
        path: path of the file.
        keep: function from a line to what to remember of it.

    Raises:
        OSError: the file cannot be read.
        DataError: a line is JSON but not an event.
    """
    reader = LogReader(path, keep)
    reader.read_on(ended=True)
    return reader.log()
