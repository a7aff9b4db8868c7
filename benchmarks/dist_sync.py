"""What does agreement between processes cost: all tensors of a ResNet-50 through a `dist_sync` store?

2 and 4 processes on loopback push gradients and pull the sums, 161 tensors of 25.6 million floats, in one `pushpull`.
Peer: one `torch.distributed.all_reduce` of one flat tensor of the same bytes by gloo, in the same processes, in turns
with ours; it copies nothing and checks nothing. Unit: milliseconds a round. Measured: CPU time of worker 0's process,
torch on one thread; wall time beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race, spread
from benchmarks.learners import shapes


def run(stage: Stage) -> list[Answer]:
    """2 and 4 workers."""
    return [workers(stage, count) for count in (2, 4)]


def workers(stage: Stage, count: int) -> Answer:
    """So many processes, and what worker 0 saw."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    receiving, sending = context.Pipe(duplex=False)
    width, rounds = (8 if stage.quick else 64), stage.rounds(15)
    processes = [
        context.Process(target=worker, args=(rank, count, port, width, rounds, sending if rank == 0 else None))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    sending.close()
    try:
        ran: Race = receiving.recv()
    finally:
        for process in processes:
            process.join(60)
            process.kill()
    milliseconds = {name: [1e3 / rate for rate in ran.rates(name)] for name in ("ours", "all_reduce")}
    return Answer(
        question=f"161 tensors, pushpull, {count} processes",
        unit="ms",
        ours=1e3 / ran.rate("ours"),
        peer="flat gloo all_reduce",
        peer_value=1e3 / ran.rate("all_reduce"),
        ratio=ran.ratio("ours", "all_reduce"),
        target=Target("ratio", ">=", 1 / 1.15, "1/1.15"),
        spread=ran.spread("ours"),
        detail={
            "ms": milliseconds,
            "wall_ms": {name: [1e3 / rate for rate in ran.rates(name, "wall")] for name in milliseconds},
            "ratio_spread": spread(ran.ratios("ours", "all_reduce")),
        },
    )


def worker(rank: int, count: int, port: int, width: int, rounds: int, told: Any) -> None:
    """One process: races both, in step with the others."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(count)}
    torch.distributed.init_process_group("gloo")
    from feedline import kvstore

    tensors = [torch.randn(shape) for shape in shapes(width)]
    outs = [torch.empty_like(tensor) for tensor in tensors]
    keys = list(range(len(tensors)))
    flat = torch.zeros(sum(tensor.numel() for tensor in tensors))  # zeros: sums of sums would leave the range
    store = kvstore.create("dist_sync")
    store.init(keys, tensors)

    def ours() -> float:
        store.pushpull(keys, tensors, outs)
        return 1

    def all_reduce() -> float:
        torch.distributed.all_reduce(flat)
        return 1

    ran = race({"ours": ours, "all_reduce": all_reduce}, rounds, clock="process", warm_up=2)
    store.close()
    torch.distributed.destroy_process_group()
    if told is not None:
        told.send(ran)
