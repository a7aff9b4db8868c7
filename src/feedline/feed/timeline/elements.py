"""The elements of every order: the chunk table, windows, and segments.

A sweep is a row of windows. A window names the chunks that it needs, and permutes their sequences. A segment is a run
of the order inside one window, as arrays. Only the current segments exist: a sweep of 10^9 sequences costs as much as
one of 10^5.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.protocol import CHUNK_MASK, ChunkInfo, whole_number

Ints = NDArray[np.int64]
Cut = Callable[[int, int], Any]

# Sequences planned at a time: few enough that the first minibatch after a restore comes at once (about a millisecond),
# enough that planning takes a few nanoseconds per sequence.
SEGMENT = 16384


FISHER_YATES_LIMIT = 1 << 20


def permutation(key: int, n: int) -> Cut:
    """Return the permutation of n places under ``key``, as a function from a range of places to their images."""
    if n <= FISHER_YATES_LIMIT:
        images = _native.fisher_yates(key, n)
        return lambda a, b: images[a:b]
    return lambda a, b: _native.feistel(key, n, a, b - a)


def identity(a: int, b: int) -> Ints:
    """Return the places a..b-1 themselves, int64."""
    return np.arange(a, b, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Window:
    """How much is shuffled together: consecutive chunks of the permuted order, up to a budget.

    Exactly one of the three is set. A window holds at least one chunk and ends before the chunk that would exceed the
    budget.

    Args:
        chunks: number of chunks.
        samples: number of samples, as the minibatch budget counts them.
        bytes: stored bytes (of the text or the store), never decoded ones.
    """

    chunks: int | None = None
    samples: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        settings = {name: value for name, value in self.to_json().items() if value is not None}
        if len(settings) != 1:
            raise ValueError(f"expected exactly one of chunks, samples and bytes, got {settings or 'none'}")
        ((name, value),) = settings.items()
        try:
            object.__setattr__(self, name, whole_number(name, value, 1))
        except (TypeError, ValueError):
            raise ValueError(f"expected {name} to be an int of at least 1, got {value!r}") from None

    def to_json(self) -> dict[str, int]:
        """Return the one setting that is not None, as saved in a state."""
        pairs = (("chunks", self.chunks), ("samples", self.samples), ("bytes", self.bytes))
        return {name: value for name, value in pairs if value is not None}

    def __repr__(self) -> str:
        return f"Window({', '.join(f'{k}={v}' for k, v in self.to_json().items())})"


class ChunkTable:
    """Sequences, samples and stored bytes of each chunk, in corpus order.

    Attributes:
        sequences, samples, bytes: int64 (chunks,).
        starts: int64 (chunks + 1,), ordinal of the first sequence of each chunk.
        total_sequences, total_samples: totals of one sweep.
    """

    __slots__ = ("bytes", "samples", "sequences", "starts", "total_samples", "total_sequences")

    def __init__(self, infos: Iterable[ChunkInfo]) -> None:
        table = np.array([tuple(info) for info in infos], np.int64).reshape(-1, 3)
        self._fill(*(np.ascontiguousarray(column) for column in table.T))

    @classmethod
    def of_columns(cls, sequences: Ints, samples: Ints, stored: Ints) -> ChunkTable:
        """Return a table of these columns, int64 (chunks,)."""
        table = cls.__new__(cls)
        table._fill(sequences, samples, stored)
        return table

    def first(self, chunks: int) -> ChunkTable:
        """Return the table of the first chunks."""
        return self.of_columns(*(column[:chunks] for column in (self.sequences, self.samples, self.bytes)))

    def _fill(self, sequences: Ints, samples: Ints, stored: Ints) -> None:
        self.sequences, self.samples, self.bytes = sequences, samples, stored
        self.starts: Ints = np.concatenate([[0], np.cumsum(sequences)]).astype(np.int64)
        self.total_sequences = int(self.starts[-1])
        self.total_samples = int(samples.sum())

    def __len__(self) -> int:
        return len(self.sequences)


class WindowPlan:
    """One window of a sweep: the chunks it needs, and the order of its sequences.

    Attributes:
        sweep, number: number of the sweep, and of the window in it.
        chunks: int64 (k,), chunk numbers, in the order in which their sequences are counted below. See
            `protocol.CHUNK_BITS`.
        position: place of the first of these chunks in the chunk order of the sweep.
        starts: int64 (k + 1,), first local place of each of these chunks.
        first: place of the window's first sequence in the order of the sweep.
        count: number of sequences that this window delivers.
        last: whether no sequence follows in this sweep.
        partition: (index, count), the part of the job that needs these chunks. (0, 1): all of it.
        key: a key that differs between windows with different chunks.
        gradual: whether the next window shares most of these chunks.
        group_key: a key that is equal for successive windows that may be in memory at the same time. They are read
            ahead as one.
    """

    gradual: ClassVar[bool] = False

    def __init__(
        self,
        sweep: int,
        number: int,
        *,
        chunks: Ints,
        starts: Ints,
        first: int,
        last: bool | Callable[[], bool],
        position: int = 0,
        count: int | None = None,
        make_cut: Callable[[], Cut] | None = None,
    ) -> None:
        self.sweep, self.number, self.chunks, self.position = sweep, number, chunks, position
        self.starts, self.first, self._last = starts, first, last
        self.count = int(starts[-1]) if count is None else count
        # The permutation is made at first use: looking ahead for chunks to read does not need it.
        self._make_cut = make_cut
        self._cut: Cut | None = None
        self.partition = (0, 1)
        self.key: tuple[int, ...] = (sweep, number)
        self.group_key: tuple[int, ...] = self.key

    def part(self, index: int, count: int) -> WindowPlan:
        """Return the window with only the chunks that part ``index`` of ``count`` needs. In most orders it needs
        all."""
        return self

    def renumber(self, place: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the positions in ``chunks`` of the chunks that are at ``place`` in the window that this is a part
        of."""
        return place

    @property
    def last(self) -> bool:  # noqa: D102  # see the class
        if callable(self._last):  # computed at the end of the window, as it may read later windows
            self._last = self._last()
        return self._last

    def locate(self, a: int, b: int) -> tuple[NDArray[np.uint32], Ints]:
        """Return position in ``chunks`` and index in that chunk of places a..b-1 of the window's order."""
        if self._cut is None:
            self._cut = identity if self._make_cut is None else self._make_cut()
        place, index = _native.locate(self.starts, self._cut(a, b))
        return place, index


