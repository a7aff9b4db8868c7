"""`gluon.Trainer`: the same weights wherever gradients are added up and wherever updates are made."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
import feedline.mxnet as mx  # noqa: E402
from tests.inside import store_of_trainer  # noqa: E402
from tests.ranks import run  # noqa: E402

STEPS, BATCH = 6, 12
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.05, "rescale_grad": 2.0},
}


def models(copies):
    """Equal models, and their parameters as a trainer takes them."""
    torch.manual_seed(0)
    first = torch.nn.Linear(3, 2)
    made = [first, *(copy.deepcopy(first) for _ in range(copies - 1))]
    return made, {
        name: [dict(model.named_parameters())[name] for model in made] for name, _ in made[0].named_parameters()
    }


def batches(steps=STEPS, skipped=0):
    rng = np.random.default_rng(1)
    found = [torch.from_numpy(rng.normal(size=(BATCH, 3)).astype("f4")) for _ in range(steps)]
    return found[skipped:]


def backward(model, x):
    """The sum of the losses, as MXNet's ``loss.backward()`` of a vector."""
    ((model(x) - x[:, :2]) ** 2).sum().backward()


def trains(copies=1, share=(0, 1), batch_size=BATCH, **options):
    """Return the final value of the first copy. Each copy of each worker learns from its part of each batch."""
    made, parameters = models(copies)
    trainer = mx.gluon.Trainer(parameters, **options)
    for x in batches():
        own = x.chunk(share[1])[share[0]]
        for model, part in zip(made, own.chunk(copies), strict=True):
            backward(model, part)
        if options.get("update_on_kvstore") is False and copies > 1:
            trainer.allreduce_grads()
            trainer.update(batch_size)
        else:
            trainer.step(batch_size)
    for model in made[1:]:
        assert all(map(torch.equal, model.parameters(), made[0].parameters()))
    return [parameter.tolist() for parameter in made[0].parameters()]


def by_hand(name, optimizer_params):
    """The rule of the store, on mean gradients."""
    made, _ = models(1)
    numbers = {**optimizer_params, "rescale_grad": optimizer_params.get("rescale_grad", 1.0) / BATCH}
    rule = fl.kvstore.optimizer(name, **numbers)
    for x in batches():
        made[0].zero_grad()
        backward(made[0], x)
        with torch.no_grad():
            for i, parameter in enumerate(made[0].parameters()):
                rule(i, parameter.grad, parameter.detach())
    return [parameter.tolist() for parameter in made[0].parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("copies", "options"),
    [
        (1, {}),
        (1, {"kvstore": None}),
        (2, {"kvstore": "local"}),
        (3, {"kvstore": "device"}),
        (2, {"kvstore": "device", "update_on_kvstore": False}),
    ],
)
def test_devices_learn_what_one_learns(name, copies, options):
    found = trains(copies, optimizer=name, optimizer_params=OPTIMIZERS[name], **options)
    for ours, hand in zip(found, by_hand(name, OPTIMIZERS[name]), strict=True):
        np.testing.assert_allclose(ours, hand, rtol=1e-4, atol=1e-6)


def works(rank, update_on_kvstore, copies):
    return trains(
        copies,
        (rank, 2),
        optimizer="sgd",
        optimizer_params=OPTIMIZERS["sgd"],
        kvstore="dist_sync",
        update_on_kvstore=update_on_kvstore,
    )


@pytest.mark.parametrize(("update_on_kvstore", "copies"), [(None, 1), (False, 1), (None, 2)])
def test_workers_learn_what_one_learns(update_on_kvstore, copies):
    first, second = run(works, 2, update_on_kvstore=update_on_kvstore, copies=copies)
    assert first == second
    for ours, hand in zip(first, by_hand("sgd", OPTIMIZERS["sgd"]), strict=True):
        np.testing.assert_allclose(ours, hand, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("copies", "kvstore", "asked", "made"),
    [
        (1, "device", None, (None, False)),
        (1, "local", False, (None, False)),
        (1, None, None, (None, False)),
        (2, None, None, (None, False)),
        (2, "device", None, ("device", True)),
        (2, "local", True, ("local", True)),
        (2, "device", False, ("device", False)),
        (1, "an object", None, ("local", True)),
        (1, "an object", False, ("local", False)),
    ],
)
def test_where_updates_are_made_is_mxnets(copies, kvstore, asked, made):
    given = mx.kv.create("local") if kvstore == "an object" else kvstore
    made_models, parameters = models(copies)
    trainer = mx.gluon.Trainer(parameters, "sgd", kvstore=given, update_on_kvstore=asked)
    for model in made_models:
        backward(model, batches()[0])
    trainer.step(BATCH)
    store = store_of_trainer(trainer)
    assert (None if store is None else store.type, trainer._on_store) == made


