"""Chunks in memory use as many bytes as they count: `Chunk.nbytes`, by which budgets are kept."""

import io
import tarfile

import numpy as np
import pytest

import feedline as fl
from feedline.feed.protocol import Fetchable, chunk_extents, require
from tests.feed.formats.shard_writers import write_litdata, write_mds

COUNT, PICTURE = 50, 2000
STREAMS = {
    "picture": fl.Stream(dtype="bytes"),
    "cls": fl.Stream(dtype="str"),
    "n": fl.Stream((), "int64"),
}


def picture(i):
    return bytes([i]) * PICTURE


def mds(folder):
    rows = [(picture(i), b"%d" % i, i.to_bytes(8, "little")) for i in range(COUNT)]
    write_mds(folder, {"picture": ("bytes", None), "cls": ("str", None), "n": ("int", 8)}, rows, COUNT)
    return fl.MDSDeserializer, folder


def litdata(folder):
    rows = [(picture(i), i.to_bytes(8, "little")) for i in range(COUNT)]
    write_litdata(folder, {"picture": "bytes", "n": "int"}, rows, COUNT)
    return fl.LitDataDeserializer, folder


def tar(folder):
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for i in range(COUNT):
            for name, data in (("picture", picture(i)), ("cls", b"%d" % i)):
                member = tarfile.TarInfo(f"{i:03}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return fl.TarDeserializer, path


@pytest.mark.parametrize(
    ("make", "name"), [(mds, "picture"), (mds, "cls"), (mds, "n"), (litdata, "picture"), (litdata, "n"), (tar, "cls")]
)
def test_a_few_bytes_of_each_sample_do_not_hold_all(tmp_path, make, name):
    kind, path = make(tmp_path / "corpus")
    corpus = kind(path, {name: STREAMS[name]})
    (extent,) = chunk_extents(corpus, 0)
    with open(extent.path, "rb") as file:
        file.seek(extent.offset)
        piece = np.frombuffer(file.read(extent.size), np.uint8)
    value = require(corpus, Fetchable).read_fetched(0, [memoryview(piece)])[name]
    wanted = {"picture": picture, "cls": str, "n": int}[name]
    assert value.tolist() == [wanted(i) for i in range(COUNT)]
    held = value.rows if name == "n" else getattr(value, "memory", value.data)
    assert np.may_share_memory(held, piece) == (name == "picture")
