"""The log of a run: JSON lines, one per event, each with ``event`` and ``samples`` (label samples so far).

A killed process leaves a torn last line, and the process that resumes repeats the lines after the last checkpoint. The
result has each part of the run once, from the last time that it was trained. Cost: one pass, and memory for the result
of ``parse`` for each line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from feedline.errors import DataError
from feedline.runs.fields import whole, words

T = TypeVar("T")
Line = dict[str, Any]


class RunLog(Generic[T]):
    """The part of a log that was read so far. The log may still grow.

    Args:
        path: path of the file.
        parse: function that returns the value to keep for a line.

    Attributes:
        path: path of the file.
        starts: label samples at which a process began or resumed, in file order.
        lines: number of lines, including repeated and torn ones.
        torn: number of lines that are not JSON, as a kill leaves them.
    """

    def __init__(self, path: str | os.PathLike[str], parse: Callable[[Line], T]) -> None:
        self.path, self._parse = Path(path), parse
        self._reset()

    def _reset(self) -> None:
        self._values: dict[tuple[str, int], T] = {}
        self.starts: list[int] = []
        self.lines = self.torn = 0
        self._at = 0  # bytes read
        self._file: tuple[int, int] | None = None  # device and inode

    def read_new_lines(self, ended: bool = False) -> bool:
        """Read the lines that were added since the last call. A file that was replaced or truncated is read from its
        start.

        Args:
            ended: whether to read a last line without a line end. Otherwise a later call reads it.

        Returns:
            Whether there were new lines.

        Raises:
            OSError: the file cannot be read.
            DataError: a line is JSON but not an event.
        """
        with self.path.open("rb") as file:
            now = os.fstat(file.fileno())
            if (now.st_dev, now.st_ino) != self._file or now.st_size < self._at:
                self._reset()
                self._file = (now.st_dev, now.st_ino)
            file.seek(self._at)
            before = self.lines
            for text in file:
                if not (ended or text.endswith(b"\n")):
                    break
                self._at += len(text)
                self._add(text)
        return self.lines > before

    def _add(self, text: bytes) -> None:
        self.lines += 1
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # also for bytes that cannot be decoded
            self.torn += 1
            return
        try:
            event, samples = words(line["event"], "event"), whole(line["samples"], "samples")
            if event == "start":
                # The resumed process repeats all lines after the place where it resumed.
                self._values = {key: old for key, old in self._values.items() if key[1] <= samples}
                self.starts.append(samples)
            self._values.pop((event, samples), None)
            self._values[event, samples] = self._parse(line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"expected an event of a training session, got {text[:80]!r} ({error!r})",
                path=str(self.path),
                line=self.lines,
                hint="JsonLines and `feedline bench --log` write such files",
            ) from error

    @property
    def events(self) -> list[T]:
        """Values of the lines so far, in order of samples, each event once."""
        return [self._values[key] for key in sorted(self._values, key=lambda key: key[1])]


def log_feed(path: str | os.PathLike[str], source: Any, *, step: int, size: int, event: str = "progress") -> None:
    """Append a line with the position of a source, for ``feedline audit``.

    Write a line before the first minibatch of a process, by ``event="start"``, then at regular steps, at the end, and
    whenever the size changes under a schedule of sizes.

    Args:
        path: path of the log, created if missing.
        source: a `MinibatchSource`.
        step: number of minibatches that the run was fed before, by all of its processes.
        size: size of the next minibatches, in samples of all ranks.
        event: ``"start"``, ``"progress"`` or ``"end"``.

    Raises:
        ValueError: another event, or an impossible step or size.
        OSError: the file cannot be written.
    """
    if event not in ("start", "progress", "end"):
        raise ValueError(f"expected the event 'start', 'progress' or 'end', got {event!r}")
    if whole(size, "size") == 0:
        raise ValueError("expected a size of at least 1, got 0")
    feed = feed_record(source, whole(step, "step"), size)
    samples = feed["state"]["samples"]
    line = json.dumps({"event": event, "samples": samples, "time": round(time.time(), 3), "feed": feed})
    with open_log(path) as file:
        file.write(line + "\n")


def feed_record(source: Any, step: int, size: int) -> dict[str, Any]:
    """Return the data of a source that an audit needs, in JSON types."""
    return {"step": step, "size": size, "state": source.state_dict()}


def open_log(path: str | os.PathLike[str]) -> TextIO:
    """Open a log for appending. A torn last line gets a line end, so that the next line is not lost."""
    with open(path, "ab+") as before:
        if before.tell():
            before.seek(-1, os.SEEK_END)
            if before.read(1) != b"\n":
                before.write(b"\n")
    return open(path, "a", encoding="utf-8")  # the caller closes it


def read_log(path: str | os.PathLike[str], parse: Callable[[Line], T]) -> RunLog[T]:
    """Read a whole log.

    Args:
        path: path of the file.
        parse: function that returns the value to keep for a line.

    Raises:
        OSError: the file cannot be read.
        DataError: a line is JSON but not an event.
    """
    log = RunLog(path, parse)
    log.read_new_lines(ended=True)
    return log
