"""Updates have the same bits with and without AVX2, on any number of threads, and nonsense is refused.

Tests in tests/updates, tests/train and tests/kvstore compare the numbers with torch and the oracles.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from feedline import _native

PLAIN = (0.0, math.inf, 0.0, 0.0, 0.0, math.inf)
STAGES = (0.1, 1.5, 0.2, 0.3, 0.01, 2.0)
TYPES = {np.float32: 0, np.float64: 1, np.float16: 2}


def job(factor, weight, gradient, *more, states=()):
    """Return the arguments of native code. ``more``: noise and copy."""
    arrays = [weight, gradient, *more, *[None] * (2 - len(more)), *states]
    return len(weight), factor, *(x for a in arrays for x in ((0, 0) if a is None else (a.ctypes.data, code(a))))


def code(array):
    return TYPES[array.dtype.type]


def results(threads):
    """Bytes of everything that all rules write, of any size and type."""
    rng = np.random.default_rng(5)
    digest = hashlib.sha256()
    for rule, (kept, count) in _native.UPDATE_RULES.items():
        for dtype, other in ((np.float32, np.float32), (np.float64, np.float64), (np.float16, np.float32)):
            numbers = rng.uniform(0.1, 0.9, count).tolist()
            written, held, jobs = [], [], []
            for n in (0, 1, 5, 1031, 70_003, 66_000):
                weight, gradient, noise = (rng.normal(size=n).astype(dtype) for _ in range(3))
                states = [(rng.random(n) + 0.1).astype(other) for _ in range(kept)]
                copy = np.zeros(n, np.float16)
                jobs.append(job(0.7, weight, gradient, noise, copy, states=states))
                written += [weight, copy, *states]
                held += [gradient, noise]
            _native.update(rule, numbers, STAGES, jobs, threads)
            for array in written:
                digest.update(array.tobytes())
    values = [rng.normal(size=n).astype(np.float32) for n in (0, 3, 100_000)]
    squares = _native.square_sums([(len(v), v.ctypes.data, 0) for v in values], threads)
    assert squares == pytest.approx([np.square(v, dtype=np.float64).sum() for v in values])
    digest.update(np.array(squares).tobytes())
    return digest.hexdigest()


def test_threads_change_no_bit():
    assert results(1) == results(2) == results(5)


def test_processors_without_avx2_compute_the_same_bits():
    program = "from tests.native.test_update import results; print(results(1))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FEEDLINE_SIMD": "portable"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == results(1)


def test_one_step_by_hand():
    weight, gradient = np.array([1.0, -2.0, 3.0]), np.array([4.0, 0.5, -8.0])
    noise, copy = np.array([1.0, 2.0, 3.0]), np.zeros(3, np.float32)
    stages = (0.5, 2.0, 0.25, 0.125, 0.5, 3.0)
    _native.update("step", [-1.0], stages, [job(0.5, weight, gradient, noise, copy)])
    # 0.5 g + 0.5 w, clipped: 2, -0.75, -2. With 0.25 w: 2.25, -1.25, -1.25. Then noise, shrinking, and the bound.
    assert weight.tolist() == [-1.25 + 0.125 + 0.5, -0.75 + 0.25 + 0.5, 3.0]
    assert copy.tolist() == weight.tolist()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda w: _native.update("steps", [1.0], PLAIN, []), "name of a rule, got 'steps'"),
        (lambda w: _native.update("step", [], PLAIN, []), "1 numbers for 'step', got 0"),
        (lambda w: _native.update("step", [1.0], PLAIN[:5], []), "6 numbers for stages, got 5"),
        (lambda w: _native.update("step", [1.0], PLAIN, [], 0), "threads >= 1"),
        (lambda w: _native.update("step", [1.0], PLAIN, [job(1.0, w, w)[:-1]]), "10 fields, got 9"),
        (lambda w: _native.update("step", [1.0], PLAIN, [(-1, *job(1.0, w, w)[1:])]), ">= 0, got -1"),
        (lambda w: _native.update("step", [1.0], PLAIN, [(*job(1.0, w, w)[:3], 4, *[0] * 6)]), "from 0 to 3, got 4"),
        (
            lambda w: _native.update("step", [1.0], PLAIN, [job(1.0, w, w), job(1.0, w.astype("f8"), w)]),
            "either float64 weights or others",
        ),
        (
            lambda w: _native.update("momentum", [1.0] * 4, PLAIN, [job(1.0, w, w, states=[w.astype("f8")])]),
            "float64 states only for float64 weights",
        ),
        (lambda w: _native.square_sums([(1, 2)]), "3 fields"),
        (lambda w: _native.square_sums([(-1, 0, 0)]), ">= 0"),
        (lambda w: _native.square_sums([], 0), "threads >= 1"),
    ],
)
def test_what_makes_no_sense_is_refused(call, says):
    weight = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=says):
        call(weight)
    assert weight.tolist() == [1, 1, 1]
