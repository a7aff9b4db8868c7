"""Chunks: copies of some of their sequences, which are checked and never follow a file that is gone."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import SparseValue
from feedline.errors import DataError
from tests.linux import linux_only

SCHEMA = Schema({"x": Stream(2, "int64"), "y": Stream(5, sparse=True), "b": Stream((), "bool")})


def chunk_of(n, bad_indices=(), bad_bools=(), errors=()):
    """Sequences of two samples each, the last stream of one. Some have invalid entries."""
    offsets = 2 * np.arange(n + 1)
    indices = (np.arange(2 * n) % 5).astype(np.int32)
    indices[2 * np.array(bad_indices, int) + 1] = 5
    flags = (np.arange(n) % 2).astype(np.uint8)
    flags[list(bad_bools)] = 7
    values = {
        "x": Value.from_dense(np.arange(4 * n).reshape(2 * n, 2), offsets),
        "y": SparseValue(np.arange(2 * n + 1), indices, np.ones(2 * n, np.float32), 5, offsets),
        "b": Value.from_dense(flags.view(np.bool_)),
    }
    return Chunk(SCHEMA, values, {i: DataError("planted") for i in errors})


@given(st.data())
def test_taking_sequences_checks_them(data):
    some = st.sets(st.integers(0, 9), max_size=3)
    indices, bools, errors = (sorted(data.draw(some)) for _ in range(3))
    which = np.array(data.draw(st.lists(st.integers(0, 9), max_size=12)), np.int64)
    chunk = chunk_of(10, indices, bools, errors)
    taken = chunk.take(which)
    expected = {}
    for place, i in enumerate(which.tolist()):
        if i in errors:
            expected[place] = "planted"
        elif i in indices:
            expected[place] = "expected indices in [0, 5), got 5"
        elif i in bools:
            expected[place] = "expected bools of 0 or 1, got 7"
    assert {place: error.what for place, error in taken.errors.items()} == expected
    good = [place for place in range(len(which)) if place not in expected]
    for name, value in taken.values.items():
        assert value.select(np.array(good, np.int64)) == chunk[name].select(which[good])
    # Nothing that was copied can do harm, not even values that must not be read.
    assert taken["y"].dense().rows.shape == (2 * len(which), 5)
    assert taken["b"].rows.view(np.uint8).max(initial=0) <= 1
    assert {error.stream for error in taken.errors.values()} <= {None, "y", "b"}


@given(st.integers(0, 30), st.integers(1, 2000), st.data())
def test_pieces_are_the_chunk(n, nbytes, data):
    bad = sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else []
    chunk = chunk_of(n, bad)
    pieces = list(chunk.pieces(nbytes))
    assert sum(piece.num_sequences for piece in pieces) == n
    assert all(piece.num_sequences > 0 for piece in pieces)
    assert n == 0 or max(piece.num_sequences for piece in pieces) <= max(1, nbytes * n // chunk.nbytes)
    starts = np.cumsum([0] + [piece.num_sequences for piece in pieces])
    assert sorted(int(start) + i for start, piece in zip(starts, pieces, strict=False) for i in piece.errors) == bad
    rows = [piece["x"].rows for piece in pieces]
    assert np.array_equal(np.concatenate([chunk["x"].rows[:0], *rows]), chunk["x"].rows)


@linux_only("a table of all maps")
def test_a_file_that_is_cut_is_reported(tmp_path):
    path = tmp_path / "rows"
    np.arange(40_000).tofile(path)
    rows = np.memmap(path, np.int64, "r", shape=(20_000, 2))
    chunk = Chunk(Schema({"x": Stream(2, "int64")}), {"x": Value.from_dense(rows)})
    os.truncate(path, 4096)
    for call in (
        lambda: chunk.take(np.array([0, 19_999])),
        lambda: list(chunk.pieces(1 << 20)),
        lambda: chunk["x"].select([19_999]),
    ):
        with pytest.raises(DataError, match="truncated to 4096 bytes") as caught:
            call()
        assert caught.value.path == str(path)
    assert chunk.take(np.array([3]))["x"].rows.tolist() == [[6, 7]]


def test_selecting_checks_indices():
    value = chunk_of(4, bad_indices=[2])["y"]
    with pytest.raises(DataError, match=r"expected indices in \[0, 5\), got 5"):
        value.select([1, 2])
    assert value.select([1, 3]).indices.tolist() == [2, 3, 1, 2]


def test_what_is_printed_of_a_file_that_was_cut(tmp_path):
    """Tracebacks print local variables, which may read a truncated file."""
    path = tmp_path / "offsets"
    np.arange(20_001).tofile(path)
    value = Value.from_dense(np.zeros(20_000), np.memmap(path, np.int64, "r"))
    value._offsets = np.memmap(path, np.int64, "r")
    chunk = Chunk(Schema({"x": Stream((), "float64")}), {"x": value})
    assert "20000 sequences of 1 to 1 (20000 samples)" in repr(chunk)
    os.truncate(path, 4096)
    assert "20000 sequences (20000 samples) of a truncated file" in repr(chunk)
    assert "of a truncated file" in repr(value)
