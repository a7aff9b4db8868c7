"""Ctrl-C in a step of several ranks: all of them complete it, or none does, with any strategy."""

from __future__ import annotations

import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.collective  # noqa: E402
import feedline.kvstore  # noqa: E402
import feedline.mxnet as mx  # noqa: E402
import feedline.train.distributed  # noqa: E402
import feedline.train.learner  # noqa: E402
import feedline.train.parameters  # noqa: E402
import feedline.train.rules  # noqa: E402
import feedline.train.strategy  # noqa: E402
import feedline.train.trainer  # noqa: E402
from feedline.kvstore import create  # noqa: E402
from feedline.train import SGD, Trainer, block_momentum, data_parallel, quantized, through_store  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.inside import exchanges_of_trainer  # noqa: E402
from tests.moments import AtLine  # noqa: E402
from tests.ranks import Job, run, say  # noqa: E402

WAYS = {
    "data_parallel": data_parallel,
    "through_store": lambda learner: through_store(learner, create("dist_sync")),
    "quantized": lambda learner: quantized(learner, 1),
    "block_momentum": lambda learner: block_momentum(learner, 16),
}
CODE = (
    feedline.collective,
    feedline.kvstore,
    feedline.train.distributed,
    feedline.train.learner,
    feedline.train.parameters,
    feedline.train.rules,
    feedline.train.strategy,
    feedline.train.trainer,
)


class Minibatch:
    """The parts of a minibatch that a trainer uses."""

    num_sequences, partition = 4, (0, 1)

    def __init__(self, rank, step):
        self.sweep_end = step % 3 == 2
        self.x = torch.from_numpy(np.random.default_rng([rank, step]).normal(size=(4, 3)).astype("f4"))


def trainer_of(way):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    learner = WAYS[way](SGD(model.parameters(), 0.1))
    return model, Trainer(
        model, lambda output, minibatch: output[:, 0] ** 2, None, learner, forward=lambda model, m: model(m.x)
    )


def learns(rank, way, stride, steps):
    """Make steps, on rank 0 each with Ctrl-C at another line. Return the parameters and sweeps after each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.distributed.init_process_group("gloo")
    model, trainer = trainer_of(way)
    results, interrupted = [], 0
    for step in range(steps):
        samples = trainer.samples
        minibatch = Minibatch(rank, step)
        # Also in the first step, which makes all ranks equal.
        n = step * stride if rank == 0 and stride else 10**9
        try:
            with AtLine(n, lambda: signal.raise_signal(signal.SIGINT), *CODE):
                trainer.train_minibatch(minibatch)
        except KeyboardInterrupt:
            interrupted += 1
            if trainer.samples == samples:  # the interrupt came before the step
                trainer.train_minibatch(minibatch)
        results.append([*(parameter.tolist() for parameter in model.parameters()), trainer.sweeps])
    trainer.strategy.sync_models()
    results.append([parameter.tolist() for parameter in model.parameters()])
    return results, interrupted


@pytest.mark.parametrize("way", sorted(WAYS))
def test_wherever_it_comes_all_ranks_make_the_step(way):
    steps = examples(25)
    (expected, _), _ = run(learns, 2, way=way, stride=0, steps=steps)
    (first, interrupted), (second, _) = run(learns, 2, way=way, stride=350 // steps, steps=steps)
    assert interrupted > steps // 3
    assert first == expected
    assert second[-1] == expected[-1]


def fails_on_one(rank, way):
    torch.distributed.init_process_group("gloo")
    _, trainer = trainer_of(way)
    trainer.train_minibatch(Minibatch(rank, 0))
    if rank == 0:
        update = trainer.learners[0].update

        def broken(*arguments, **options):
            update(*arguments, **options)
            raise MemoryError("in the middle of an update")

        trainer.learners[0].update = broken
    for step in (1, 2):
        try:
            trainer.train_minibatch(Minibatch(rank, step))
            say("learned")
        except Exception as error:
            say((type(error).__name__, str(error), getattr(error, "ranks", ())))


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_rank_that_fails_in_the_middle_of_an_update_learns_no_more_and_is_reported_to_the_others(way):
    with Job(fails_on_one, 2, way=way) as job:
        assert job.heard(0)[0] == "MemoryError"
        kind, text, _ = job.heard(0)
        assert kind == "StoreError"
        assert "MemoryError in the middle of" in text
        messages = [job.heard(1), job.heard(1)]
    kind, text, ranks = next(one for one in messages if one != "learned")
    assert (kind, ranks) == ("StoreError", (0,))
    assert "abandoned a collective exchange (MemoryError" in text


def gluon(rank, stride, steps):
    """The same for a Trainer of Gluon that updates outside its store."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    trainer = mx.gluon.Trainer(
        dict(model.named_parameters()), "sgd", {"learning_rate": 0.1}, kvstore="dist_sync", update_on_kvstore=False
    )
    interrupted = 0
    for step in range(steps):
        (model(Minibatch(rank, step).x) ** 2).sum().backward()
        round = exchanges_of_trainer(trainer)
        n = step * stride if rank == 0 and stride and step else 10**9
        try:
            with AtLine(n, lambda: signal.raise_signal(signal.SIGINT), feedline.collective, feedline.kvstore, mx):
                trainer.step(8)
        except KeyboardInterrupt:
            interrupted += 1
            if exchanges_of_trainer(trainer) == round:
                trainer.step(8)
            else:
                model.zero_grad()
    return [parameter.tolist() for parameter in model.parameters()], interrupted


def test_wherever_it_comes_all_workers_of_gluon_make_the_step():
    steps = examples(20)
    (expected, _), _ = run(gluon, 2, stride=0, steps=steps)
    (first, interrupted), (second, _) = run(gluon, 2, stride=280 // steps, steps=steps)
    assert interrupted > steps // 3
    assert first == second == expected
