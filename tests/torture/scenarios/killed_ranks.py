"""Ranks of a job that are killed, stopped and interrupted, in trainings and at stores."""

from __future__ import annotations

import datetime
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import feedline as fl
from feedline.collective import rendezvous
from feedline.train import Adam, MomentumSGD, Saving, Trainer, TrainingSession, data_parallel
from feedline.train.evaluation import Evaluation
from tests.torture import data, training
from tests.torture.case import Case
from tests.torture.interruption import Interrupter
from tests.torture.scenario import Scenario
from tests.torture.victims import Ended, Instant, Victim

TIMEOUT = 15.0
MANY = 45


class KilledRanks(Scenario):
    """A lost rank is soon an error at all others. Restarted, a job ends like an uninterrupted one."""

    name = "killed-ranks"
    asks = "do ranks end in words when one is lost, and go on to the same end?"
    seconds = 300.0
    # Where DistributedDataParallel of torch compiles.
    leaves = ("torchinductor_*",)

    def run(self, case: Case) -> None:
        kind = ("training", "store", "training", "by time")[case.number % 4]
        {"training": self._training, "store": self._store, "by time": self._by_time}[kind](case)

    def _training(self, case: Case) -> None:
        rng, corpus = case.rng, case.data / "few"
        world = rng.choice([2, 2, 3])
        expected = _results(case, "left alone", _job(case, world, train, case.folder / "whole", corpus))
        if expected is None:
            return
        if len({one["parameters"] for one in expected}) > 1:
            case.fail("silent", f"{world} ranks left alone end with different parameters")
        folder = case.folder / "run"
        for _ in range(rng.randint(1, 2)):
            lost = rng.randrange(world)
            signum = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
            instant = Instant(signum, rng.random() * 1.5)
            ends = _job(case, world, train, folder, corpus, lost=lost, instant=instant)
            what = f"rank {lost} of {world}, {instant}"
            case.tally("kills", int(ends[lost].hit))
            for rank, ended in enumerate(ends):
                if rank != lost and ended.error is not None and not ended.promised:
                    case.fail("foreign", f"{what}: rank {rank}: {ended.error}")
        again = _results(case, "going on", _job(case, world, train, folder, corpus))
        for rank, (one, other) in enumerate(zip(expected, again or [], strict=False)):
            if wrong := [key for key in ("parameters", "counts") if one[key] != other[key]]:
                case.fail("silent", f"rank {rank} of {world} began at {other['began']} and ends with other {wrong}")

    def _store(self, case: Case) -> None:
        rng = case.rng
        world = rng.choice([2, 3])
        if rng.random() < 0.5:
            # Either nothing changed, or the ranks end with an error: replicas never differ.
            ends = _job(case, world, push, rng.random())
            for rank, ended in enumerate(ends):
                if ended.error is not None and not ended.promised:
                    case.fail("foreign", f"interrupted at a store: rank {rank}: {ended.error}")
            finals = {tuple(ended.result) for ended in ends if ended.result is not None}
            case.tally("compared", len(finals))
            if finals - {(-float(world * MANY),)}:
                case.fail("silent", f"{world} ranks pushed {MANY} times, interrupted on the way, and hold {finals}")
            return
        lost = rng.randrange(world)
        instant = Instant(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]), rng.random() * 0.8)
        ends = _job(case, world, push, 0.0, lost=lost, instant=instant)
        case.tally("kills", int(ends[lost].hit))
        for rank, ended in enumerate(ends):
            if rank != lost and ended.error is not None and not ended.promised:
                case.fail("foreign", f"rank {lost} of {world}, {instant}: rank {rank}: {ended.error}")

    def _by_time(self, case: Case) -> None:
        """An ordinary learner over DistributedDataParallel, saved by the clock: all ranks save together, or none."""
        world, late = 2, case.rng.random() * 0.1
        ends = _job(case, world, train_plain, case.folder / "run", case.data / "few", late)
        results = _results(case, "saving by time over DistributedDataParallel", ends)
        if results and len({one["parameters"] for one in results}) > 1:
            case.fail("silent", "replicas of DistributedDataParallel end with different parameters")


