"""What does it cost to divide a minibatch among ranks by work, and to cut it?

Assigned: microseconds for 1,000 squares of lengths among 64 ranks. Peer: the same rule in NumPy. Even: the largest sum
of squared lengths of a rank over the mean, for documents of 16 to 8,192 tokens (log-normal), 64 ranks of 65,536 tokens
and 8 of 16,384. Peer: shares by position. Cut: rows of 8,192 tokens, packed, as one of 4 ranks of a context dimension
in zigzag, whole rows a second. Peer: whole rows. Unused: minibatches of 32 x 16 floats with a partition that could
balance and cut and does neither. Peer: a pair.

Unit: microseconds, a ratio, rows a second. Measured: CPU time of the thread, of all threads for cuts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race, spread
from feedline.feed.equal_work import Ints, assign
from feedline.interop.meshes import MeshShare


def run(stage: Stage) -> list[Answer]:
    """Assign, compare work, cut, and do nothing."""
    return [assigned(stage), even(64, 65536, 1.05), even(8, 16384, 1.5), cut(stage), unused(stage)]


def lengths(count: int) -> Ints:
    """Draw lengths of documents."""
    return np.random.default_rng(0).lognormal(6, 1, count).astype(np.int64).clip(16, 8192)


def assigned(stage: Stage) -> Answer:
    """1,000 sequences to 64 ranks."""
    work, count = np.square(lengths(1000), dtype=np.float64), 20 if stage.quick else 1000

    def native() -> float:
        for _ in range(count):
            assign(work, 64)
        return count

    def by_numpy() -> float:
        loads = np.zeros(64)
        for i in np.argsort(-work, kind="stable"):
            loads[loads.argmin()] += work[i]
        return 1

    ran = race({"feedline": native, "NumPy": by_numpy}, stage.rounds(9))
    each = [1e6 / rate for rate in ran.rates("feedline")]
    return Answer(
        question="assigning 1,000 sequences to 64 ranks by work",
        unit="us",
        ours=statistics.median(each),
        peer="NumPy",
        peer_value=1e6 / ran.rate("NumPy"),
        ratio=ran.ratio("feedline", "NumPy"),
        target=Target("ours", "<=", 50, "50 us"),
        spread=spread(each),
    )


def even(ranks: int, tokens: int, bound: float) -> Answer:
    """The largest work of a rank over the mean, in ten minibatches."""
    sizes = lengths(60_000)
    corpus = fl.ArrayDeserializer(tokens=[np.zeros(n, np.int8) for n in sizes])
    figures: dict[str, list[float]] = {}
    for balance in ("squares", "samples"):
        shares = [
            fl.MinibatchSource(corpus, seed=1, max_sweeps=1, partition=fl.Partition((i, ranks), balance=balance))
            for i in range(ranks)
        ]
        plans = [share.plan(ranks * tokens) for share in shares]
        for _ in range(10):
            loads = [float(np.square(sizes[next(plan).ids], dtype=np.float64).sum()) for plan in plans]
            figures.setdefault(balance, []).append(max(loads) / statistics.mean(loads))
    ours, peer = (statistics.mean(figures[name]) for name in ("squares", "samples"))
    return Answer(
        question=f"most squared lengths over the mean, {ranks} ranks of {tokens:,} tokens",
        unit="of the mean",
        ours=ours,
        peer="by position",
        peer_value=peer,
        ratio=peer / ours,
        target=Target("ours", "<=", bound),
        spread=spread(figures["squares"]),
        detail=figures,
    )


def cut(stage: Stage) -> Answer:
    """Rows as one of four ranks."""
    documents = fl.ArrayDeserializer(tokens=[np.zeros(n, np.int32) for n in lengths(stage.size(20_000, 500))])
    rows, count = fl.Packed(documents, 8192), 2 if stage.quick else 20

    def taking(partition: fl.Partition) -> Callable[[], float]:
        source = fl.MinibatchSource(rows, seed=1, partition=partition)
        return lambda: sum(source.next_minibatch(8 * 8192).num_sequences for _ in range(count))

    takers = {
        "feedline": taking(fl.Partition(MeshShare(0, 1, 1, 4), cut="zigzag")),
        "whole rows": taking(fl.Partition((0, 1))),
    }
    ran = race(takers, stage.rounds(9), "process")
    return compare(ran, "feedline", "whole rows", "packed rows of 8,192 tokens, cut for 4 ranks", "rows/s")


def unused(stage: Stage) -> Answer:
    """Minibatches of a rank whose share is found by a mesh, without a balance or a cut."""
    x = np.random.default_rng(8).random((100_000, 16), np.float32)
    count = 200 if stage.quick else 10_000

    def taking(partition: fl.Partition) -> Callable[[], float]:
        source = fl.MinibatchSource(fl.ArrayDeserializer(x=x), partition=partition)
        return lambda: sum(bool(source.next_minibatch(64)) for _ in range(count))

    takers = {"feedline": taking(fl.Partition(MeshShare(1, 2))), "a pair": taking(fl.Partition((1, 2)))}
    ran = race(takers, stage.rounds(15))
    return compare(ran, "feedline", "a pair", "a share by mesh, 32 x 16 floats", "minibatches/s", at_least=0.98)
