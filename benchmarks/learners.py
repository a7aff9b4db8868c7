"""What does an update cost: 161 parameters of a ResNet-50's shapes, 25.6 million numbers, and 6 of a small network?

Peer: the same rule of `torch.optim`, in its fused form where it has one (a special kernel), otherwise in its foreach
form. Unit: milliseconds an update (microseconds for the small network), CPU time of the process, one thread. Measured:
`update` and `step` alone, over existing gradients. Ours gets sums over 32 samples, as from the trainer. A store's
optimizer is called for one key after the other. RMSProp has a peer of the same name and another rule, with fewer
operations. Torch keeps Adam's state for bfloat16 in bfloat16, ours is in float32.

Expected, from passes over memory: torch's fused rules take the same number of passes (adam 7, adagrad and momentum 5,
sgd 3), so a ratio of about 1. The foreach forms of adadelta, adamax and nadam take 3 to 6 times as many. The norm of
all gradients is a pass more for both.

Found, on a busy machine of two cores (AMD EPYC): 0.95 to 1.1 times torch's fused rules, 0.96 to 1.02 for plain sgd, and
0.90 to 0.94 for a store's Adam, as 161 calls cost 1 ms. With all gradients' norm clipped 1.3, for small networks 1.2 to
2.3. Against foreach 3.2 to 5.6 for adam, 5.5 and more for adadelta, 3 for adamax, 1.7 to 1.8 for rmsprop.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race, spread
from feedline import kvstore
from feedline.train import SGD, AdaDelta, AdaGrad, Adam, MomentumSGD, Nesterov, RMSProp

Parameters = list[Any]
#: Makes a contender for parameters: a function that makes one update.
Maker = Callable[[Parameters], Callable[[], Any]]

optim = torch.optim
SAMPLES = 32


def ours(make: Callable[[Parameters], Any]) -> Maker:
    """A learner."""

    def made(parameters: Parameters) -> Callable[[], Any]:
        learner = make(parameters)
        return lambda: learner.update(SAMPLES)

    return made


def of_store(name: str, **options: Any) -> Maker:
    """A store's optimizer, called for each parameter."""

    def made(parameters: Parameters) -> Callable[[], Any]:
        rule = kvstore.optimizer(name, **options)

        def updates() -> None:
            with torch.no_grad():
                for key, parameter in enumerate(parameters):
                    rule(key, parameter.grad, parameter)

        return updates

    return made


def theirs(make: Callable[[Parameters], Any], norm: float | None = None) -> Maker:
    """Return an optimizer of torch. ``norm``: limit of the norm of all gradients."""

    def made(parameters: Parameters) -> Callable[[], Any]:
        optimizer = make(parameters)

        def steps() -> None:
            if norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, norm)
            optimizer.step()

        return steps

    return made


def _adam(p: Parameters) -> Adam:
    return Adam(p, 0.01, 0.9, 0.999)


