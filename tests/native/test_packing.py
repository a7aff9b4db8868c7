"""Documents are placed into rows as by slow twins. Rows are full at best, and as many in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from tests.oracles import packed as slow

FITS = ["best_fit", "first_fit"]


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


def listed(placed):
    rows, offsets, count = placed
    assert (rows.dtype, offsets.dtype) == (np.int64, np.int64)
    return rows.tolist(), offsets.tolist(), count


@st.composite
def documents(draw):
    """Lengths, the length of a row, and an order."""
    row = draw(st.one_of(st.integers(1, 12), st.sampled_from([63, 64, 65, 4096, 4097, 2**18 + 1])))
    few = st.sampled_from(sorted({1, max(1, row // 3), max(1, row // 2), row}))
    lengths = draw(st.lists(st.one_of(st.integers(1, row), few), max_size=60))
    return lengths, row, draw(st.permutations(range(len(lengths))))


@pytest.mark.parametrize("fit", FITS)
@given(documents())
def test_documents_go_where_the_twin_puts_them(fit, case):
    lengths, row, order = case
    native, twin = getattr(_native, fit), getattr(slow, fit)
    assert listed(native(ints(lengths), row)) == twin(lengths, row)
    for dtype in np.int64, np.uint32:
        assert listed(native(ints(lengths), row, ints(order, dtype))) == twin(lengths, row, order)


def test_where_documents_go_never_changes():
    """Positions in saved states depend on it."""
    lengths = ints([5, 3, 3, 2, 6, 1, 3])
    assert listed(_native.best_fit(lengths, 8)) == ([1, 1, 2, 2, 0, 0, 2], [0, 5, 0, 6, 0, 6, 3], 3)
    turned = _native.best_fit(lengths, 8, ints(range(6, -1, -1)))
    assert listed(turned) == ([1, 2, 2, 2, 0, 0, 1], [0, 3, 0, 6, 0, 6, 5], 3)
    assert listed(_native.first_fit(lengths, 8)) == ([0, 0, 1, 1, 2, 1, 3], [0, 5, 0, 3, 0, 5, 0], 4)


def test_the_longest_row():
    lengths, row = [2**23, 1, 2**24, 2**23 - 1, 1, 2**24 - 1], 2**24
    for fit in FITS:
        assert listed(getattr(_native, fit)(ints(lengths), row)) == getattr(slow, fit)(lengths, row)


@given(documents())
def test_the_rows_of_best_fit_do_not_depend_on_the_order(case):
    """Neither their number nor their free space."""
    lengths, row, order = case

    def left(order):
        rows, _, count = _native.best_fit(ints(lengths), row, order)
        return sorted(row - np.bincount(rows, lengths, count))

    assert left(None) == left(ints(order))


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("row", [512, 8192, 2**20])
def test_many_documents(fit, row):
    """Rows opened late, trees of several levels: every place is taken at most once, and few are left."""
    rng = np.random.default_rng(row)
    lengths = np.clip(rng.lognormal(6, 1, 40_000), 8, row).astype(np.int64)
    rows, offsets, count = getattr(_native, fit)(lengths, row, rng.permutation(len(lengths)))
    places = rows * row + offsets
    turn = np.argsort(places)
    assert (places[turn][1:] >= (places + lengths)[turn][:-1]).all()
    assert (offsets + lengths <= row).all()
    assert set(rows) == set(range(count))
    assert lengths.sum() / (count * row) > 0.95
    if fit == "best_fit":
        assert {_native.best_fit(lengths, row, rng.permutation(len(lengths)))[2] for _ in range(3)} == {count}


def test_companions_follow_the_order():
    lengths = np.full(1000, 100)
    rows = [_native.best_fit(lengths, 1000, _native.fisher_yates(key, 1000))[0] for key in (1, 2)]
    together = [{frozenset(np.flatnonzero(r == k)) for k in range(100)} for r in rows]
    assert not together[0] & together[1]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=40), st.integers(0, 3))
def test_row_contents(places, empty):
    rows, offsets = [r for r, _ in places], [o for _, o in places]
    count = max(rows, default=-1) + 1 + empty
    starts, contents = _native.row_contents(ints(rows), ints(offsets), count)
    assert (starts.dtype, contents.dtype) == (np.int64, np.int64)
    assert (starts.tolist(), contents.tolist()) == slow.row_contents(rows, offsets, count)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize(
    ("lengths", "row", "order", "message"),
    [
        ([4, 9], 8, None, r"lengths from 1 to row = 8, got lengths\[1\] = 9; split or drop longer"),
        ([4, 0], 8, None, r"got lengths\[1\] = 0; .* drop empty ones"),
        ([-(2**63)], 8, None, r"got lengths\[0\] = -9223372036854775808"),
        ([1], 0, None, "row of 1 to 16777216, got 0"),
        ([1], 2**24 + 1, None, "row of 1 to 16777216, got 16777217"),
        ([1, 1], 8, [0], "`order` to be as long as `lengths`, 2, got 1"),
        ([1, 1], 8, [1, 1], r"each of 0 to 1 once, got order\[1\] = 1"),
        ([1, 1], 8, [2, 0], r"each of 0 to 1 once, got order\[0\] = 2"),
        ([1, 1], 8, [0, -1], r"each of 0 to 1 once, got order\[1\] = -1"),
    ],
)
def test_it_refuses(fit, lengths, row, order, message):
    with pytest.raises(ValueError, match=f"^{fit}: expected .*{message}"):
        getattr(_native, fit)(ints(lengths), row, None if order is None else ints(order))


@pytest.mark.parametrize("fit", FITS)
def test_it_refuses_other_arrays(fit):
    with pytest.raises(TypeError, match=f"{fit}: expected .* int64 array for `lengths`, got int32"):
        getattr(_native, fit)(ints([1], np.int32), 8)
    with pytest.raises(TypeError, match=f"{fit}: expected .* int64 or uint32 array for `order`, got float64"):
        getattr(_native, fit)(ints([1]), 8, np.zeros(1))


@pytest.mark.parametrize(
    ("rows", "offsets", "count", "message"),
    [
        ([0, 2], [0, 0], 2, r"below the count of rows, 2, got rows\[1\] = 2"),
        ([-1], [0], 2, r"got rows\[0\] = -1"),
        ([0], [0, 1], 1, "equal length, got 1 and 2"),
        ([], [], -1, "count of rows >= 0, got -1"),
        ([], [], 2**62, "array is too big|Maximum allowed"),
    ],
)
def test_row_contents_refuses(rows, offsets, count, message):
    with pytest.raises(ValueError, match=message):
        _native.row_contents(ints(rows), ints(offsets), count)


# ---- minibatches ----------------------------------------------------------------------------------------------


def run_ends(ends, at, limit, room, alone, most):
    """One after the other, sequence by sequence."""
    found = []
    while len(found) < most:
        stop = at
        while stop < limit and ends[stop] < ends[at] + room and ends[stop + 1] <= ends[at] + room:
            stop += 1
        if stop == at and (alone or found):
            stop = min(at + 1, limit)
        found.append(stop)
        if stop in (at, limit):
            break
        at = stop
    return found


@given(st.lists(st.one_of(st.integers(0, 9), st.just(0)), max_size=80), st.integers(0, 30), st.booleans(), st.data())
def test_runs_end_where_the_twin_ends_them(lengths, room, alone, data):
    limit = data.draw(st.integers(0, len(lengths)))
    at, most = data.draw(st.integers(0, limit)), data.draw(st.integers(1, 64))
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    assert _native.run_ends(ends, at, limit, room, alone, most) == run_ends(ends, at, limit, room, alone, most)


def test_runs_without_limit():
    ends = np.arange(0, 10_000, 3)
    assert _native.run_ends(ends, 7, 3000, 2**62) == [3000]
    assert _native.run_ends(ends, 7, 3000, 2**63 - 1) == [3000]


@pytest.mark.parametrize("wrong", [(-1, 3, 1, 1), (4, 3, 1, 1), (0, 5, 1, 1), (0, 3, -1, 1), (0, 3, 1, 65)])
def test_runs_of_impossible_arguments(wrong):
    at, limit, room, most = wrong
    with pytest.raises(ValueError, match="run_ends: expected"):
        _native.run_ends(np.arange(5), at, limit, room, True, most)
