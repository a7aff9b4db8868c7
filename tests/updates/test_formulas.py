"""Native formulas equal operations of torch, with all adjustments, in any dtype, layout and combination."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from feedline import _native
from feedline.updates import formulas
from feedline.updates.adjustments import Adjustments, clipping_factors, global_factor
from feedline.updates.formulas import complement
from feedline.updates.update import update

FORMULAS = {
    kind.native: kind
    for kind in vars(formulas).values()
    if isinstance(kind, type) and issubclass(kind, formulas.Formula) and kind is not formulas.Formula
}
RATE, FRACTION = st.floats(0.001, 0.5), st.floats(0.01, 0.99)
SMALL = st.sampled_from([1e-8, 0.01])
#: What a number of any rule may be, by its name.
NUMBERS = {
    "along": RATE.map(lambda rate: -rate),
    "ahead": st.just(0.0) | RATE.map(lambda rate: -rate),
    "keep": FRACTION | st.just(1.0),
    "fresh": FRACTION,
    "keep_mean": FRACTION,
    "fresh_mean": FRACTION,
    "keep_square": FRACTION,
    "fresh_square": FRACTION,
    "keep_largest": FRACTION,
    "epsilon": SMALL,
    "floor": SMALL,
    "hold": FRACTION | st.just(1.0),
    "unbias": st.just(1.0) | st.floats(1.0, 5.0),
    "unbias_mean": st.floats(1.0, 5.0),
    "size": st.floats(0.5, 2.0),
    "limit": st.just(10.0),
    "first": st.sampled_from([0.0, 1.0]),
    "start": FRACTION,
    "first_step": st.just(0.02),
    "grow": st.just(1.2),
    "most": st.just(0.03),
    "lessen": st.just(0.7),
    "least": st.just(0.01),
    "pace": FRACTION,
    "rate": st.floats(0.05, 0.5),  # it divides differences of roots
    "threshold": FRACTION,
    "beta": FRACTION,
    "decay": st.just(0.0) | FRACTION,
    "correction": FRACTION,
    "lowest": st.sampled_from([-math.inf, 0.5]),
    "highest": st.sampled_from([math.inf, 1.5]),
}
#: State tensors that a rule keeps positive.
POSITIVE = {
    "adagrad": {0},
    "averaged_adagrad": {0},
    "adadelta": {0, 1},
    "adam": {1},
    "adamax": {1},
    "fsadagrad": {1},
    "rmsprop": {0, 1},
    "averaged_rmsprop": {0, 1},
    "ftml": {0, 1},
    "ftrl": {1},
    "lamb": {1},
}
every = pytest.mark.parametrize("name", FORMULAS)
adjustments = st.builds(
    Adjustments,
    early_decay=st.sampled_from([0.0, 0.1]),
    limit=st.sampled_from([math.inf, 0.5]),
    late_decay=st.sampled_from([0.0, 0.1]),
    noise_factor=st.sampled_from([1.0, 0.25]),
    shrink=st.sampled_from([0.0, 0.1]),
    bound=st.sampled_from([math.inf, 1.0]),
)


def fields(name):
    return FORMULAS[name].__match_args__


def formula_of(name, data):
    found = {one: data.draw(NUMBERS[one], one) for one in fields(name)}
    if name == "centered_rmsprop":  # the square of a mean is never above the mean square
        found["fresh"] = 1 - found["keep"]
    return FORMULAS[name](**found)


def example_of(name, **others):
    """A formula with numbers of about the right size."""
    usual = {"keep": 0.75, "limit": 10.0, "first": 0.0, "most": 0.5, "lowest": -math.inf, "highest": math.inf}
    return FORMULAS[name](**{one: (usual | others).get(one, 0.25) for one in fields(name)})


def numbers(shape, seed, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def states_of(name, shape, seed, dtype=torch.float64):
    found = [numbers(shape, seed + k, dtype) for k in range(_native.UPDATE_RULES[name][0])]
    if name == "centered_rmsprop":
        found[0] = found[1] ** 2 + 0.5
    elif name.endswith("rmsprop"):
        found[2] = found[2].sign()
    return [state.abs() + 0.1 if k in POSITIVE.get(name, ()) else state for k, state in enumerate(found)]


def with_gaps(tensor):
    """The same numbers, where only torch can change them: every other element of memory."""
    wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
    wide[..., 0] = tensor
    return wide[..., 0]


def assert_alike(ours, theirs, dtype):
    tight = dtype is torch.float64
    torch.testing.assert_close(
        ours, theirs, rtol=1e-10 if tight else 1e-3, atol=1e-12 if tight else 1e-4, equal_nan=True, check_stride=False
    )


def test_classes_have_the_numbers_of_the_native_rules():
    native = {name: count for name, (_, count) in _native.UPDATE_RULES.items()}
    assert {name: len(fields(name)) for name in FORMULAS} == native


@every
@given(
    data=st.data(),
    adjustments=adjustments,
    dtype=st.sampled_from([torch.float64, torch.float32]),
    sizes=st.lists(st.sampled_from([0, 1, 7, 8, 33, 1500]), min_size=1, max_size=3),
    noisy=st.booleans(),
    factor=st.sampled_from([1.0, 0.25]),
)
def test_native_code_does_what_torch_does(name, data, adjustments, dtype, sizes, noisy, factor):
    formula = formula_of(name, data)
    start = [numbers(size, 10 * i, dtype) for i, size in enumerate(sizes)]
    kept = [states_of(name, size, 100 + 10 * i, dtype) for i, size in enumerate(sizes)]
    gradients = [numbers(size, 200 + i, dtype) for i, size in enumerate(sizes)]
    noise = [numbers(size, 300 + i, dtype) for i, size in enumerate(sizes)] if noisy else None
    results = []
    for made in (torch.clone, with_gaps):
        weights = [made(weight) for weight in start]
        states = [[made(state) for state in of] for of in zip(*kept, strict=True)]
        copies = [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]
        update(
            formula,
            weights,
            gradients,
            states,
            adjustments,
            factors=None if factor == 1 else [factor] * len(sizes),
            noise=noise,
            copies=copies,
        )
        for copy, weight in zip(copies, weights, strict=True):
            torch.testing.assert_close(copy, weight.bfloat16(), rtol=0, atol=0, equal_nan=True)
        results.append([*weights, *[state for of in states for state in of]])
    for one, other in zip(*results, strict=True):
        assert_alike(one, other, dtype)


@every
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_spreads_as_in_torch(name, wrong):
    """In weights and states, with clipping or without."""
    formula = example_of(name)
    for adjustments in (Adjustments(), Adjustments(limit=0.5, shrink=0.1, bound=1.0)):
        gradient = numbers(40, 1)
        gradient[::7] = wrong
        results = []
        for made in (torch.clone, with_gaps):
            weight, states = made(numbers(40, 0)), [[made(state)] for state in states_of(name, 40, 2)]
            update(formula, [weight], [gradient], states, adjustments)
            results.append([weight, *[state for (state,) in states]])
        for one, other in zip(*results, strict=True):
            assert_alike(one, other, torch.float64)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(name, dtype):
    """And rounded once: the weight, and states of half precision, which a second pass reads."""
    formula = example_of(name)
    adjustments = Adjustments(early_decay=0.1, limit=0.5, late_decay=0.1, shrink=0.01, bound=1.5)
    weight, gradient, states = numbers(1500, 0, dtype), numbers(1500, 1, dtype), states_of(name, 1500, 2, dtype)
    wide, kept = weight.float(), [state.float() for state in states]
    update(formula, [wide], [gradient.float()], [[state] for state in kept], adjustments)
    update(formula, [weight], [gradient], [[state] for state in states], adjustments)
    for ours, wanted in zip(states, kept, strict=True):
        assert torch.equal(ours, wanted.to(dtype))
    if "averaged" in name or name == "lamb":
        torch.testing.assert_close(weight.float(), wide, rtol=0, atol=4 * torch.finfo(dtype).eps)
    else:
        assert torch.equal(weight, wide.to(dtype))


@pytest.mark.parametrize("sizes", [[200_000, 3], [40_000, 90_000, 1]])
@every
def test_sums_over_many_pieces_match_the_whole(name, sizes):
    """And nothing depends on threads."""
    formula = example_of(name, first=1.0)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, None):
            torch.set_num_threads(threads or before)
            made = torch.clone if threads else with_gaps
            weights = [made(numbers(size, i)) for i, size in enumerate(sizes)]
            kept = [states_of(name, size, 10 + 10 * i) for i, size in enumerate(sizes)]
            states = [[made(state) for state in of] for of in zip(*kept, strict=True)]
            update(formula, weights, [numbers(size, 50 + i) for i, size in enumerate(sizes)], states)
            found.append(weights)
    finally:
        torch.set_num_threads(before)
    for one, other, by_torch in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert_alike(one, by_torch, torch.float64)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.to(memory_format=torch.channels_last),
        lambda t: t.transpose(0, 1),
        lambda t: t[:1].expand_as(t),
        lambda t: torch._neg_view(t),
        lambda t: t[..., ::2].repeat_interleave(2, -1)[..., :4],
    ],
    ids=["channels last", "transposed", "expanded", "negated", "copied"],
)
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_any_layout(change, last):
    weight, gradient = numbers((3, 3, 2, 4), 0), change(numbers((3, 3, 2, 4), 1))
    expected = weight - 0.5 * gradient
    weight = weight.to(memory_format=torch.channels_last) if last else weight
    update(formulas.StepFormula(-0.5), [weight], [gradient], [])
    torch.testing.assert_close(weight, expected)


def test_a_gradient_may_share_the_memory_of_the_weights():
    memory = numbers(3000, 0)
    for shift in (0, 1, 999):
        start = memory.clone()
        weight, gradient = memory[shift : shift + 2000], memory[:2000]
        expected = start[shift : shift + 2000] - 0.5 * start[:2000]
        update(formulas.StepFormula(-0.5), [weight], [gradient], [])
        torch.testing.assert_close(weight, expected)
        memory = start


def test_weights_that_share_memory_are_updated_one_after_the_other():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        memory, times = torch.zeros(30_000), 2000
        for _ in range(5):
            views = [memory.view(-1) for _ in range(times)]
            update(formulas.StepFormula(1.0), views, [torch.ones(30_000)] * times, [])
        assert (memory == 5 * times).all()
    finally:
        torch.set_num_threads(before)


def test_autograd_notices_a_change():
    weight = torch.nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    with torch.no_grad():
        update(formulas.StepFormula(-0.5), [weight], [torch.ones(3)], [])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_infinite_weights_stay_where_no_stage_has_to_do_with_them():
    weight = torch.tensor([math.inf, 1.0])
    update(formulas.StepFormula(-0.5), [weight], [torch.ones(2)], [])
    assert weight.tolist() == [math.inf, 0.5]


@given(st.floats(0, 1), st.sampled_from([torch.float32, torch.float64]))
@example(1e-7, torch.float32)
@example(1 / 3, torch.float64)
def test_a_fraction_and_the_rest_add_up(fraction, dtype):
    keep, fresh = complement(fraction, dtype)
    assert keep + fresh == 1
    assert abs(fresh - fraction) <= (6e-8 if dtype is torch.float32 else 2e-16)
    assert dtype is torch.float64 or float(np.float32(keep)) == keep


# ---- norms --------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0, 1, 9, 5000, 70_000]), min_size=1, max_size=3), st.sampled_from([0.5, 1e6]))
def test_norms_are_limited_each_and_together(sizes, limit):
    dtypes = [torch.float32, torch.float64, torch.bfloat16]
    gradients = [numbers(size, i, dtypes[i]) for i, size in enumerate(sizes)]
    gaps = [with_gaps(gradient) for gradient in gradients]  # torch's norms
    each = [min(1.0, limit / max(g.double().norm().item(), 1e-300)) for g in gradients]
    whole = min(1.0, limit / max(torch.cat([g.double() for g in gradients]).norm().item(), 1e-300))
    for given_ in (gradients, gaps):
        assert [float(f) for f in clipping_factors(given_, limit)] == pytest.approx(each, rel=1e-5)
        assert float(global_factor(given_, limit)) == pytest.approx(whole, rel=1e-5)
    assert float(global_factor([*gradients, *gaps], limit * math.sqrt(2))) == pytest.approx(whole, rel=1e-5)


def test_a_norm_that_is_no_number_makes_everything_none():
    for made in (torch.clone, with_gaps):
        gradient = made(torch.tensor([1.0, math.nan]))
        assert math.isnan(float(clipping_factors([gradient], 1.0)[0]))
        assert math.isnan(float(global_factor([gradient], 1.0)))
        assert float(clipping_factors([made(torch.tensor([1.0, math.inf]))], 1.0)[0]) == 0
