"""Pictures from tar shards and a small convolutional net: killed in the middle, resumed, the same bits in the end.

    python examples/picture_classifier.py

The pictures are made: shapes in colours, encoded as JPEGs of all kinds and sizes. They are decoded and augmented in
native threads while the net learns. What a picture is cropped to follows from seed, sweep and picture, so a run that
SIGKILL ended goes on from its last checkpoint as if nothing had happened.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from feedline_demo import pictures
from torch.nn.functional import cross_entropy

import feedline as fl
from feedline import images
from feedline.train import Adam, Evaluation, Saving, Schedule, Summary, Trainer, TrainingSession
from feedline.train.evaluation import Evaluated
from feedline.train.report import Silent

SIDE = 32
NORMALIZE = images.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), layout="CHW")
TRAINING = images.Decode("image", images.RandomResizedCrop(SIDE, scale=(0.7, 1.0)), images.Flip(0.5), NORMALIZE)
TESTING = images.Decode("image", images.Resize((SIDE, SIDE)), NORMALIZE)


def open_shards(folder: Path) -> fl.Deserializer:
    """Encoded pictures and their labels."""
    return fl.open_corpus(
        folder, streams={"image": fl.Stream(dtype="bytes", field="jpg"), "label": fl.Stream((), "int64", field="cls")}
    )


def build_model() -> torch.nn.Module:
    """Scores (pictures, classes) of pictures (pictures, 3, SIDE, SIDE)."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 24), (24, 48), (48, 64)):
        layers += [torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.BatchNorm2d(outputs)]
        layers += [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64 * 16, len(pictures.CLASSES)))


def forward(model: torch.nn.Module, minibatch: fl.Minibatch) -> torch.Tensor:
    """The model knows tensors, not minibatches."""
    return model(minibatch["image"].torch())


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each picture."""
    return cross_entropy(scores, minibatch["label"].torch(), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each picture classified wrongly."""
    return scores.argmax(1) != minibatch["label"].torch()


class Watch(Silent):
    """Says where the run resumes, kills it after so many pictures, and keeps the result of the test."""

    def __init__(self, killed_after: float) -> None:
        self.killed_after, self.wrong = killed_after, 1.0

    def on_start(self, run: TrainingSession) -> None:
        if run.samples:
            print(f"resumed at {run.samples:,} pictures", flush=True)

    def on_update(self, run: TrainingSession, summary: Summary) -> None:
        if run.samples >= self.killed_after:
            print(f"killed after {run.samples:,} pictures", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def on_test(self, run: TrainingSession, what: str, result: Evaluated) -> None:
        self.wrong = result.summary.metric


def train(data: Path, checkpoints: Path, sweeps: int, killed_after: float = math.inf) -> tuple[str, float]:
    """Train, from the last checkpoint if there is one; return a digest of the model, and the share of errors."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    learner = Adam(model.named_parameters(), Schedule([(sweeps * 3 // 4, 0.005), 0.001]))
    watch = Watch(killed_after)
    TrainingSession(
        Trainer(model, loss, error, learner, forward=forward),
        fl.MinibatchSource(open_shards(data / "train"), seed=1, max_sweeps=sweeps, transforms=[TRAINING]),
        size=32,
        saving=Saving(checkpoints, every=fl.minibatches(5)),
        test=Evaluation(
            fl.MinibatchSource(open_shards(data / "test"), shuffle=False, max_sweeps=1, transforms=[TESTING]), size=64
        ),
        reporters=[watch],
    ).run()
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest(), watch.wrong


def main(arguments: Sequence[str] | None = None) -> float:
    """Train without interruption, then with a kill, and compare; return the share of errors in other pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=1200, help="pictures to train on")
    parser.add_argument("--sweeps", type=int, default=12, help="passes over them")
    parser.add_argument("--killed-in", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    half = options.pictures * options.sweeps // 2
    if options.killed_in:
        train(options.killed_in, options.killed_in / "killed", options.sweeps, killed_after=half)
        raise SystemExit("the run ended before it was killed")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures.write_tar(folder / "train", pictures.pictures(options.pictures, sides=(48, 128)))
        pictures.write_tar(folder / "test", pictures.pictures(200, first=options.pictures, sides=(48, 128)), shards=1)
        whole, wrong = train(folder, folder / "whole", options.sweeps)
        print(f"never stopped: {whole[:16]}, {wrong:.1%} of 200 other pictures wrong")
        command = [sys.executable, __file__, "--killed-in", name]
        command += ["--pictures", str(options.pictures), "--sweeps", str(options.sweeps)]
        if (code := subprocess.run(command, check=False).returncode) != -signal.SIGKILL:
            raise SystemExit(f"expected a kill, got exit code {code}")
        resumed, _ = train(folder, folder / "killed", options.sweeps)
        print(f"killed and resumed: {resumed[:16]}")
    if resumed != whole:
        raise SystemExit("the models differ")
    print("the same model, bit for bit")
    return wrong


if __name__ == "__main__":
    main()
