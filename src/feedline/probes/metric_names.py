"""The metrics of a process: their names in Prometheus and OpenTelemetry, and their values in a record.

Names of instruments follow the semantic conventions of OpenTelemetry: a sum of seconds is a ``time``, a share of a
limit a ``utilization``, and what can be counted is in the plural, with its name as unit in braces. Names for Prometheus
end in the base unit, and counters in ``_total``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from feedline.runs.diagnosis import RankRecord

#: OpenTelemetry's names of the labels.
ATTRIBUTES = {
    "rank": "feedline.rank",
    "feed": "feedline.feed.name",
    "stage": "feedline.stage.name",
    "mode": "cpu.mode",
    "data": "feedline.data",
    "learner": "feedline.learner",
}


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """A metric.

    Attributes:
        name: its name in Prometheus. Counters end in ``_total``, and never go down in a process.
        instrument: its name in OpenTelemetry.
        unit: its unit, as UCUM abbreviates it.
        labels: its labels, without the rank.
        text: its description.
    """

    name: str
    instrument: str
    unit: str
    labels: tuple[str, ...]
    text: str

    @property
    def counts(self) -> bool:
        """Whether it is a counter. Else it is a gauge."""
        return self.name.endswith("_total")


class MetricValue(NamedTuple):
    """A value of a metric, and the values of its labels, without the rank."""

    metric: ExportedMetric
    labels: tuple[str, ...]
    value: float


_STAGE, _FEED = ("feed", "stage"), ("feed",)

#: Metrics of a stage of a feed, by the name of the figure in `FeedStage`.
STAGE_METRICS = {
    "seconds": ExportedMetric(
        "feedline_stage_seconds_total",
        "feedline.stage.time",
        "s",
        _STAGE,
        "Time that it took, summed over its threads.",
    ),
    "waiting": ExportedMetric(
        "feedline_stage_waiting_seconds_total",
        "feedline.stage.wait_time",
        "s",
        _STAGE,
        "Time in which the loop waited for it.",
    ),
    "units": ExportedMetric(
        "feedline_stage_units_total",
        "feedline.stage.units",
        "{unit}",
        _STAGE,
        "Chunks, items or minibatches.",
    ),
    "bytes": ExportedMetric(
        "feedline_stage_bytes_total",
        "feedline.stage.bytes",
        "By",
        _STAGE,
        "Bytes that it read or made. 0 if they are not counted.",
    ),
    "fullness": ExportedMetric(
        "feedline_stage_fullness_ratio",
        "feedline.stage.utilization",
        "1",
        _STAGE,
        "Mean share of the places for its results that were full.",
    ),
    "threads": ExportedMetric(
        "feedline_stage_threads",
        "feedline.stage.thread.count",
        "{thread}",
        _STAGE,
        "Threads or processes that may work on it at a time.",
    ),
}

#: Metrics of a feed, by the name of the figure in `FeedRecord`.
FEED_METRICS = {
    "computing_seconds": ExportedMetric(
        "feedline_feed_cpu_seconds_total",
        "feedline.feed.cpu.time",
        "s",
        _FEED,
        "Processor time in a loader's dataset and collate_fn.",
    ),
    "starting_seconds": ExportedMetric(
        "feedline_feed_starting_seconds_total",
        "feedline.feed.start.wait_time",
        "s",
        _FEED,
        "Time in which the loop waited for first batches.",
    ),
    "starts": ExportedMetric(
        "feedline_feed_starts_total",
        "feedline.feed.starts",
        "{start}",
        _FEED,
        "First batches.",
    ),
}

_CPU = ExportedMetric(
    "feedline_cpu_seconds_total", "feedline.cpu.time", "s", ("mode",), "Processor time in mode user or system."
)

#: Metrics of the process and its workers, by the name of the figure in `Conditions`.
PROCESS_METRICS = {
    "queued_seconds": ExportedMetric(
        "feedline_cpu_waiting_seconds_total",
        "feedline.cpu.wait_time",
        "s",
        (),
        "Time in which threads waited for a processor.",
    ),
    "throttled_seconds": ExportedMetric(
        "feedline_cpu_throttled_seconds_total",
        "feedline.cpu.throttled_time",
        "s",
        (),
        "Time in which the quota of the control group was used up.",
    ),
    "cores": ExportedMetric(
        "feedline_cpu_cores", "feedline.cpu.logical.count", "{cpu}", (), "Processors that the process may use."
    ),
    "major_faults": ExportedMetric(
        "feedline_page_faults_total",
        "feedline.paging.faults",
        "{fault}",
        (),
        "Accesses to memory that waited for a disk.",
    ),
    "swapped_bytes": ExportedMetric(
        "feedline_swapped_bytes", "feedline.paging.usage", "By", (), "Memory that is swapped out."
    ),
    "available_bytes": ExportedMetric(
        "feedline_memory_available_bytes",
        "feedline.memory.available",
        "By",
        (),
        "Memory that is free on the machine, or could be freed.",
    ),
    "read_bytes": ExportedMetric(
        "feedline_disk_read_bytes_total", "feedline.disk.read_bytes", "By", (), "Bytes that were read from a disk."
    ),
    "asked_bytes": ExportedMetric(
        "feedline_read_bytes_total",
        "feedline.file.read_bytes",
        "By",
        (),
        "Bytes that system calls read, from a disk or memory.",
    ),
    "read_calls": ExportedMetric(
        "feedline_read_calls_total", "feedline.file.read_calls", "{call}", (), "System calls that read."
    ),
}

#: Metrics of the requests to object stores, by the name of the figure in `RankRecord`.
REQUEST_METRICS = {
    "requests": ExportedMetric(
        "feedline_store_requests_total",
        "feedline.object_store.requests",
        "{request}",
        (),
        "Requests to object stores.",
    ),
    "refused_requests": ExportedMetric(
        "feedline_store_refused_requests_total",
        "feedline.object_store.refused_requests",
        "{request}",
        (),
        "Requests that a store refused because of their number.",
    ),
}

#: Metrics of a session, by the name under which the reporter has them.
SESSION_METRICS = {
    "samples": ExportedMetric(
        "feedline_trained_samples_total", "feedline.trained.samples", "{sample}", (), "Label samples, of all ranks."
    ),
    "updates": ExportedMetric(
        "feedline_trained_minibatches_total", "feedline.trained.minibatches", "{minibatch}", (), "Minibatches."
    ),
    "rate": ExportedMetric(
        "feedline_learning_rate", "feedline.learning_rate", "1", ("learner",), "Learning rate, by number from 0."
    ),
    "loss": ExportedMetric(
        "feedline_loss",
        "feedline.loss",
        "1",
        ("data",),
        "Mean loss of the last progress span, validation or test.",
    ),
    "metric": ExportedMetric("feedline_metric", "feedline.metric", "1", ("data",), "Mean metric, as of the loss."),
}

#: All metrics, in the order of the page that lists them.
METRICS = [
    *STAGE_METRICS.values(),
    *FEED_METRICS.values(),
    _CPU,
    *PROCESS_METRICS.values(),
    *REQUEST_METRICS.values(),
    *SESSION_METRICS.values(),
]


def values_of(record: RankRecord) -> Iterator[MetricValue]:
    """Return the values of a record. Feeds are numbered from the second of the same kind on."""
    kinds: Counter[str] = Counter()
    for feed in record.feeds:
        kind = str(feed.facts.get("feed", "feed"))
        kinds[kind] += 1
        name = kind if kinds[kind] == 1 else f"{kind} {kinds[kind]}"
        yield from _figures(FEED_METRICS, feed, (name,))
        for stage_name, stage in feed.stages.items():
            yield from _figures(STAGE_METRICS, stage, (name, stage_name))
    conditions = record.conditions
    if conditions.cpu_seconds is not None and conditions.system_seconds is not None:
        yield MetricValue(_CPU, ("user",), conditions.cpu_seconds - conditions.system_seconds)
        yield MetricValue(_CPU, ("system",), conditions.system_seconds)
    yield from _figures(PROCESS_METRICS, conditions, ())
    yield from _figures(REQUEST_METRICS, record, ())


def _figures(metrics: dict[str, ExportedMetric], record: Any, labels: tuple[str, ...]) -> Iterator[MetricValue]:
    for name, metric in metrics.items():
        value = getattr(record, name)
        if value is not None:
            yield MetricValue(metric, labels, value)
