"""Reads the log of a run: JSON lines, one per event, each with ``event`` and ``samples`` (label samples so far).

A killed process leaves a torn last line, and the one that resumes writes again what the first wrote after its last
checkpoint. The result has each part of the run once, as it was trained the last time.
Cost: one pass; memory for what ``keep`` returns for each line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from feedline.errors import DataError
from feedline.runs.fields import whole, words

T = TypeVar("T")
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Log(Generic[T]):
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


def read_log(path: str | os.PathLike[str], keep: Callable[[Line], T]) -> Log[T]:
    """Read a log.

    Args:
        path: path of the file.
        keep: function from a line to what to remember of it.

    Raises:
        OSError: the file cannot be read.
        DataError: a line is JSON but not an event.
    """
    kept: dict[tuple[str, int], T] = {}
    starts: list[int] = []
    number = torn = 0
    with Path(path).open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):  # undecodable bytes too
                torn += 1
                continue
            try:
                event, samples = words(line["event"], "event"), whole(line["samples"], "samples")
                if event == "start":
                    # The resumed process writes again whatever was logged after the place where it resumed.
                    kept = {key: old for key, old in kept.items() if key[1] <= samples}
                    starts.append(samples)
                kept.pop((event, samples), None)
                kept[event, samples] = keep(line)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"expected an event of a training session, got {text[:80]!r} ({error!r})",
                    path=str(path),
                    line=number,
                    hint="JsonLines and `feedline bench --log` write such files",
                ) from error
    events = [kept[key] for key in sorted(kept, key=lambda key: key[1])]
    return Log(events, starts, number, torn)
