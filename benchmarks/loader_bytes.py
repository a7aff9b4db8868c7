"""How many bytes a second do two workers hand over?

Peer: torch's `DataLoader`. Unit: MB a second on the wall. Measured: items of (3, 224, 224) float32 that are there
already, 64 a batch (38.5 MB), 2 workers; every batch is looked at, one value a page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.harness import Answer, Contender, Stage, compare, race
from benchmarks.loaders import LOADERS, endless

SHAPE, BATCH = (3, 224, 224), 64


class Ready:
    """A few arrays, again and again: as tensors, since torch stacks those fastest."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.x = torch.from_numpy(np.random.default_rng(0).random((16, *SHAPE), np.float32))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.x[index % 16]


def run(stage: Stage) -> list[Answer]:
    """Two workers."""
    count = 4 if stage.quick else 30
    items = Ready(BATCH * 1000)
    contenders = {name: looking(make(items, batch_size=BATCH, num_workers=2), count) for name, make in LOADERS.items()}
    ran = race(contenders, stage.rounds(7), "wall")
    question = "bytes from 2 workers, (3, 224, 224) float32, batch 64"
    return [compare(ran, "feedline", "torch DataLoader", question, "MB/s (wall)", 1e-6, at_least=1.5)]


def looking(loader: Any, count: int) -> Contender:
    """So many batches, in bytes; a value of each page is read."""
    batches = endless(loader)

    def turn() -> float:
        total = 0
        for _ in range(count):
            batch = next(batches)
            batch.view(-1)[::1024].sum()
            total += batch.numel() * 4
        return total

    return turn
