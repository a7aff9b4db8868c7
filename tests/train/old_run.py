"""The run of which tests/fixtures/checkpoints-0.1 holds a checkpoint, written by feedline 0.1.

python -m tests.train.old_run FOLDER, with that version installed, wrote it. Everything that has a state is in it.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch

import feedline as fl
from feedline.train import Adam, Evaluation, GrowMinibatch, ReduceOnPlateau, Saving, Schedule, Trainer, TrainingSession


class Net(torch.nn.Module):
    """Tied weights, buffers, and draws from torch's generator."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.tied = torch.nn.Linear(3, 3, bias=False)
        self.tied.weight = self.body.weight

    def forward(self, x):
        return self.tied(torch.nn.functional.dropout(self.norm(self.body(x)), 0.2, self.training))


def data():
    x = (np.arange(180, dtype="f4").reshape(60, 3) * 37 % 101) / 50 - 1
    return {"x": x, "y": x.argmax(1)}


def old_run(folder=None, stop_after=None):
    """Return the session; it raises RuntimeError after ``stop_after`` updates."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = Net()
    with torch.no_grad():  # initial values independent of torch's version
        model.body.weight.copy_(torch.tensor([[0.5, -0.1, 0.2], [0.0, 0.4, -0.3], [-0.2, 0.1, 0.6]]))
        model.body.bias.zero_()
    held_out = fl.MinibatchSource(fl.ArrayDeserializer(**data()), shuffle=False, max_sweeps=1)
    trainer = Trainer(
        model,
        lambda output, minibatch: torch.nn.functional.cross_entropy(output, minibatch["y"].torch(), reduction="none"),
        lambda output, minibatch: (output.argmax(1) != minibatch["y"].torch()).float(),
        Adam(model.named_parameters(), Schedule([0.02, 0.01]), momentum=0.9),
        forward=lambda model, minibatch: model(minibatch["x"].torch()),
    )
    return TrainingSession(
        trainer,
        fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=7, max_sweeps=4),
        12,
        progress=fl.samples(50),
        saving=None if folder is None else Saving(folder, every=fl.minibatches(4)),
        validation=Evaluation(held_out, every=fl.minibatches(3), size=60),
        epoch=fl.sweeps(1),
        controllers=[ReduceOnPlateau(patience=0), GrowMinibatch(limit=4)],
        reporters=[] if stop_after is None else [Stops(stop_after)],
    )


class Stops:
    """Ends a run the hard way after so many updates."""

    def __init__(self, updates):
        self.left = updates

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("stopped")

    def __getattr__(self, name):
        return lambda *arguments: None


if __name__ == "__main__":
    try:
        old_run(sys.argv[1], 10).run()
    except RuntimeError as error:
        print(error)
