"""The log of a run, read back: JSON lines, one an event, each with ``event`` and ``samples`` (label samples so far).

A process that is killed leaves a torn last line, and what it wrote after its last checkpoint is written again by the
one that goes on. Read back, each part of the run is there once, as it was trained the last time.
Cost: one pass; memory for what ``keep`` makes of each line.
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
class RunLog(Generic[T]):
    """What was found.

    Attributes:
        events: in order of samples, each once.
        starts: label samples at which a process began or went on, in the order of the file.
        lines: read, with those that were trained again and those that are torn.
        torn: lines that are no JSON, as a kill leaves them.
    """

    events: list[T]
    starts: list[int]
    lines: int
    torn: int


def read_log(path: str | os.PathLike[str], keep: Callable[[Line], T]) -> RunLog[T]:
    """Read a log.

    Args:
        path: the file.
        keep: what to remember of a line.

    Raises:
        OSError: it cannot be read.
        DataError: a line is JSON, and no event.
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
                    # What was written after the place where a process went on is that process's to tell.
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
    return RunLog(events, starts, number, torn)
