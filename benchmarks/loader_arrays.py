"""What does a shuffled batch from arrays in memory cost through `DataLoader`?

Peer: torch's `DataLoader` over the same `TensorDataset`. Limit: `np.take` into a reused buffer. Unit: samples a
second of CPU time of the process. Measured: rows of 784 float32 with a label, 256 a batch, no workers, shuffled as a
whole, and the rows alone as a NumPy array, which both take as a dataset. Also: the array as a memory map of a file that
was evicted from the page cache, on the wall clock, against torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.disk import evict
from benchmarks.harness import Answer, Contender, Stage, compare, race
from benchmarks.loaders import LOADERS, endless

BATCH, WIDTH = 256, 784


def run(stage: Stage) -> list[Answer]:
    """`TensorDataset`, then an array."""
    rows = stage.size(200_000, 5_000)
    x = np.random.default_rng(1).random((rows, WIDTH), np.float32)
    y = np.arange(rows)
    count = 10 if stage.quick else 300
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    answers = []
    for what, dataset in (("TensorDataset", tensors), ("array", x)):
        contenders = {
            name: counting(make(dataset, batch_size=BATCH, shuffle=True), count) for name, make in LOADERS.items()
        }
        contenders["np.take"] = taken(x, y if what == "TensorDataset" else None, count)
        ran = race(contenders, stage.rounds(7), "process")
        question = f"{what}, 784 floats, batch 256, shuffled"
        answers += [
            compare(ran, "feedline", "torch DataLoader", question, "samples/s", at_least=6),
            compare(ran, "feedline", "np.take", question, "samples/s", at_least=0.8),
        ]
    return answers + evicted(stage, x)


def evicted(stage: Stage, x: np.ndarray) -> list[Answer]:
    """Some batches of a fresh loader over a fresh map, whose file is not in memory."""
    path = stage.data / "bench-rows.npy"
    np.save(path, x)
    some = 1_000 if stage.quick else 20_000

    def feeding(make: Callable[..., Any]) -> Contender:
        def feed() -> float:
            found = 0
            for batch in make(np.load(path, mmap_mode="r"), batch_size=BATCH, shuffle=True):
                found += len(batch)
                if found >= some:
                    break
            return found

        return feed

    contenders = {name: feeding(make) for name, make in LOADERS.items()}
    ran = race(contenders, stage.rounds(5), "wall", 0, before=lambda _: evict(path))
    path.unlink()
    return [compare(ran, "feedline", "torch DataLoader", "map, 784 floats, batch 256, shuffled, evicted", "samples/s")]


def counting(loader: object, count: int) -> Contender:
    """Return a contender: batches, counted in samples."""
    batches = endless(loader)

    def turn() -> float:
        samples = 0
        for _ in range(count):
            batch = next(batches)
            samples += len(batch[0] if isinstance(batch, (list, tuple)) else batch)
        return samples

    return turn


def taken(x: np.ndarray, y: np.ndarray | None, count: int) -> Contender:
    """Take random rows into one buffer. The order is drawn outside the loop."""
    rng = np.random.default_rng(2)
    out, labels = np.empty((BATCH, WIDTH), x.dtype), np.empty(BATCH, np.int64)
    chosen = rng.permutation(len(x))

    def turn() -> float:
        nonlocal chosen
        for _ in range(count):
            if len(chosen) < BATCH:
                chosen = rng.permutation(len(x))
            rows, chosen = chosen[:BATCH], chosen[BATCH:]
            np.take(x, rows, axis=0, out=out, mode="clip")
            if y is not None:
                np.take(y, rows, out=labels, mode="clip")
        return count * BATCH

    return turn
