"""CNTK's binary format, scripts and archives of HTK features, and label files, with any of their bytes changed."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.oracles.cntk_files import htk, mlf
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

LENGTHS = [4, 1, 7, 3, 2, 9, 5, 2]
FILES = ("data.cbf", "all.scp", "0.chunk", "1.chunk", "all.mlf", "states")
WORDS = (
    *(b"[0,0]", b"[", b"]", b"=", b"[0,2147483647]", b"[5,1]", b".", b"\n.\n", b'"', b'""', b"#!MLF!#\n", b" ", b"  "),
    *(
        b"1e300",
        b"nan",
        b"-1",
        b"99999",
        b"18446744073709551616",
        b"\r",
        b"\0",
        b"s0",
        b"\xff\xff\xff\x7f",
        b"\xff" * 8,
    ),
)


class HostileSpeech(Hostile):
    """Reads or refuses."""

    name = "hostile-speech"
    asks = "does any change of CBF, HTK or MLF files end the process, or take memory without bound?"

    def original(self, case: Case) -> Callable[[], Any]:
        write(case.folder / "sound", 0)
        return lambda: (read_binary(case.folder / "sound", {}), read_speech(case.folder / "sound", {}, (1, 1)))

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        folder, twin = case.folder / str(k), case.folder / f"{k}.twin"
        write(folder, 0)
        write(twin, 1)
        name = rng.choice(FILES)
        text, how = mutated(rng, (folder / name).read_bytes(), (twin / name).read_bytes(), WORDS)
        if name == "data.cbf" and rng.random() < 0.5:
            # Sizes are stored in few places, which random changes seldom hit.
            at = rng.randrange(0, max(1, len(text) - 4), 4)
            value = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)])
            text, how = text[:at] + struct.pack("<I", value) + text[at + 4 :], f"{how}; {value} at byte {at}"
        (folder / name).write_bytes(text)
        skip = {"on_error": fl.Quarantine(str(folder / "q.jsonl"))} if rng.random() < 0.5 else {}
        if name == "data.cbf":
            size = rng.choice([0, 1, 300, 32 << 20])
            return f"{name}: {how}", lambda: read_binary(folder, skip, size)
        context = rng.choice([(0, 0), (2, 1), (50, 50), None])
        return f"{name}: {how}", lambda: read_speech(folder, skip, context)


def write(folder: Path, twin: int) -> None:
    """All files, of the same layout with other numbers for a twin."""
    folder.mkdir()
    frames = np.arange(3 * sum(LENGTHS), dtype=np.float32).reshape(-1, 3) + twin
    bounds = np.cumsum([0, *LENGTHS]).tolist()
    utterances = [frames[a:b] for a, b in itertools.pairwise(bounds)]
    words = fl.Value.one_hot([np.arange(n) % 7 for n in LENGTHS], 7)
    fl.write_cbf(folder / "data.cbf", {"x": utterances, "word": words}, chunk_size=200)
    half = bounds[4]
    (folder / "0.chunk").write_bytes(htk(frames[:half]))
    (folder / "1.chunk").write_bytes(htk(frames[half:]))
    lines, labels = [], {}
    for i, n in enumerate(LENGTHS):
        number, first = (0, bounds[i]) if i < 4 else (1, bounds[i] - half)
        lines.append(f"u{i}.mfc={folder}/{number}.chunk[{first},{first + n - 1}]\n")
        labels[f"u{i}"] = [(n, f"s{(i + twin) % 5}")]
    (folder / "all.scp").write_text("".join(lines))
    (folder / "all.mlf").write_text(mlf(labels))
    (folder / "states").write_text("".join(f"s{i}\n" for i in range(5)))


def read_binary(folder: Path, options: dict[str, Any], chunk_size: int = 32 << 20) -> None:
    """Read all of a CBF file."""
    corpus = fl.CBFDeserializer(folder / "data.cbf", chunk_size=chunk_size)
    for minibatch in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options).minibatches(100):
        dict(minibatch.items())


def read_speech(folder: Path, options: dict[str, Any], context: tuple[int, int] | None) -> None:
    """Read all features with their labels."""
    features = fl.HTKFeatureDeserializer(folder / "all.scp", context=context, memory=64 << 20)
    labels = fl.MLFDeserializer(
        folder / "all.mlf", y=fl.Stream(5, sparse=True), states=folder / "states", cache=False, memory=64 << 20
    )
    corpus = fl.Join(features, labels, cache=False)
    for minibatch in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options).minibatches(100):
        dict(minibatch.items())
