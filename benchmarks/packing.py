"""How fast are documents packed into rows of 8,192 tokens, and how full are the rows?

Unit: tokens a second of processor time, over all threads. Measured: documents of 600 tokens on average (lognormal,
int32, seed 1) in a store, rows shuffled in windows, 16 rows a minibatch, with labels, segments, positions, bounds and
documents' ids. Peer: Grain's packing, with the same documents in a list in memory and 64 bins, the best of its
first-fit and best-fit, where it is installed. It makes segments and positions, no labels and bounds, and resumes by
packing again. Also: how full rows are (cut documents fill all but the last row of a chunk), the store evicted from the
page cache, on the wall clock, and, for 20,000,000 documents, the time to go to a row and plan it (limit 10 ms), and
the time to open the corpus.

Two rates: the documents have half as many tokens, and a patch of 48 bytes for each quarter token of cost. Compared with
one rate, in which each token has the same number of bytes beside it. Unit: cost of documents a second of processor
time.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Contender, Stage, Target, race, spread

ROW, ROWS, MEAN = 8192, 16, 600
METHODS = ("best-fit", "first-fit", "split")


def run(stage: Stage) -> list[Answer]:
    """Measure packing against a peer, fill, evicted, and far away."""
    lengths = drawn(4_000 if stage.quick else 150_000)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.random.default_rng(2).integers(1, 50_000, int(offsets[-1]), dtype=np.int32)
    store = stage.data / f"bench-documents-{len(lengths)}.store"
    fl.convert(fl.ArrayDeserializer(tokens=fl.Value.from_dense(tokens, offsets)), store, overwrite=True)
    minibatches = 5 if stage.quick else 100
    sources = {
        method: fl.MinibatchSource(fl.Packed(fl.open_corpus(store), ROW, method=method), seed=3) for method in METHODS
    }
    contenders = {method: packing(source, minibatches) for method, source in sources.items()}
    peers = {}
    if importlib.util.find_spec("grain") is not None:
        documents = [tokens[a:b] for a, b in itertools.pairwise(offsets)]
        rows = 64 if stage.quick else 320  # whole rounds of 64 bins, as Grain delivers them together
        peers = {f"Grain {how}": grains(documents, how, rows) for how in ("first-fit", "best-fit")}
    ran = race({**contenders, **peers}, stage.rounds(7), "process")
    for source in sources.values():
        source.close()
    answers = []
    peer = max(peers, key=ran.rate, default=None)
    for method in METHODS:
        rates = ran.rates(method)
        answers.append(
            Answer(
                question=f"packing {MEAN}-token documents, {method}",
                unit="M tokens/s",
                ours=statistics.median(rates) / 1e6,
                peer=peer or "",
                peer_value=None if peer is None else ran.rate(peer) / 1e6,
                ratio=None if peer is None else ran.ratio(method, peer),
                target=Target("ours", ">=", 20, "20 M tokens/s") if peer is None else Target("ratio", ">=", 20, "20 x"),
                spread=spread(rates),
                note=f"rows of {ROW:,}; {ran.rate(method, 'wall') / 1e6:.0f} M tokens/s on the wall",
            )
        )
    for method, least in (("best-fit", 0.99), ("split", 0.999), ("first-fit", None)):
        packed = fl.Packed(fl.open_corpus(store), ROW, method=method)
        answers.append(
            Answer(
                question=f"fill of rows, {method}",
                unit="of a row",
                ours=packed.fill,
                target=None if least is None else Target("ours", ">=", least, str(least)),
            )
        )
        packed.close()
    answers.append(coldly(stage, "packing from a store, best-fit", "tokens/s", opening(store, minibatches), store))
    return [*answers, two_rates(stage, np.minimum(lengths[: 2_000 if stage.quick else 20_000], ROW)), *far_away(stage)]


def two_rates(stage: Stage, costs: NDArray[np.int64]) -> Answer:
    """Packing tokens and patches, against one rate of the same bytes."""
    stored = {
        "two rates": {"tokens": (costs // 2, ()), "patches": (4 * (costs - costs // 2), (48,))},
        "one rate": {"tokens": (costs, ()), "patches": (costs, (96,))},
    }
    contenders, sources = {}, []
    minibatches = 2 if stage.quick else 30
    for name, streams in stored.items():
        store = stage.data / f"bench-{name.replace(' ', '-')}-{len(costs)}.store"
        values = {
            stream: fl.Value.from_dense(
                np.ones((lengths.sum(), *shape), np.uint8 if shape else np.int32),
                np.concatenate([[0], np.cumsum(lengths)]),
            )
            for stream, (lengths, shape) in streams.items()
        }
        fl.convert(fl.ArrayDeserializer(values), store, overwrite=True)
        cost = {"tokens": 1, "patches": 0.25} if name == "two rates" else None
        sources.append(fl.MinibatchSource(fl.Packed(fl.open_corpus(store), ROW, cost=cost), seed=3))
        contenders[name] = packing(sources[-1], minibatches)
    ran = race(contenders, stage.rounds(7), "process")
    for source in sources:
        source.close()
    rates = ran.rates("two rates")
    return Answer(
        question="packing two rates, patches of 48 bytes",
        unit="M of cost/s",
        ours=statistics.median(rates) / 1e6,
        peer="one rate of the same bytes",
        peer_value=ran.rate("one rate") / 1e6,
        ratio=ran.ratio("two rates", "one rate"),
        target=Target("ratio", ">=", 0.5, "0.5 x"),
        spread=spread(rates),
        note="half of the cost is tokens",
    )


def drawn(count: int) -> NDArray[np.int64]:
    """Lengths of documents."""
    lengths = np.random.default_rng(1).lognormal(0, 1, count)
    return np.maximum((lengths * MEAN / lengths.mean()).astype(np.int64), 1)


def packing(source: fl.MinibatchSource, minibatches: int) -> Contender:
    """Minibatches of a source that stays open."""

    def pack() -> float:
        return sum(source.next_minibatch(ROWS * ROW)["tokens"].num_samples for _ in range(minibatches))

    return pack


def opening(store: Path, minibatches: int) -> Contender:
    """The same by a fresh source."""

    def pack() -> float:
        with fl.MinibatchSource(fl.Packed(fl.open_corpus(store), ROW), seed=3) as source:
            return sum(source.next_minibatch(ROWS * ROW)["tokens"].num_samples for _ in range(minibatches))

    return pack


def grains(documents: list[NDArray[np.int32]], how: str, rows: int) -> Contender:
    """Grain's packing of documents in memory. One element is a row."""
    import grain
    from grain import experimental

    names = {"first-fit": "FirstFitPackIterDataset", "best-fit": "BestFitPackIterDataset"}
    packer: Any = getattr(experimental, names[how])
    parent = grain.MapDataset.source([{"tokens": document} for document in documents]).shuffle(seed=1).repeat()
    fitting = parent.filter(lambda document: len(document["tokens"]) <= ROW).to_iter_dataset()
    row = iter(packer(fitting, length_struct={"tokens": ROW}, num_packing_bins=64))

    def pack() -> float:
        return sum(next(row)["tokens"].size for _ in range(rows))

    return pack


