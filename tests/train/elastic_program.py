"""A program that torchrun starts, for test_elastic: trains data-parallel in a session, and resumes when started again.

python -m tests.torchrun … tests/train/elastic_program.py FOLDER SAMPLES [UPDATES [machine]]

Trains for SAMPLES label samples. On the first start rank 1 kills itself after UPDATES updates. With ``machine`` the
rank that gets these arguments does, and kills its launcher, too, as when a machine is lost.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import torch

import feedline as fl
from feedline.train import MomentumSGD, Saving, Trainer, TrainingSession, data_parallel


class Kills:
    """Simulate a power cut, and record where the run began."""

    def __init__(self, left, machine):
        self.left, self.machine, self.began = left, machine, 0

    def on_start(self, run):
        self.began = run.samples

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if self.machine:
                os.kill(int(os.environ["LAUNCHER"]), signal.SIGKILL)
            if self.machine or torch.distributed.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name):
        return lambda *arguments: None


class Recorded:
    """The source, with a record of the sequences that it delivers to this rank."""

    def __init__(self, source):
        self._source, self.ids = source, []

    def next_minibatch(self, size, partition=None):
        minibatch = self._source.next_minibatch(size, partition)
        if minibatch:
            self.ids.append(minibatch.ids.tolist())
        return minibatch

    def __getattr__(self, name):
        return getattr(self._source, name)


def main(rank, folder, samples, updates=0, machine=False):
    """Print world size, first and last samples of this rank's run, weights, and the minibatches' sequences."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    world = torch.distributed.get_world_size()
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("f4")
    source = Recorded(fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=x.sum(1)), seed=1))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    trainer = Trainer(
        model,
        lambda output, minibatch: (output[:, 0] - minibatch["y"].torch()) ** 2,
        None,
        data_parallel(MomentumSGD(model.parameters(), 0.02, momentum=0.5), timeout=20),
        forward=lambda model, minibatch: model(minibatch["x"].torch()),
    )
    saving = None if folder is None else Saving(folder, every=fl.minibatches(2), keep=None)
    kills = Kills(updates, machine)
    run = TrainingSession(trainer, source, 12, max_samples=samples, reporters=[kills], saving=saving).run()
    torch.distributed.destroy_process_group()
    return world, kills.began, run.samples, model.weight[0].tolist(), source.ids


if __name__ == "__main__":
    folder, *numbers = (argument for argument in sys.argv[1:] if argument != "machine")
    found = main(0, folder, *map(int, numbers), machine="machine" in sys.argv)
    print(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {found}\n", end="", flush=True)
