"""Edit distances and rankings, by slow twins: recursion over all edits, and loops over pairs."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C  # noqa: E402
from feedline.networks.ops.ranking import edits  # noqa: E402


def cheapest(first, second, substitution, deletion, insertion):
    """The lowest price, and the number of edits of the path that CNTK's rules prefer among equals."""

    @functools.cache
    def at(i, j):
        if i == 0 or j == 0:
            return (i * deletion + j * insertion, i + j)
        if first[i - 1] == second[j - 1]:
            return at(i - 1, j - 1)
        (s, a), (d, b), (n, c) = at(i - 1, j - 1), at(i - 1, j), at(i, j - 1)
        s, d, n = s + substitution, d + deletion, n + insertion
        return (s, a + 1) if s <= d and s <= n else (d, b + 1) if d < n else (n, c + 1)

    return at(len(first), len(second))[1]


@pytest.mark.parametrize("prices", [(1, 1, 1), (0, 1, 1), (3, 1, 1), (1, 0.5, 2), (0, 0, 0)])
def test_edits_are_the_cheapest(prices):
    rng = np.random.default_rng(0)
    for _ in range(60):
        first, second = (rng.integers(0, 3, rng.integers(0, 9)) for _ in range(2))
        assert edits(first, second, *prices) == cheapest(tuple(first), tuple(second), *prices)


def merged(labels, ignored):
    kept = [label for i, label in enumerate(labels) if i == 0 or label != labels[i - 1]]
    return [label for label in kept if label not in ignored]


@pytest.mark.parametrize("sparse", [False, True])
def test_edit_distance_error(sparse):
    rng = np.random.default_rng(1)
    a = C.sequence.input_variable(4)
    b = C.sequence.input_variable(4, is_sparse=sparse)
    lengths = (6, 1, 9)
    first, second = ([rng.integers(0, 4, n) for n in lengths] for _ in range(2))
    eye = np.eye(4, dtype="f4")
    rows = [eye[x] for x in second]
    if sparse:
        import scipy.sparse as sp

        rows = [sp.csr_matrix(x) for x in rows]
    data = {a: [eye[x] * 3 - 1 for x in first], b: rows}
    plain = C.edit_distance_error(a, b)
    wrong = sum(cheapest(tuple(x), tuple(y), 1, 1, 1) for x, y in zip(first, second, strict=True))
    assert (plain.shape, plain.dynamic_axes) == ((), ())
    assert abs(float(plain.eval(data)) - wrong) < 1e-5
    f = C.edit_distance_error(a, b, 0, 1, 1, True, [1])
    pairs = [(merged(x, {1}), merged(y, {1})) for x, y in zip(first, second, strict=True)]
    wrong = sum(cheapest(tuple(x), tuple(y), 0, 1, 1) for x, y in pairs)
    expected = wrong * sum(lengths) / sum(len(y) for _, y in pairs)
    assert abs(float(f.eval(data)) - expected) < 1e-5
    assert C.metrics.edit_distance_error is C.edit_distance_error
    with pytest.raises(ValueError, match="along the same sequences"):
        C.edit_distance_error(a, C.input_variable(4))


def test_nothing_left_to_compare():
    a, b = C.sequence.input_variable(2), C.sequence.input_variable(2)
    f = C.edit_distance_error(a, b, tokensToIgnore=[0, 1])
    data = {a: [np.eye(2, dtype="f4")], b: [np.eye(2, dtype="f4")]}
    assert math.isnan(f.eval(data))


GROUPS = np.array([1, 1, 2, 2, 2, 5, 1, 1], "f8")
GAINS = np.array([7, 1, 3, 1, 1, 2, 0, 0], "f8")


def ranked(scores, gains):
    return sorted(range(len(scores)), key=lambda i: (-scores[i], gains[i]))


