"""How fast are HDF5 files and Zarr stores delivered, compared with indexing them row by row, and with bare reading?

Peers, in this process: torch's DataLoader (no workers, batches of 256, shuffled) over a dataset that indexes the h5py
or zarr array with the number of a row, for some hundred rows, and the library alone, reading all chunks in order, a
chunk at a time, without delivering any. Unit: rows a second of processor time, all threads counted. Ours are delivered
in minibatches of 256, shuffled in windows. Measured: 784 floats in chunks of 1000 rows, in the page cache, with each
library's usual compression (gzip, Zstandard) and without any. HDF5 without is contiguous, and mapped.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, compare, race

WIDTH, BLOCK, BATCH = 784, 1000, 256
AT_RANDOM = 400  # rows that are indexed one by one: each costs the decoding of its chunk


def run(stage: Stage) -> list[Answer]:
    """Measure both libraries, if they are installed, with and without compression."""
    rows = stage.size(100_000, 3_000) // BLOCK * BLOCK
    answers: list[Answer] = []
    for name, make in (("HDF5", hdf5), ("Zarr", zarr)):
        if importlib.util.find_spec("h5py" if name == "HDF5" else "zarr") is None:
            continue
        for compressed in (False, True):
            folder = stage.data / "bench-stored"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            path, array = make(folder, rows, compressed)
            contenders = {
                "feedline": feeding(path),
                "rows by DataLoader": indexing(array, rows),
                "bare chunks in order": reading(array, rows),
            }
            ran = race(contenders, stage.rounds(5), "process")
            what = f"{name}, 784 floats{', compressed' if compressed else ''}, shuffled"
            answers += [
                compare(ran, "feedline", peer, f"{what}, vs {peer}", "rows/s")
                for peer in ("rows by DataLoader", "bare chunks in order")
            ]
            shutil.rmtree(folder)
    return answers


def numbers(rows: int) -> Any:
    """Rows that compress to about a half."""
    return np.random.default_rng(1).integers(0, 4096, (rows, WIDTH)).astype(np.float32)


def hdf5(folder: Path, rows: int, compressed: bool) -> tuple[Path, Any]:
    import h5py

    path = folder / "a.h5"
    stored = {"chunks": (BLOCK, WIDTH), "compression": "gzip"} if compressed else {}
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=numbers(rows), **stored)
    return path, h5py.File(path)["x"]


def zarr(folder: Path, rows: int, compressed: bool) -> tuple[Path, Any]:
    import zarr as library

    path = folder / "a.zarr"
    group = library.open_group(str(path), mode="w")
    stored = {} if compressed else {"compressors": None}
    group.create_array("x", data=numbers(rows), chunks=(BLOCK, WIDTH), **stored)
    return path, group["x"]


def feeding(path: Path) -> Contender:
    """Return a contender: a sweep from a fresh source."""

    def feed() -> float:
        found = 0
        with fl.MinibatchSource(fl.open_corpus(path), seed=1, partition=(0, 1), max_sweeps=1) as source:
            for minibatch in source.minibatches(BATCH):
                found += len(minibatch["x"].rows)
        return found

    return feed


def indexing(array: Any, rows: int) -> Contender:
    """Return a contender: torch's DataLoader over the array, one index a row."""
    import torch.utils.data

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return rows

        def __getitem__(self, number: int) -> Any:
            return array[number]

    def feed() -> float:
        chosen = torch.randperm(rows)[:AT_RANDOM].tolist()
        loader = torch.utils.data.DataLoader(Rows(), batch_size=BATCH, sampler=chosen)
        return float(sum(len(batch) for batch in loader))

    return feed


def reading(array: Any, rows: int) -> Contender:
    """Return a contender: the library reads every chunk."""

    def read() -> float:
        return float(sum(len(array[start : start + BLOCK]) for start in range(0, rows, BLOCK)))

    return read
