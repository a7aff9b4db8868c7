"""TFRecord files, packed or not, with any of their bytes changed, mostly under checksums that are right again."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.oracles.tfrecord import NO_FLOATS, field, record, sequence_example, tag, tfrecords, varint
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(tag(number, wire) for number in (1, 2, 3, 9) for wire in (0, 2, 3, 4, 5, 7)),
    *(varint(n) for n in (127, 128, 2**31, 2**32 - 1, 2**35, 2**63 - 1, -1)),
    *(b"\xff" * 11, b"\0", field(1, b""), field(2, b""), field(1, b"x"), tag(1, 3) * 200, "é".encode()[:1]),
)
LENGTHS = tuple(record(n.to_bytes(8, "little"))[12:] for n in (0, 1, 2**20, 2**30, 2**32 - 17, 2**40, 2**64 - 1))
"""Lengths with their checksums."""

PACK: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gzip": gzip.compress, "zlib": zlib.compress}
STREAMS = {
    "n": fl.Stream((), "int16"),
    "x": fl.Stream(2),
    "t": fl.Stream(dtype="str"),
    "v": fl.Stream(()),
    "s": fl.Stream((), "float64"),
}


class HostileTFRecord(Hostile):
    """Reads numbers and texts, or refuses."""

    name = "hostile-tfrecord"
    asks = "does any TFRecord file, packed or not, crash its reader, or take what it may not?"

    def original(self, case: Case) -> Callable[[], Any]:
        path = case.folder / "whole.tfrecord"
        path.write_bytes(tfrecords(_messages(99)))
        return lambda: _read(path, {}, "raise")

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        packing, messages, how = rng.choice(list(PACK)), _messages(rng.choice([2, 150])), []
        for _ in range(rng.choice([0, 1, 1, 3])):
            at = rng.randrange(len(messages))
            messages[at], done = mutated(rng, messages[at], rng.choice(messages), WORDS)
            how.append(f"message {at}: {done}")
        data, other = tfrecords(messages), tfrecords(_messages(60))
        if rng.random() < 0.5:
            data, done = mutated(rng, data, other, LENGTHS)
            how.append(f"file: {done}")
        if packing != "plain":
            data = PACK[packing](data)
            if rng.random() < 0.5:
                data, done = mutated(rng, data, PACK[packing](other), WORDS)
                how.append(f"packed: {done}")
        path = case.folder / f"{k}.tfrecord"
        path.write_bytes(data)
        options = {
            "chunk_size": rng.choice([1, 100, 3000, 1 << 20]),
            "cache": rng.choice([True, False]),
            "memory": rng.choice([1000, 1 << 20, 64 << 20, 64 << 20]),
            "defaults": rng.choice([{}, {"t": "", "v": [], "n": 0}]),
        }
        on_error, declared = rng.choice(["raise", "skip"]), rng.random() < 0.7
        told = f"{packing}, {'; '.join(how)}; {options}, {on_error}, {declared}"
        return told, lambda: _read(path, options, on_error, declared)


def _messages(count: int) -> list[bytes]:
    made = []
    for i in range(count):
        context = {"n": i, "x": [i / 2, -1.0], "t": f"{i}é", "v": [0.5] * (i % 3) or NO_FLOATS}
        made.append(sequence_example(context, {"s": [[i, 300 * i][j % 2 : j % 2 + 1] for j in range(i % 4)]}))
    return made


def _read(path: Path, options: dict[str, Any], on_error: str, declared: bool = True) -> None:
    if not declared:
        options = {name: value for name, value in options.items() if name != "defaults"}
    corpus = fl.TFRecordDeserializer(path, STREAMS if declared else None, **options)
    how = fl.Quarantine(path.with_suffix(".bad")) if on_error == "skip" else on_error
    for minibatch in fl.MinibatchSource(corpus, on_error=how, max_sweeps=1).minibatches(100):
        dict(minibatch.items())
