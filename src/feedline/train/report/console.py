"""Progress for people: a bar on a terminal, elsewhere a line for each progress span."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TextIO

from feedline.collective.ranks import rank
from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report.base import Silent
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary


class Console(Silent):
    """Reporter for people. See the module. On a terminal a bar shows the label samples done, if `rich` is installed.

    Args:
        file: output. None means standard error.
        bar: whether to show a bar. None means that a terminal gets one.
        rank: the only rank of torch.distributed that prints. None means that all ranks print.
    """

    def __init__(self, file: TextIO | None = None, bar: bool | None = None, rank: int | None = 0) -> None:
        self._file = file if file is not None else sys.stderr
        self._wants_bar = self._file.isatty() if bar is None else bar
        self._rank = rank
        self._bar: Any = None
        self._task: Any = None

    def on_start(self, run: TrainingSession) -> None:
        """Print where a restored run continues."""
        if run.samples:
            self._print(f"continuing after {run.samples:,} label samples")
        if self._wants_bar and self._is_printing_rank():
            from rich.console import Console as RichConsole
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=RichConsole(file=self._file, force_terminal=True), transient=True)
            self._task = self._bar.add_task("training", total=run.max_samples, completed=run.samples)
            self._bar.start()

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=run.samples)

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Print a line."""
        summary, seconds = progress.summary, progress.seconds
        metric = "" if summary.metric is None else f"  metric {summary.metric:.4f}"
        speed = f"{summary.samples / seconds:,.0f} samples/s" if seconds else "-"
        rate = run.trainer.learners[0].learning_rate()
        self._print(
            f"[{progress.number}] {run.samples:,} samples  loss {summary.loss:.5f}{metric}  rate {rate:g}  {speed}, "
            f"{progress.waiting:.1%} waiting for data"
        )

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Print a line."""
        if result.summary.samples:
            metric = "" if result.summary.metric is None else f"  metric {result.summary.metric:.4f}"
            self._print(f"{what} {result.number}: loss {result.summary.loss:.5f}{metric} ({result.summary.samples:,})")

    def on_checkpoint(self, run: TrainingSession, path: Path) -> None:
        """Print a line."""
        self._print(f"saved {path}")

    def on_end(self, run: TrainingSession) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if run.interrupted:
            self._print(f"interrupted after {run.samples:,} label samples")

    def _is_printing_rank(self) -> bool:
        return self._rank is None or rank() == self._rank

    def _print(self, text: str) -> None:
        if not self._is_printing_rank():
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=self._file, flush=True)
