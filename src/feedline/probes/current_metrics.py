"""The metrics of this process at any moment, from a recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from feedline.probes.metric_names import ExportedMetric, MetricValue, values_of
from feedline.probes.recorder import Recorder
from feedline.probes.torch_loaders import TorchLoaders


class CurrentMetrics:
    """Records this process from now on, until it is closed. It is a collector of prometheus_client.

    Args:
        session_values: function that returns values that no record has.
    """

    def __init__(self, session_values: Callable[[], Iterable[MetricValue]]) -> None:
        self._session_values = session_values
        self._lock = threading.Lock()  # scrapes, the writer of a file, and exporters of OpenTelemetry
        self._highest: dict[tuple[ExportedMetric, tuple[str, ...]], float] = {}
        self._loaders, self._recorder = TorchLoaders(), Recorder()

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._recorder.rank

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._recorder.ranks

    def close(self) -> None:
        """End the record, and leave torch as it was."""
        self._recorder.close()
        self._loaders.close()

    def read(self) -> tuple[int, list[MetricValue]]:
        """Return the rank, and the values of all metrics at this moment."""
        with self._lock:
            record = self._recorder.record()
            values = [*values_of(record), *self._session_values()]
            return record.rank, [self._never_lower(value) for value in values]

    def _never_lower(self, value: MetricValue) -> MetricValue:
        """Return a value, of counters the highest so far. How a feed divides its time among stages may change, and what
        the system counts for a thread is gone when it ends."""
        metric, labels, number = value
        if not metric.counts:
            return value
        highest = self._highest[metric, labels] = max(number, self._highest.get((metric, labels), 0.0))
        return MetricValue(metric, labels, highest)

    def registry(self) -> Any:
        """Return a registry of prometheus_client with these metrics alone."""
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterator[Any]:
        """Return the metrics in families, each with its name, for prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        rank, values = self.read()
        families: dict[str, Any] = {}
        for metric, labels, value in values:
            if metric.name not in families:
                family = CounterMetricFamily if metric.counts else GaugeMetricFamily
                families[metric.name] = family(metric.name, metric.text, labels=["rank", *metric.labels])
            families[metric.name].add_metric([str(rank), *labels], value)
        return iter(families.values())
