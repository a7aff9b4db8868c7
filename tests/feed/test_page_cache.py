"""A feed uses the page cache only for pages that it needs now, and evicts no others."""

from __future__ import annotations

import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from feedline.feed.protocol import can
from feedline.feed.reading import io_stalls
from feedline.feed.reading.fetching_reader import FetchingReader
from feedline.feed.workers import limits
from tests.feed.page_cache import MIB, evict, held
from tests.inside import fetcher_memory, reader_of
from tests.linux import linux_only

pytestmark = linux_only("a page cache that tells what it holds")

ROWS, WIDTH = 6000, 2000  # 48 MB, and a text of half as much
WINDOW, AHEAD = 2 * MIB, MIB
KINDS = ["store", "npy", "ctf", "parquet", "lz4"]
SLACK = 6 * MIB  # heads of chunks, labels, pages around kept ranges


@pytest.fixture(scope="module", params=KINDS)
def data(request, tmp_path_factory):
    """Return (a function that opens it, its files). Skip if the file system evicts no pages."""
    folder = tmp_path_factory.mktemp(request.param)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 9, (ROWS, WIDTH)).astype(np.float32)
    y = np.arange(ROWS, dtype=np.float32)
    if request.param == "npy":
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        files = [folder / "x.npy", folder / "y.npy"]

        def reopen():
            return fl.ArrayDeserializer(**{file.stem: np.load(file, mmap_mode="r") for file in files})
    elif request.param == "ctf":
        fl.write_ctf(folder / "a.ctf", x=fl.Value.from_dense(x), y=fl.Value.from_dense(y[:, None]))
        files = [folder / "a.ctf"]

        def reopen():
            streams = {"x": fl.Stream(WIDTH), "y": fl.Stream(1)}
            return fl.CTFDeserializer(folder / "a.ctf", chunk_size=MIB // 2, cache=str(folder / "index"), **streams)
    elif request.param == "parquet":
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH), "y": y})
        pq.write_table(table, folder / "a.parquet", row_group_size=64, compression="none", use_dictionary=False)
        files = [folder / "a.parquet"]

        def reopen():
            return fl.ParquetDeserializer(folder / "a.parquet")
    else:
        compression = "lz4" if request.param == "lz4" else None
        x = rng.random((ROWS, WIDTH), np.float32)  # so that it stays as large
        corpus = fl.ArrayDeserializer(x=x, y=y)
        fl.convert(corpus, folder / "data", chunk_bytes=MIB // 2, part_bytes=20 * MIB, compression=compression)
        files = sorted((folder / "data").glob("*.arrow"))

        def reopen():
            return fl.StoreDeserializer(folder / "data")

    paths = [str(file) for file in files]
    if not evict(paths):
        pytest.skip("the file system lets go of no pages")
    return reopen, paths


def mapped_in_memory(paths):
    """Bytes of the files in this process's own page tables."""
    total, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            head = line.split(maxsplit=5)
            if "-" in head[0] and ":" not in head[0]:
                inside = len(head) == 6 and head[5].strip() in paths
            elif inside and head[0] == "Rss:":
                total += int(head[1]) << 10
    return total


def options(shuffle):
    return {"shuffle": shuffle, "read_ahead": AHEAD, "max_sweeps": 2, "partition": (0, 1)}


@pytest.mark.parametrize("shuffle", [False, fl.Window(bytes=WINDOW), "whole"])
def test_a_feed_takes_what_it_needs_now(data, shuffle):
    """Two sweeps over data many times the window: neither the page cache nor the process ever holds more of it."""
    reopen, paths = data
    corpus = reopen()
    if shuffle == "whole" and not can(corpus, fl.RandomAccess):
        pytest.skip("decoded a chunk at a time")
    evict(paths)
    cache = own = private = 0
    with fl.MinibatchSource(corpus, **options(shuffle)) as feed:
        for number, _ in enumerate(feed.minibatches(64)):
            if number % 16 == 0:
                cache, own = max(cache, held(paths)), max(own, mapped_in_memory(paths))
                private = max(private, private_bytes(feed))
        stats = feed.stats()
    assert stats.sequences == 2 * ROWS
    assert stats.disk_bytes > 1.8 * sum(map(os.path.getsize, paths))
    allowed = WINDOW + AHEAD + SLACK
    assert cache < allowed
    assert own < allowed
    assert cache + private < 2 * WINDOW + AHEAD + 2 * SLACK
    assert sum(map(os.path.getsize, paths)) > 1.5 * allowed


def private_bytes(feed):
    """Return the bytes of data that a feed has in private memory: decoded, and fetched."""
    decoded = 0 if isinstance(reader_of(feed), FetchingReader) else feed.stats().held_bytes
    return decoded + fetcher_memory(feed)


@pytest.mark.parametrize("shuffle", [False, fl.Window(bytes=WINDOW), "whole"])
def test_what_was_in_memory_stays_there(data, shuffle):
    """Half of each file was somebody's: a feed over all of it neither drops it nor brings in the other half."""
    reopen, paths = data
    corpus = reopen()
    if shuffle == "whole" and not can(corpus, fl.RandomAccess):
        pytest.skip("decoded a chunk at a time")
    evict(paths)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(descriptor, os.path.getsize(path) // 2, 0)
        os.close(descriptor)
    before, others = held(paths, 0, 0.5), held(paths, 0.52, 1)
    with fl.MinibatchSource(corpus, **options(shuffle)) as feed:
        for _ in feed.minibatches(64):
            pass
        assert feed.stats().sequences == 2 * ROWS
    # Where the two halves meet, a piece that is read ahead is in both.
    assert held(paths, 0, 0.5) >= before - AHEAD
    assert held(paths, 0.52, 1) - others < WINDOW + AHEAD + SLACK


@pytest.mark.parametrize("shuffle", [False, fl.Window(bytes=WINDOW), "whole"])
@pytest.mark.parametrize("why_not", [None, "fast disk", "too large", "read_ahead"])
def test_what_fits_well_is_read_once_from_a_slow_disk(data, monkeypatch, shuffle, why_not):
    """The second sweep finds it in the page cache, unless the user has said how much memory to take."""
    reopen, paths = data
    corpus = reopen()
    if shuffle == "whole" and not can(corpus, fl.RandomAccess):
        pytest.skip("decoded a chunk at a time")
    evict(paths)
    size, before = sum(map(os.path.getsize, paths)), held(paths)  # what another feed still maps stays
    monkeypatch.setattr(io_stalls, "SLOW_AFTER_S", 1e9 if why_not == "fast disk" else 0.0)
    monkeypatch.setattr(io_stalls, "SLOW_BYTES_S", 1e30)
    if why_not == "too large":
        monkeypatch.setattr(limits, "available", lambda: size)
    more = {"read_ahead": AHEAD} if why_not == "read_ahead" else {}
    with fl.MinibatchSource(corpus, shuffle=shuffle, max_sweeps=2, partition=(0, 1), threads=1, **more) as feed:
        for number, _ in enumerate(feed.minibatches(64)):
            if number % 16 == 0:
                time.sleep(0.01)
        disk_bytes, kept = feed.stats().disk_bytes, held(paths) - before  # closing reads for the digest
    if why_not is None or (why_not == "fast disk" and shuffle == "whole"):
        assert kept > 0.8 * (size - before)
        assert disk_bytes < 1.3 * size
    else:
        assert kept < WINDOW + AHEAD + SLACK
        assert disk_bytes > 1.8 * (size - before)


def test_building_an_index_leaves_no_trace(tmp_path):
    """The text is read once, without the page cache. The index equals that of text in memory."""
    text = tmp_path / "a.ctf"
    fl.write_ctf(text, x=fl.Value.from_dense(np.random.default_rng(0).random((4000, 500), np.float32)))
    stream = {"x": fl.Stream(500)}
    expected = fl.CTFDeserializer(text, cache=False, chunk_size=MIB, **stream)
    if not evict([str(text)]):
        pytest.skip("the file system lets go of no pages")
    corpus = fl.CTFDeserializer(text, cache=False, chunk_size=MIB, **stream)
    assert held([str(text)]) < 2 * MIB
    assert corpus.chunks() == expected.chunks()
    assert corpus.digest() == expected.digest()
