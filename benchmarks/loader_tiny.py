"""What does a batch of tiny items cost beyond the items themselves?

Peer: torch's `DataLoader`. Limit: the bare loop over the items, without making a batch of them. Unit: microseconds a
batch. Measured: items of 10 us of Python work, or none, that return 16 floats and an int, 32 a batch, in order.
Without workers the time over the bare loop is compared, by CPU time of the process. With two, the time a batch
on the wall.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Contender, Stage, Target, race, spread
from benchmarks.loaders import LOADERS, alternated, loops_for, seconds_each, sooner, spin, steady, taking, timed

BATCH = 32
LENGTH = 64_000


class Tiny:
    """Items that cost ``loops`` of Python."""

    def __init__(self, loops: int) -> None:
        self.loops = loops
        self.x = np.random.default_rng(0).random((LENGTH, 16), np.float32)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Any, int]:
        spin(self.loops)
        return self.x[index], index


def bare(items: Tiny, count: int) -> Contender:
    """The items alone."""

    def turn() -> float:
        for batch in range(count):
            for index in range(batch * BATCH, (batch + 1) * BATCH):
                items[index]
        return count

    return turn


def bare_seconds(items: Tiny, count: int) -> Callable[[], float]:
    """Seconds a batch of the items alone."""
    turn = bare(items, count)
    return lambda: timed(turn) / count


def run(stage: Stage) -> list[Answer]:
    """Without workers, then with two."""
    items = Tiny(loops_for(9e-6))  # what reading the row and the call take comes on top: about 10 us
    count = 20 if stage.quick else 1000
    answers = [over("tiny items", items, count, stage), over("items without work", Tiny(0), count, stage)]
    made = {name: make(items, batch_size=BATCH, num_workers=2) for name, make in LOADERS.items()}
    said = alternated({name: steady(loader, count) for name, loader in made.items()}, stage.rounds(7))
    half = statistics.median(alternated({"bare": bare_seconds(items, count)}, stage.rounds(7))["bare"]) / 2
    note = f"half of the bare loop, the least two processes could take: {half * 1e6:.0f} us"
    unit = "us a batch (wall)"
    return [
        *answers,
        sooner(said, "feedline", "torch DataLoader", "tiny items, 2 workers", unit, 1e6, at_most=0.25, note=note),
    ]


def over(what: str, items: Tiny, count: int, stage: Stage) -> Answer:
    """Return the time of a batch without workers over the bare loop. It is less certain the longer the loop takes."""
    contenders = {name: taking(make(items, batch_size=BATCH), count) for name, make in LOADERS.items()}
    alone = race({**contenders, "bare loop": bare(items, count)}, stage.rounds(7), "process")
    floor = seconds_each(alone, "bare loop")
    found = {
        name: [whole - least for whole, least in zip(seconds_each(alone, name), floor, strict=True)] for name in LOADERS
    }
    ours, torchs = found["feedline"], found["torch DataLoader"]
    return Answer(
        question=f"{what}, 0 workers: time over the bare loop",
        unit="us a batch",
        ours=statistics.median(ours) * 1e6,
        peer="torch DataLoader",
        peer_value=statistics.median(torchs) * 1e6,
        ratio=statistics.median([b / max(a, 1e-9) for a, b in zip(ours, torchs, strict=True)]),
        target=Target("ratio", ">=", 2),
        spread=spread(ours),
        note=f"the bare loop takes {statistics.median(floor) * 1e6:.0f} us",
        detail={"over_us": {name: [1e6 * value for value in values] for name, values in found.items()}},
    )
