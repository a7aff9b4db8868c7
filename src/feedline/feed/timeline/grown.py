"""The order of a corpus that has grown: earlier sweeps have its first sequences, later ones all.

Each sweep has the order that a corpus of its sequences has, so nothing that was delivered, or is still to come in the
sweep in progress, changes. Data only grows behind its end, so sequences keep their ordinals. Chunks and blocks may end
elsewhere than before, as the last one has become longer: a window names the present ones that its sequences are in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import StateError, shown
from feedline.feed.timeline.block_order import BlockOrder
from feedline.feed.timeline.elements import ChunkTable, Ints, Timeline, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.unique import distinct

_MAX_SWEEP = 2**62


class DataVersion(NamedTuple):
    """The corpus from a sweep on.

    Attributes:
        sweep: first sweep over it.
        digest: digest of its content and chunk table.
        order: its order.
    """

    sweep: int
    digest: str
    order: Timeline


class GrownOrder(Timeline):
    """The orders of several versions, each from a sweep on.

    Args:
        versions: at least two, by ascending sweeps from 0. Each begins with the sequences of the one before.
    """

    steady = False  # the only window of a sweep may have the chunks of one version, that of the next more

    def __init__(self, versions: Sequence[DataVersion]) -> None:
        self.versions = tuple(versions)
        self.newest = newest = versions[-1].order
        super().__init__(newest.table, newest.seed, newest.shuffle, newest.window)
        self.chunk_table, self.blocks = newest.chunk_table, newest.blocks
        self.in_corpus_order = newest.in_corpus_order

    @property
    def name(self) -> str:  # type: ignore[override]
        """See `Timeline.name`."""
        return self.newest.name

    def _version(self, sweep: int) -> DataVersion:
        return next(version for version in reversed(self.versions) if version.sweep <= max(sweep, 0))

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        order = self._version(sweep).order
        plan = order.window_at(sweep, place, window)
        return plan if order is self.newest else _in_entries(plan, order.table, self.table)

    def before(self, sweep: int) -> int:
        """See `Timeline.before`."""
        last = self._version(sweep)
        total = (sweep - last.sweep) * last.order.table.total_sequences
        for version, following in zip(self.versions, self.versions[1:], strict=False):
            if following.sweep <= last.sweep:
                total += (following.sweep - version.sweep) * version.order.table.total_sequences
        return total

    def sweep_of_samples(self, samples: int) -> tuple[int, int]:
        """See `Timeline.sweep_of_samples`."""
        sweep = before = 0
        for version, following in zip(self.versions, (*self.versions[1:], None), strict=True):
            of_sweep = version.order.table.total_samples
            sweeps = (samples - before) // of_sweep if of_sweep else 0
            if following is None or sweeps < following.sweep - version.sweep:
                return version.sweep + sweeps, before + sweeps * of_sweep
            sweep, before = following.sweep, before + (following.sweep - version.sweep) * of_sweep
        return sweep, before

    def to_json(self) -> dict[str, Any]:
        """Return first sweep, digest and number of sequences of each version."""
        rows = [[version.sweep, version.digest, version.order.table.total_sequences] for version in self.versions]
        return {"versions": rows}


class _PlanInEntries(WindowPlan):
    """A window of a version, in the chunks or blocks of the newest one.

    Args:
        plan: the window.
        ordinals: int64 (k,), ordinal of the first sequence of each of its chunks.
        starts: int64, ordinal of the first sequence of each chunk of the newest version.
        chunks: int64, ascending numbers of the chunks of the newest version that have its sequences.
    """

    def __init__(self, plan: WindowPlan, ordinals: Ints, starts: Ints, chunks: Ints) -> None:
        super().__init__(
            plan.sweep,
            plan.number,
            chunks=chunks,
            position=plan.position,
            starts=plan.starts,
            first=plan.first,
            last=plan.last,
            count=plan.count,
        )
        self._plan, self._ordinals, self._entry_starts = plan, ordinals, starts

    def locate(self, a: int, b: int) -> tuple[NDArray[np.uint32], Ints]:
        """See `WindowPlan.locate`."""
        place, index = self._plan.locate(a, b)
        ordinals = self._ordinals[place] + index
        numbers = np.searchsorted(self._entry_starts, ordinals, side="right") - 1
        return np.searchsorted(self.chunks, numbers).astype(np.uint32), ordinals - self._entry_starts[numbers]


def _in_entries(plan: WindowPlan, version: ChunkTable, newest: ChunkTable) -> WindowPlan:
    """Return a window of chunks or blocks of a version as one of those of the newest version."""
    chunks = plan.chunks[version.sequences[plan.chunks] > 0]
    begin, end = version.starts[chunks], version.starts[chunks + 1]
    first = np.searchsorted(newest.starts, begin, side="right") - 1
    counts = np.searchsorted(newest.starts, end, side="left") - first
    if np.array_equal(first, chunks) and (counts == 1).all() and np.array_equal(newest.starts[first], begin):
        return plan
    numbers = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return _PlanInEntries(plan, version.starts[plan.chunks], newest.starts, distinct(numbers))


class _ListedVersion(NamedTuple):
    """A version in a state. States once did not name the number of sequences."""

    sweep: int
    digest: str
    sequences: int | None = None


def grown_order(
    state: Mapping[str, Any],
    current: str,
    earlier: Callable[[Mapping[str, int | None]], Mapping[str, ChunkTable]],
    newest: Timeline,
) -> Timeline | None:
    """Return the order in which a run goes on over a corpus from a state, or None if the state is of other data.

    A sweep that had begun ends over the data that it began with. The next one has everything.

    Args:
        state: a state of this corpus, or of one with its first sequences.
        current: digest of this corpus.
        earlier: function of numbers of sequences by digest, that returns the chunk tables that the corpus had when it
            had these digests.
        newest: the order of all chunks.

    Raises:
        ValueError: the versions in the state are damaged.
        StateError: they are not first sequences of this corpus, or it has an order that cannot grow.
    """
    listed = _listed(state)
    if [version[:2] for version in listed] == [(0, current)]:
        return newest
    tables = dict(earlier({v.digest: v.sequences for v in listed if v.digest != current}))
    tables[current] = newest.chunk_table
    if unknown := [version.digest for version in listed if version.digest not in tables]:
        if state["corpus"] != current:
            return None
        raise StateError(
            "this state names a version of the data that its first chunks are not",
            saved={"versions": unknown},
            current={"corpus": current},
            hint="open the files in the order in which they were added; new ones come last",
        )
    versions = listed
    if state["corpus"] != current:
        begins = state["sweep"] + (state["sequence"] > 0)
        versions = [*(version for version in listed if version.sweep < begins), _ListedVersion(begins, current)]
    if len(versions) == 1:
        return newest
    counts = [tables[version.digest].total_sequences for version in versions]
    # A new file may have no rows, and so no chunk.
    if any(a > b for a, b in pairwise(counts)) or len({version.digest for version in versions}) < len(versions):
        raise ValueError(f"expected different versions of ever more sequences, got {counts}")
    return GrownOrder([DataVersion(v.sweep, v.digest, _of_first(newest, tables[v.digest])) for v in versions])


def _listed(state: Mapping[str, Any]) -> list[_ListedVersion]:
    """Return the versions in a state."""
    rows = state.get("versions", [[0, state["corpus"], state.get("sequences")]])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) in (2, 3) for row in rows):
        raise ValueError(f"expected `versions` as lists of sweep, digest and sequences, got {shown(rows, 100)}")
    versions = [_ListedVersion(*row) for row in rows]
    sweeps = [version.sweep for version in versions]
    typed = all(type(v.sweep) is int and isinstance(v.digest, str) for v in versions)
    typed = typed and all(v.sequences is None or type(v.sequences) is int for v in versions)
    if not typed or sweeps[:1] != [0] or any(a >= b for a, b in pairwise(sweeps)) or max(sweeps) > _MAX_SWEEP:
        raise ValueError(f"expected `versions` by ascending sweeps from 0, got {shown(rows, 100)}")
    if versions[-1].digest != state["corpus"] or any(type(state[key]) is not int for key in ("sweep", "sequence")):
        raise ValueError("expected the last of `versions` to be `corpus`, and a place in it")
    return versions


def _of_first(newest: Timeline, table: ChunkTable) -> Timeline:
    """Return the order of the corpus that had a chunk table.

    Raises:
        StateError: ``newest`` is no order that can grow.
    """
    if table is newest.chunk_table:
        return newest
    if type(newest) not in (FeedlineOrder, BlockOrder) or table.total_sequences == 0:
        raise StateError(
            f'the data has grown since this state, which needs order="feedline" over a plain corpus, got {newest.name}',
            hint="load it over the data that it was taken from, or begin a new run",
        )
    return type(newest)(table, newest.seed, newest.shuffle, newest.window)
