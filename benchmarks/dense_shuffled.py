"""How fast are shuffled dense minibatches: 784 float32 and a label, 256 a minibatch, from a mapped Arrow store?

Limits and peers: a bare `np.take(out=, mode="clip")` loop over rows of the same file in a random order drawn before;
torch's `DataLoader(TensorDataset, batch_size=256, shuffle=True)` without workers, and the same with a BatchSampler as
sampler, which is torch's fastest idiom. Unit: samples a second of processor time, all threads counted. Measured: 4.1
GB (scaled down if it must be) in the page cache, all maps touched before, torch with one thread. Drawing the
order is included for us and excluded for the peers. Also: part of it evicted from the page cache, on the wall clock.
`cold` compares that with the disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Contender, Stage, compare, race

SIZE = 256


def run(stage: Stage) -> list[Answer]:
    """Compare with NumPy's gather, torch's usual loader and torch's best."""
    path, rows = data.dense_store(stage), data.dense_rows(stage)
    x = data.overlay(path, rows)
    y = np.random.default_rng(0).integers(0, data.LABELS, rows)
    source = fl.MinibatchSource(fl.StoreDeserializer(path))
    touch(source, x)
    count = 20 if stage.quick else 500
    usual, idiom = torch_loaders(x, y)
    contenders: dict[str, Contender] = {
        "feedline": feeding(source, count),
        "np.take loop": taking(x, y, count),
        "torch DataLoader": looping(usual, count // 4),
        "torch BatchSampler idiom": looping(idiom, count // 4),
    }
    ran = race(contenders, stage.rounds(9), "process")
    name = "shuffled dense minibatches of 256"
    answers = [
        compare(ran, "feedline", "np.take loop", name, "samples/s", 1.0, 0.8),
        compare(ran, "feedline", "torch DataLoader", name, "samples/s", 1.0, 6),
        compare(ran, "feedline", "torch BatchSampler idiom", name, "samples/s"),
    ]
    wall = {name: f"{ran.rate(name, 'wall'):,.0f}" for name in ("feedline", "np.take loop")}
    note = f"{rows:,} rows, {rows * 3136 / 1e9:.1f} GB; on the wall clock {wall['feedline']} samples/s, "
    note += f"np.take {wall['np.take loop']}"
    source.close()
    del source, x, contenders, usual, idiom  # mapped pages stay in the page cache
    cold = coldly(stage, name, "samples/s", opening(path, 10 if stage.quick else 200), path)
    return [dataclasses.replace(answers[0], note=note), *answers[1:], cold]


def touch(source: fl.MinibatchSource, x: np.ndarray[Any, Any]) -> None:
    """Fault every page of both maps in, so that no contender pays for the first touch."""
    for chunk in range(len(source.corpus.chunks())):
        source.corpus.read(chunk)["x"].rows[:, ::512].sum()
    for start in range(0, len(x), 65536):
        x[start : start + 65536, ::512].sum()


def feeding(source: fl.MinibatchSource, count: int, size: int = SIZE) -> Contender:
    """Return a contender: minibatches from the source."""

    def feed() -> float:
        samples = 0
        for _ in range(count):
            minibatch = source.next_minibatch(size)
            samples += len(minibatch["x"].rows) + 0 * len(minibatch["y"].rows)
        return samples

    return feed


def opening(path: Path, count: int) -> Contender:
    """Return a contender: minibatches from a source opened for them."""

    def feed() -> float:
        with fl.MinibatchSource(fl.StoreDeserializer(path), max_samples=count * SIZE) as source:
            return feeding(source, min(count, source.num_samples // SIZE))()

    return feed


def taking(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], count: int) -> Contender:
    """Return a contender: gathers into the same two buffers."""
    order = np.random.default_rng(6).permutation(len(x))
    xs, ys = np.empty((SIZE, data.PIXELS), x.dtype), np.empty(SIZE, y.dtype)
    place = 0

    def take() -> float:
        nonlocal place
        for _ in range(count):
            if place + SIZE > len(order):
                place = 0
            chosen = order[place : place + SIZE]
            np.take(x, chosen, axis=0, out=xs, mode="clip")
            np.take(y, chosen, axis=0, out=ys, mode="clip")
            place += SIZE
        return count * SIZE

    return take


def torch_loaders(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], size: int = SIZE, workers: int = 0
) -> tuple[Any, Any]:
    """torch's usual DataLoader over tensors, and its fastest idiom."""
    import warnings

    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the map is read-only, and nobody writes to it here
        rows = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    usual = DataLoader(rows, batch_size=size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    sampler = BatchSampler(RandomSampler(rows), size, drop_last=False)
    idiom = DataLoader(rows, sampler=sampler, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return usual, idiom


def looping(loader: Any, count: int) -> Contender:
    """Return a contender that takes batches across epochs. The first epoch begins now."""

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    stream = batches()
    next(stream)

    def loop() -> float:
        return sum(len(next(stream)[0]) for _ in range(max(1, count)))

    return loop
