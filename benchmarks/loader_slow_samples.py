"""How much do a few slow samples hold up the others?

Peer: torch's `DataLoader`, in order and not. Limit: half of the time of the samples one after the other. Unit: the
share of that limit reached. Measured: samples that wait 1 ms, one in a hundred of them 50 ms (at random places, the
same for all), 4 a batch, 2 workers, delivered in order, as many batches in a row as an epoch has. Waiting, not
computing, so that the figure is about the schedule, not about cores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.loaders import LOADERS, TORCH, alternated, steady, timed


class Uneven:
    """``n`` samples, one in a hundred slow."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.slow = np.random.default_rng(5).random(n) < 0.01

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        time.sleep(0.05 if self.slow[index] else 0.001)
        return index


def run(stage: Stage) -> list[Answer]:
    """Shares of the limit."""
    items = Uneven(400 if stage.quick else 2000)
    makers: dict[str, Callable[..., Any]] = {
        **LOADERS,
        "torch DataLoader, out of order": lambda *a, **o: TORCH(*a, in_order=False, **o),
    }
    loaders = {name: make(items, batch_size=4, num_workers=2, persistent_workers=True) for name, make in makers.items()}
    # As many batches in a row as an epoch has: wherever they begin, the same samples, and the same work.
    count = items.n // 4
    each = alternated({name: steady(loader, count) for name, loader in loaders.items()}, stage.rounds(5))
    said = {name: [value * count for value in values] for name, values in each.items()}
    work = timed(lambda: [items[index] for index in range(items.n)])
    share = {name: [work / 2 / value for value in values] for name, values in said.items()}
    return [
        Answer(
            question="1 % of samples 50 times slower, batch 4, 2 workers: share of work / 2",
            unit="of 1",
            ours=statistics.median(share["feedline"]),
            peer=peer,
            peer_value=statistics.median(share[peer]),
            ratio=statistics.median([b / a for a, b in zip(said["feedline"], said[peer], strict=True)]),
            target=Target("ours", ">=", 0.9),
            spread=spread(share["feedline"]),
            note=f"{items.n:,} samples, {int(items.slow.sum())} of them slow, {work:.2f} s of work",
            detail={"share": share},
        )
        for peer in makers
        if peer != "feedline"
    ]
