"""Optimizers of torch with our clock: the same steps as by hand, and states without pickle."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from feedline import StateError
from feedline.train import Schedule, TorchLearner

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 0.1, betas=(0.8, 0.9), amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.1),
    "asgd": lambda p: torch.optim.ASGD(p, 0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.1),
}


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def data(k):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(k))


def train(net, learner, steps):
    for k in steps:
        net.zero_grad()
        net(data(k)).pow(2).sum().backward()
        learner.update(8)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_does_what_the_optimizer_does_by_hand(kind):
    ours, by_hand = model(), model()
    rates = [0.1, 0.1, 0.05, 0.05, 0.05]
    learner = TorchLearner(OPTIMIZERS[kind](ours.parameters()), Schedule([(2, 0.1), 0.05], epoch_size=8))
    optimizer = OPTIMIZERS[kind](by_hand.parameters())
    train(ours, learner, range(5))
    for k, rate in enumerate(rates):
        by_hand.zero_grad()
        by_hand(data(k)).pow(2).sum().div(8).backward()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    for one, other in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert learner.samples == 40


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_its_state_goes_on_bit_for_bit(kind, stop):
    net = model()
    learner = TorchLearner(OPTIMIZERS[kind](net.parameters()), [0.1, 0.05])
    train(net, learner, range(stop))
    state, weights = copy.deepcopy(learner.state_dict()), copy.deepcopy(net.state_dict())
    train(net, learner, range(stop, 6))
    again = model(1)
    again.load_state_dict(weights)
    resumed = TorchLearner(OPTIMIZERS[kind](again.parameters()), [0.1, 0.05])
    tensors = state.pop("tensors")
    resumed.load_state_dict(json.loads(json.dumps(state)) | {"tensors": tensors})
    train(again, resumed, range(stop, 6))
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_groups_keep_the_ratio_of_their_rates():
    net = model()
    groups = [{"params": net[0].parameters(), "lr": 0.2}, {"params": net[2].parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    learner = TorchLearner(optimizer, Schedule(0.5, reference=16))
    train(net, learner, range(1))
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.25, 0.025])


def test_without_a_schedule_rates_are_the_optimizers_own():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    learner = TorchLearner(optimizer)
    rates = []
    for k in range(3):
        rates.append(learner.learning_rate())
        train(net, learner, [k])
        scheduler.step()
    assert rates == [0.1, 0.05, 0.025]
    state = learner.state_dict()
    learner.reset_learning_rate(0.3)
    train(net, learner, [3])
    assert optimizer.param_groups[0]["lr"] == 0.3
    restored = TorchLearner(torch.optim.SGD(model().parameters(), 0.7))
    restored.load_state_dict(state)
    assert restored.learning_rate() == 0.0125
    restored.load_state_dict(learner.state_dict())
    assert restored.learning_rate() == 0.3


def test_a_controllers_factor_acts_with_and_without_a_schedule():
    for lr in (None, 0.1):
        net, by_hand, rates = model(), model(), []
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        optimizer.register_step_pre_hook(lambda *_, o=optimizer, s=rates: s.append(o.param_groups[0]["lr"]))
        learner = TorchLearner(optimizer, lr)
        learner.scale = 0.5
        assert learner.learning_rate() == 0.05
        train(net, learner, range(2))
        assert rates == [0.05, 0.05]
        if lr is None:
            assert optimizer.param_groups[0]["lr"] == 0.1
        train(by_hand, TorchLearner(torch.optim.SGD(by_hand.parameters(), 0.05)), range(2))
        for one, other in zip(net.parameters(), by_hand.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_rate_that_is_a_tensor_stays_one():
    net = model()
    rate = torch.tensor(0.1)
    learner = TorchLearner(torch.optim.Adam(net.parameters(), rate, foreach=False, capturable=False), [0.1, 0.05])
    train(net, learner, range(2))
    learner.update(8, sweep_end=True)
    train(net, learner, range(1))
    assert learner.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)


def test_names_of_the_optimizer_are_kept():
    learner = TorchLearner(torch.optim.SGD(model().named_parameters(), 0.1))
    assert list(learner.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_sparse_gradients_pass():
    embedding = torch.nn.Embedding(5, 2, sparse=True)
    before = embedding.weight.detach().clone()
    learner = TorchLearner(torch.optim.SparseAdam(embedding.parameters(), 0.1))
    embedding(torch.tensor([1, 3])).sum().backward()
    learner.update(2)
    assert (embedding.weight != before).any(1).tolist() == [False, True, False, True, False]


def test_nothing_is_copied_when_nothing_is_asked_for():
    net, stepped = model(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: stepped.append([p.grad for p in net.parameters()]))
    net(data(0)).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    TorchLearner(optimizer).update(8, averaged=True)
    assert all(a is b for a, b in zip(stepped[0], gradients, strict=True))


def test_gradients_come_back_when_the_optimizer_fails():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def fail(*_):
        raise RuntimeError("planted")

    optimizer.register_step_pre_hook(fail)
    net(data(0)).sum().backward()
    gradients = [p.grad for p in net.parameters()]
    learner = TorchLearner(optimizer)
    with pytest.raises(RuntimeError, match="planted"):
        learner.update(8)
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients, strict=True))
    assert learner.samples == 0


class Odd(torch.optim.SGD):
    """An optimizer with an object that no state can contain."""

    def step(self, closure=None):
        self.state[self.param_groups[0]["params"][0]]["odd"] = {1, 2}


def test_what_does_not_fit_is_refused():
    net = model()
    with pytest.raises(TypeError, match=r"a torch\.optim\.Optimizer, got list"):
        TorchLearner(list(net.parameters()))
    with pytest.raises(TypeError, match="without a closure, got LBFGS"):
        TorchLearner(torch.optim.LBFGS(net.parameters()))
    with pytest.raises(ValueError, match="first group's rate to be above 0"):
        groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters()}]
        TorchLearner(torch.optim.SGD(groups, lr=1.0), 0.1)
    state = TorchLearner(torch.optim.SGD(net.parameters(), 0.1)).state_dict()
    with pytest.raises(StateError, match=r"(?s)rule.*torch\.SGD.*torch\.Adam"):
        TorchLearner(torch.optim.Adam(net.parameters(), 0.1)).load_state_dict(state)
    with pytest.raises(StateError, match="does not fit SGD"):
        TorchLearner(torch.optim.SGD(net.parameters(), 0.1)).load_state_dict(state | {"own": {"groups": []}})
    odd = TorchLearner(Odd(net.parameters(), 0.1))
    train(net, odd, range(1))
    with pytest.raises(StateError, match=r"keeps 0.odd as set, which a state cannot hold"):
        odd.state_dict()
