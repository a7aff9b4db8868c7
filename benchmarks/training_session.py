"""What does a session cost over a loop by hand: same source, same batches, same optimizer?

Peer: the loop that one would write with torch alone: ``zero_grad``, forward, loss, metric, ``backward``, ``step``, sums
for a report. Both use `torch.optim.Adam`, ours through `TorchLearner`. The session reports every hundred minibatches,
as the loop does.
Unit: microseconds a step. Measured: CPU time of the process, one thread, in turns. Targets: 5 % of a step of more than
a millisecond, and 60 microseconds where the model is tiny.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, race, spread
from feedline.train import TorchLearner, Trainer, TrainingSession

CLASSES, REPORT = 10, 100


class Sequential(torch.nn.Module):
    """An MLP over the rows of ``x``."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        linear = torch.nn.Linear
        self.body = torch.nn.Sequential(linear(inputs, width), torch.nn.ReLU(), linear(width, CLASSES))

    def forward(self, minibatch: fl.Minibatch) -> Any:
        """Scores (samples, classes)."""
        return self.body(minibatch["x"].torch(layout="packed"))


class Recurrent(torch.nn.Module):
    """An LSTM over sequences of ``x`` of one length, with scores of every state."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(inputs, width, batch_first=True)
        self.dense = torch.nn.Linear(width, CLASSES)

    def forward(self, minibatch: fl.Minibatch) -> Any:
        """Scores (samples, classes)."""
        states, _ = self.lstm(minibatch["x"].torch())
        return self.dense(states).flatten(0, 1)


def loss(scores: Any, minibatch: fl.Minibatch) -> Any:
    """One number for each label."""
    return cross_entropy(scores, minibatch["y"].torch(layout="packed"), reduction="none")


def error(scores: Any, minibatch: fl.Minibatch) -> Any:
    """1 for each label got wrong."""
    return scores.argmax(1) != minibatch["y"].torch(layout="packed")


def run(stage: Stage) -> list[Answer]:
    """An MLP and an LSTM of more than a millisecond a step, and an MLP of next to nothing."""
    steps = stage.size(200, 20)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4096, 256)).astype("f4")
    sequences = list(rng.normal(size=(512, 20, 32)).astype("f4"))
    small = rng.normal(size=(4096, 16)).astype("f4")
    return [
        _answer(stage, "an MLP, 256 x 256, width 512", rows, 256, steps, lambda: Sequential(256, 512), False),
        _answer(stage, "an LSTM, 32 x 20 x 32, width 64", sequences, 640, steps, lambda: Recurrent(32, 64), False),
        _answer(stage, "a tiny MLP, 8 x 16, width 4", small, 8, 5 * steps, lambda: Sequential(16, 4), True),
    ]


def _answer(
    stage: Stage, name: str, x: Any, size: int, steps: int, make: Callable[[], torch.nn.Module], tiny: bool
) -> Answer:
    rng = np.random.default_rng(1)
    y = (
        [rng.integers(0, CLASSES, len(sequence)) for sequence in x]
        if isinstance(x, list)
        else rng.integers(0, CLASSES, len(x))
    )

    def source() -> fl.MinibatchSource:
        return fl.MinibatchSource(fl.ArrayDeserializer(x=x, y=y), seed=1)

    torch.manual_seed(0)
    by_hand = _loop(make(), source(), size, steps)
    torch.manual_seed(0)
    ours = _session(make(), source(), size, steps)
    ran = race({"ours": ours, "theirs": by_hand}, stage.rounds(21), clock="process", warm_up=2)
    each = {who: [1e6 / rate for rate in ran.rates(who)] for who in ("ours", "theirs")}
    more = [a - b for a, b in zip(each["ours"], each["theirs"], strict=True)]
    target = Target("ours", "<=", 60.0) if tiny else Target("ratio", ">=", 1 / 1.05, "0.952 (5 % more)")
    return Answer(
        question=f"a session's step over a loop's: {name}",
        unit="us more a step" if tiny else "us a step",
        ours=statistics.median(more if tiny else each["ours"]),
        peer="a torch loop",
        peer_value=statistics.median(each["theirs"]),
        ratio=ran.ratio("ours", "theirs"),
        target=target,
        spread=spread(each["ours"]),
        note="ours is what a step costs more; theirs the whole step" if tiny else "",
        detail={"us": each, "more_us": more, "wall_us": {who: 1e6 / ran.rate(who, "wall") for who in each}},
    )


def _loop(model: torch.nn.Module, source: fl.MinibatchSource, size: int, steps: int) -> Callable[[], float]:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def steps_by_hand() -> float:
        loss_sum, wrong, seen = torch.zeros(()), torch.zeros(()), 0
        model.train()
        for step in range(steps):
            minibatch = source.next_minibatch(size)
            optimizer.zero_grad()
            scores = model(minibatch)
            losses = loss(scores, minibatch)
            losses.mean().backward()
            optimizer.step()
            with torch.no_grad():
                loss_sum += losses.detach().sum()
                wrong += error(scores, minibatch).sum()
            seen += len(losses)
            if (step + 1) % REPORT == 0:
                f"{float(loss_sum) / seen:.4f} {float(wrong) / seen:.4f}"
                loss_sum, wrong, seen = torch.zeros(()), torch.zeros(()), 0
        return steps

    return steps_by_hand


def _session(model: torch.nn.Module, source: fl.MinibatchSource, size: int, steps: int) -> Callable[[], float]:
    learner = TorchLearner(torch.optim.Adam(model.parameters(), 1e-3))
    trainer = Trainer(model, loss, error, learner)
    session = TrainingSession(trainer, source, size, max_samples=0, progress=fl.minibatches(REPORT))

    def steps_in_session() -> float:
        before = session.minibatches
        session.max_samples = session.samples + steps * size
        session.run()
        return session.minibatches - before

    return steps_in_session
