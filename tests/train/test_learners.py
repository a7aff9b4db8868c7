"""Every rule equals its oracle. Laws of all learners: units, states, errors."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import StateError
from feedline.train import (
    SGD,
    AdaDelta,
    AdaGrad,
    Adam,
    FSAdaGrad,
    MomentumSGD,
    Nesterov,
    RMSProp,
    Schedule,
    TorchLearner,
    Universal,
)
from tests.effort import examples
from tests.oracles.learners import Oracle

SHAPES = ((3, 2), (4,), (), (2, 1, 3), (0,))


def universal(parameters, lr, **options):
    momentum = [torch.zeros_like(parameter) for parameter in parameters]

    def update(parameters, gradients, step):
        for parameter, gradient, smoothed in zip(parameters, gradients, momentum, strict=True):
            smoothed.mul_(0.5).add_(gradient)
            parameter.sub_(smoothed, alpha=step.rate)

    return Universal(parameters, update, lr, state={str(i): t for i, t in enumerate(momentum)}, **options)


def of_torch(parameters, lr, **options):
    return TorchLearner(torch.optim.AdamW(parameters, weight_decay=0.1, eps=1e-3), lr, **options)


#: A learner of each kind, with a state.
MAKERS = {
    "sgd": SGD,
    "momentum_sgd": lambda p, lr, **o: MomentumSGD(p, lr, Schedule.time_constant(20), **o),
    "nesterov": lambda p, lr, **o: Nesterov(p, lr, [0.9, 0.5], **o),
    "adagrad": AdaGrad,
    "adadelta": AdaDelta,
    "adam": Adam,
    "adamax": lambda p, lr, **o: Adam(p, lr, 0.8, 0.99, adamax=True, **o),
    "fsadagrad": FSAdaGrad,
    "rmsprop": RMSProp,
    "universal": universal,
    "torch": of_torch,
}
kinds = pytest.mark.parametrize("kind", MAKERS)


@pytest.fixture
def threads():
    """Set the number of torch's threads during a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def tensors(seed, dtype=torch.float64, shapes=SHAPES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def run(learner, steps, seed=0, dtype=torch.float64, shapes=SHAPES):
    """Make the updates ``steps``, with gradients and minibatch sizes that are functions of the step."""
    for k in steps:
        samples = 1 + (k * 7) % 13
        gradients = [g * samples for g in tensors(1000 * seed + k, dtype, shapes)]
        learner.update(samples, gradients, sweep_end=k % 4 == 3)


# ---- rules --------------------------------------------------------------------------------------------------

references = st.none() | st.integers(1, 20)
momenta = st.tuples(st.sampled_from([0.0, 0.5, 0.9, 0.999]), references)
RULES = {
    "sgd": (SGD, {}),
    "momentum_sgd": (MomentumSGD, {"momentum": momenta, "unit_gain": st.booleans()}),
    "nesterov": (Nesterov, {"momentum": momenta, "unit_gain": st.booleans()}),
    "adagrad": (AdaGrad, {"average": st.booleans()}),
    "adadelta": (AdaDelta, {"rho": st.sampled_from([0.5, 0.95]), "epsilon": st.sampled_from([1e-8, 0.01])}),
    "adam": (
        Adam,
        {
            "momentum": momenta,
            "variance_momentum": momenta,
            "unit_gain": st.booleans(),
            "adamax": st.booleans(),
            "epsilon": st.sampled_from([1e-8, 0.1]),
        },
    ),
    "fsadagrad": (FSAdaGrad, {"momentum": momenta, "variance_momentum": momenta, "unit_gain": st.booleans()}),
    "rmsprop": (
        RMSProp,
        {"average": st.booleans(), "gamma": st.sampled_from([0.5, 0.95]), "max": st.sampled_from([0.01, 10.0])},
    ),
}
SHARED = {
    "lr": st.tuples(st.sampled_from([0.01, 0.5]), references),
    "gradients": st.sampled_from(["mean", "sum"]),
    "clip": st.sampled_from([0.4, 100.0]),
    "clip_by": st.sampled_from(["value", "norm"]),
    "l1": st.sampled_from([0.0, 0.1]),
    "l2": st.sampled_from([0.0, 0.1]),
}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=examples(15))
@given(data=st.data(), averaged=st.booleans(), without=st.integers(0, 12))
def test_a_rule_equals_its_oracle(rule, data, averaged, without):
    """Also if a parameter sometimes has no gradient, so that it and its state do not change."""
    kind, own = RULES[rule]
    options = data.draw(st.fixed_dictionaries(SHARED | own))
    parameters = tensors(1)
    oracles = [Oracle(rule, p.numpy(), **options) for p in parameters]
    schedules = {k: Schedule(v[0], reference=v[1]) for k, v in options.items() if isinstance(v, tuple)}
    learner = kind(parameters, **options | schedules)
    for k in range(5):
        samples = data.draw(st.integers(1, 20))
        means = tensors(10 + k)
        if k == 2:
            means = [torch.zeros_like(mean) for mean in means]
        present = [(k + i) % 5 != without for i in range(len(means))]
        scale = 1 if averaged else samples
        assert learner.update(
            samples, [g * scale if p else None for g, p in zip(means, present, strict=True)], averaged=averaged
        )
        for oracle, mean, there, parameter in zip(oracles, means, present, parameters, strict=True):
            with np.errstate(all="ignore"):
                if there and mean.numel():
                    oracle.update(samples, mean.numpy() * samples)
            np.testing.assert_allclose(parameter.numpy(), oracle.w, rtol=1e-9, atol=1e-9)


