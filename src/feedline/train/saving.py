"""When and where is a run saved? Checkpoints of a session: due, locked, written by rank 0, found by all ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Span, Unit
from feedline.errors import StateError, shown
from feedline.train.agreement import latest
from feedline.train.checkpoint import Checkpoint, Checkpoints
from feedline.train.lock import lock_folders
from feedline.train.progress import SpanMark


@dataclass(slots=True)
class Saving:
    """When and where to checkpoint.

    Args:
        folder: one folder a run.
        every: a span, seconds, or text such as ``"30min"``, ``"2h"``, ``"90s"``: a power cut costs no more. None: at
            the end only. Wall time is decided by rank 0 for all ranks.
        keep: how many of the newest to keep; None: all.
        restore: whether to continue from the latest checkpoint in the folder.
    """

    folder: str | Path
    every: Span | float | str | None = None
    keep: int | None = 3
    restore: bool = True


class Saver:
    """The checkpoints of a session.

    Args:
        saving: when and where; None: nowhere.

    Attributes:
        asked: whether a checkpoint was asked for since the last one.
        pending: whether there is something that the last checkpoint does not hold.
    """

    def __init__(self, saving: Saving | None) -> None:
        every = None if saving is None else saving.every
        on_counts = every if isinstance(every, Span) else None
        self._mark = SpanMark(on_counts)
        self._seconds = None if every is None or on_counts is not None else seconds_of(every)  # type: ignore[arg-type]
        self._checkpoints = None if saving is None else Checkpoints(saving.folder, saving.keep)
        self._restores = saving is not None and saving.restore
        self._written_at = 0.0
        self.asked = self.pending = False

    def start_clock(self) -> None:
        """Count the time between checkpoints from now."""
        self._written_at = time.monotonic()

    def due(self, counts: Mapping[Unit, int]) -> bool:
        """Whether a span of samples, minibatches or sweeps has become full since the last call."""
        return self._mark.crossed(counts)

    def due_by_time(self) -> bool:
        """Whether the last checkpoint is older than it may become."""
        return self._seconds is not None and time.monotonic() - self._written_at >= self._seconds

    @contextmanager
    def locked(self, ranks: Ranks, others: Iterable[Path]) -> Iterator[None]:
        """Open a block in which no other session writes to this folder, nor to ``others``."""
        folders = [] if self._checkpoints is None else [self._checkpoints.folder]
        with ranks.first(lambda: lock_folders([*folders, *others])) or nullcontext():
            yield

    def begin(self) -> bool:
        """Note that a checkpoint is made now; whether there is a folder for it."""
        self.start_clock()
        self.asked = self.pending = False
        return self._checkpoints is not None

    def write(self, samples: int, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint; on rank 0 alone."""
        assert self._checkpoints is not None
        return self._checkpoints.save(samples, tensors, state)

    def restore(self, ranks: Ranks, load: Callable[[Checkpoint], None]) -> Path | None:
        """Load the latest checkpoint that every rank can read. A collective call.

        Returns:
            The folder; None if nothing was restored.

        Raises:
            StateError: it does not fit, on one rank or on all.
        """
        found = latest(self._checkpoints, ranks) if self._checkpoints is not None and self._restores else None
        if found is None:
            return None
        trouble: Exception | None = None
        try:
            load(found)
        except StateError as error:
            what = f"the run cannot go on from {found.path}: {error.what}"
            trouble = StateError(what, saved=error.saved, current=error.current, hint=error.hint)
            trouble.__cause__ = error
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            trouble = StateError(
                f"expected a session's checkpoint in {found.path}, it does not fit: {shown(error, 200)}"
            )
            trouble.__cause__ = error
        ranks.check(trouble)
        self.pending = False
        return found.path.parent


def seconds_of(duration: float | str) -> float:
    """Seconds of a number of them, or of text such as ``"30min"``, ``"2h"``, ``"1h30min"``, ``"90s"``.

    Raises:
        ValueError: not a duration, or not positive.
    """
    seconds = duration
    if isinstance(duration, str):
        units = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|s)", duration)
        if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*(d|h|min|s)|\s", "", duration):
            raise ValueError(f'expected a duration such as "30min", "2h" or "90s", got {duration!r}')
        seconds = sum(float(n) * units[unit] for n, unit in parts)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"expected a positive number of seconds, got {duration!r}")
    return float(seconds)
