"""Gradients that are exchanged while backward still runs are the sums of all ranks, whatever backward does."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from feedline.errors import StateError  # noqa: E402
from feedline.kvstore import KVStore, create  # noqa: E402
from feedline.train import SGD, Trainer, data_parallel, through_store  # noqa: E402
from feedline.train.distributed import gradients as overlapped  # noqa: E402
from tests.inside import gradients_of  # noqa: E402
from tests.ranks import Job, run  # noqa: E402


class ThirdParty(KVStore):
    """A store that supports only keys, over the transport of another store."""

    type = "third party"

    def __init__(self):
        self._inner = create("dist_sync")
        self.rank_of, self.workers = self._inner.rank, self._inner.num_workers
        self.pushed = []

    rank = property(lambda self: self.rank_of)
    num_workers = property(lambda self: self.workers)

    def init(self, key, value):
        self._inner.init(key, value)

    def push(self, key, value, priority=0):
        self.pushed.append(key)
        self._inner.push(key, value, priority)

    def pull(self, key, out, priority=0):
        self._inner.pull(key, out, priority)

    def is_capable(self, capability):
        return capability == "sum"


WAYS = {
    "data_parallel": data_parallel,
    "through_store": lambda learner: through_store(learner, create("dist_sync")),
    "through a third party's": lambda learner: through_store(learner, ThirdParty()),
}


class Minibatch:
    """The parts of a minibatch that a trainer uses: ``x``, and the branch that samples take."""

    sweep_end, partition = False, (0, 1)

    def __init__(self, x, branch):
        self.x, self.branch = x, branch
        self.num_sequences = self.num_samples = self.global_samples = len(x)

    def parts(self, size):
        return [Minibatch(self.x[k : k + size], self.branch) for k in range(0, len(self.x), size)]


class Model(torch.nn.Module):
    """Layers, of which one of several branches is used, one is never used, and one is used twice."""

    def __init__(self, branches=3, again=lambda layer, x: layer(x)):
        super().__init__()
        self.never = torch.nn.Linear(2, 3)
        self.first = torch.nn.Linear(5, 5)
        self.branches = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(branches))
        self.last = torch.nn.Linear(5, 1)
        self.again = again

    def forward(self, minibatch):
        h = torch.tanh(self.again(self.first, self.again(self.first, minibatch.x)))
        if minibatch.branch is not None:
            h = torch.tanh(self.branches[minibatch.branch](h))
        return self.last(h)


def minibatches(rank, steps, world, uneven):
    """The minibatches of a rank. Some are empty, and branches differ by rank and step."""
    rng = np.random.default_rng(7)
    parts = []
    for step in range(steps):
        x = torch.from_numpy(rng.normal(size=(6, 5)).astype("f4"))
        cuts = (
            sorted(int(c) for c in rng.integers(0, 7, world - 1))
            if uneven
            else [6 * r // world for r in range(1, world)]
        )
        begin, end = ([0, *cuts, 6])[rank : rank + 2]
        branch = [None, 0, 1][(step + rank) % 3] if uneven else step % 2
        parts.append(Minibatch(x[begin:end], branch))
    return parts


def wait_for_frames(trainer):
    """Wait until the other ranks have sent their frames, if this one has."""
    announced = gradients_of(trainer.strategy).announced
    while announced is not None and not announced.work.is_completed():
        time.sleep(0.001)


def learns(rank, way, steps, world, uneven, microbatch=None, size=64, seed=3, slow=False):
    """Return the parameters after each step, and whether gradients were sent within backward."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = size
    if world > 1 or way is not None:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(seed + rank)
    model = Model()
    learner = SGD(model.parameters(), 0.2, l2=0.01)
    learner = learner if way is None else WAYS[way](learner)
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, learner, microbatch=microbatch)
    sent = []
    if way is not None:
        gradients = gradients_of(trainer.strategy)
        model.first.weight.register_post_accumulate_grad_hook(lambda _: sent.append(gradients.sent))
        if slow:
            model.first.weight.register_hook(lambda _: wait_for_frames(trainer))
    seen = []
    for minibatch in minibatches(rank, steps, world, uneven):
        summary = trainer.train_minibatch(minibatch)
        seen.append(([p.tolist() for p in model.parameters()], summary.samples, trainer.samples))
    return seen, sent