def test_fsadagrad_sets_its_momentum_aside_while_it_is_zero():
    parameters = tensors(1)
    learner = FSAdaGrad(parameters, 0.1, [0.9, 0.0, 0.9], 0.99)
    oracles = [
        Oracle("fsadagrad", p.numpy(), lr=(0.1, None), variance_momentum=(0.99, None), momentum=None)
        for p in parameters
    ]
    for k, momentum in enumerate([0.9, 0.0, 0.9]):
        learner.update(4, tensors(k), sweep_end=True)
        for oracle, gradient, parameter in zip(oracles, tensors(k), parameters, strict=True):
            oracle.options["momentum"] = (momentum, None)
            oracle.update(4, gradient.numpy())
            np.testing.assert_allclose(parameter.numpy(), oracle.w, rtol=1e-9, atol=1e-9)


@given(samples=st.integers(1, 300), reference=references)
def test_linear_rules_do_the_same_with_means_and_sums(samples, reference):
    results = []
    for gradients in ("mean", "sum"):
        parameters = tensors(1)
        learner = MomentumSGD(
            parameters, Schedule(0.1, reference=reference), 0.9, gradients=gradients, clip=0.5, l1=0.01, l2=0.01
        )
        for k in range(3):
            learner.update(samples, [g * samples for g in tensors(k)])
        results.append(parameters)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@given(first=st.integers(1, 50), second=st.integers(1, 50))
def test_a_rate_per_sample_does_not_depend_on_the_cut_into_minibatches(first, second):
    """Two gradients at the same parameters, in one minibatch or in two."""
    a, b = tensors(5), tensors(6)
    together, apart = tensors(1), tensors(1)
    SGD(together, Schedule.per_sample(0.01)).update(first + second, [x + y for x, y in zip(a, b, strict=True)])
    learner = SGD(apart, Schedule.per_sample(0.01))
    learner.update(first, a)
    learner.update(second, b)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", [MomentumSGD, Nesterov, Adam])
def test_unit_gain_is_a_factor_on_the_rate(kind):
    with_gain, without = tensors(1), tensors(1)
    run(kind(with_gain, 0.1, 0.75), range(6))
    run(kind(without, 0.1 * 0.25, 0.75, unit_gain=False), range(6))
    for one, other in zip(with_gain, without, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda p: MomentumSGD(p, 0.1, 0.9, unit_gain=False), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
        (lambda p: Adam(p, 0.1, 0.9, 0.999, epsilon=0.0), lambda p: torch.optim.Adam(p, 0.1, eps=0.0)),
        (lambda p: AdaGrad(p, 0.1, average=False), lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-16)),
        (lambda p: AdaDelta(p, 0.1, epsilon=1e-6), lambda p: torch.optim.Adadelta(p, 0.1, rho=0.95, eps=1e-6)),
        (lambda p: SGD(p, 0.1, l2=0.2), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2)),
    ],
    ids=["momentum", "adam", "adagrad", "adadelta", "weight decay"],
)
def test_rules_that_torch_has_too_agree_with_it(ours, theirs):
    mine, its = tensors(1), [torch.nn.Parameter(t) for t in tensors(1)]
    learner, optimizer = ours(mine), theirs(its)
    for k in range(5):
        for parameter, gradient in zip(its, tensors(50 + k), strict=True):
            parameter.grad = gradient
        learner.update(8, tensors(50 + k), averaged=True)
        optimizer.step()
    for one, other in zip(mine, its, strict=True):
        torch.testing.assert_close(one, other.detach())


