"""HDF5 files with any of their bytes changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (b"\xff" * 8, bytes(8), b"TREE", b"HEAP", b"SNOD", b"GCOL", b"OHDR", (2**40).to_bytes(8, "little"))


class HostileHDF5(Hostile):
    """Reads or refuses."""

    name = "hostile-hdf5"
    asks = "does any change of an HDF5 file end the process, hang it, or take memory without bound?"
    batch = 10

    def original(self, case: Case) -> Callable[[], Any]:
        for name, size in (("whole", 40), ("twin", 60)):
            _write(case.folder / f"{name}.h5", size)
        return lambda: _read(case.folder / "whole.h5", {})

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        whole, twin = ((case.folder / f"{name}.h5").read_bytes() for name in ("whole", "twin"))
        text, how = mutated(rng, whole, twin, WORDS)
        path = case.folder / f"{k}.h5"
        path.write_bytes(text)
        skip = {"on_error": fl.Quarantine(str(case.folder / "q.jsonl"))} if rng.random() < 0.5 else {}
        return how, lambda: _read(path, skip)


def _write(path: Path, size: int) -> None:
    with h5py.File(path, "w", libver=("earliest", "latest")[size % 3 == 0]) as file:
        file["number"] = np.arange(size)
        file.create_dataset("rows", data=np.ones((size, 3)), chunks=(7, 2), compression="gzip", shuffle=True)
        file.create_dataset("text", data=["é" * (i % 5) for i in range(size)], chunks=(11,))
        ragged = file.create_dataset("ragged", (size,), h5py.vlen_dtype(np.dtype("i4")))
        for i in range(size):
            ragged[i] = np.arange(i % 4)


def _read(path: Path, options: dict[str, Any]) -> None:
    corpus = fl.HDF5Deserializer(path)
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **options).minibatches(100):
        dict(minibatch.items())
