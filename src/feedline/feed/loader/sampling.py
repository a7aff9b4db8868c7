"""Users' samplers and batch samplers, resumed from their own state or by replay.

A sampler is iterated in the parent, only as far ahead as batches are in flight. A state does not hold the indices of
undelivered batches. A loader with a ``seed`` starts the sampler under seeded generators. So a sampler that shuffles
when it starts (as torch's do) produces the same order when it is restarted, in any state of the global generators. A
loader without ``seed`` lets it draw from them, as torch's loader does, and a state holds their earlier states.

A sampler may iterate another loader's sampler, as wrappers of frameworks do. The sweep and seed of that loader are
part of our state: `BegunOrder`.

The epoch of a sampler (``set_epoch``, as of torch's `DistributedSampler`) is restored to the epoch of the saved sweep:
some frameworks set it only after workers have received the first batches.

An interrupt may leave a sampler in any state. A sampler that can be restarted is restarted, and continues after the
last batch. A sampler that is its own iterator continues as it is. A generator has been ended by the interrupt, which is
an error.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, NamedTuple

from feedline.errors import StateError
from feedline.feed.loader import state
from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.draws import ProgramGenerator
from feedline.feed.loader.fetch import next_items
from feedline.feed.loader.order import Planned
from feedline.feed.loader.sample_seeds import SAMPLER, At, GlobalStates, Seeding, SweepKey
from feedline.feed.loader.state import ResumePoint, is_hex, whole


class BegunOrder(NamedTuple):
    """The order of a loader's sweep.

    Attributes:
        seed, sweep: seed of the order, and number of the sweep under it.
        per_sweep: whether the seed was drawn for this sweep only.
    """

    seed: int
    sweep: int
    per_sweep: bool = False

    def to_json(self) -> list[Any]:
        """Return the order in JSON types."""
        return [f"{self.seed:016x}", self.sweep, *([True] if self.per_sweep else [])]


class _ActiveSampler(threading.local):
    """The user's sampler that this thread iterates.

    Attributes:
        orders: orders of loaders that it has begun. None if no sampler is iterated.
        again: orders that it has to begin again, from a state.
        named: whether the program sets its epochs, as on a `DistributedSampler` over a loader's sampler.
    """

    orders: list[BegunOrder] | None = None
    again: list[BegunOrder] = []  # noqa: RUF012  # never modified
    named = False

    def order_again(self) -> BegunOrder | None:
        """Return the order that a loader's sampler has to begin now, or None if it begins its next one."""
        return None if self.orders is None or len(self.orders) >= len(self.again) else self.again[len(self.orders)]

    def goes_on(self, seed: int | None) -> bool:
        """Return whether the loader that iterates a loader's sampler has begun it under this seed before, in the same
        sweep.

        Then it goes on under that seed. So the order of an endless loader, which iterates a sampler again and again
        within one sweep, follows from the generators as they were when that sweep began.
        """
        return any(order.seed == seed for order in self.orders or ())

    def note_begun(self, order: BegunOrder) -> None:
        """Note the order that a loader's sampler begins, in case another loader iterates it."""
        if self.orders is not None:
            self.orders.append(order)


active = _ActiveSampler()


@contextmanager
def _noting_orders(orders: list[BegunOrder], again: list[BegunOrder], named: bool) -> Iterator[None]:
    before = active.orders, active.again, active.named
    active.orders, active.again, active.named = orders, again, named
    try:
        yield
    finally:
        active.orders, active.again, active.named = before


