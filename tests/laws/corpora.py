"""Corpora for the laws: created in memory, read chunk by chunk, with every read counted."""

from __future__ import annotations

import dataclasses
import threading
from unittest import mock

import numpy as np
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.timeline import block_order
from tests.inside import lay_out, timeline_of
from tests.oracles.packing import Step


class CountedCorpus(fl.Deserializer, fl.RandomAccess, fl.Sliceable):
    """Ragged sequences in three streams: dense rows that name their sequence and step, sparse one-hot rows, and texts.

    Sequences ``bad`` are marked unreadable. Sequences ``hidden`` are bad, too, but only by their entries: indices, or
    for every fifth one a text.
    """

    def __init__(self, lengths, chunk_sizes, random_access=False, bad=(), hidden=(), sliceable=False):
        assert sum(chunk_sizes) == len(lengths)
        self.schema = fl.Schema(
            {"x": fl.Stream(shape=2), "y": fl.Stream(shape=7, sparse=True), "t": fl.Stream(dtype="str")}
        )
        self._can = {fl.RandomAccess: random_access, fl.Sliceable: sliceable}
        self._lengths = np.asarray(lengths, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(chunk_sizes)]).astype(int)
        self._bad, self._hidden = frozenset(bad), frozenset(hidden)
        self._lock = threading.Lock()
        self.reads = []

    def chunks(self):
        bounds = zip(self._starts[:-1], self._starts[1:], strict=True)
        samples = [(b - a, int(self._lengths[a:b].sum())) for a, b in bounds]
        return [fl.ChunkInfo(n, total, 10 * total) for n, total in samples]

    def lengths(self, ordinals):
        return None if (self._lengths == 1).all() else self._lengths[ordinals]

    def digest(self):
        return self._lengths.tobytes().hex()

    def rows(self, ordinal):
        n = int(self._lengths[ordinal])
        return np.stack([np.full(n, ordinal, np.float32), np.arange(n, dtype=np.float32)], axis=1)

    def texts(self, ordinal):
        """One text per step: some empty, some of NULs, ASCII or not."""
        return [
            ("", "\0", f"{ordinal}", f"{ordinal}\U0001f600é")[(ordinal + step) % 4]
            for step in range(self._lengths[ordinal])
        ]

    def read(self, chunk):
        with self._lock:
            self.reads.append(chunk)
        return self.made(int(self._starts[chunk]), int(self._starts[chunk + 1]))

    def capability(self, kind):
        return super().capability(kind) if self._can.get(kind, True) else None

    def read_slice(self, chunk, start, stop):
        a, b = (int(self._starts[chunk]) + i for i in (start, stop))
        with self._lock:
            self.reads.append((chunk, start, stop))
        return self.made(a, b)

    def made(self, a, b):
        if a == b:
            x = fl.Value.from_dense(np.empty((0, 2), np.float32))
            y = fl.Value.from_csr([0], [], np.empty(0, np.float32), 7)
            return fl.Chunk(self.schema, {"x": x, "y": y, "t": fl.Value.from_buffer(b"", [0], "str")})
        x = fl.Value.from_sequences([self.rows(i) for i in range(a, b)])
        y = fl.Value.one_hot([np.full(int(self._lengths[i]), i % 7) for i in range(a, b)], 7)
        texts = [text.encode() for i in range(a, b) for text in self.texts(i)]
        for i in self._hidden & set(range(a, b)):
            if i % 5 == 0 and self._lengths[i]:
                texts[int(self._lengths[a : i + 1].sum()) - 1] = (b"\xff", b"abcdefgh\xc3", b"\xed\xa0\x80")[i % 3]
                continue
            y.indices[y.offsets[i - a] : y.offsets[i - a + 1]] = (7, -1, 2**31 - 1, -(2**31))[i % 4]
        bounds = np.cumsum([0, *map(len, texts)])
        t = fl.Value.from_buffer(b"".join(texts), bounds, "str", x.offsets)
        errors = {i - a: fl.DataError("planted", sequence=i) for i in range(a, b) if i in self._bad}
        return fl.Chunk(self.schema, {"x": x, "y": y, "t": t}, errors)


