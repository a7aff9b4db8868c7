"""The log of a run as numbers: one row for each event, by kind, in order of label samples.

Fields that older logs lack are None. Cost: about a kilobyte for a progress line, half of that for an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from feedline.errors import DataError
from feedline.runs.feeding import Fed, StreamLengths
from feedline.runs.fields import amount, anything, average, maybe, moment, real, several, table, whole, words
from feedline.runs.log import RunLog, read_log
from feedline.runs.rank_spans import RankCounts, RanksSpans, SpanRecorder, counts_of_line


class Average(NamedTuple):
    """An update, a validation or a test: averages per label sample, None if they are not finite."""

    kind: str
    samples: int
    loss: float | None
    metric: float | None
    counted: int
    time: float | None = None


class CorpusShare(NamedTuple):
    """Share of a corpus of a mixture since the beginning of the order, over all ranks.

    Attributes:
        sequences: number of its sequences.
        delivered, declared: share of all sequences that they are, and share that the weights declare, 0 to 1.
    """

    sequences: int
    delivered: float
    declared: float


class ProgressLine(NamedTuple):
    """A progress line.

    Attributes:
        samples: label samples of the run at its end.
        loss, metric: averages over the span.
        counted: label samples in the span.
        minibatches: updates in the span.
        seconds: wall time of the span.
        waiting, evaluating, saving: shares of that time, 0 to 1.
        rates: learning rate of each learner at its end.
        fed: statistics of the feed.
        held: bytes of decoded chunks held by the feed at its end.
        skipped: unreadable sequences skipped since its process began.
        transforming: seconds that transforms took in the span, such as decoding, summed over threads.
        corpora: share of each corpus of a mixture at its end, empty for another corpus.
        time: Unix time of its end, in seconds.
        done: share of the whole run that was done, 0 to 1. None if the run's end is unknown.
        reading: seconds that reading and decoding of chunks took in the span, summed over threads.
        asked: bytes of local files that were requested in the span, from the page cache or the disk.
        disk: bytes fetched from the disk in the span, as the page cache did not hold them, in whole pages.
        fetched, cached: bytes of chunks in the span that came from object stores, and from the cache of objects.
        balance: balance of the source. None if unknown.
        unevenness: largest work of a rank over the mean in its last minibatch, by balance, then by measure of work.
            Empty if unknown.
        memory_advice: what to do about workers that copy memory, from the statistics of a loader. None if they do not.
        counts: counts of the ranks, since their processes began.
    """

    samples: int
    loss: float | None
    metric: float | None
    counted: int
    minibatches: int
    seconds: float
    waiting: float | None
    evaluating: float | None
    saving: float | None
    rates: tuple[float, ...]
    fed: Fed | None
    held: int | None
    skipped: int | None
    transforming: float | None
    corpora: dict[str, CorpusShare]
    time: float | None = None
    done: float | None = None
    reading: float | None = None
    asked: float | None = None
    disk: float | None = None
    fetched: float | None = None
    cached: float | None = None
    balance: str | None = None
    unevenness: dict[str, dict[str, float]] = {}  # noqa: RUF012  # never changed
    memory_advice: str | None = None
    counts: tuple[RankCounts, ...] = ()


class RankLine(NamedTuple):
    """A line of `feedline.doctor`, with the counts of its rank."""

    samples: int
    counts: tuple[RankCounts, ...]
    time: float | None


class Saved(NamedTuple):
    """A checkpoint."""

    samples: int
    path: str
    time: float | None


class LoggedEvent(NamedTuple):
    """A process began or resumed (``"start"``), or ended in an orderly way (``"end"``)."""

    event: str
    samples: int
    line: dict[str, Any]


LogEvent = ProgressLine | Average | Saved | RankLine | LoggedEvent


@dataclass(slots=True)
class History:
    """The whole history of a run.

    Attributes:
        path: path of the log.
        about: latest "start" line.
        restarts: label samples at which a process resumed after another had stopped.
        spans: progress lines.
        averages: updates, validations and tests.
        saved: checkpoints.
        ended: "end" line, if no line follows it.
        skipped: number of times that an unreadable sequence was skipped, by all processes.
        sweeps: sweeps trained when the last process began or ended.
        after: seconds by part that belong to no span, from the last span to the end of the run, such as for a test.
        unreported: label samples that an interrupted run trained after the last span.
        lines, torn: number of lines in the file, and of lines that a kill has torn.
        ranks: what each rank did, span by span, by rank.
        recorded: Unix time of the last line of `feedline.doctor`, in seconds. None if there is none.
    """

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    restarts: list[int] = field(default_factory=list)
    spans: list[ProgressLine] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    ended: dict[str, Any] | None = None
    skipped: int = 0
    sweeps: int = 0
    after: dict[str, float] = field(default_factory=dict)
    unreported: int = 0
    lines: int = 0
    torn: int = 0
    ranks: RanksSpans = field(default_factory=dict)
    recorded: float | None = None

    @property
    def resumed(self) -> str:
        """Number of times that a process resumed the run, in words."""
        return {0: "never", 1: "once"}.get(len(self.restarts), f"{len(self.restarts)} times")

    @property
    def is_feed(self) -> bool:
        """Whether nothing was trained, as ``feedline bench`` wrote the log."""
        return self.about.get("kind") == "bench"

    @property
    def counts(self) -> str:
        """Unit of the axis."""
        return "samples" if self.is_feed else "label samples"

    @property
    def samples(self) -> int:
        """Label samples trained."""
        last = [event.samples for events in (self.spans, self.averages, self.saved) for event in events[-1:]]
        return max(last, default=0)

    @property
    def seconds(self) -> float:
        """Wall time of all spans, and of the time after the last one."""
        return sum(span.seconds for span in self.spans) + sum(self.after.values())

    @property
    def counted(self) -> int:
        """Label samples trained in `seconds`."""
        return sum(span.counted for span in self.spans) + self.unreported

    @property
    def speed(self) -> float | None:
        """Label samples per second of the whole wall time. None if no time passed."""
        return self.counted / self.seconds if self.seconds else None

    @property
    def transforming(self) -> float:
        """Seconds that transforms took, summed over threads."""
        return sum(span.transforming or 0.0 for span in self.spans)

    def unevenness(self) -> tuple[str, dict[str, dict[str, float]]] | None:
        """Return the balance of the source at the end, and the means of its figures over all spans that have the same
        ones. None if the log has none."""
        measured = [span for span in self.spans if span.unevenness]
        if not measured or measured[-1].balance is None:
            return None
        last = measured[-1].unevenness
        means = {}
        for balance, measures in last.items():
            rows = [row for span in measured if (row := span.unevenness.get(balance, {})).keys() == measures.keys()]
            means[balance] = {measure: sum(row[measure] for row in rows) / len(rows) for measure in measures}
        return measured[-1].balance, means

    def fed(self) -> Fed | None:
        """Return statistics of the feed over all spans. None if the log has none."""
        parts = [span.fed for span in self.spans if span.fed is not None]
        return _sum_fed(parts) if parts else None


def read_history(path: Path) -> History:
    """Read the log of a run.

    Raises:
        DataError: the log has no event, or a line that is not an event.
    """
    log = read_log(path, event_of)
    if log.lines == log.torn:
        raise DataError(
            f"expected events of a training session, got {log.lines} lines without one",
            path=str(path),
            hint="JsonLines and `feedline bench --log` write such files",
        )
    return history_of(log)


def history_of(log: RunLog[LogEvent | None]) -> History:
    """Return the history of a log. Events that are None are ignored."""
    history, events = History(log.path, lines=log.lines, torn=log.torn, restarts=log.starts[1:]), log.events
    skipped, before = 0, dict.fromkeys(_CUMULATIVE, 0.0)
    for event in events:
        if isinstance(event, ProgressLine):
            # Statistics are sums over the process. The part of the span is the difference.
            now = {name: value for name in _CUMULATIVE if (value := getattr(event, name)) is not None}
            history.spans.append(event._replace(**{name: max(0.0, n - before[name]) for name, n in now.items()}))
            before |= now
            skipped = event.skipped or 0
        elif isinstance(event, Average):
            history.averages.append(event)
        elif isinstance(event, Saved):
            history.saved.append(event)
        elif isinstance(event, LoggedEvent):
            history.sweeps = event.line.get("sweeps", 0)
            if event.event == "start":
                history.about, history.ended, before = event.line, None, dict.fromkeys(_CUMULATIVE, 0.0)
                history.skipped, skipped = history.skipped + skipped, 0
            else:
                history.ended = event.line
    history.skipped += skipped
    history.ranks = spans_of_ranks(events)
    history.recorded = next((event.time for event in reversed(events) if isinstance(event, RankLine)), None)
    if not history.is_feed:
        history.after = _after_spans(events, history.ended is not None)
        if history.ended is not None and history.spans:
            history.unreported = max(0, history.ended["samples"] - history.spans[-1].samples)
    return history


def spans_of_ranks(events: Iterable[LogEvent | None]) -> RanksSpans:
    """Return the spans of the ranks whose counts are in the events of a log."""
    spans = SpanRecorder()
    for event in events:
        if isinstance(event, LoggedEvent) and event.event == "start":
            spans.start()
        elif isinstance(event, (ProgressLine, RankLine)):
            for counts in event.counts:
                spans.add(counts)
        elif isinstance(event, LoggedEvent):
            for counts in counts_of_line(event.line):
                spans.add(counts)
    return spans.spans


def _after_spans(events: Iterable[LogEvent | None], ended: bool) -> dict[str, float]:
    """Return the seconds by part outside spans: at the end of the run, and after the last checkpoint of each process.

    A process that resumes counts the time before the checkpoint in its first span.
    """
    total: dict[str, float] = {}  # final
    saved_seconds: dict[str, float] = {}  # in the last checkpoint
    unsaved: dict[str, float] = {}  # after the last checkpoint
    at: float | None = None
    samples = 0
    for event in events:
        if event is None or isinstance(event, RankLine):
            continue
        time = event.line.get("time") if isinstance(event, LoggedEvent) else event.time
        is_start = isinstance(event, LoggedEvent) and event.event == "start"
        if isinstance(event, ProgressLine):
            saved_seconds, unsaved = {}, {}
        elif not is_start and at is not None and time is not None:
            kinds = {Saved: "saving", Average: "evaluating"}
            part = "training" if event.samples > samples else kinds.get(type(event), "training")
            unsaved = add_seconds(unsaved, {part: max(0.0, time - at)})
        if isinstance(event, Saved):
            saved_seconds, unsaved = add_seconds(saved_seconds, unsaved), {}
        elif isinstance(event, LoggedEvent) and not is_start:
            total, unsaved = add_seconds(total, unsaved), {}
        at, samples = time, event.samples
    return add_seconds(total, saved_seconds) if ended else total


def add_seconds(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    """Return the sums of seconds by part. Parts that took no time are omitted."""
    return {part: n for part in {**a, **b} if (n := a.get(part, 0.0) + b.get(part, 0.0))}


_BYTES = ("asked", "disk", "fetched", "cached")  # statistics of the origin of data
# Cumulative statistics of the process, which every line contains.
_CUMULATIVE = ("transforming", "reading", *_BYTES)


def event_of(line: dict[str, Any]) -> LogEvent | None:
    """Return the event of a line of a log, or None for an event that feedline does not write."""
    parse = _EVENTS.get(line["event"])
    return None if parse is None else parse(line)


def _span(line: dict[str, Any]) -> ProgressLine:
    fed, stats = line.get("fed"), table(anything, line.get("stats", {}), "stats")
    return ProgressLine(
        line["samples"],
        average(line["loss"], "loss"),
        average(line["metric"], "metric"),
        whole(line["counted"], "counted"),
        whole(line["minibatches"], "minibatches"),
        amount(line["seconds"], "seconds"),
        maybe(amount, line.get("waiting"), "waiting"),
        maybe(amount, line.get("evaluating"), "evaluating"),
        maybe(amount, line.get("saving"), "saving"),
        tuple(several(real, line.get("rates", []), "rates")),
        None if fed is None else Fed.from_json(fed),
        maybe(whole, stats.get("held_bytes"), "stats.held_bytes"),
        maybe(whole, stats.get("skipped"), "stats.skipped"),
        maybe(amount, stats.get("transform_seconds"), "stats.transform_seconds"),
        table(_corpus_share, stats.get("corpora", {}), "stats.corpora"),
        maybe(moment, line.get("time"), "time"),
        maybe(amount, line.get("done"), "done"),
        maybe(amount, stats.get("read_seconds"), "stats.read_seconds"),
        *_bytes(stats),
        maybe(words, stats.get("balance"), "stats.balance"),
        table(partial(table, amount), stats.get("unevenness", {}), "stats.unevenness"),
        maybe(words, stats.get("memory_advice") or None, "stats.memory_advice"),
        counts_of_line(line),
    )


def _ranks(line: dict[str, Any]) -> RankLine:
    return RankLine(line["samples"], counts_of_line(line), maybe(moment, line.get("time"), "time"))


def _bytes(stats: dict[str, Any]) -> tuple[float | None, float | None, float | None, float | None]:
    asked, disk, fetched, cached = (maybe(amount, stats.get(f"{name}_bytes"), f"stats.{name}_bytes") for name in _BYTES)
    return asked, disk, fetched, cached


def _corpus_share(data: Any, name: str) -> CorpusShare:
    fields = table(anything, data, name)
    return CorpusShare(
        whole(fields.get("sequences"), f"{name}.sequences"),
        amount(fields.get("delivered"), f"{name}.delivered"),
        amount(fields.get("declared"), f"{name}.declared"),
    )


def _average(line: dict[str, Any]) -> Average:
    loss, metric = average(line["loss"], "loss"), average(line["metric"], "metric")
    counted, time = whole(line["counted"], "counted"), maybe(moment, line.get("time"), "time")
    return Average(line["event"], line["samples"], loss, metric, counted, time)


def _saved(line: dict[str, Any]) -> Saved:
    return Saved(line["samples"], words(line["path"], "path"), maybe(moment, line.get("time"), "time"))


def _start_or_end(line: dict[str, Any]) -> LoggedEvent:
    """Return the event of a start or end, after checking the fields that the page depends on."""
    for name, check in _CHECKS.items():
        if line.get(name) is not None:
            check(line[name], name)
    counts_of_line(line)
    return LoggedEvent(line["event"], line["samples"], {name: item for name, item in line.items() if item is not None})


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "time": moment,
    "sweeps": whole,
    "model": words,
    "parameters": whole,
    "learners": partial(several, words),
    "streams": partial(table, anything),
    "metric_name": words,
    "loss_name": words,
    "settings": partial(table, words),
    "command": words,
    "commit": words,
    "machine": words,
    "versions": partial(table, words),
    "threads": partial(table, whole),
    "feed": partial(table, anything),
    "corpus": partial(table, partial(maybe, whole)),
    "figures": partial(table, anything),
    "seconds_by_part": partial(table, amount),
}
_EVENTS: dict[str, Callable[[dict[str, Any]], LogEvent]] = {
    "progress": _span,
    "update": _average,
    "validation": _average,
    "test": _average,
    "checkpoint": _saved,
    "record": _ranks,
    "start": _start_or_end,
    "end": _start_or_end,
}


def _sum_fed(parts: list[Fed]) -> Fed:
    total = Fed(smallest=min((part.smallest for part in parts if part.minibatches), default=0))
    for part in parts:
        for name in ("minibatches", "sequences", "samples", "pairs", "neighbours", "jumps"):
            setattr(total, name, getattr(total, name) + getattr(part, name))
        total.largest = max(total.largest, part.largest)
        for name, stream in part.streams.items():
            total.streams.setdefault(name, StreamLengths()).add(stream.samples, stream.padded, stream.lengths)
    return total
