"""Strategies: CNTK's numbers, equal models for any data of the ranks, and runs that resume."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import feedline as fl  # noqa: E402
from feedline.errors import StateError  # noqa: E402
from feedline.kvstore import create  # noqa: E402
from feedline.train import (  # noqa: E402
    SGD,
    Adam,
    Evaluation,
    Saving,
    Schedule,
    Trainer,
    TrainingSession,
    block_momentum,
    data_parallel,
    quantized,
    through_store,
)
from feedline.train.distributed.quantize_gradients import Code  # noqa: E402
from feedline.train.strategy import Contribution  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.inside import gradients_of, hold_back_as  # noqa: E402
from tests.ranks import Job, run  # noqa: E402

WAYS = {
    "data_parallel": lambda learner, **options: data_parallel(learner, **options),
    "through_store": lambda learner, **options: through_store(learner, create("dist_sync"), **options),
    "quantized": lambda learner, **options: quantized(learner, 1, **options),
    "block_momentum": lambda learner, **options: block_momentum(learner, 40, **options),
    "block_momentum, states kept": lambda learner, **options: block_momentum(learner, 40, reset=False, **options),
}


def begin():
    """Initialise torch.distributed from the variables that a launcher sets."""
    torch.distributed.init_process_group("gloo")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(6, 12)
        self.scaled = torch.nn.BatchNorm1d(12)  # has its own statistics
        self.head = torch.nn.Linear(12, 3)

    def forward(self, minibatch):
        x = minibatch["x"].torch()
        return self.head(torch.tanh(self.scaled(self.body(x)) if len(x) > 1 else self.body(x)))


def losses(output, minibatch):
    return torch.nn.functional.cross_entropy(output, minibatch["y"].torch(), reduction="none")


def wrong(output, minibatch):
    return (output.argmax(1) != minibatch["y"].torch()).float()


def data(n=150):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype("f4")
    return {"x": x, "y": x[:, :3].argmax(1)}


class Watches:
    """A reporter that records its events, and can fail."""

    def __init__(self, stop_at=None):
        self.seen, self.left = [], stop_at

    def on_update(self, run, summary):
        self.seen.append([summary.samples, float(summary.loss_sum), float(summary.metric_sum)])

    def on_test(self, run, what, result):
        self.seen.append([what, result.summary.samples, float(result.summary.loss_sum)])

    def on_checkpoint(self, run, path):
        self.left = None if self.left is None else self.left - 1

    def __getattr__(self, name):
        return lambda *arguments: None


class Killed(Exception):
    """Simulates a power cut."""


def trains(rank, way, folder=None, killed_after=None, filling="global", order="feedline", sweeps=2, **options):
    begin()
    source = fl.MinibatchSource(
        fl.ArrayDeserializer(**data()), seed=3, max_sweeps=sweeps, filling=filling, shuffle=order == "feedline"
    )
    torch.manual_seed(rank)  # all begin with rank 0's parameters nevertheless
    model = Model()
    learner = WAYS[way](Adam(model.parameters(), Schedule([0.02, 0.01], epoch_size=100)), **options)
    watch = Watches()
    if killed_after is not None:

        def cut(run, summary):
            Watches.on_update(watch, run, summary)
            if len(watch.seen) == killed_after:
                raise Killed

        watch.on_update = cut
    session = TrainingSession(
        Trainer(model, losses, wrong, learner),
        source,
        16,
        reporters=[watch],
        saving=None if folder is None else Saving(folder, every=fl.minibatches(2)),
        validation=Evaluation(fl.MinibatchSource(fl.ArrayDeserializer(**data(20)), max_sweeps=1), every=fl.sweeps(1)),
    )
    try:
        session.run()
    except Killed:
        return None
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    result = {"state": state, "seen": watch.seen, "samples": session.samples, "sweeps": session.sweeps}
    torch.distributed.destroy_process_group()
    return result


@pytest.mark.parametrize("way", WAYS)
def test_ranks_stay_equal_and_a_killed_run_ends_as_one_that_went_on(way, tmp_path):
    undisturbed = run(trains, 2, way=way, folder=str(tmp_path / "whole"))
    assert undisturbed[0] == undisturbed[1]
    assert undisturbed[0]["samples"] == 300
    assert undisturbed[0]["sweeps"] == 2
    folder = str(tmp_path / "cut")
    assert run(trains, 2, way=way, folder=folder, killed_after=5) == [None, None]
    resumed = run(trains, 2, way=way, folder=folder)
    assert resumed[0]["state"] == resumed[1]["state"] == undisturbed[0]["state"]


@pytest.mark.parametrize("way", ["data_parallel", "through_store", "block_momentum"])
def test_until_distributed_after_all_learn_the_same(way):
    first, second = run(trains, 2, way=way, distributed_after=96)
    assert first == second
    (alone,) = run(trains, 1, way="data_parallel")
    steps = 96 // 16
    np.testing.assert_allclose(first["seen"][:steps], alone["seen"][:steps], rtol=1e-5)
    assert [len(first["seen"]) < len(alone["seen"])] == [way == "block_momentum"]  # its minibatches grow


@pytest.mark.parametrize("way", WAYS)
def test_ranks_whose_sources_end_at_different_times_end_together(way):
    """CNTK's filling with one chunk gives everything to one rank."""
    first, second = run(trains, 2, way=way, filling="cntk", sweeps=1)
    assert first["state"] == second["state"]
    assert first["samples"] == second["samples"] == 150
    assert first["sweeps"] == second["sweeps"] == 1


