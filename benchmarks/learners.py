"""What does an update cost: 161 parameters of the shapes of a ResNet-50, 25.6 million numbers, float32?

Peer: the same rule of `torch.optim` in its foreach form; once its fused form, a special kernel. Unit: milliseconds
an update, CPU time of the process, one thread. Measured: `update` and `step` alone, over gradients that are there;
ours is told sums over 32 samples, as the trainer does. RMSProp has a peer of the same name and another rule, with
fewer operations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race, spread
from feedline.train import SGD, AdaDelta, AdaGrad, Adam, Learner, MomentumSGD, Nesterov, RMSProp

Parameters = list[Any]
Ours = Callable[[Parameters], Learner]
Theirs = Callable[[Parameters], Any]

optim = torch.optim
RULES: dict[str, tuple[Ours, Theirs]] = {
    "sgd": (lambda p: SGD(p, 0.01), lambda p: optim.SGD(p, 0.01, foreach=True)),
    "momentum_sgd": (
        lambda p: MomentumSGD(p, 0.01, 0.9, unit_gain=False),
        lambda p: optim.SGD(p, 0.01, momentum=0.9, foreach=True),
    ),
    "nesterov with L2": (
        lambda p: Nesterov(p, 0.01, 0.9, unit_gain=False, l2=0.01),
        lambda p: optim.SGD(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    ),
    "adagrad": (lambda p: AdaGrad(p, 0.01, average=False), lambda p: optim.Adagrad(p, 0.01, foreach=True)),
    "adadelta": (lambda p: AdaDelta(p, 0.01), lambda p: optim.Adadelta(p, 0.01, foreach=True)),
    "adam": (lambda p: Adam(p, 0.01, 0.9, 0.999), lambda p: optim.Adam(p, 0.01, foreach=True)),
    "adamax": (lambda p: Adam(p, 0.01, 0.9, 0.999, adamax=True), lambda p: optim.Adamax(p, 0.01, foreach=True)),
    "rmsprop": (lambda p: RMSProp(p, 0.01, average=False), lambda p: optim.RMSprop(p, 0.01, foreach=True)),
    "adam, torch fused": (lambda p: Adam(p, 0.01, 0.9, 0.999), lambda p: optim.Adam(p, 0.01, fused=True)),
}
SAMPLES = 32


def shapes(width: int = 64) -> list[tuple[int, ...]]:
    """A ResNet-50's, for ``width`` 64."""
    found: list[tuple[int, ...]] = [(width, 3, 7, 7), (width,), (width,)]
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width << stage
        for block in range(blocks):
            kernels = [(inner, channels, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)]
            kernels += [(4 * inner, channels, 1, 1)] if block == 0 else []
            for kernel in kernels:
                found += [kernel, kernel[:1], kernel[:1]]
            channels = 4 * inner
    return [*found, (1000, channels), (1000,)]


def run(stage: Stage) -> list[Answer]:
    """A race a rule."""
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in shapes(8 if stage.quick else 64)]
    gradients = [torch.randn_like(tensor) for tensor in start]
    answers = []
    for name, (ours, theirs) in RULES.items():
        learner = ours(_parameters(start, gradients))
        optimizer = theirs(_parameters(start, gradients))
        contenders = {"ours": _updates(learner), "theirs": _steps(optimizer)}
        ran = race(contenders, stage.rounds(15), clock="process", warm_up=2)
        answers.append(_answer(name, ran, sum(math.prod(tensor.shape) for tensor in start)))
    return answers


def _parameters(start: Parameters, gradients: Parameters) -> Parameters:
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def _updates(learner: Learner) -> Callable[[], float]:
    def updates() -> float:
        learner.update(SAMPLES)
        return 1

    return updates


def _steps(optimizer: Any) -> Callable[[], float]:
    def steps() -> float:
        optimizer.step()
        return 1

    return steps


def _answer(name: str, ran: Race, numbers: int) -> Answer:
    each = {who: [1e3 / rate for rate in ran.rates(who)] for who in ("ours", "theirs")}
    unlike = name.endswith("fused") or name == "rmsprop"
    return Answer(
        question=f"an update by {name}, {numbers / 1e6:.1f} M numbers in 161 tensors",
        unit="ms",
        ours=statistics.median(each["ours"]),
        peer="torch.optim, fused" if name.endswith("fused") else "torch.optim, foreach",
        peer_value=statistics.median(each["theirs"]),
        ratio=ran.ratio("ours", "theirs"),
        target=None if unlike else Target("ratio", ">=", 1.0),
        spread=spread(each["ours"]),
        note="another rule under the same name" if name == "rmsprop" else "",
        detail={"ms": each, "wall_ms": {who: 1e3 / ran.rate(who, "wall") for who in each}},
    )