def parts():
    begin = 0
    for i in range(1, len(GROUPS) + 1):
        if i == len(GROUPS) or GROUPS[i] != GROUPS[begin]:
            yield slice(begin, i)
            begin = i


def lambdas(scores):
    """What the gradient is of, by loops over pairs of each group."""
    total = 0.0
    for part in parts():
        s, g = scores[part], GAINS[part]
        place = {sample: rank for rank, sample in enumerate(ranked(s, g))}
        ideal = sum(gain / math.log(2 + i) for i, gain in enumerate(sorted(g, reverse=True)))
        for i in range(len(s)):
            for j in range(len(s)):
                if g[i] > g[j]:
                    change = (g[i] - g[j]) * abs(1 / math.log(2 + place[i]) - 1 / math.log(2 + place[j])) / ideal
                    total += change * math.log(1 + math.exp(s[j] - s[i]))
    return total


def missing(scores):
    """Mean over groups of 1 - NDCG, times 100 and the number of samples. The last group has no gains."""
    found = []
    for part in parts():
        s, g = scores[part], GAINS[part]
        got = sum(g[sample] / math.log(2 + i) for i, sample in enumerate(ranked(s, g)))
        best = sum(gain / math.log(2 + i) for i, gain in enumerate(sorted(g, reverse=True)))
        found.append(1 - got / best if best else 1)
    return np.mean(found) * 100 * len(scores)


@pytest.mark.parametrize("ties", [False, True])
def test_lambda_rank(ties):
    rng = np.random.default_rng(2)
    score, gain, group = (C.input_variable(1, dtype=np.float64, needs_gradient=i == 0) for i in range(3))
    f = C.lambda_rank(score, gain, group)
    assert C.losses.lambda_rank is C.lambda_rank
    for _ in range(5):
        scores = rng.integers(0, 2, 8).astype("f8") if ties else rng.normal(size=8)
        data = {score: scores[:, None], gain: GAINS[:, None], group: GROUPS[:, None]}
        np.testing.assert_allclose(f.eval(data), missing(scores), rtol=1e-10)
        if ties:
            continue
        gradient = f.grad(data, wrt=[score]).ravel()
        for i in range(8):  # the ranks stay as they are
            moved = scores.copy()
            moved[i] += 1e-7
            assert abs(gradient[i] - (lambdas(moved) - lambdas(scores)) / 1e-7) < 1e-5


def test_the_gradient_in_cntks_documentation():
    score, gain, group = (C.input_variable(1, needs_gradient=i == 0) for i in range(3))
    g, s, n = (np.float32(x)[:, None] for x in ([1, 1, 2, 2], [1, 2, 3, 4], [7, 1, 3, 1]))
    found = C.lambda_rank(score, gain, group).grad({score: s, gain: n, group: g}, wrt=[score])
    np.testing.assert_allclose(found.ravel(), [-0.2121, 0.2121, -0.1486, 0.1486], atol=1e-4)


@pytest.mark.parametrize("ties", [False, True])
def test_ndcg_at_1(ties):
    rng = np.random.default_rng(3)
    score, gain, group = (C.input_variable(1, dtype=np.float64) for _ in range(3))
    f = C.ndcg_at_1(score, gain + 1, group)
    for _ in range(10):
        scores = rng.integers(0, 2, 8).astype("f8") if ties else rng.normal(size=8)
        data = {score: scores[:, None], gain: GAINS[:, None], group: GROUPS[:, None]}
        firsts = [(GAINS[p] + 1)[ranked(scores[p], GAINS[p])[0]] / (GAINS[p] + 1).max() for p in parts()]
        np.testing.assert_allclose(f.eval(data), np.mean(firsts) * 100 * 8, rtol=1e-10)
    with pytest.raises(ValueError, match="one score, one gain and one group"):
        C.ndcg_at_1(C.input_variable(2), gain, group)
    with pytest.raises(ValueError, match="same dynamic axes"):
        C.ndcg_at_1(C.constant(1), gain, group)