def goes_on_at_rank_0(rank):
    begin()
    model = Model()
    learner = data_parallel(SGD(model.parameters(), 0.1))
    trainer = Trainer(model, losses, None, learner)
    if rank == 0:
        learner.load_state_dict({**learner.state_dict(), "samples": 50, "minibatches": 5, "sweeps": 2})
    for minibatch in fl.MinibatchSource(fl.ArrayDeserializer(**data(20)), max_sweeps=1).minibatches(10):
        trainer.train_minibatch(minibatch)
    torch.distributed.destroy_process_group()
    return trainer.samples, trainer.sweeps


def test_sweeps_continue_from_rank_0s():
    """The other ranks get its clock with its learners' states, and end the next sweep with it."""
    assert run(goes_on_at_rank_0, 2) == [(70, 3)] * 2


# ---- through a store ------------------------------------------------------------------------------------------


def step(learner, samples, update=lambda total: None):
    """Make one step of all ranks, from the gradients in the parameters."""
    with learner.strategy.step():
        total = learner.strategy.reduce(Contribution(samples, 0.0, 0.0, 0.0, 0.0, 0, 1))
        update(total)
    return total


def through(rank, gradients, kind, compression=None, rule=None):
    """Return the result of a step for the ranks' gradients of two parameters, None: no gradient."""
    begin()
    model = torch.nn.Linear(3, 1)
    with create(kind) as store:
        store.set_gradient_compression(compression) if compression else None
        if rule:
            store.set_optimizer(rule)
        learner = through_store(SGD(model.parameters(), 0.1), store)
        Trainer(model, losses, None, learner)
        results = []
        for own in gradients:
            for parameter, values in zip(model.parameters(), own[rank], strict=True):
                parameter.grad = None if values is None else torch.tensor(values).view(parameter.shape)
            total = step(learner, 1.0 + rank)
            grads = [parameter.grad for parameter in model.parameters()]
            results.append((total.learned, [None if g is None else g.view(-1).tolist() for g in grads]))
        return results


def test_a_store_adds_up_what_ranks_have_and_what_nobody_has_stays_nothing():
    gradients = [
        (([1.0, 2.0, 3.0], [1.0]), ([0.5, 0.5, 0.5], None)),
        (([1.0, 2.0, 3.0], None), (None, None)),
        ((None, [2.0]), (None, [4.0])),
    ]
    first, second = run(through, 2, gradients=gradients, kind="dist_sync")
    assert first == second
    assert first == [(3, [[1.5, 2.5, 3.5], [1.0]]), (3, [[1.0, 2.0, 3.0], None]), (3, [None, [6.0]])]


def test_a_stores_compression_is_the_learners():
    gradients = [(([0.3, 2.0, -0.7], [0.1]), ([0.6, 0.1, -0.1], [0.0]))] * 2
    first, second = run(through, 2, gradients=gradients, kind="dist_sync", compression={"type": "2bit"})
    assert first == second
    assert [grads[0] for _, grads in first] == [[0.5, 0.5, -0.5], [1.0, 0.5, -0.5]]


