"""The placement of arrays on servers: every row once, equal shares, and the same result in every process."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from feedline.kvstore.parameter_server.placement import SPLIT_ELEMENTS, home, parts

KEYS = st.one_of(st.integers(-(2**31), 2**31), st.text(max_size=8))
SHAPES = st.lists(st.integers(0, 2 * SPLIT_ELEMENTS), max_size=2).map(lambda s: (*s, 3) if s else s)


@given(KEYS, SHAPES, st.integers(1, 9))
def test_every_row_is_on_one_server(key, shape, servers):
    pieces = parts(key, shape, servers)
    rows = [row for part in pieces for row in (part.start, part.stop)]
    assert rows[0] == 0
    assert rows[-1] == (shape[0] if shape else 1)
    assert rows[1:-1:2] == rows[2:-1:2]  # each begins at the end of the one before
    assert len({part.server for part in pieces}) == len(pieces)
    assert all(0 <= part.server < servers for part in pieces)


@given(KEYS, SHAPES, st.integers(1, 9))
def test_large_arrays_are_shared_equally_and_small_ones_are_whole(key, shape, servers):
    pieces = parts(key, shape, servers)
    if math.prod(shape) <= SPLIT_ELEMENTS or not shape:
        assert len(pieces) == 1
        assert pieces[0].server == home(key, servers)
    else:
        counts = [part.stop - part.start for part in pieces]
        assert max(counts) - min(counts) <= 1
        assert len(pieces) == min(servers, shape[0])


def test_homes_are_the_same_in_every_process():
    # Workers on other machines, and in later versions, must compute these.
    assert [home(key, 7) for key in (0, 1, -1, "0", "weight", "")] == HOMES


def test_small_keys_spread():
    counts = [0] * 4
    for key in range(1000):
        counts[home(key, 4)] += 1
    assert min(counts) > 200


HOMES = [6, 4, 1, 1, 1, 3]
