"""One rank of a job: trains data-parallel in a session and writes down how it ended. For test_data_parallel.

python -m tests.train.ranks_program '{"rank": 0, "world": 2, ...}'
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
from pathlib import Path

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
    """Ctrl-C at one rank, after so many updates."""

    def __init__(self, at):
        self.left = at

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)

    def __getattr__(self, name):
        return lambda *arguments: None


class Watches:
    """Writes down the sums that reporters are told."""

    def __init__(self):
        self.seen = []

    def on_update(self, run, summary):
        self.seen.append([summary.samples, round(float(summary.loss_sum), 4), float(summary.metric_sum)])

    def on_test(self, run, what, result):
        self.seen.append([what, result.summary.samples, result.minibatches, float(result.summary.metric_sum)])

    def __getattr__(self, name):
        return lambda *arguments: None


def main(job):
    torch.set_num_threads(1)
    if job["world"] > 1:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{job['meet']}",
            rank=job["rank"],
            world_size=job["world"],
            timeout=datetime.timedelta(seconds=60),
        )
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 60)
    x = [rng.normal(size=(n, 6)).astype("f4") for n in lengths]
    y = [sequence[:, :3].argmax(1) for sequence in x]
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=y), seed=3, max_sweeps=2)
    held_out = fl.MinibatchSource(
        fl.ArrayDeserializer(x=x[:9], y=y[:9]), shuffle=False, max_sweeps=1, partition=job.get("held_out")
    )
    torch.manual_seed(5)
    model = Model(job["dropout"])
    torch.manual_seed(100 + job["rank"])  # dropout differs by rank, as it should
    learner = MomentumSGD(model.parameters(), Schedule([0.2, 0.1], epoch_size=200), momentum=0.5, l2=0.01)
    trainer = Trainer(model, losses, wrong, data_parallel(learner) if job["world"] > 1 else learner)
    watch = Watches()
    run = TrainingSession(
        trainer,
        source,
        job["size"],
        reporters=[watch] + ([Interrupts(job["interrupt"])] if job.get("interrupt") else []),
        saving=Saving(job["folder"]) if "folder" in job else None,
        validation=Evaluation(held_out, every=fl.sweeps(1), size=job["size"]),
        epoch=fl.sweeps(1) if "best" in job else None,
        controllers=[KeepBest(job["best"])] if "best" in job else [],
    ).run()
    result = {
        "parameters": {name: tensor.tolist() for name, tensor in model.state_dict().items()},
        "samples": run.samples,
        "interrupted": run.interrupted,
        "seen": watch.seen,
        "best": KeepBest(job["best"]).restore(model) if "best" in job else None,
    }
    Path(job["out"]).write_text(json.dumps(result))
    if job["world"] > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
