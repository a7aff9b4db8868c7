"""`cntk.logging.progress_print`: progress as lines, TensorBoard events, or function calls."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from feedline.cntk._names import absent_members, names_of
from feedline.cntk.logging._writer import Counts, ProgressWriter, Sums, Totals
from feedline.train.report.cntk_progress import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    ReportFile,
    epoch_line,
    evaluation_line,
    minibatch_line,
    table_row,
)
from feedline.train.report.tensorboard import event_writer

__all__, __getattr__ = names_of(__name__)

_NEVER = sys.maxsize


@absent_members("cntk.logging.progress_print")
class ProgressPrinter(ProgressWriter):
    """CNTK's lines, character for character, on standard output or in a file.

    Args:
        freq: minibatches between two lines. 0: a table, with a row after 1, 3, 7, 15, … minibatches. None means no
            lines.
        first: number of minibatches at the start that have a line each.
        tag: label in the lines of summaries.
        log_to_file: name of a file to write instead of standard output.
        rank: rank of this worker, appended to the name as ``rank<i>``. None means that nothing is appended.
        gen_heartbeat: whether to print a heartbeat on standard output about every 10 seconds.
        num_epochs: total number of summaries. None if unknown.
        test_freq, test_first: ``freq`` and ``first`` for tests.
        metric_is_pct: whether the metric is a fraction to print as a percentage.
        distributed_freq, distributed_first: ``freq`` and ``first`` for synchronizations of workers.
    """

    def __init__(
        self,
        freq: int | None = None,
        first: int = 0,
        tag: str = "",
        log_to_file: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        gen_heartbeat: bool = False,
        num_epochs: int | None = None,
        test_freq: int | None = None,
        test_first: int = 0,
        metric_is_pct: bool = True,
        distributed_freq: int | None = None,
        distributed_first: int = 0,
    ) -> None:
        freqs = [_NEVER if f is None else f for f in (freq, test_freq, distributed_freq)]
        super().__init__(freqs[0], first, freqs[1], test_first, freqs[2], distributed_first)
        self.freq, self.test_freq = freqs[0], freqs[1]
        self.tag, self.num_epochs, self.metric_is_pct = tag, num_epochs, metric_is_pct
        self.gen_heartbeat = gen_heartbeat
        self._log = ReportFile(log_to_file, rank, num_epochs, table=freq == 0)
        self._last_beat = -math.inf
        self._by_hand = (0.0, 0.0, 0)  # loss, metric and samples since the last summary, of `update`

    def log(self, message: str) -> None:
        """Write a line."""
        self._log.line(message)

    def end_progress_print(self, msg: str = "") -> None:
        """Write the last line, and in a file ``msg`` after it."""
        self._log.line(ReportFile.END)
        if msg and self._log.to_file:
            self._log.line(msg)
        self._log.close()

    def write(self, key: str, value: float) -> None:
        """Write a line."""
        self._log.line(f"{key}: {value}")

    def on_write_training_update(
        self, samples: Counts, updates: Counts, aggregate_loss: Sums, aggregate_metric: Sums
    ) -> None:
        """Write a line or row."""
        self._write_update(samples, updates, aggregate_loss, aggregate_metric, self.freq == 0)

    def on_write_test_update(self, samples: Counts, updates: Counts, aggregate_metric: Sums) -> None:
        """Write a line or row."""
        self._write_update(samples, updates, None, aggregate_metric, self.test_freq == 0)

    def _write_update(self, samples: Counts, updates: Counts, loss: Sums | None, metric: Sums, as_row: bool) -> None:
        count, recent_loss = samples[1] - samples[0], None if loss is None else _recent(loss, samples)
        if as_row:
            average_loss = None if loss is None else loss[1] / samples[1]
            row = table_row(average_loss, recent_loss, metric[1] / samples[1], _recent(metric, samples), samples[1])
            self._log.line(row)
        else:
            first, last, shown = updates[0] + 1, updates[1], _recent(metric, samples)
            self._log.line(minibatch_line(first, last, recent_loss, shown, count, self.metric_is_pct))

    def on_write_distributed_sync_update(self, samples: Counts, updates: Counts, aggregate_metric: Sums) -> None:
        """Write a line."""
        self._log.line(
            f"Distributed training: #Syncs elapsed = {updates[1] - updates[0]}, "
            f"#Samples elapsed = {samples[1] - samples[0]}"
        )

    def _training_summary(self, totals: Totals) -> None:
        """Write a line, unless there is a table."""
        if self.freq != 0:
            samples, seconds, percent = totals.samples, totals.milliseconds / 1000, self.metric_is_pct
            loss, metric, number = _average(totals.loss, samples), _average(totals.metric, samples), totals.summaries
            self._log.line(epoch_line(number, self.num_epochs, self.tag, loss, metric, samples, seconds, percent))

    def _test_summary(self, totals: Totals) -> None:
        """Write a line."""
        samples, metric = totals.samples, _average(totals.metric, totals.samples)
        self._log.line(evaluation_line(totals.summaries, totals.updates, metric, samples, self.metric_is_pct))

    def on_training_update_end(self) -> None:
        """Print a heartbeat if one is due."""
        now = time.monotonic()
        if self.gen_heartbeat and now - self._last_beat >= HEARTBEAT_SECONDS:
            print(HEARTBEAT, flush=True)
            self._last_beat = now

    # ---- without a trainer, for older scripts -----------------------------------------------------

    def update(self, loss: float, minibatch_size: int, metric: float | None = None) -> None:
        """Add a trained minibatch with these averages. Deprecated: pass the printer to the trainer."""
        _deprecated("update")
        losses, metrics, samples = self._by_hand
        losses, metrics = losses + loss * minibatch_size, metrics + (metric or 0.0) * minibatch_size
        self._by_hand = losses, metrics, samples + minibatch_size
        self.update_training(minibatch_size, losses, metrics)

    def update_with_trainer(self, trainer: Any, with_metric: bool = False) -> None:
        """Add the last minibatch of ``trainer``. Deprecated: pass the printer to the trainer."""
        if trainer is not None and trainer.previous_minibatch_sample_count:
            metric = trainer.previous_minibatch_evaluation_average if with_metric else None
            self.update(trainer.previous_minibatch_loss_average, trainer.previous_minibatch_sample_count, metric)

    def epoch_summary(self, with_metric: bool = False) -> tuple[float, float, int]:
        """Write the line of an epoch, over calls of `update`. Deprecated: `Trainer.summarize_training_progress`.

        Returns:
            Mean loss and metric per sample, and the number of samples.
        """
        _deprecated("epoch_summary")
        losses, metrics, samples = self._by_hand
        self.write_training_summary(losses, metrics if with_metric else None)
        self._by_hand = (0.0, 0.0, 0)
        return _average(losses, samples), _average(metrics, samples), samples


class TensorBoardProgressWriter(ProgressWriter):
    """Events for TensorBoard, under CNTK's tags.

    Args:
        freq: minibatches between two events of training. None means summaries only.
        log_dir: folder of the event file.
        rank: rank of this worker. Ranks other than 0 and None write nothing.
        model: accepted, but its graph is not drawn.

    Raises:
        ValueError: a frequency below 1.
        ModuleNotFoundError: tensorboard is not installed.
    """

    def __init__(self, freq: int | None = None, log_dir: str = ".", rank: int | None = None, model: Any = None) -> None:
        if freq is not None and freq < 1:
            raise ValueError(f"expected freq to be at least 1 or None, got {freq}")
        super().__init__(_NEVER if freq is None else freq, 0, _NEVER, 0, _NEVER, 0)
        self._events = None if rank else event_writer(log_dir)
        self.closed = False

    def write_value(self, name: str, value: float, step: int) -> None:
        """Write a number at a step.

        Raises:
            RuntimeError: the writer was closed.
        """
        if (events := self._open()) is not None:
            events.add_scalar(str(name), float(value), int(step))

    def write_image(self, name: str, data: Any, step: int) -> None:
        """Write images at a step.

        Args:
            name: name of the images.
            data: array (images, channels, height, width), with 1 or 3 channels, floating point in 0 to 1 or uint8, or
                a dictionary whose first value is such an array, as for a model's outputs.
            step: step of the images.

        Raises:
            RuntimeError: the writer was closed.
            ValueError: another shape.
        """
        images = np.asarray(next(iter(data.values())) if isinstance(data, dict) else data)
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"expected an array (images, channels, height, width) with 1 or 3 channels, got shape {images.shape}"
            )
        if (events := self._open()) is not None:
            events.add_images(str(name), images, int(step))

    def flush(self) -> None:
        """Write pending events to disk.

        Raises:
            RuntimeError: the writer was closed.
        """
        if (events := self._open()) is not None:
            events.flush()

    def close(self) -> None:
        """Close the event file.

        Raises:
            RuntimeError: the writer was closed.
        """
        if (events := self._open()) is not None:
            events.close()
        self.closed = True

    def write(self, key: str, value: float) -> None:
        """Write a learner's number, over updates."""
        self.write_value(key, value, self.total_training_updates())

    def on_write_training_update(
        self, samples: Counts, updates: Counts, aggregate_loss: Sums, aggregate_metric: Sums
    ) -> None:
        """Write averages since the last event."""
        step = self.total_training_updates()
        self.write_value("minibatch/avg_loss", _recent(aggregate_loss, samples), step)
        self.write_value("minibatch/avg_metric", _recent(aggregate_metric, samples), step)

    def _training_summary(self, totals: Totals) -> None:
        """Write averages since the last summary."""
        self.write_value("summary/avg_loss", _average(totals.loss, totals.samples), totals.summaries)
        self.write_value("summary/avg_metric", _average(totals.metric, totals.samples), totals.summaries)

    def _test_summary(self, totals: Totals) -> None:
        """Write the average, over updates after training, or else over summaries."""
        trained = self.total_training_updates()
        group, step = ("minibatch", trained) if trained else ("summary", totals.summaries)
        self.write_value(f"{group}/test_avg_metric", _average(totals.metric, totals.samples), step)

    def _open(self) -> Any:
        if self.closed:
            raise RuntimeError("Attempting to use a closed TensorBoardProgressWriter")
        return self._events


