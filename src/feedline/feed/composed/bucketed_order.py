"""The order of `Bucketed`: every window of another order, cut into batches of sequences of like length.

The sequences of a window do not change. So reads, the ends of sweeps and the meaning of positions do not change,
either. The number of batches of a window depends only on its lengths, not on their order. Specified to the bit in
docs/explanation/order.md.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import StateError
from feedline.feed.protocol import Ints
from feedline.feed.timeline import Segment, Timeline, WindowPlan
from feedline.feed.timeline.elements import InParts, ended_parts, keyed_permutation

# Level of the key. docs/explanation/order.md lists all levels.
BATCHES = 13


class Buckets(NamedTuple):
    """Rules for putting sequences together.

    Attributes:
        boundaries: ascending. A sequence of n samples is in the first bucket whose boundary is at least n, or in one
            more bucket if there is none.
        budget_samples: samples of a batch whose sequences are padded to the boundary of their bucket.
        most: limit of sequences in a batch. None if only the budget limits them.
    """

    boundaries: tuple[int, ...]
    budget_samples: int
    most: int | None

    def batches(self, lengths: Ints, permute: Callable[[int], Ints] | None) -> tuple[Ints, Ints]:
        """Return the index in the window of the sequence at each place, int64 (n,), and the ends of batches, int64
        (batches,).

        Args:
            lengths: samples of each sequence, int64 (n,), in the window's order.
            permute: function from a number of batches to their order. None orders them by their first sequence.
        """
        bucket = np.searchsorted(np.array(self.boundaries, np.int64), lengths, side="left")
        counts = np.bincount(bucket, minlength=len(self.boundaries) + 1)
        padded = np.array([*self.boundaries, int(lengths.max(initial=1))], np.int64)
        size = np.clip(self.budget_samples // np.maximum(padded, 1), 1, self.most)
        # A radix sort, as the integers are small.
        grouped = np.argsort(bucket.astype(np.min_scalar_type(len(counts))), kind="stable")
        number = -(-counts // size)
        of = np.repeat(np.arange(len(counts)), number)
        place = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
        stops = np.cumsum(counts)
        first = (stops - counts)[of] + place * size[of]
        n = np.minimum(size[of], stops[of] - first)
        order = np.argsort(grouped[first]) if permute is None else permute(len(of))
        first, n = first[order], n[order]
        ends = np.cumsum(n)
        return grouped[np.arange(len(lengths)) + np.repeat(first - (ends - n), n)], ends


class BucketedOrder(Timeline, InParts):
    """The order of a corpus in buckets.

    Args:
        inner: order of the corpus.
        buckets: rules for putting sequences together.
        lengths: function from ordinals to the samples of sequences, int64 (n,).
    """

    name: ClassVar[str] = "bucketed-1"

    def __init__(self, inner: Timeline, buckets: Buckets, lengths: Callable[[Ints], Ints]) -> None:
        super().__init__(inner.table, inner.seed, inner.shuffle, inner.window)
        self.inner, self.buckets, self.lengths = inner, buckets, lengths
        self.chunk_table, self.blocks, self.swept = inner.chunk_table, inner.blocks, inner.swept
        self.steady, self.in_corpus_order = inner.steady, False
        # The latest windows: each is laid out once, at 12 bytes a sequence. Adding one makes a new tuple, as other
        # threads may be reading the old one.
        self._windows: tuple[_BucketedWindow, ...] = ()

    @property
    def sweep_length(self) -> int | None:
        """See `Timeline.sweep_length`."""
        return self.inner.sweep_length

    @property
    def sweep_samples(self) -> int | None:
        """See `Timeline.sweep_samples`."""
        return self.inner.sweep_samples

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        for laid_out in self._windows:
            if laid_out.sweep == sweep and laid_out.first <= place < laid_out.first + laid_out.count:
                return laid_out
        added = _BucketedWindow(self, self.inner.window_at(sweep, place, window))
        self._windows = (added, *self._windows[:1])
        return added

    def chunks_after(self, plan: WindowPlan, max_sweeps: int | None = None) -> Iterator[Ints]:
        """See `Timeline.chunks_after`."""
        assert isinstance(plan, _BucketedWindow)
        return self.inner.chunks_after(plan.inner, max_sweeps)

    def segment(self, plan: WindowPlan, start: int, most: int) -> Segment:
        """See `Timeline.segment`."""
        segment = super().segment(plan, start, most)
        assert isinstance(plan, _BucketedWindow)
        segment.sweeps = plan.sweeps(start, segment.n)
        segment.breaks = plan.breaks(start, segment.n)
        return segment

    def ended_parts(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[str, ...]:
        """See `InParts.ended_parts`: sweeps of parts end at the end of the window that holds their last sequence."""
        return ended_parts(self.inner, self._window_start(*a), self._window_start(*b))

    def _window_start(self, sweep: int, place: int) -> tuple[int, int]:
        if place == 0 or place == self.sweep_length:
            return sweep, place
        return sweep, self.inner.window_at(sweep, place).first

    def to_json(self) -> dict[str, Any]:
        """See `Timeline.to_json`."""
        return self.inner.to_json()

    def from_json(self, state: Mapping[str, Any], sweep: int, place: int) -> Timeline:
        """See `Timeline.from_json`: the windows of the inner order must not have changed, as batches depend on them."""
        declared = self.to_json()
        saved = {key: state[key] for key in declared}
        if saved != declared:
            raise StateError(
                "this state was taken under other weights of the corpora that are in buckets",
                saved=saved,
                current=declared,
                hint="declare the weights and stages of the saved run",
            )
        return self


class _BucketedWindow(WindowPlan):
    """A window, laid out in batches at its first use."""

    def __init__(self, order: BucketedOrder, inner: WindowPlan) -> None:
        self.inner, self._order = inner, order
        super().__init__(
            inner.sweep,
            inner.number,
            chunks=inner.chunks,
            position=inner.position,
            starts=inner.starts,
            first=inner.first,
            last=inner.last,
        )

    def locate(self, a: int, b: int) -> tuple[NDArray[np.uint32], Ints]:
        """See `WindowPlan.locate`."""
        place, index, _, _ = self._layout
        return place[a:b], index[a:b]

    def breaks(self, start: int, n: int) -> list[int]:
        """Return the ends of batches within the ``n`` sequences from place ``start``, counted from ``start``."""
        _, _, ends, _ = self._layout
        return [end - start for end in ends[bisect_right(ends, start) : bisect_right(ends, start + n)]]

    def sweeps(self, start: int, n: int) -> Callable[[], Ints] | None:
        """Return a function for the sweeps of the ``n`` sequences from place ``start``. None if all are in the sweep of
        the window."""
        _, _, _, sweeps = self._layout
        return None if sweeps is None else lambda: sweeps()[start : start + n]

    @functools.cached_property
    def _layout(self) -> tuple[NDArray[np.uint32], Ints, list[int], Callable[[], Ints] | None]:
        order = self._order
        segment = order.inner.segment(self.inner, 0, self.inner.count)
        permute: Callable[[int], Ints] | None = None
        if order.shuffle:

            def permute(batches: int) -> Ints:
                cut = keyed_permutation(order, batches, (self.sweep, BATCHES, self.number))
                return np.asarray(cut(0, batches), np.int64)

        which, ends = order.buckets.batches(order.lengths(segment.ordinals), permute)
        sweeps = None if segment.sweeps is None else lambda: segment.own_sweeps()[which]
        return segment.place[which], segment.index[which], ends.tolist(), sweeps
