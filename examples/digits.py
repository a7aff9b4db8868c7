"""Handwritten digits with a small convolutional net: validation, learning-rate control, the best model kept.

    python examples/digits.py

The data are scikit-learn's 1,797 digits of 8 x 8 pixels, every fifth held out. At the end of each sweep the session
validates; after two sweeps without improvement the learning rate is halved, and below a tenth the run ends.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import feedline as fl
from feedline.train import (
    Console,
    Evaluation,
    JsonLines,
    KeepBest,
    MomentumSGD,
    ReduceOnPlateau,
    Saving,
    Trainer,
    TrainingSession,
)


def build_model() -> torch.nn.Module:
    """Scores (images, 10) of images (images, 1, 8, 8)."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 10),
    )


def forward(model: torch.nn.Module, minibatch: fl.Minibatch) -> torch.Tensor:
    """The model knows tensors, not minibatches."""
    return model(minibatch["image"].torch())


def loss(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """One number for each image."""
    return cross_entropy(scores, minibatch["digit"].torch(), reduction="none")


def error(scores: torch.Tensor, minibatch: fl.Minibatch) -> torch.Tensor:
    """1 for each image classified wrongly."""
    return scores.argmax(1) != minibatch["digit"].torch()


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, and return the share of held-out images that the best model gets wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=15, help="passes over the data, at most")
    parser.add_argument("--folder", type=Path, help="for checkpoints and lines; without one nothing stays")
    options = parser.parse_args(arguments)

    digits = load_digits()
    images = (digits.images / 16).astype("float32")[:, None]  # (1797, 1, 8, 8), 0 to 1
    classes = digits.target.astype("int64")
    held_out = np.arange(len(images)) % 5 == 0
    training = fl.ArrayDeserializer(image=images[~held_out], digit=classes[~held_out])
    validation = fl.ArrayDeserializer(image=images[held_out], digit=classes[held_out])

    torch.manual_seed(0)
    model = build_model()
    learner = MomentumSGD(model.named_parameters(), 0.1, momentum=0.9)
    trainer = Trainer(model, loss, error, learner, forward=forward)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        best = KeepBest(folder / "best", watch="metric")
        TrainingSession(
            trainer,
            fl.MinibatchSource(training, seed=1, max_sweeps=options.sweeps),
            size=32,
            progress=fl.sweeps(1),
            reporters=[Console(), JsonLines(folder / "run.jsonl")],
            saving=Saving(folder / "checkpoints", every=fl.sweeps(1)),
            validation=Evaluation(fl.MinibatchSource(validation, shuffle=False, max_sweeps=1), fl.sweeps(1), size=256),
            epoch=fl.sweeps(1),
            controllers=[best, ReduceOnPlateau(factor=0.5, patience=1, stop_below=0.1)],
        ).run()
        wrong = best.restore(model)
    print(f"{wrong:.2%} of {held_out.sum()} held-out images wrong")
    return wrong


if __name__ == "__main__":
    main()