# ---- every learner ------------------------------------------------------------------------------------------


@kinds
@settings(max_examples=examples(8))
@given(stop=st.integers(0, 8), again=st.integers(0, 8), reset=st.booleans())
def test_a_state_at_any_update_goes_on_bit_for_bit(kind, stop, again, reset):
    def make(parameters):
        lr = Schedule([0.1, (2, 0.05), 0.02], epoch_size=11, reference=16)
        return MAKERS[kind](parameters, lr, noise=0.01, seed=3, l2=0.01, clip=0.7)

    contiguous = tensors(1, torch.float32)
    learner = make(contiguous)
    run(learner, range(stop), dtype=torch.float32)
    if reset:
        learner.reset_learning_rate(Schedule([0.03, 0.01], epoch_size=9))
        learner.scale = 0.75
    state = copy.deepcopy(learner.state_dict())
    parameters = [p.clone() for p in contiguous]
    run(learner, range(stop, 10), dtype=torch.float32)

    scalars = {key: value for key, value in state.items() if key != "tensors"}
    assert all(isinstance(tensor, torch.Tensor) for tensor in state["tensors"].values())
    resumed = make(parameters)
    run(make(tensors(2)), range(again))  # another learner changes nothing
    resumed.load_state_dict(json.loads(json.dumps(scalars)) | {"tensors": state["tensors"]})
    run(resumed, range(stop, 10), dtype=torch.float32)
    for one, other in zip(contiguous, parameters, strict=True):
        assert torch.equal(one, other)
    assert (resumed.samples, resumed.minibatches, resumed.sweeps) == (
        learner.samples,
        learner.minibatches,
        learner.sweeps,
    )
    assert resumed.learning_rate() == learner.learning_rate()


@kinds
def test_a_loaded_state_is_copied(kind):
    learner = MAKERS[kind](tensors(1), 0.1)
    run(learner, range(3))
    state = learner.state_dict()
    before = copy.deepcopy(state["tensors"])
    restored = MAKERS[kind](tensors(1), 0.1)
    restored.load_state_dict(state)
    run(restored, range(3))
    for name, tensor in before.items():
        assert torch.equal(tensor, state["tensors"][name])


@kinds
def test_a_rate_of_zero_changes_and_counts_nothing(kind):
    parameters = tensors(1)
    learner = MAKERS[kind](parameters, [0.1, 0.0], l2=0.1, l1=0.1, noise=1.0)
    run(learner, range(4))  # the sweep ends
    before, state = [p.clone() for p in parameters], copy.deepcopy(learner.state_dict())
    assert learner.learning_rate() == 0
    assert learner.update(4, tensors(9), sweep_end=True) is False
    for one, other in zip(before, parameters, strict=True):
        assert torch.equal(one, other)
    after = learner.state_dict()
    assert {k: v for k, v in after.items() if k != "tensors"} == {k: v for k, v in state.items() if k != "tensors"}
    assert all(torch.equal(after["tensors"][name], tensor) for name, tensor in state["tensors"].items())


@kinds
def test_gradients_are_left_alone(kind):
    parameters = [t.requires_grad_() for t in tensors(1)]
    learner = MAKERS[kind](parameters, 0.1, l2=0.1, clip=0.01)
    for k in range(2):
        gradients = tensors(20 + k)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        assert learner.update(4)
        assert all(p.grad is gradient for p, gradient in zip(parameters, gradients, strict=True))
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(parameters, tensors(20 + k), strict=True))


@kinds
def test_the_parameters_own_gradients_are_the_default(kind):
    given, own = tensors(1), [t.requires_grad_() for t in tensors(1)]
    one, other = MAKERS[kind](given, 0.1), MAKERS[kind](own, 0.1)
    for k in range(3):
        for parameter, gradient in zip(own, tensors(k), strict=True):
            parameter.grad = gradient
        one.update(4, {str(i): g for i, g in enumerate(tensors(k))})
        other.update(4)
    for a, b in zip(given, own, strict=True):
        assert torch.equal(a, b)


