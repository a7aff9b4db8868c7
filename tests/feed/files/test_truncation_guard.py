"""Seals: no byte that was read from a mapped file is wrong because the file was truncated."""

import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.truncation_guard import seals_of
from tests.effort import examples

PAGE = mmap.PAGESIZE


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(8, 3 * PAGE),
    st.lists(st.integers(0, 3 * PAGE), max_size=5),
    st.integers(0, 3 * PAGE),
    st.integers(0, 2**32),
)
def test_a_cut_file_is_never_read_as_another(tmp_path_factory, size, stretches, cut, seed):
    """Files with stretches of zeros anywhere, also the last pages, cut anywhere."""
    rng = np.random.default_rng(seed)
    content = rng.integers(1, 256, size, np.uint8)
    for start in stretches:
        content[start : start + int(rng.integers(1, rng.choice([PAGE, 3 * PAGE])))] = 0
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


def test_zeros_at_the_end_are_no_seal(tmp_path):
    """As tar archives end: a seal of zeros would have to be compared with the size of the file at every copy."""
    path = tmp_path / "rows"
    content = np.ones(3 * PAGE + 10_240, np.uint8)
    content[-10_240:] = 0
    content.tofile(path)
    (seal,) = seals_of([np.memmap(path, np.uint8, "r")])
    assert seal.any()


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


@pytest.mark.parametrize("before", ["reading", "copying"])
@pytest.mark.parametrize("through", ["take", "source"])
def test_a_file_that_was_cut_before_its_chunk_is_copied(tmp_path, before, through):
    """The seal is zeros by then: that it stays so proves nothing."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1, 201))
    corpus = fl.ArrayDeserializer(x=np.load(path, mmap_mode="r"), chunk_sequences=100)
    chunk = corpus.read(1) if before == "copying" else None
    os.truncate(path, 1000)
    with pytest.raises(DataError, match=r"truncated to 1000 bytes[\s\S]*x\.npy"):
        if through == "take":
            (chunk or corpus.read(1)).take(np.arange(100))
        else:
            fl.MinibatchSource(corpus, shuffle=False).next_minibatch(200)


def test_a_file_that_ends_in_a_page_of_zeros_is_not_cut(tmp_path):
    """Whole, or replaced by a shorter one of the same name, which the map is not of."""
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(2000))
    corpus = fl.ArrayDeserializer(x=np.load(path, mmap_mode="r"))
    assert not corpus.read(0).take(np.arange(2000))["x"].rows.any()
    np.save(tmp_path / "y.npy", np.ones(10))
    os.replace(tmp_path / "y.npy", path)
    assert not corpus.read(0).take(np.arange(2000))["x"].rows.any()
