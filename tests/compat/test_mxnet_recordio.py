"""`mxnet.recordio`: the bytes of MXNet's writer, its reader's records, and InsightFace's dataset over both."""

from __future__ import annotations

import json
import os
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
import feedline.mxnet as mx
from feedline.mxnet import recordio
from tests.docs.pages import ROOT
from tests.forked import Forked
from tests.oracles.recordio import MAGIC, packed, payloads, record

MADE = ROOT / "tests/fixtures/recordio"
READ = json.loads((MADE / "read.json").read_text())


@pytest.mark.parametrize("name", READ)
def test_the_bytes_and_records_of_mxnet(tmp_path, name):
    """What MXNet wrote is read as MXNet reads it, and written again with the same bytes."""
    theirs = recordio.MXIndexedRecordIO(str(MADE / f"{name}.idx"), str(MADE / f"{name}.rec"), "r")
    ours = recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    assert theirs.keys == [entry["key"] for entry in READ[name]]
    for entry in READ[name]:
        header, picture = recordio.unpack(theirs.read_idx(entry["key"]))
        label = header.label.tolist() if header.flag else header.label
        assert (header.flag, label, header.id, header.id2) == tuple(entry[k] for k in ("flag", "label", "id", "id2"))
        assert picture.hex() == entry["picture"]
        ours.write_idx(entry["key"], recordio.pack(recordio.IRHeader(0, label, header.id, header.id2), picture))
    ours.close()
    for suffix in ("rec", "idx"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (MADE / f"{name}.{suffix}").read_bytes()


@given(
    st.lists(st.lists(st.sampled_from([b"", b"a", b"bcde", MAGIC, MAGIC[:3]]), max_size=8).map(b"".join), max_size=9)
)
def test_any_records(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("r") / "a.rec"
    writer = recordio.MXRecordIO(str(path), "w")
    for data in records:
        writer.write(data)
    writer.close()
    assert path.read_bytes() == b"".join(map(record, records))
    assert list(payloads(path.read_bytes())) == records
    reader = recordio.MXRecordIO(str(path), "r")
    for _ in range(2):
        assert [reader.read() for _ in records] == records
        assert reader.read() is None
        reader.reset()


def test_keys_and_places(tmp_path):
    paths = str(tmp_path / "a.idx"), str(tmp_path / "a.rec")
    writer = recordio.MXIndexedRecordIO(*paths, "w", key_type=str)
    places = []
    for key in "cab":
        places.append(writer.tell())
        writer.write_idx(key, f"of {key}".encode())
    writer.close()
    reader = recordio.MXIndexedRecordIO(*paths, "r", key_type=str)
    assert (reader.keys, reader.idx) == (["c", "a", "b"], dict(zip("cab", places, strict=True)))
    assert (reader.read_idx("a"), reader.read(), reader.read()) == (b"of a", b"of b", None)
    reader.seek("c")
    again = pickle.loads(pickle.dumps(reader))
    assert (again.read_idx("b"), reader.read()) == (b"of b", b"of c")
    with pytest.raises(KeyError):
        reader.read_idx("d")
    reader.close()
    with pytest.raises(mx.MXNetError, match="got a closed file"):
        reader.read()


def test_a_reader_in_two_processes(tmp_path):
    path = str(tmp_path / "a.rec")
    writer = recordio.MXRecordIO(path, "w")
    for i in range(50):
        writer.write(b"%d" % i)
    with pytest.raises(TypeError, match="a writer, which cannot be in two processes"):
        pickle.dumps(writer)

    def write():
        with pytest.raises(mx.MXNetError, match="expected one process to write"):
            writer.write(b"x")
        return True

    assert Forked(write).status() == 0
    writer.close()
    reader = recordio.MXRecordIO(path, "r")
    assert reader.read() == b"0"

    def read():
        return [reader.read() for _ in range(49)] == [b"%d" % i for i in range(1, 50)]

    child = Forked(read)
    assert read()
    assert child.status() == 0


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"abcd" * 3, "expected a record in .* at byte 0, got b'abcdabcd'"),
        (record(b"abc")[:-1][:9], "expected 3 bytes in .* from byte 8 on, got 1"),
        (MAGIC + struct.pack("<I", 1 << 29) + record(b""), "expected the next part of a record .* at byte 8"),
        (MAGIC + struct.pack("<I", 1 << 29), "expected the next part of a record .* at byte 8, got b''"),
    ],
)
def test_damage(tmp_path, data, match):
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(mx.MXNetError, match=match):
        recordio.MXRecordIO(str(tmp_path / "a.rec"), "r").read()


