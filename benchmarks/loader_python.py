"""How much of two cores do two workers get out of Python work, and how much is lost between epochs?

Peer: torch's `DataLoader`, workers of an epoch and persistent ones. Limit: twice the rate of a bare loop over the
items. Unit: samples a second on the wall, milliseconds. Measured: 0.24 ms of Python work a sample that returns
(3, 64, 64) uint8, 64 a batch, 2 workers, epochs of 40 batches. The gap is the time to the first batch of an epoch,
counted from the end of the one before, less the median time of a batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.loaders import LOADERS, TORCH, alternated, loops_for, spin, steady, timed

BATCH, BATCHES = 64, 40


class Images:
    """``n`` images that take ``loops`` of Python each."""

    def __init__(self, n: int, loops: int) -> None:
        self.n, self.loops = n, loops

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Any, int]:
        spin(self.loops)
        return np.full((3, 64, 64), index % 256, np.uint8), index


def run(stage: Stage) -> list[Answer]:
    """Rate, then gap."""
    batches = 6 if stage.quick else BATCHES
    items = Images(BATCH * batches, loops_for(0.24e-3))
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": 2}
    makers: dict[str, Callable[..., Any]] = {
        **LOADERS,
        "torch DataLoader, persistent": lambda *a, **o: TORCH(*a, persistent_workers=True, **o),
    }
    contenders = {name: steady(make(items, **options), 2 * batches) for name, make in makers.items()}

    def loop() -> float:
        count = BATCH * (batches // 2)
        return timed(lambda: [None for index in range(count) if items[index] is None]) / (batches // 2)

    said = alternated({**contenders, "bare loop": loop}, stage.rounds(5))
    share = {
        name: [bare / (2 * took) for took, bare in zip(said[name], said["bare loop"], strict=True)] for name in makers
    }
    ours = share["feedline"]
    answers = [
        Answer(
            question="0.24 ms of Python a sample, 2 workers: share of twice the bare loop",
            unit="of 1",
            ours=statistics.median(ours),
            peer=peer,
            peer_value=statistics.median(share[peer]),
            ratio=statistics.median([b / a for a, b in zip(said["feedline"], said[peer], strict=True)]),
            target=Target("ours", ">=", 0.85),
            spread=spread(ours),
            note=f"{BATCH / statistics.median(said['feedline']):,.0f} samples/s; epochs of {batches} batches, gaps "
            "included",
            detail={"share": share},
        )
        for peer in makers
        if peer != "feedline"
    ]
    del contenders
    gaps = alternated({name: gap(make(items, **options)) for name, make in makers.items()}, stage.rounds(9))
    ours = [1e3 * value for value in gaps["feedline"]]
    for peer in makers:
        if peer == "feedline":
            continue
        theirs = [1e3 * value for value in gaps[peer]]
        bound = 0.1 * statistics.median(theirs)
        answers.append(
            Answer(
                question="gap between epochs",
                unit="ms",
                ours=statistics.median(ours),
                peer=peer,
                peer_value=statistics.median(theirs),
                target=Target("ours", "<=", bound, "0.1 of theirs") if peer == "torch DataLoader" else None,
                spread=0.0,  # relative to a median that is near nothing
                note="over the median time of a batch; below nothing where the batch was there already",
                detail={"ours_ms": ours, "peer_ms": theirs},
            )
        )
    return answers


def gap(loader: Any) -> Callable[[], float]:
    """Reads an epoch a call, and returns how much longer its first batch took than a batch takes."""

    def turn() -> float:
        # The end of the epoch before is where this one begins: another contender's turn must not come between.
        for _ in loader:
            pass
        before = time.perf_counter()
        waits = []
        for _ in loader:
            now = time.perf_counter()
            waits.append(now - before)
            before = now
        return waits[0] - statistics.median(waits[1:])

    return turn
