"""The laws for folders of shards, of MosaicML Streaming and of LitData: one order, resume, parts, ticks, damage."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import feedline as fl
from feedline.feed.files.read_into import read_exactly
from feedline.feed.formats.shards.offset_shards import OffsetShards
from feedline.feed.protocol import Fetchable, Unread, chunk_extents, require
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.effort import stride as every
from tests.feed.formats.shard_writers import write_litdata, write_mds

FIXTURES = Path(__file__).parents[2] / "fixtures"
COUNT = 20
BYTES = fl.Stream(dtype="bytes")


class Folder(NamedTuple):
    """A folder of 20 samples, which ``number`` and ``first`` identify."""

    kind: str
    form: str
    number: str
    first: int
    shard: str

    @property
    def path(self):
        return FIXTURES / self.kind / self.form

    def copy(self, to):
        return Path(shutil.copytree(self.path, to / self.form))

    def open(self, path=None, streams=None, **options):
        opener = {"mds": fl.MDSDeserializer, "litdata": fl.LitDataDeserializer}[self.kind]
        return opener(path or self.path, streams, **options)

    def plain(self, path=None, **options):
        """Two streams of one sample each, ``n`` and ``b``."""
        dtype = "uint8" if self.kind == "mds" else "int64"
        return self.open(path, {"n": fl.Stream((), dtype, field=self.number), "b": BYTES}, **options)

    def numbers(self, values, name=None):
        """The numbers of samples, which in `plain` are called ``n``."""
        return (values[name or self.number].rows.astype(int) - self.first).tolist()


MDS = [Folder("mds", form, "small", 0, "shard.0000*") for form in ("raw", "zstd", "gz")]
LITDATA = [Folder("litdata", form, "i", -5, "chunk-0-*") for form in ("raw", "zstd", "runs", "each")]
ALL = [*MDS, *LITDATA]
SOME = [MDS[0], LITDATA[0], LITDATA[2]]
RAW = [MDS[0], LITDATA[0]]


def named(folders):
    return pytest.mark.parametrize("folder", folders, ids=[f"{one.kind} {one.form}" for one in folders])


# ---- the laws -------------------------------------------------------------------------------------------


@named(SOME)
def test_one_order_parts_and_resume(folder):
    def source(**options):
        return fl.MinibatchSource(folder.open(chunk_size=600), **{"seed": 3, "max_sweeps": 2, **options})

    for shuffle in (True, fl.Window(samples=8), False):
        assert len({bytes_digest(source(shuffle=shuffle).minibatches(size)) for size in (3, 8)}) == 1
        assert_resumes(lambda shuffle=shuffle: source(shuffle=shuffle), sizes=(3,))
    whole, parts = source(max_sweeps=1), [source(max_sweeps=1, partition=(i, 3)) for i in range(3)]
    seen = []
    for minibatch in whole.minibatches(7):
        assert [one for part in parts for one in sequences_of([part.next_minibatch(7)])] == sequences_of([minibatch])
        seen += folder.numbers(minibatch)
    assert sorted(seen) == list(range(COUNT))


@named(RAW)
def test_resumed_by_another_number_of_workers(folder):
    """Two workers, then three, from a random place, deliver the sequences that one would."""

    def source(**options):
        return fl.MinibatchSource(folder.open(), seed=8, max_sweeps=3, **options)

    expected = [sequences_of([m]) for m in source().minibatches(4)]
    for cut in random.Random(16).sample(range(1, len(expected)), 3):
        first, found = [source(partition=(i, 2)) for i in range(2)], []
        found += [[one for part in first for one in sequences_of([part.next_minibatch(4)])] for _ in range(cut)]
        then = [source(partition=(i, 3)) for i in range(3)]
        for part in then:
            part.load_state_dict(json.loads(json.dumps(first[0].state_dict())))
        while rest := [one for part in then for one in sequences_of([part.next_minibatch(4)])]:
            found.append(rest)
        assert found == expected


@pytest.mark.filterwarnings("ignore:expected at most")
@named([MDS[0], MDS[2], LITDATA[0]])
def test_a_loader_and_other_processes(folder):
    corpus = folder.plain()
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema, again.chunks()) == (corpus.digest(), corpus.schema, corpus.chunks())
    whole = corpus.select(np.arange(COUNT))
    expected = list(enumerate(whole["b"].tolist()))
    for workers in (0, 2, 3):
        loader = fl.DataLoader(corpus, batch_size=6, shuffle=True, seed=2, num_workers=workers)
        seen = [pair for batch in loader for pair in zip((batch["n"] - folder.first).tolist(), batch["b"], strict=True)]
        assert sorted(seen) == expected


@named(ALL)
def test_fetched_ahead(folder):
    """Fetched bytes are used, and others are read if they could not be fetched."""
    corpus = folder.open(chunk_size=600)
    assert sum(info.sequences for info in corpus.chunks()) == COUNT
    for number in range(len(corpus.chunks())):
        (extent,) = chunk_extents(corpus, number)
        piece = memoryview(Path(extent.path).read_bytes()[extent.offset : extent.offset + extent.size])
        expected, found = corpus.read(number), require(corpus, Fetchable).read_fetched(number, [piece])
        again = require(corpus, Fetchable).read_fetched(number, [Unread(errno.EIO, extent.offset)])
        for name, value in expected.values.items():
            assert found[name] == value, name
            assert again[name] == value, name


@named(RAW)
def test_what_a_disk_loses_are_the_samples_there(folder, monkeypatch):
    corpus = folder.open()
    content = Path(corpus.paths()[0]).read_bytes()
    low = int(np.frombuffer(content, "<u4", 3, 4)[1]) + 3

    def read_most(file, into, offset, path):
        read_exactly(file, into, offset, path)
        into[low - offset : low + 4 - offset] = ord(" ")
        return [(low, low + 4, errno.EIO)]

    monkeypatch.setattr("feedline.feed.formats.shards.offset_shards.read_most", read_most)
    chunk = require(corpus, Fetchable).read_fetched(0, [Unread(errno.EIO, low)])
    assert list(chunk.errors) == [1]
    assert (chunk.errors[1].byte, chunk.errors[1].sequence) == (low, 1)
    assert folder.numbers(chunk.slice(0, 1)) == [0]


@named(RAW)
@pytest.mark.parametrize("column", ["b", "n"])
def test_truncated_in_use(folder, tmp_path, monkeypatch, column):
    """What is mapped can be cut while it is read: an error, neither zeros nor the end of the process."""
    copy = folder.copy(tmp_path)
    streams = {column: folder.plain(copy).schema[column]}
    source = fl.MinibatchSource(folder.open(copy, streams), shuffle=False)
    spans = OffsetShards._spans

    def cut(self, part, wanted):
        found = spans(self, part, wanted)
        with open(part.path, "r+b") as file:
            file.truncate(9)
        return found

    monkeypatch.setattr(OffsetShards, "_spans", cut)
    with pytest.raises(fl.DataError, match="truncated"):
        source.next_minibatch(3)


@named(ALL)
@pytest.mark.parametrize("replaced", [False, True])
def test_changed_in_use(folder, tmp_path, replaced):
    """Offsets of a file as it is now do not fit a map of it as it was."""
    copy = folder.copy(tmp_path)
    corpus = folder.open(copy)
    corpus.read(0)
    shard = Path(corpus.paths()[0])
    content = shard.read_bytes()
    if replaced:
        shard.unlink()
    shard.write_bytes(content)
    os.utime(shard, ns=(0, 0))
    with pytest.raises(fl.DataError, match="expected the shard as it was when it was opened") as raised:
        corpus.read(0)
    assert raised.value.path == str(shard)
    assert folder.open(copy).read(0)["b"] == folder.open().read(0)["b"]


@pytest.mark.parametrize("kept", [False, True])
def test_lengths_of_another_file(tmp_path, monkeypatch, kept):
    """A file of the same size and time whose sequences have other lengths is refused, not read into a wrong budget."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("feedline.feed.formats.shards.shard_lengths.MIN_CACHED_BYTES", 0)
    monkeypatch.setattr(OffsetShards, "digest", lambda self: "the same")  # it is of excerpts
    folder = tmp_path / "a"

    def write(lengths):
        write_litdata(folder, {"x": "no_header_numpy:9"}, [[np.zeros(n, "<f4").tobytes()] for n in lengths], 20)
        os.utime(folder / "chunk-0-0.bin", ns=(0, 0))

    write([3, 1, 2, 2])
    corpus = fl.LitDataDeserializer(folder, x=fl.Stream(()))
    shutil.rmtree(folder)
    write([3, 2, 1, 2])
    if kept:
        corpus = fl.LitDataDeserializer(folder, x=fl.Stream(()))
    (extent,) = chunk_extents(corpus, 0)
    piece = memoryview(Path(extent.path).read_bytes()[extent.offset : extent.offset + extent.size])
    for read in (lambda: corpus.read(0), lambda: require(corpus, Fetchable).read_fetched(0, [piece])):
        with pytest.raises(fl.DataError, match="expected a sequence of 1 samples, as counted before") as raised:
            read()
        assert raised.value.sequence == 1
    for path in (tmp_path / "cache" / "feedline").glob("*.feedline-lengths"):
        path.unlink()
    corpus = fl.LitDataDeserializer(folder, x=fl.Stream(()))
    assert corpus.read(0)["x"].lengths.tolist() == corpus.lengths(np.arange(4)).tolist() == [3, 2, 1, 2]


