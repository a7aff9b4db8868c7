"""How many bytes per second do two workers deliver?

Peer: torch's `DataLoader`. Unit: milliseconds a batch on the wall. Measured: existing items of (3, 224, 224) float32,
64 a batch (38.5 MB), 2 workers. One value per page of every batch is read.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Answer, Stage
from benchmarks.loaders import LOADERS, alternated, sooner, steady

SHAPE, BATCH = (3, 224, 224), 64
#: More than any of the loaders makes ahead of batches of this size.
AHEAD = 12


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
    count = 4 if stage.quick else 40
    items = Ready(BATCH * 1000)
    contenders = {
        name: steady(make(items, batch_size=BATCH, num_workers=2), count, AHEAD, look) for name, make in LOADERS.items()
    }
    said = alternated(contenders, stage.rounds(7))
    each = BATCH * items.x[0].numel() * 4 / 1e6
    ours, theirs = (each / statistics.median(said[name]) for name in LOADERS)
    return [
        sooner(
            said,
            "feedline",
            "torch DataLoader",
            f"bytes from 2 workers, batches of {each:.1f} MB",
            "ms a batch (wall)",
            at_most=1 / 1.5,
            note=f"{ours:,.0f} MB/s, torch {theirs:,.0f}",
        )
    ]


def look(batch: Any) -> None:
    """Read a value of each page."""
    batch.view(-1)[::1024].sum()
