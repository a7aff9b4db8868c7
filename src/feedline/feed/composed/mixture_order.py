"""The order "mixture-1": places of a mixture, filled by the orders of its parts.

A window is a run of blocks of the mixture during which no part moves to another of its windows. So memory holds one
window of each part, or two of the part whose window changes. Specified to the bit in docs/explanation/order.md. Finding
a window is O(parts). A segment takes about ten nanoseconds per sequence and a few microseconds per part.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DataError, StateError, shown
from feedline.feed.composed.mixture_stages import LAST_PLACE, Declared, Stages, check_place
from feedline.feed.protocol import Ints, whole_number
from feedline.feed.timeline import ChunkTable, Segment, Share, Timeline, Window, WindowPlan
from feedline.feed.timeline.block_order import Blocks
from feedline.feed.timeline.elements import InParts
from feedline.feed.unique import distinct

# A weight in a state, whose denominator is not 0.
_RATIO = re.compile("[0-9]{1,400}(/0*[1-9][0-9]{0,399})?")

# Limit of blocks in a window.
_MAX_BLOCKS = 4096


class Rules(NamedTuple):
    """The declaration of a mixture, without its stages.

    Attributes:
        names: names of the parts.
        max_sweeps: number of sweeps of each part. None: no limit.
        when_empty: action when a part has no more sequences.
        block: places, or batches if ``batch`` is set, that are shuffled together.
        batch: sequences of a batch, all of one part. None if parts alternate within batches.
        shares: share of each part in the window.
        parse: function from weights by name to the weights of the parts.
    """

    names: tuple[str, ...]
    max_sweeps: tuple[int | None, ...]
    when_empty: str
    block: int
    batch: int | None
    shares: tuple[Fraction, ...]
    parse: Callable[[Any], tuple[Fraction, ...]]


class MixtureOrder(Timeline, InParts):
    """The order of a mixture.

    Args:
        parts: orders of the parts.
        rules: declaration of the mixture, without its stages.
        declared: stages by ascending start, the first at 0.
        seed: seed of the shuffle in blocks.
        shuffle: whether the order is shuffled.
        window: window that the parts share. None: all data of all parts.

    Attributes:
        stages: schedules of sources by place.
    """

    name: ClassVar[str] = "mixture-1"

    def __init__(
        self,
        parts: Sequence[Timeline],
        rules: Rules,
        declared: Sequence[Declared],
        *,
        seed: int,
        shuffle: bool,
        window: Window | None,
    ) -> None:
        self.parts, self.rules, self.declared = tuple(parts), rules, tuple(declared)
        super().__init__(_join_tables([part.table for part in parts]), seed, shuffle, window)
        self.stages = self._stages_of(self.declared)
        self.chunk_table = _join_tables([part.chunk_table for part in parts])
        self.in_corpus_order = False
        if any(part.blocks is not None for part in parts):
            self.blocks = _join_blocks(parts)
        self.swept = any(part.swept for part in parts)
        self._bases = np.cumsum([0, *(len(part.table) for part in parts)]).tolist()
        # The latest window of each part: its permutation, up to 4 MiB, serves many segments. Shared with the orders
        # that `with_weights` returns, as their parts are the same.
        self._located: dict[int, WindowPlan] = {}

    @functools.cached_property
    def steady(self) -> bool:  # type: ignore[override]
        """See `Timeline.steady`: a mixture may end after the first chunks of a part, and the next sweep has other first
        chunks."""
        return all(
            part.steady and (part.window is None or self._holds_all(k, part.window_at(0, 0)))
            for k, part in enumerate(self.parts)
        )

    @property
    def sweep_length(self) -> int | None:
        """See `Timeline.sweep_length`."""
        return self.stages.length

    @property
    def sweep_samples(self) -> None:
        """See `Timeline.sweep_samples`."""
        return

    def window_at(self, sweep: int, place: int, window: int | None = None) -> WindowPlan:
        """See `Timeline.window_at`."""
        if sweep and self.rules.when_empty == "error":
            raise self._no_more()
        self._check(sweep, place)
        return _MixtureWindow(self, sweep, *self._window(sweep, place))

    def chunks_after(self, plan: WindowPlan, max_sweeps: int | None = None) -> Iterator[Ints]:
        """See `Timeline.chunks_after`."""
        return super().chunks_after(plan, 1 if self.rules.when_empty == "error" else max_sweeps)

    def segment(self, plan: WindowPlan, start: int, most: int) -> Segment:
        """See `Timeline.segment`."""
        segment = super().segment(plan, start, most)
        assert isinstance(plan, _MixtureWindow)
        segment.sweeps = plan.sweeps_of(start, segment.n)
        batch = self.rules.batch
        if batch is not None:
            place = plan.first + start
            segment.breaks = list(range(batch - place % batch, segment.n + 1, batch))
        return segment

    def ended_parts(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[str, ...]:
        """See `InParts.ended_parts`."""
        x, y = self._count_completed(*a), self._count_completed(*b)
        return tuple(name for k, name in enumerate(self.rules.names) if x[k] < y[k])

    def _count_completed(self, sweep: int, n: int) -> list[int]:
        """Return the sweeps of each part that were delivered completely before place ``n`` of a sweep. 0 for a part
        without end."""
        lengths = [part.sweep_length for part in self.parts]
        return [
            0 if length is None else sweep * (total // length) + count // length
            for length, total, count in zip(lengths, self.stages.totals, self.stages.counts(n), strict=True)
        ]

    def shares(self, sweep: int, place: int) -> dict[str, Share]:
        """Return the sequences and shares of each part before a place, by name.

        Shares follow the declared weights, even where an exhausted corpus was dropped.
        """
        length = self.stages.length or 0
        totals = [self._declared_to(length, k) * sweep + self._declared_to(place, k) for k in range(len(self.parts))]
        places = sweep * length + place
        before = self.stages.counts(place)
        counts = [sweep * total + count for total, count in zip(self.stages.totals, before, strict=True)]
        return {
            name: Share(count, count / max(places, 1), float(total / max(places, 1)))
            for name, count, total in zip(self.rules.names, counts, totals, strict=True)
        }

    def _declared_to(self, n: int, k: int) -> Fraction:
        """Return the sequences of part ``k`` that the weights declare before place ``n`` of a sweep."""
        stops = [*(stage.start for stage in self.declared[1:]), n]
        return sum(
            (
                stage.weights[k] / sum(stage.weights) * (min(stop, n) - stage.start)
                for stage, stop in zip(self.declared, stops, strict=True)
                if stage.start < n
            ),
            Fraction(0),
        )

    # ---- stages -------------------------------------------------------------------------------------

    def with_weights(self, place: tuple[int, int], weights: Any, at: int | None) -> tuple[MixtureOrder, int]:
        """Return the order with other weights from ``at``, or from the next border of blocks after ``place``, and the
        place of the change.

        Raises:
            TypeError, ValueError: an argument is out of range.
        """
        stages, (sweep, n) = self.stages, place
        if sweep:
            raise ValueError(f"expected the first sweep of a mixture to change its weights, got sweep {sweep}")
        a, b = stages.block_around(n)
        border = n if n == a else b
        at = border if at is None else whole_number("the place of other weights", at, 0)
        if not border <= at <= LAST_PLACE:
            raise ValueError(f"expected other weights from place {border}, the next block border, to 2**62, got {at}")
        new = Declared(at, self.rules.parse(weights), changed=True)
        order = self._with(sorted([*(stage for stage in self.declared if stage.start != at), new]))
        if order.stages.length is not None and order.stages.length <= n:
            ended = self.rules.names[order.stages.ended_by or 0]
            raise ValueError(
                f"expected weights with which the mixture can continue, got a weight for {ended!r}, which has no "
                "sequences left"
            )
        return order, at

    def to_json(self) -> dict[str, Any]:
        """See `Timeline.to_json`."""
        stages = [[stage.start, [str(weight) for weight in stage.weights], stage.changed] for stage in self.declared]
        return {"windows": [str(share) for share in self.rules.shares], "stages": stages}

    def from_json(self, state: Mapping[str, Any], sweep: int, place: int) -> MixtureOrder:
        """See `Timeline.from_json`: stages that have begun come from the state, later ones from the declaration."""
        saved = _read(state["stages"], len(self.parts))
        windows = [str(share) for share in self.rules.shares]
        if state["windows"] != windows:
            raise StateError(
                "this state was taken with other windows of the corpora, which follow the first weights",
                saved={"windows": state["windows"]},
                current={"windows": windows},
                hint="declare the first weights of the saved run, and others as a later stage: "
                "stages=[(place, weights)]",
            )
        reached = None if sweep else max(place, 1)
        replaced = {stage.start for stage in saved if stage.changed}

        def begun(stages: Sequence[Declared]) -> list[Declared]:
            """Return the declared stages that hold for places before the position."""
            passed = [stage for stage in stages if not stage.changed and (reached is None or stage.start < reached)]
            return [stage for stage in passed if stage.start not in replaced]

        if begun(saved) != begun(self.declared):
            raise StateError(
                "this state was taken under other weights",
                saved={"stages": _show(begun(saved))},
                current={"stages": _show(begun(self.declared))},
                hint="declare the weights of the saved run, and the new ones as a later stage: stages=[(place, "
                "weights)]. Or load the state, and call change_weights",
            )
        later = [s for s in self.declared if reached is not None and s.start >= reached and not s.changed]
        retained = [stage for stage in saved if stage.changed or stage in begun(saved)]
        order = self._with(sorted({stage.start: stage for stage in [*later, *retained]}.values()))
        if reached is not None:
            was, now = (stages.block_around(reached - 1) for stages in (self._with(saved).stages, order.stages))
            if was != now:
                raise StateError(
                    f"this state was taken at place {place}, after places of a block that was shuffled as places "
                    f"{was[0]} to {was[1]}, but would now end at {now[1]}",
                    saved={"stages": _show(saved)},
                    current={"stages": _show(order.declared)},
                    hint=f"leave the stages up to place {was[1]} as they were",
                )
        return order

    def _with(self, declared: Sequence[Declared]) -> MixtureOrder:
        twin = copy.copy(self)
        twin.declared = tuple(declared)
        twin.stages = self._stages_of(twin.declared)
        return twin

    def _stages_of(self, declared: Sequence[Declared]) -> Stages:
        batch = self.rules.batch or 1
        limits = [
            None if sweeps is None or part.sweep_length is None else sweeps * part.sweep_length
            for part, sweeps in zip(self.parts, self.rules.max_sweeps, strict=True)
        ]
        for stage in declared:
            check_place(stage.start, batch)
        return Stages(
            declared,
            limits,
            dropping=self.rules.when_empty == "drop",
            seed=self.seed,
            block=self.rules.block if self.shuffle else 1,
            batch=batch,
        )

    def _no_more(self) -> DataError:
        stages, rules = self.stages, self.rules
        assert stages.ended_by is not None
        k = stages.ended_by
        return DataError(
            f"expected {rules.names[k]!r} to have a sequence for place {stages.length} of the mixture, got the end of "
            f"its {rules.max_sweeps[k]} sweeps",
            hint='give it more max_sweeps, or pass when_empty="repeat", "stop" or "drop"',
        )

    # ---- positions of the parts -----------------------------------------------------------------------

    def _count_given(self, sweep: int, n: int) -> list[int]:
        """Return the items of each part before place ``n`` of a sweep, counted through all sweeps."""
        counts = self.stages.counts(n)
        return [self._offset(k, sweep) + count for k, count in enumerate(counts)]

    def _offset(self, k: int, sweep: int) -> int:
        """Return the items of part ``k`` before a sweep of the mixture: complete sweeps of the part, so that none of
        its items is delivered twice in one of them. A part without end continues."""
        if not sweep:
            return 0
        length = self.parts[k].sweep_length or 1
        return sweep * -(-self.stages.totals[k] // length) * length

    def part_window(self, k: int, item: int) -> tuple[WindowPlan, int]:
        """Return the window of part ``k`` that holds one of its items, and the place of the item in it."""
        length = self.parts[k].sweep_length
        sweep, place = (0, item) if length is None else divmod(item, length)
        plan = self._located.get(k)
        if plan is None or plan.sweep != sweep or not 0 <= place - plan.first < plan.count:
            plan = self.parts[k].window_at(sweep, place)
        return plan, place - plan.first

    def _window(self, sweep: int, n: int) -> tuple[int, int]:
        """Return the first place of the window that holds place ``n``, and the one after its last."""
        stages = self.stages
        stage = stages.at(n)
        block = (n - stage.start) // stages.block
        low = block // _MAX_BLOCKS * _MAX_BLOCKS
        high = low + _MAX_BLOCKS
        counts = stages.counts(stages.block_bounds(stage, block)[1])
        for k, count in enumerate(counts):
            if self.parts[k].window is None or not stage.schedule.quotas[k]:
                continue
            item = max(count - 1, stage.before[k])
            plan, at = self.part_window(k, self._offset(k, sweep) + item)
            if self._holds_all(k, plan):
                continue
            first = item - at
            if first > stage.before[k]:
                began = stages.block_of(stage, k, first)
                assert began is not None
                low = max(low, began)
            ends = stages.block_of(stage, k, first + plan.count)
            if ends is not None:
                high = min(high, ends)
        a, _ = stages.block_bounds(stage, low)
        _, b = stages.block_bounds(stage, high - 1)
        return a, b if stage.stop is None else min(b, stage.stop)

    def _holds_all(self, k: int, plan: WindowPlan) -> bool:
        """Return whether a window of part ``k`` has all its chunks. Then the windows of its other sweeps have them,
        too."""
        part = self.parts[k]
        complete = plan.first == 0 and plan.last and len(plan.chunks) == len(part.table)
        return complete and part.steady and not part.swept

    def runs(self, k: int, low: int, high: int) -> list[tuple[WindowPlan, int, int]]:
        """Return the windows of part ``k`` that hold its items ``low`` to ``high - 1``, with the places in each."""
        windows = []
        while low < high:
            plan, at = self.part_window(k, low)
            count = min(plan.count - at, high - low)
            windows.append((plan, at, at + count))
            low += count
        return windows

    def chunks_of(self, k: int, low: int, high: int) -> Ints:
        """Return the chunks that the items ``low`` to ``high - 1`` of part ``k`` need, ascending."""
        part = self.parts[k]
        if part.window is None and not isinstance(part, MixtureOrder):
            return np.arange(len(part.table), dtype=np.int64)
        plan, _ = self.part_window(k, low)
        if self._holds_all(k, plan):
            return distinct(plan.chunks)
        return distinct(np.concatenate([plan.chunks for plan, _, _ in self.runs(k, low, high)]))


class _MixtureWindow(WindowPlan):
    """A window of a mixture, from place ``first`` of a sweep to before ``stop``."""

    def __init__(self, order: MixtureOrder, sweep: int, first: int, stop: int) -> None:
        self._order = order
        self._told: tuple[int, int, Callable[[], Ints]] | None = None
        low, high = order._count_given(sweep, first), order._count_given(sweep, stop)
        self._chunks = {k: order.chunks_of(k, a, b) for k, (a, b) in enumerate(zip(low, high, strict=True)) if a < b}
        self._places = dict(zip(self._chunks, np.cumsum([0, *map(len, self._chunks.values())]).tolist(), strict=False))
        chunks = np.concatenate([order._bases[k] + chunks for k, chunks in self._chunks.items()])
        starts = np.array([0, stop - first], np.int64)
        super().__init__(sweep, first, chunks=chunks, starts=starts, first=first, last=stop == order.stages.length)

    def locate(self, a: int, b: int) -> tuple[NDArray[np.uint32], Ints]:
        """See `WindowPlan.locate`."""
        order, sweep, stages = self._order, self.sweep, self._order.stages
        source, item = stages.items(self.first + a, b - a)
        # All items of the first part, then all of the next, and so on. `shift` is the index at which the items of a
        # part begin.
        shift = np.zeros(len(order.parts), np.int64)
        places, indices, sweeps = [], [], []
        before, low, high = 0, stages.counts(self.first + a), stages.counts(self.first + b)
        for k, (x, y) in enumerate(zip(low, high, strict=True)):
            if x == y:
                continue
            shift[k], offset = before - x, order._offset(k, sweep)
            before += y - x
            for plan, u, v in order.runs(k, x + offset, y + offset):
                chunk, index = plan.locate(u, v)
                of = self._chunks[k].searchsorted(plan.chunks) + self._places[k]
                places.append(of.astype(np.uint32)[chunk])
                indices.append(index)
                inner = plan.sweeps_of(u, v - u) if isinstance(plan, _MixtureWindow) else plan.sweep
                sweeps.append((v - u, inner))
                order._located[k] = plan
        where = item + shift[source]
        self._told = a, b, functools.partial(_sweeps, sweeps, where)
        return np.concatenate(places)[where], np.concatenate(indices)[where]

    def sweeps_of(self, start: int, n: int) -> Callable[[], Ints]:
        """Return a function for the sweep, in its part, of each of the ``n`` sequences from place ``start``."""
        if self._told is None or self._told[:2] != (start, start + n):
            self.locate(start, start + n)
        assert self._told is not None
        return self._told[2]


def _read(stages: Any, parts: int) -> list[Declared]:
    """Return the stages of a state.

    Raises:
        ValueError: the stages are malformed, or not for this number of parts.
    """
    declared: list[Declared] = []
    for entry in stages if isinstance(stages, list) else ():
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[1], list) and type(entry[2]) is bool):
            break
        start, texts, changed = entry
        if not all(isinstance(text, str) and _RATIO.fullmatch(text) for text in texts) or len(texts) != parts:
            break
        weights = tuple(Fraction(text) for text in texts)
        last = declared[-1].start if declared else -1
        if type(start) is not int or not last < start <= LAST_PLACE or not any(weights):
            break
        declared.append(Declared(start, weights, changed))
    else:
        if declared and declared[0].start == 0:
            return declared
    raise ValueError(f"expected stages of {parts} weights at ascending places from 0 on, got {shown(stages, 200)}")


def _sweeps(runs: list[tuple[int, int | Callable[[], Ints]]], where: Ints) -> Ints:
    """Return the sweeps at places ``where`` of consecutive runs. A run is a length, and its sweep or a function for its
    sweeps."""
    return np.concatenate([sweep() if callable(sweep) else np.full(n, sweep, np.int64) for n, sweep in runs])[where]


def _show(declared: Sequence[Declared]) -> list[tuple[int, list[str]]]:
    return [(stage.start, [str(weight) for weight in stage.weights]) for stage in declared]


def _join_tables(tables: Sequence[ChunkTable]) -> ChunkTable:
    return ChunkTable.of_columns(
        *(np.concatenate([getattr(table, column) for table in tables]) for column in ("sequences", "samples", "bytes"))
    )


def _join_blocks(parts: Sequence[Timeline]) -> Blocks:
    """Return the blocks of all parts. A chunk of a part without blocks is one block."""
    chunk, first, before = [], [], 0
    for part in parts:
        blocks = part.blocks
        chunk.append(before + (np.arange(len(part.table), dtype=np.int64) if blocks is None else blocks.chunk))
        first.append(np.zeros(len(part.table), np.int64) if blocks is None else blocks.first)
        before += len(part.chunk_table)
    return Blocks.of(_join_tables([part.table for part in parts]), np.concatenate(chunk), np.concatenate(first))