@pytest.mark.parametrize(
    ("settings", "said"), [({"kind": "local"}, "all 2 ranks share"), ({"kind": "dist_sync", "rule": "sgd"}, "sums")]
)
def test_a_store_that_does_not_add_up_is_refused(settings, said):
    with Job(through, 2, gradients=[(([1.0] * 3, [1.0]),) * 2], **settings) as job:
        for failure in job.results():
            assert failure.kind == "ValueError"
            assert said in failure.text


def test_learners_of_several_stores_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    learners = [through_store(SGD(part.parameters(), 0.1), create("local")) for part in model]
    with pytest.raises(ValueError, match="one store"):
        Trainer(model, losses, None, learners)


def two_trainers(rank):
    """Two models of one job take turns, as adversaries do. Their gradients are 1 + rank, and ten times that."""
    begin()
    models = [torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(2, 1, bias=False)]
    with create("dist_sync") as store:
        learners = [through_store(SGD(model.parameters(), 0.1), store) for model in models]
        for model, learner in zip(models, learners, strict=True):
            Trainer(model, losses, None, learner)
        for _ in range(2):
            for scale, model, learner in zip((1.0, 10.0), models, learners, strict=True):
                model.weight.grad = torch.full_like(model.weight, scale * (1 + rank))
                step(learner, 1.0)
        return [model.weight.grad.view(-1).tolist() for model in models]


def test_trainers_may_share_a_store():
    assert run(two_trainers, 2) == [[[3.0], [30.0, 30.0]]] * 2


def final(rank, way):
    return trains(rank, way)["state"]


def test_through_a_store_as_without_one():
    assert run(final, 2, way="through_store") == run(final, 2, way="data_parallel")


# ---- CNTK's numbers -------------------------------------------------------------------------------------------


def one_step(rank, gradients, bits):
    begin()
    model = torch.nn.Linear(4, 1, bias=False)
    learner = quantized(SGD(model.parameters(), 0.1), bits)
    Trainer(model, losses, None, learner)
    results = []
    for own in gradients:
        model.weight.grad = torch.tensor([own[rank]])
        step(learner, 1.0)
        results.append(model.weight.grad[0].tolist())
    return results


def test_one_bit_is_cntks():
    gradients = [([0.4, -0.2, 0.1, 0.8], [1.2, -0.6, 0.3, 2.4])]
    results = run(one_step, 2, gradients=gradients, bits=1)
    assert results[0] == results[1]
    np.testing.assert_allclose(results[0], [[1.7333, -0.8, 1.7333, 1.7333]], atol=1e-4)


@pytest.mark.parametrize("bits", [1, 2, 3, 8])
def test_what_is_sent_and_what_is_left_is_what_was_given(bits):
    rng = np.random.default_rng(bits)
    gradients = rng.normal(size=(40, 2, 4)).tolist()
    results = run(one_step, 2, gradients=gradients, bits=bits)
    assert results[0] == results[1]
    # The remainder is bounded, so over many steps the mean of the applied gradients is the mean of the sums.
    lost = np.sum(results[0], 0) - np.sum(gradients, (0, 1))
    assert np.abs(lost).max() < 10.0 / bits


@given(
    st.integers(1, 16),
    st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=5, max_size=5), min_size=1, max_size=4),
)
@settings(max_examples=examples(30), deadline=None)
def test_codes_decode_to_near_what_was_coded(bits, rows):
    value = torch.tensor(rows)
    code = Code(bits)
    again = code.decode(code.encode(value), 5)
    rms = value.double().square().mean(1, keepdim=True).sqrt()
    if bits == 1:
        for row, got in zip(value, again, strict=True):
            for selected in (row < 0, row >= 0):
                if selected.any():
                    assert torch.allclose(
                        got[selected], row[selected].mean().expand(int(selected.sum())), rtol=1e-4, atol=1e-4
                    )
    else:
        # Half a level's width, as no element is outside 4 root mean squares of 5 elements. Squares of numbers below
        # 1e-20 vanish in float32, so these are not sent, and remain for the next time.
        assert ((again - value).abs() <= 4 * rms / 2**bits + 1e-4 * rms + 1e-20).all()


