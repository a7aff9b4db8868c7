"""Seals: no byte that was read from a mapped file is wrong because the file was cut."""

import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.seals import seals_of

PAGE = mmap.PAGESIZE


@settings(max_examples=300, deadline=None)
@given(
    st.integers(8, 3 * PAGE),
    st.lists(st.integers(0, 3 * PAGE), max_size=5),
    st.integers(0, 3 * PAGE),
    st.integers(0, 2**32),
)
def test_a_cut_file_is_never_read_as_another(tmp_path_factory, size, stretches, cut, seed):
    """Files with stretches of zeros anywhere, also to their ends, cut anywhere."""
    rng = np.random.default_rng(seed)
    content = rng.integers(1, 256, size, np.uint8)
    for start in stretches:
        content[start : start + int(rng.integers(1, PAGE))] = 0
    path = tmp_path_factory.getbasetemp() / "rows"
    path.unlink(missing_ok=True)  # some file systems wait for the disk when a file is written over
    content.tofile(path)
    rows = np.memmap(path, np.uint8, "r")
    gatherer = _native.Gatherer([None])
    seals = seals_of([rows[5:], rows])
    assert [len(seal) for seal in seals] == [8]
    gatherer.add(0, [(rows, None)], seals)
    os.truncate(path, min(cut, size))
    for start in range(0, size, 97):
        index = np.arange(start, min(start + 97, size))
        try:
            (got, _), *_ = gatherer.gather(None, index)
        except DataError:
            assert cut < size
        else:
            assert np.array_equal(got, content[index])


def test_what_has_a_seal(tmp_path):
    path = tmp_path / "rows"
    np.ones(100).tofile(path)
    rows = np.memmap(path, float, "r")
    other = np.memmap(path, float, "r", offset=8)
    assert len(seals_of([rows, rows[3:], rows.reshape(10, 10), np.asarray(rows)])) == 1
    assert len(seals_of([rows, other])) == 2
    assert seals_of([np.zeros(10), np.memmap(path, float, "r+"), np.memmap(path, float, "c")]) == []
    assert seals_of([np.memmap(path, np.uint8, "r", shape=7)]) == []  # too short for one


def test_a_map_that_may_be_written_to_may_change(tmp_path):
    path = tmp_path / "rows"
    np.ones(100).tofile(path)
    rows = np.memmap(path, float, "r+")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=rows), shuffle=False)
    assert source.next_minibatch(1)["x"].rows.tolist() == [1]
    rows[-1] = 2
    assert source.next_minibatch(99)["x"].rows[-1] == 2


@pytest.mark.parametrize("name", ["x.npy", "folder"])
def test_corpora_of_npy_files_have_seals(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        np.save(path / "a.npy", np.ones(10))
    np.save(path / "x.npy" if name == "folder" else path, np.ones(10))
    assert len(fl.open_corpus(path).read(0).seals) == (2 if name == "folder" else 1)
