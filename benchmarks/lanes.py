"""What do lanes save a cluster, and what do they cost?

Read: chunks that 4 ranks of 64 lanes need in a sweep of 2,000 chunks of uneven size, together, over all chunks (limit
1.15; 1 + 63/2000 = 1.03 by arithmetic), counted by a corpus that counts its reads. Peer: the same partition by
position, which reads everything on each rank.

Planned: CPU time of laying out the order, segment by segment, in windows of 256 MiB of 20 KB sequences (tar shards) and
of 3 KB (rows of a store), in chunks of uneven size. Peer: the default order. Delivered: rows a second, by CPU time of
all threads, of 784 floats from chunks that are decoded whole, one rank with 64 lanes in minibatches of 256. Peer: the
same without lanes.

Unit: share of the chunks, nanoseconds a sequence, rows a second. Measured: reads counted, CPU time of all threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race
from feedline.data import Position
from feedline.feed.packing.axis import Axis, Cursor
from feedline.feed.timeline import ArcOrder, Timeline
from feedline.feed.timeline.elements import ChunkTable, Ints
from feedline.feed.timeline.feedline import FeedlineOrder

LANES, RANKS, BATCH, WIDTH = 64, 4, 256, 784
WINDOW = fl.Window(bytes=256 << 20)


def run(stage: Stage) -> list[Answer]:
    """What is read, planned and delivered."""
    return [
        read(stage),
        planned(stage, "sequences of 20 KB", 20_000, 8 << 20),
        planned(stage, "rows of 3 KB", 3_000, 1 << 20),
        delivered(stage),
    ]


class Counted(fl.Deserializer):
    """Rows in chunks of given sizes, made when they are read.

    Attributes:
        reads: number of chunks read.
    """

    def __init__(self, sizes: Ints, width: int) -> None:
        self.schema, self.reads = fl.Schema({"x": fl.Stream(width)}), 0
        self._sizes, self._width = sizes.tolist(), width
        self._rows = np.random.default_rng(0).random((max(self._sizes), width), np.float32)

    def chunks(self) -> list[fl.ChunkInfo]:
        """See `Deserializer.chunks`."""
        return [fl.ChunkInfo(n, n, 4 * n * self._width) for n in self._sizes]

    def read(self, chunk: int) -> fl.Chunk:
        """Return a copy of the first rows, as a decoder would write."""
        self.reads += 1
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(self._rows[: self._sizes[chunk]].copy())})

    def digest(self) -> str:
        """See `Deserializer.digest`."""
        return str(self._sizes)


def uneven(count: int, mean: int) -> Ints:
    """Return sizes around a mean, like shards of one nominal size."""
    return np.random.default_rng(1).integers(mean - mean // 8, mean + mean // 8 + 1, count)


def read(stage: Stage) -> Answer:
    """Chunks read by all ranks."""
    sizes = uneven(stage.size(2000, 1000), 20)

    def share(lanes: int | None) -> float:
        reads = 0
        for rank in range(RANKS):
            corpus = Counted(sizes, 1)
            source = fl.MinibatchSource(
                corpus,
                seed=7,
                order=fl.Arcs(lanes) if lanes else "feedline",
                shuffle=fl.Window(chunks=128),
                max_sweeps=1,
                partition=(rank, RANKS),
                threads=1,
            )
            with source:
                for _ in source.minibatches(BATCH):
                    pass
            reads += corpus.reads
        return reads / len(sizes)

    ours, theirs = share(LANES), share(None)
    return Answer(
        question=f"chunks read in a sweep by {RANKS} ranks of {LANES} lanes, of {len(sizes):,}",
        unit="copies of the data",
        ours=ours,
        peer="by position",
        peer_value=theirs,
        ratio=theirs / ours,
        target=Target("ours", "<=", 1.15, "1.15 copies"),
    )


class _Walk:
    """Goes along an axis, segment by segment."""

    def __init__(self, order: Timeline) -> None:
        self._axis = Axis(order, lambda segment: None)
        self._cursor: Cursor | None = self._axis.at(Position(), 0)

    def __call__(self, segments: int) -> float:
        """Plan some segments, return their sequences."""
        sequences = 0
        for _ in range(segments):
            assert self._cursor is not None
            segment = self._cursor.segment
            sequences += segment.n
            self._cursor = self._axis.advance_if_at_end(self._cursor._replace(k=segment.n))
        return sequences


def planned(stage: Stage, what: str, sequence_bytes: int, chunk_bytes: int) -> Answer:
    """Segments, planned and not delivered."""
    sequences = uneven(stage.size(8000, 1000), chunk_bytes // sequence_bytes)
    table = ChunkTable.of_columns(sequences, sequences, sequences * sequence_bytes)
    orders = {
        "feedline": ArcOrder(table, 7, True, WINDOW, LANES),
        "without lanes": FeedlineOrder(table, 7, True, WINDOW),
    }
    counts = {"feedline": 400, "without lanes": 40}
    takers: dict[str, Callable[[], float]] = {
        name: functools.partial(_Walk(order), counts[name]) for name, order in orders.items()
    }
    ran = race(takers, stage.rounds(15), warm_up=2)
    return compare(ran, "feedline", "without lanes", f"planning {what}", "sequences/s")


def delivered(stage: Stage) -> Answer:
    """Compare the rows of one rank with the rows without lanes."""
    sizes, count = uneven(4000, 300), 20 if stage.quick else 300

    def taking(lanes: int | None) -> Callable[[], float]:
        order = fl.Arcs(lanes) if lanes else "feedline"
        source = fl.MinibatchSource(Counted(sizes, WIDTH), seed=1, order=order, shuffle=fl.Window(chunks=128))
        return lambda: sum(source.next_minibatch(BATCH).num_sequences for _ in range(count))

    takers = {"feedline": taking(LANES), "without lanes": taking(None)}
    ran = race(takers, stage.rounds(15), "process", warm_up=3)
    return compare(ran, "feedline", "without lanes", f"{LANES} lanes, {WIDTH} floats, {BATCH} rows", "rows/s")
