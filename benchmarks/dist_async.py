"""What does a step of ``dist_async`` cost: 161 tensors of a ResNet-50, two workers, two servers, SGD in the servers?

Peer: the same bytes over Ray alone. Each worker puts one flat buffer for each of two actors into Ray's memory, the
actors get it and answer with as many bytes, the worker gets those and copies them to private memory, as Ray's buffers
are read-only. There is no update. Unit: milliseconds a step of the slower worker. Measured: wall time, as
eight processes work on a step. Both workers begin each turn together.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.learners import shapes
from feedline import kvstore

WORKERS = SERVERS = 2
STEPS = 10


def run(stage: Stage) -> list[Answer]:
    """Start a Ray and two workers, and read their times."""
    width, rounds = (8 if stage.quick else 64), stage.rounds(8)
    with kvstore.AsyncCluster(WORKERS, SERVERS, memory=2 << 30) as cluster:
        command = [sys.executable, "-m", "benchmarks.dist_async", str(width), str(rounds)]
        environment = {**os.environ, **cluster.environment()}
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(WORKERS)]
        seen = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in workers]
    # A step of the job has ended when the slower worker's has.
    slower = {name: [max(pair) for pair in zip(*(one[name] for one in seen), strict=True)] for name in seen[0]}
    numbers = sum(math.prod(shape) for shape in shapes(width))
    what = f"pushpull of 161 tensors, {numbers / 1e6:.1f} M floats, 2 workers, 2 servers"
    copied = _beside(what, slower, "copied", "the same bytes over Ray", Target("ratio", ">=", 1 / 1.5, "1/1.5"))
    bare = _beside(f"{what}, not copied by the peer", slower, "bare", "the same bytes, left in Ray", None)
    push = Answer(
        question=f"push of the same, {WORKERS} workers",
        unit="ms",
        ours=statistics.median(slower["push"]),
        spread=spread(slower["push"]),
        note="not waited for: four of them may be on their way",
    )
    return [copied, bare, push]


def _beside(what: str, slower: Mapping[str, list[float]], peer: str, called: str, target: Target | None) -> Answer:
    ratios = [theirs / ours for ours, theirs in zip(slower["ours"], slower[peer], strict=True)]
    return Answer(
        question=what,
        unit="ms",
        ours=statistics.median(slower["ours"]),
        peer=called,
        peer_value=statistics.median(slower[peer]),
        ratio=statistics.median(ratios),
        target=target,
        spread=spread(slower["ours"]),
        note="ours updates, too",
        detail={"ms": {name: slower[name] for name in ("ours", peer)}, "ratio_spread": spread(ratios)},
    )


class Echo:
    """An actor that takes bytes and returns as many."""

    def __init__(self, size: int) -> None:
        self._own = np.ones(size, np.uint8)

    def swap(self, given: Any) -> Any:
        """Read the bytes, and answer with others."""
        assert given.nbytes == self._own.nbytes
        return self._own


def work(width: int, rounds: int) -> Mapping[str, list[float]]:
    """Run a worker, return milliseconds per step in each round."""
    import ray

    torch.manual_seed(0)
    torch.set_num_threads(1)
    gradients = [torch.randn(shape) for shape in shapes(width)]
    weights = [torch.randn_like(gradient) for gradient in gradients]
    store, keys = kvstore.create("dist_async"), list(range(len(gradients)))
    store.init(keys, weights)
    store.set_optimizer("sgd", learning_rate=1e-3)
    size = sum(gradient.nbytes for gradient in gradients) // SERVERS
    echoes = [
        ray.remote(Echo)
        .options(name=f"echo-{i}", namespace="benchmark", lifetime="detached", get_if_exists=True, num_cpus=0)
        .remote(size)
        for i in range(SERVERS)
    ]
    flat, out = np.ones(size, np.uint8), np.empty(size, np.uint8)

    def swapped() -> Any:
        return ray.get([actor.swap.remote(ray.put(flat)) for actor in echoes])

    def bare() -> None:
        assert all(answer.nbytes == size for answer in swapped())

    def copied() -> None:
        for answer in swapped():
            np.copyto(out, answer)

    contenders: dict[str, Callable[[], None]] = {
        "ours": lambda: store.pushpull(keys, gradients, weights),
        "copied": copied,
        "bare": bare,
        "push": lambda: store.push(keys, gradients),
    }
    seen: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-2, rounds):
        names = list(contenders)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            store.barrier()
            began = time.perf_counter()
            for _ in range(STEPS):
                contenders[name]()
            if number >= 0:
                seen[name].append(1e3 * (time.perf_counter() - began) / STEPS)
    store.barrier()
    store.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(work(int(sys.argv[1]), int(sys.argv[2]))))
