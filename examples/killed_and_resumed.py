"""A run that kills itself again and again, and ends bit for bit like one that never stopped.

    python examples/killed_and_resumed.py

Every attempt is a separate process, which SIGKILL ends in the middle of an update. The next one resumes from the
latest checkpoint. The states of dropout, noise and momentum would reveal the slightest deviation.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import mse_loss

import feedline as fl
from feedline.train import Adam, Saving, Schedule, Summary, Trainer, TrainingSession
from feedline.train.report import Silent


class Kills(Silent):
    """Kills this process after a number of updates."""

    def __init__(self, updates: int) -> None:
        self.left = updates

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        self.left -= 1
        if self.left == 0:
            print(f"  killed after {run.samples:,} samples", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def loss(output: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each sample."""
    return mse_loss(output, minibatch["y"].torch(), reduction="none").sum(1)


def train(folder: str, dies_after: int) -> str:
    """Run one attempt; return a digest of all parameters if it reaches the end."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 8)).astype("float32")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=np.sin(x[:, :2])), seed=1, max_sweeps=3)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2))
    learner = Adam(model.named_parameters(), Schedule([0.01, 0.005, 0.001]), noise=1e-4)
    trainer = Trainer(model, loss, learners=learner, forward=lambda model, minibatch: model(minibatch["x"].torch()))
    TrainingSession(
        trainer,
        source,
        size=64,
        saving=Saving(folder, every=fl.minibatches(20)),
        reporters=[Kills(dies_after)] if dies_after else [],
    ).run()
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run once without interruption and once with many, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempt", nargs=2, metavar=("FOLDER", "UPDATES"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attempt:
        print(train(options.attempt[0], int(options.attempt[1])))
        return

    with tempfile.TemporaryDirectory() as folder:
        expected = train(str(Path(folder, "whole")), dies_after=0)
        print(f"never stopped: {expected[:16]}")
        kills = 0
        while True:
            command = [sys.executable, __file__, "--attempt", str(Path(folder, "killed")), str(70 + 5 * kills)]
            attempt = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if attempt.returncode == 0:
                break
            if attempt.returncode != -signal.SIGKILL:
                raise SystemExit(f"an attempt ended with {attempt.returncode}")
            print(attempt.stdout, end="")
            kills += 1
    got = attempt.stdout.strip()
    print(f"killed {kills} times: {got[:16]}")
    if got != expected:
        raise SystemExit("the parameters differ")
    print("the same parameters, bit for bit")


if __name__ == "__main__":
    main()
