"""What does it cost to push and pull key by key, as old scripts do: all tensors of a ResNet-50, 2 processes?

Peer: the same tensors in one ``pushpull`` of the same store, alternating with ours in the same processes. Unit:
milliseconds a round. Measured: wall time of worker 0, torch on one thread.
"""

from __future__ import annotations

from benchmarks.harness import Answer, Race, Stage, Target, race
from benchmarks.jobs import answer, of_a_resnet, told_by_first


def run(stage: Stage) -> list[Answer]:
    """2 workers."""
    ran: Race = told_by_first(worker, 2, 8 if stage.quick else 64, stage.rounds(15))
    question, target = "161 tensors, push and pull key by key, 2 processes", Target("ratio", ">=", 1 / 1.3, "1/1.3")
    return [answer(ran, "ours", "one call", question, target, "one pushpull")]


def worker(rank: int, width: int, rounds: int) -> Race:
    """One process: races both, in step with the others."""
    from feedline import kvstore

    keys, tensors, outs = of_a_resnet(width)
    with kvstore.create("dist_sync") as store:
        for key, tensor in zip(keys, tensors, strict=True):
            store.init(key, tensor)

        def ours() -> float:
            for key, tensor in zip(keys, tensors, strict=True):
                store.push(key, tensor, priority=-key)
            for key, out in zip(keys, outs, strict=True):
                store.pull(key, out, priority=-key)
            return 1

        def one_call() -> float:
            store.pushpull(keys, tensors, outs)
            return 1

        return race({"ours": ours, "one call": one_call}, rounds, clock="wall", warm_up=2)