class SampledBatches:
    """The batches of a sampler from a place on.

    Args:
        sampler: iterable of indices, or of lists of them.
        size: indices per batch. None: single indices, or ``batches``.
        batches: whether the sampler yields batches.
        drop_last: whether to drop a last batch that is not full.
        key: key that seeds the generators when the sampler starts. None if it draws from the program's generators.
        place: place to begin at.
        program: the global generator. None: torch's.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        size: int | None,
        batches: bool,
        drop_last: bool,
        key: SweepKey | None,
        place: ResumePoint,
        program: ProgramGenerator | None = None,
    ) -> None:
        self._sampler, self._size, self._batches, self._drop_last, self._key = sampler, size, batches, drop_last, key
        self._sweep, self._done, self._program = place.sweep, place.done, program
        self._at, self._memo = place.start, place.memo or {}
        self._orders: list[BegunOrder] = []
        self._again = [BegunOrder(int(seed, 16), *fields) for seed, *fields in self._memo.get("orders", ())]
        self._generator = _generator_of(sampler)
        self._epochs = _epochs_of(sampler)
        self._iterator: Any = None
        self._starting: Any = None  # the iterator while it passes over delivered indices
        self._begun = self._drawing = self._over = False
        self._drawn: list[Any] = []  # drawn, but not planned yet
        self._stateful: Any = None

    def next(self) -> Planned:
        """Return the next batch. See `PlannedSweep.next`.

        Raises:
            StopIteration: there is none.
            StateError: the state holds a sampler's own state, which this sampler cannot load.
        """
        if self._over:
            raise StopIteration
        try:
            return self._next()
        except Exception:  # the end, or an error: nothing follows
            self._over = True
            raise

    def _next(self) -> Planned:
        if self._iterator is None or (self._drawing and not self._goes_on()):
            self._iterator = None
            self._begin()
        self._drawing = False
        size, batches = self._size, self._batches
        while True:
            taken = self._draw(1 if size is None else size)
            if not taken or (self._drop_last and size is not None and len(taken) < size):
                raise StopIteration
            at, stop = self._at, self._at + len(taken)
            indices = taken if size is not None else list(taken[0]) if batches else taken[0]
            memo = self._now(ended=size is not None and len(taken) < size)
            # Keys count indices. For a batch sampler they count batches, spaced 2^32 apart.
            planned = Planned(self._sweep, at, stop, indices, at << 32 if batches else at, memo=memo or None)
            delivered = any(a <= at and stop <= b for a, b in self._done)
            self._at, self._memo, self._drawn = stop, memo, []
            if not delivered:
                return planned

    def _begin(self) -> None:
        sampler, memo = self._sampler, self._memo
        if self._begun and iter(sampler) is sampler:
            raise RuntimeError(
                f"expected a sampler that can be iterated again after an interrupt, got a {type(sampler).__name__}, "
                f"which is its own iterator; its draws after place {self._at} of sweep {self._sweep} are lost: create "
                "another loader"
            )
        if self._generator is not None:
            if memo.get("generator") is not None:
                torch_side().set_generator_state(self._generator, memo["generator"])
            else:
                memo = self._memo = {**memo, "generator": torch_side().generator_state(self._generator)}
        saved = memo.get("sampler")
        loads = hasattr(sampler, "load_state_dict")
        if saved is not None and loads:
            sampler.load_state_dict(copy.deepcopy(saved))  # it may take the parts out
            if memo.get("ended"):
                raise StopIteration
        elif not self._begun and not self._at:
            self._memo = {**memo, **(before(sampler) or {})}
        if self._epochs is not None:
            if self._at and saved is None and "epoch" in memo:
                self._epochs.set_epoch(memo["epoch"])
            self._memo = {**self._memo, "epoch": self._epochs.epoch}

        def begin(at: At) -> None:
            at(0, SAMPLER)
            start()

        def start() -> None:
            self._orders.clear()
            iterator = iter(sampler)
            if saved is not None and not loads:
                if not hasattr(iterator, "load_state_dict"):
                    raise StateError(
                        "this state was taken with a sampler that has its own state, but "
                        f"{type(sampler).__name__} has no load_state_dict",
                        saved={"sampler": saved},
                        hint="pass the same sampler",
                    )
                iterator.load_state_dict(copy.deepcopy(saved))
            self._stateful = next((each for each in (sampler, iterator) if hasattr(each, "state_dict")), None)
            self._begun = True
            if iterator is sampler and not self._at:
                # It cannot be restarted after an interrupt, so keep its iterator and first value.
                self._iterator, self._drawing = iterator, True
                self._drawn.extend(next_items(iterator, 1))
                return
            # A generator function runs, and may shuffle, when its first value is drawn.
            self._drawn = list(next_items(iterator, 1))
            self._starting = iterator

        def start_and_pass() -> None:
            start()
            self._pass(saved is not None)

        with _noting_orders(self._orders, self._again, self._epochs is not None):
            if self._key is not None:
                Seeding(restore=True, seeded=True).run(self._key, begin)
                self._pass(saved is not None)
            else:
                program = self._program or ProgramGenerator()
                random = program.run(lambda: start_freely(start_and_pass, memo.get("random")))
                self._memo = {**self._memo, **random}
        if self._iterator is None:
            self._iterator, self._starting = self._starting, None

    def _pass(self, positioned: bool) -> None:
        """Pass over delivered indices, unless the sampler has loaded its own state."""
        if positioned or not self._at:
            return
        skip, self._drawn = self._at - len(self._drawn), []
        while skip > 0 and (passed := list(next_items(self._starting, min(skip, 1 << 12)))):  # Ctrl-C works here
            skip -= len(passed)
        if skip > 0:
            raise StateError(
                f"this state was taken after {self._at} {'batches' if self._batches else 'indices'} of the "
                f"sampler, which now yields {self._at - skip}",
                hint="pass the same sampler",
            )

    def _draw(self, count: int) -> list[Any]:
        indices = self._drawn
        if len(indices) < count:
            self._drawing = True
            with _noting_orders(self._orders, self._again, self._epochs is not None):
                indices.extend(next_items(self._iterator, count - len(indices)))  # an interrupt keeps them
            self._drawing = False
        return indices

    def _goes_on(self) -> bool:
        """Return whether an interrupted iterator can continue."""
        iterator = self._iterator
        return iterator is self._sampler and not (isinstance(iterator, GeneratorType) and iterator.gi_frame is None)

    def _now(self, ended: bool) -> dict[str, Any]:
        """Return the sampler's state. At its end it may already have returned to its initial state, so the end is
        noted."""
        memo: dict[str, Any] = {}
        if self._stateful is not None:
            memo["sampler"] = copy.deepcopy(self._stateful.state_dict())
            if ended:
                memo["ended"] = True
        memo.update((name, self._memo[name]) for name in ("generator", "random", "epoch") if name in self._memo)
        if self._orders:
            memo["orders"] = [order.to_json() for order in self._orders]
        return memo

    @property
    def begun(self) -> dict[str, Any] | None:
        """The earlier states of the generators that the sampler has drawn from, to begin again without drawing more.
        None if it has drawn from none."""
        return {name: self._memo[name] for name in ("generator", "random") if name in self._memo} or None


def start_freely(start: Callable[[], None], saved: Any) -> dict[str, Any]:
    """Start a sampler that may draw from the global generators. Return, for a memo, the earlier states of the
    generators that it drew from.

    Args:
        start: function that starts the sampler.
        saved: states of the generators in a memo, which hold meanwhile. None for the program's own.
    """
    states = GlobalStates()
    if saved is None:
        start()
        random = states.before()
        return {"random": random} if random else {}
    try:
        states.load(saved)
        start()
    finally:
        states.restore()
    return {"random": saved}


def after(sampler: Any, last: Any = None) -> dict[str, Any] | None:
    """Return the state of a sampler between two sweeps, or None if it has none, or there is no sampler.

    A sampler that iterates another loader's sampler is assumed to go on with the sweep after the last one, if that
    loader has one seed for all sweeps.

    Args:
        sampler: sampler of the user.
        last: memo of the last batch of the preceding sweep.
    """
    memo = generator_memo(sampler) or {}
    if hasattr(sampler, "state_dict"):
        memo["sampler"] = copy.deepcopy(sampler.state_dict())
    orders = last.get("orders", ()) if last else ()
    if orders and all(len(order) == 2 for order in orders):
        seeds = [seed for seed, _ in orders]
        memo["orders"] = [[seed, sweep + seeds.count(seed)] for seed, sweep in orders]
    return memo or None


def generator_memo(sampler: Any) -> dict[str, Any] | None:
    """Return the state of a sampler's generator, for a memo, or None if it has none, or there is no sampler."""
    generator = _generator_of(sampler)
    return None if generator is None else {"generator": torch_side().generator_state(generator)}


