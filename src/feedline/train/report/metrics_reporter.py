"""Metrics of a session, and of its feeds, for Prometheus or OpenTelemetry."""

from __future__ import annotations

from feedline.probes import MetricsExport
from feedline.probes.metric_names import SESSION_METRICS, MetricValue
from feedline.train.evaluation import Evaluated
from feedline.train.progress import Progress
from feedline.train.report.base import Silent
from feedline.train.session import TrainingSession
from feedline.train.summary import Summary


class Metrics(MetricsExport, Silent):
    """Reporter that exports metrics while the session runs: those of `feedline.metrics`, which has the same arguments,
    and samples, minibatches, losses and learning rates.

    Args:
        port, path, host, meter: see `feedline.metrics`. At least one of port, path and meter.

    Raises:
        ModuleNotFoundError: prometheus_client is not installed, see the extra ``metrics``.
        ValueError, TypeError: none of port, path and meter, or a wrong one.
    """

    def on_start(self, run: TrainingSession) -> None:
        """Begin the export.

        Raises:
            OSError: the port is in use, or the file cannot be written.
        """
        self._session: dict[tuple[str, tuple[str, ...]], float] = {}
        self.open()
        self._note_counts(run)

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        """Note the counts and rates."""
        self._note_counts(run)

    def on_progress(self, run: TrainingSession, progress: Progress) -> None:
        """Note the averages of the span."""
        self._note_averages("training", progress.summary)

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        """Note the averages of a validation or test."""
        self._note_averages(what, result.summary)

    def on_end(self, run: TrainingSession) -> None:
        """End the export."""
        self.close()

    def _note_counts(self, run: TrainingSession) -> None:
        self._session |= {("samples", ()): run.samples, ("updates", ()): run.minibatches}
        for number, learner in enumerate(run.trainer.learners):
            self._session["rate", (str(number),)] = learner.learning_rate()

    def _note_averages(self, data: str, summary: Summary) -> None:
        if summary.samples:
            self._session["loss", (data,)] = summary.loss
            if summary.metric is not None:
                self._session["metric", (data,)] = summary.metric

    def _session_values(self) -> list[MetricValue]:
        return [MetricValue(SESSION_METRICS[name], labels, v) for (name, labels), v in self._session.copy().items()]
