"""Order kernels equal their plain Python twins, bit for bit. They permute, and CNTK's order equals CNTK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.effort import EFFORT
from tests.oracles import order as slow

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(os.environ.get("FEEDLINE_GOLDEN", ROOT.parent / "shared" / "golden")) / "order.json"

words = st.integers(0, 2**64 - 1)
sizes = st.one_of(st.integers(1, 300), st.integers(1, 2**40), st.integers(0, 40).map(lambda e: 2**e))


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


# ---- keys and permutations


@given(st.lists(words, max_size=6))
def test_hash_key(ws):
    assert _native.hash_key(ws) == slow.hash_key(ws)
    assert _native.hash_key(tuple(np.uint64(w) for w in ws)) == slow.hash_key(ws)


@given(words, words, words)
def test_words_are_distinguished(a, b, c):
    keys = {_native.hash_key(ws) for ws in ([a], [a, b], [a, b, c], [a, b, c, 0], [])}
    assert len(keys) == 5


def test_neighbouring_seeds_and_sweeps_share_no_key():
    keys = {_native.hash_key([seed, sweep, 0]) for seed in range(100) for sweep in range(100)}
    assert len(keys) == 100 * 100


@pytest.mark.parametrize(
    ("words", "error"), [([-1], ValueError), ([0, 2**64], ValueError), (["a"], TypeError), ([1.0], TypeError)]
)
def test_hash_key_refuses(words, error):
    with pytest.raises(error, match=r"0 to 2\*\*64-1 in `words`, got .* at"):
        _native.hash_key(words)


@given(words, st.integers(0, 400))
def test_fisher_yates(key, n):
    order = _native.fisher_yates(key, n)
    assert order.dtype == np.uint32
    assert order.tolist() == slow.fisher_yates(key, n)


def test_fisher_yates_of_many_is_a_permutation():
    order = _native.fisher_yates(1, 100_003)
    assert np.array_equal(np.sort(order), np.arange(100_003))


def test_fisher_yates_refuses_what_uint32_cannot_hold():
    with pytest.raises(ValueError, match=r"n < 2\*\*32 .* got 4294967296"):
        _native.fisher_yates(0, 2**32)


@given(words, sizes, st.data())
def test_feistel(key, n, data):
    first = data.draw(st.integers(0, n))
    count = data.draw(st.integers(0, min(40, n - first)))
    images = _native.feistel(key, n, first, count)
    assert images.dtype == np.int64
    assert images.tolist() == slow.feistel(key, n, first, count)


@given(words, st.integers(1, 5000))
def test_feistel_permutes(key, n):
    assert np.array_equal(np.sort(_native.feistel(key, n, 0, n)), np.arange(n))


@pytest.mark.parametrize("n", [2**20, 2**20 + 1, 1_500_001, 2**21 - 1])
def test_feistel_permutes_many(n):
    seen = np.zeros(n, bool)
    seen[_native.feistel(n, n, 0, n)] = True
    assert seen.all()


@given(words, st.integers(1, 2**40), st.data())
def test_feistel_is_the_same_in_pieces(key, n, data):
    count = min(n, 2500)
    first = data.draw(st.integers(0, n - count))
    cut = data.draw(st.integers(0, count))
    whole = _native.feistel(key, n, first, count)
    pieces = [_native.feistel(key, n, first, cut), _native.feistel(key, n, first + cut, count - cut)]
    assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize(
    ("n", "first", "count"),
    [(0, 0, 0), (2**40 + 1, 0, 1), (10, 11, 0), (10, 0, 11), (10, 5, 6), (10, 5, 2**64 - 1)],
)
def test_feistel_refuses(n, first, count):
    with pytest.raises(ValueError, match=r"expected .*n.* got"):
        _native.feistel(0, n, first, count)


@pytest.mark.parametrize("n", [2**20 + 1, 2**21, 2**30, 2**40])
def test_feistel_looks_random(n):
    """Over many keys: neighbours, place against image, images of neighbouring keys, and equal buckets.

    Each statistic is standard normal (or chi-square) for a random permutation, and 200 keys give its mean and
    spread to a tenth. The keys are fixed, so the outcome is too.
    """
    keys, many, buckets = 200, 4096, 64
    neighbours, place, across, spread = [], [], [], []
    before = None
    for k in range(keys):
        x = _native.feistel(_native.hash_key([5, k, 1, 0]), n, 0, many)
        share = x / n
        neighbours.append(np.corrcoef(share[1:], share[:-1])[0, 1] * many**0.5)
        place.append(np.corrcoef(np.arange(many), share)[0, 1] * many**0.5)
        if before is not None:
            across.append(np.corrcoef(before, share)[0, 1] * many**0.5)
        before = share
        for part in (share * buckets).astype(int), x % buckets, (x[1::2] - x[::2]) % n * buckets // n:
            counts = np.bincount(part, minlength=buckets)
            expected = len(part) / buckets
            chi2 = ((counts - expected) ** 2 / expected).sum()
            spread.append((chi2 - (buckets - 1)) / (2 * (buckets - 1)) ** 0.5)
    for scores in neighbours, place, across, spread:
        assert abs(np.mean(scores)) < 4 / len(scores) ** 0.5
        assert 0.75 < np.std(scores) < 1.25


@given(words, st.lists(st.integers(0, 2**63 - 1), max_size=30))
def test_fingerprint(h, ordinals):
    running = _native.fingerprint(h, ints(ordinals))
    assert running.dtype == np.uint64
    assert running.tolist() == slow.fingerprint(h, ordinals)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=20, unique=True))
def test_fingerprint_sees_the_order(ordinals):
    turned = ordinals[::-1]
    assert _native.fingerprint(0, ints(ordinals))[-1] != _native.fingerprint(0, ints(turned))[-1]


# ---- locate


@given(st.lists(st.integers(0, 5), min_size=1, max_size=70), st.integers(-50, 50), st.booleans(), st.data())
def test_locate(counts, origin, narrow, data):
    origin = max(origin, 0) if narrow else origin
    starts = (np.concatenate([[0], np.cumsum(counts)]) + origin).tolist()
    inside = st.integers(starts[0], max(starts[0], starts[-1] - 1))
    t = data.draw(st.lists(inside, max_size=70 if starts[-1] > starts[0] else 0))
    slot, index = _native.locate(ints(starts), ints(t, np.uint32 if narrow else np.int64))
    assert (slot.dtype, index.dtype) == (np.uint32, np.int64)
    assert (slot.tolist(), index.tolist()) == slow.locate(starts, t)


@given(st.lists(st.integers(60, 120) | st.integers(0, 3), min_size=3, max_size=30), st.integers(0, 2**40))
def test_locate_of_every_place(counts, origin):
    """Slots of about the same size, which are found without a search, and slots that are not."""
    starts = (np.concatenate([[0], np.cumsum(counts)]) + origin).tolist()
    t = list(range(starts[0], starts[-1]))[::-1]
    slot, index = _native.locate(ints(starts), ints(t))
    assert (slot.tolist(), index.tolist()) == slow.locate(starts, t)


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
@pytest.mark.parametrize("starts", [[3, 5, 5, 9], [3, 9], [3]])
def test_locate_refuses_places_outside(starts, dtype):
    for outside in {2, starts[-1], 2**31 + 5}:
        inside = [p for p in (3, 4) if p < starts[-1]]
        message = rf"from 3 to below {starts[-1]}, got t\[{len(inside)}\] = {outside}"
        for t in [*inside, outside], [*inside, outside, 0]:
            with pytest.raises(IndexError, match=message):
                _native.locate(ints(starts), ints(t, dtype))


def test_locate_refuses_other_arrays():
    for dtype in np.int32, np.uint64, ">i8", float, bool:
        with pytest.raises(TypeError, match="int64 or uint32 array for `t`, got"):
            _native.locate(ints([0, 5]), ints([0], dtype))
    for t in ints([[0]]), ints([0, 0, 0])[::2], [0], None:
        with pytest.raises(TypeError, match="int64 or uint32 array for `t`, got"):
            _native.locate(ints([0, 5]), t)


def test_locate_refuses_no_starts():
    with pytest.raises(ValueError, match="got 0"):
        _native.locate(ints([]), ints([]))


def test_locate_of_unsorted_starts_stays_inside_them():
    for starts in [0, 2**62, -7, 11, 5, 10], [0, 20, 9, 11, 5, 60], [0, 20, 30, 40, 50, 0, 60]:
        t = ints([place % starts[-1] for place in range(600)])
        slot, _ = _native.locate(ints(starts), t)
        assert slot.max() < len(starts) - 1


# ---- CNTK 2.7


def test_the_oracle_has_the_standard_generator():
    rng = slow.MT19937_64(5489)
    for _ in range(9999):
        rng()
    assert rng() == 9981545732273789042  # the 10000th draw required by the C++ standard


@given(words, st.integers(0, 60))
def test_cntk_chunk_order(seed, chunks):
    assert _native.cntk_chunk_order(seed, chunks).tolist() == slow.cntk_chunk_order(seed, chunks)


@given(words, st.lists(st.integers(0, 6), max_size=20), st.integers(0, 9), st.booleans())
def test_cntk_sequence_order(seed, counts, width, in_chunks):
    begin, end = slow.cntk_windows(counts, **{"in_chunks" if in_chunks else "in_samples": width})
    order = _native.cntk_sequence_order(seed, ints(counts), ints(begin), ints(end))
    assert order.tolist() == slow.cntk_sequence_order(seed, counts, begin, end)
    assert sorted(order) == list(range(sum(counts)))


def ids_of_golden_cases():
    if not GOLDEN.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no golden file {GOLDEN}"))]
    cases = json.loads(GOLDEN.read_text())["cases"]
    return [pytest.param(case, id=case["id"]) for case in cases]


@pytest.mark.parametrize("case", ids_of_golden_cases())
def test_cntk_order_equals_cntk(case):
    """All sweeps equal the sweeps of the real CNTK 2.7. The oracle gives the windows."""
    sequences = np.split(np.arange(len(case["lengths"])), np.cumsum(case["chunks"])[:-1])
    for sweep, delivered in enumerate(case["sweeps"]):
        seed = case["randomization_seed"] + sweep
        chunks = [sequences[c] for c in _native.cntk_chunk_order(seed, len(sequences))]
        counts = [len(chunk) for chunk in chunks]
        if case["randomization_window_in_samples"]:
            samples = [sum(case["lengths"][i] for i in chunk) for chunk in chunks]
            begin, end = slow.cntk_windows(samples, in_samples=case["randomization_window_in_samples"])
        else:
            begin, end = slow.cntk_windows(counts, in_chunks=case["randomization_window_in_chunks"])
        order = _native.cntk_sequence_order(seed, ints(counts), ints(begin), ints(end))
        assert np.concatenate(chunks)[order].tolist() == delivered


@pytest.mark.parametrize(
    ("counts", "begin", "end", "message"),
    [
        ([2, 2], [0, 0], [1, 1], r"got \[0, 1\) for c = 1"),  # leaves itself out: would draw forever
        ([2, 2], [1, 1], [2, 2], r"got \[1, 2\) for c = 0"),
        ([2, 2], [0, 0], [2, 3], r"got \[0, 3\) for c = 1"),
        ([2, 2], [-1, 0], [1, 2], r"got \[-1, 1\) for c = 0"),
        ([2, 2, 2], [0, 1, 0], [3, 3, 3], r"got \[0, 3\) for c = 2"),
        ([2, 2, 2], [0, 0, 0], [3, 2, 3], r"got \[0, 2\) for c = 1"),
        ([2, -1], [0, 0], [2, 2], r"counts\[1\] = -1"),
        ([2**62, 2**62], [0, 0], [2, 2], r"sum below 2\*\*63"),
        ([1], [0, 0], [1, 1], "equal length, got 1, 2 and 2"),
    ],
)
def test_cntk_refuses_impossible_windows(counts, begin, end, message):
    with pytest.raises(ValueError, match=message):
        _native.cntk_sequence_order(0, ints(counts), ints(begin), ints(end))


# ---- variants


@pytest.mark.skipif("FEEDLINE_SIMD" in os.environ, reason="this run already is a variant")
def test_all_of_this_holds_in_portable_code():
    """The variant is chosen at import, so the other one needs its own process."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "FEEDLINE_SIMD": "portable", "FEEDLINE_EFFORT": str(EFFORT / 3)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert "passed" in run.stdout
