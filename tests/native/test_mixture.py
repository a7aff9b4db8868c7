"""The schedule of mixtures equals its twin, and keeps every source as near to its weight as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.oracles import mixture as slow

quotas = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


def made(q):
    return _native.mixture_schedule(np.array(q, np.int64))


@given(quotas)
def test_schedule_equals_its_twin(q):
    source, rank = made(q)
    assert (source.dtype, rank.dtype) == (np.uint16, np.int32)
    assert list(zip(source.tolist(), rank.tolist(), strict=True)) == slow.schedule(q)


@given(st.one_of(quotas, st.lists(st.integers(0, 900), min_size=1, max_size=70).filter(any)))
def test_every_prefix_is_within_the_bound(q):
    """|c_k(n) - n w_k| <= 1 - 1/(2K - 2): exactly, in integers times D (2K - 2)."""
    source, rank = made(q)
    total, used = sum(q), sum(x > 0 for x in q)
    two = max(2 * used - 2, 1)
    n = np.arange(1, total + 1)
    for k, quota in enumerate(q):
        given_before = np.cumsum(source == k)
        assert given_before[-1] == quota
        assert (rank[source == k] == np.arange(quota)).all()
        if used > 1:
            assert (np.abs(given_before * total - n * quota) * two <= total * (two - 1)).all()


def test_many_sources_fill_the_longest_period():
    source, _ = made([1] * 65536)
    assert sorted(source.tolist()) == list(range(65536))
    source, rank = made([65535, 1])
    assert np.count_nonzero(source == 0) == 65535
    assert rank.max() == 65534


@pytest.mark.parametrize("q", [[], [0], [-1, 3], [65536, 1], [0] * 65537, [2**62, 2**62]])
def test_impossible_quotas_are_refused(q):
    with pytest.raises(ValueError, match=r"expected .*quotas"):
        made(q)