def _job(case: Case, world: int, program: Any, *arguments: Any, lost: int = -1, instant: Any = None) -> list[Ended]:
    """Return how the ranks of a job end. ``lost`` is interfered with at the instant."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    case.doing(f"{program.__name__} with {world} ranks, {'' if instant is None else f'rank {lost}: {instant}'}")
    ranks = [
        Victim(case, program, rank, world, port, *arguments, instant=instant if rank == lost else None)
        for rank in range(world)
    ]
    stopped = instant is not None and instant.signum == signal.SIGSTOP
    if not stopped:
        return _in_time(ranks, [lost])
    # One that is stopped never ends by itself: the others have to, and then it may.
    time.sleep(instant.seconds)
    ranks[lost].signal(signal.SIGSTOP)
    others = [ranks[rank].wait(2 * TIMEOUT + 45) for rank in range(world) if rank != lost]
    ranks[lost].signal(signal.SIGKILL)
    ranks[lost].signal(signal.SIGCONT)
    ended = ranks[lost].wait(10)
    return [*others[:lost], ended, *others[lost:]]


def _in_time(ranks: list[Victim], first: list[int]) -> list[Ended]:
    order = [*[r for r in first if r >= 0], *[r for r in range(len(ranks)) if r not in first]]
    found = {rank: ranks[rank].wait(2 * TIMEOUT + 45) for rank in order}
    return [found[rank] for rank in range(len(ranks))]


def _results(case: Case, what: str, ends: list[Ended]) -> list[Any] | None:
    """Return the results of the ranks if all returned."""
    for rank, ended in enumerate(ends):
        if ended.error is not None:
            case.fail("lost" if ended.promised else "foreign", f"{what}: rank {rank}: {ended.error}")
    return None if any(ended.result is None for ended in ends) else [ended.result for ended in ends]


# ---- code of ranks --------------------------------------------------------------------------------------


def _meet(rank: int, world: int, port: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    rendezvous.START_S = TIMEOUT  # one that was killed first never starts


def _init() -> None:
    """The program's own group. torch reports if it cannot be created without a lost rank, but not if one is stopped."""
    span = datetime.timedelta(seconds=2 * TIMEOUT)
    try:
        rendezvous.request(lambda: torch.distributed.init_process_group("gloo", timeout=span), 2 * TIMEOUT)
    except RuntimeError as error:
        raise fl.StoreError(f"torch.distributed: {error}") from error


def train(rank: int, world: int, port: int, folder: Path, corpus: Path) -> dict[str, Any]:
    """Data-parallel, in a session with checkpoints."""
    _meet(rank, world, port)
    _init()
    torch.manual_seed(7)
    model = training.Model(alike=True)
    torch.manual_seed(100 + rank)
    random.seed(200 + rank)
    np.random.seed(300 + rank)
    rules = [
        Adam(model.body.named_parameters(), 0.02, momentum=0.9),
        MomentumSGD([*model.head.named_parameters(), ("tied.bias", model.tied.bias)], 0.05, momentum=0.9),
    ]
    learners = [data_parallel(rule, timeout=TIMEOUT) for rule in rules]
    source = fl.MinibatchSource(data.open_store(corpus, streams=["x", "y"]), seed=3, max_sweeps=5)
    held_out = fl.MinibatchSource(data.open_store(corpus, streams=["x", "y"]), shuffle=False, max_sweeps=1)
    watch = training.Watch()
    run = TrainingSession(
        Trainer(model, training.losses, training.wrong, learners),
        source,
        9,
        reporters=[watch],
        saving=Saving(folder, every=fl.minibatches(3)),
        validation=Evaluation(held_out, every=fl.minibatches(8)),
    ).run()
    found = {
        "parameters": training.print_of(model),
        "counts": [run.samples, run.minibatches, run.sweeps],
        "began": watch.began,
    }
    torch.distributed.destroy_process_group()
    return found


def train_plain(rank: int, world: int, port: int, folder: Path, corpus: Path, late: float) -> dict[str, Any]:
    """DistributedDataParallel with an ordinary learner. Saves by the clock, and one rank is late now and then."""
    _meet(rank, world, port)
    _init()
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, data.CLASSES))
    source = fl.MinibatchSource(data.open_store(corpus, streams=["x", "y"]), seed=3, max_sweeps=8)

    class Late(training.Watch):
        def on_update(self, run: Any, summary: Any) -> None:
            time.sleep(late if rank == 1 and run.minibatches % 9 == 4 else 0.002)

    trainer = Trainer(
        model,
        training.losses,
        None,
        MomentumSGD(model.parameters(), 0.02, momentum=0.5),
        forward=lambda model, minibatch: model(minibatch["x"].torch() / 60),
    )
    run = TrainingSession(trainer, source, 12, reporters=[Late()], saving=Saving(folder, every=0.05)).run()
    found = {"parameters": training.print_of(model), "counts": [run.samples]}
    torch.distributed.destroy_process_group()
    return found


def push(rank: int, world: int, port: int, luck: float) -> list[float]:
    """Pushes to a store, and pulls, interrupted now and then while it waits for sums, and continues."""
    _meet(rank, world, port)
    rng = random.Random(f"{luck}/{rank}")
    interrupter = Interrupter()
    out = torch.empty(20)
    with fl.kvstore.create("dist_sync", timeout=TIMEOUT) as store:
        store.init("w", torch.zeros(20))
        store.set_optimizer("sgd", learning_rate=1.0)
        for _ in range(MANY):
            store.push("w", torch.ones(20))
            while luck and interrupter.call(lambda: store.pull("w", out), rng.random() * 0.003)[1]:
                pass
            time.sleep(0.0 if luck else 0.01)
        store.barrier()
        store.pull("w", out)
    return [float(v) for v in out.unique().tolist()]
