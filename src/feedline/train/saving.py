"""Checkpoints of a session: when they are due, which ranks write them, and how all ranks load the same one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Span
from feedline.errors import StateError, shown
from feedline.train.agreement import latest_checkpoint
from feedline.train.checkpoint import Checkpoint, Checkpoints
from feedline.train.lock import lock_folders
from feedline.train.progress import SpanMark
from feedline.train.shards import load_in_layout, save_shards
from feedline.train.strategy import HoldsParts
from feedline.train.trainer import Trainer
from feedline.train.unwrap import unwrap_model
from feedline.updates.native_tensors import is_sharded


@dataclass(slots=True)
class Saving:
    """Settings of checkpoints.

    Args:
        folder: folder of the checkpoints, one for each run.
        every: span, number of seconds, or text such as ``"30min"``, ``"2h"``, ``"90s"``: the longest time that a power
            cut can lose. None means at the end only. Rank 0's clock counts for all ranks.
        keep: number of checkpoints to keep, the newest. None means all.
        restore: whether to continue from the latest checkpoint in the folder.
    """

    folder: str | Path
    every: Span | float | str | None = None
    keep: int | None = 3
    restore: bool = True


class Saver:
    """Writer and reader of a session's checkpoints.

    Args:
        saving: settings. None means no checkpoints.

    Attributes:
        mark: ends of spans of samples, minibatches or sweeps.
        requested: whether a checkpoint was requested since the last one.
        pending: whether the run has progressed since the last checkpoint.
    """

    def __init__(self, saving: Saving | None) -> None:
        every = None if saving is None else saving.every
        on_counts = every if isinstance(every, Span) else None
        self.mark = SpanMark(on_counts)
        self._seconds = None if every is None or on_counts is not None else seconds_of(every)  # type: ignore[arg-type]
        self._checkpoints = None if saving is None else Checkpoints(saving.folder, saving.keep)
        self._restores = saving is not None and saving.restore
        self._written_at = 0.0
        self.requested = self.pending = False

    def start_clock(self) -> None:
        """Start counting the time between checkpoints."""
        self._written_at = time.monotonic()

    def due_by_time(self) -> bool:
        """Return whether the last checkpoint is older than ``every``."""
        return self._seconds is not None and time.monotonic() - self._written_at >= self._seconds

    def locked(self, ranks: Ranks, additional: Iterable[Path]) -> AbstractContextManager[Any]:
        """Open a block in which no other session writes to the folder of the checkpoints or to ``additional`` ones."""
        folders = [] if self._checkpoints is None else [self._checkpoints.folder]
        return ranks.on_rank_0(lambda: lock_folders([*folders, *additional])) or nullcontext()

    def begin(self) -> bool:
        """Record that a checkpoint is being made. Return whether there is a folder for it."""
        self.start_clock()
        self.requested = self.pending = False
        return self._checkpoints is not None

    def write(
        self,
        samples: int,
        state_dict: Callable[[], tuple[dict[str, torch.Tensor], Any]],
        state: Mapping[str, Any],
        ranks: Ranks,
        sharded: bool,
    ) -> Path | None:
        """Write a checkpoint. A collective call: on every rank it returns once the checkpoint is written.

        Args:
            samples: number of label samples, for the name of the checkpoint.
            state_dict: function that returns the trainer's tensors and state, called on rank 0, and on all ranks if
                tensors are sharded.
            state: state of everything else.
            ranks: ranks of the session.
            sharded: whether every rank holds parts of tensors, and writes them.

        Returns:
            The folder of the checkpoint on rank 0. None on other ranks.

        Raises:
            OSError: rank 0 cannot write. Other ranks raise a StateError.
        """
        checkpoints = self._checkpoints
        assert checkpoints is not None
        if not sharded:

            def write() -> Path:
                tensors, trainer_state = state_dict()
                return checkpoints.save(samples, tensors, {**state, "trainer": trainer_state})

            return ranks.on_rank_0(write)
        tensors, trainer_state = state_dict()
        shards = {name: tensor for name, tensor in tensors.items() if is_sharded(tensor)}
        path, error, begun = None, None, False
        if ranks.rank:
            folder = ranks.gather_json(None)[0]
            if folder is not None:
                save_shards(Path(folder), shards)
        else:

            def save(folder: Path) -> Any:
                nonlocal begun
                begun = True
                ranks.gather_json(str(folder))
                return save_shards(folder, shards)

            unsharded = {name: tensor for name, tensor in tensors.items() if name not in shards}
            try:
                path = checkpoints.save(samples, unsharded, {**state, "trainer": trainer_state}, save)
            except OSError as raised:
                error = raised
                if not begun:
                    ranks.gather_json(None)
        ranks.check(error)
        return path

    def restore(self, ranks: Ranks, load: Callable[[Checkpoint], None]) -> Path | None:
        """Load the latest checkpoint that every rank can read. A collective call.

        Returns:
            Path of the checkpoint. None if there is none.

        Raises:
            StateError: the checkpoint does not fit the run, on one rank or on all.
        """
        if self._checkpoints is None or not self._restores:
            return None
        checkpoint = latest_checkpoint(self._checkpoints, ranks)
        if checkpoint is None:
            return None
        failure: Exception | None = None
        try:
            load(checkpoint)
        except StateError as error:
            message = f"the run cannot continue from {checkpoint.path}: {error.what}"
            failure = StateError(message, saved=error.saved, current=error.current, hint=error.hint)
            failure.__cause__ = error
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
            message = f"expected a session's checkpoint in {checkpoint.path}, got a malformed one: {shown(error, 200)}"
            failure = StateError(message)
            failure.__cause__ = error
        ranks.check(failure)
        self.pending = False
        return checkpoint.path.parent


def tensors_for(checkpoint: Checkpoint, trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint as a trainer holds them: whole, or only the parts of this rank.

    Raises:
        StateError: a file is damaged.
    """
    if checkpoint.shards is None and not isinstance(trainer.strategy, HoldsParts):
        return checkpoint.tensors
    parameters = dict(unwrap_model(trainer.model).named_parameters())
    for learner in trainer.learners:
        parameters |= learner.parameters
    return load_in_layout(checkpoint.tensors, checkpoint.path, checkpoint.shards, trainer.state_dict()[0], parameters)


def seconds_of(duration: float | str) -> float:
    """Return a duration in seconds: a number, or text such as ``"30min"``, ``"2h"``, ``"1h30min"``, ``"90s"``.

    Raises:
        ValueError: the text is not a duration, or the duration is not positive.
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