@kinds
def test_threads_and_other_parameters_change_nothing(kind, threads):
    """The result does not depend on how the work is cut, also with sums over a parameter of many pieces."""
    shapes = [(400, 350), *SHAPES]
    results = []
    for count, lists in [(1, [shapes]), (2, [shapes]), (3, [shapes]), (2, [[shape] for shape in shapes])]:
        threads(count)
        parameters = tensors(1, torch.float32, shapes)
        gradients = [tensors(20 + k, torch.float32, shapes) for k in range(3)]
        done = 0
        for some in lists:
            mine = slice(done, done + len(some))
            learner = MAKERS[kind](parameters[mine], 0.1, clip=0.3, clip_by="norm")
            for k, tensors_of_step in enumerate(gradients):
                learner.update(1 + k, tensors_of_step[mine])
            done = mine.stop
        results.append(parameters)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_follows_double(kind, dtype):
    exact, rounded = tensors(1, shapes=((40, 30),)), tensors(1, dtype, shapes=((40, 30),))
    start = exact[0].clone()
    run(MAKERS[kind](exact, 0.01), range(5), shapes=((40, 30),))
    learner = MAKERS[kind](rounded, 0.01)
    run(learner, range(5), dtype=dtype, shapes=((40, 30),))
    assert rounded[0].dtype == dtype
    if kind not in ("universal", "torch"):
        assert {t.dtype for t in learner.state_dict()["tensors"].values()} <= {torch.float32}
    moved, error = (exact[0] - start).abs().mean(), (rounded[0].double() - exact[0]).abs().mean()
    # Five roundings of a parameter of about 1, in addition to its change.
    assert error < 0.01 * moved + 5 * torch.finfo(dtype).eps


