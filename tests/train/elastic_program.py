"""What torchrun starts, for test_elastic: trains data-parallel in a session, and resumes when started again.

python -m torch.distributed.run … tests/train/elastic_program.py FOLDER SAMPLES UPDATES

Trains until so many label samples; rank 1 of the first start kills itself after so many updates.
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
    """A power cut at rank 1; and notes where the run began."""

    def __init__(self, left):
        self.left, self.began = left, 0

    def on_start(self, run):
        self.began = run.samples

    def on_update(self, run, summary):
        self.left -= 1
        if self.left == 0 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def __getattr__(self, name):
        return lambda *arguments: None


def main(rank, folder, samples, updates=0):
    """Samples at which this rank's run began and ended, and the weights."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("f4")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=x.sum(1)), seed=1)
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
    kills = Kills(updates)
    run = TrainingSession(trainer, source, 12, max_samples=samples, reporters=[kills], saving=saving).run()
    torch.distributed.destroy_process_group()
    return kills.began, run.samples, model.weight[0].tolist()


if __name__ == "__main__":
    print(os.environ["TORCHELASTIC_RESTART_COUNT"], main(0, sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
