"""Samples in files, by string id: `partition` has the use of each, `labels` its class; read by two workers.

    python examples/parallel_data.py

Many PyTorch projects have such dictionaries; only the import of `DataLoader` changes. The batches, random flips
included, are then the same for any number of workers, and training stops in the middle of an epoch and resumes from a
state of a few numbers, with another number of workers.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import feedline as fl

CLASSES = 3


class Pictures(torch.utils.data.Dataset[Any]):
    """One tensor (3, 16, 16) per file, named by its id; flipped at random in training."""

    def __init__(self, list_ids: list[str], labels: dict[str, int], folder: Path, flip: bool) -> None:
        self.list_ids, self.labels, self.folder, self.flip = list_ids, labels, folder, flip

    def __len__(self) -> int:
        return len(self.list_ids)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        name = self.list_ids[index]
        picture = torch.load(self.folder / f"{name}.pt")
        # torch, NumPy and random are seeded for each sample: by seed, sweep and index, never by worker.
        if self.flip and torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        return picture, self.labels[name]


def make_files(folder: Path, count: int) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Write pictures with one brighter channel, which is their class. Four in five are for training."""
    generator = torch.Generator().manual_seed(0)
    partition: dict[str, list[str]] = {"train": [], "validation": []}
    labels: dict[str, int] = {}
    for i in range(count):
        name = f"id-{i + 1}"
        labels[name] = int(torch.randint(CLASSES, (), generator=generator))
        picture = torch.randn(3, 16, 16, generator=generator)
        picture[labels[name]] += 0.4
        torch.save(picture, folder / f"{name}.pt")
        partition["train" if i % 5 else "validation"].append(name)
    return partition, labels


def train(model: torch.nn.Module, batches: Any, updates: int | None = None) -> None:
    """Take one step per batch, up to a number of updates."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for number, (pictures, labels) in enumerate(batches, 1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
        if number == updates:
            break


@torch.no_grad()
def error(model: torch.nn.Module, batches: Any) -> float:
    """Return the share of pictures that are misclassified."""
    wrong = [model(pictures).argmax(1) != labels for pictures, labels in batches]
    return float(torch.cat(wrong).float().mean())


def make_model() -> torch.nn.Module:
    """Make the model, with the same weights each time."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, CLASSES))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train twice, once with an interruption; returns the share of wrong answers on new pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=640, help="pictures")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partition, labels = make_files(folder, options.count)
        training = Pictures(partition["train"], labels, folder, flip=True)
        validation = Pictures(partition["validation"], labels, folder, flip=False)

        def training_batches(num_workers: int) -> fl.DataLoader:
            return fl.DataLoader(training, batch_size=64, shuffle=True, num_workers=num_workers, seed=3)

        whole, batches = make_model(), training_batches(num_workers=2)
        for epoch in range(options.epochs):
            train(whole, batches)
            found = error(whole, fl.DataLoader(validation, batch_size=64))
            print(f"epoch {epoch}: {found:.1%} of {len(validation)} pictures wrong")

        # Again, but stopped in the middle of the first epoch. The state is all that is kept.
        model, batches = make_model(), training_batches(num_workers=0)
        train(model, batches, updates=3)
        state = json.dumps(batches.state_dict())

        batches = training_batches(num_workers=1)
        batches.load_state_dict(json.loads(state))
        for _ in range(options.epochs):
            train(model, batches)  # the first time, the rest of the first epoch
        same = all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))
        print(f"stopped after 3 updates, gone on with 1 worker instead of 2: {'the same' if same else 'ANOTHER'} model")
        assert same
    return found


if __name__ == "__main__":
    main()
