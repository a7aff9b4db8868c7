"""How long after its constructor does a `DataLoader` with two workers give its first batch, and after `iter` later on?

Peer: torch's `DataLoader` with the same start method. Unit: milliseconds on the wall. Measured: fresh loaders, one
after the other, in a process that has imported torch. Items and batches are those of `loader_python`, of which two
workers make one in 15 ms. Later epochs are those of one loader, each read to its end. With forkserver and spawn a
worker has to import torch, unless the server did. As loaders of one process share a server, each of these is in its own
process, with a second loader next to the first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Answer, Stage
from benchmarks.loader_python import BATCH, Images
from benchmarks.loaders import LOADERS, alternated, loops_for, sooner


def run(stage: Stage) -> list[Answer]:
    """By start method."""
    loops = loops_for(0.24e-3)
    items = Images(BATCH * 40, loops)
    ours, peer = LOADERS
    answers = []
    said = alternated(
        {name: lambda make=make: first(make, items, "fork") for name, make in LOADERS.items()},  # type: ignore[misc]
        stage.rounds(9),
    )
    answers.append(sooner(said, ours, peer, "first batch, 2 workers, fork", at_most=0.8))
    for persistent in (False, True):
        said = {name: [] for name in LOADERS}
        for _ in range(stage.rounds(5)):
            for name, make in LOADERS.items():
                said[name] += later(make, items, persistent)
        question = f"first batch of a later epoch, 2 {'persistent ' if persistent else ''}workers, fork"
        answers.append(sooner(said, ours, peer, question, at_most=1.0))
    for method, target in (("forkserver", 0.6), ("spawn", None)):
        pairs = {name: [elsewhere(name, loops, method) for _ in range(stage.rounds(5))] for name in LOADERS}
        for place, of in enumerate(("first batch", "first batch of a second loader")):
            said = {name: [pair[place] for pair in found] for name, found in pairs.items()}
            answers.append(sooner(said, ours, peer, f"{of}, 2 workers, {method}", at_most=target))
    return answers


def first(make: Callable[..., Any], items: Images, method: str) -> float:
    """Seconds to the first batch of a fresh loader, which is done away with afterwards."""
    began = time.perf_counter()
    loader = make(items, batch_size=BATCH, num_workers=2, multiprocessing_context=method)
    batches = iter(loader)
    next(batches)
    took = time.perf_counter() - began
    del batches, loader
    time.sleep(0.3)  # it ends completely before the next contender's turn
    return took


def later(make: Callable[..., Any], items: Images, persistent: bool) -> list[float]:
    """Seconds from ``iter`` to the first batch, of three epochs after the first."""
    few = torch.utils.data.Subset(items, range(2 * BATCH))
    loader = make(few, batch_size=BATCH, num_workers=2, multiprocessing_context="fork", persistent_workers=persistent)
    took = []
    for _ in range(4):
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        took.append(time.perf_counter() - began)
        list(batches)
    return took[1:]


def elsewhere(name: str, loops: int, method: str) -> list[float]:
    """Two loaders, one after the other, in a fresh process."""
    root = Path(__file__).resolve().parents[1]
    said = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader_first_batch", name, str(loops), method],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [float(seconds) for seconds in json.loads(said.stdout)]


if __name__ == "__main__":
    _name, _loops, _method = sys.argv[1:]
    _items = Images(BATCH * 40, int(_loops))
    print(json.dumps([first(LOADERS[_name], _items, _method) for _ in range(2)]))
