"""The base class of reporters, which ignores all events."""

from __future__ import annotations

from pathlib import Path

from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary


class Silent:
    """Reporter that ignores all events. Override the methods of the events to report."""

    def on_start(self, run: TrainingSession) -> None:
        """Called when the run starts or resumes."""

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Called after each update."""

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Called after each progress span, and at the end of the run if one has begun."""

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Called after a validation or the final test."""

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """Called when a checkpoint is on disk."""

    def on_end(self, run: TrainingSession) -> None:
        """Called when the run has ended, for whatever reason."""