@dataclass(slots=True, eq=False)
class Segment:
    """A run of consecutive sequences of the order, inside one window.

    Attributes:
        plan: the window.
        start: place in the window of the segment's first sequence.
        n: number of sequences.
        place, index: position in ``plan.chunks`` (uint32) and index in that chunk (int64), (n,).
        ordinals: int64 (n,), index of each sequence in the corpus.
        ends: int64 (n + 1,), samples from the segment's first sequence to each boundary. None: one a sequence.
        slots: uint32 (n,), slot of the chunk of each sequence, once the chunk is held.
        taken: int64 (n,), index of each sequence in its slot, if it may differ from ``index``.
        held: object that ``slots`` was computed from. Readers compare it to check that ``slots`` is still valid.
        sweeps: int64 (n,), the sweep of each sequence, or a function that returns them. None: the sweep of the plan.
        closing: place in the window at which the sweep ends, as the rest of it is jumped over. None if it ends with a
            window.
        breaks: ascending indices at which a minibatch ends, whatever its size. None if there are none.
        at: int64 (n,), place of each sequence counted from ``start``, if `take` has left sequences out. None: the
            sequences are consecutive.
    """

    plan: WindowPlan
    start: int
    n: int
    place: NDArray[np.uint32]
    index: Ints
    ordinals: Ints
    ends: Ints | None = None
    slots: NDArray[np.uint32] | None = None
    held: object = None
    taken: Ints | None = None
    sweeps: Ints | Callable[[], Ints] | None = None
    closing: int | None = None
    breaks: list[int] | None = None
    at: Ints | None = None

    @classmethod
    def locate_segment(cls, plan: WindowPlan, start: int, n: int, chunk_ordinals: Ints) -> Segment:
        """Return a segment. ``chunk_ordinals`` is the ordinal of the first sequence of each chunk of the plan."""
        place, index = plan.locate(start, start + n)
        ordinals = chunk_ordinals.take(place)  # half the time of indexing
        ordinals += index
        return cls(plan, start, n, place, index, ordinals=ordinals)

    def take(self, which: Ints) -> Segment:
        """Return only the sequences at the ascending indices ``which``. Their order on the axis is unchanged."""
        # Without slots, which a reader sets for the segment that it reads.
        place, index, ordinals = self.place[which], self.index[which], self.ordinals[which]
        part = Segment(
            self.plan, self.start, len(which), place, index, ordinals=ordinals, closing=self.closing, at=which
        )
        part.sweeps = None if self.sweeps is None else self.own_sweeps()[which]
        if self.ends is not None:
            part.set_lengths(np.diff(self.ends)[which])
        return part

    def ends_sweep(self, place: int) -> bool:
        """Return whether no sequence of the sweep follows before ``place`` of the window."""
        return place == self.closing or (place == self.plan.count and self.plan.last)

    def own_sweeps(self) -> Ints:
        """Return the sweep of each sequence, int64 (n,)."""
        if self.sweeps is None:
            return np.full(self.n, self.plan.sweep, np.int64)
        if callable(self.sweeps):
            self.sweeps = self.sweeps()
        return self.sweeps

    def set_lengths(self, lengths: Ints) -> None:
        """Set the number of samples of each sequence, int64 (n,), instead of one each."""
        self.ends = np.zeros(self.n + 1, np.int64)
        np.cumsum(lengths, out=self.ends[1:])

    def places(self, a: int, b: int) -> Ints:
        """Return the places of the sequences a..b-1 in the window."""
        places: Ints = self.start + (np.arange(a, b) if self.at is None else self.at[a:b])
        return places

    @property
    def samples(self) -> int:
        """Number of samples of all its sequences."""
        return self.n if self.ends is None else int(self.ends[-1])

    def before(self, k: int) -> int:
        """Return the samples of its sequences before index ``k``."""
        return k if self.ends is None else int(self.ends[k])


