"""What do workers of Ray lose against worker processes, on one machine?

Peer: our own local workers (`workers="process"`), as many. Unit: samples a second on the wall. The ratio is of CPU time
a batch, in this process and all that it started, Ray's included: on a busy machine Ray's processes, which are a session
of their own, get more of the cores than others, so that the wall flatters them. Measured: 0.24 ms of Python work a
sample that returns (3, 64, 64) uint8, 64 a batch, 2 workers, in turns. Ray is a private instance, as a program gets
that has none. A second question has batches of 4, which take a millisecond, so that many travel together.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.loader_python import Images
from benchmarks.loaders import endless, loops_for
from feedline.interop.ray_supervisor import descendants

WORKERS = 2
SIZES = {64: 160, 4: 1600}
"""Batches of a turn, by their size."""
#: More batches than Ray's workers make ahead.
LEAD = 160
TICKS = os.sysconf("SC_CLK_TCK")


def run(stage: Stage) -> list[Answer]:
    """Rate for each size."""
    os.environ["RAY_ADDRESS"] = "local"  # never somebody's cluster
    loops = loops_for(0.24e-3)
    return [_rate(stage, loops, size, batches) for size, batches in SIZES.items()]


def _rate(stage: Stage, loops: int, size: int, batches: int) -> Answer:
    batches = batches // 4 if stage.quick else batches
    items = Images(size * batches, loops)
    options: dict[str, Any] = {"batch_size": size, "num_workers": WORKERS}
    loaders = {kind: fl.DataLoader(items, workers=kind, **options) for kind in ("process", "ray")}
    turns = {kind: _turn(loader, batches) for kind, loader in loaders.items()}
    said: dict[str, list[tuple[float, float]]] = {kind: [] for kind in turns}
    for number in range(-1, stage.rounds(5)):
        for kind in list(turns)[:: 1 if number % 2 else -1]:
            took = turns[kind]()
            if number >= 0:
                said[kind].append(took)
    for loader in loaders.values():
        loader.close()
    wall, cpu = ({kind: [took[i] for took in each] for kind, each in said.items()} for i in (0, 1))
    ratios, walls = ([a / b for a, b in zip(each["process"], each["ray"], strict=True)] for each in (cpu, wall))
    return Answer(
        question=f"0.24 ms of Python a sample, {size} a batch, {WORKERS} actors on this machine",
        unit="samples/s",
        ours=size / statistics.median(wall["ray"]),
        peer="our local workers",
        peer_value=size / statistics.median(wall["process"]),
        ratio=statistics.median(ratios),
        target=Target("ratio", ">=", 0.8) if size == 64 else None,
        spread=spread(ratios),
        note=f"on the wall {statistics.median(walls):.2f}",
        detail={"wall_ms": _ms(wall), "cpu_ms": _ms(cpu)},
    )


def _turn(loader: Any, batches: int) -> Callable[[], tuple[float, float]]:
    """Return a contender for `alternated`. It returns the seconds of the wall and of CPU that a batch took."""
    source = endless(loader)

    def turn() -> tuple[float, float]:
        for _ in range(LEAD):
            next(source)
        began, spent = time.perf_counter(), _cpu_seconds()
        for _ in range(batches):
            next(source)
        return (time.perf_counter() - began) / batches, (_cpu_seconds() - spent) / batches

    return turn


def _cpu_seconds() -> float:
    """CPU time of this process and its descendants so far."""
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def _ms(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {kind: [1e3 * value for value in values] for kind, values in seconds.items()}
