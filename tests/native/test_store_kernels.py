"""Merge, and codes in 2 bits and 1, do what their oracles do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from feedline.kvstore.compression import Quantized
from tests.oracles.kvstore import quantize

FLOATS = st.floats(-4, 4, width=32)


@st.composite
def coded(draw):
    n = draw(st.integers(0, 70))
    threshold = draw(st.sampled_from([0.5, 0.2, 1e-30, 3.0]))
    # Sums that lie on the threshold matter most.
    near = st.sampled_from([0.0, -0.0, threshold, -threshold, threshold / 2, np.nan, np.inf])
    values = st.lists(FLOATS | near, min_size=n, max_size=n)
    return draw(st.sampled_from([1, 2])), threshold, np.array(draw(values), "f4"), np.array(draw(values), "f4")


def native(bits, threshold, gradient, residual):
    left, sent = np.empty_like(gradient), np.empty_like(gradient)
    codes = np.full((len(gradient) * bits + 31) // 32 * 4, 255, np.uint8)
    arrays = (gradient, residual, left, codes)
    _native.encode(f"{bits}bit", threshold, [(len(gradient), *(array.ctypes.data for array in arrays))])
    _native.decode_sums(f"{bits}bit", threshold, [(len(gradient), [codes.ctypes.data], sent.ctypes.data)])
    return codes.tobytes(), sent, left


def same(found, expected):
    assert found[0] == expected[0]
    for one, other in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(one, other)
        # Zeros of either sign are equal, and not the same.
        numbers = ~np.isnan(one)
        assert (np.signbit(one) == np.signbit(other))[numbers].all()


@given(coded())
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_quantize_equals_its_oracle(case):
    same(native(*case), quantize(*case))


@given(coded())
def test_torch_codes_equally(case):
    bits, threshold, gradient, residual = case
    left, sent = torch.empty(len(gradient)), torch.empty(len(gradient))
    codes = torch.empty((len(gradient) * bits + 31) // 32 * 4, dtype=torch.uint8)
    compression = Quantized(bits, threshold)
    compression.encode_by_torch(torch.from_numpy(gradient), torch.from_numpy(residual), left, codes)
    compression.decode_by_torch(codes, sent)
    same((codes.numpy().tobytes(), sent.numpy(), left.numpy()), native(*case))


@pytest.mark.parametrize("bits", [1, 2])
def test_long_arrays(bits):
    # Long enough for the table of decoded bytes and for letting go of the GIL.
    rng = np.random.default_rng(0)
    gradient, residual = (rng.normal(size=10_003).astype("f4") for _ in range(2))
    same(native(bits, 0.5, gradient, residual), quantize(bits, 0.5, gradient, residual))


def test_codes_begin_at_the_top_bits():
    # MXNet's layout: four values a byte, the first in the top two bits, 11 for plus and 10 for minus.
    codes = native(2, 0.5, np.array([1, -1, 0, 1, 1], "f4"), np.zeros(5, "f4"))[0]
    assert codes == bytes([0b11100011, 0b11000000, 0, 0])
    codes = native(1, 0.0, np.array([1, -1, 0, 1, 1, 1, 1, 1, 1], "f4"), np.zeros(9, "f4"))[0]
    assert codes == bytes([0b10011111, 0b10000000, 0, 0])


def test_unused_codes_are_zero_again():
    assert native(2, 0.5, np.zeros(1, "f4"), np.zeros(1, "f4"))[0] == bytes(4)


# ---- merge ----------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7), st.integers(0, 3)), max_size=4),
    st.sampled_from(["f4", "f8"]),
    st.integers(1, 3),
)
def test_merge_equals_sums_in_order(sizes, dtype, threads):
    rng = np.random.default_rng(0)
    given_, wanted, jobs = [], [], []
    for count, inputs, outputs in sizes:
        arrays = [rng.normal(size=count).astype(dtype) for _ in range(inputs)]
        total = arrays[0].copy()
        for one in arrays[1:]:
            total = total + one
        outs = [np.full(count, 7, dtype) for _ in range(outputs)]
        given_.append((arrays, outs))
        wanted.append(total)
        jobs.append((count, [a.ctypes.data for a in arrays], [o.ctypes.data for o in outs]))
    _native.merge(jobs, np.dtype(dtype).itemsize, threads)
    for (_, outs), total in zip(given_, wanted, strict=True):
        for out in outs:
            assert out.tobytes() == total.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("offset", [0, 1])
def test_merge_of_long_arrays(threads, offset):
    # Enough for several threads, and for writing past the caches, aligned for it or not.
    rng = np.random.default_rng(0)
    count = 3_000_017
    arrays = [rng.normal(size=count).astype("f4") for _ in range(4)]
    outs = [np.empty(count + 1, "f4")[offset : offset + count] for _ in range(2)]
    expected = ((arrays[0] + arrays[1]) + arrays[2]) + arrays[3]
    jobs = [(count, [a.ctypes.data for a in arrays], [o.ctypes.data for o in (*outs, arrays[2])])]
    _native.merge(jobs, 4, threads)
    for out in (*outs, arrays[2]):
        assert out.tobytes() == expected.tobytes()


def test_merge_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="4 or 8 bytes"):
        _native.merge([], 2)
    with pytest.raises(ValueError, match="threads >= 1"):
        _native.merge([], 4, 0)
    with pytest.raises(ValueError, match="at least one input"):
        _native.merge([(1, [], [0])], 4)
    with pytest.raises(ValueError, match="count of elements >= 0"):
        _native.merge([(-1, [0], [0])], 4)
    with pytest.raises(ValueError, match="3 fields"):
        _native.merge([(1, [0])], 4)
