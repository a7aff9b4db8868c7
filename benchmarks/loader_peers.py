"""What does a user gain over torch's DataLoader, with and without workers?

Peer: torch `DataLoader` with 0 and 2 worker processes, the usual way and by its BatchSampler idiom. Unit: samples a
second on the wall clock, since workers are other processes. Measured: the data of `dense_shuffled` (784 float32 and a
label, 256 a batch) and of `minibatch_overhead` (16 floats, 32 a batch), steady state, workers persistent, tensors on
both sides. Reported only: those two files have the targets. Peers over data that is not in memory: `cold_peers`. Here
ours alone, from a store that was evicted from the page cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.dense_shuffled import looping, torch_loaders, touch
from benchmarks.disk import coldly
from benchmarks.harness import Answer, Contender, Race, Stage, compare, race
from benchmarks.minibatch_overhead import ROWS, WIDTH


def run(stage: Stage) -> list[Answer]:
    """Large rows, then small ones."""
    path, rows = data.dense_store(stage), data.dense_rows(stage)
    x = data.overlay(path, rows)
    source = fl.MinibatchSource(fl.StoreDeserializer(path))
    touch(source, x)
    answers = table(stage, "784 floats + label, batch 256", source, x, 256, 100)
    small = np.random.default_rng(8).random((ROWS, WIDTH), np.float32)
    source.close()
    del source, x  # mapped pages stay in the page cache
    answers.append(
        coldly(
            stage,
            "peers: 784 floats + label, batch 256, as tensors",
            "samples/s",
            opening(path, 10 if stage.quick else 200),
            path,
        )
    )
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=small, y=np.zeros(ROWS, np.int64)))
    return answers + table(stage, "16 floats + label, batch 32", source, small, 32, 400)


def table(
    stage: Stage, what: str, source: fl.MinibatchSource, x: np.ndarray[Any, Any], size: int, count: int
) -> list[Answer]:
    """One answer a peer."""
    count = 5 if stage.quick else count
    contenders: dict[str, Contender] = {"feedline": feeding(source, count * 10, size)}
    for workers in (0, 2):
        usual, idiom = torch_loaders(x, np.zeros(len(x), np.int64), size, workers)
        contenders[f"DataLoader, {workers} workers"] = looping(usual, count)
        contenders[f"DataLoader, BatchSampler, {workers} workers"] = looping(idiom, count)
    ran: Race = race(contenders, stage.rounds(5), "wall")
    peers = [name for name in contenders if name != "feedline"]
    return [compare(ran, "feedline", peer, f"peers: {what}", "samples/s (wall)") for peer in peers]


def opening(path: Path, count: int) -> Contender:
    """So many minibatches from a source that is opened for them."""

    def feed() -> float:
        with fl.MinibatchSource(fl.StoreDeserializer(path), max_samples=count * 256) as source:
            return feeding(source, min(count, source.num_samples // 256), 256)()

    return feed


def feeding(source: fl.MinibatchSource, count: int, size: int) -> Contender:
    """So many minibatches as tensors."""

    def feed() -> float:
        samples = 0
        for _ in range(count):
            minibatch = source.next_minibatch(size)
            samples += len(minibatch["x"].torch())
            minibatch["y"].torch()
        return samples

    return feed
