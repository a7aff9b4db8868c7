"""How long after its constructor does a `DataLoader` with two workers give its first batch?

Peer: torch's `DataLoader` with the same start method. Unit: milliseconds on the wall. Measured: fresh loaders, one
after the other, in a process that has imported torch; items and batches are those of `loader_python`, of which two
workers make one in 15 ms. With forkserver and spawn a worker has to import torch, unless the server did.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Answer, Stage
from benchmarks.loader_python import BATCH, Images
from benchmarks.loaders import LOADERS, alternated, loops_for, sooner


def run(stage: Stage) -> list[Answer]:
    """By start method, the default of each first."""
    items = Images(BATCH * 40, loops_for(0.24e-3))
    answers = []
    for method in (None, "fork", "forkserver", "spawn"):
        rounds = 3 if method == "spawn" else 9
        said = alternated(
            {name: first(make, items, method) for name, make in LOADERS.items()}, min(rounds, stage.rounds(rounds))
        )
        question = f"first batch, 2 workers, {method or 'default start methods'}"
        at_most = 0.7 if method else None
        answers.append(sooner(said, "feedline", "torch DataLoader", question, at_most=at_most))
    return answers


def first(make: Callable[..., Any], items: Images, method: str | None) -> Callable[[], float]:
    """Seconds to the first batch of a fresh loader, which is done away with afterwards."""

    def turn() -> float:
        began = time.perf_counter()
        loader = make(items, batch_size=BATCH, num_workers=2, multiprocessing_context=method)
        batches = iter(loader)
        next(batches)
        took = time.perf_counter() - began
        del batches, loader
        time.sleep(0.3)  # whatever is left of it ends before another one's turn
        return took

    return turn
