"""The façade reproduces numbers that CNTK 2.7 computed by the same program, and formulas for any operands."""

from __future__ import annotations

import json
from pathlib import Path

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from tests.compat import cntk_numbers  # noqa: E402
from tests.effort import examples  # noqa: E402
from tests.oracles import criteria  # noqa: E402

RECORDED = json.loads((Path(__file__).parent / "cntk_numbers.json").read_text("utf-8"))


def differences(theirs, ours, where=""):
    """Return the places at which two answers differ. Where CNTK fails there is nothing to compare."""
    if theirs == cntk_numbers.FAILS:
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict) and set(theirs) == set(ours):
        return [d for key in theirs for d in differences(theirs[key], ours[key], f"{where}/{key}")]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        pairs = enumerate(zip(theirs, ours, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{where}/{i}")]
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (theirs, ours))
    alike = np.isclose(theirs, ours, rtol=2e-5, atol=1e-6) if numbers else theirs == ours
    return [] if alike else [f"{where or 'whole'}: CNTK {theirs}, here {ours}"]


def test_every_case_is_recorded():
    assert set(RECORDED) == set(cntk_numbers.CASES)


@pytest.mark.parametrize("name", sorted(cntk_numbers.CASES))
def test_the_numbers_match_cntk(name):
    ours = cntk_numbers.plain(cntk_numbers.CASES[name](C))
    assert differences(RECORDED[name], ours)[:10] == []


# ---- any operands -----------------------------------------------------------------------------------
#
# The criteria against slow twins of their formulas, in tests/oracles/criteria.py: not one-hot, not summing
# to 1, negative, equal, on bounds, of one element, in both precisions.

ELEMENTS = st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 7.5]) | st.floats(-20, 20, width=32)
PROBABILITIES = st.sampled_from([0.0, 1.0, 0.5, 0.25]) | st.floats(0.0625, 0.9375, width=32)


def batches(elements, *shapes):
    """Draw arrays of 1 to 3 samples. Letters in shapes are lengths."""

    def drawn(lengths):
        count, *of = lengths
        sizes = dict(zip("abk", of, strict=True))
        return st.tuples(
            *(arrays.arrays(np.float64, (count, *(sizes[n] for n in s)), elements=elements) for s in shapes)
        )

    return st.tuples(*[st.integers(1, 3)] * 3, st.integers(1, 5)).flatmap(drawn)


def found(function, given_arrays, dtype):
    """The value of a function of variables, and its gradients."""
    variables = [C.input_variable(a.shape[1:], needs_gradient=True, dtype=dtype) for a in given_arrays]
    fed = {v: a.astype(dtype) for v, a in zip(variables, given_arrays, strict=True)}
    f = function(*variables)
    gradients = f.grad(fed, wrt=variables)
    return f.eval(fed), [gradients[v] for v in variables]


def expect(value, expected, dtype, scale=1.0):
    tolerance = 2e-4 if dtype is np.float32 else 1e-9
    assert value.dtype == dtype
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * scale)


DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@DTYPES
@settings(max_examples=examples(30), deadline=None)
@given(batches(ELEMENTS, "k", "k"))
def test_cross_entropy_of_any_vectors(dtype, given_arrays):
    scores, targets = given_arrays
    value, gradients = found(C.cross_entropy_with_softmax, given_arrays, dtype)
    pairs = list(zip(scores, targets, strict=True))
    expect(value, [criteria.cross_entropy(o, t) for o, t in pairs], dtype, scale=400)
    slopes = [criteria.cross_entropy_gradients(o, t) for o, t in pairs]
    for mine, theirs in zip(gradients, zip(*slopes, strict=True), strict=True):
        expect(mine, np.array(theirs), dtype, scale=20)


@DTYPES
@settings(max_examples=examples(20), deadline=None)
@given(batches(ELEMENTS, "ak", "bk"))
def test_cross_entropy_of_any_matrices(dtype, given_arrays):
    value, _ = found(C.cross_entropy_with_softmax, given_arrays, dtype)
    expect(value, [criteria.cross_entropy(o, t) for o, t in zip(*given_arrays, strict=True)], dtype, scale=400)


