"""TensorBoard events, under the tags of CNTK."""

from __future__ import annotations

import os
from typing import Any

from feedline.collective.ranks import rank
from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report.base import Silent
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary


class TensorBoard(Silent):
    """Reporter of ``minibatch/avg_loss``, ``summary/avg_loss``, ``validation/…`` and learning rates over label samples.

    Args:
        folder: folder of the event files.
        every: number of minibatches between ``minibatch/…`` values, each of which waits for the device. 0 means none.
        rank: the only rank that writes.

    Raises:
        ModuleNotFoundError: tensorboard is not installed (``pip install tensorboard``).
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 0, rank: int = 0) -> None:
        self._folder, self._every, self._rank = os.fspath(folder), every, rank
        _import_tensorboard()
        self._writer: Any = None

    def on_start(self, run: TrainingSession) -> None:
        """Open the event file. Points after the position at which the run starts or resumes are dropped."""
        if rank() == self._rank:
            # Points at that position were written before the checkpoint and are not written again.
            self._writer = event_writer(self._folder, purge_step=run.samples + 1)

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Write averages every ``every`` minibatches."""
        if self._every and run.minibatches % self._every == 0 and summary.samples:
            self._write("minibatch", run, summary)

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Write averages, learning rates and the fraction of time spent waiting."""
        self._write("summary", run, progress.summary)
        if self._writer is not None:
            for i, learner in enumerate(run.trainer.learners):
                self._writer.add_scalar(f"learner{i}/rate", learner.learning_rate(), run.samples)
            self._writer.add_scalar("feed/waiting", progress.waiting, run.samples)

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Write averages."""
        self._write(what, run, result.summary)

    def on_end(self, run: TrainingSession) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, group: str, run: TrainingSession, summary: Summary) -> None:
        if self._writer is None or not summary.samples:
            return
        self._writer.add_scalar(f"{group}/avg_loss", summary.loss, run.samples)
        if summary.metric is not None:
            self._writer.add_scalar(f"{group}/avg_metric", summary.metric, run.samples)


def event_writer(folder: str | os.PathLike[str], purge_step: int | None = None) -> Any:
    """Return a `torch.utils.tensorboard.SummaryWriter`. Existing points from ``purge_step`` on are dropped.

    Raises:
        ModuleNotFoundError: tensorboard is not installed (``pip install tensorboard``).
    """
    return _import_tensorboard()(os.fspath(folder), purge_step=purge_step)


def _import_tensorboard() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("tensorboard is not installed; run: pip install tensorboard") from error
    return SummaryWriter
