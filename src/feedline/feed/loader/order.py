"""Orders of a map-style dataset, and the rules that cut them into batches.

An order is a pure function of (seed, sweep, place) with no state per item. So ten million items cost as much as ten,
and any place is reached at once. A batch is a range of places. Every rank computes the same global batches and takes
its part: item o of S samples belongs to rank ``o * count // S``, as in `MinibatchSource`.

Memory: 4 bytes per item of the current sweep up to 2^20 items, and no more for larger datasets. Time: about a
microsecond per batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline import _native
from feedline.feed.equal_work import assign, by_position
from feedline.feed.protocol import ChunkInfo, Ints
from feedline.feed.timeline import ChunkTable
from feedline.feed.timeline.elements import SEGMENT
from feedline.feed.timeline.feedline import FeedlineOrder

# Level of the key for the draws of a weighted sweep, after the levels of orders and transforms.
DRAWS = 3

_GOLDEN, _A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Planned(NamedTuple):
    """One batch before it is read.

    Attributes:
        sweep: number of the sweep under its seed. For an iterable dataset, number of the loader's sweep.
        start, stop: places of the global batch in the sweep.
        indices: indices to read: an int64 array, or a list from a user's sampler. A single index if batching is
            disabled.
        keys: keys to seed each item with: an int64 array, or the first of consecutive numbers.
        spare: index of an item of the global batch for a rank without items, as an example of a batch.
        memo: state of a user's sampler after the batch.
    """

    sweep: int
    start: int
    stop: int
    indices: Any
    keys: Any
    spare: Any = None
    memo: Any = None


class Order(Protocol):
    """The item at each place of a sweep.

    Attributes:
        name: name in states.
        length: places in a sweep.
        replaces: whether an item may occur at several places. Random numbers are then keyed by the place.
    """

    name: str
    length: int
    replaces: bool

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """Return the items at places a..b-1, int64."""

    def under(self, seed: int) -> Order:
        """Return the same order under another seed."""

    def identity(self) -> dict[str, Any]:
        """Return what determines the order besides its name and its seed, for states."""


class Items:
    """Each item once a sweep, shuffled in the order of a `MinibatchSource` over as many sequences in one chunk."""

    name: str = FeedlineOrder.name
    replaces = False

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self.length, self._shuffle = length, shuffle
        timeline = FeedlineOrder(ChunkTable([ChunkInfo(length, length, 0)]), seed, shuffle, None)
        # At most two sweeps, for two iterators at once.
        self._window = lru_cache(2)(lambda sweep: timeline.window_at(sweep, 0))

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """See `Order.take`."""
        if not self._shuffle:
            return np.arange(a, b, dtype=np.int64)
        return self._window(sweep).locate(a, b)[1]

    def under(self, seed: int) -> Items:
        """See `Order.under`."""
        return Items(self.length, seed, self._shuffle)

    def identity(self) -> dict[str, Any]:
        """See `Order.identity`."""
        return {"shuffle": "all" if self._shuffle else False, "items": self.length}


class WeightedItems:
    """As many draws with replacement as there are items, each determined by a hash of its place.

    Memory: 8 bytes per item. A draw is a binary search.

    Args:
        weights: weights (n,) of at least 0, not all 0. They need not sum to 1.
        seed: seed of the draws.
    """

    name = "weighted-1"
    replaces = True

    def __init__(self, weights: NDArray[np.float64], seed: int) -> None:
        self.length, self._seed = len(weights), seed
        self._ends = np.cumsum(weights)
        self._last = int(np.flatnonzero(weights)[-1])
        # A state names the weights by a hash, so that it stays small.
        bits = (weights / self._ends[-1]).view(np.int64)
        self._digest = f"{int(_native.fingerprint(0, bits)[-1]):016x}"

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """See `Order.take`."""
        uniform = _mixed(_native.hash_key([self._seed, sweep, DRAWS]), a, b)
        indices = np.searchsorted(self._ends, uniform * self._ends[-1], side="right")
        items: Ints = np.minimum(indices, self._last)  # rounding may reach the very end
        return items

    def under(self, seed: int) -> WeightedItems:
        """See `Order.under`."""
        items = copy.copy(self)
        items._seed = seed
        return items

    def identity(self) -> dict[str, Any]:
        """See `Order.identity`."""
        return {"shuffle": {"weights": self._digest}, "items": self.length}


def _mixed(key: int, a: int, b: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1) for the places a..b-1: 53 bits of splitmix64 at place + 1 steps from ``key``."""
    z = np.uint64(key) + np.arange(a + 1, b + 1, dtype=np.uint64) * _GOLDEN
    z = (z ^ z >> np.uint64(30)) * _A
    z = (z ^ z >> np.uint64(27)) * _B
    mixed: NDArray[np.float64] = ((z ^ z >> np.uint64(31)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return mixed


def check_weights(weights: ArrayLike, length: int) -> NDArray[np.float64]:
    """Return ``weights`` as float64 (length,).

    Raises:
        ValueError: their number differs, one is negative or infinite, or all are zero.
    """
    array = np.ascontiguousarray(weights, np.float64)
    if array.shape != (length,):
        raise ValueError(f"expected one weight for each of {length} items, got an array of shape {array.shape}")
    if not np.isfinite(array).all() or (array < 0).any() or not array.any():
        raise ValueError("expected finite weights of at least 0, not all of them 0, got others")
    return array


def check_lengths(lengths: ArrayLike, length: int) -> Ints:
    """Return ``lengths`` as int64 (length,).

    Raises:
        ValueError: their number differs, or one is negative.
    """
    array = np.asarray(lengths)
    if array.shape != (length,) or array.dtype.kind not in "iu":
        raise ValueError(f"expected integers, the samples of {length} items, got {array.dtype} of shape {array.shape}")
    if (array < 0).any():
        raise ValueError(f"expected lengths of at least 0 samples, got {array.min()}")
    return np.ascontiguousarray(array, np.int64)


class BatchRule(NamedTuple):
    """How a sweep is cut into batches.

    Attributes:
        size: items per batch and rank, or samples if ``lengths`` is set. None: single items.
        partition: (index, count) of this rank, (0, 1) for single items.
        drop_last: whether to drop a last batch that is not full.
        lengths: int64 (items,), samples of each item. None: items are counted.
        work: float64 (items,), work of each item, by which ranks share batches. None: they share them by position.
    """

    size: int | None
    partition: tuple[int, int]
    drop_last: bool
    lengths: Ints | None = None
    work: NDArray[np.float64] | None = None


def batches(
    order: Order, cut: BatchRule, sweep: int, start: int, done: Sequence[tuple[int, int]] = ()
) -> Iterator[Planned]:
    """Yield the remaining batches of a sweep.

    Args:
        order: order of the items.
        cut: rule that cuts it into batches.
        sweep, start: sweep and place to begin at.
        done: ranges of places after ``start`` that have been delivered already.
    """
    ahead = _Ahead(order, sweep)
    index, count = cut.partition
    n, most = order.length, (cut.size or 1) * count
    replaces = order.replaces
    if cut.size is None:
        for place in range(start, n):
            if not any(a <= place < b for a, b in done):
                item = int(ahead(place, place + 1)[0])
                yield Planned(sweep, place, place + 1, item, place if replaces else item)
        return
    while start < n:
        if cut.lengths is None:
            stop, full = min(start + most, n), start + most <= n
            size = stop - start
            lo, hi = -(-index * size // count), -(-(index + 1) * size // count)
        else:
            stop, lo, hi, full = _fit(ahead, cut.lengths, start=start, most=most, index=index, count=count, n=n)
        if cut.drop_last and not full:
            return
        if cut.work is None and not done:
            mine = ahead(start + lo, start + hi)
            keys: Any = start + lo if replaces else mine
        else:
            items = ahead(start, stop)
            own = np.arange(lo, hi) if cut.work is None else _by_work(cut.work[items], index, count)
            for a, b in done:
                own = own[(start + own < a) | (start + own >= b)]
            mine = items[own]
            keys = start + own if replaces else mine
        if len(mine) or not done:
            spare = None if len(mine) else int(ahead(start, start + 1)[0])
            yield Planned(sweep, start, stop, mine, keys, spare=spare)
        start = stop


def _by_work(work: NDArray[np.float64], index: int, count: int) -> Ints:
    """Return the indices of the items of a batch that rank ``index`` of ``count`` gets, ascending."""
    return np.flatnonzero(assign(work, count, by_position(len(work), count)) == index)


class PlannedSweep:
    """The remaining batches of a sweep.

    An interrupt ends a generator, which then looks like the end of the data. So this starts a new one after the last
    batch that it returned.

    Args:
        begin: function that returns the batches from a place on.
        start: place of the first batch.
    """

    def __init__(self, begin: Callable[[int], Iterator[Planned]], start: int) -> None:
        self._begin, self._at = begin, start
        self._batches: Iterator[Planned] | None = None

    def next(self) -> Planned:
        """Return the next batch.

        Raises:
            StopIteration: there is none.
        """
        batches = self._batches or self._begin(self._at)
        self._batches = None  # until this call has completed
        planned = next(batches)
        self._at, self._batches = planned.stop, batches
        return planned


def count(order: Order, cut: BatchRule, sweep: int) -> int:
    """Return the number of batches in a sweep."""
    n = order.length
    if cut.lengths is not None:
        return sum(1 for _ in batches(order, cut, sweep, 0))
    return batch_count(n, (cut.size or 1) * cut.partition[1], cut.drop_last)


def batch_count(items: int, size: int, drop_last: bool) -> int:
    """Return the number of batches of ``size`` that ``items`` items make."""
    return items // size if drop_last else -(-items // size)


class _Ahead:
    """Ranges of an order, computed one segment ahead."""

    def __init__(self, order: Order, sweep: int) -> None:
        self._order, self._sweep = order, sweep
        self._first = self._end = 0
        self._items: Ints = np.empty(0, np.int64)

    def __call__(self, a: int, b: int) -> Ints:
        if a < self._first or b > self._end:
            self._first, self._end = a, min(max(b, a + SEGMENT), self._order.length)
            self._items = self._order.take(self._sweep, a, self._end)
        return self._items[a - self._first : b - self._first]


def _fit(
    ahead: _Ahead, lengths: Ints, *, start: int, most: int, index: int, count: int, n: int
) -> tuple[int, int, int, bool]:
    """Return (end of the batch at ``start``, begin and end of this rank's part counted from there, whether the batch is
    full)."""
    look = 64
    while True:
        b = min(start + look, n)
        ends = np.cumsum(lengths[ahead(start, b)])
        fitting = int(np.searchsorted(ends, most))
        if fitting < b - start or b == n:
            # Items without samples after the one that fills the budget belong to the next batch.
            fitting += fitting < b - start and int(ends[fitting]) == most
            break
        look *= 4
    taken = max(fitting, 1)  # a single item longer than the budget
    samples = int(ends[taken - 1])
    starts = np.concatenate([[0], ends[: taken - 1]])
    lo = int(np.searchsorted(starts, -(-index * samples // count)))
    hi = taken if index + 1 == count else int(np.searchsorted(starts, -(-(index + 1) * samples // count)))
    return start + taken, lo, hi, start + taken < n or samples >= most
