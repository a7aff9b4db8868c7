"""Replica groups of torchft that die and join, and learn what one process would: every sequence once.

    pip install torchft-nightly
    python examples/torchft_replicas.py

Three replicas train on this machine. One is killed in the middle of a step and started again. The others do not stop:
the step is delivered again to those that are left, and the new replica takes over the state of another, with the
position of the data. Every replica ends after the last minibatch, at the same step. The parent compares the sequences
of each step, and the weights, with a run of one process.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.distributed import ReduceOp, TCPStore

import feedline as fl

ITEMS, SIZE, REPLICAS = 3000, 30, 3
THERE_BY, DIES_AT, BACK_BY = 5, 20, 60  # steps


class Learner:
    """A model and its data: what a replica that joins takes over from another one."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(ITEMS, 4)).astype("float32")
        corpus = fl.ArrayDeserializer(x=x, y=x.sum(axis=1))
        self.source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1, partition=(0, 1))
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.steps: list[list[int]] = []  # the sequences of each step

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "data": self.source.state_dict(),
            "steps": list(self.steps),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.source.load_state_dict(state["data"])
        self.steps = list(state["steps"])

    def gradients(self, minibatch: fl.Minibatch) -> list[torch.Tensor]:
        """Compute this share's part of the gradients, and count its sequences: sums over all replicas are wanted."""
        errors = self.model(minibatch["x"].torch())[:, 0] - minibatch["y"].torch()
        self.optimizer.zero_grad()
        (errors.square().sum() / minibatch.global_samples).backward()
        taken = torch.zeros(ITEMS)
        taken[torch.from_numpy(minibatch.ids)] = 1
        return [taken, *(p.grad for p in self.model.parameters() if p.grad is not None)]

    def update(self, taken: torch.Tensor) -> None:
        self.optimizer.step()
        self.steps.append(taken.nonzero()[:, 0].tolist())

    def result(self) -> tuple[list[list[int]], list[float]]:
        return self.steps, torch.cat([p.detach().flatten() for p in self.model.parameters()]).tolist()


def replica(number: int, lighthouse: str, dies_at: int | None, seconds: float, parent: Connection) -> None:
    """Train as one replica group, of one rank."""
    from torchft import Manager, ProcessGroupGloo

    logging.getLogger("torchft").setLevel(logging.CRITICAL)  # else it logs the traceback of each step that is lost
    torch.set_num_threads(1)
    learner = Learner()
    source = learner.source
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        state_dict=learner.state_dict,
        load_state_dict=learner.load_state_dict,
        min_replica_size=1,
        use_async_quorum=False,  # the number of replicas decides what is read, so it is needed first
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        hostname="localhost",
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{number}",
    )
    while True:
        manager.start_quorum()  # a replica that is behind loads the state of another here
        if manager.current_step() in (THERE_BY, BACK_BY) and manager.num_participants() < REPLICAS:
            time.sleep(0.1)  # on a slow machine the others would end before one is there, or back
            continue
        before = source.state_dict()
        source.repartition((manager.participating_rank(), manager.num_participants()))
        minibatch = source.next_minibatch(SIZE)
        if not minibatch:  # at the same step for all: none waits for one that has left
            manager.allreduce(torch.zeros(1)).wait()  # until the others have the state, too
            break
        parent.send((manager.current_step(), manager.num_participants()))
        if manager.current_step() == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(seconds)
        taken, *gradients = learner.gradients(minibatch)
        for tensor in (taken, *gradients):
            manager.allreduce(tensor, reduce_op=ReduceOp.SUM).wait()
        if manager.should_commit():
            learner.update(taken)
        else:
            source.load_state_dict(before)  # delivered again, to the replicas of the next quorum
    parent.send(learner.result())
    manager.shutdown(wait=False)


def alone() -> tuple[list[list[int]], list[float]]:
    """Train in this process alone."""
    learner = Learner()
    while minibatch := learner.source.next_minibatch(SIZE):
        taken, *_ = learner.gradients(minibatch)
        learner.update(taken)
    return learner.result()


class Replica:
    """A process of a replica, and what it has reported."""

    def __init__(self, number: int, lighthouse: str, dies_at: int | None, seconds: float) -> None:
        context = multiprocessing.get_context("forkserver")
        self._reading, writing = context.Pipe(duplex=False)
        self.process = context.Process(target=replica, args=(number, lighthouse, dies_at, seconds, writing))
        self.process.start()
        writing.close()
        self.reports: list[Any] = []

    def wait(self) -> int | None:
        """Collect reports up to the end of the process, and return how it ended."""
        try:
            while True:
                self.reports.append(self._reading.recv())
        except EOFError:
            self.process.join()
            return self.process.exitcode


def main(arguments: Sequence[str] | None = None) -> None:
    """Run three replicas, one of which is killed and started again, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="length of a step")
    options = parser.parse_args(arguments)
    os.environ.setdefault("RUST_LOG", "error")
    from torchft.coordination import LighthouseServer

    multiprocessing.set_forkserver_preload(["feedline", "torch", "torchft"])
    # One that does not answer for a second is left out of the next step.
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    address = lighthouse.address()
    replicas = [Replica(i, address, DIES_AT if i == 1 else None, options.seconds) for i in range(REPLICAS)]
    ended = replicas[1].wait()
    if ended != -signal.SIGKILL:
        raise SystemExit(f"expected replica 1 to be killed, got exit code {ended}")
    print(f"replica 1 was killed in step {DIES_AT}, and is started again", flush=True)
    replicas[1] = Replica(1, address, None, options.seconds)
    codes = [each.wait() for each in replicas]
    lighthouse.shutdown()
    if any(codes):
        raise SystemExit(f"expected all replicas to end by themselves, got {codes}")

    steps, weights = alone()
    for number, each in enumerate(replicas):
        *reports, (got, learned) = each.reports
        if got != [sorted(ids) for ids in steps]:
            raise SystemExit(f"replica {number} learned from other sequences")
        np.testing.assert_allclose(learned, weights, rtol=1e-3, atol=1e-5)
        counts = [count for _, count in reports]
        print(f"replica {number}: {len(reports)} minibatches, among {min(counts)} to {max(counts)} replicas")
    print(f"{len(steps)} steps, {ITEMS} sequences: each once, and the weights of one process")


if __name__ == "__main__":
    main()
