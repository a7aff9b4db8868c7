"""How fast are minibatches of ragged token sequences: int32, mean 60, 4,096 tokens a minibatch?

Peers: vectorised NumPy (one fancy index a minibatch) for packed tokens with offsets, torch's `pad_sequence` for padded
ones. Ours makes the mask as well, `pad_sequence` does not. Unit: sequences a second. Measured: the kernels with the
sequences of each minibatch chosen before, and end to end through `MinibatchSource`, order and cut included. CPU time
of the thread for kernels, of the process end to end. Also: end to end from a store that was evicted from the page
cache, on the wall clock.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks import data
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Contender, Stage, compare, race
from feedline import _native

SIZE = 4096


def run(stage: Stage) -> list[Answer]:
    """Packed and padded kernels, then the whole way."""
    given = data.tokens(stage)
    value = fl.Value.from_dense(given.tokens, given.offsets)
    picks = cuts(given, np.random.default_rng(7).permutation(len(given.offsets) - 1))
    turn = slices(picks, 50 if stage.quick else 1000)
    packed = race(
        {"feedline": gathering(value, turn), "numpy": indexing(given, turn)},
        stage.rounds(9),
    )
    padded = race(
        {"feedline": padding(value, turn), "torch pad_sequence": pad_sequences(given, turn)},
        stage.rounds(9),
    )
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=value))
    count = 50 if stage.quick else 1000
    whole = race(
        {
            "packed": feeding(source, count, False),
            "padded": feeding(source, count, True),
            "numpy": indexing(given, turn),
            "torch pad_sequence": pad_sequences(given, turn),
        },
        stage.rounds(9),
        "process",
    )
    store = stage.data / "bench-tokens.store"
    fl.convert(fl.ArrayDeserializer(x=value), store)
    unit = "sequences/s"
    end = "tokens end to end, "
    return [
        compare(packed, "feedline", "numpy", "token sequences, packed (kernel)", unit, 1.0, 3),
        compare(padded, "feedline", "torch pad_sequence", "token sequences, padded with mask (kernel)", unit, 1.0, 6),
        compare(whole, "packed", "numpy", end + "packed", unit, note="the peer's order and cuts are made before"),
        compare(whole, "padded", "torch pad_sequence", end + "padded with mask", unit),
        *(
            coldly(stage, f"tokens from a store, {order}, packed", unit, opening(store, shuffle, count), store)
            for order, shuffle in (("whole", "whole"), ("windows of 16 MiB", fl.Window(bytes=16 << 20)))
        ),
    ]


def cuts(given: data.Tokens, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The order cut into minibatches of at most `SIZE` tokens."""
    ends = np.cumsum(np.diff(given.offsets)[order])
    bounds = [0]
    while bounds[-1] < len(order):
        used = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, used + SIZE, side="right"))))
    return [order[a:b] for a, b in itertools.pairwise(bounds)]


def slices(picks: list[NDArray[np.int64]], count: int) -> Any:
    """A function that hands out ``count`` minibatches a time to each contender by name, going round."""
    places: dict[str, int] = {}

    def turn(name: str) -> list[NDArray[np.int64]]:
        start = places.get(name, 0)
        places[name] = (start + count) % len(picks)
        return [picks[(start + i) % len(picks)] for i in range(count)]

    return turn


def gathering(value: fl.Value, turn: Any) -> Contender:
    """The gather kernel, packed rows and offsets."""
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(value.rows, value.offsets)])  # type: ignore[attr-defined]

    def gather() -> float:
        chosen = turn("gather")
        for which in chosen:
            gatherer.gather(None, which)
        return sum(map(len, chosen))

    return gather


def padding(value: fl.Value, turn: Any) -> Contender:
    """The gather kernel, then the pad kernel: padded rows and mask."""
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(value.rows, value.offsets)])  # type: ignore[attr-defined]
    fill = np.zeros((), np.int32)

    def pad() -> float:
        chosen = turn("pad")
        for which in chosen:
            ((rows, offsets),) = gatherer.gather(None, which)
            _native.pad(rows, offsets, fill)
        return sum(map(len, chosen))

    return pad


def indexing(given: data.Tokens, turn: Any) -> Contender:
    """NumPy: lengths, offsets and one fancy index a minibatch."""
    tokens, offsets = given

    def index() -> float:
        chosen = turn("numpy")
        for which in chosen:
            starts = offsets[which]
            lengths = offsets[which + 1] - starts
            ends = np.cumsum(lengths)
            flat = np.repeat(starts - (ends - lengths), lengths)
            flat += np.arange(ends[-1])
            tokens[flat]
        return sum(map(len, chosen))

    return index


def pad_sequences(given: data.Tokens, turn: Any) -> Contender:
    """Pad with torch: one slice a sequence, then `pad_sequence`. No mask."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    torch.set_num_threads(1)
    tokens, offsets = torch.from_numpy(given.tokens), given.offsets

    def pad() -> float:
        chosen = turn("torch")
        for which in chosen:
            starts, ends = offsets[which].tolist(), offsets[which + 1].tolist()
            pad_sequence([tokens[a:b] for a, b in zip(starts, ends, strict=True)], batch_first=True)
        return sum(map(len, chosen))

    return pad


def feeding(source: fl.MinibatchSource, count: int, pad: bool) -> Contender:
    """So many minibatches from the source, packed or padded with a mask."""

    def feed() -> float:
        sequences = 0
        for _ in range(count):
            value = source.next_minibatch(SIZE)["x"]
            if pad:
                value.padded_with_mask()  # type: ignore[attr-defined]
            sequences += value.num_sequences
        return sequences

    return feed


def opening(store: Path, shuffle: str | fl.Window, count: int) -> Contender:
    """So many minibatches, or a sweep, from a source that is opened for them."""

    def feed() -> float:
        sequences = 0
        with fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=shuffle, max_sweeps=1) as source:
            for minibatch in itertools.islice(source.minibatches(SIZE), count):
                sequences += minibatch["x"].num_sequences
        return sequences

    return feed
