"""The charts of a run, which turn its history into tables of numbers.

A chart without numbers is omitted. `drawing` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from feedline.runs.chart_rows import ChartTable, Number, join_columns, thin
from feedline.runs.feeding import Fed
from feedline.runs.history import History, ProgressLine, add_seconds

Pairs = Sequence[tuple[Number, Number | None]]
# Activities besides training, and the field of a span that has the share of each.
_PARTS = {"waiting for data": "waiting", "evaluating": "evaluating", "saving": "saving"}
_MAY_SPAN_DECADES = ("loss", "metric", "rate")  # for others, the distance from zero matters
_MAY_BE_NOISY = ("loss", "metric", "speed", "waiting", "disk", "pages")
MIN_BUSY = 0.01  # threads that read and decode. Fewer are not shown, as mapping a store takes almost no time
_NOISY_FROM = 30  # numbers
NOT_FINITE = "NaN or ∞"  # logs do not distinguish them
MAX_COLUMNS = 6  # as many as colours and dashes can distinguish
# Title, description and unit of each chart along the run.
_WORDS = {
    "loss": ("Loss{of_loss}", "Average loss per label sample; lower is better.", "loss"),
    "metric": ("Metric{of_metric}", "Average metric per label sample.", "{metric}"),
    "rate": ("Learning rate", "The rate of each learner, at the end of each span.", "rate"),
    "speed": ("Throughput", "{counts} per second of wall time, over each span.", "samples/s"),
    "waiting": ("{columns}", "Shares of each span's wall time.", "%"),
    "transforming": (
        "Decoding and other transforms",
        "Threads that transforms such as decoding kept busy, on average over each span.",
        "threads",
    ),
    "sizes": ("Minibatch sizes", "Samples in a minibatch, in each span.", "samples"),
    "padding": ("Padding", "The share of padding in the rows of a minibatch padded to its longest sequence.", "%"),
    "disk": ("Read from the disk", "What the page cache did not hold, per second; 0 where it held everything.", "MB/s"),
    "pages": (
        "Hits of the page cache",
        "The share of the bytes asked for that the disk did not have to give: it gives whole pages.",
        "%",
    ),
    "hits": (
        "Hits of the cache of objects",
        "The share of object stores' chunks that the cache had, by bytes; the rest was fetched.",
        "%",
    ),
    "reading": (
        "Reading and decoding",
        "Threads that reading and decoding chunks kept busy, on average over each span.",
        "threads",
    ),
    "mixing": (
        "Shuffle quality",
        "For consecutive sequences: their distance in the corpus, in percent of the average of a full shuffle; and the "
        "share that are also neighbours in the corpus. A full shuffle shows about 100 % and 0 %, the order of the "
        "corpus about 0 % and 100 %.",
        "%",
    ),
    "held": ("Memory of the feed", "Decoded chunks held in private memory, at the end of each span.", "MB"),
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture and its table.

    Attributes:
        key: identifier, unique on the page.
        title: heading.
        description: description, in a sentence or two.
        unit: unit of the numbers, ``"%"`` for shares in percent.
        table: numbers to show.
        logarithmic: whether only a logarithmic scale shows all numbers, as they span decades.
        labels: names of the rows, if they are classes, drawn as bars. Empty if rows are places along the run.
        faint: columns drawn thin, under their moving means.
        colours: colour of each column, from 1. Empty for colours in order.
        until: end of the axis, if later than the last number, as the numbers after it are not finite.
        last_on_top: whether later columns are drawn over earlier ones, dashed, so that equal columns are both visible.
    """

    key: str
    title: str
    description: str
    unit: str
    table: ChartTable
    logarithmic: bool = False
    labels: tuple[str, ...] = ()
    faint: tuple[str, ...] = ()
    colours: tuple[int, ...] = ()
    until: Number | None = None
    last_on_top: bool = False

    def colour(self, k: int) -> int:
        """Return the colour of a column, from 1."""
        return self.colours[k] if self.colours else k + 1


def constant_rates(history: History) -> str:
    """Return a sentence with the learning rates if they never change, otherwise an empty text."""
    values = {name: {rate for _, rate in pairs} for name, pairs in _rates(history).items()}
    if not values or any(len(rates) != 1 for rates in values.values()):
        return ""
    texts = [f"{next(iter(rates)):.6g}" + (f" of {name}" if len(values) > 1 else "") for name, rates in values.items()]
    return f"The learning rate is {', '.join(texts)} throughout."


def learning_charts(history: History) -> list[Chart]:
    """Return the charts of loss, metric and, if they change, learning rates."""
    return [
        *_line(history, "loss", _averages(history, "loss")),
        *_line(history, "metric", _averages(history, "metric")),
        *_line(history, "rate", {} if constant_rates(history) else _rates(history)),
    ]


