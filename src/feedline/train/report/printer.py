"""CNTK's progress lines, to the character: for logs that tools and eyes know.

``frequency=None``: a line an epoch (progress span). ``n``: also one every n minibatches. ``0``: a table that prints
after 1, 2, 4, 8, … minibatches more. The format of every line is recorded from CNTK 2.7.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from feedline.train.report.base import Silent
from feedline.train.session import Evaluated, Progress, TrainingSession
from feedline.train.trainer import Summary

HEARTBEAT_SECONDS = 10.0


class ProgressPrinter(Silent):
    """See the module.

    Args:
        frequency: see the module.
        first: with ``frequency=n``, print each of so many first minibatches of an epoch too.
        tag: stands in the lines of epochs.
        log_to_file: write to ``<name>rank<i>`` (``<name>`` without a rank) instead of standard output.
        rank: of this process; None: the only one.
        num_epochs: how many epochs there will be, for the lines of epochs.
        metric_is_pct: print the metric as a percentage.
        heartbeat: print ``PROGRESS: 0.00%`` now and then, for job schedulers.
    """

    def __init__(
        self,
        frequency: int | None = None,
        first: int = 0,
        tag: str = "",
        log_to_file: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        num_epochs: int | None = None,
        metric_is_pct: bool = True,
        heartbeat: bool = False,
    ) -> None:
        if frequency is not None and frequency < 0:
            raise ValueError(f"expected a frequency of at least 0 or None, got {frequency}")
        self.frequency, self.first, self.num_epochs, self.metric_is_pct = frequency, first, num_epochs, metric_is_pct
        self.tag = f"[{tag}] " if tag else ""
        self.heartbeat = heartbeat
        self._file: TextIO | None = None
        self._updates = self._epochs = self._tests = 0
        self._since_start = self._since_print = _Running()
        self._last_beat = -math.inf
        if log_to_file is not None:
            path = Path(log_to_file) if rank is None else Path(f"{os.fspath(log_to_file)}rank{rank}")
            print(f"Redirecting log to file {path}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
            self.line(str(path))
            self.line(f"CNTKCommandTrainInfo: train : {num_epochs if num_epochs is not None else 300}")
            self.line(
                f"CNTKCommandTrainInfo: CNTKNoMoreCommands_Total : {num_epochs if num_epochs is not None else 300}"
            )
            self.line("CNTKCommandTrainBegin: train")
        if frequency == 0:
            self.line(" average      since    average      since      examples")
            self.line("    loss       last     metric       last              ")
            self.line(" ------------------------------------------------------")

    def line(self, text: str) -> None:
        """Print one line."""
        print(text, file=self._file if self._file is not None else sys.stdout, flush=True)

    # ---- as a reporter ------------------------------------------------------------------------------------------

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """See `update`."""
        self._beat()
        if self.frequency is None or not summary.samples:
            self._updates += 1
            return
        self.update(summary)

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """See `epoch`."""
        self.epoch(progress.summary, progress.seconds)

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """See `test`."""
        self._beat()
        if result.summary.samples:
            self.test(result.summary, result.minibatches)

    def on_end(self, run: TrainingSession) -> None:
        """Ends a log file."""
        self.close()

    # ---- the lines ----------------------------------------------------------------------------------------------

    def update(self, summary: Summary) -> None:
        """A minibatch was trained on."""
        self._updates += 1
        self._since_start = self._since_start.plus(summary)
        self._since_print = self._since_print.plus(summary)
        updates, since = self._updates, self._since_print
        if self.frequency == 0:
            if (updates + 1) & updates == 0:
                start = self._since_start
                columns = [_short(start.loss), _short(since.loss), _short(start.metric), _short(since.metric)]
                self.line(f" {columns[0]}   {columns[1]}   {columns[2]}   {columns[3]}    {start.samples:10d}")
                self._since_print = _Running()
        elif self.frequency and (updates % self.frequency == 0 or updates <= self.first):
            first = updates - since.updates + 1
            self.line(
                f" Minibatch[{first:4d}-{updates:4d}]: loss = {since.loss:0.6f} * {since.samples:d}, "
                f"metric = {self._metric(since.metric)} * {since.samples:d};"
            )
            self._since_print = _Running()

    def epoch(self, summary: Summary, seconds: float) -> None:
        """An epoch (progress span) is over."""
        self._epochs += 1
        of = f" of {self.num_epochs}" if self.num_epochs is not None else ""
        seconds = round(seconds, 3)
        speed = summary.samples / seconds if seconds > 0 else 0.0
        if self.frequency != 0:
            metric = summary.metric if summary.metric is not None else 0.0
            self.line(
                f"Finished Epoch[{self._epochs}{of}]: {self.tag}loss = {summary.loss:0.6f} * {summary.samples:d}, "
                f"metric = {self._metric(metric)} * {summary.samples:d} {seconds:0.3f}s ({speed:5.1f} samples/s);"
            )
        self._updates = 0
        self._since_start = self._since_print = _Running()

    def test(self, summary: Summary, minibatches: int) -> None:
        """A validation or test is over."""
        self._tests += 1
        metric = summary.metric if summary.metric is not None else 0.0
        self.line(
            f"Finished Evaluation [{self._tests}]: Minibatch[1-{minibatches}]: "
            f"metric = {self._metric(metric)} * {summary.samples:d};"
        )

    def close(self) -> None:
        """End a log file."""
        if self._file is not None:
            self.line("CNTKCommandTrainEnd: train")
            self._file.close()
            self._file = None

    def _beat(self) -> None:
        now = time.monotonic()
        if self.heartbeat and now - self._last_beat >= HEARTBEAT_SECONDS:
            print("PROGRESS: 0.00%", flush=True)  # job schedulers read standard output, whatever the log
            self._last_beat = now

    def _metric(self, metric: float | None) -> str:
        value = metric if metric is not None else 0.0
        return f"{value * 100.0:0.2f}%" if self.metric_is_pct else f"{value:0.6f}"


class _Running:
    """Sums, added up on the host in double precision."""

    __slots__ = ("_loss", "_metric", "samples", "updates")

    def __init__(self, loss: float = 0.0, metric: float | None = None, samples: int = 0, updates: int = 0) -> None:
        self._loss, self._metric, self.samples, self.updates = loss, metric, samples, updates

    def plus(self, summary: Summary) -> _Running:
        metric: Any = self._metric
        if summary.metric_sum is not None:
            metric = (metric or 0.0) + float(summary.metric_sum)
        loss = self._loss + float(summary.loss_sum)
        return _Running(loss, metric, self.samples + summary.samples, self.updates + 1)

    @property
    def loss(self) -> float:
        return self._loss / self.samples if self.samples else float("nan")

    @property
    def metric(self) -> float | None:
        return None if self._metric is None or not self.samples else self._metric / self.samples


def _short(value: float | None) -> str:
    return " " * 8 if value is None else f"{value:8.3g}"
