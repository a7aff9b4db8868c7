"""Compressed stores: the same sequences in less space, with damage and wrong sizes detected before use."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.store import compressed
from feedline.feed.formats.store.manifest import MANIFEST, Manifest
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.protocol import can
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything


@given(corpora(), st.sampled_from(["lz4", "zstd", "auto"]), st.sampled_from([1, 100, None]))
@settings(deadline=None, max_examples=examples(30))
def test_round_trip(tmp_path_factory, data, compression, chunk_bytes):
    """Dense, sparse, ragged and empty data are read back, by chunk and by ordinal."""
    path = tmp_path_factory.mktemp("c") / "s"
    fl.convert(ArrayDeserializer(data), path, compression=compression, chunk_bytes=chunk_bytes)
    store = StoreDeserializer(path, verify=True)
    assert_same(everything(store), data)
    count = next(iter(data.values())).num_sequences
    backwards = np.arange(count)[::-1].copy()
    assert_same(dict(store.select(backwards).values), {name: value.select(backwards) for name, value in data.items()})


def pixels(count=4000):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (count, 64)).astype(np.uint8)
    return ArrayDeserializer(x=x, y=np.arange(count), chunk_sequences=500)


@pytest.fixture
def packed(tmp_path):
    fl.convert(pixels(), tmp_path / "s", compression="zstd", chunk_bytes=16_000)
    return tmp_path / "s"


def ids(corpus, **how):
    with fl.MinibatchSource(corpus, max_sweeps=1, **how) as source:
        return np.concatenate([m["y"].rows for m in source.minibatches(37)])


def test_it_is_fed_in_windows_of_chunks_and_takes_less_room(packed, tmp_path):
    """Chunks are decoded as a whole, so windows consist of chunks. In order it equals the plain store."""
    store = StoreDeserializer(packed)
    assert not can(store, fl.RandomAccess)
    plain = fl.convert(pixels(), tmp_path / "plain")
    assert sum(info.bytes for info in store.chunks()) < 0.6 * plain.bytes
    assert fl.MinibatchSource(store).state_dict()["order"] == "feedline-1"
    np.testing.assert_array_equal(ids(store, shuffle=False), np.arange(4000))
    window = fl.Window(chunks=3)
    shuffled = ids(StoreDeserializer(packed), shuffle=window, seed=3)
    np.testing.assert_array_equal(np.sort(shuffled), np.arange(4000))
    np.testing.assert_array_equal(shuffled, ids(StoreDeserializer(packed), shuffle=window, seed=3, threads=1))


def test_auto_looks_at_the_data(tmp_path):
    """Data with few values shrink by LZ4, texts of digits by Zstandard alone, noise by neither."""
    rng = np.random.default_rng(0)
    cases = {
        "lz4": np.repeat(rng.integers(0, 255, 500), 100).astype(np.uint8),
        "zstd": rng.integers(48, 58, 50_000).astype(np.uint8),
        None: rng.integers(0, 256, 50_000).astype(np.uint8),
    }
    for codec, x in cases.items():
        fl.convert(ArrayDeserializer(x=x), tmp_path / str(codec), compression="auto")
        assert Manifest.load(tmp_path / str(codec)).compression == codec
        assert can(StoreDeserializer(tmp_path / str(codec)), fl.RandomAccess) is (codec is None)
    with pytest.raises(ValueError, match="lz4, zstd, auto or None, got 'gzip'"):
        fl.convert(pixels(), tmp_path / "x", compression="gzip")


@given(st.data())
@settings(deadline=None, max_examples=examples(75))
def test_damage_is_reported(tmp_path_factory, data):
    """A byte changed anywhere in the chunks is a DataError that names file and byte, never other data."""
    folder = tmp_path_factory.mktemp("d")
    fl.convert(pixels(300), folder / "s", compression="lz4", chunk_bytes=3000)
    manifest = Manifest.load(folder / "s")
    chunks = manifest.parts[0].chunks
    chunk = data.draw(st.integers(0, len(chunks["byte"]) - 1))
    at = int(chunks["byte"][chunk]) + data.draw(st.integers(0, int(chunks["bytes"][chunk]) - 1))
    path = folder / "s" / manifest.parts[0].file
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with pytest.raises(fl.DataError, match=r"checksum[\s\S]*part-00000\.arrow \(byte"):
        StoreDeserializer(folder / "s").read(chunk)


@given(st.data())
@settings(deadline=None, max_examples=examples(150))
def test_wrong_sizes_are_reported_before_memory_is_allocated(tmp_path_factory, data):
    """With a checksum that fits, a change of a message's head or of the sizes in its body is an error or harmless."""
    batch = pa.record_batch({"x": pa.array(np.arange(64) % 3), "y": pa.array(np.zeros(64, np.float32))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    start = 8 + int.from_bytes(whole[4:8], "little")
    message = bytearray(whole[start:-8])
    memory = pa.ipc.get_record_batch_size(batch)
    metadata = int.from_bytes(message[4:8], "little")
    honest = compressed.expanded_bytes(bytes(message), 8, 8 + metadata)
    assert honest == 64 * 12
    at = data.draw(st.integers(8, len(message) - 1))
    message[at] = data.draw(st.integers(0, 255))
    crc = _native.crc32c(bytes(message))
    try:
        found = compressed.BatchInMemory(message, crc, memory, batch.schema)
    except ValueError:
        return
    assert pa.total_allocated_bytes() < 1 << 24
    for column in found.arrow.columns:
        for buffer in column.buffers():
            assert buffer is None or buffer.size <= memory


def test_a_bomb_is_refused(packed):
    """A buffer that would expand to a terabyte, in a store with matching checksums."""
    manifest = Manifest.load(packed)
    part = manifest.parts[0]
    path = packed / part.file
    raw = bytearray(path.read_bytes())
    start, size = int(part.chunks["byte"][0]), int(part.chunks["bytes"][0])
    head = 8 + int.from_bytes(raw[start + 4 : start + 8], "little")
    raw[start + head : start + head + 8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(raw)
    part.chunks["crc32c"][0] = _native.crc32c(bytes(raw[start : start + size]))
    (packed / MANIFEST).write_bytes(dataclasses.replace(manifest).dump())
    with pytest.raises(fl.DataError, match=r"buffers of \d+ bytes at most, got 1099"):
        StoreDeserializer(packed).read(0)


def test_a_file_that_is_cut_or_a_manifest_of_another_codec(packed):
    """Cut while it is open: named. A version that is not known: upgrade."""
    store = StoreDeserializer(packed)
    store.read(0)
    path = packed / "part-00000.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(fl.DataError, match=r"part-00000\.arrow"):
        store.read(len(store.chunks()) - 1)
    path.write_bytes(whole)
    text = dataclasses.replace(Manifest.load(packed), compression="brotli").dump()
    (packed / MANIFEST).write_bytes(text)
    with pytest.raises(fl.DataError, match="compression of lz4, zstd, got 'brotli'"):
        StoreDeserializer(packed)


@pytest.mark.parametrize("compression", ["lz4", "auto"])
def test_shuffled_and_compressed(tmp_path, compression):
    """Both at once: one codec throughout, also where parts alone would have chosen differently."""
    fl.convert(pixels(), tmp_path / "s", shuffle=1, memory=60_000, chunk_bytes=8000, compression=compression)
    store = StoreDeserializer(tmp_path / "s", verify=True)
    np.testing.assert_array_equal(np.sort(ids(store, shuffle=False)), np.arange(4000))
    manifest = Manifest.load(tmp_path / "s")
    assert len(manifest.parts) > 1
    assert manifest.compression in ("lz4", "zstd")