def time_charts(history: History) -> list[Chart]:
    """Return the charts of throughput, and of time by activity."""
    spans, timed = history.spans, [span for span in history.spans if span.seconds > 0]
    speed = [(span.samples, span.counted / span.seconds) for span in timed]
    shares: dict[str, Pairs] = {
        name: [(span.samples, _percent(getattr(span, part))) for span in spans] for name, part in _PARTS.items()
    }
    spent = {name: pairs for name, pairs in shares.items() if name.startswith("waiting") or any(p[1] for p in pairs)}
    busy = [(span.samples, span.transforming / span.seconds) for span in timed if span.transforming is not None]
    return [
        *_line(history, "speed", {"throughput": speed}),
        *_line(history, "waiting", spent),
        *_line(history, "transforming", {"busy": busy if history.transforming else []}),
    ]


def feed_charts(history: History) -> list[Chart]:
    """Return the charts of minibatch sizes, padding, lengths, mixing and memory."""
    fed = [(span.samples, span.fed) for span in history.spans if span.fed is not None and span.fed.minibatches]
    total = history.fed()
    sequences = (history.about.get("corpus") or {}).get("sequences")
    sizes: dict[str, Pairs] = {
        "largest": [(at, sums.largest) for at, sums in fed],
        "mean": [(at, sums.samples / sums.minibatches) for at, sums in fed],
        "smallest": [(at, sums.smallest) for at, sums in fed],
    }
    mixing: dict[str, Pairs] = {}
    if sequences and sequences > 2:
        mixing = {
            "distance": [(at, 100 * sums.jumps / sums.pairs / (sequences / 3)) for at, sums in fed if sums.pairs],
            "neighbours": [(at, 100 * sums.neighbours / sums.pairs) for at, sums in fed if sums.pairs],
        }
    memory = [(span.samples, span.held / 1e6) for span in history.spans if span.held is not None]
    return [
        *_line(history, "sizes", sizes),
        *_line(history, "padding", _padding(fed, total)),
        *_lengths(total),
        *_sources(history),
        *_line(history, "mixing", mixing),
        *_line(history, "held", {"held": _unless_zero(memory)}),
    ]


def _sources(history: History) -> list[Chart]:
    """Return the charts of the origin of bytes, and of the cost of decoding, if they are in the log."""
    timed = [span for span in history.spans if span.seconds > 0]
    disk = [(span.samples, span.disk / 1e6 / span.seconds) for span in timed if span.disk is not None]
    read = [span for span in history.spans if span.asked and span.disk is not None]
    in_memory = [(span.samples, 100 * max(0.0, 1 - (span.disk or 0.0) / (span.asked or 1.0))) for span in read]
    from_stores = [(span, (span.fetched or 0.0) + (span.cached or 0.0)) for span in history.spans]
    hits = [(span.samples, 100 * (span.cached or 0.0) / remote) for span, remote in from_stores if remote]
    busy = [(span.samples, span.reading / span.seconds) for span in timed if span.reading is not None]
    return [
        *_line(history, "disk", {"disk": _unless_zero(disk)}),
        *_line(history, "pages", {"hits": in_memory if any(span.disk for span in read) else []}),
        *_line(history, "hits", {"hits": hits}),
        *_line(history, "reading", {"busy": busy if any(number >= MIN_BUSY for _, number in busy) else []}),
    ]


def _unless_zero(pairs: Sequence[tuple[Number, Number]]) -> Pairs:
    return pairs if any(number for _, number in pairs) else []


def ragged_streams(fed: Fed | None) -> list[str]:
    """Return the streams that have a sequence of another length than 1, with the most padding first."""
    if fed is None:
        return []
    ragged = [name for name, stream in fed.streams.items() if sum(stream.lengths) != sum(stream.lengths[1:2])]
    return sorted(ragged, key=lambda name: fed.streams[name].samples - fed.streams[name].padded)


def _length_class(k: int) -> str:
    """Return the name of a class of lengths: 0, 1, 2-3, 4-7, …"""
    return str(k) if k < 2 else f"{1 << (k - 1)}-{(1 << k) - 1}"


def _averages(history: History, what: str) -> dict[str, Pairs]:
    """Return the averages of training, updates and validations. A test is a single number, and shown as a tile."""
    curves: dict[str, Pairs] = {"training": [(span.samples, getattr(span, what)) for span in history.spans]}
    for kind, name in (("update", "each update"), ("validation", "validation")):
        curves[name] = [(row.samples, getattr(row, what)) for row in history.averages if row.kind == kind]
    return curves


def _rates(history: History) -> dict[str, Pairs]:
    learners = history.about.get("learners", [])
    count = max((len(span.rates) for span in history.spans), default=0)
    names = [f"{i + 1}: {learners[i]}" if i < len(learners) else f"{i + 1}" for i in range(count)]
    return {
        name: [(span.samples, span.rates[i]) for span in history.spans if i < len(span.rates)]
        for i, name in enumerate(names)
    }


def _padding(fed: Sequence[tuple[int, Fed]], total: Fed | None) -> dict[str, Pairs]:
    return {
        name: [
            (at, 100 * (1 - stream.samples / stream.padded))
            for at, sums in fed
            if (stream := sums.streams.get(name)) is not None and stream.padded
        ]
        for name in ragged_streams(total)
    }


