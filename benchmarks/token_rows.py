"""How fast are rows of a flat token file at random?

Peer: fancy indexing of a view of the same memory map, with existing indices. Unit: rows of 1,024 uint16 a
second, by CPU time of all threads. Measured: one shuffled pass over 20,000 rows in minibatches of 256, from a file of
200 MB in the page cache, rows side by side, and at every position (stride 1).
"""

from __future__ import annotations

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, compare, race

LENGTH, BATCH = 1024, 256


def run(stage: Stage) -> list[Answer]:
    """Two strides."""
    path = stage.data / "bench-tokens.bin"
    count = 2_000_000 if stage.quick else 100_000_000
    tokens = np.random.default_rng(1).integers(0, 50_000, count, np.uint16)
    tokens.tofile(path)
    return [rows(stage, path, stride) for stride in (LENGTH, 1)]


def rows(stage: Stage, path: object, stride: int) -> Answer:
    """Rows that begin at every ``stride``-th token."""
    mapped = np.memmap(str(path), np.uint16, "r")
    view = np.lib.stride_tricks.sliding_window_view(mapped, LENGTH)[::stride]
    steps = (1_000 if stage.quick else 20_000) // BATCH
    order = np.random.default_rng(2).integers(0, len(view), steps * BATCH)
    corpus = fl.TokensDeserializer(str(path), length=LENGTH, stride=stride)
    source = fl.MinibatchSource(corpus, seed=1)
    assert len(view) == sum(info.sequences for info in corpus.chunks())

    def fed() -> float:
        return sum(len(m["tokens"].rows) for m in source.minibatches(BATCH, until=fl.minibatches(steps)))

    def indexed() -> float:
        return sum(len(view[order[k * BATCH : (k + 1) * BATCH]]) for k in range(steps))

    ran = race({"feedline": fed, "memmap": indexed}, stage.rounds(9), "process", warm_up=3)
    source.close()
    return compare(ran, "feedline", "memmap", f"tokens, rows of {LENGTH} at stride {stride}", "rows/s", at_least=0.9)
