"""The orders "arcs-1" and "arcs-2": a sweep's chunk order in equal arcs, which take turns sequence by sequence.

The chunks of a sweep are permuted as in "feedline-1" ("arcs-2": the blocks of "feedline-2"). Their sequences, listed in
that order, are cut into a fixed number of arcs of equal length, and each arc is shuffled in separate windows. Place p
of the sweep is place p // arcs of arc p % arcs. So a rank that takes the places of some arcs reads only the chunks in
them. Specified to the bit in docs/explanation/order.md. `Arcs` sets their number.

A *round* is a place of every arc: the places r * arcs to r * arcs + arcs - 1 of the sweep. A `WindowPlan` is a run of
rounds during which every arc stays in one of its windows. Cost: O(chunks + windows log windows) once per sweep, some
hundred microseconds for each plan, of which there are as many as rounds at which windows begin, and a microsecond for
each arc in a segment. Memory: 4 bytes per sequence of the current windows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.timeline.block_order import Blocks
from feedline.feed.timeline.elements import (
    ChunkTable,
    Cut,
    Ints,
    SweepLayouts,
    Timeline,
    Window,
    WindowPlan,
    keyed_permutation,
)
from feedline.feed.timeline.feedline import chunk_order
from feedline.feed.unique import distinct

# Level of the key of a window of an arc. docs/explanation/order.md lists the other levels.
ARC_SEQUENCES = 14


class ArcOrder(Timeline):
    """The order "arcs-1".

    Args:
        table, seed, shuffle: see `Timeline`.
        window: window of all arcs together, of which each has an equal share. None if each arc is one window.
        arcs: number of arcs.

    Raises:
        ValueError: there are fewer sequences than arcs.
    """

    name: ClassVar[str] = "arcs-1"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None, arcs: int) -> None:
        if arcs > table.total_sequences:
            raise ValueError(
                f"expected at most as many arcs as sequences, got fl.Arcs({arcs}) for {table.total_sequences} sequences"
            )
        super().__init__(table, seed, shuffle, window)
        self.arcs: int = arcs
        self.in_corpus_order = not shuffle and arcs == 1  # several arcs take turns
        self._sweeps = SweepLayouts(functools.partial(_ArcSweep, self))

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        self._check(sweep, place)
        layout = self._sweeps.get(sweep)
        return ArcPlan(layout, int(np.searchsorted(layout.rounds, place // self.arcs, side="right")) - 1)

    def chunks_after(self, plan: WindowPlan, max_sweeps: int | None = None) -> Iterator[Ints]:
        """See `Timeline.chunks_after`. Yields only windows of the arcs of a part, as many at a time as it has arcs."""
        layout = self._sweeps.get(plan.sweep)
        part = layout.part(*plan.partition)
        at, missing = part.count_begun(int(layout.rounds[plan.number])), part.arcs
        chunks: list[Ints] = []
        while True:
            coming = part.windows[at : at + missing]
            chunks.append(layout.chunks[layout.pieces_of(coming).pieces])
            at, missing = at + len(coming), missing - len(coming)
            if missing == 0:
                yield np.concatenate(chunks)
                chunks, missing = [], part.arcs
                continue
            sweep = layout.number + 1
            if max_sweeps is not None and sweep >= max_sweeps:
                break
            layout, at = self._sweeps.get(sweep), 0
            part = layout.part(*plan.partition)
        if chunks:
            yield np.concatenate(chunks)


class ArcBlockOrder(ArcOrder):
    """The order "arcs-2": "arcs-1" over blocks, see `block_order`.

    Attributes:
        blocks: blocks that windows are made of. Chunk numbers of a `WindowPlan` are numbers of blocks.
    """

    name: ClassVar[str] = "arcs-2"

    def __init__(self, table: ChunkTable, seed: int, shuffle: bool, window: Window | None, arcs: int) -> None:
        self.blocks = Blocks(table)
        super().__init__(self.blocks.table, seed, shuffle, window, arcs)
        self.chunk_table = table


class _ArcPart(NamedTuple):
    """The arcs that one part of the job owns.

    Attributes:
        arcs: number of these arcs.
        owned: bool (arcs of the order,), whether the part owns an arc.
        windows: int64 (n,), windows of these arcs, in the order in which they begin.
        rounds: int64 (n,), ascending rounds at which the windows begin.
    """

    arcs: int
    owned: NDArray[np.bool_]
    windows: Ints
    rounds: Ints

    def count_begun(self, number: int) -> int:
        """Return how many windows have begun by round ``number``."""
        return int(np.searchsorted(self.rounds, number, side="right"))

    def group_key(self, sweep: int, number: int) -> tuple[int, int]:
        """Return a key of a round. It changes each time that ``arcs / 2`` windows have begun."""
        return sweep, 2 * self.count_begun(number) // self.arcs


class _ArcPieces(NamedTuple):
    """Pieces of several windows.

    Attributes:
        pieces: int64 (n,), numbers of the pieces.
        of: int64 (n,), index of the window that each piece is in.
        before: int64 (windows,), number of pieces before the pieces of each window.
    """

    pieces: Ints
    of: Ints
    before: Ints


class _ArcSweep:
    """The arcs of one sweep and their windows, which determine everything else.

    An arc is a run of *pieces*: whole chunks, except for the first and the last, which may be parts of chunks. A window
    is a run of pieces of one arc. Pieces and windows are numbered through all arcs.

    Attributes:
        number: number of the sweep.
        arcs: number of arcs.
        chunks, offsets, counts: int64 (pieces,), chunk of each piece, its first sequence in it, and its length.
        bounds: int64 (windows + 1,), first piece of each window.
        arc: int64 (windows,), arc of each window.
        begin: int64 (windows,), place in its arc of the first sequence of each window: the round at which it begins.
        rounds: int64 (plans,), ascending rounds at which some windows begin.
        total: number of sequences.
    """

    def __init__(self, order: ArcOrder, number: int) -> None:
        table, arcs = order.table, order.arcs
        self._order, self.number, self.arcs, total = order, number, arcs, table.total_sequences
        self.total = total
        chunks = chunk_order(order, len(table), number)
        chunks = chunks[table.sequences[chunks] > 0]
        starts = np.concatenate([[0], np.cumsum(table.sequences[chunks])]).astype(np.int64)
        i = np.arange(arcs + 1, dtype=np.int64)
        begins = i * (total // arcs) + np.minimum(i, total % arcs)
        firsts: Ints = np.union1d(starts[:-1], begins[:-1])
        of = np.searchsorted(starts, firsts, side="right") - 1
        self.chunks: Ints = chunks[of]
        self.offsets: Ints = firsts - starts[of]
        self.counts: Ints = np.diff(firsts, append=total)
        edges = np.searchsorted(firsts, begins)
        self.bounds: Ints = _fill_windows(table, self.chunks, edges, order.window)
        first = self.bounds[:-1]
        self.arc: Ints = np.searchsorted(edges, first, side="right") - 1
        self.begin: Ints = firsts[first] - begins[self.arc]
        self._sizes: Ints = np.add.reduceat(self.counts, first)
        self._first_windows: Ints = np.searchsorted(self.arc, i[:-1])
        # One number for arc and place, which ascends through all windows.
        self._stride = total // arcs + 2
        self._keys: Ints = self.arc * self._stride + self.begin
        self._by_round = np.argsort(self.begin, kind="stable")
        self.rounds: Ints = distinct(self.begin)
        self._parts: dict[tuple[int, int], _ArcPart] = {}
        self._cuts: dict[int, Cut] = {}

    def part(self, index: int, count: int) -> _ArcPart:
        """Return the arcs of part ``index`` of ``count``."""
        part = self._parts.get((index, count))
        if part is None:
            owned = np.arange(self.arcs) % count == index
            windows = self._by_round[owned[self.arc[self._by_round]]]
            # A limit, as a caller may ask for the parts of all ranks in turn.
            if len(self._parts) >= 64:
                self._parts = {}
            part = self._parts[index, count] = _ArcPart(int(owned.sum()), owned, windows, self.begin[windows])
        return part

    def pieces_of(self, windows: Ints) -> _ArcPieces:
        """Return the pieces of some windows, one window after the other."""
        lows = self.bounds[windows]
        lengths = self.bounds[windows + 1] - lows
        before = np.cumsum(lengths) - lengths
        of = np.repeat(np.arange(len(windows), dtype=np.int64), lengths)
        return _ArcPieces(np.arange(len(of)) + (lows - before)[of], of, before)

    def in_use(self, number: int) -> Ints:
        """Return the window that each arc is in at round ``number``."""
        keys = np.arange(self.arcs, dtype=np.int64) * self._stride + number
        windows: Ints = np.searchsorted(self._keys, keys, side="right") - 1
        return windows

    def cut(self, window: int, in_use: Ints) -> Cut:
        """Return the order of the sequences of a window. Keeps the orders of the windows ``in_use``."""
        cut = self._cuts.get(window)
        if cut is None:
            arc = int(self.arc[window])
            number = window - int(self._first_windows[arc])
            cut = keyed_permutation(self._order, int(self._sizes[window]), (self.number, ARC_SEQUENCES, arc, number))
            if len(self._cuts) > 4 * self.arcs:
                cuts = self._cuts
                self._cuts = {w: cuts[w] for w in in_use.tolist() if w in cuts}
            self._cuts[window] = cut
        return cut


class ArcPlan(WindowPlan):
    """The rounds of a sweep from one at which windows begin up to the next such round.

    Attributes:
        layout: layout of the sweep.
        windows: int64 (arcs,), window that each arc is in.
    """

    gradual: ClassVar[bool] = True

    def __init__(self, layout: _ArcSweep, number: int) -> None:
        begun = int(layout.rounds[number])
        first, last = begun * layout.arcs, number + 1 == len(layout.rounds)
        stop = layout.total if last else int(layout.rounds[number + 1]) * layout.arcs
        windows = layout.in_use(begun)
        pieces, self._of, before = layout.pieces_of(windows)
        starts = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum(layout.counts[pieces], out=starts[1:])
        self.layout, self.windows, self._offsets = layout, windows, layout.offsets[pieces]
        self._shift: Ints = starts[before]
        self._part: ArcPlan | None = None
        self._numbers: NDArray[np.uint32] | None = None  # in the plan of a part, the number of each chunk in it
        chunks, count = layout.chunks[pieces], stop - first
        super().__init__(layout.number, number, chunks=chunks, starts=starts, first=first, last=last, count=count)
        self.group_key = layout.part(0, 1).group_key(layout.number, begun)

    def locate(self, a: int, b: int) -> tuple[NDArray[np.uint32], Ints]:
        """See `WindowPlan.locate`."""
        layout, arcs, n = self.layout, self.layout.arcs, b - a
        start = self.first + a
        windows, begin = self.windows.tolist(), layout.begin[self.windows].tolist()
        places = np.empty(n, np.int64)
        for t in range(min(n, arcs)):
            within, arc = divmod(start + t, arcs)
            low = within - begin[arc]
            cut = layout.cut(windows[arc], self.windows)
            places[t::arcs] = cut(low, low + (n - t + arcs - 1) // arcs)
        places += self._shift[np.arange(start, start + n) % arcs]
        place, index = _native.locate(self.starts, places)
        index += self._offsets[place]
        return place, index

    def part(self, index: int, count: int) -> WindowPlan:
        """See `WindowPlan.part`. `locate` does not support a part, whose segments are taken from segments of the
        window."""
        if count == 1 or self._numbers is not None:
            return self
        if self._part is not None and self._part.partition == (index, count):
            return self._part
        arcs = self.layout.part(index, count)
        mine = arcs.owned[self._of]
        part = copy.copy(self)
        part.chunks, part.partition, part._part = self.chunks[mine], (index, count), None
        # Windows of other arcs begin meanwhile, but the chunks that this part needs stay the same.
        begun = int(self.layout.rounds[self.number])
        part.key = (self.sweep, arcs.count_begun(begun), index, count)
        part.group_key = (*arcs.group_key(self.sweep, begun), index, count)
        part._numbers = (np.cumsum(mine) - 1).astype(np.uint32)
        self._part = part
        return part

    def renumber(self, place: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """See `WindowPlan.renumber`."""
        return place if self._numbers is None else self._numbers[place]


def _fill_windows(table: ChunkTable, chunks: Ints, edges: Ints, window: Window | None) -> Ints:
    """Return the first piece of each window, and the number of pieces. Fills the windows of all arcs side by side.

    Args:
        table: sizes of the chunks.
        chunks: chunk of each piece. The whole chunk counts for the budget, as it is read whole.
        edges: first piece of each arc, and the number of pieces.
        window: budget of all arcs together.
    """
    if window is None:
        return edges
    (budget,) = window.to_json().values()
    costs = np.ones(len(chunks), np.int64)
    if window.chunks is None:
        costs = (table.samples if window.samples is not None else table.bytes)[chunks]
    ends = np.concatenate([[0], np.cumsum(costs)]).astype(np.int64)
    share = min(-(-budget // (len(edges) - 1)), int(ends[-1]))
    at, stops = edges[:-1], edges[1:]
    firsts = [edges]
    while True:
        at = np.maximum(np.searchsorted(ends, ends[at] + share, side="right") - 1, at + 1)
        going = at < stops
        if not going.any():
            return np.sort(np.concatenate(firsts))
        at, stops = at[going], stops[going]
        firsts.append(at)