def _lengths(total: Fed | None) -> list[Chart]:
    names = ragged_streams(total)[:MAX_COLUMNS]
    if total is None or not names:
        return []
    table = join_columns("class", {name: enumerate(total.streams[name].lengths) for name in names})
    first = min(row.at for row in table.rows if any(row.values))
    rows = tuple(row for row in table.rows if row.at >= first)
    labels = tuple(_length_class(int(row.at)) for row in rows)
    description = "Sequences by their number of samples, over the whole run; classes double in width."
    table = ChartTable("samples", table.columns, rows, len(rows))
    return [Chart("lengths", "Lengths of sequences", description, "sequences", table, labels=labels)]


def _line(history: History, key: str, columns: Mapping[str, Pairs]) -> list[Chart]:
    about = history.about
    words = {f"of_{what}": f": {name}" if (name := about.get(f"{what}_name")) else "" for what in ("loss", "metric")}
    words |= {"metric": about.get("metric_name", "metric"), "counts": history.counts.capitalize()}
    title, description, unit = (text.format(columns=", ".join(columns).capitalize(), **words) for text in _WORDS[key])
    shown = dict(list(columns.items())[:MAX_COLUMNS])
    faint: tuple[str, ...] = ()
    if key in _MAY_BE_NOISY and len(shown) < MAX_COLUMNS:
        first, pairs = next(iter(shown.items()))
        means, width = moving_means(pairs)
        if means:
            shown, faint = {f"{first}, mean of {width} spans": means, **shown}, (first,)
    table = join_columns(history.counts, shown)
    if not table.rows:
        return []
    if len(columns) > MAX_COLUMNS:
        description += f" {MAX_COLUMNS} of {len(columns)} are shown."
    steep = key in _MAY_SPAN_DECADES and spans_decades(table)
    not_finite = _not_finite_places(history, key)
    if not_finite:
        description += f" In training it is {NOT_FINITE} from {not_finite[0]:,} {history.counts} on."
    until = not_finite[-1] if not_finite else None
    return [Chart(key, title, description, unit, thin(table), steep, faint=faint, until=until)]


def _not_finite_places(history: History, what: str) -> list[int]:
    """Return the last places, at which the training loss or metric is not finite, after a place at which it was."""
    if what not in ("loss", "metric") or history.is_feed:
        return []
    numbers = [(span.samples, getattr(span, what)) for span in history.spans if span.counted]
    last = max((at for at, number in numbers if number is not None), default=math.inf)
    return [at for at, _ in numbers if at > last]


def moving_means(pairs: Pairs) -> tuple[Pairs, int]:
    """Return the moving means of a noisy curve, and their width in numbers. Otherwise an empty list, and 0.

    A mean is over a number and equally many numbers before and after it, in total a twentieth of all, so it does not
    lag. Near the beginning, where curves bend, there are fewer on both sides. Near the end, where noise would look like
    a change, there are fewer after the number. A curve is noisy if its average distance from the means is more than a
    twentieth of their range.
    """
    finite = [(at, number) for at, number in pairs if number is not None]
    if len(finite) < _NOISY_FROM:
        return [], 0
    half = max(2, len(finite) // 40)
    width = 2 * half + 1
    numbers = np.array([number for _, number in finite], np.float64)
    index = np.arange(len(numbers))
    sides = np.minimum(half, index)
    starts, ends = index - sides, np.minimum(len(numbers), index + sides + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # sums of very large numbers may overflow
        sums = np.concatenate([[0.0], np.cumsum(numbers)])
        means = (sums[ends] - sums[starts]) / (ends - starts)
        noise, span = np.abs(numbers - means)[half:-half].mean(), np.ptp(means[half:-half])
    if not np.isfinite([noise, span, *means]).all() or noise <= 0.05 * span:
        return [], 0
    return [(at, float(mean)) for (at, _), mean in zip(finite, means, strict=True)], width


def spans_decades(table: ChartTable) -> bool:
    """Return whether the numbers are positive and span decades, so that only a logarithmic scale shows all."""
    numbers = table.numbers()
    return min(numbers) > 1e-300 and max(numbers) >= 100 * min(numbers)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def total_seconds_by_part(history: History) -> dict[str, float]:
    """Return the wall time of a run by activity, to its end. See `seconds_by_part`."""
    return {"training": 0.0, **add_seconds(seconds_by_part(history.spans), history.after)}


def seconds_by_part(spans: Iterable[ProgressLine]) -> dict[str, float]:
    """Return the wall time by activity, in seconds. Parts that took no time are omitted, except training."""
    parts = dict.fromkeys(("training", *_PARTS), 0.0)
    for span in spans:
        shares = {name: getattr(span, part) or 0.0 for name, part in _PARTS.items()}
        for name, share in {"training": max(0.0, 1 - sum(shares.values())), **shares}.items():
            parts[name] += span.seconds * share
    return {name: seconds for name, seconds in parts.items() if seconds or name == "training"}
