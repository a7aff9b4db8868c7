"""Which items come next? Orders of a map-style dataset, and the cuts that make batches of them.

An order is a pure function of (seed, sweep, place): nothing is kept for an item, so that ten million of them cost what
ten do, and any place is reached at once. A batch is a range of places; every rank computes the same global batches and
takes its part: item o of S samples belongs to rank ``o * count // S``, as in `MinibatchSource`.

Costs: up to 2^20 items 4 bytes each for the sweep in use, beyond that nothing; about a microsecond a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline import _native
from feedline.feed.protocol import ChunkInfo
from feedline.feed.timeline import ChunkTable, WindowPlan
from feedline.feed.timeline.feedline import FeedlineOrder
from feedline.feed.timeline.plan import SEGMENT

Ints = NDArray[np.int64]
T = TypeVar("T")

# Level of the key, after those of orders and transforms: what it draws are the places of a weighted sweep.
DRAWS = 3

_GOLDEN, _A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Planned(NamedTuple):
    """One batch before it is read.

    Attributes:
        sweep: which sweep.
        start, stop: places of the global batch in the sweep.
        indices: what the dataset is asked for: an int64 array, or a list from a user's sampler; one index alone where
            batching is switched off.
        keys: what seeds each item: an int64 array, or the first of consecutive numbers.
        spare: for a rank without an item of its own, an index of the global batch, which shows what a batch looks like.
        memo: state of a user's sampler behind the batch.
    """

    sweep: int
    start: int
    stop: int
    indices: Any
    keys: Any
    spare: Any = None
    memo: Any = None


class Order(Protocol):
    """A sweep of places and the item at each.

    Attributes:
        name: in states.
        length: places of a sweep.
        replaces: an item may stand at several places; its random numbers are keyed by the place then.
    """

    name: str
    length: int
    replaces: bool

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """The items at places a..b-1, int64."""

    def identity(self) -> dict[str, Any]:
        """What decides the order besides its name, for states."""


class Items:
    """Each item once a sweep; shuffled, the order of a `MinibatchSource` over so many sequences in one chunk."""

    name: str = FeedlineOrder.name
    replaces = False

    def __init__(self, length: int, seed: int, shuffle: bool) -> None:
        self.length, self._seed, self._shuffle = length, seed, shuffle
        self._timeline = FeedlineOrder(ChunkTable([ChunkInfo(length, length, 0)]), seed, shuffle, None)
        # Two sweeps at most: the one in use, and the next while workers begin with it.
        self._windows: dict[int, WindowPlan] = {}

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """See `Order.take`."""
        if not self._shuffle:
            return np.arange(a, b, dtype=np.int64)
        window = self._windows.get(sweep)
        if window is None:
            window = self._timeline.window_at(sweep, 0)
            # Another dictionary: iterators in other threads may be looking at this one.
            near = sorted(self._windows.items(), key=lambda item: abs(item[0] - sweep))[:1]
            self._windows = {**dict(near), sweep: window}
        return window.locate(a, b)[1]

    def identity(self) -> dict[str, Any]:
        """See `Order.identity`."""
        return {"seed": f"{self._seed:016x}", "shuffle": "all" if self._shuffle else False, "items": self.length}


class Weighted:
    """As many draws with replacement as there are items, each by a hash of its place.

    Memory: 8 bytes an item. A draw is a binary search.

    Args:
        weights: (n,), at least 0, not all 0; they need not sum to 1.
        seed: of the draws.
    """

    name = "weighted-1"
    replaces = True

    def __init__(self, weights: NDArray[np.float64], seed: int) -> None:
        self.length, self._seed = len(weights), seed
        self._ends = np.cumsum(weights)
        self._last = int(np.flatnonzero(weights)[-1])
        # Two weightings are told apart by a hash, so that a state stays small.
        bits = (weights / self._ends[-1]).view(np.int64)
        self._digest = f"{int(_native.fingerprint(0, bits)[-1]):016x}"

    def take(self, sweep: int, a: int, b: int) -> Ints:
        """See `Order.take`."""
        uniform = _mixed(_native.hash_key([self._seed, sweep, DRAWS]), a, b)
        drawn = np.searchsorted(self._ends, uniform * self._ends[-1], side="right")
        found: Ints = np.minimum(drawn, self._last)  # rounding may reach the very end
        return found

    def identity(self) -> dict[str, Any]:
        """See `Order.identity`."""
        return {"seed": f"{self._seed:016x}", "shuffle": {"weights": self._digest}, "items": self.length}


def _mixed(key: int, a: int, b: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) for the places a..b-1: 53 bits of splitmix64 at place + 1 steps from ``key``."""
    z = np.uint64(key) + np.arange(a + 1, b + 1, dtype=np.uint64) * _GOLDEN
    z = (z ^ z >> np.uint64(30)) * _A
    z = (z ^ z >> np.uint64(27)) * _B
    mixed: NDArray[np.float64] = ((z ^ z >> np.uint64(31)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return mixed


def checked_weights(weights: ArrayLike, length: int) -> NDArray[np.float64]:
    """``weights`` as float64 (length,).

    Raises:
        ValueError: another number of them, a negative or infinite one, or nothing but zeros.
    """
    found = np.ascontiguousarray(weights, np.float64)
    if found.shape != (length,):
        raise ValueError(f"expected one weight for each of {length} items, got an array of shape {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise ValueError("expected finite weights of at least 0, not all of them 0")
    return found


def checked_lengths(lengths: ArrayLike, length: int) -> Ints:
    """``lengths`` as int64 (length,).

    Raises:
        ValueError: another number of them, or a negative one.
    """
    found = np.asarray(lengths)
    if found.shape != (length,) or found.dtype.kind not in "iu":
        raise ValueError(
            f"expected the samples of each of {length} items as integers, got {found.dtype} of shape {found.shape}"
        )
    if (found < 0).any():
        raise ValueError("expected lengths of at least 0 samples")
    return np.ascontiguousarray(found, np.int64)


class BatchRule(NamedTuple):
    """How a sweep becomes batches.

    Attributes:
        size: items of a batch of one rank; samples, where ``lengths`` are given; None: one item, not in a batch.
        share: (index, count); (0, 1) where items come alone.
        drop_last: leave out a last batch that is not full.
        lengths: int64 (items,), samples of each item; None: they do not count.
    """

    size: int | None
    share: tuple[int, int]
    drop_last: bool
    lengths: Ints | None = None


def batches(
    order: Order, cut: BatchRule, sweep: int, start: int, done: Sequence[tuple[int, int]] = ()
) -> Iterator[Planned]:
    """The batches of the rest of a sweep.

    Args:
        order: of the items.
        cut: what makes a batch.
        sweep, start: where to begin.
        done: ranges of places behind ``start`` that were delivered already.
    """
    ahead = _Ahead(order, sweep)
    index, count = cut.share
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
            stop, lo, hi, full = _fit(ahead, cut.lengths, start, most, index, count, n)
        if cut.drop_last and not full:
            return
        mine = ahead(start + lo, start + hi)
        keys: Any = start + lo if replaces else mine
        if done:
            mine, keys = _without(done, mine, start + lo, None if replaces else mine)
        if len(mine) or not done:
            spare = None if len(mine) else int(ahead(start, start + 1)[0])
            yield Planned(sweep, start, stop, mine, keys, spare)
        start = stop


class PlannedSweep:
    """The batches still to come in a sweep.

    An interrupt ends a generator, and what would be left of it looks like the end of the data. This begins another one
    behind the last batch that it handed out.

    Args:
        begin: gives the batches from a place on.
        start: the place of the first.
    """

    def __init__(self, begin: Callable[[int], Iterator[Planned]], start: int) -> None:
        self._begin, self._at = begin, start
        self._batches: Iterator[Planned] | None = None

    def next(self) -> Planned:
        """The next batch.

        Raises:
            StopIteration: there is none.
        """
        batches = self._batches or self._begin(self._at)
        self._batches = None  # until this call is through
        planned = next(batches)
        self._at, self._batches = planned.stop, batches
        return planned


def count(order: Order, cut: BatchRule, sweep: int) -> int:
    """Batches of a whole sweep."""
    n = order.length
    if cut.lengths is not None:
        return sum(1 for _ in batches(order, cut, sweep, 0))
    most = (cut.size or 1) * cut.share[1]
    return n // most if cut.drop_last else -(-n // most)


class _Ahead:
    """Ranges of an order, laid out a segment at a time."""

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
    ahead: _Ahead, lengths: Ints, start: int, budget: int, index: int, count: int, n: int
) -> tuple[int, int, int, bool]:
    """(end of the batch at ``start``, this rank's part counted from there, whether another item would not fit)."""
    look = 64
    while True:
        b = min(start + look, n)
        ends = np.cumsum(lengths[ahead(start, b)])
        fitting = int(np.searchsorted(ends, budget))
        if fitting < b - start or b == n:
            # Full is full: items without samples behind the one that fills the budget are the next batch's.
            fitting += fitting < b - start and int(ends[fitting]) == budget
            break
        look *= 4
    taken = max(fitting, 1)  # one item that alone is longer
    samples = int(ends[taken - 1])
    starts = np.concatenate([[0], ends[: taken - 1]])
    lo = int(np.searchsorted(starts, -(-index * samples // count)))
    hi = taken if index + 1 == count else int(np.searchsorted(starts, -(-(index + 1) * samples // count)))
    return start + taken, lo, hi, start + taken < n or samples >= budget


def _without(done: Sequence[tuple[int, int]], mine: Ints, first: int, keys: Ints | None) -> tuple[Ints, Any]:
    """A part without what was delivered already; keys become an array."""
    places = np.arange(first, first + len(mine))
    left = np.ones(len(mine), np.bool_)
    for a, b in done:
        left &= (places < a) | (places >= b)
    return mine[left], (places if keys is None else keys)[left]


class ItemSampler:
    """The indices of the sweep that the next ``iter(loader)`` reads; `DataLoader.sampler` where none was given.

    Args:
        upcoming: refers weakly to what gives order and sweep: a loader goes, and its workers, with its last user.
    """

    def __init__(self, upcoming: Callable[[], Callable[[], tuple[Order, int]] | None]) -> None:
        self._upcoming = upcoming

    def __len__(self) -> int:
        return _of(self._upcoming)()[0].length

    def __iter__(self) -> Iterator[int]:
        order, sweep = _of(self._upcoming)()
        for a in range(0, order.length, SEGMENT):
            yield from order.take(sweep, a, min(a + SEGMENT, order.length)).tolist()


class BatchSampler:
    """The indices of each batch of that sweep; `DataLoader.batch_sampler` where none was given.

    Attributes:
        sampler: yields indices.
        batch_size: indices of a batch.
        drop_last: whether a shorter last batch is left out.

    Args:
        upcoming: refers weakly to what gives the batches and their number; None: ``sampler`` is the user's.
    """

    def __init__(
        self,
        sampler: Any,
        batch_size: int,
        drop_last: bool,
        upcoming: Callable[[], Callable[[], tuple[Iterator[Planned], int]] | None] | None,
    ) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self._upcoming = upcoming

    def __len__(self) -> int:
        if self._upcoming is not None:
            return _of(self._upcoming)()[1]
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[list[Any]]:
        if self._upcoming is not None:
            for planned in _of(self._upcoming)()[0]:
                yield planned.indices.tolist()
            return
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


def _of(reference: Callable[[], T | None]) -> T:
    found = reference()
    if found is None:
        raise ReferenceError("expected the DataLoader of this sampler to be in use still, got one that is gone")
    return found
