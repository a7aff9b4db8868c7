"""The native CRC-32C equals its definition, in pieces and as a whole, with and without SSE4.2."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.oracles.crc32c import crc32c as slow


def test_check_value():
    # The check value of the Rocksoft model for CRC-32C.
    assert _native.crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_equals_definition(data, value):
    assert _native.crc32c(data, value) == slow(data, value)


@pytest.mark.parametrize("size", [383, 384, 385, 767, 768, 3071, 3072, 3083, 3456, 7000])
def test_long_data_in_three_parts(size):
    """At the sizes at which parts of 128 and 1024 bytes are summed at the same time."""
    data = np.random.default_rng(size).bytes(size + 3)
    for start in (0, 3):
        assert _native.crc32c(data[start:], size) == slow(data[start:], size)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_continues(data, cut):
    assert _native.crc32c(data[cut:], _native.crc32c(data[:cut])) == _native.crc32c(data)


def test_takes_any_contiguous_buffer():
    array = np.arange(5000, dtype="<i8")  # long enough to release the GIL
    expected = _native.crc32c(array.tobytes())
    assert _native.crc32c(array) == _native.crc32c(memoryview(array)) == expected
    assert _native.crc32c(bytearray(array.tobytes())) == expected
    with pytest.raises((BufferError, ValueError)):
        _native.crc32c(array[::2])
    with pytest.raises(TypeError):
        _native.crc32c("text")


def test_portable_variant_agrees():
    code = (
        "import numpy as np; from feedline import _native;"
        "d = np.random.default_rng(1).bytes(9000);"
        "print([_native.crc32c(d[i:j], i) for i in range(9) for j in (i, i+1, i+7, i+8, 500, 1000, 3500, 9000)])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "FEEDLINE_SIMD": simd},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for simd in ("portable", "avx2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("[")