def with_generator(sampler: Any, place: ResumePoint) -> ResumePoint:
    """Return a place with the state of the sampler's generator from which its sweep begins: the present one, unless the
    sampler has begun."""
    memo = place.memo or {}
    begun = None if place.start or "generator" in memo else generator_memo(sampler)
    return place if begun is None else place._replace(memo={**memo, **begun})


def without_generator(place: ResumePoint) -> ResumePoint:
    """Return a place where a sweep has yet to begin, from the generator as it will be then, as with torch."""
    if place.start or not place.memo:
        return place
    return place._replace(memo={name: part for name, part in place.memo.items() if name != "generator"} or None)


def set_generator(sampler: Any, place: ResumePoint) -> None:
    """Restore a sampler's generator if a place in a state is the beginning of a sweep. The program may set it to
    another state after that."""
    generator, saved = _generator_of(sampler), (place.memo or {}).get("generator")
    if generator is not None and not place.start and saved is not None:
        torch_side().set_generator_state(generator, saved)


def before(sampler: Any) -> dict[str, Any] | None:
    """Return the result of `after`, or None before the first sweep if the sampler has no state yet."""
    if not hasattr(sampler, "load_state_dict"):
        return None
    try:
        return after(sampler)
    except AttributeError:  # its state needs an iterator
        return None