class TrainingSummaryProgressCallback(ProgressWriter):
    """Progress writer that calls a function at each summary of a training.

    Args:
        epoch_size: accepted, but the session's ``progress_frequency`` decides.
        callback: function ``callback(epoch, loss, metric, samples)`` of the epoch's number, from 0, and its sums.
    """

    def __init__(self, epoch_size: int, callback: Callable[[int, float, float, int], Any]) -> None:
        super().__init__(_NEVER, 0, _NEVER, 0, _NEVER, 0)
        self._callback = callback

    def _training_summary(self, totals: Totals) -> None:
        self._callback(totals.summaries - 1, totals.loss, totals.metric, totals.samples)


def log_number_of_parameters(model: Any, trace_level: int = 0) -> None:
    """Print the number of a model's parameters, and with a ``trace_level`` their shapes.

    Args:
        model: function, or a `torch.nn.Module`.
        trace_level: 0, or more to print shapes.
    """
    parameters = model.parameters() if callable(model.parameters) else model.parameters
    shapes = [tuple(parameter.shape) for parameter in parameters]
    count = sum(math.prod(shape) for shape in shapes)
    print(f"Training {count} parameters in {len(shapes)} parameter tensors.")
    if trace_level > 0:
        print()
        for shape in shapes:
            print(f"\t{shape}")


def _average(total: float, samples: int) -> float:
    return total / samples if samples else 0.0


def _recent(total: Sums, samples: Counts) -> float:
    return _average(total[1] - total[0], samples[1] - samples[0])


def _deprecated(method: str) -> None:
    warnings.warn(f"{method} is deprecated: give the printer to the Trainer", DeprecationWarning, stacklevel=3)
