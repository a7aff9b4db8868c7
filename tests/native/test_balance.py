"""Work divided among ranks equals what a slow twin does, and is as even as the rule promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.oracles import balance as slow


def ints(values):
    return np.array(values, np.int64)


@st.composite
def cases(draw):
    """Return work, a number of ranks, and counts or None."""
    few = st.sampled_from([0, 1, 255, 256, 65536])
    work = draw(st.lists(st.one_of(st.integers(0, 2**40), st.integers(0, 300), few), max_size=80))
    ranks = draw(st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 200])))
    if draw(st.booleans()):
        return work, ranks, None
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=len(work), max_size=len(work)))
    return work, ranks, np.bincount(owners, minlength=ranks).tolist()


@given(cases())
def test_sequences_go_to_the_rank_of_the_twin(case):
    work, ranks, counts = case
    owner = _native.balance(ints(work), ranks, None if counts is None else ints(counts))
    assert owner.dtype == np.int32
    assert owner.tolist() == slow.balance(work, ranks, counts)
    if counts is not None:
        assert np.bincount(owner, minlength=ranks).tolist() == counts


@given(cases())
def test_no_rank_has_more_than_half_again_the_best(case):
    """A rank's last sequence is its only one, or at most half of two that share a rank in any assignment."""
    work, ranks, _ = case
    if not work:
        return
    loads = np.bincount(_native.balance(ints(work), ranks), work, ranks)
    by_size = sorted(work, reverse=True)
    pair = by_size[ranks - 1] + by_size[ranks] if len(work) > ranks else 0
    assert loads.max() <= 1.5 * max(sum(work) / ranks, by_size[0], pair)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ints([1]), 0), "1 to 2147483647 ranks, got 0"),
        ((ints([3, -1]), 2), r"at least 0 with a sum below 2\*\*63, got work\[1\] = -1"),
        ((ints([2**62, 2**62]), 2), r"got work\[1\] = 4611686018427387904"),
        ((ints([1, 2]), 2, ints([1])), "a count for each of 2 ranks, got 1"),
        ((ints([1, 2]), 2, ints([1, 2])), r"the sum 2, got counts\[1\] = 2"),
        ((ints([1, 2]), 2, ints([1, 0])), "the sum 2, got 1"),
        ((ints([1, 2]), 2, ints([3, -1])), r"got counts\[0\] = 3"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        _native.balance(*arguments)