def alone(rank, steps, world, uneven):
    """Make the same steps in one process, with the samples of all ranks, each by its branch."""
    torch.manual_seed(3)
    model = Model()
    learner = SGD(model.parameters(), 0.2, l2=0.01)
    seen = []
    of_ranks = [minibatches(r, steps, world, uneven) for r in range(world)]
    for parts in zip(*of_ranks, strict=True):
        model.zero_grad(set_to_none=True)
        for part in parts:
            if len(part.x):
                (model(part)[:, 0] ** 2).sum().backward()
        learner.update(6)
        seen.append([p.tolist() for p in model.parameters()])
    return seen


@pytest.mark.parametrize("microbatch", [None, 2])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_equal_one_process_with_uneven_parts_and_unused_parameters(way, uneven, microbatch):
    """Parts have 0 to 6 samples, one rank or none uses some branches, and minibatches are in pieces."""
    settings = {"steps": 8, "uneven": uneven, "world": 2}
    first, second = run(learns, 2, way=way, microbatch=microbatch, **settings)
    assert first[0] == second[0]
    expected = alone(0, **settings)
    for (parameters, samples, counted), wanted, step in zip(first[0], expected, range(8), strict=True):
        assert (samples, counted) == (6, 6 * (step + 1))
        for got, want in zip(parameters, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_buckets_are_sent_while_backward_runs():
    for _, sent in run(learns, 2, way="data_parallel", steps=4, world=2, uneven=False, slow=True):
        assert sent[0] == 0  # the first step determines the order
        assert sent[2] > 0  # the others use another branch, and gradients after those of the first branch wait


def test_three_ranks_are_equal_and_the_size_of_buckets_matters_in_last_bits_alone():
    settings = {"way": "through_store", "steps": 6, "world": 3, "uneven": True}
    results = [run(learns, 3, size=size, **settings) for size in (64, 1 << 20)]
    for ranks in results:
        assert ranks[0][0] == ranks[1][0] == ranks[2][0]
    for one, other in zip(results[0][0][0], results[1][0][0], strict=True):
        for got, want in zip(one[0], other[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


# ---- the order of gradients -----------------------------------------------------------------------------------


def orders(rank, advice):
    torch.distributed.init_process_group("gloo")
    model = Model()
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    trainer.strategy.take_advice(advice)
    assert trainer.state_dict()[1].get("advice", {}) == advice
    # Rank 0 has no data, so another rank determines the order.
    trainer.train_minibatch(Minibatch(torch.ones(rank, 5), 1))
    return trainer.state_dict()[1]["advice"]["order"]


def test_gradients_lie_as_they_become_ready_unused_ones_last_or_as_a_checkpoint_says():
    names = [name for name, _ in Model().named_parameters()]
    first, second = run(orders, 2, advice={})
    assert first == second
    ready = [names[i].split(".")[0] for i in first]
    assert ready == ["last"] * 2 + ["branches"] * 2 + ["first"] * 2 + ["branches"] * 4 + ["never"] * 2
    order = list(range(len(names)))
    assert run(orders, 2, advice={"order": order}) == [order, order]


@pytest.mark.parametrize("order", ["0", {"0": 1}, [0, "1"], [True]])
def test_a_damaged_order_is_refused(order):
    model = Model()
    trainer = Trainer(model, lambda o, m: o, None, data_parallel(SGD(model.parameters(), 0.1)))
    tensors, state = trainer.state_dict()
    with pytest.raises(StateError, match="order of gradients"):
        trainer.load_state_dict(tensors, {**state, "advice": {"order": order}})


def test_an_order_of_other_learners_is_no_advice():
    model = Model()
    trainer = Trainer(model, lambda o, m: o, None, data_parallel(SGD(model.parameters(), 0.1)))
    tensors, state = trainer.state_dict()
    trainer.load_state_dict(tensors, {**state, "advice": {"order": [1, 0]}})
    assert trainer.strategy.advice() == {}
    Trainer(model, lambda o, m: o, None, SGD(model.parameters(), 0.1)).load_state_dict(
        tensors, {**state, "advice": {"order": [1, 0]}}
    )


# ---- backward passes --------------------------------------------------------------------------------------------


def checkpointed(rank, reentrant):
    """A layer that is used twice, each time in a part of the graph with a separate backward."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = 64
    torch.distributed.init_process_group("gloo")

    def again(layer, x):
        return torch.utils.checkpoint.checkpoint(layer, x.requires_grad_(), use_reentrant=reentrant)

    results = []
    for way in (None, data_parallel):
        torch.manual_seed(0)
        model = Model(again=again)
        learner = SGD(model.parameters(), 0.1)
        trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, learner if way is None else way(learner))
        for step in range(3):
            x = torch.from_numpy(np.random.default_rng(step).normal(size=(4, 5)).astype("f4"))
            part = x if way is None else x[2 * rank : 2 * rank + 2]
            trainer.train_minibatch(Minibatch(part, 0))
        results.append([p.tolist() for p in model.parameters()])
    return results


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_that_backward_adds_to_several_times(reentrant):
    for one, ours in run(checkpointed, 2, reentrant=reentrant):
        for got, want in zip(ours, one, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def adds_late(rank):
    """A gradient that backward accumulates more often than in the first step."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = 64
    torch.distributed.init_process_group("gloo")
    twice = [False]

    def again(layer, x):
        if not twice[0]:
            return layer(x)
        return torch.utils.checkpoint.checkpoint(layer, x.requires_grad_(), use_reentrant=True)

    model = Model(again=again)
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    trainer.train_minibatch(Minibatch(torch.ones(2, 5), 0))
    twice[0] = rank == 0
    model.first.weight.register_hook(lambda _: wait_for_frames(trainer))
    trainer.train_minibatch(Minibatch(torch.ones(2, 5), 0))


def test_a_gradient_that_changes_after_it_was_sent_is_an_error_on_all_ranks():
    with Job(adds_late, 2) as job:
        first, second = job.results()
    assert (first.kind, second.kind) == ("RuntimeError", "StoreError")
    assert "use_reentrant=False" in first.text
    assert "RuntimeError" in second.text


def fails(rank, where):
    """An error on rank 0, in the forward or in the backward pass of its second step."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = 64
    torch.distributed.init_process_group("gloo")
    model = Model()
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    minibatch = Minibatch(torch.ones(2, 5), 0)
    trainer.train_minibatch(minibatch)

    def fail(*_):
        raise ZeroDivisionError("of the model")

    if rank == 0:
        module = model.first
        handle = module.register_forward_hook(fail) if where == "forward" else module.weight.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            trainer.train_minibatch(minibatch)
        handle.remove()
    trainer.train_minibatch(minibatch)
    return [p.tolist() for p in model.parameters()]


def test_an_error_before_anything_was_sent_leaves_the_ranks_in_step():
    first, second = run(fails, 2, where="forward")
    assert first == second


def test_an_error_in_backward_is_reported_to_the_others():
    with Job(fails, 2, where="backward") as job:
        first, second = job.results()
    assert [first.kind, second.kind] == ["StoreError", "StoreError"]
    assert "ZeroDivisionError" in second.text


def outside(rank):
    """Backward passes outside the trainer."""
    torch.distributed.init_process_group("gloo")
    model = Model()
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    minibatch = Minibatch(torch.ones(2, 5), 0)
    for _ in range(2):
        trainer.train_minibatch(minibatch)
        for _ in range(1 + rank):
            model(minibatch).sum().backward()
    return [p.tolist() for p in model.parameters()]


def test_other_backward_passes_exchange_nothing():
    first, second = run(outside, 2)
    assert first == second


def test_nothing_is_left_at_the_parameters_of_a_trainer_that_is_gone():
    model = torch.nn.Linear(2, 2)
    trainer = Trainer(model, lambda o, m: o, None, data_parallel(SGD(model.parameters(), 0.1)))

    def hooks():
        return model.weight._post_accumulate_grad_hooks

    assert hooks()
    del trainer
    gc.collect()
    assert not hooks()


def moved(rank, way, dtypes):
    """A model that is converted during training."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = 64
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    learner = WAYS[way](SGD(model.parameters(), 0.1))
    trainer = Trainer(model, lambda o, m: o[:, 0].float() ** 2, None, learner)
    rng, found = np.random.default_rng(rank), []
    for dtype in (torch.float32, *dtypes):
        model.to(dtype)
        for _ in range(2):
            x = torch.from_numpy(rng.normal(size=(2 + rank, 5))).to(dtype)
            trainer.train_minibatch(Minibatch(x, 0))
            found.append([p.tolist() for p in model.parameters()])
    return found


@pytest.mark.parametrize("way", WAYS)
def test_ranks_stay_equal_when_a_model_is_converted_between_steps(way):
    """`module.to` moves gradients by `grad.data`, too."""
    first, second = run(moved, 2, way=way, dtypes=[torch.bfloat16, torch.float64])
    assert first == second
    assert first[0] != first[1] != first[2] != first[4]


def converted_alone(rank):
    torch.distributed.init_process_group("gloo")
    model = Model()
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    for dtype in (torch.float32, torch.float32 if rank else torch.float64):
        model.to(dtype)
        trainer.train_minibatch(Minibatch(torch.ones(2, 5, dtype=dtype), 0))


def test_a_model_that_one_rank_converts_is_an_error_on_all():
    with Job(converted_alone, 2) as job:
        first, second = job.results()
    assert (first.kind, second.kind) == ("StoreError", "StoreError")
    assert "lay out gradients" in first.text


def data_later(rank):
    """A rank has no data at first, and backward adds to one layer's gradient twice."""
    overlapped.FIRST_BUCKET_BYTES = overlapped.BUCKET_BYTES = 64
    torch.distributed.init_process_group("gloo")

    def again(layer, x):
        return torch.utils.checkpoint.checkpoint(layer, x.requires_grad_(), use_reentrant=True)

    model = Model(again=again)
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, data_parallel(SGD(model.parameters(), 0.1)))
    model.first.weight.register_hook(lambda _: wait_for_frames(trainer))
    for step in range(2):
        trainer.train_minibatch(Minibatch(torch.ones(2 * (rank or step), 5), 0))
    return [p.tolist() for p in model.parameters()]


def test_ranks_without_data_at_first_learn_how_often_backward_adds():
    first, second = run(data_later, 2)
    assert first == second


def of_another_dtype(rank, later):
    torch.distributed.init_process_group("gloo")
    model = Model().double()
    store = create("dist_sync")
    trainer = Trainer(model, lambda o, m: o[:, 0] ** 2, None, through_store(SGD(model.parameters(), 0.1), store))
    minibatch = Minibatch(torch.ones(2, 5, dtype=torch.float64), 0)
    if later:
        trainer.train_minibatch(minibatch)
    store.set_gradient_compression({"type": "2bit"})
    trainer.train_minibatch(minibatch)


@pytest.mark.parametrize("later", [False, True])
def test_a_compression_that_does_not_take_a_gradient_is_refused(later):
    with Job(of_another_dtype, 2, later=later) as job:
        for failure in job.results():
            assert (failure.kind, "expected float32 for 2bit" in failure.text) == ("RefusedError", True), failure
