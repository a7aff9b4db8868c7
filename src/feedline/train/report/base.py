"""A reporter that says nothing: the base of those that say something."""

from __future__ import annotations

from pathlib import Path

from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary


class Silent:
    """Told everything, says nothing; override what you want to hear of."""

    def on_start(self, run: TrainingSession) -> None:
        """The run begins or goes on."""

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """A minibatch was trained on."""

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """A progress span is full, or the run ends with one begun."""

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """A validation or the test at the end is done."""

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """A checkpoint is on disk."""

    def on_end(self, run: TrainingSession) -> None:
        """The run is over, one way or another."""
