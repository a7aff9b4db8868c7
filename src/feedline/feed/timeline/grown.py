"""The order of a corpus that has grown: earlier sweeps have its first chunks, later ones all.

Each sweep has the order that a corpus of its chunks has, so nothing that was delivered, or is still to come in the
sweep in progress, changes. Chunks keep their numbers, as data only grows behind its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from feedline.errors import StateError, shown
from feedline.feed.timeline.block_order import BlockOrder
from feedline.feed.timeline.elements import ChunkTable, Timeline, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder

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
        versions: at least two, by ascending sweeps from 0. Each has the chunks of the one before.
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
        return self._version(sweep).order.window_at(sweep, place, window)

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
        """Return the first sweep and the digest of each version."""
        return {"versions": [[version.sweep, version.digest] for version in self.versions]}


def grown_order(
    state: Mapping[str, Any],
    current: str,
    first_chunks: Callable[[Collection[str]], Mapping[str, int]],
    newest: Timeline,
) -> Timeline | None:
    """Return the order in which a run goes on over a corpus from a state, or None if the state is of other data.

    A sweep that had begun ends over the data that it began with. The next one has everything.

    Args:
        state: a state of this corpus, or of one with its first chunks.
        current: digest of this corpus.
        first_chunks: function that returns the number of first chunks that had each of some digests.
        newest: the order of all chunks.

    Raises:
        ValueError: the versions in the state are damaged.
        StateError: they are not of the first chunks of this corpus, or it has an order that cannot grow.
    """
    listed = _listed(state)
    if listed == [(0, current)]:
        return newest
    lengths = first_chunks({digest for _, digest in listed} - {current})
    lengths = {**lengths, current: len(newest.chunk_table)}
    if unknown := [digest for _, digest in listed if digest not in lengths]:
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
        versions = [*(version for version in listed if version[0] < begins), (begins, current)]
    if len(versions) == 1:
        return newest
    counts = [lengths[digest] for _, digest in versions]
    # A new file may have no rows, and so no chunk.
    if any(a > b for a, b in pairwise(counts)) or len({digest for _, digest in versions}) < len(versions):
        raise ValueError(f"expected different versions of ever more chunks, got {counts}")
    return GrownOrder([DataVersion(sweep, digest, _of_first(newest, lengths[digest])) for sweep, digest in versions])


def _listed(state: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return first sweep and digest of the versions in a state."""
    rows = state.get("versions", [[0, state["corpus"]]])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        raise ValueError(f"expected `versions` as pairs of a sweep and a digest, got {shown(rows, 100)}")
    versions = [(sweep, digest) for sweep, digest in rows]
    sweeps = [sweep for sweep, _ in versions]
    typed = all(type(sweep) is int and isinstance(digest, str) for sweep, digest in versions)
    if not typed or sweeps[:1] != [0] or any(a >= b for a, b in pairwise(sweeps)) or max(sweeps) > _MAX_SWEEP:
        raise ValueError(f"expected `versions` by ascending sweeps from 0, got {shown(rows, 100)}")
    if versions[-1][1] != state["corpus"] or any(type(state[key]) is not int for key in ("sweep", "sequence")):
        raise ValueError("expected the last of `versions` to be `corpus`, and a place in it")
    return versions


def _of_first(newest: Timeline, chunks: int) -> Timeline:
    """Return the order of the first chunks.

    Raises:
        StateError: there is none that has the same chunks, or blocks of chunks.
    """
    if chunks == len(newest.chunk_table):
        return newest
    table = newest.chunk_table
    first = ChunkTable.of_columns(*(column[:chunks] for column in (table.sequences, table.samples, table.bytes)))
    hint = "load it over the data that it was taken from, or begin a new run"
    if type(newest) not in (FeedlineOrder, BlockOrder) or first.total_sequences == 0:
        raise StateError(
            f'the data has grown since this state, which needs order="feedline" over a plain corpus, got {newest.name}',
            hint=hint,
        )
    order = type(newest)(first, newest.seed, newest.shuffle, newest.window)
    if order.blocks is not None and not np.array_equal(order.blocks.chunk, newest.blocks.chunk[: len(order.table)]):
        raise StateError("the data has grown since this state beyond a tebibyte, where blocks are larger", hint=hint)
    return order
