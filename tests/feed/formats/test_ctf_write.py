"""write_ctf: data reads back equal, and the file appears complete or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

import feedline as fl

RELAXED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
floats = {
    "float32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def dense_values(draw, n, single):
    dtype = draw(st.sampled_from(["float32", "float64"]))
    width = draw(st.integers(1, 4))
    lengths = [1] * n if single else draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    rows = draw(hnp.arrays(dtype, (sum(lengths), width), elements=floats[dtype]))
    return fl.Value.from_dense(rows, np.concatenate([[0], np.cumsum(lengths)]))


@st.composite
def sparse_values(draw, n, single):
    lengths = [1] * n if single else draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    rows = sum(lengths)
    counts = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    indices = draw(st.lists(st.integers(0, 9), min_size=sum(counts), max_size=sum(counts)))
    values = draw(hnp.arrays("float32", sum(counts), elements=floats["float32"]))
    return fl.Value.from_csr(
        np.concatenate([[0], np.cumsum(counts)]), indices, values, 10, np.concatenate([[0], np.cumsum(lengths)])
    )


@st.composite
def corpora(draw):
    n = draw(st.integers(1, 6))
    single = draw(st.booleans())
    return {
        name: draw(st.one_of(dense_values(n, single), sparse_values(n, single)))
        for name in draw(st.lists(st.sampled_from(["a", "B2", "_x-y"]), min_size=1, unique=True))
    }


def read_back(path, values):
    streams = {n: fl.Stream(v.shape, dtype=v.dtype, sparse=v.is_sparse) for n, v in values.items()}
    corpus = fl.CTFDeserializer(path, streams, cache=False)
    (chunk,) = [corpus.read(i) for i in range(len(corpus.chunks()))]
    assert chunk.errors == {}
    return corpus, chunk


@given(values=corpora())
@RELAXED
def test_round_trip(values, tmp_path):
    path = tmp_path / "out.ctf"
    fl.write_ctf(path, values)
    _, chunk = read_back(path, values)
    for name, value in values.items():
        assert chunk[name] == value
        if not value.is_sparse:
            assert (np.signbit(chunk[name].rows) == np.signbit(value.rows)).all()


def test_what_is_taken(tmp_path):
    path = tmp_path / "out.ctf"
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    matrix = sparse.csr_matrix(np.eye(3, 4, dtype=np.float32))
    ragged = [np.ones((2, 1), np.float32), np.zeros((1, 1), np.float32), np.full((3, 1), 0.1, np.float32)]
    fl.write_ctf(path, rows=rows, m=matrix, r=ragged, i=np.array([[1], [2], [3]]))
    text = path.read_text().splitlines()
    assert text[0] == "0\t|rows 0 1\t|m 0:1\t|r 1\t|i 1"
    assert text[1] == "0\t|r 1"
    assert text[-1] == "2\t|r 0.1"
    corpus = fl.CTFDeserializer(path, rows=fl.Stream(2), m=fl.Stream(4, sparse=True), r=fl.Stream(1), i=fl.Stream(1))
    chunk = corpus.read(0)
    assert chunk["rows"] == fl.Value.from_dense(rows)
    assert chunk["m"] == fl.Value.from_scipy(matrix)
    assert chunk["r"] == fl.Value.from_sequences(ragged)


def test_keys(tmp_path):
    path = tmp_path / "out.ctf"
    fl.write_ctf(path, keys=[7, 2**64 - 1, 7], x=np.ones((3, 1), np.float32))
    corpus = fl.CTFDeserializer(path, x=fl.Stream(1))
    assert corpus.keys(np.arange(3)).tolist() == [7, 2**64 - 1, 7]
    fl.write_ctf(path, x=np.ones((3, 1), np.float32))
    assert path.read_text() == "|x 1\n" * 3


def test_many_blocks(tmp_path):
    path = tmp_path / "out.ctf"
    value = fl.Value.one_hot([list(range(i % 7 + 1)) for i in range(3000)], 10)
    fl.write_ctf(path, x=value)
    assert read_back(path, {"x": value})[1]["x"] == value


def test_what_is_refused_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.ctf"
    path.write_text("old")
    ones = np.ones((2, 1), np.float32)
    for streams, options, message in [
        ({}, {}, "at least one stream"),
        ({"a b": ones}, {}, "field name"),
        ({"#a": ones}, {}, "field name"),
        ({"a": ones, "b": np.ones((3, 1))}, {}, "same number of sequences"),
        ({"a": ones * np.nan}, {}, "finite"),
        ({"a": fl.Value.from_dense(ones, [0, 2, 2])}, {}, "at least one sample"),
        ({"a": ones}, {"keys": [1, 1]}, "different keys"),
        ({"a": ones}, {"keys": [1]}, "2 keys"),
        ({"a": ones}, {"keys": [1, 2**64]}, "keys from 0"),
        ({"a": np.array([["x"], ["y"]])}, {}, "numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            fl.write_ctf(path, streams, **options)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.ctf"]


def test_nan_for_lenient_readers(tmp_path):
    path = tmp_path / "out.ctf"
    rows = np.array([[np.nan, np.inf, -np.inf]], np.float32)
    fl.write_ctf(path, x=rows, lenient=True)
    chunk = fl.CTFDeserializer(path, x=fl.Stream(3), lenient=True).read(0)
    np.testing.assert_array_equal(chunk["x"].rows, rows)


def test_full_disk(mounted, tmp_path):
    folder = mounted("size=16k")
    with pytest.raises(fl.DataError, match="expected room"):
        fl.write_ctf(folder / "out.ctf", x=np.ones((50_000, 1), np.float32))
    assert list(folder.iterdir()) == []


def test_an_index_that_is_no_class_is_not_written(tmp_path):
    value = fl.Value.one_hot([1, 2, 3], 4)
    value.indices[1] = 4  # as a view of a damaged store has it
    with pytest.raises(fl.DataError, match=r"expected indices in \[0, 4\), got 4"):
        fl.write_ctf(tmp_path / "out.ctf", y=value)
    assert not any(tmp_path.iterdir())