@DTYPES
@pytest.mark.parametrize("axis", [0, 1, None])
@settings(max_examples=examples(15), deadline=None)
@given(batches(ELEMENTS, "ak", "ak"))
def test_criteria_along_any_axis(dtype, axis, given_arrays):
    chosen = C.Axis.all_static_axes() if axis is None else axis
    pairs = list(zip(*(a.astype(dtype) for a in given_arrays), strict=True))
    value, _ = found(lambda x, y: C.cross_entropy_with_softmax(x, y, axis=chosen), given_arrays, dtype)
    expect(value, [criteria.cross_entropy_along(o, t, axis) for o, t in pairs], dtype, scale=400)
    value, _ = found(lambda x, y: C.classification_error(x, y, axis=chosen), given_arrays, dtype)
    expect(value, [criteria.classification_error_along(o, t, axis) for o, t in pairs], dtype)


@DTYPES
@settings(max_examples=examples(30), deadline=None)
@given(batches(ELEMENTS, "ak", "bk"), batches(ELEMENTS, "k", "k"))
def test_classification_error_of_any_targets(dtype, matrices, vectors):
    for given_arrays in (matrices, vectors):
        cast = [a.astype(dtype) for a in given_arrays]
        value, (for_scores, for_targets) = found(C.classification_error, given_arrays, dtype)
        expect(value, [criteria.classification_error(o, t) for o, t in zip(*cast, strict=True)], dtype, scale=20)
        assert not for_scores.any()
        if given_arrays is vectors:
            expect(for_targets, [-criteria.first_largest(o) for o in cast[0]], dtype)


@settings(max_examples=examples(30), deadline=None)
@given(batches(ELEMENTS, "k", "k"), st.integers(2, 5))
def test_errors_among_the_best_of_any_targets(given_arrays, top):
    scores, targets = given_arrays
    if top > scores.shape[1]:
        with pytest.raises(ValueError, match=f"at least {top} classes"):
            found(lambda x, y: C.classification_error(x, y, topN=top), given_arrays, np.float64)
        return
    value, _ = found(lambda x, y: C.classification_error(x, y, topN=top), given_arrays, np.float64)
    assert float(value) == criteria.missed_by_the_best(scores, targets, top)


@DTYPES
@settings(max_examples=examples(30), deadline=None)
@given(batches(PROBABILITIES, "k", "k"))
def test_binary_cross_entropy_of_any_targets(dtype, given_arrays):
    outputs, targets = (a.astype(dtype) for a in given_arrays)
    value, gradients = found(C.binary_cross_entropy, given_arrays, dtype)
    inside = (outputs > 0) & (outputs < 1)  # 1 minus a probability near 1 has one digit in single precision
    expected = np.array([criteria.binary_cross_entropy(o, t) for o, t in zip(outputs, targets, strict=True)])
    expect(value[inside], expected[inside], dtype)
    slopes = [criteria.binary_cross_entropy_gradients(o, t) for o, t in zip(outputs, targets, strict=True)]
    for mine, theirs in zip(gradients, zip(*slopes, strict=True), strict=True):
        expect(mine[inside], np.array(theirs)[inside], dtype)
    if dtype is np.float64:
        expect(value, expected, dtype)


@DTYPES
@settings(max_examples=examples(20), deadline=None)
@given(batches(ELEMENTS, "ak", "ak"))
def test_squared_errors_of_any_samples(dtype, given_arrays):
    value, (left, right) = found(C.squared_error, given_arrays, dtype)
    a, b = (x.astype(dtype).astype(np.float64) for x in given_arrays)
    expect(value, [criteria.squared_error(x, y) for x, y in zip(a, b, strict=True)], dtype, scale=100)
    expect(left, 2 * (a - b), dtype, scale=20)
    expect(right, 2 * (b - a), dtype, scale=20)


@DTYPES
@settings(max_examples=examples(20), deadline=None)
@given(batches(ELEMENTS, "ak", "ak"))
def test_cosines_of_any_samples(dtype, given_arrays):
    shifted = [np.sign(x) + x + 0.5 for x in given_arrays]  # none is 0
    value, _ = found(C.cosine_distance, shifted, dtype)
    expect(value, [criteria.cosine_distance(x, y) for x, y in zip(*shifted, strict=True)], dtype)
