"""Stores and memory maps give the same sequences wherever their bytes are: in the page cache, on the disk, or both."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.files import disk
from feedline.feed.reading.fetching_reader import FetchingReader
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.inside import look_at_once, reader_of
from tests.laws.corpora import CountedCorpus
from tests.linux import linux_only


def has_io_uring():
    try:
        return _native.Fetcher("io_uring").backend == "io_uring"
    except OSError:
        return False


BACKENDS = ["threads", pytest.param("io_uring", marks=pytest.mark.skipif(not has_io_uring(), reason="needs io_uring"))]
CHUNKS, PARTS = 300, 3000


@pytest.fixture(scope="module", params=["one", "ragged"])
def corpus(request):
    """120 sequences with dense and sparse streams and texts, one sample each, or up to 12 and sometimes none."""
    rng = np.random.default_rng(5)
    lengths = np.ones(120, int) if request.param == "one" else rng.integers(0, 12, 120)
    return CountedCorpus(lengths.tolist(), [120])


def mapped(folder):
    """The values of a corpus in mapped ``.npy`` files, one for each kind of array of each stream."""
    arrays = {file.stem: np.load(file, mmap_mode="r") for file in sorted(folder.glob("*.npy"))}
    x = fl.Value.from_dense(arrays["x"], arrays["x-offsets"]) if "x-offsets" in arrays else arrays["x"]
    y = [arrays[f"y-{name}"] for name in ("indptr", "indices", "values")]
    y = fl.Value.from_csr(*y, 7, offsets=arrays.get("y-offsets"))
    t = fl.Value.from_buffer(arrays["t-data"], arrays["t-bounds"], "str", arrays.get("t-offsets"))
    return fl.ArrayDeserializer(x=x, y=y, t=t, chunk_sequences=37)


@pytest.fixture(scope="module", params=["store", "npy"])
def reopen(request, corpus, tmp_path_factory):
    """Open the corpus from several files of several chunks, some smaller and some larger than a page."""
    folder = tmp_path_factory.mktemp("files")
    if request.param == "store":
        fl.convert(corpus, folder / "data", chunk_bytes=CHUNKS, part_bytes=PARTS)
        with open(folder / "data" / "feedline.json", encoding="utf-8") as file:
            assert file.read().count(".arrow") > 1
        return lambda: fl.StoreDeserializer(folder / "data")
    chunk = corpus.read(0)
    x, y, t = (chunk[name] for name in "xyt")
    arrays = {"x": x.rows, "y-indptr": y.indptr, "y-indices": y.indices, "y-values": y.values}
    arrays |= {"t-bounds": t.bounds, "t-data": t.data}
    if not x.one_sample_each:
        arrays |= {"x-offsets": x.offsets, "y-offsets": y.offsets, "t-offsets": t.offsets}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return lambda: mapped(folder)


def evict(path, share=1.0):
    """Evict the first ``share`` of each file from the page cache, if the file system supports that."""
    for file in [*path.glob("*.arrow"), *path.glob("*.npy")]:
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, int(file.stat().st_size * share), os.POSIX_FADV_DONTNEED)


def source(corpus, backend=None, direct=True, **options):
    """A source of a corpus. With a backend, everything is fetched."""
    feed = fl.MinibatchSource(corpus, **options)
    reader = reader_of(feed)
    assert isinstance(reader, FetchingReader)
    if backend is not None:
        reader.backend, reader.direct, reader.forced = backend, direct, True
    return feed


SHUFFLES = st.sampled_from(
    [False, "whole", fl.Window(chunks=2), fl.Window(bytes=1000), fl.Window(samples=200), fl.Window(bytes=1 << 30)]
)


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    seed=st.integers(0, 2**64 - 1),
    shuffle=SHUFFLES,
    sizes=st.lists(st.integers(8, 200), min_size=1, max_size=4),
    read_ahead=st.sampled_from([None, 0, 1, 5000]),
    partition=st.sampled_from([(0, 1), (0, 3), (2, 3)]),
    direct=st.booleans(),
    order=st.sampled_from(["feedline", "feedline", fl.Arcs(3), fl.Arcs(20)]),
)
@settings(max_examples=examples(12))
def test_fetched_sequences_match_the_corpus(
    reopen, corpus, backend, seed, shuffle, sizes, read_ahead, partition, direct, order
):
    """Two sweeps, minibatch by minibatch, with the values of the corpus itself."""
    options = {"seed": seed, "shuffle": shuffle, "max_sweeps": 2, "read_ahead": read_ahead, "partition": partition}
    options |= {"order": order}
    plain, fetched = source(reopen(), **options), source(reopen(), backend, direct, **options)
    with plain, fetched:
        step = 0
        while True:
            size = sizes[step % len(sizes)]
            expected, two = plain.next_minibatch(size), fetched.next_minibatch(size)
            assert bool(expected) == bool(two)
            if not expected:
                break
            assert sequences_of([expected]) == sequences_of([two])
            assert expected.position == two.position
            for ordinal, rows in zip(two.ids.tolist(), two["x"].sequences(), strict=True):
                np.testing.assert_array_equal(rows, corpus.rows(ordinal))
            assert two["t"].sequences() == [corpus.texts(ordinal) for ordinal in two.ids.tolist()]
            step += 1
        assert plain.state_dict() == fetched.state_dict()
        assert fetched.stats().disk_bytes > 0 or fetched.stats().sequences == 0
    assert fetched.stats().held_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    length=st.integers(1, 3000),
    stride=st.sampled_from([1, 7, 100, 3000, 20_000]),
    shuffle=st.sampled_from([False, "whole", fl.Window(bytes=9000), fl.Window(chunks=1)]),
    size=st.integers(1, 60),
    read_ahead=st.sampled_from([None, 0, 5000]),
)
@settings(max_examples=examples(12))
def test_rows_that_overlap_or_have_gaps_are_fetched(tokens, backend, length, stride, shuffle, size, read_ahead):
    """Tokens in a view with any stride. A view with wide gaps stays in place, except for single rows."""
    path, numbers = tokens
    options = {"seed": 1, "shuffle": shuffle, "read_ahead": read_ahead}
    corpus = fl.TokensDeserializer(path, length=length, stride=stride)
    with source(corpus, backend, **options) as fetched:
        for minibatch in fetched.minibatches(size, until=fl.minibatches(4)):
            for ordinal, row in zip(minibatch.ids.tolist(), minibatch["tokens"].rows, strict=True):
                np.testing.assert_array_equal(row, numbers[ordinal * stride : ordinal * stride + length])
        if shuffle == "whole" or stride <= 3000:
            assert fetched.stats().disk_bytes > 0


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """200 KB of them."""
    path = tmp_path_factory.mktemp("tokens") / "train.bin"
    numbers = np.random.default_rng(1).integers(0, 60_000, 100_000, np.uint16)
    numbers.tofile(path)
    return path, numbers


@pytest.mark.parametrize("shuffle", [False, "whole", fl.Window(bytes=1000)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_fetching_resumes(reopen, backend, shuffle):
    """From every minibatch."""
    assert_resumes(lambda: source(reopen(), backend, shuffle=shuffle, seed=3, max_sweeps=2), (29, 64), 2)


def large(kind, folder, rows, width):
    """Rows with their numbers, in a store or ``.npy`` files. Returns a function to open them, and the largest file."""
    x, y = np.arange(rows * width, dtype=np.float32).reshape(rows, width), np.arange(rows)
    if kind == "store":
        fl.convert(fl.ArrayDeserializer(x=x, y=y), folder / "data", chunk_bytes=1 << 20)
        return (lambda: fl.StoreDeserializer(folder / "data")), folder / "data" / "part-00000.arrow"
    (folder / "data").mkdir()
    for name, array in (("x", x), ("y", y)):
        np.save(folder / "data" / f"{name}.npy", array)
    return (lambda: npy(folder / "data")), folder / "data" / "x.npy"


def npy(folder):
    return fl.ArrayDeserializer(**{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"})


@linux_only("a page cache that tells what it holds")
@pytest.mark.parametrize("kind", ["store", "npy"])
@pytest.mark.parametrize("shuffle", [False, "whole", fl.Window(bytes=1 << 20)])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_partly_in_the_page_cache(tmp_path, share, shuffle, kind):
    """Cached pages are read from the page cache. The others are fetched once they are found missing."""
    reopen, largest = large(kind, tmp_path, 4000, 512)
    evict(tmp_path / "data", share)
    with source(reopen(), shuffle=shuffle, seed=1, max_sweeps=2) as feed:
        for sweep in range(2):
            minibatches = list(feed.minibatches(50, until=fl.sweeps(1)))
            ids = np.concatenate([m.ids for m in minibatches])
            assert sorted(ids.tolist()) == list(range(4000))
            for m in minibatches:
                np.testing.assert_array_equal(m["x"].rows[:, 5], m.ids * 512 + 5)
                np.testing.assert_array_equal(m["y"].rows, m.ids)
            if sweep == 0:
                lacking = 1 - disk.resident([str(largest)])
        if lacking > share / 2:  # a file system that evicts pages
            assert feed.stats().disk_bytes > lacking * largest.stat().st_size * 0.95


@linux_only("a page cache that tells what it holds")
@pytest.mark.parametrize("kind", ["store", "npy"])
def test_a_shuffle_that_leaves_the_page_cache_is_fetched_from_then_on(tmp_path, kind):
    """And nothing is fetched any more once all is cached again."""
    reopen, largest = large(kind, tmp_path, 20000, 256)
    with source(reopen(), shuffle="whole", seed=1) as feed:
        feed.next_minibatch(4)
        assert feed.stats().disk_bytes == 0
        evict(tmp_path / "data")
        if disk.resident([str(largest)]) > 0.5:
            pytest.skip("the file system evicts no pages")
        look_at_once(feed)
        for _ in range(10):
            m = feed.next_minibatch(100)
            np.testing.assert_array_equal(m["x"].rows[:, 7], m.ids * 256 + 7)
        fetched = feed.stats().disk_bytes
        assert fetched > 0
        largest.read_bytes()
        for _ in range(120):
            m = feed.next_minibatch(100)
            np.testing.assert_array_equal(m["x"].rows[:, 7], m.ids * 256 + 7)
        assert not reader_of(feed).stages
