"""Megatron's index and token files with any of their bytes changed."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(b"MMIDIDX\0\0", b"\x93NUMPY", struct.pack("<Q", 2**63), struct.pack("<Q", 2**61), struct.pack("<q", -1)),
    *(struct.pack("<i", -1), struct.pack("<i", 2**31 - 1), bytes(8), b"\x08", b"\x04"),
)


class HostileTokens(Hostile):
    """Reads or refuses."""

    name = "hostile-tokens"
    asks = "does any change of a token file or its index crash, or read beyond the tokens?"

    def original(self, case: Case) -> Callable[[], Any]:
        for name, size in (("whole", 700), ("twin", 900)):
            _write(case.folder / name, np.arange(size), [size // 2, size - size // 2])
        return lambda: _read(case.folder / "whole.bin")

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        suffix = rng.choice([".idx", ".idx", ".bin"])
        path = case.folder / f"{k}.bin"
        for other in (".bin", ".idx"):
            shutil.copy(case.folder / f"whole{other}", path.with_suffix(other))
        whole, twin = ((case.folder / name).with_suffix(suffix).read_bytes() for name in ("whole", "twin"))
        text, how = mutated(rng, whole, twin, WORDS)
        path.with_suffix(suffix).write_bytes(text)
        return f"{suffix}: {how}", lambda: _read(path)


def _write(path: Path, tokens: Any, lengths: list[int]) -> None:
    tokens.astype("uint16").tofile(path.with_suffix(".bin"))
    starts = np.concatenate([[0], np.cumsum(lengths[:-1])]) * 2
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    numbers = [np.array(lengths, "<i4"), starts.astype("<i8"), np.arange(len(lengths) + 1)]
    path.with_suffix(".idx").write_bytes(head + b"".join(array.tobytes() for array in numbers))


def _read(path: Path) -> None:
    corpus = fl.TokensDeserializer(path, length=50, stride=3)
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1).minibatches(100):
        dict(minibatch.items())
