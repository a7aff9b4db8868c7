"""RecordIO files, their keys and their indexes, with any of their bytes changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.oracles.recordio import MAGIC, packed, record
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

HEADS = [(kind << 29 | size) for kind in (0, 1, 2, 3, 7) for size in (0, 4, 32, 2**20, 2**29 - 1)]
WORDS = (MAGIC, *(MAGIC + struct.pack("<I", head) for head in HEADS), b"\xff" * 4, b"\0" * 4, b"\2\0\0\0", b"\t", b"\n")


class HostileRecordIO(Hostile):
    """Reads or refuses."""

    name = "hostile-recordio"
    asks = "does any change of a RecordIO file crash, read beyond it, or take memory without bound?"

    def original(self, case: Case) -> Callable[[], Any]:
        for k in range(2):
            _write(case.folder / f"{k}.rec", ranges=bool(k))
        return lambda: [_read(case.folder / f"{k}.rec", "raise") for k in range(2)]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        number = rng.randrange(2)
        source, other = case.folder / f"{number}.rec", case.folder / f"{1 - number}.rec"
        path = case.folder / str(k) / "a.rec"
        path.parent.mkdir()
        data, how = mutated(rng, source.read_bytes(), other.read_bytes(), WORDS)
        keys = source.with_suffix(".idx").read_bytes()
        if rng.random() < 0.3:
            keys, done = mutated(rng, keys, other.with_suffix(".idx").read_bytes(), WORDS)
            how += f", keys: {done}"
        path.with_suffix(".idx").write_bytes(keys)
        if rng.random() < 0.3:
            path.write_bytes(source.read_bytes())
            corpus = fl.RecordIODeserializer(path)
            path.write_bytes(data[: source.stat().st_size].ljust(source.stat().st_size, b"\0"))
            return f"{how}, in use", lambda: _deliver(corpus, path, "skip")
        path.write_bytes(data)
        options = {"chunk_size": rng.choice([1, 300, 1 << 20]), "cache": rng.choice([True, False])}
        return f"{how}, {options}", lambda: _read(path, "skip", **options)


def _write(path: Path, ranges: bool) -> None:
    payloads = [packed([9, 11])] if ranges else []
    for i in range(8):
        image = bytes([i]) * (9 * i) + (bytes(-9 * i % 4) + MAGIC + b"x" if i % 3 == 2 else b"")
        payloads.append(packed(float(i) if i % 2 or ranges else [i, -i], image, i))
    payloads += [packed([1, 9])] * 2 if ranges else []
    records = [record(payload) for payload in payloads]
    path.write_bytes(b"".join(records))
    starts = np.cumsum([0, *map(len, records)]).tolist()
    path.with_suffix(".idx").write_text("".join(f"{i}\t{at}\n" for i, at in enumerate(starts[:-1])))


def _read(path: Path, on_error: str, **options: Any) -> None:
    _deliver(fl.RecordIODeserializer(path, **options), path, on_error)
    corpus = fl.open_corpus(path)
    corpus.keys(np.arange(sum(info.sequences for info in corpus.chunks())))  # type: ignore[attr-defined]


def _deliver(corpus: fl.Deserializer, path: Path, on_error: str) -> None:
    skipping = {"on_error": fl.Quarantine(path.with_suffix(".jsonl"))} if on_error == "skip" else {}
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(4):
        dict(minibatch.items())
