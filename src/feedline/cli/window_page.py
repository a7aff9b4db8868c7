"""``feedline plan PATH --html PAGE``: how well each shuffle window mixes, and its cost, as a basis for a choice.

Windows are compared by planning minibatches of the first sweep, which reads no data. Only ``--label`` reads the corpus,
once, for the class of each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline._version import __version__
from feedline.cli.console import UsageError, show_bytes
from feedline.feed.protocol import Deserializer, chunk_starts
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Window
from feedline.runs import page
from feedline.runs.chart_rows import join_columns, thin
from feedline.runs.charts import MAX_COLUMNS, Chart
from feedline.runs.drawing import figure

_MAX_STEPS, _MAX_SEQUENCES = 400, 1 << 21
_MAX_LABELS = 1 << 16
_WELL_MIXED = 0.9  # of the distance of a full shuffle
_ALIKE = 1.3  # times the deviation of labels in a full shuffle


@dataclass(frozen=True, slots=True)
class WindowChoice:
    """A shuffle window and its effects.

    Attributes:
        name: argument for ``shuffle=``.
        window_bytes: stored bytes of the largest window, which are read before its first minibatch.
        distance: mean distance of consecutive sequences in the corpus, 1 for a full shuffle.
        neighbours: share of consecutive sequences that are neighbours in the corpus.
        chunks: mean number of chunks from which a minibatch comes.
        places: mean place of a minibatch's sequences in the corpus, 0 to 1, by step.
        odd: distance of a minibatch's labels from the corpus' labels, 0 to 1 (total variation), by step. Empty without
            labels.
    """

    name: str
    window_bytes: int
    distance: float
    neighbours: float
    chunks: float
    places: list[float]
    odd: list[float]


@dataclass(frozen=True, slots=True)
class SampleClasses:
    """The classes of a corpus' samples.

    Attributes:
        offsets: int64 (number of sequences + 1,): the samples of sequence i are ``offsets[i]:offsets[i + 1]``.
        classes: int64, of each sample.
    """

    offsets: NDArray[np.int64]
    classes: NDArray[np.int64]

    def shares(self, ids: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the share of each class among the samples of some sequences. None means all sequences."""
        taken = self.classes
        if ids is not None:
            starts, counts = self.offsets[ids], self.offsets[ids + 1] - self.offsets[ids]
            shift = starts - (np.cumsum(counts) - counts)
            taken = taken[np.repeat(shift, counts) + np.arange(counts.sum())]
        return np.bincount(taken, minlength=int(self.classes.max()) + 1) / max(1, len(taken))


