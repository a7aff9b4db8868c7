"""One rank of a job: trains data-parallel in a session and reports its result. For test_data_parallel."""

from __future__ import annotations

import os
import signal

import numpy as np
import torch

import feedline as fl
from feedline.train import Evaluation, KeepBest, MomentumSGD, Saving, Schedule, Trainer, TrainingSession, data_parallel


class Model(torch.nn.Module):
    """Scores of sequences of samples, with an idle part that never gets a gradient, and so never decays."""

    def __init__(self, dropout: float):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Dropout(dropout))
        self.head = torch.nn.Linear(12, 3)
        self.idle = torch.nn.Linear(2, 2)

    def forward(self, minibatch):
        return self.head(self.body(minibatch["x"].torch(layout="packed")))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(layout="packed"), reduction="none")


def wrong(output, minibatch):
    return (output.argmax(1) != minibatch["y"].torch(layout="packed")).float()


class Interrupts:
    """Ctrl-C at one rank, after a number of updates."""

    def __init__(self, at):
        self.left = at

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def __getattr__(self, name):
        return lambda *arguments: None


class Watches:
    """A reporter that records sums."""

    def __init__(self):
        self.seen = []

    def on_update(self, run, summary):
        self.seen.append([summary.samples, round(float(summary.loss_sum), 4), float(summary.metric_sum)])

    def on_test(self, run, what, result):
        self.seen.append([what, result.summary.samples, result.minibatches, float(result.summary.metric_sum)])

    def __getattr__(self, name):
        return lambda *arguments: None


def main(rank, world, size=11, dropout=0.0, folder=None, interrupt=None, interrupted_rank=0, held_out=None, best=None):
    """Return the final state of this rank."""
    if world > 1:
        torch.distributed.init_process_group("gloo")
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 60)
    x = [rng.normal(size=(n, 6)).astype("f4") for n in lengths]
    y = [sequence[:, :3].argmax(1) for sequence in x]
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=y), seed=3, max_sweeps=2)
    testing = fl.MinibatchSource(
        fl.ArrayDeserializer(x=x[:9], y=y[:9]), shuffle=False, max_sweeps=1, partition=held_out
    )
    torch.manual_seed(5)
    model = Model(dropout)
    torch.manual_seed(100 + rank)  # dropout differs by rank, as it should
    learner = MomentumSGD(model.parameters(), Schedule([0.2, 0.1], epoch_size=200), momentum=0.5, l2=0.01)
    trainer = Trainer(model, losses, wrong, data_parallel(learner) if world > 1 else learner)
    watch = Watches()
    run = TrainingSession(
        trainer,
        source,
        size,
        reporters=[watch, *([Interrupts(interrupt)] if interrupt and rank == interrupted_rank else [])],
        saving=None if folder is None else Saving(folder),
        validation=Evaluation(testing, every=fl.sweeps(1), size=size),
        epoch=None if best is None else fl.sweeps(1),
        controllers=[] if best is None else [KeepBest(best)],
    ).run()
    result = {
        "parameters": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "samples": run.samples,
        "interrupted": run.interrupted,
        "seen": watch.seen,
        "best": None if best is None else KeepBest(best).restore(model),
    }
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    return result
