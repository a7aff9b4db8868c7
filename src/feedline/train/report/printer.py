"""CNTK's progress lines, character for character, for tools and people that read CNTK's logs.

With ``frequency=None`` there is a line for each epoch (progress span). With ``n`` there is also one every n
minibatches. With ``0`` there is a table with a row after 1, 2, 4, 8, … further minibatches. The format of every line
was recorded from CNTK 2.7.
"""

from __future__ import annotations

import math
import os
import time

from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report.base import Silent
from feedline.train.report.cntk_progress import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    ReportFile,
    epoch_line,
    evaluation_line,
    is_table_row,
    minibatch_line,
    table_row,
)
from feedline.train.session import TrainingSession
from feedline.train.summary import NOTHING, Summary, plus


class ProgressPrinter(Silent):
    """Reporter that prints CNTK's lines. See the module.

    Args:
        frequency: see the module.
        first: number of minibatches at the start of an epoch that get a line each, with ``frequency=n``.
        tag: label in the lines of epochs.
        log_to_file: name of a file to write instead of standard output: ``<name>rank<i>``, or ``<name>`` without a
            rank.
        rank: rank of this process. None means the only process.
        num_epochs: total number of epochs, for the lines of epochs.
        metric_is_pct: whether to print the metric as a percentage.
        heartbeat: whether to print ``PROGRESS: 0.00%`` from time to time, for job schedulers.
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
        self.tag, self.heartbeat = tag, heartbeat
        self._log = ReportFile(log_to_file, rank, num_epochs, table=frequency == 0)
        self._ended = False
        self._updates = self._epochs = self._tests = 0
        self._summed = 0  # number of minibatches in `_since_print`
        self._since_start = self._since_print = NOTHING
        self._last_beat = -math.inf

    def line(self, text: str) -> None:
        """Print one line."""
        self._log.line(text)

    # ---- events -------------------------------------------------------------------------------------------------

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
        """End a log file."""
        self.close()

    # ---- the lines ----------------------------------------------------------------------------------------------

    def update(self, summary: Summary) -> None:
        """Add a minibatch, and print the lines that are due."""
        self._updates += 1
        self._since_start = start = plus(self._since_start, summary)
        self._since_print = since = plus(self._since_print, summary)
        self._summed += 1
        updates = self._updates
        if self.frequency == 0:
            if is_table_row(updates):
                self.line(table_row(start.loss, since.loss, start.metric, since.metric, start.samples))
                self._since_print = NOTHING
        elif self.frequency and (updates % self.frequency == 0 or updates <= self.first):
            first, metric = updates - self._summed + 1, since.metric or 0.0
            self.line(minibatch_line(first, updates, since.loss, metric, since.samples, self.metric_is_pct))
            self._since_print, self._summed = NOTHING, 0

    def epoch(self, summary: Summary, seconds: float) -> None:
        """Print the end of an epoch (progress span)."""
        self._epochs += 1
        if self.frequency != 0:
            number, of, metric = self._epochs, self.num_epochs, summary.metric or 0.0
            percent = self.metric_is_pct
            self.line(epoch_line(number, of, self.tag, summary.loss, metric, summary.samples, seconds, percent))
        self._updates = self._summed = 0
        self._since_start = self._since_print = NOTHING

    def test(self, summary: Summary, minibatches: int) -> None:
        """Print the end of a validation or test."""
        self._tests += 1
        metric, percent = summary.metric or 0.0, self.metric_is_pct
        self.line(evaluation_line(self._tests, minibatches, metric, summary.samples, percent))

    def close(self) -> None:
        """End a log file."""
        if self._log.to_file and not self._ended:
            self.line(ReportFile.END)
        self._ended = True
        self._log.close()

    def _beat(self) -> None:
        now = time.monotonic()
        if self.heartbeat and now - self._last_beat >= HEARTBEAT_SECONDS:
            print(HEARTBEAT, flush=True)  # job schedulers read standard output, even with a log file
            self._last_beat = now