def check_memo(memo: Any) -> None:
    """Check the memo of a sampler in a state. The sampler has to check its own part.

    Raises:
        TypeError, ValueError: it is invalid.
    """
    if memo is None:
        return
    allowed = {"sampler", "generator", "random", "epoch", "orders", "ended"}
    if not isinstance(memo, Mapping) or not memo.keys() <= allowed:
        raise TypeError(f"expected `memo` of a sampler to hold `sampler` and `generator`, got {memo!r:.80}")
    orders = memo.get("orders", [])
    if not isinstance(orders, (list, tuple)) or not all(map(_is_order, orders)):
        raise TypeError(f"expected `orders` to hold pairs of a seed and a sweep, got {orders!r:.80}")
    if not isinstance(memo.get("ended", False), bool):
        raise TypeError(f"expected `ended` to be true or false, got {memo['ended']!r:.80}")
    if "epoch" in memo:
        state.whole(memo, "epoch")
    if "random" in memo:
        GlobalStates.check(memo["random"])
    generator, torch = memo.get("generator"), torch_side()
    if generator is not None and torch is not None:
        torch.check_generator_state(generator)


def _is_order(order: Any) -> bool:
    if not isinstance(order, (list, tuple)) or len(order) not in (2, 3) or order[2:] not in ([], [True], (), (True,)):
        return False
    return is_hex(order[0]) and whole({"": order[1]}, "") >= 0


def chain(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and the samplers that it wraps, the outermost first. The attributes are named as batch samplers
    and frameworks name them."""
    for _ in range(8):  # deeper than any real one. A sampler that wraps itself must end, too
        if sampler is None:
            return
        yield sampler
        wrapped = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if wrapped is None else wrapped


def epoch_of(sampler: Any) -> int | None:
    """Return the epoch of a sampler, or of one that it wraps, or None if none counts epochs."""
    return getattr(_epochs_of(sampler), "epoch", None)


def _epochs_of(sampler: Any) -> Any:
    return next((each for each in chain(sampler) if _counts_epochs(each)), None)


def _counts_epochs(sampler: Any) -> bool:
    epoch = getattr(sampler, "epoch", None)
    return callable(getattr(sampler, "set_epoch", None)) and type(epoch) is int and epoch >= 0


def _generator_of(sampler: Any) -> Any:
    """Return the torch generator that a sampler, or the one inside a batch sampler, draws from."""
    torch = torch_side()
    for each in chain(sampler):
        generator = getattr(each, "generator", None)
        if torch is not None and torch.is_generator(generator):
            return generator
    return None
