"""Chunks of a store that is not compressed, read from bytes that were fetched."""

from __future__ import annotations

import errno

import numpy as np
import pyarrow as pa
import pytest

import feedline as fl
from feedline import _native
from feedline.feed.formats.store.compressed import BatchInMemory
from feedline.feed.protocol import Unread
from tests.feed.page_cache import evict

RNG = np.random.default_rng(2)
TOKENS = [RNG.integers(0, 1000, n, dtype=np.int32) for n in RNG.integers(0, 60, 400)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "a.store"
    corpus = fl.ArrayDeserializer(tokens=TOKENS, n=np.arange(400), name=[f"é{i}" for i in range(400)])
    fl.convert(corpus, path, chunk_bytes=8 << 10)
    return path


def pieces_of(store, chunk):
    (extent,) = store.extents(chunk)
    with open(extent.path, "rb") as file:
        file.seek(extent.offset)
        return bytearray(file.read(extent.size))


def test_a_chunk_from_bytes_is_the_chunk_itself(path):
    store = fl.open_corpus(path)
    assert len(store.chunks()) > 3
    for chunk in range(len(store.chunks())):
        held = pieces_of(store, chunk)
        found, expected = store.read_fetched(chunk, [memoryview(held)]), store.read(chunk)
        held[:] = bytes(len(held))  # the caller may use its memory again
        for name in store.schema:
            assert [np.asarray(row).tolist() for row in found.values[name].sequences()] == [
                np.asarray(row).tolist() for row in expected.values[name].sequences()
            ]


def test_damage_and_what_could_not_be_fetched(path):
    store = fl.open_corpus(path)
    held = pieces_of(store, 1)
    held[len(held) // 2] ^= 1
    with pytest.raises(fl.DataError, match="checksum"):
        store.read_fetched(1, [memoryview(held)])
    lost = store.read_fetched(1, [Unread(errno.EIO, 5)])
    assert len(lost.errors) == lost.num_sequences == store.chunks()[1].sequences


def test_a_compressed_message_where_none_is_expected_is_refused():
    batch = pa.record_batch({"x": pa.array(np.zeros(1000))})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    message = memoryview(_serialized(batch, options))
    with pytest.raises(ValueError, match="not compressed, got compressed"):
        BatchInMemory(message, _native.crc32c(message), None, batch.schema)


def _serialized(batch, options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    at = 8 + int.from_bytes(whole[4:8], "little")  # after the schema
    return whole[at:]


@pytest.mark.parametrize("method", ["best-fit", "split"])
def test_rows_of_an_evicted_store_are_the_same(path, method):
    def rows():
        with fl.MinibatchSource(
            fl.Packed(fl.open_corpus(path, streams={"tokens": fl.Stream((), "int32")}), 64, method=method)
        ) as s:
            return everything_of(s)

    def everything_of(source):
        return [minibatch["tokens"].rows.tolist() for minibatch in source.minibatches(640, until=fl.samples(20_000))]

    expected = rows()
    files = fl.open_corpus(path).paths()
    if not evict(files):
        pytest.skip("the file system lets go of no pages")
    assert rows() == expected
