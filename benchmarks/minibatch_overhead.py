"""What does a minibatch cost besides its bytes: 32 rows of 16 floats?

Peer: torch's `DataLoader(TensorDataset, batch_size=32, shuffle=True)` without workers. Unit: microseconds from the call
of `next_minibatch` to usable arrays, CPU time of the thread. Measured: 100,000 rows in memory, shuffled as a whole.
Also: minibatches of a sweep over a store of ten times as many rows that was evicted from the page cache.
"""

from __future__ import annotations

import statistics

import numpy as np

import feedline as fl
from benchmarks.dense_shuffled import looping, torch_loaders
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Race, Stage, Target, race, spread

ROWS, WIDTH, SIZE = 100_000, 16, 32


def run(stage: Stage) -> list[Answer]:
    """Measure to NumPy arrays and to torch tensors, both against torch's loader."""
    x = np.random.default_rng(8).random((ROWS, WIDTH), np.float32)
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x))
    count = 200 if stage.quick else 10_000

    def to_numpy() -> float:
        for _ in range(count):
            source.next_minibatch(SIZE)["x"].rows  # type: ignore[attr-defined]  # noqa: B018
        return count

    def to_torch() -> float:
        for _ in range(count):
            source.next_minibatch(SIZE)["x"].torch()
        return count

    usual, _ = torch_loaders(x, np.zeros(ROWS, np.int64), SIZE)
    batches = looping(usual, max(1, count // 10))

    def loader() -> float:
        return batches() / SIZE

    ran = race({"NumPy": to_numpy, "torch tensors": to_torch, "torch DataLoader": loader}, stage.rounds(9))
    return [
        cost(ran, "NumPy", Target("ours", "<=", 8, "8 us")),
        cost(ran, "torch tensors", Target("ours", "<=", 10, "10 us")),
        cost(ran, "NumPy", Target("ratio", ">=", 6)),
        cost(ran, "torch tensors", Target("ratio", ">=", 6)),
        evicted(stage),
    ]


def evicted(stage: Stage) -> Answer:
    """From a store of 64 MB that is not in memory, as a whole."""
    rows = stage.size(10 * ROWS, ROWS // 10)
    store = stage.data / "bench-tiny.store"
    fl.convert(fl.ArrayDeserializer(x=np.random.default_rng(8).random((rows, WIDTH), np.float32)), store)

    def sweep() -> float:
        with fl.MinibatchSource(fl.StoreDeserializer(store), shuffle="whole", max_sweeps=1) as source:
            return sum(1 for _ in source.minibatches(SIZE))

    return coldly(stage, "32 x 16 floats from a store, whole", "minibatches/s", sweep, store)


def cost(ran: Race, ours: str, target: Target) -> Answer:
    """Measure microseconds per minibatch, against torch's loader."""
    peer = "torch DataLoader"
    each = {name: [1e6 / rate for rate in ran.rates(name)] for name in (ours, peer)}
    return Answer(
        question=f"overhead a minibatch, 32 x 16 floats, to {ours}",
        unit="us",
        ours=statistics.median(each[ours]),
        peer=peer,
        peer_value=statistics.median(each[peer]),
        ratio=ran.ratio(ours, peer),
        target=target,
        spread=spread(each[ours]),
        detail={"us": each},
    )
