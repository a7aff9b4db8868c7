"""Orders that the user brings: samplers and batch samplers, iterated here, resumed by their own state or by replay.

A sampler is read in the parent, a batch ahead of the workers at most as far as they are; what it drew for batches that
were not delivered is not in the state. It is begun under seeded generators, so that one that shuffles when it begins
(as torch's do) makes the same order when it is begun again, whatever the global generators say by then.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from feedline.feed.loader.collate import torch_side
from feedline.feed.loader.order import Planned
from feedline.feed.loader.random import SAMPLER, At, Seeding
from feedline.feed.loader.state import Place


def sampled(
    sampler: Any, size: int | None, batches: bool, drop_last: bool, seed: int, place: Place
) -> Iterator[Planned]:
    """The batches of a sampler from a place on.

    Args:
        sampler: yields indices, or lists of them.
        size: indices of a batch; None: they are single, or ``batches``.
        batches: the sampler yields batches.
        drop_last: leave out a last batch that is not full.
        seed: of the loader.
        place: where to begin.
    """
    memo = place.memo or {}
    own = memo.get("sampler")
    generator = _generator_of(sampler)
    torch = torch_side()
    if generator is not None and torch is not None and memo.get("generator") is not None:
        torch.set_generator_state(generator, memo["generator"])
    began = torch.generator_state(generator) if generator is not None and torch is not None else None
    if own is not None and hasattr(sampler, "load_state_dict"):
        sampler.load_state_dict(own)

    def begin(at: At) -> tuple[Any, list[Any]]:
        at(0, SAMPLER)
        iterator = iter(sampler)
        if own is not None and hasattr(iterator, "load_state_dict") and not hasattr(sampler, "load_state_dict"):
            iterator.load_state_dict(own)
        # Generators begin with their first value.
        return iterator, list(islice(iterator, 1))

    iterator, first = Seeding(seed, restore=True).run(place.sweep, begin)
    stateful = next((each for each in (sampler, iterator) if hasattr(each, "state_dict")), None)
    drawn = _Drawn(iterator, first, stateful)
    at = place.start
    if own is None:
        for _ in range(at):
            if drawn.next(1) == []:
                break
    while True:
        taken = drawn.next(1 if size is None else size)
        if not taken or (drop_last and size is not None and len(taken) < size):
            return
        stop = at + len(taken)
        indices = taken if size is not None else list(taken[0]) if batches else taken[0]
        note = {"sampler": drawn.state} if stateful is not None else None
        if began is not None:
            note = {**(note or {}), "generator": began}
        # Keys count indices; of a batch sampler the batches, spread far apart.
        keys: Any = at << 32 if batches else at
        if not any(a <= at and stop <= b for a, b in place.done):
            yield Planned(place.sweep, at, stop, indices, keys, memo=note)
        at = stop


def after(sampler: Any) -> dict[str, Any] | None:
    """What a state says of a sampler between two sweeps; None: nothing."""
    torch, generator = torch_side(), _generator_of(sampler)
    memo: dict[str, Any] = {}
    if hasattr(sampler, "state_dict"):
        memo["sampler"] = copy.deepcopy(sampler.state_dict())
    if generator is not None and torch is not None:
        memo["generator"] = torch.generator_state(generator)
    return memo or None


class _Drawn:
    """Values of a sampler, with its state as it was before values that were only looked at."""

    def __init__(self, iterator: Any, first: list[Any], stateful: Any) -> None:
        self._iterator, self._first, self._stateful = iterator, first, stateful
        self.state: Any = None

    def next(self, count: int) -> list[Any]:
        values, self._first = self._first[:count], self._first[count:]
        values += islice(self._iterator, count - len(values))
        if self._stateful is not None:
            self.state = copy.deepcopy(self._stateful.state_dict())
        return values


def _generator_of(sampler: Any) -> Any:
    """The torch generator that a sampler, or the one inside a batch sampler, draws from."""
    torch = torch_side()
    for each in (sampler, getattr(sampler, "sampler", None)):
        generator = getattr(each, "generator", None)
        if torch is not None and torch.is_generator(generator):
            return generator
    return None
