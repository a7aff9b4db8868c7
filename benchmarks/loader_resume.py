"""How long does a shuffling `DataLoader` take to resume at 90 % of 10 million samples?

Peers: torch's `DataLoader` read to that place and, where torchdata is installed, its `StatefulDataLoader`. Unit:
milliseconds on the wall. Measured: from the constructor to the first batch of 256, with a state and without. For us
the difference counts. Items cost next to nothing and come a batch a call (`__getitems__`), so that only
finding the place is timed. With real items, reading up to it costs 90 % of an epoch on top.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.loaders import TORCH, alternated

BATCH = 256


class Indices:
    """``n`` samples, each its own number, a batch a call."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: Any) -> Any:
        return np.asarray(indices)


def as_it_is(batch: Any) -> Any:
    """The batch as the dataset made it."""
    return batch


def run(stage: Stage) -> list[Answer]:
    """0 and 2 workers."""
    items = Indices(stage.size(10_000_000, 100_000))
    place = int(items.n * 0.9) // BATCH
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "collate_fn": as_it_is}
    peers: dict[str, Callable[[], float]] = {"torch DataLoader, read to there": read_to(items, options, place)}
    answers = []
    for workers in (0, 2):
        whole: dict[str, Any] = {**options, "num_workers": workers}
        state, expected = state_at(items, whole, place)

        def fresh(whole: dict[str, Any] = whole) -> float:
            return started(items, whole, None, None)

        def resumed(whole: dict[str, Any] = whole, state: Any = state, expected: Any = expected) -> float:
            return started(items, whole, state, expected)

        said = alternated({"fresh": fresh, "resumed": resumed}, stage.rounds(7))
        over = [1e3 * (b - a) for a, b in zip(said["fresh"], said["resumed"], strict=True)]
        question = f"resume at 90 % of {items.n:,} samples, {workers} workers"
        answers.append(
            Answer(
                question=f"{question}: over a fresh start",
                unit="ms",
                ours=statistics.median(over),
                target=Target("ours", "<=", 50, "50 ms"),
                note=f"fresh {1e3 * statistics.median(said['fresh']):.1f} ms, "
                f"resumed {1e3 * statistics.median(said['resumed']):.1f} ms; a state of {len(str(state))} characters",
                detail={name: [1e3 * value for value in values] for name, values in said.items()},
            )
        )
        # torchdata changes torch's samplers when it is imported, so it comes after torch's own.
        if workers == 0:
            ours = said["resumed"]
            if importlib.util.find_spec("torchdata") is not None:
                peers["torchdata StatefulDataLoader"] = stateful(items, options, place)
            for name, peer in peers.items():
                theirs = [peer() for _ in range(2)]
                answers.append(
                    Answer(
                        question=question,
                        unit="ms",
                        ours=1e3 * statistics.median(ours),
                        peer=name,
                        peer_value=1e3 * min(theirs),
                        ratio=min(theirs) / statistics.median(ours),
                        spread=spread(ours),
                        note="constructor to first batch",
                        detail={"ours_ms": [1e3 * value for value in ours], "peer_ms": [1e3 * v for v in theirs]},
                    )
                )
    return answers


def state_at(items: Indices, options: dict[str, Any], place: int) -> tuple[Any, Any]:
    """Return our state after ``place`` batches, and the batch that comes next. Both are read, not made up."""
    loader = fl.DataLoader(items, **{**options, "num_workers": 0}, seed=3)
    batches = iter(loader)
    for _ in range(place):
        next(batches)
    state = loader.state_dict()
    return state, np.array(next(batches))


def started(items: Indices, options: dict[str, Any], state: Any, expected: Any) -> float:
    """Seconds from the constructor to the first batch, which must be the right one."""
    began = time.perf_counter()
    loader = fl.DataLoader(items, **options, seed=3)
    if state is not None:
        loader.load_state_dict(state)
    batches = iter(loader)
    batch = next(batches)
    took = time.perf_counter() - began
    if expected is not None and not np.array_equal(batch, expected):
        raise RuntimeError("the batch behind the state is not the one that came behind it before")
    del batches, loader
    return took


def read_to(items: Indices, options: dict[str, Any], place: int) -> Callable[[], float]:
    """torch's way: read and throw away."""

    def turn() -> float:
        began = time.perf_counter()
        batches = iter(TORCH(items, **options))
        for _ in range(place + 1):
            next(batches)
        return time.perf_counter() - began

    return turn


def stateful(items: Indices, options: dict[str, Any], place: int) -> Callable[[], float]:
    """torchdata's way: its state, read there once."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(items, **options)
    batches = iter(loader)
    for _ in range(place):
        next(batches)
    state = loader.state_dict()

    def turn() -> float:
        began = time.perf_counter()
        again = StatefulDataLoader(items, **options)
        again.load_state_dict(state)
        next(iter(again))
        return time.perf_counter() - began

    return turn