def test_a_rate_set_on_the_way_and_another_batch_size_count_at_once():
    for options in ({}, {"kvstore": mx.kv.create("local")}):
        weight = torch.nn.Parameter(torch.zeros(2))
        trainer = mx.gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, **options)
        weight.grad = torch.tensor([1.0, 2.0])
        trainer.step(1)
        trainer.set_learning_rate(0.5)
        assert trainer.learning_rate == 0.5
        weight.grad = torch.tensor([1.0, 2.0])
        trainer.step(2)
        assert weight.tolist() == [-1.25, -2.5]


def test_a_step_forgets_gradients_and_a_parameter_without_one_is_an_error():
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    trainer = mx.gluon.Trainer(dict(zip("ab", weights, strict=True)), "sgd", {"learning_rate": 1.0})
    (2 * weights[0]).sum().backward()
    with pytest.raises(UserWarning, match="'b'"):
        trainer.step(1)
    trainer.step(1, ignore_stale_grad=True)
    assert [weight.tolist() for weight in weights] == [[-2.0] * 2, [0.0] * 2]
    (2 * weights[0] + weights[1]).sum().backward()
    trainer.step(1)
    assert [weight.tolist() for weight in weights] == [[-4.0] * 2, [-1.0] * 2]


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_go_on(name, on_store, tmp_path):
    def trainer(parameters):
        options = {"kvstore": mx.kv.create("local")} if on_store else {}
        return mx.gluon.Trainer(parameters, name, OPTIMIZERS[name], **options)

    def train(model, trainer, data):
        for x in data:
            backward(model, x)
            trainer.step(BATCH)

    ends = []
    for cut in (False, True):
        (model,), _ = models(1)
        one = trainer(list(model.parameters()))
        train(model, one, batches(3))
        if cut:
            one.set_learning_rate(0.025)
            one.save_states(str(tmp_path / "states"))
            one = trainer(list(model.parameters()))
            one.load_states(str(tmp_path / "states"))
            assert one.learning_rate == 0.025
            one.set_learning_rate(OPTIMIZERS[name]["learning_rate"])
        train(model, one, batches(skipped=3))
        ends.append([parameter.tolist() for parameter in model.parameters()])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kvstore", ["device", "an object"])
def test_gradients_of_rows(kvstore):
    table = torch.nn.Embedding(5, 2, sparse=True)
    before = table.weight.detach().clone()
    store = mx.kv.create("local") if kvstore == "an object" else kvstore
    trainer = mx.gluon.Trainer(list(table.parameters()), "sgd", {"learning_rate": 0.5}, kvstore=store)
    table(torch.tensor([1, 3, 1])).sum().backward()
    trainer.step(1)
    expected = before.clone()
    expected[1] -= 1.0
    expected[3] -= 0.5
    torch.testing.assert_close(table.weight.detach(), expected)


def test_compressed():
    copies = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    trainer = mx.gluon.Trainer(
        [copies], "sgd", {"learning_rate": 1.0}, compression_params={"type": "2bit", "threshold": 0.5}
    )
    for one, gradient in zip(copies, ([0.6, 0.1, -0.7], [0.6, 0.1, 0.1]), strict=True):
        one.grad = torch.tensor(gradient)
    trainer.step(1)
    assert copies[0].tolist() == copies[1].tolist() == [-1.0, 0.0, 0.5]


def test_what_is_refused():
    weight = torch.nn.Parameter(torch.zeros(2))
    trainer = mx.gluon.Trainer
    with pytest.raises(ValueError, match="list or dict"):
        trainer(weight, "sgd")
    with pytest.raises(ValueError, match="torch tensor"):
        trainer(["w"], "sgd")
    with pytest.raises(ValueError, match="equally many copies"):
        trainer([weight, [weight, weight]], "sgd")
    with pytest.raises(TypeError, match="KVStore, str or None"):
        trainer([weight], "sgd", kvstore=3)
    with pytest.raises(ValueError, match="optimizer_params"):
        trainer([weight], mx.optimizer.SGD(), {"learning_rate": 1.0})
    with pytest.raises(mx.MXNetError, match="no_such_rule"):
        trainer([weight], "no_such_rule")
    weight.grad = torch.ones(2)
    with pytest.raises(ValueError, match="update_on_kvstore=True"):
        trainer([weight], "sgd", update_on_kvstore=True).step(1)
    on_store = trainer([weight], "sgd", kvstore=mx.kv.create("local"))
    for call in (on_store.allreduce_grads, lambda: on_store.update(1)):
        with pytest.raises(AssertionError, match="update_on_kvstore=False"):
            call()
    assert weight.tolist() == [0.0, 0.0]
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse"):
        trainer([table.weight], "sgd", kvstore=mx.kv.create("local"), update_on_kvstore=False).step(1)


def test_what_gluon_lacks_is_named():
    with pytest.raises(fl.CompatError, match=r"torch\.nn"):
        _ = mx.gluon.nn
    with pytest.raises(fl.CompatError, match="DataLoader"):
        _ = mx.gluon.data
