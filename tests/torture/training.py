"""A small training with everything that has state, for scenarios that kill and damage trainings.

A run is deterministic: however often it was stopped, it ends with the parameters, counts and events of `reference`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

import feedline as fl
from feedline.train import Adam, MomentumSGD, Saving, Schedule, Trainer, TrainingSession
from feedline.train.controllers import GrowMinibatch, KeepBest, ReduceOnPlateau
from feedline.train.evaluation import Evaluation
from feedline.train.report import JsonLines
from tests.torture import data

SWEEPS = 4
STOPPED_AT = 11
"""Updates after which the run of `prepare` was stopped."""


class StoppedError(Exception):
    """Simulates the end of a process."""


class Model(torch.nn.Module):
    """A model that draws from all generators that a checkpoint keeps.

    Args:
        alike: nothing in it differs between the ranks of a job, as running averages do.
    """

    def __init__(self, alike: bool = False) -> None:
        super().__init__()
        norm = torch.nn.LayerNorm(8) if alike else torch.nn.BatchNorm1d(8)
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 8), norm, torch.nn.Dropout(0.2))
        self.head = torch.nn.Linear(8, data.CLASSES)
        self.tied = torch.nn.Linear(8, data.CLASSES)
        self.tied.weight = self.head.weight

    def forward(self, minibatch: Any) -> torch.Tensor:
        rows = minibatch["x"].torch() / 60
        if self.training:
            rows = rows + 0.01 * random.random() + 0.01 * float(np.random.rand())
        hidden = torch.relu(self.body(rows))
        return self.head(hidden) + 0.1 * self.tied(hidden)


def losses(output: torch.Tensor, minibatch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, minibatch["y"].class_indices().torch(), reduction="none")


def wrong(output: torch.Tensor, minibatch: Any) -> torch.Tensor:
    return (output.argmax(1) != minibatch["y"].class_indices().torch()).float()


class Watch:
    """A reporter that records events, and stops the run after ``stop`` updates."""

    def __init__(self, stop: int = -1) -> None:
        self.left, self.began, self.events = stop, -1, []

    def on_start(self, run: Any) -> None:
        self.began = run.samples

    def on_update(self, run: Any, summary: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise StoppedError

    def on_progress(self, run: Any, progress: Any) -> None:
        self.events.append(["progress", progress.number, progress.summary.samples, repr(progress.summary.loss)])

    def on_test(self, run: Any, what: str, result: Any) -> None:
        self.events.append([what, result.number, result.summary.samples, repr(result.summary.loss)])

    def on_checkpoint(self, run: Any, path: Path) -> None: ...

    def on_end(self, run: Any) -> None: ...


def session(folder: Path, corpus: Path, stop: int = -1, seed: int = 3, **changes: Any) -> tuple[TrainingSession, Watch]:
    """Return the run and its reporter."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    source = fl.MinibatchSource(data.open_store(corpus, streams=["x", "y"]), seed=seed, max_sweeps=SWEEPS)
    held_out = fl.MinibatchSource(data.open_ctf(corpus), shuffle=False, max_sweeps=1)
    model = Model()
    learners = [
        Adam(model.body.named_parameters(), Schedule([0.02, 0.01]), momentum=0.9, noise=0.001, seed=4),
        MomentumSGD([*model.head.named_parameters(), ("tied.bias", model.tied.bias)], 0.05, momentum=0.9),
    ]
    watch = Watch(stop)
    settings = {
        "size": Schedule.sizes([(1, 9), (1, 13)], epoch_size=60),
        "progress": fl.samples(50),
        "saving": Saving(folder / "checkpoints", every=fl.minibatches(3)),
        "validation": Evaluation(held_out, every=fl.minibatches(7)),
        "epoch": fl.sweeps(1),
        "controllers": [ReduceOnPlateau(patience=0), GrowMinibatch(limit=4), KeepBest(folder / "best")],
        "reporters": [watch, JsonLines(folder / "run.jsonl")],
        **changes,
    }
    return TrainingSession(Trainer(model, losses, wrong, learners), source, **settings), watch


def print_of(model: torch.nn.Module) -> str:
    """A digest of parameters and buffers, bit for bit."""
    h = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        h.update(name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def outcome(run: TrainingSession, watch: Watch) -> dict[str, Any]:
    """Return the final state of a run, in JSON types, with the ``events`` since its start."""
    return {
        "parameters": print_of(run.trainer.model),
        "counts": [run.samples, run.minibatches, run.sweeps, run.scale, run.stopped],
        "rates": [repr(learner.learning_rate()) for learner in run.trainer.learners],
        "random": [repr(random.random()), repr(float(np.random.rand())), repr(float(torch.rand(())))],
        "began": watch.began,
        "events": watch.events,
    }


def train(folder: Path, corpus: Path) -> dict[str, Any]:
    """Run from the checkpoint in ``folder`` to the end."""
    run, watch = session(folder, corpus)
    return outcome(run.run(), watch)


def differs(expected: dict[str, Any], got: dict[str, Any]) -> str:
    """Describe differences from an uninterrupted run. Empty if there are none."""
    wrong = [key for key in ("parameters", "counts", "rates", "random") if got[key] != expected[key]]
    if got["events"] != expected["events"][len(expected["events"]) - len(got["events"]) :]:
        wrong.append("events")
    return ", ".join(f"{key} (expected {expected[key]!r:.100}, got {got[key]!r:.100})" for key in wrong)


def prepare(folder: Path) -> None:
    """Below ``folder``: ``reference.json``, ``run`` that was stopped on the way, and ``run-twin``, another one."""
    corpus = folder / "few"
    expected = train(folder / "whole", corpus)
    (folder / "reference.json").write_text(json.dumps(expected))
    for name, seed in (("run", 3), ("run-twin", 5)):
        made, _ = session(folder / name, corpus, STOPPED_AT, seed)
        try:
            made.run()
        except StoppedError:
            pass


def reference(folder: Path) -> dict[str, Any]:
    """Return the final state of the run in `prepare`."""
    return dict(json.loads((folder / "reference.json").read_text()))


class Heard(logging.Handler):
    """Warnings of feedline, as long as it is in use as a context."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())

    def __enter__(self) -> Heard:
        logging.getLogger("feedline").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("feedline").removeHandler(self)
