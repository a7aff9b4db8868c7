"""How long does another share take in mid-run, from `repartition` to the minibatch, compared with an ordinary one?

Limit: 1.5 times an ordinary minibatch. Unit: microseconds on the wall clock. Measured: shuffled rows of 784 floats from
a store, 256 in a global minibatch, by a source and by a `DataLoader`. The share changes at every sixth minibatch, after
five ordinary ones, whose median is its peer. Ratios are formed within such a turn. A step that is taken back (the state
from before it is loaded, and it is delivered again) is measured in the same way, without a limit: it lays out the
window in use again. With 4,096 rows, copies that were made ahead are of use to nobody: a note says what the first
minibatch then takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread

WIDTH, SIZE, LARGE, ORDINARY = 784, 256, 4096, 5


def run(stage: Stage) -> list[Answer]:
    """Measure a source and a loader, then a source that takes steps back."""
    rows = stage.size(200_000, 40_000)
    store = stage.data / "bench-repartition.store"
    fl.convert(fl.ArrayDeserializer(x=np.random.default_rng(8).random((rows, WIDTH), np.float32)), store)
    turns = 20 if stage.quick else 300
    answers = []
    for name, make in {"source": sourced, "DataLoader": loaded}.items():
        large = statistics.median(timed(*make(store, LARGE)[:2], turns // 4)[1]) * 1e6
        advance, repartition, _ = make(store, SIZE)
        note = f"{large:,.0f} us with {LARGE:,} rows, of which copies were made ahead for the share before"
        limit = Target("ratio", "<=", 1.5)
        answers.append(answer(f"another share of a {name}", *timed(advance, repartition, turns), limit, note))
    advance, _, take_back = sourced(store, SIZE)
    answers.append(answer("a step of a source taken back", *timed(advance, take_back, turns)))
    return answers


Step = Callable[[], Any]


def sourced(store: Path, size: int) -> tuple[Step, Step, Step]:
    """Return functions of a source that take the next minibatch, another share, and the last minibatch back."""
    source = fl.MinibatchSource(fl.StoreDeserializer(store), partition=(0, 2))
    before: list[Any] = [source.state_dict()]

    def advance() -> None:
        before[0] = source.state_dict()
        source.next_minibatch(size)["x"].torch()

    return advance, alternating(source.repartition), lambda: source.load_state_dict(before[0])


def loaded(store: Path, size: int) -> tuple[Step, Step, None]:
    """Return functions of a loader that take the next batch, and another share."""
    loader = fl.DataLoader(store, size // 2, shuffle=True, seed=0, partition=(0, 2))
    batches = iter(loader)

    def advance() -> None:
        nonlocal batches
        if next(batches, None) is None:
            batches = iter(loader)
            next(batches)

    return advance, alternating(loader.repartition), None


def alternating(repartition: Callable[[tuple[int, int]], None]) -> Step:
    """Return a function that takes the share of one rank and the other in turn."""
    rank = 0

    def change() -> None:
        nonlocal rank
        rank = 1 - rank
        repartition((rank, 2))

    return change


def timed(advance: Step, change: Step, turns: int) -> tuple[list[float], list[float]]:
    """Return the seconds of ordinary minibatches, a median per turn, and of those right after a change."""
    ordinary, changed = [], []
    for _ in range(ORDINARY):
        advance()
    for _ in range(turns):
        took = []
        for _ in range(ORDINARY):
            began = time.perf_counter()
            advance()
            took.append(time.perf_counter() - began)
        ordinary.append(statistics.median(took))
        began = time.perf_counter()
        change()
        advance()
        changed.append(time.perf_counter() - began)
    return ordinary, changed


def answer(
    question: str, ordinary: list[float], changed: list[float], target: Target | None = None, note: str = ""
) -> Answer:
    """Compare minibatches after a change with ordinary ones of the same turn."""
    ratios = [after / before for before, after in zip(ordinary, changed, strict=True)]
    return Answer(
        question=f"{question}, {SIZE} x {WIDTH} floats",
        unit="us",
        ours=statistics.median(changed) * 1e6,
        peer="an ordinary minibatch",
        peer_value=statistics.median(ordinary) * 1e6,
        ratio=statistics.median(ratios),
        target=target,
        spread=spread(ratios),
        detail={"ordinary_s": ordinary, "changed_s": changed},
        note=note,
    )
