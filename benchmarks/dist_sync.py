"""What does agreement between processes cost: all tensors of a ResNet-50 through a `dist_sync` store?

2 and 4 processes on loopback push gradients and pull the sums, 161 tensors of 25.6 million floats, in one `pushpull`.
Peer: one `torch.distributed.all_reduce` of one flat tensor of the same bytes by gloo, in the same processes,
alternating with ours. It copies nothing and checks nothing. Unit: milliseconds a round. Measured: CPU time of worker
0's process, torch on one thread. Wall time is given, too.
"""

from __future__ import annotations

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race
from benchmarks.jobs import answer, of_a_resnet, told_by_first


def run(stage: Stage) -> list[Answer]:
    """2 and 4 workers."""
    answers = []
    for count in (2, 4):
        ran: Race = told_by_first(worker, count, 8 if stage.quick else 64, stage.rounds(15))
        question, target = f"161 tensors, pushpull, {count} processes", Target("ratio", ">=", 1 / 1.15, "1/1.15")
        answers.append(answer(ran, "ours", "all_reduce", question, target, "flat gloo all_reduce"))
    return answers


def worker(rank: int, width: int, rounds: int) -> Race:
    """One process: race both, in step with the others."""
    from feedline import kvstore

    keys, tensors, outs = of_a_resnet(width)
    flat = torch.zeros(sum(tensor.numel() for tensor in tensors))  # zeros: sums of sums would leave the range
    with kvstore.create("dist_sync") as store:
        store.init(keys, tensors)

        def ours() -> float:
            store.pushpull(keys, tensors, outs)
            return 1

        def all_reduce() -> float:
            torch.distributed.all_reduce(flat)
            return 1

        return race({"ours": ours, "all_reduce": all_reduce}, rounds, clock="process", warm_up=2)