def blocks(rank, moves, samples, **options):
    begin()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    learner = block_momentum(SGD(model.parameters(), 0.1), **options)
    Trainer(model, losses, None, learner)
    results = []
    for move, own in zip(moves, samples, strict=True):

        def update(total, by=move[rank]):
            with torch.no_grad():
                model.weight -= by

        step(learner, own[rank], update)
        results.append(model.weight.item())
    learner.strategy.sync_models()
    return results, model.weight.item()


def test_block_momentum_is_cntks():
    time_constant = 40 / math.log(2)
    results = run(blocks, 2, moves=[(0.3, 0.18)], samples=[(20, 20)], block_size=40, time_constant=time_constant)
    assert results[0] == results[1]
    assert results[0][0][0] == pytest.approx(0.64)


def test_block_momentum_without_momentum_is_the_mean_and_unequal_ranks_end_equal():
    results = run(blocks, 2, moves=[(0.3, 0.1), (0.2, 0.4)], samples=[(30, 10), (0, 10)], block_size=40, nesterov=False)
    assert results[0][0][0] == results[1][0][0] == pytest.approx(1 - 0.2)  # eta is 1/2, and half of the sum is the mean
    assert results[0][0][1] != results[1][0][1]
    assert results[0][1] == results[1][1]


# ---- errors ---------------------------------------------------------------------------------------------------


def different_models(rank):
    begin()
    model = torch.nn.Linear(4, 1 + rank)
    learner = data_parallel(SGD(model.parameters(), 0.1))
    Trainer(model, losses, None, learner)
    step(learner, 1.0)


def test_ranks_with_different_models_get_an_error():
    with Job(different_models, 2) as job:
        for failure in job.results():
            assert failure.kind == "StoreError"
            assert "weight (2, 4)" in failure.text


def different_minibatches(rank):
    begin()
    model = torch.nn.Linear(4, 1)
    learner = data_parallel(SGD(model.parameters(), 0.1), distributed_after=100)
    Trainer(model, losses, None, learner)
    step(learner, 3.0 + rank)


def test_ranks_that_part_too_early_get_an_error():
    with Job(different_minibatches, 2) as job:
        for failure in job.results():
            assert failure.kind == "StoreError"
            assert "partition=(0, 1)" in failure.text


def test_ways_are_not_mixed():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    learners = [data_parallel(SGD(model[0].parameters(), 0.1)), quantized(SGD(model[1].parameters(), 0.1))]
    with pytest.raises(ValueError, match="one strategy"):
        Trainer(model, losses, None, learners)


def test_another_ways_state_is_refused():
    model = torch.nn.Linear(2, 2)
    saved = Trainer(model, losses, None, block_momentum(SGD(model.parameters(), 0.1), 10)).state_dict()
    for learner in (SGD(model.parameters(), 0.1), data_parallel(SGD(model.parameters(), 0.1))):
        with pytest.raises(StateError, match="block_momentum"):
            Trainer(model, losses, None, learner).load_state_dict(*saved)