@dataclasses.dataclass
class World:
    """A corpus and the settings of a source over it."""

    lengths: list[int]
    chunk_sizes: list[int]
    random_access: bool
    settings: dict
    bad: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    step: int = (
        16384  # sequences of the order computed at a time: a small number puts segment boundaries into small worlds
    )
    block: int | None = None  # bytes of a block, where chunks are read in slices

    def corpus(self):
        return CountedCorpus(
            self.lengths, self.chunk_sizes, self.random_access, self.bad, self.hidden, self.block is not None
        )

    def source(self, **changes):
        with mock.patch.object(block_order, "BLOCK_BYTES", self.block or block_order.BLOCK_BYTES):
            source = fl.MinibatchSource(self.corpus(), **{**self.settings, **changes})
        lay_out(source, self.step)
        return source

    @property
    def total(self):
        return len(self.lengths)


@st.composite
def worlds(draw, unit=None, order=None):
    """Corpora of up to 60 sequences (some empty) in up to 9 chunks (some empty), with any order and window."""
    chunk_sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any))
    ones = draw(st.booleans()) if unit is None else unit
    total = sum(chunk_sizes)
    lengths = [1] * total if ones else draw(st.lists(st.integers(0, 6), min_size=total, max_size=total).filter(any))
    name = order or draw(st.sampled_from(["feedline", "feedline", "cntk"]))
    windows = [st.just(True), st.just(False), st.builds(lambda n: fl.Window(chunks=n), st.integers(1, 5))]
    windows.append(st.builds(lambda n: fl.Window(samples=n), st.integers(1, 60)))
    if name == "feedline":
        windows.append(st.builds(lambda n: fl.Window(bytes=n), st.integers(1, 900)))
    settings = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "shuffle": draw(st.one_of(windows)),
        "order": name,
        "read_ahead": draw(st.sampled_from([0, 200, 1 << 20, None])),
        "threads": draw(st.integers(1, 3)),
    }
    step = draw(st.sampled_from([16384, 1, 3, 7]))
    block = draw(st.sampled_from([None, 10, 45]))
    return World(lengths, chunk_sizes, draw(st.booleans()), settings, step=step, block=block)


def chunks_of_windows(source, count):
    """Number of chunks, or blocks, of the windows of the next ``count`` sequences, for at least one sequence."""
    timeline, position = timeline_of(source), source.position
    plan = timeline.window_at(position.sweep, position.sequence)
    chunks, sequences = len(plan.chunks), plan.first + plan.count - position.sequence
    while sequences < count:
        plan = timeline.window_after(plan)
        chunks, sequences = chunks + len(plan.chunks), sequences + plan.count
    return chunks


def whole_order(world, sweeps):
    """Ordinals of all sweeps, in order."""
    return [o for m in world.source(max_sweeps=sweeps).minibatches(50) for o in m.ids.tolist()]


def axis_of(world, source, order, rank, count):
    """The sequences of ``order``, sweeps one after the other, as the twins of packing take them."""
    n = world.total
    return [
        Step(o, world.lengths[o], k // n, (k + 1) % n == 0, owner(world, source, k, count) == rank)
        for k, o in enumerate(order)
    ]


def owner(world, source, k, count):
    """Rank that owns place ``k`` of the axis, by its chunk's place in the sweep's order, or its own place."""
    sweep, place = divmod(k, world.total)
    if world.settings["shuffle"] is False:
        return place % count
    plan = timeline_of(source).window_at(sweep, place)
    chunk, _ = plan.locate(place - plan.first, place - plan.first + 1)
    return (plan.position + int(chunk[0])) % count
