"""Codes of gradients: every variant equals the oracle, in any pieces and on any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedline import _native
from tests.oracles.kvstore import quantize

KINDS = ["2bit", "1bit", "bf16", "fp16"]
_EDGES = "0 -0 inf -inf nan 1e-45 -1e-45 3.4e38 -3.4e38 0.5 -0.5 0.49999997"
_EDGES_OF_HALVES = "65504 65519.99 65520 6e-8 2.98e-8 2.99e-8 6.1e-5 6.09e-5 1.0009766 1.00048828125 1.0014648"
SPECIAL = np.array(f"{_EDGES} {_EDGES_OF_HALVES}".split(), "f4")


def numbers(n, seed):
    rng = np.random.default_rng(seed)
    found = (rng.normal(size=n) * 10.0 ** rng.integers(-9, 6, n)).astype("f4")
    places = rng.random(n) < 0.3
    found[places] = rng.choice(SPECIAL, places.sum())
    return found


def code_bytes(kind, n):
    return 2 * n if kind.endswith("16") else -(-n * int(kind[0]) // 32) * 4


def encode(kind, threshold, value, residual, threads=1):
    left = np.full_like(value, 7)
    codes = np.full(code_bytes(kind, len(value)) + 8, 0xAB, "u1")
    job = (len(value), value.ctypes.data, residual.ctypes.data, left.ctypes.data, codes.ctypes.data)
    _native.encode(kind, threshold, [job], threads)
    assert (codes[-8:] == 0xAB).all()
    return codes[:-8], left


def bfloat16(value):
    """Round to the nearest bfloat16, ties to even, as float32."""
    bits = value.view("u4").astype("u8")
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype("u4").view("f4")
    return np.where(np.isnan(value), np.float32(np.nan), rounded)


def float16(value):
    with np.errstate(over="ignore"):
        return value.astype("f2").astype("f4")


def expected(kind, threshold, value, residual):
    """Return codes, their values, and the remainders."""
    if kind == "bf16":
        half = bfloat16(value)
        return None, half, None
    if kind == "fp16":
        half = float16(value)
        return None, half, None
    return quantize(int(kind[0]), threshold, value, residual)


def same(got, want):
    """Assert that arrays are equal bit for bit, except for payloads of NaN."""
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert np.array_equal(got[~nan].view("u4"), want[~nan].view("u4"))


@given(
    st.sampled_from(KINDS),
    st.sampled_from([0.5, 1e-3, 3.0]),
    st.integers(0, 300),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
)
@example("2bit", 0.5, 270_001, 1, 3, 0)
@example("bf16", 0.5, 270_001, 2, 3, 0)
@example("fp16", 0.5, 270_001, 3, 2, 0)
def test_codes_and_their_sums_are_the_oracles(kind, threshold, n, senders, threads, seed):
    all_codes, total = [], np.zeros(n, "f4")
    with np.errstate(all="ignore"):
        for k in range(senders):
            value, residual = numbers(n, seed + 2 * k), numbers(n, seed + 2 * k + 1)
            codes, left = encode(kind, threshold, value, residual, threads)
            wanted, decoded, rest = expected(kind, threshold, value, residual)
            if rest is not None:
                same(left, np.asarray(rest, "f4"))
                assert codes.tobytes() == wanted
            else:
                assert (left == 7).all()
                half = codes.view("u2").astype("u4")
                same((half << 16).view("f4") if kind == "bf16" else codes.view("f2").astype("f4"), decoded)
            total = decoded.astype("f4") if k == 0 else total + decoded
            all_codes.append(codes)
    out = np.full(n + 2, 7, "f4")
    _native.decode_sums(kind, threshold, [(n, [codes.ctypes.data for codes in all_codes], out.ctypes.data)], threads)
    assert out[n:].tolist() == [7, 7]
    same(out[:n], total)


@pytest.mark.parametrize("kind", KINDS)
def test_many_jobs_of_any_sizes_on_threads(kind):
    """Jobs are cut where codes can be, wherever threads begin."""
    sizes = [1, 31, 100_000, 33, 0, 64, 170_003, 5]
    for threads in (1, 2, 3, 7):
        values = [numbers(n, k) for k, n in enumerate(sizes)]
        residuals = [np.nan_to_num(numbers(n, 100 + k)) for k, n in enumerate(sizes)]
        lefts = [np.zeros_like(value) for value in values]
        codes = [np.zeros(code_bytes(kind, n), "u1") for n in sizes]
        outs = [np.zeros_like(value) for value in values]
        of = [[a.ctypes.data for a in arrays] for arrays in zip(values, residuals, lefts, codes, strict=True)]
        _native.encode(kind, 0.5, [(n, *places) for n, places in zip(sizes, of, strict=True)], threads)
        jobs = [(n, [c.ctypes.data] * 2, o.ctypes.data) for n, c, o in zip(sizes, codes, outs, strict=True)]
        _native.decode_sums(kind, 0.5, jobs, threads)
        for value, residual, code, out in zip(values, residuals, codes, outs, strict=True):
            with np.errstate(all="ignore"):
                alone, _ = encode(kind, 0.5, value, residual)
                assert np.array_equal(code, alone)
                decoded = np.zeros_like(value)
                _native.decode_sums(kind, 0.5, [(len(value), [code.ctypes.data], decoded.ctypes.data)])
                same(out, decoded + decoded)


@pytest.mark.parametrize("simd", ["portable", "sse41"])
def test_on_processors_without_avx2(simd):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "oracles or threads"]
    ran = subprocess.run(command, env={**os.environ, "FEEDLINE_SIMD": simd}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_what_makes_no_sense_is_refused():
    for call in (_native.encode, _native.decode_sums):
        with pytest.raises(ValueError, match="'2bit', '1bit', 'bf16' or 'fp16'"):
            call("3bit", 0.5, [])
        with pytest.raises(ValueError, match="threshold above 0"):
            call("2bit", 0.0, [])
        with pytest.raises(ValueError, match="threads >= 1"):
            call("bf16", 0.0, [], 0)
        with pytest.raises(ValueError, match="fields"):
            call("bf16", 0.0, [(1, 2)])
        with pytest.raises(ValueError, match=">= 0"):
            call("bf16", 0.0, [(-1, *([0] * 4))] if call is _native.encode else [(-1, [0], 0)])
    with pytest.raises(ValueError, match="at least one"):
        _native.decode_sums("bf16", 0.0, [(1, [], 0)])