@pytest.mark.parametrize(
    "make",
    [
        lambda learner: quantized(learner, 0),
        lambda learner: quantized(learner, 17),
        lambda learner: block_momentum(learner, 0),
        lambda learner: block_momentum(learner, 5, time_constant=-1),
        lambda learner: block_momentum(learner, 5, learning_rate=0),
        lambda learner: data_parallel(learner, distributed_after=-1),
        lambda learner: data_parallel(learner, timeout=0),
        lambda learner: through_store(learner, create("local"), distributed_after=-1),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(ValueError, match="expected"):
        make(SGD(torch.nn.Linear(2, 2).parameters(), 0.1))


def test_remainders_of_compression_wait_for_a_gradient():
    """A step in which no rank has a gradient sends no remainders, and loses none."""
    some, none = (([0.3, 0.0, 0.0], [0.1]), ([0.2, 0.0, 0.0], None)), ((None, [0.1]), (None, None))
    first, second = run(through, 2, gradients=[some, none, some], kind="dist_sync", compression={"type": "2bit"})
    assert first == second
    assert [grads[0] for _, grads in first] == [[0.0] * 3, None, [0.5, 0.0, 0.0]]


@pytest.mark.parametrize("kind", ["2bit", "1bit", "bf16", "fp16"])
def test_compressed_in_buckets_as_under_keys(kind):
    rng = np.random.default_rng(2)
    steps = [[(rng.normal(size=3).tolist(), rng.normal(size=1).tolist()) for _ in range(2)] for _ in range(5)]
    results = run(through, 2, gradients=steps, kind="dist_sync", compression={"type": kind})
    keyed = run(under_keys, 2, gradients=steps, compression={"type": kind})
    for ours, theirs in zip(results, keyed, strict=True):
        assert [grads for _, grads in ours] == theirs


def under_keys(rank, gradients, compression):
    results = []
    with create("dist_sync") as store:
        store.set_gradient_compression(compression)
        store.init(["weight", "bias"], [torch.zeros(3), torch.zeros(1)])
        for own in gradients:
            outs = [torch.empty(3), torch.empty(1)]
            for key, values in zip(["weight", "bias"], own[rank], strict=True):
                store.push(key, torch.tensor(values))
            for key, out in zip(["weight", "bias"], outs, strict=True):
                store.pull(key, out)
            results.append([out.tolist() for out in outs])
    return results


def compressed(rank, kind, folder=None, killed_after=None, steps=12):
    """Return the final parameters, and this rank's remainders."""
    begin()
    store = create("dist_sync")
    store.set_gradient_compression(kind)
    torch.manual_seed(0)
    model = Model()
    learner = through_store(Adam(model.parameters(), 0.02), store)
    source = fl.MinibatchSource(fl.ArrayDeserializer(**data()), seed=3)
    TrainingSession(
        Trainer(model, losses, wrong, learner),
        source,
        16,
        max_samples=16 * (killed_after or steps),
        saving=None if folder is None else Saving(folder, every=fl.minibatches(2)),
    ).run()
    residuals = gradients_of(learner.strategy).sums.residuals()
    return [p.tolist() for p in model.parameters()], {i: t.tolist() for i, t in sorted(residuals.items())}


@pytest.mark.parametrize("kind", [{"type": "2bit", "threshold": 0.3}, {"type": "1bit"}, {"type": "bf16"}])
def test_what_compression_holds_back_is_in_checkpoints(kind, tmp_path):
    undisturbed = run(compressed, 2, kind=kind, folder=str(tmp_path / "whole"))
    folder = str(tmp_path / "cut")
    run(compressed, 2, kind=kind, folder=folder, killed_after=6)
    assert run(compressed, 2, kind=kind, folder=folder) == undisturbed
    assert undisturbed[0][0] == run(compressed, 2, kind=kind)[0][0]  # checkpoints change nothing


@pytest.mark.parametrize("world", [1, 2, 3])
def test_another_number_of_ranks_takes_over_all_that_was_held_back(world):
    store = create("local")
    code = {"type": "2bit", "threshold": 0.5}
    residuals = {f"residual {rank} 0": torch.full((3,), 10.0**rank) for rank in range(2)}
    taken = []
    for rank in range(world):
        strategy = through_store(SGD([torch.zeros(3)], 0.1), store).strategy
        strategy.parameters = [torch.zeros(3)]
        state = {"residuals": {"code": code, "ranks": 2, "parameters": 1}, "tensors": residuals}
        hold_back_as(strategy, rank, world, state, SimpleNamespace(code=code, set_residuals=taken.append))
    assert len(taken) == world
    assert sum(float(held[0][0]) for held in taken if held) == 11.0


@pytest.mark.parametrize(
    "damage",
    [
        {"residuals": {"ranks": 2, "parameters": 1}},
        {"residuals": {"code": None, "ranks": True, "parameters": 1}},
        {"residuals": 3},
        {"tensors": {}},
        {"tensors": {"residual 0 0": torch.zeros(2), "residual 1 0": torch.zeros(2)}},
    ],
)
def test_damaged_residuals_are_refused(damage):
    strategy = through_store(SGD([torch.zeros(3)], 0.1), create("local")).strategy
    strategy.parameters = [torch.zeros(3)]
    good = {"residuals": {"code": None, "ranks": 2, "parameters": 1}, "tensors": {}}
    with pytest.raises(StateError):
        strategy.take_advice({**good, **damage})
