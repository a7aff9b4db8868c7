"""`ProgressWriter`: base class of progress writers, which calls their methods when they are due."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

# Running totals since the last summary: before and after the updates that a callback reports.
Counts = tuple[int, int]
Sums = tuple[float, float]


class Totals(NamedTuple):
    """The totals of a part of the training, or of a test, for a summary.

    Attributes:
        samples: number of label samples.
        updates: number of minibatches.
        summaries: number of summaries so far, including this one.
        loss, metric: sums over the samples.
        milliseconds: duration.
    """

    samples: int
    updates: int
    summaries: int
    loss: float
    metric: float
    milliseconds: int


class ProgressWriter:
    """Base of progress writers: counts updates, and calls the ``on_…`` methods when they are due.

    Sums run since the last summary. A callback gets each sum as a pair, before and after the updates that it reports.
    They stay on the device until a callback is due.

    Args:
        train_freq: updates between two calls of `on_write_training_update`. 0: call it after 1, 3, 7, 15, … updates.
        train_first: number of updates at the start after each of which it is also called.
        test_freq, test_first: likewise for `on_write_test_update`.
        sync_freq, sync_first: likewise for `on_write_distributed_sync_update`.
    """

    def __init__(
        self, train_freq: int, train_first: int, test_freq: int, test_first: int, sync_freq: int, sync_first: int
    ) -> None:
        self._training = _Window(train_freq, train_first)
        self._test = _Window(test_freq, test_first)
        self._sync = _Window(sync_freq, sync_first)

    # ---- to be overridden -------------------------------------------------------------------------

    def on_write_training_update(
        self, samples: Counts, updates: Counts, aggregate_loss: Sums, aggregate_metric: Sums
    ) -> None:
        """Handle minibatches that were trained on."""

    def on_write_test_update(self, samples: Counts, updates: Counts, aggregate_metric: Sums) -> None:
        """Handle minibatches that were tested."""

    def on_write_distributed_sync_update(self, samples: Counts, updates: Counts, aggregate_metric: Sums) -> None:
        """Handle a synchronization of workers."""

    def on_write_training_summary(
        self,
        samples: int,
        updates: int,
        summaries: int,
        aggregate_loss: float,
        aggregate_metric: float,
        elapsed_milliseconds: int,
    ) -> None:
        """Handle the end of a part of the training. ``summaries`` counts from 1."""
        self._training_summary(
            Totals(samples, updates, summaries, aggregate_loss, aggregate_metric, elapsed_milliseconds)
        )

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: float, elapsed_milliseconds: int
    ) -> None:
        """Handle the end of a test. ``summaries`` counts from 1."""
        self._test_summary(Totals(samples, updates, summaries, 0.0, aggregate_metric, elapsed_milliseconds))

    def _training_summary(self, totals: Totals) -> None:
        """Handle the end of a part of the training, in writers of this package."""

    def _test_summary(self, totals: Totals) -> None:
        """Handle the end of a test, in writers of this package."""

    def on_training_update_end(self) -> None:
        """Handle the end of every update."""

    def write(self, key: str, value: float) -> None:
        """Write a learner's number, such as ``"Learning rate per minibatch"``, at its first use and each change."""

    # ---- for trainers -----------------------------------------------------------------------------

    def update_training(self, samples: int, aggregate_loss: Any, aggregate_metric: Any) -> None:
        """Count a minibatch that was trained on. Sums run since the last summary."""
        self._training.update(
            samples,
            aggregate_loss,
            aggregate_metric,
            lambda w: self.on_write_training_update(w.samples, w.updates, w.loss, w.metric),
        )
        self.on_training_update_end()

    def update_test(self, samples: int, aggregate_metric: Any) -> None:
        """Count a minibatch that was tested."""
        self._test.update(
            samples,
            None,
            aggregate_metric,
            lambda w: self.on_write_test_update(w.samples, w.updates, w.metric),
        )

    def update_distributed_sync(self, samples: int, aggregate_metric: Any) -> None:
        """Count a synchronization of workers."""
        self._sync.update(
            samples,
            None,
            aggregate_metric,
            lambda w: self.on_write_distributed_sync_update(w.samples, w.updates, w.metric),
        )

    def write_training_summary(self, aggregate_loss: Any, aggregate_metric: Any) -> None:
        """Summarize a part of the training."""
        self.on_write_training_summary(*self._training.summarize(aggregate_loss, aggregate_metric))
        self._training.reset()

    def write_test_summary(self, aggregate_metric: Any) -> None:
        """Summarize a test."""
        samples, updates, summaries, _, metric, elapsed = self._test.summarize(None, aggregate_metric)
        self.on_write_test_summary(samples, updates, summaries, metric, elapsed)
        self._test.reset()

    def total_training_updates(self) -> int:
        """Return the number of updates so far."""
        return self._training.total_updates

    def total_test_updates(self) -> int:
        """Return the number of tested minibatches so far."""
        return self._test.total_updates


class _Window:
    """Pairs (before, after) since the last callback, and counts since the last summary."""

    def __init__(self, frequency: int, first: int) -> None:
        self._frequency, self._first = frequency, first
        self.total_updates = self.summaries = 0
        self.reset()

    def reset(self) -> None:
        self.samples = self.updates = (0, 0)
        self.loss = self.metric = (0.0, 0.0)
        self._began = time.perf_counter()

    def update(self, samples: int, loss: Any, metric: Any, write: Callable[[_Window], None]) -> None:
        if samples == 0:
            return
        self.samples = (self.samples[0], self.samples[1] + samples)
        self.updates = (self.updates[0], self.updates[1] + 1)
        self.total_updates += 1
        if self._is_due(self.updates[1]):
            self._take(loss, metric)
            write(self)
            self.samples, self.updates = (self.samples[1],) * 2, (self.updates[1],) * 2
            self.loss, self.metric = (self.loss[1],) * 2, (self.metric[1],) * 2

    def summarize(self, loss: Any, metric: Any) -> Totals:
        if self.samples[1]:
            self._take(loss, metric)
        self.summaries += 1
        elapsed = int((time.perf_counter() - self._began) * 1000)
        return Totals(self.samples[1], self.updates[1], self.summaries, self.loss[1], self.metric[1], elapsed)

    def _take(self, loss: Any, metric: Any) -> None:
        # Converting to float waits for the device.
        if loss is not None:
            self.loss = (self.loss[0], float(loss))
        if metric is not None:
            self.metric = (self.metric[0], float(metric))

    def _is_due(self, updates: int) -> bool:
        if self._frequency == 0:
            return (updates + 1) & updates == 0
        return updates % self._frequency == 0 or updates <= self._first
