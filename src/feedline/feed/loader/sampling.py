"""Orders that the user brings: samplers and batch samplers, iterated here, resumed by their own state or by replay.

A sampler is read in the parent, a batch ahead of the workers at most as far as they are; what it drew for batches that
were not delivered is not in the state. It is begun under seeded generators, so that one that shuffles when it begins
(as torch's do) makes the same order when it is begun again, whatever the global generators say by then.

An interrupt in the middle of a sampler leaves it as it may be. One that can be begun again is, and goes on behind the
last batch; one that is its own iterator goes on as it is, unless it is a generator, which has ended then: an error.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import islice
from types import GeneratorType
from typing import Any

from feedline.errors import StateError
from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.order import Planned
from feedline.feed.loader.random import SAMPLER, At, Seeding
from feedline.feed.loader.state import ResumePoint


class Sampled:
    """The batches of a sampler from a place on.

    Args:
        sampler: yields indices, or lists of them.
        size: indices of a batch; None: they are single, or ``batches``.
        batches: the sampler yields batches.
        drop_last: leave out a last batch that is not full.
        seed: of the loader.
        place: where to begin.
    """

    def __init__(
        self, sampler: Any, *, size: int | None, batches: bool, drop_last: bool, seed: int, place: ResumePoint
    ) -> None:
        self._sampler, self._size, self._batches, self._drop_last, self._seed = sampler, size, batches, drop_last, seed
        self._sweep, self._done = place.sweep, place.done
        self._at, self._memo = place.start, place.memo or {}
        self._generator = _generator_of(sampler)
        self._iterator: Any = None
        self._begun = self._drawing = self._over = False
        self._drawn: list[Any] = []  # and not planned yet
        self._stateful: Any = None

    def next(self) -> Planned:
        """The next batch; see `PlannedSweep.next`.

        Raises:
            StopIteration: there is none.
            StateError: the sampler of the state went on by a state of its own, and this one cannot.
        """
        if self._over:
            raise StopIteration
        try:
            return self._next()
        except Exception:  # the end, or an error, behind which there is nothing
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
            # Keys count indices; of a batch sampler the batches, spread far apart.
            planned = Planned(self._sweep, at, stop, indices, at << 32 if batches else at, memo=memo or None)
            delivered = any(a <= at and stop <= b for a, b in self._done)
            self._at, self._memo, self._drawn = stop, memo, []
            if not delivered:
                return planned

    def _begin(self) -> None:
        sampler, memo, torch = self._sampler, self._memo, torch_side()
        if self._begun and iter(sampler) is sampler:
            raise RuntimeError(
                f"expected a sampler that can be iterated again after an interrupt, got a {type(sampler).__name__}, "
                f"which is its own iterator; what it would have drawn behind place {self._at} of sweep {self._sweep} "
                "is lost: make another loader"
            )
        if self._generator is not None and torch is not None:
            if memo.get("generator") is not None:
                torch.set_generator_state(self._generator, memo["generator"])
            else:
                memo = self._memo = {**memo, "generator": torch.generator_state(self._generator)}
        own = memo.get("sampler")
        loads = hasattr(sampler, "load_state_dict")
        if own is not None and loads:
            sampler.load_state_dict(own)
            if memo.get("ended"):
                raise StopIteration
        elif not self._begun and not self._at:
            self._memo = {**memo, **(before(sampler) or {})}

        def begin(at: At) -> tuple[Any, list[Any]]:
            at(0, SAMPLER)
            iterator = iter(sampler)
            if own is not None and not loads:
                if not hasattr(iterator, "load_state_dict"):
                    raise StateError(
                        "this state was taken with a sampler that has a state of its own, and "
                        f"{type(sampler).__name__} has no load_state_dict",
                        saved={"sampler": own},
                        hint="give the sampler as it was",
                    )
                iterator.load_state_dict(own)
            self._stateful = next((each for each in (sampler, iterator) if hasattr(each, "state_dict")), None)
            self._begun = True
            if iterator is sampler and not self._at:
                # Should this be interrupted, there is no other to begin with.
                self._iterator, self._drawing = iterator, True
                self._drawn.extend(islice(iterator, 1))
                return iterator, self._drawn
            # Generators begin with their first value.
            return iterator, list(islice(iterator, 1))

        iterator, drawn = Seeding(self._seed, restore=True).run(self._sweep, begin)
        if own is None and self._at:
            left = self._at - len(drawn)
            while left > 0 and (passed := list(islice(iterator, min(left, 1 << 12)))):  # Ctrl-C stays possible
                left -= len(passed)
            if left > 0:
                raise StateError(
                    f"this state was taken behind {self._at} {'batches' if self._batches else 'indices'} of the "
                    f"sampler, which gives {self._at - left} now",
                    hint="give the sampler as it was",
                )
            drawn = []
        self._drawn, self._iterator = drawn, iterator

    def _draw(self, count: int) -> list[Any]:
        drawn = self._drawn
        if len(drawn) < count:
            self._drawing = True
            drawn.extend(islice(self._iterator, count - len(drawn)))  # what came stays, should it be interrupted
            self._drawing = False
        return drawn

    def _goes_on(self) -> bool:
        """Whether an iterator that was interrupted can be asked for more."""
        iterator = self._iterator
        return iterator is self._sampler and not (isinstance(iterator, GeneratorType) and iterator.gi_frame is None)

    def _now(self, ended: bool) -> dict[str, Any]:
        """What the sampler says of itself; one that has ended may say by then what it says at its beginning."""
        memo: dict[str, Any] = {}
        if self._stateful is not None:
            memo["sampler"] = copy.deepcopy(self._stateful.state_dict())
            if ended:
                memo["ended"] = True
        if "generator" in self._memo:
            memo["generator"] = self._memo["generator"]
        return memo


def after(sampler: Any) -> dict[str, Any] | None:
    """What a state says of a sampler between two sweeps; None: nothing."""
    torch, generator = torch_side(), _generator_of(sampler)
    memo: dict[str, Any] = {}
    if hasattr(sampler, "state_dict"):
        memo["sampler"] = copy.deepcopy(sampler.state_dict())
    if generator is not None and torch is not None:
        memo["generator"] = torch.generator_state(generator)
    return memo or None


def before(sampler: Any) -> dict[str, Any] | None:
    """The same, before its first sweep perhaps: None also where a sampler has no state yet."""
    if not hasattr(sampler, "load_state_dict"):
        return None
    try:
        return after(sampler)
    except AttributeError:  # what its state is made of comes with its iterator
        return None


def check_memo(memo: Any) -> None:
    """Check what a state says of a sampler; what is the sampler's own is its own to check.

    Raises:
        TypeError, ValueError: that cannot be.
    """
    if memo is None:
        return
    if not isinstance(memo, Mapping) or not memo.keys() <= {"sampler", "generator", "ended"}:
        raise TypeError(f"expected `memo` of a sampler to hold `sampler` and `generator`, got {memo!r:.80}")
    if not isinstance(memo.get("ended", False), bool):
        raise TypeError(f"expected `ended` to be true or false, got {memo['ended']!r:.80}")
    generator, torch = memo.get("generator"), torch_side()
    if generator is not None and torch is not None:
        torch.check_generator_state(generator)


def _generator_of(sampler: Any) -> Any:
    """The torch generator that a sampler, or the one inside a batch sampler, draws from."""
    torch = torch_side()
    for each in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(each, "generator", None)
        if torch is not None and torch.is_generator(generator):
            return generator
    return None
