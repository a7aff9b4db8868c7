"""Shared by the questions about `DataLoader`: work of a known length, peers, alternating turns.

torch's `DataLoader` gets the same arguments as ours. With workers the clock is on the wall, since they are other
processes. Torch's start by fork, its default, and ours by forkserver, unless a question asks otherwise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

import feedline as fl
from benchmarks.harness import Answer, Contender, Race, Target, spread

TORCH = torch.utils.data.DataLoader
#: More batches than any of the loaders makes ahead with two workers.
LEAD = 40
LOADERS: dict[str, Callable[..., Any]] = {"feedline": fl.DataLoader, "torch DataLoader": TORCH}


def spin(loops: int) -> int:
    """Python work that takes time in proportion, holding the interpreter."""
    x = 0
    for i in range(loops):
        x ^= i
    return x


def loops_for(seconds: float) -> int:
    """Return how many loops of `spin` take that long here: the fastest of a few tries."""
    tried = 20_000
    best = min(timed(lambda: spin(tried)) for _ in range(20))
    return max(1, round(tried * seconds / best))


def timed(call: Callable[[], object]) -> float:
    """Seconds on the wall."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def taking(loader: Any, count: int) -> Contender:
    """Return a contender: batches from where the last turn stopped. Not for workers: they continue between turns."""
    batches = endless(loader)

    def turn() -> float:
        for _ in range(count):
            next(batches)
        return count

    return turn


def steady(loader: Any, count: int, lead: int = LEAD, use: Callable[[Any], object] = id) -> Callable[[], float]:
    """Return the seconds a batch of workers in a steady state.

    Between the turns workers make batches ahead. ``lead`` batches are taken before the clock starts, which uses them
    up, so that as few batches are ready at the beginning as at the end.
    """
    batches = endless(loader)

    def turn() -> float:
        for _ in range(lead):
            next(batches)
        began = time.perf_counter()
        for _ in range(count):
            use(next(batches))
        return (time.perf_counter() - began) / count

    return turn


def alternated(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds that each contender reports, by round, in rotating order. A first round is not counted."""
    names = list(contenders)
    said: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = contenders[name]()
            if number >= 0:
                said[name].append(value)
    return said


def sooner(
    said: Mapping[str, list[float]],
    ours: str,
    peer: str,
    question: str,
    unit: str = "ms",
    scale: float = 1e3,
    at_most: float | None = None,
    note: str = "",
) -> Answer:
    """Answer "how long, compared with ``peer``": medians, and the median of ratios within a round.

    Args:
        said: as `alternated` returns it.
        ours: a name in it.
        peer: another.
        question: as printed.
        unit: of the answer.
        scale: from seconds to it.
        at_most: the target: our time over the peer's.
        note: as printed.
    """
    ratios = [theirs / mine for mine, theirs in zip(said[ours], said[peer], strict=True)]
    return Answer(
        question=question,
        unit=unit,
        ours=statistics.median(said[ours]) * scale,
        peer=peer,
        peer_value=statistics.median(said[peer]) * scale,
        ratio=statistics.median(ratios),
        target=None if at_most is None else Target("ratio", ">=", 1 / at_most),
        spread=spread(said[ours]),
        note=note,
        detail={name: [value * scale for value in values] for name, values in said.items()},
    )


def seconds_each(run: Race, name: str) -> list[float]:
    """Seconds a unit in each round, on the deciding clock."""
    return [1 / rate for rate in run.rates(name)]
