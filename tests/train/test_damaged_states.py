"""The law of states in training: a changed state is refused before anything has moved, or is a valid one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline as fl  # noqa: E402
from feedline.train import (  # noqa: E402
    AdaDelta,
    AdaGrad,
    Adam,
    FSAdaGrad,
    GrowMinibatch,
    KeepBest,
    MomentumSGD,
    ReduceOnPlateau,
    RMSProp,
    Schedule,
    TorchLearner,
    Trainer,
    Universal,
    block_momentum,
)
from feedline.train.checkpoint import Checkpoints  # noqa: E402
from feedline.train.summary import Summary  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.junk import JUNK, changes  # noqa: E402

SHAPES = [(2, 3), (3,), ()]


def no_loss(output, minibatch):
    raise AssertionError("nothing is learned here")


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def counting(parameters, gradients, step):
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.sub_(gradient, alpha=step.rate)


def of_torch(kind, **options):
    return lambda: TorchLearner(kind(parameters(), lr=0.1, **options), Schedule([0.1, 0.05], epoch_size=20))


LEARNERS = {
    "momentum": lambda: MomentumSGD(parameters(), Schedule([0.1, 0.05], epoch_size=20), momentum=0.5),
    "adam": lambda: Adam(parameters(), 0.1, momentum=0.9),
    "adagrad": lambda: AdaGrad(parameters(), 0.1),
    "adadelta": lambda: AdaDelta(parameters(), 0.1),
    "fsadagrad": lambda: FSAdaGrad(parameters(), 0.1, momentum=0.9),
    "rmsprop": lambda: RMSProp(parameters(), 0.1),
    "universal": lambda: Universal(parameters(), counting, state={"n": torch.zeros(2)}),
    "torch sgd": of_torch(torch.optim.SGD, momentum=0.9),
    "torch adamw": of_torch(torch.optim.AdamW, amsgrad=True),
    "torch rmsprop": of_torch(torch.optim.RMSprop, centered=True, momentum=0.1),
    "torch adafactor": of_torch(torch.optim.Adafactor),
}


def learn(learner, times=3):
    for _ in range(times):
        learner.update(4, [torch.full(shape, 0.5) for shape in SHAPES])


def values_of(learner):
    """Return the values of everything of a learner that a state contains."""
    state = learner.state_dict()
    tensors = {name: tensor.tolist() for name, tensor in state.pop("tensors").items()}
    return repr([state, tensors, learner.lr, [p.tolist() for p in learner.parameters.values()]])


@pytest.mark.parametrize("kind", LEARNERS)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_learners(kind, data):
    learner = LEARNERS[kind]()
    learn(learner)
    if data.draw(st.booleans()):
        learner.reset_learning_rate([0.2, (2, 0.1)])
        learn(learner, 1)
    state = learner.state_dict()
    tensors = state.pop("tensors")
    state = json.loads(json.dumps(state))
    change = data.draw(changes({**state, "tensors": dict.fromkeys(tensors, "tensor")}))
    new = change.of({**state, "tensors": dict.fromkeys(tensors, "tensor")})
    if isinstance(new, dict) and isinstance(new.get("tensors"), dict):
        new["tensors"] = {
            name: tensors.get(name, value) if value == "tensor" else value for name, value in new["tensors"].items()
        }
    target = LEARNERS[kind]()
    learn(target, 1)
    before = values_of(target)
    try:
        target.load_state_dict(new)
    except fl.StateError:
        assert values_of(target) == before
        return
    learn(target)
    json.dumps({key: value for key, value in target.state_dict().items() if key != "tensors"})


@pytest.mark.parametrize("kind", ["torch adamw", "torch rmsprop"])
def test_a_state_for_graphs_of_cuda_is_refused_on_the_cpu(kind):
    learner = LEARNERS[kind]()
    learn(learner)
    state = learner.state_dict()
    state["own"]["groups"][0]["mapping"]["capturable"] = True
    with pytest.raises(fl.StateError, match="`capturable`, with which it cannot update parameters on the CPU"):
        learner.load_state_dict(state)
    learn(learner)


@pytest.mark.parametrize("kind", LEARNERS)
def test_tensors_of_another_shape(kind):
    """Each tensor in turn is refused, with nothing changed."""
    learner = LEARNERS[kind]()
    learn(learner)
    state = learner.state_dict()
    for name, tensor in state["tensors"].items():
        for wrong in (torch.zeros(5, 4, 2), tensor.tolist(), None):
            target = LEARNERS[kind]()
            learn(target, 1)
            before = values_of(target)
            with pytest.raises(fl.StateError):
                target.load_state_dict({**state, "tensors": {**state["tensors"], name: wrong}})
            assert values_of(target) == before


# ---- trainers -------------------------------------------------------------------------------------------


def trainer(second_shape=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, second_shape))
    learners = [
        Adam(model[0].named_parameters("0"), 0.1, momentum=0.9),
        TorchLearner(torch.optim.SGD([*model[1].parameters(), *model[2].parameters()], lr=0.1, momentum=0.5)),
    ]
    return Trainer(model, lambda output, minibatch: (output**2).sum(1), None, learners, forward=run)


def run(model, minibatch):
    return model(minibatch["x"].torch())


def trained(times=3, **options):
    made_trainer = trainer(**options)
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(60, dtype="f4").reshape(20, 3)), seed=1)
    for _ in range(times):
        made_trainer.train_minibatch(source.next_minibatch(6))
    return made_trainer


def everything(trainer):
    tensors, state = trainer.state_dict()
    return repr([{name: tensor.tolist() for name, tensor in tensors.items()}, state])


@settings(max_examples=examples(75))
@given(data=st.data())
def test_trainers(data):
    """Model, both learners and the counts are loaded all, or not at all."""
    tensors, state = trained().state_dict()
    state = json.loads(json.dumps(state))
    new = data.draw(changes(state)).of(state)
    target = trained(1)
    before = everything(target)
    try:
        target.load_state_dict(tensors, new)
    except fl.StateError:
        assert everything(target) == before
        return
    json.dumps(target.state_dict()[1])


def test_a_trainer_with_one_wrong_tensor():
    """Regression: a model was partly loaded before its last layer turned out to differ."""
    tensors, state = trained().state_dict()
    target = trained(1)
    before = everything(target)
    for name in tensors:
        for wrong in ({**tensors, name: torch.zeros(7, 7)}, {k: t for k, t in tensors.items() if k != name}):
            with pytest.raises(fl.StateError):
                target.load_state_dict(wrong, state)
            assert everything(target) == before
    with pytest.raises(fl.StateError):
        trained(1, second_shape=3).load_state_dict(tensors, state)


class Growing(torch.nn.Module):
    """A module with a custom load, which accepts a buffer of any length."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(0))

    def _load_from_state_dict(self, state_dict, prefix, *arguments):
        self.seen = torch.zeros(len(state_dict[f"{prefix}seen"]))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def test_modules_with_custom_loading_still_load():
    def make():
        model = torch.nn.Sequential(Growing())
        return model, Trainer(model, no_loss, None, MomentumSGD(model.parameters(), 0.1, momentum=0.5))

    model, trainer = make()
    model[0].seen = torch.arange(3.0)
    again, other = make()
    other.load_state_dict(*trainer.state_dict())
    assert again[0].seen.tolist() == [0.0, 1.0, 2.0]