@named(ALL)
def test_any_byte_changed_is_read_or_refused(folder, tmp_path):
    """Never anything else, and unchanged samples keep their values."""
    copy = folder.copy(tmp_path)
    shard, draw = sorted(copy.glob(folder.shard))[0], random.Random(5)
    content, schema = shard.read_bytes(), folder.open().schema
    expected = folder.open().chunks()[0].sequences
    for byte in range(0, len(content), every(23)):
        shard.write_bytes(content[:byte] + bytes([draw.randrange(256)]) + content[byte + 1 :])
        try:
            corpus = folder.open(copy, schema.streams)
            chunk = corpus.read(0)
        except fl.DataError:
            continue
        if folder.form in ("raw", "each"):
            assert len(chunk.errors) <= 2
        for name, value in chunk.values.items():
            assert value.num_sequences == corpus.chunks()[0].sequences == expected, name


@pytest.mark.parametrize("kind", ["mds", "litdata"])
def test_samples_of_one_size_are_views(tmp_path, kind):
    """With any alignment. A file that is truncated meanwhile is an error."""
    x = np.arange(150, dtype=np.float32).reshape(50, 3)
    rows = [[row.tobytes(), b"abc", int(row[0]).to_bytes(8, "little")] for row in x]
    if kind == "mds":
        write_mds(tmp_path / "a", {"x": ("ndarray:float32:3", 12), "b": ("bytes", None), "y": ("int", 8)}, rows, 20)
    else:
        write_litdata(tmp_path / "a", {"x": "no_header_numpy:9", "b": "bytes", "y": "int"}, rows, 20)
    corpus = fl.open_corpus(tmp_path / "a")
    chunk = corpus.read(0)
    assert not chunk["x"].rows.flags.owndata
    assert chunk["x"].rows.strides[0] == chunk["y"].rows.strides[0] > 23
    np.testing.assert_array_equal(corpus.select(np.arange(50))["x"].rows, x)
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1)
    minibatches = list(source.minibatches(8))
    assert all(m["x"].rows.flags.aligned for m in minibatches)
    for minibatch in minibatches:
        np.testing.assert_array_equal(minibatch["x"].rows[:, 0], minibatch["y"].rows)
    numbers = corpus.select(np.arange(40))["y"].rows
    assert numbers.tolist() == (3 * np.arange(40)).tolist()
    with open(corpus.paths()[0], "r+b") as file:
        file.truncate(9)
    with pytest.raises(fl.DataError, match="truncated"):
        chunk.take(np.arange(3))
