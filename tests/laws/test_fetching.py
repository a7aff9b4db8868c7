"""Stores give the same sequences wherever their bytes come from: the page cache, the disk, or some from each."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.fetching import FetchingReader
from feedline.testing import assert_resumes, sequences_of
from tests.laws.corpora import CountedCorpus


def has_io_uring():
    try:
        return _native.Fetcher("io_uring").backend == "io_uring"
    except OSError:
        return False


BACKENDS = ["threads", pytest.param("io_uring", marks=pytest.mark.skipif(not has_io_uring(), reason="needs io_uring"))]
CHUNKS, PARTS = 700, 9000


@pytest.fixture(scope="module", params=["one", "ragged"])
def corpus(request):
    """300 sequences with dense and sparse streams, one sample each, or up to 40 and sometimes none."""
    rng = np.random.default_rng(5)
    lengths = np.ones(300, int) if request.param == "one" else rng.integers(0, 40, 300)
    return CountedCorpus(lengths.tolist(), [300])


@pytest.fixture(scope="module")
def store(corpus, tmp_path_factory):
    """The corpus in several files of several chunks, some smaller and some larger than a page."""
    path = tmp_path_factory.mktemp("store") / "data"
    fl.convert(corpus, path, chunk_bytes=CHUNKS, part_bytes=PARTS)
    with open(path / "feedline.json", encoding="utf-8") as file:
        assert file.read().count(".arrow") > 1
    return path


def evict(path, share=1.0):
    """Have the page cache drop the first ``share`` of each file, where the file system does such a thing."""
    for file in path.glob("*.arrow"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, int(file.stat().st_size * share), os.POSIX_FADV_DONTNEED)


def source(path, backend=None, direct=True, **options):
    """Over the store; with a backend, everything is fetched."""
    found = fl.MinibatchSource(fl.StoreDeserializer(path), **options)
    reader = found._reader
    assert isinstance(reader, FetchingReader)
    if backend is not None:
        reader.backend, reader.direct, reader.forced = backend, direct, True
    return found


SHUFFLES = st.sampled_from(
    [False, "whole", fl.Window(chunks=2), fl.Window(bytes=3000), fl.Window(samples=700), fl.Window(bytes=1 << 30)]
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    seed=st.integers(0, 2**64 - 1),
    shuffle=SHUFFLES,
    sizes=st.lists(st.integers(8, 400), min_size=1, max_size=4),
    read_ahead=st.sampled_from([None, 0, 1, 5000]),
    partition=st.sampled_from([(0, 1), (0, 3), (2, 3)]),
    direct=st.booleans(),
)
@settings(max_examples=25)
def test_fetched_sequences_are_those_of_the_corpus(
    store, corpus, backend, seed, shuffle, sizes, read_ahead, partition, direct
):
    """Two sweeps, minibatch by minibatch, with the values of the corpus itself."""
    options = {"seed": seed, "shuffle": shuffle, "max_sweeps": 2, "read_ahead": read_ahead, "partition": partition}
    plain, fetched = source(store, **options), source(store, backend, direct, **options)
    with plain, fetched:
        step = 0
        while True:
            size = sizes[step % len(sizes)]
            one, two = plain.next_minibatch(size), fetched.next_minibatch(size)
            assert bool(one) == bool(two)
            if not one:
                break
            assert sequences_of([one]) == sequences_of([two])
            assert one.position == two.position
            for ordinal, rows in zip(two.ids.tolist(), two["x"].sequences(), strict=True):
                np.testing.assert_array_equal(rows, corpus.rows(ordinal))
            step += 1
        assert plain.state_dict() == fetched.state_dict()
        assert fetched.stats().disk_bytes > 0 or fetched.stats().sequences == 0


@pytest.mark.parametrize("shuffle", [False, "whole", fl.Window(bytes=3000)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_fetched_resumes(store, backend, shuffle):
    """From every minibatch, as ever."""
    assert_resumes(lambda: source(store, backend, shuffle=shuffle, seed=3, max_sweeps=2), (7, 64), 3)


@pytest.mark.parametrize("shuffle", [False, "whole", fl.Window(bytes=1 << 20)])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_partly_in_the_page_cache(tmp_path, share, shuffle):
    """What the page cache holds is taken from there; the rest is fetched, once it is found missing."""
    x = np.arange(4000 * 512, dtype=np.float32).reshape(4000, 512)
    fl.convert(fl.ArrayDeserializer(x=x, y=np.arange(4000)), tmp_path / "data", chunk_bytes=1 << 20)
    evict(tmp_path / "data", share)
    with source(tmp_path / "data", shuffle=shuffle, seed=1, max_sweeps=2) as feed:
        held = feed._reader._disk().held
        for sweep in range(2):
            found = list(feed.minibatches(50, until=fl.sweeps(1)))
            ids = np.concatenate([m.ids for m in found])
            assert sorted(ids.tolist()) == list(range(4000))
            for m in found:
                np.testing.assert_array_equal(m["x"].rows, x[m.ids])
                np.testing.assert_array_equal(m["y"].rows, m.ids)
            if sweep == 0:
                size = (tmp_path / "data" / "part-00000.arrow").stat().st_size
                lacking = size // 4096 - held(0, 0, size, 1 << 30)
        if lacking > size // 4096 * share // 2:  # a file system that lets go of pages
            assert feed.stats().disk_bytes > lacking * 4096


def test_a_shuffle_that_leaves_the_page_cache_is_fetched_from_then_on(tmp_path):
    """And back: nothing is fetched any more once it is there again."""
    x = np.arange(20000 * 256, dtype=np.float32).reshape(20000, 256)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "data")
    with source(tmp_path / "data", shuffle="whole", seed=1) as feed:
        feed.next_minibatch(4)
        assert feed.stats().disk_bytes == 0
        evict(tmp_path / "data")
        size = (tmp_path / "data" / "part-00000.arrow").stat().st_size
        if feed._reader._disk().held(0, 0, size, 1 << 30) > size // 8192:
            pytest.skip("the file system lets go of no pages")
        feed._reader._look_at = 0
        for _ in range(10):
            m = feed.next_minibatch(100)
            np.testing.assert_array_equal(m["x"].rows, x[m.ids])
        fetched = feed.stats().disk_bytes
        assert fetched > 0
        (tmp_path / "data" / "part-00000.arrow").read_bytes()
        for _ in range(60):
            m = feed.next_minibatch(100)
            np.testing.assert_array_equal(m["x"].rows, x[m.ids])
        assert not feed._reader.stages