class Lengths(fl.Deserializer):
    """Documents with lengths only, which are never read."""

    def __init__(self, lengths: NDArray[np.int64], to_a_chunk: int = 50_000) -> None:
        self.schema, self.name = fl.Schema({"tokens": fl.Stream((), "int32")}), "documents"
        self._lengths, self._step = lengths, to_a_chunk

    def chunks(self) -> list[fl.ChunkInfo]:
        """Sizes of chunks."""
        starts = np.arange(0, len(self._lengths), self._step)
        totals = np.add.reduceat(self._lengths, starts)
        counts = np.diff([*starts, len(self._lengths)])
        return [fl.ChunkInfo(int(n), int(t), int(4 * t)) for n, t in zip(counts, totals, strict=True)]

    def lengths(self, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
        """From the array."""
        return self._lengths[ordinals]

    def read(self, chunk: int) -> fl.Chunk:
        """Refuse."""
        raise NotImplementedError

    def digest(self) -> str:
        """Constant."""
        return "00"


def far_away(stage: Stage) -> list[Answer]:
    """Opening, going to a row and planning it."""
    count = 200_000 if stage.quick else 20_000_000
    corpus = Lengths(drawn(count))
    answers = []
    for method in METHODS:
        began = time.perf_counter()
        source = fl.MinibatchSource(fl.Packed(corpus, ROW, method=method), seed=3, max_sweeps=4)
        next(source.plan(ROW))
        opened = time.perf_counter() - began
        rows, each = source.num_sequences, []
        for k in range(9):
            place = fl.Position(k % 4, (k * 7919 + 13) * rows // 100_000 % rows)
            began = time.perf_counter()
            source.seek(place)
            next(source.plan(ROW))
            each.append(1e3 * (time.perf_counter() - began))
        answers.append(
            Answer(
                question=f"to a row of {count:,} documents, {method}",
                unit="ms",
                ours=statistics.median(each),
                target=Target("ours", "<=", 10, "10 ms"),
                spread=spread(each),
                note=f"{rows:,} rows; opened in {opened:.2f} s",
                detail={"ms": each, "open_s": opened},
            )
        )
    return answers