FUSED_ADAM = theirs(lambda p: optim.Adam(p, 0.01, fused=True))
#: By name: ours, theirs, and the form of theirs.
RULES: dict[str, tuple[Maker, Maker, str]] = {
    "sgd": (ours(lambda p: SGD(p, 0.01)), theirs(lambda p: optim.SGD(p, 0.01, fused=True)), "fused"),
    "sgd with L2": (
        ours(lambda p: SGD(p, 0.01, l2=0.01)),
        theirs(lambda p: optim.SGD(p, 0.01, weight_decay=0.01, fused=True)),
        "fused",
    ),
    "momentum_sgd": (
        ours(lambda p: MomentumSGD(p, 0.01, 0.9, unit_gain=False)),
        theirs(lambda p: optim.SGD(p, 0.01, momentum=0.9, fused=True)),
        "fused",
    ),
    "nesterov with L2": (
        ours(lambda p: Nesterov(p, 0.01, 0.9, unit_gain=False, l2=0.01)),
        theirs(lambda p: optim.SGD(p, 0.01, momentum=0.9, nesterov=True, weight_decay=0.01, fused=True)),
        "fused",
    ),
    "adagrad": (
        ours(lambda p: AdaGrad(p, 0.01, average=False)),
        theirs(lambda p: optim.Adagrad(p, 0.01, fused=True)),
        "fused",
    ),
    "adam": (ours(_adam), FUSED_ADAM, "fused"),
    "adam by foreach": (ours(_adam), theirs(lambda p: optim.Adam(p, 0.01, foreach=True)), "foreach"),
    "adam of a store": (of_store("adam", learning_rate=0.01), FUSED_ADAM, "fused"),
    "adam, global norm clipped": (
        ours(lambda p: Adam(p, 0.01, 0.9, 0.999, clip=1e9, clip_by="global_norm")),
        theirs(lambda p: optim.Adam(p, 0.01, fused=True), norm=1e9),
        "fused",
    ),
    "adadelta": (
        ours(lambda p: AdaDelta(p, 0.01)),
        theirs(lambda p: optim.Adadelta(p, 0.01, foreach=True)),
        "foreach",
    ),
    "adamax": (
        ours(lambda p: Adam(p, 0.01, 0.9, 0.999, adamax=True)),
        theirs(lambda p: optim.Adamax(p, 0.01, foreach=True)),
        "foreach",
    ),
    "nadam of a store": (
        of_store("nadam", learning_rate=0.01),
        theirs(lambda p: optim.NAdam(p, 0.01, foreach=True)),
        "foreach",
    ),
    "rmsprop": (
        ours(lambda p: RMSProp(p, 0.01, average=False)),
        theirs(lambda p: optim.RMSprop(p, 0.01, foreach=True)),
        "foreach",
    ),
}
#: Those that a small network is trained by, too.
SMALL = ("sgd", "momentum_sgd", "adam", "adadelta")


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        large = shapes(8 if stage.quick else 64)
        answers = [_raced(name, large, 1, stage) for name in RULES]
        answers.append(_raced("adam", large, 1, stage, torch.bfloat16))
        small = [(32, 20), (32,), (32, 32), (32,), (5, 32), (5,)]
        return answers + [_raced(name, small, 10 if stage.quick else 200, stage) for name in SMALL]
    finally:
        torch.set_num_threads(threads)


def _raced(
    name: str, sizes: list[tuple[int, ...]], repeats: int, stage: Stage, dtype: torch.dtype = torch.float32
) -> Answer:
    torch.manual_seed(0)
    start = [torch.randn(size, dtype=dtype) for size in sizes]
    gradients = [torch.randn_like(tensor) for tensor in start]
    mine, its, form = RULES[name]
    contenders = {
        who: _repeated(make(_parameters(start, gradients)), repeats) for who, make in (("ours", mine), ("theirs", its))
    }
    ran = race(contenders, stage.rounds(15), clock="process", warm_up=2)
    numbers = sum(math.prod(size) for size in sizes)
    return _answer(name, form, ran, len(sizes), numbers, dtype)


def _parameters(start: Parameters, gradients: Parameters) -> Parameters:
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in start]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def _repeated(update: Callable[[], Any], repeats: int) -> Callable[[], float]:
    def updates() -> float:
        for _ in range(repeats):
            update()
        return repeats

    return updates


def _answer(name: str, form: str, ran: Race, tensors: int, numbers: int, dtype: torch.dtype) -> Answer:
    small = numbers < 10_000
    scale = 1e6 if small else 1e3
    each = {who: [scale / rate for rate in ran.rates(who)] for who in ("ours", "theirs")}
    wide = dtype is torch.float32
    notes = {"rmsprop": "another rule under the same name"}
    count = f"{numbers}" if small else f"{numbers / 1e6:.1f} M"
    return Answer(
        question=f"an update by {name}, {count} {'' if wide else 'bfloat16 '}numbers in {tensors} tensors",
        unit="µs" if small else "ms",
        ours=statistics.median(each["ours"]),
        peer=f"torch.optim, {form}",
        peer_value=statistics.median(each["theirs"]),
        ratio=ran.ratio("ours", "theirs"),
        target=Target("ratio", ">=", 1.0 if form == "fused" else 2.0) if wide else None,
        spread=spread(each["ours"]),
        note=notes.get(name, "") if wide else "their state is in bfloat16",
        detail={"each": each, "wall": {who: scale / ran.rate(who, "wall") for who in each}},
    )