def test_block_momentum_lacks_a_velocity():
    model = torch.nn.Linear(2, 1)
    strategy = block_momentum(MomentumSGD(model.parameters(), 0.1, momentum=0.5), 10).strategy
    Trainer(model, no_loss, None, [learner_of(strategy, model)])
    state = strategy.state_dict()
    for tensors in (
        {},
        {"velocity 0": torch.zeros(1, 2)},
        {"velocity 0": torch.zeros(1, 2), "velocity 2": torch.zeros(1)},
    ):
        with pytest.raises(fl.StateError):
            strategy.checked({**state, "tensors": tensors})


def learner_of(strategy, model):
    learner = MomentumSGD(model.parameters(), 0.1, momentum=0.5)
    learner.strategy = strategy
    return learner


# ---- controllers and schedules ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ReduceOnPlateau, GrowMinibatch, KeepBest])
@settings(max_examples=examples(30))
@given(data=st.data())
def test_controllers(kind, data, tmp_path_factory):
    arguments = [tmp_path_factory.getbasetemp() / "best"] if kind is KeepBest else []
    controller = kind(*arguments)
    controller.best = 2.5
    state = json.loads(json.dumps(controller.state_dict()))
    new = data.draw(changes(state)).of(state)
    target = kind(*arguments)
    before = target.state_dict()
    try:
        target.load_state_dict(new)
    except fl.StateError:
        assert target.state_dict() == before
        return
    json.dumps(target.state_dict())
    if kind is not KeepBest:
        target.on_epoch_end(Run(), Summary(5.0, None, 2), None)


class Run:
    """The part of a run that controllers touch."""

    def __init__(self):
        self.trainer, self.scale = trained(0), 1.0

    def stop(self):
        pass


@settings(max_examples=examples(150))
@given(data=st.data())
def test_schedules(data):
    """A schedule from a file is a ValueError or TypeError, or has a number everywhere."""
    state = json.loads(json.dumps(Schedule([(2, 0.1), (1, 3), 0.5], epoch_size=1000, reference=32).to_json()))
    new = data.draw(changes(state)).of(state)
    try:
        schedule = Schedule.from_json(new)
    except (ValueError, TypeError):
        return
    for place in (0, 10**6, 2**62):
        float(schedule.rate(place, 256))
        schedule.momentum(place, 1)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


def test_the_best_model_of_another_run_is_refused(tmp_path):
    """A best model by another value, or of another model, is a StateError, and the model is unchanged."""
    torch.manual_seed(0)
    Checkpoints(tmp_path, keep=1).save(1, torch.nn.Linear(3, 2).state_dict(), {"loss": 1.0})
    model = torch.nn.Linear(3, 2)
    before = model.weight.tolist()
    with pytest.raises(fl.StateError, match="metric"):
        KeepBest(tmp_path, watch="metric").restore(model)
    assert model.weight.tolist() == before
    other = torch.nn.Linear(3, 4)
    before = other.weight.tolist()
    with pytest.raises(fl.StateError, match="shape of `"):
        KeepBest(tmp_path).restore(other)
    assert other.weight.tolist() == before
    assert KeepBest(tmp_path).restore(model) == 1.0


def test_an_iterator_under_mxnets_names():
    """Regression: its source had moved before the epoch was checked."""
    import feedline.mxnet as mx

    def make():
        iterator = mx.io.NDArrayIter(mx.nd.array(np.arange(20).reshape(10, 2)), batch_size=3)
        iterator.next()
        return iterator

    state = make().state_dict()
    for key in ("epoch", "begun"):
        for junk in JUNK:
            if type(junk) is type(state[key]) and (key == "begun" or 0 <= junk < 2**63):
                continue
            target = make()
            before = target.state_dict()
            with pytest.raises(fl.StateError):
                target.load_state_dict({**state, key: junk})
            assert target.state_dict() == before