def test_refused(tmp_path):
    with pytest.raises(ValueError, match="Invalid flag a"):
        recordio.MXRecordIO(str(tmp_path / "a.rec"), "a")
    with pytest.raises(mx.MXNetError, match="at least 24 bytes, got 5"):
        recordio.unpack(b"short")
    with pytest.raises(mx.MXNetError, match="at least 32 bytes for 2 labels, got 28"):
        recordio.unpack(packed([1, 2])[:28])
    (tmp_path / "a.rec").touch()
    (tmp_path / "a.idx").write_text("1\t0\n2 0\n")
    with pytest.raises(mx.MXNetError, match="in line 2 of"):
        recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "r")


def test_pictures():
    picture = np.random.default_rng(1).integers(0, 255, (6, 8, 3), np.uint8)
    header = recordio.IRHeader(0, 3.0, 5, 0)
    data = recordio.pack_img(header, picture, quality=3, img_fmt=".png")
    again, pixels = recordio.unpack_img(data)
    assert (again, pixels.tolist()) == (header, picture.tolist())
    assert mx.image.imdecode(recordio.unpack(data)[1]).asnumpy().tolist() == picture[:, :, ::-1].tolist()
    assert mx.image.imdecode(recordio.unpack(data)[1], to_rgb=False).asnumpy().tolist() == picture.tolist()
    grey = recordio.pack_img(header, picture[:, :, 0], img_fmt=".png")
    assert recordio.unpack_img(grey)[1].tolist() == picture[:, :, 0].tolist()
    assert recordio.unpack_img(grey, 1)[1].tolist() == np.repeat(picture[:, :, :1], 3, 2).tolist()
    assert mx.image.imdecode(recordio.unpack(grey)[1], flag=0).shape == (6, 8, 1)
    smooth = np.add.outer(np.arange(32), np.arange(24)).astype(np.uint8)[:, :, None].repeat(3, 2)
    for quality, most in ((95, 3), (30, 12)):
        _, pixels = recordio.unpack_img(recordio.pack_img(header, smooth, quality))
        assert np.abs(pixels.astype(int) - smooth).max() <= most
    with pytest.raises(ValueError, match=r"expected `.jpg` or `.png`"):
        recordio.pack_img(header, picture, img_fmt=".webp")
    with pytest.raises(fl.DataError):
        recordio.unpack_img(recordio.pack(header, b"no picture"), 1)


def test_as_insightface_reads(tmp_path):
    """Indices of samples by record 0, and by keys without it, as its dataset for torch has them."""
    assert os.path.isfile(MADE / "faces.rec")
    reader = recordio.MXIndexedRecordIO(str(MADE / "faces.idx"), str(MADE / "faces.rec"), "r")
    header, _ = recordio.unpack(reader.read_idx(0))
    assert header.flag > 0
    indices = np.array(range(1, int(header.label[0])))
    read = [recordio.unpack(reader.read_idx(i)) for i in indices]
    corpus = fl.RecordIODeserializer(MADE / "faces.rec", cache=tmp_path)
    chunk = corpus.read(0)
    assert chunk["label"].rows.tolist() == [header.label for header, _ in read]
    assert chunk["image"].tolist() == [data for _, data in read]
    assert corpus.keys(np.arange(6)).tolist() == indices.tolist()