Layout = TypeVar("Layout")


class SweepLayouts(Generic[Layout]):
    """The layouts of sweeps that an order keeps: the newest one, and the one with the nearest number.

    Two are enough: the current sweep, and the next one while the last window of the current one is in use.

    Args:
        make: function that lays out the sweep of a number.
    """

    def __init__(self, make: Callable[[int], Layout]) -> None:
        self._make = make
        self._kept: dict[int, Layout] = {}

    def get(self, number: int) -> Layout:
        """Return the layout of a sweep."""
        layout = self._kept.get(number)
        if layout is None:
            layout = self._make(number)
            # Read once and replaced by a new one, since other threads may share the order.
            layouts = self._kept
            nearest = sorted(layouts, key=lambda n: abs(n - number))[:1]
            self._kept = {**{n: layouts[n] for n in nearest}, number: layout}
        return layout


class Share(NamedTuple):
    """The sequences that one corpus of a mixture has contributed up to a place.

    Attributes:
        sequences: number of its sequences, over all ranks, in all sweeps.
        delivered: their share of all sequences, 0 to 1.
        declared: the share that the weights declare for these places, 0 to 1.
    """

    sequences: int
    delivered: float
    declared: float


class Timeline(abc.ABC):
    """The order of all sweeps: a pure function of its arguments, which caches only values that it can recompute.

    Attributes:
        table: table of the chunks, or blocks of them, that fill windows.
        chunk_table: table of the corpus's chunks.
        blocks: the `Blocks` whose numbers `WindowPlan.chunks` are. None: numbers of chunks.
        swept: whether these numbers carry sweeps, see `protocol.CHUNK_BITS`.
        steady: whether all sweeps are divided into windows in the same way: if one of them is a single window with all
            chunks, every sweep is.
        arcs: number of arcs of which each gives a sequence in turn, so that a part of the job needs only its own arcs.
            None if every part needs everything.
        in_corpus_order: whether sequences come in the order of the corpus.
    """

    name: ClassVar[str]
    blocks: Any = None
    swept: bool = False
    steady: bool = True
    arcs: int | None = None

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None) -> None:
        """Create the order. With ``window`` None, all data is one window."""
        self.table, self.seed, self.shuffle, self.window = table, seed, shuffle, window
        self.chunk_table = table
        self.in_corpus_order = not shuffle

    @property
    def sweep_length(self) -> int | None:
        """Sequences in a sweep. None: one sweep without end."""
        return self.table.total_sequences

    @property
    def sweep_samples(self) -> int | None:
        """Samples in a sweep. None if unknown without a walk through it, or without end."""
        return self.table.total_samples

    def before(self, sweep: int) -> int:
        """Return the number of sequences in the sweeps before one. 0 without end."""
        return sweep * (self.sweep_length or 0)

    def sweep_of_samples(self, samples: int) -> tuple[int, int]:
        """Return the sweep in which the place after ``samples`` samples is, and the samples before that sweep, or
        sweep 0 if the samples of a sweep are unknown."""
        total = self.sweep_samples
        sweep = samples // total if total else 0
        return sweep, sweep * (total or 0)

    @abc.abstractmethod
    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """Return the window of ``sweep`` that holds ``place``. Takes O(log chunks) once the sweep is laid out.

        Args:
            sweep: number of the sweep.
            place: place in the order of the sweep, or of the window if ``window`` is not None.
            window: number of the window, in orders whose positions name it. None in others.

        Raises:
            IndexError: ``place`` is outside the sweep.
        """

    def window_after(self, plan: WindowPlan) -> WindowPlan:
        """Return the next window of the axis, in this sweep or the next."""
        if plan.last:
            return self.window_at(plan.sweep + 1, 0)
        return self.window_at(plan.sweep, plan.first + plan.count)

    def chunks_after(self, plan: WindowPlan, max_sweeps: int | None = None) -> Iterator[Ints]:
        """Yield the chunks of the windows that follow, window by window, up to a sweep. Reads and permutes nothing."""
        while True:
            plan = self.window_after(plan)
            if max_sweeps is not None and plan.sweep >= max_sweeps:
                return
            yield plan.chunks

    def segment(self, plan: WindowPlan, start: int, most: int) -> Segment:
        """Return the segment of at most ``most`` sequences of ``plan`` that begins at its place ``start``."""
        return Segment.locate_segment(
            plan, start, min(most, plan.count - start), self.table.starts[plan.chunks & CHUNK_MASK]
        )

    def position_of(self, plan: WindowPlan, place: int) -> tuple[int, int, int | None]:
        """Return (sweep, place in it, window) of place ``place`` of a window. At the end of the window, return the
        start of the next one."""
        if place == plan.count and plan.last:
            return plan.sweep + 1, 0, None
        return plan.sweep, plan.first + place, None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that a state needs for the order besides its name, seed and window, in JSON types."""
        return {}

    def from_json(self, state: Mapping[str, Any], sweep: int, place: int) -> Timeline:
        """Return the order that a state at a place was taken under: this one, or one that agrees with it.

        Raises:
            KeyError, ValueError: the state is damaged.
            StateError: it was taken under another order.
        """
        return self

    def _check(self, sweep: int, place: int) -> None:
        length = self.sweep_length
        if sweep < 0 or place < 0 or (sweep > 0 if length is None else place >= length):
            raise IndexError(
                f"expected {'sweep 0' if length is None else 'sweep >= 0'} and 0 <= sequence"
                f"{'' if length is None else f' < {length}'}, got sweep {sweep}, sequence {place}"
            )


def keyed_permutation(order: Timeline, n: int, levels: Sequence[int]) -> Cut:
    """Return the permutation of n places that the seed of an order and ``levels`` key, or `identity` without
    shuffle."""
    return permutation(_native.hash_key([order.seed, *levels]), n) if order.shuffle else identity


class InParts(abc.ABC):
    """The order of a corpus of several, whose sweeps end in different places."""

    @abc.abstractmethod
    def ended_parts(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[str, ...]:
        """Return the names of the parts of which a sweep ended between two places (sweep, place in it)."""


def ended_parts(timeline: Timeline, a: tuple[int, int], b: tuple[int, int]) -> tuple[str, ...]:
    """Return the names of the parts of which a sweep ended between two places. An order in one part has none."""
    return timeline.ended_parts(a, b) if isinstance(timeline, InParts) else ()
