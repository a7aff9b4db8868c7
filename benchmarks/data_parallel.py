"""What does a data-parallel step cost: 2 processes, the parameters of a ResNet-50, a backward pass of 150 ms or more?

Peer: `DistributedDataParallel` with the same model, ``gradient_as_bucket_view=True`` and torch's foreach SGD, in the
same processes, alternating with ours: a `Trainer` whose learner learns `through_store`, and one by `data_parallel`. A
step is forward, backward, exchange and update. The model has as many tensors of the same shapes; a layer's backward
pass multiplies matrices for a while and then fills its gradient. Unit: milliseconds a step. Measured: wall time of
worker 0, torch on one thread, medians of the ratios of the same round.

The bytes that each step copies are counted, by torch's profiler. Both copy each gradient once, into its bucket: torch
where it is not a view of it already, as it is not after ``zero_grad(set_to_none=True)``.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from benchmarks.harness import Answer, Race, Stage, Target, race
from benchmarks.jobs import answer, told_by_first
from benchmarks.learners import shapes


def run(stage: Stage) -> list[Answer]:
    """2 workers."""
    found: tuple[Race, float, dict[str, float]] = told_by_first(
        worker, 2, 8 if stage.quick else 64, stage.rounds(15), stage.quick
    )
    ran, backward, copied = found
    question = f"step of 2 processes, 161 tensors, backward of {1e3 * backward:.0f} ms"
    target = Target("ratio", ">=", 1.0, "1")
    answers = []
    for ours in ("through_store", "data_parallel"):
        answers.append(answer(ran, ours, "DDP", f"{question}, {ours}", target))
        answers.append(
            Answer(
                question=f"bytes that this step copies, {ours}",
                unit="MB",
                ours=copied[ours],
                peer="DDP",
                peer_value=copied["DDP"],
                ratio=copied["DDP"] / copied[ours],
                target=Target("ratio", ">=", 0.999, "1"),  # sums of losses and frames are some hundred bytes
            )
        )
    return answers


class _Layer(torch.autograd.Function):
    """Adds zero, and takes time in backward."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, matrix: Any, times: int) -> Any:
        context.save_for_backward(weight, matrix)
        context.times = times
        return x + weight.view(-1)[0]

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        weight, matrix = context.saved_tensors
        for _ in range(context.times):
            matrix @ matrix
        return gradient, torch.full_like(weight, gradient.mean().item()), None, None


class Model(torch.nn.Module):
    """Parameters of a ResNet-50's shapes."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes(width))
        self.matrix, self.times = torch.randn(128, 128), times

    def forward(self, x: Any) -> Any:
        """Each sample, and nothing added to it."""
        for weight in self.weights:
            x = _Layer.apply(x, weight, self.matrix, self.times)  # type: ignore[no-untyped-call]
        return x


class _Minibatch:
    sweep_end = False
    num_sequences = num_samples = global_samples = 8

    def __init__(self) -> None:
        self.x = torch.randn(8)


#: Operations that copy tensors, by the profiler's names. DDP divides while it copies.
_COPIES = ("aten::copy_", "torch::distributed::reducer::mul_out")


def copied_by(step: Any) -> float:
    """MB that a step copies."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        step()
    found = [event for event in profile.events() or () if event.name in _COPIES]
    return sum(4 * math.prod(event.input_shapes[0]) for event in found) / 1e6  # float32, all of them


def worker(rank: int, width: int, rounds: int, quick: bool) -> tuple[Race, float, dict[str, float]]:
    """Race all in step with the other processes. Return the race, the time of a backward pass alone, and MB."""
    from feedline import kvstore
    from feedline.train import SGD, Trainer, data_parallel, through_store

    times = 1 if quick else 32
    minibatch: Any = _Minibatch()
    store = kvstore.create("dist_sync")
    steps: dict[str, Any] = {}
    for name, way in (("through_store", lambda one: through_store(one, store)), ("data_parallel", data_parallel)):
        model = Model(width, times)
        learner = way(SGD(model.parameters(), 0.01))
        trainer = Trainer(model, lambda o, m: o, None, learner, forward=lambda model, m: model(m.x))
        steps[name] = lambda trainer=trainer: trainer.train_minibatch(minibatch)
    wrapped = torch.nn.parallel.DistributedDataParallel(Model(width, times), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.01, foreach=True)

    def theirs() -> None:
        optimizer.zero_grad()
        wrapped(minibatch.x).mean().backward()
        optimizer.step()

    steps["DDP"] = theirs
    plain = Model(width, times)
    backwards = []
    for _ in range(3):
        loss = plain(minibatch.x).mean()
        began = time.perf_counter()
        loss.backward()
        backwards.append(time.perf_counter() - began)
        plain.zero_grad()

    def contender(step: Any) -> Any:
        def one() -> float:
            torch.distributed.barrier()
            step()
            return 1

        return one

    ran = race({name: contender(step) for name, step in steps.items()}, rounds, clock="wall", warm_up=3)
    copied = {name: copied_by(step) for name, step in steps.items()}
    store.close()
    return ran, min(backwards), copied