def choices(corpus: Deserializer, size: int, seed: int, label: str | None) -> list[WindowChoice]:
    """Return windows from none to all, about a factor of four apart.

    Raises:
        UsageError: there is no such stream for labels, or its samples are no classes.
        ValueError: the corpus does not know its sizes before it is read.
    """
    labels = None if label is None else labels_of(corpus, label)
    bytes_ = np.array([info.bytes for info in corpus.chunks()], np.int64)
    count = len(bytes_)
    windows = [n for n in (4**k for k in range(1, 20)) if n < count]
    every = max(1, -(-len(windows) // (MAX_COLUMNS - 2)))
    candidates: list[tuple[str, Any, int]] = [("none", False, int(bytes_.max()))]
    for n in windows[::-1][::every][::-1]:
        largest = int(np.sort(bytes_)[-n:].sum())
        candidates.append((f"Window(chunks={n})", Window(chunks=n), largest))
    candidates.append(("all", Window(chunks=max(1, count)), int(bytes_.sum())))
    return [_choice(corpus, name, shuffle, nbytes, size, seed, labels) for name, shuffle, nbytes in candidates]


def distance_of(corpus: Deserializer, shuffle: Any, size: int) -> float:
    """Return the `WindowChoice.distance` of a shuffle argument, with minibatches of ``size`` samples."""
    return _choice(corpus, "", shuffle, 0, size, 0, None).distance


def _choice(
    corpus: Deserializer, name: str, shuffle: Any, nbytes: int, size: int, seed: int, labels: SampleClasses | None
) -> WindowChoice:
    source = MinibatchSource(corpus, seed=seed, shuffle=shuffle, partition=(0, 1), max_sweeps=1, on_error="skip")
    sequences, starts = source.num_sequences, chunk_starts(corpus)
    jumps = pairs = neighbours = chunks = taken = 0
    places, odd = [], []
    overall = None if labels is None else labels.shares()
    for planned in islice(source.plan(size), _MAX_STEPS):
        ids = planned.ids
        steps = np.abs(np.diff(ids))
        jumps, pairs, neighbours = jumps + int(steps.sum()), pairs + len(steps), neighbours + int((steps == 1).sum())
        chunks += len(np.unique(np.searchsorted(starts, ids, side="right")))
        places.append(float(ids.mean()) / max(1, sequences - 1))
        if labels is not None and overall is not None:
            odd.append(float(np.abs(labels.shares(ids) - overall).sum()) / 2)
        taken += len(ids)
        if taken >= _MAX_SEQUENCES:
            break
    distance = jumps / pairs / (sequences / 3) if pairs else 0.0
    return WindowChoice(name, nbytes, distance, neighbours / max(1, pairs), chunks / len(places), places, odd)


def labels_of(corpus: Deserializer, name: str) -> SampleClasses:
    """Return the classes of all samples. Reads the corpus once. A sparse sample without a value has none."""
    if name not in corpus.schema:
        raise UsageError(f"expected --label to be one of {', '.join(corpus.schema)}, got {name!r}")
    parts, counts = [], []
    for number in range(len(corpus.chunks())):
        value = corpus.read(number)[name]
        offsets = np.arange(value.num_sequences + 1) if value.one_sample_each else np.asarray(value.offsets)
        if value.is_sparse:
            present = np.diff(value.indptr) > 0
            parts.append(np.asarray(value.indices)[value.indptr[:-1][present]])
            offsets = np.concatenate([[0], np.cumsum(present)])[offsets]
        else:
            rows = np.asarray(value.rows).reshape(value.num_samples, -1)
            parts.append(rows[:, 0] if rows.shape[1] == 1 else rows.argmax(1))
        counts.append(np.diff(offsets))
    labels = np.concatenate(parts)
    if not len(labels):
        raise UsageError(f"expected classes in stream {name}, got no samples")
    if labels.dtype.kind not in "iub" and not np.array_equal(labels, labels.astype(np.int64)):
        raise UsageError(f"expected classes in stream {name}, got numbers such as {labels[0]}")
    _, classes = np.unique(labels.astype(np.int64), return_inverse=True)
    if classes.max() >= _MAX_LABELS:
        raise UsageError(f"expected at most {_MAX_LABELS} classes in stream {name}, got {int(classes.max()) + 1}")
    return SampleClasses(np.concatenate([[0], *counts]).cumsum(), classes.astype(np.int64))


def html(corpus: Deserializer, compared: Sequence[WindowChoice], size: int) -> str:
    """Return the page."""
    stored = sum(info.bytes for info in corpus.chunks())
    heads = ["shuffle=", "read before the first minibatch", "distance", "neighbours", "chunks in a minibatch"]
    heads += ["labels off by"] if compared[0].odd else []
    rows = [
        [
            choice.name,
            f"{show_bytes(choice.window_bytes)}, {choice.window_bytes / max(1, stored):.1%}",
            f"{choice.distance:.0%}",
            f"{choice.neighbours:.1%}",
            f"{choice.chunks:.1f}",
            *([f"{np.mean(choice.odd):.1%}"] if choice.odd else []),
        ]
        for choice in compared
    ]
    title = f"Which window? {corpus.name}"
    windows = f"""\
<p>A window is read, and held, before its first minibatch. Every choice reads each chunk once a sweep; <code>none</code>
in order, the others a window's chunks in one go. Distance is that of consecutive sequences in the corpus, in percent
of a full shuffle.</p>
{page.table("Windows", heads, rows, whole=True)}"""
    charts = f'<div class="charts">{"".join(figure(chart) for chart in _charts(compared))}</div>'
    body = f"""<header><h1>{escape(title)}</h1>
<p class="soft">{count_text(len(corpus.chunks()), "chunk")}, {show_bytes(stored)}; minibatches of {size}
samples.</p></header>
<main>
{page.section("summary", "In short", page.findings([advice(compared)]))}
{page.section("windows", "Windows", windows)}
{page.section("mixing", "Along the order", charts)}
</main>
<footer>Made by feedline {escape(__version__)}: the first {len(compared[0].places):,} minibatches of the first
sweep.</footer>"""
    return page.document(title, body)


def advice(windows: Sequence[WindowChoice]) -> str:
    """Name the smallest window that mixes about as well as a full shuffle, by distances and, if known, by labels."""
    usual = float(np.mean(windows[-1].odd)) if windows[-1].odd else 0.0
    well = [w for w in windows if w.distance >= _WELL_MIXED and (not w.odd or np.mean(w.odd) <= _ALIKE * usual)]
    smallest = (well or [windows[-1]])[0]
    equal = [choice.name for choice in well if choice.window_bytes == smallest.window_bytes]
    if len(equal) > 1:
        return (
            f"{', '.join(equal[:-1])} and {equal[-1]} mix about as well as a full shuffle, and each reads "
            f"{show_bytes(smallest.window_bytes)} before the first minibatch: none is better."
        )
    reason = f"its neighbours are {smallest.distance:.0%} as far apart"
    if smallest.odd:
        reason += f", and the labels of its minibatches are off by {np.mean(smallest.odd):.0%} instead of {usual:.0%}"
    return (
        f"{smallest.name} is the smallest of these that mixes about as well as a full shuffle: {reason}. It reads "
        f"{show_bytes(smallest.window_bytes)} before the first minibatch."
    )


def count_text(number: int, what: str) -> str:
    """Format a count: ``1 chunk``, ``2,000 chunks``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _charts(compared: Sequence[WindowChoice]) -> list[Chart]:
    shown = compared[:MAX_COLUMNS]
    description = "Mean place of a minibatch's sequences in the corpus. A full shuffle stays at 50 %."
    places = {choice.name: [(i, 100 * place) for i, place in enumerate(choice.places)] for choice in shown}
    columns = thin(join_columns("minibatches", places))
    charts = [Chart("places", "Where minibatches come from", description, "%", columns)]
    if compared[0].odd:
        description = (
            "How far the labels of a minibatch's samples are from those of the corpus: 0 % is the same mixture. "
            "All samples of a sequence count."
        )
        odd = {choice.name: [(i, 100 * off) for i, off in enumerate(choice.odd)] for choice in shown}
        charts.append(Chart("labels", "Labels", description, "%", thin(join_columns("minibatches", odd))))
    return charts
