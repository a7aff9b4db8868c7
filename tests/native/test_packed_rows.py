"""Rows filled from pieces of documents equal a slow twin's. Impossible pieces and lost files are refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import _native
from feedline.errors import DataError
from tests.linux import linux_only
from tests.oracles import packed as slow

DTYPES = [np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64]
NAMES = ["rows", "offsets", "starts", "lengths", "positions", "goes_on"]


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


def columns(pieces, names=NAMES):
    """The arguments that describe pieces."""
    table = list(zip(*pieces, strict=True)) or [[]] * len(NAMES)
    arrays = {
        name: ints(column, bool if name == "goes_on" else np.int64) for name, column in zip(NAMES, table, strict=True)
    }
    return {name: arrays[name] for name in names}


def limits(dtype):
    return np.iinfo(dtype).min, np.iinfo(dtype).max


@st.composite
def layouts(draw):
    """Pieces, the number and the length of rows, and how many tokens there are."""
    count, row, size = draw(st.integers(0, 4)), draw(st.integers(1, 12)), draw(st.integers(2, 30))
    pieces = []
    for r in range(count):
        free = draw(st.integers(0, row))
        while free < row:
            length = draw(st.integers(1, min(row - free, size)))
            start = draw(st.integers(0, size - length))
            position = draw(st.sampled_from([0, 5, 2**31 - length]))
            pieces.append((r, free, start, length, position, start + length < size and draw(st.booleans())))
            free += length + draw(st.sampled_from([0, 0, 1, row]))
    return pieces, count, row, size


@given(layouts(), st.sampled_from(DTYPES), st.booleans(), st.data())
def test_rows_match_the_twin(layout, dtype, wide, data):
    pieces, count, row, size = layout
    tokens = data.draw(st.lists(st.integers(*limits(dtype)), min_size=size, max_size=size))
    pad = data.draw(st.integers(*limits(np.int64 if wide else dtype)))
    ignore = data.draw(st.sampled_from([-100, 0, 2**63 - 1, -(2**63)]))
    kept = {"count": count, "row": row, "pad": pad, "wide": wide}
    got = _native.packed_rows(ints(tokens, dtype), **columns(pieces), ignore=ignore, **kept)
    *expected, longest = slow.packed_rows(tokens, pieces, count, row, pad, ignore)
    dtypes = [np.int64 if wide else dtype, np.int64, np.int32, np.int32, np.int32, np.int64]
    assert [array.dtype for array in got[:-1]] == dtypes
    assert [array.shape for array in got[:4]] == [(count, row)] * 4
    assert [array.tolist() for array in got[:-1]] == expected
    assert got[-1] == longest

    without = _native.packed_rows(ints(tokens, dtype), **columns(pieces), ignore=None, **kept)
    assert without[1] is None
    assert without[0].tobytes() == got[0].tobytes()


@given(layouts())
def test_a_whole_document_begins_at_0_and_ends_in_its_piece(layout):
    pieces, count, row, size = layout
    tokens = np.arange(size)
    got = _native.packed_rows(tokens, **columns(pieces, NAMES[:4]), count=count, row=row)
    whole = [(*piece[:4], 0, False) for piece in pieces]
    assert [array.tolist() for array in got[:-1]] == list(slow.packed_rows(tokens.tolist(), whole, count, row)[:-1])


@given(layouts(), st.sampled_from([np.uint8, np.float16, np.float32, np.float64, "c16", "S3", "datetime64[s]"]))
def test_values_match_the_twin(layout, dtype):
    pieces, count, row, size = layout
    rng = np.random.default_rng(size)
    for shape in (), (3,), (2, 0):
        values = rng.integers(0, 99, (size, *shape)).astype(dtype)
        fill = ints([7]).astype(dtype)
        got = _native.packed_values(values, **columns(pieces, NAMES[:4]), count=count, row=row, fill=fill)
        empty = np.full(shape, fill[0], dtype).tolist()
        assert (got.dtype, got.shape) == (values.dtype, (count, row, *shape))
        assert got.tolist() == slow.packed_values(values.tolist(), pieces, count, row, empty)


def cut(lengths, row):
    """Pieces of documents laid end to end and cut into rows."""
    pieces, at = [], 0
    for length in lengths:
        begin = at
        while at < begin + length:
            taken = min(row - at % row, begin + length - at)
            pieces.append((at // row, at % row, at, taken, at - begin, at + taken < begin + length))
            at += taken
    return pieces, -(-at // row)


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 16))
def test_every_token_knows_the_next_one_of_its_document(lengths, row):
    """Documents come back from cut rows: their tokens in place, and as labels all but their first."""
    pieces, count = cut(lengths, row)
    tokens = np.arange(sum(lengths), dtype=np.uint16)
    got, labels, segment, positions, bounds, _, longest = _native.packed_rows(
        tokens, **columns(pieces), count=count, row=row, pad=60_000
    )
    real = segment > 0
    assert np.array_equal(got[real], tokens)
    assert positions[real].tolist() == [k for length in lengths for k in range(length)]
    last = {end - 1 for end in np.cumsum(lengths)}
    assert labels[real].tolist() == [-100 if t in last else t + 1 for t in range(len(tokens))]
    assert (segment[:, 0] == 1).all()
    assert bounds.tolist() == sorted({*bounds.tolist(), *range(0, (count + 1) * row, row)})
    assert longest == np.diff(bounds).max(initial=0)


@pytest.mark.parametrize("threads", [2, 3, 1000])
def test_threads_share_the_rows(threads):
    rng = np.random.default_rng(threads)
    pieces, count = cut(rng.integers(1, 3000, 130).tolist(), 2048)
    assert count > 64
    tokens = rng.integers(0, 2**16, count * 2048, np.uint16)
    given = {**columns(pieces), "count": count, "row": 2048}
    for one, many in zip(
        _native.packed_rows(tokens, **given), _native.packed_rows(tokens, **given, threads=threads), strict=True
    ):
        assert np.array_equal(one, many)
    given = {**columns(pieces, NAMES[:4]), "count": count, "row": 2048, "fill": np.zeros(1)}
    values = rng.random(len(tokens))
    one, many = (_native.packed_values(values, **given, threads=n) for n in (1, threads))
    assert one.tobytes() == many.tobytes()


def test_best_fit_fills_rows():
    """From lengths to rows: every document once, whole, in the row it was given."""
    lengths = np.random.default_rng(0).integers(1, 100, 500)
    order = _native.fisher_yates(3, len(lengths))
    rows, offsets, count = _native.best_fit(lengths, 128, order)
    _, documents = _native.row_contents(rows, offsets, count)
    starts = np.cumsum(lengths) - lengths
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    tokens, _, segment, positions, *_ = _native.packed_rows(
        numbers,
        rows[documents],
        offsets[documents],
        starts[documents],
        lengths[documents],
        count=count,
        row=128,
        pad=-1,
    )
    for document in range(len(lengths)):
        r, places = np.nonzero(tokens == document)
        assert set(r) == {rows[document]}
        assert places.tolist() == list(range(offsets[document], offsets[document] + lengths[document]))
        assert positions[r, places].tolist() == list(range(lengths[document]))
        assert len(set(segment[r, places])) == 1
    assert ((tokens == -1) == (segment == 0)).all()


GOOD = {"rows": [0, 0, 1], "offsets": [0, 4, 1], "starts": [0, 9, 3], "lengths": [4, 2, 7]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [0, 0, 2]}, r"piece 2: expected pieces by row, from 0 to below 2, got row 2, offset 1"),
        ({"rows": [0, 1, 0]}, "piece 2: expected pieces by row"),
        ({"rows": [-1, 0, 1]}, "piece 0: expected pieces by row.* got row -1"),
        ({"offsets": [0, 3, 1]}, "piece 1: expected pieces of a row by offset, without overlaps.* got row 0, offset 3"),
        ({"offsets": [-1, 4, 1]}, "piece 0: expected pieces of a row by offset"),
        ({"offsets": [0, 8, 1]}, "piece 1: expected pieces of a row by offset, .*below row = 8"),
        ({"lengths": [4, 0, 7]}, "piece 1: expected pieces of at least 1 token .* length 0"),
        ({"lengths": [4, 5, 7]}, "piece 1: expected .* end within row = 8, got row 0, offset 4, length 5"),
        ({"lengths": [4, 2**63 - 1, 7]}, "piece 1: expected .* end within row = 8"),
        ({"starts": [0, 10, 3]}, "piece 1: expected pieces inside the 11 given.* start 10"),
        ({"starts": [0, -1, 3]}, "piece 1: expected pieces inside the 11 given"),
        ({"starts": [0, 2**63 - 1, 3]}, "piece 1: expected pieces inside the 11 given"),
        ({"rows": [0, 0]}, "`offsets` to be as long as `rows`, 2, got 3"),
        ({"lengths": [4, 2]}, "`lengths` to be as long as `rows`, 3, got 2"),
        ({"starts": [4, 2]}, "`starts` to be as long as `rows`, 3, got 2"),
        ({"row": 0}, "at least 1 token, got row = 0"),
        ({"count": -1}, "got -1 rows of 8"),
        ({"count": 2**28}, r"count \* row below 2\*\*31, got 268435456 rows of 8"),
        ({"threads": 0}, "threads >= 1, got 0"),
    ],
)
def test_impossible_pieces_are_refused(changes, message):
    both = {name: ints(values) for name, values in GOOD.items()} | {"count": 2, "row": 8}
    changed = both | {name: ints(value) if isinstance(value, list) else value for name, value in changes.items()}
    _native.packed_rows(np.zeros(11, np.int32), **both)
    _native.packed_values(np.zeros(11), **both, fill=np.zeros(1))
    with pytest.raises(ValueError, match=f"packed_rows: .*{message}"):
        _native.packed_rows(np.zeros(11, np.int32), **changed)
    with pytest.raises(ValueError, match=f"packed_values: .*{message}"):
        _native.packed_values(np.zeros(11), **changed, fill=np.zeros(1))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"goes_on": [False, True, False]}, ValueError, "piece 1: expected .* with the next one if they go on"),
        ({"goes_on": [True]}, ValueError, "`goes_on` to be as long as `rows`, 3, got 1"),
        ({"goes_on": [0, 0, 0]}, TypeError, "array of bools for `goes_on`, got int64"),
        ({"positions": [0, -1, 0]}, ValueError, r"piece 1: expected positions from 0 .* position -1"),
        ({"positions": [0, 2**31 - 1, 0]}, ValueError, r"end by 2\*\*31, got .* position 2147483647"),
        ({"positions": [0]}, ValueError, "`positions` to be as long as `rows`, 3, got 1"),
        ({"pad": 256}, ValueError, "`pad` to be one of uint8, got 256"),
        ({"pad": -1}, ValueError, "`pad` to be one of uint8, got -1"),
        ({"tokens": np.zeros(11, np.uint64)}, TypeError, r"up to int64 \(not uint64\) for `tokens`, got uint64"),
        ({"tokens": np.zeros(11, ">i4")}, TypeError, "for `tokens`, got >i4"),
        ({"tokens": np.zeros(11)}, TypeError, "for `tokens`, got float64"),
        ({"tokens": np.zeros(11, bool)}, TypeError, "for `tokens`, got bool"),
        ({"tokens": np.zeros((11, 1), int)}, TypeError, "one-dimensional .* for `tokens`"),
        ({"tokens": np.zeros(22, int)[::2]}, TypeError, "C-contiguous .* for `tokens`"),
        ({"tokens": [0] * 11}, TypeError, "for `tokens`, got list"),
        ({"rows": ints([0, 0, 1], np.int32)}, TypeError, "int64 array for `rows`, got int32"),
    ],
)
def test_other_arguments_are_refused(changes, error, message):
    good = {"tokens": np.zeros(11, np.uint8), **{k: ints(v) for k, v in GOOD.items()}, "count": 2, "row": 8}
    changed = good | {name: np.array(value) if name in NAMES else value for name, value in changes.items()}
    with pytest.raises(error, match=f"packed_rows: .*{message}"):
        _native.packed_rows(**changed)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"fill": np.zeros(1, np.float32)}, ValueError, "`fill` to be one float64 value in an array, got float32"),
        ({"fill": np.zeros(2)}, ValueError, "`fill` to be one float64 value"),
        ({"fill": 0.0}, TypeError, "`fill` to be a numpy array, got float"),
        ({"values": np.zeros(())}, ValueError, "at least one axis"),
        ({"values": np.zeros((11, 2))[:, ::2]}, ValueError, "C-contiguous"),
        ({"values": np.zeros(11, object)}, ValueError, "dtype of fixed size for `values`, got object"),
        ({"values": np.zeros(10)}, ValueError, "piece 1: expected pieces inside the 10 given"),
    ],
)
def test_other_values_are_refused(changes, error, message):
    good = {"values": np.zeros(11), **{k: ints(v) for k, v in GOOD.items()}, "fill": np.zeros(1), "count": 2, "row": 8}
    with pytest.raises(error, match=f"packed_values: .*{message}"):
        _native.packed_values(**good | changes)


@linux_only("a table of all maps")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [2, 400])
def test_a_file_that_is_cut_under_its_tokens_is_an_error_that_names_it(tmp_path, count, threads):
    """Small rows are filled with the GIL, many on threads without it."""
    path, row = tmp_path / "tokens", 1024
    np.ones(count * row, np.int64).tofile(path)
    tokens = np.memmap(path, np.int64, "r")
    pieces = columns(cut([700] * (count * row // 700), row)[0], NAMES[:4]) | {"count": count, "row": row}
    whole = _native.packed_rows(tokens, **pieces, threads=threads)[0]
    assert whole.sum() == count * row // 700 * 700
    os.truncate(path, os.sysconf("SC_PAGESIZE"))
    with pytest.raises(DataError, match="truncated") as caught:
        _native.packed_rows(tokens, **pieces, threads=threads)
    assert caught.value.path == str(path)
    with pytest.raises(DataError, match="truncated"):
        _native.packed_values(np.asarray(tokens), **pieces, fill=ints([0]), threads=threads)
