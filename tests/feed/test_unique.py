"""Distinct numbers are NumPy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from feedline.feed.unique import distinct


@given(arrays.arrays(st.sampled_from([np.int64, np.uint32, np.int8]), arrays.array_shapes(max_dims=2, min_side=0)))
def test_distinct_numbers_match_numpy(numbers):
    found, expected = distinct(numbers), np.unique(numbers)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


FEEDS = {
    "arrays": "fl.ArrayDeserializer(x=np.zeros((100, 3), np.float32))",
    "a store": "fl.StoreDeserializer('store')",
}


@pytest.mark.parametrize("corpus", FEEDS.values(), ids=FEEDS)
def test_a_first_minibatch_imports_no_masked_arrays(tmp_path, corpus):
    program = f"""
import sys
import numpy as np
import feedline as fl
if {"store" in corpus}:
    fl.convert(fl.ArrayDeserializer(x=np.zeros((100, 3), np.float32)), "store")
with fl.MinibatchSource({corpus}, shuffle=True, seed=1) as source:
    source.next_minibatch(10)
assert "numpy.ma" not in sys.modules, "numpy.ma was imported"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