def test_parameters_of_several_dtypes_are_side_by_side():
    mixed = [t.to(d) for t, d in zip(tensors(1), [torch.float64, torch.float32, torch.float64] * 2, strict=False)]
    learner = Adam(mixed, 0.1, 0.9, 0.99)
    for k in range(3):
        learner.update(2, [g.to(p.dtype) for g, p in zip(tensors(k), mixed, strict=True)])
    alone = tensors(1)
    run_alone = Adam(alone, 0.1, 0.9, 0.99)
    for k in range(3):
        run_alone.update(2, tensors(k))
    for one, other in zip(mixed, alone, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    assert torch.equal(mixed[0], alone[0])


def test_noise_is_gaussian_seeded_and_of_each_minibatch():
    def noise(seed, steps=1):
        parameters = [torch.zeros(200, 100)]
        learner = SGD(parameters, 0.1, noise=0.5, seed=seed)
        noises = []
        for _ in range(steps):
            before = parameters[0].clone()
            learner.update(1, [torch.zeros(200, 100)])
            noises.append(parameters[0] - before)
        return noises

    first, second = noise(1, 2)
    assert torch.equal(first, noise(1)[0])
    assert not torch.equal(first, noise(2)[0])
    assert abs(np.corrcoef(first.flatten(), second.flatten())[0, 1]) < 0.05
    assert first.mean().abs() < 0.02
    assert abs(first.std() - 0.5) < 0.02
    assert abs((first.abs() < 0.5).double().mean() - 0.6827) < 0.02


def test_a_reset_schedule_starts_at_the_present():
    parameters = tensors(1)
    learner = SGD(parameters, 0.1)
    learner.update(10, tensors(2), sweep_end=True)
    learner.reset_learning_rate(Schedule([0.5, 0.25], epoch_size=4))
    rates = []
    for _ in range(3):
        rates.append(learner.learning_rate())
        learner.update(2, tensors(2))
    assert rates == [0.5, 0.5, 0.25]
    learner.reset_learning_rate([0.3, 0.2])
    assert learner.learning_rate() == 0.3
    learner.update(2, tensors(2), sweep_end=True)
    assert learner.learning_rate() == 0.2


def test_a_schedule_is_the_makers_unless_it_was_reset():
    learner = SGD(tensors(1), 0.1)
    run(learner, range(2))
    restored = SGD(tensors(1), 0.7)
    restored.load_state_dict(learner.state_dict())
    assert restored.learning_rate() == 0.7
    learner.reset_learning_rate(0.2)
    restored.load_state_dict(learner.state_dict())
    assert restored.learning_rate() == 0.2


def test_names_match_the_model():
    model = torch.nn.Linear(3, 2)
    learner = Adam(model.named_parameters(), 0.1)
    model(torch.ones(4, 3)).sum().backward()
    learner.update(4)
    assert set(learner.parameters) == {"weight", "bias"}
    assert set(learner.state_dict()["tensors"]) == {f"{k}.{n}" for k in Adam.tensors for n in learner.parameters}


def test_sparse_gradients_reach_their_rows_alone():
    dense, sparse = (torch.nn.Embedding(6, 3, sparse=s) for s in (False, True))
    sparse.load_state_dict(dense.state_dict())
    for embedding in (dense, sparse):
        embedding(torch.tensor([1, 4, 1])).pow(2).sum().backward()
        assert SGD(embedding.parameters(), 0.1, l1=0.1).update(3)
    torch.testing.assert_close(dense.weight, sparse.weight)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: Adam(p, 0.1), "the rule 'adam' does not support sparse"),
        (lambda p: SGD(p, 0.1, l2=0.1), "L2 does not support sparse"),
        (lambda p: SGD(p, 0.1, clip=1), "clipping does not support sparse"),
    ],
)
def test_sparse_gradients_are_refused_where_they_would_not_stay_sparse(make, says):
    embedding = torch.nn.Embedding(6, 3, sparse=True)
    before = embedding.weight.detach().clone()
    embedding(torch.tensor([1, 4])).sum().backward()
    learner = make(embedding.named_parameters())
    with pytest.raises(ValueError, match=f"parameter 'weight': {says}"):
        learner.update(2)
    assert torch.equal(embedding.weight, before)
    assert learner.samples == 0


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda p: SGD([], 0.1), ValueError, "at least one parameter"),
        (lambda p: SGD([p[0], p[0]], 0.1), ValueError, "each parameter once"),
        (lambda p: SGD([("a", p[0]), ("a", p[1])], 0.1), ValueError, "'a' twice"),
        (lambda p: SGD(p[0], 0.1), TypeError, "one tensor; put it in a list"),
        (lambda p: SGD(torch.nn.Linear(2, 1), 0.1), TypeError, "the module Linear; pass its named_parameters"),
        (lambda p: SGD(torch.nn.Sequential(torch.nn.ReLU()), 0.1), TypeError, "the module Sequential"),
        (lambda p: SGD([1.0], 0.1), TypeError, "parameter '0' to be a floating-point tensor, got float"),
        (lambda p: SGD([torch.ones(2, dtype=torch.int32)], 0.1), TypeError, "torch.int32"),
        (lambda p: SGD(p, -0.1), ValueError, "lr to be at least 0, got -0.1"),
        (lambda p: SGD(p, [0.1, -0.1]), ValueError, "lr to be at least 0"),
        (lambda p: SGD(p, "a"), TypeError, "'a'"),
        (lambda p: SGD(p, 0.1, gradients="max"), ValueError, "one of 'mean', 'sum', got 'max'"),
        (lambda p: SGD(p, 0.1, clip=0), ValueError, "clip to be above 0"),
        (lambda p: SGD(p, 0.1, clip=float("nan")), ValueError, "clip to be above 0"),
        (lambda p: SGD(p, 0.1, clip_by="size"), ValueError, "one of 'value', 'norm'"),
        (lambda p: SGD(p, 0.1, l1=-1), ValueError, "l1 to be at least 0"),
        (lambda p: SGD(p, 0.1, l2=float("inf")), ValueError, "l2 to be at least 0"),
        (lambda p: SGD(p, 0.1, noise=-1), ValueError, "noise to be at least 0"),
        (lambda p: MomentumSGD(p, 0.1, 1.1), ValueError, "momentum to be between 0 and 1"),
        (lambda p: Adam(p, 0.1, 1.0), ValueError, "momentum to be below 1"),
        (lambda p: Adam(p, 0.1, 0.9, -0.1), ValueError, "variance_momentum to be between"),
        (lambda p: Adam(p, 0.1, epsilon=-1e-3), ValueError, "epsilon to be at least 0"),
        (lambda p: FSAdaGrad(p, 0.1, 0.9, 1.0), ValueError, "variance_momentum to be below 1"),
        (lambda p: AdaDelta(p, rho=2), ValueError, "rho to be between"),
        (lambda p: AdaDelta(p, epsilon=0), ValueError, "epsilon to be above 0"),
        (lambda p: RMSProp(p, 0.1, gamma=1.0), ValueError, "gamma to be between"),
        (lambda p: RMSProp(p, 0.1, inc=1.0), ValueError, "inc to be above 1"),
        (lambda p: RMSProp(p, 0.1, dec=1.0), ValueError, "dec to be between"),
        (lambda p: RMSProp(p, 0.1, min=2, max=1), ValueError, "0 < min < max"),
    ],
)
def test_a_learner_that_makes_no_sense_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make(tensors(1))


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (lambda learner, g: learner.update(0, g), "at least 1 sample, got 0"),
        (lambda learner, g: learner.update(3, g[:2]), "5 gradients, one for each parameter, got 2"),
        (lambda learner, g: learner.update(3, {"7": g[0]}), "got also '7'"),
        (lambda learner, g: learner.update(3, [g[1], *g[1:]]), r"shape \(3, 2\) for parameter '0', got \(4,\)"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(update, says):
    parameters = tensors(1)
    learner = SGD(parameters, 0.1)
    with pytest.raises(ValueError, match=says):
        update(learner, tensors(2))
    assert all(torch.equal(a, b) for a, b in zip(parameters, tensors(1), strict=True))


def planted(key, value):
    return lambda state: state | {key: value}


def with_tensors(change):
    return lambda state: state | {"tensors": change(state["tensors"])}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda state: {k: v for k, v in state.items() if k != "own"}, "without own"),
        (planted("format", 2), "format"),
        (planted("rule", "sgd"), "rule .*saved: +'sgd'"),
        (lambda state: state | {"parameters": state["parameters"][::-1]}, "another order"),
        (lambda state: state | {"parameters": [["0", [3, 3]], *state["parameters"][1:]]}, r"saved:.*\[3, 3\]"),
        (planted("own", {"updates": [1], "weight": [1], "begun": [True]}), "this rule's numbers"),
        (planted("lr", {"values": []}), "under 'lr'"),
        (with_tensors(lambda t: t | {"mean.9": torch.ones(1)}), "no parameter: 'mean.9'"),
        (with_tensors(lambda t: t | {"mean.0": torch.ones(1)}), "another tensor 'mean.0'"),
        (with_tensors(lambda t: t | {"mean.0": t["mean.0"].float()}), "float32"),
        (with_tensors(lambda t: {k: v for k, v in t.items() if k != "variance.1"}), "lacks tensors: 'variance.1'"),
        (with_tensors(lambda t: {}), "lacks tensors: 'mean.0'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(damage, says):
    learner = Adam(tensors(1), 0.1)
    run(learner, range(3))
    state = copy.deepcopy(learner.state_dict())
    restored = Adam(tensors(1), 0.1)
    run(restored, range(2), seed=5)
    before = copy.deepcopy(restored.state_dict())
    with pytest.raises(StateError, match=f"(?s){says}"):
        restored.load_state_dict(damage(state))
    after = restored.state_dict()
    assert {k: v for k, v in after.items() if k != "tensors"} == {k: v for k, v in before.items() if k != "tensors"}
    assert all(torch.equal(after["tensors"][name], tensor) for name, tensor in before["tensors"].items())


def test_a_reset_learner_does_not_go_back_to_the_schedule_it_was_made_with():
    state = SGD(tensors(1), 0.1).state_dict()
    learner = SGD(tensors(1), 0.1)
    learner.reset_learning_rate(0.2)
    with pytest.raises(StateError, match="restore into a new one"):
        learner.load_state_dict(state)


def test_tensors_of_a_users_function_are_named():
    state = universal(tensors(1), 0.1).state_dict()
    with pytest.raises(StateError, match="other tensors than this learner's function keeps"):
        Universal(tensors(1), lambda *_: None).load_state_dict(state)


def test_a_learner_shows_itself():
    assert repr(SGD(tensors(1), 0.1)) == "<SGD: 5 parameters, 0 samples, lr Schedule(0.1)>"


@pytest.mark.parametrize("gradients", ["mean", "sum"])
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipped_by_global_norm_as_torch_clips(gradients, limit):
    """With two dtypes, more bytes than are updated together, and a parameter without a gradient."""
    torch.manual_seed(0)
    shapes = [((700, 500), torch.float32), ((3,), torch.float64), ((2, 2), torch.float32), ((), torch.float32)]
    parameters = [torch.randn(shape, dtype=dtype) for shape, dtype in shapes]
    means = [torch.randn(shape, dtype=dtype) for shape, dtype in shapes]
    theirs = [p.clone().requires_grad_() for p in parameters]
    for p, mean in list(zip(theirs, means, strict=True))[:3]:
        p.grad = mean.clone()
    torch.nn.utils.clip_grad_norm_(theirs, limit)
    torch.optim.SGD(theirs, 0.1).step()
    SGD(parameters, 0.1, clip=limit, clip_by="global_norm", gradients=gradients).update(
        7, [7 * mean for mean in means[:3]] + [None]
    )
    for ours, wanted in zip(parameters, theirs, strict=True):
        torch.testing.assert_close(ours, wanted.detach(), rtol=1e-5, atol=1e-6)
