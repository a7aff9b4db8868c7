"""Other objects in the place of a file, in any format: an error names it, or the readable part is read."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import feedline as fl
from feedline import _native
from tests.feed.formats.shard_writers import write_litdata, write_mds
from tests.oracles import recordio

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 40
TABLE = pa.table({"i": np.arange(COUNT)})


def in_memory(write):
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def packed(text, packing):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, packing) as stream:
        stream.write(text)
    return sink.getvalue().to_pybytes()


def arrow(new):
    def write(sink):
        with new(sink, TABLE.schema) as writer:
            writer.write_table(TABLE)

    return in_memory(write)


def tar(sink):
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for k in range(5):
            member = tarfile.TarInfo(f"{k}.json")
            member.size = 8
            archive.addfile(member, io.BytesIO(b'{"i": 1}'))


def tfrecord():
    record = bytes([10, 12, 10, 10, 10, 1, 105, 18, 5, 26, 3, 10, 1, 7])

    def checked(data):
        crc = _native.crc32c(data)
        return data + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    return 5 * (checked(struct.pack("<Q", len(record))) + checked(record))


def hdf5(sink):
    h5py = pytest.importorskip("h5py")
    with h5py.File(sink, "w") as file:
        file["i"] = np.arange(COUNT)


LINES = b"".join(b'{"i": %d}\n' % k for k in range(COUNT))
CELLS = b"i\n" + b"".join(b"%d\n" % k for k in range(COUNT))
FILES = {
    "ctf": lambda: b"".join(b"|i %d\n" % k for k in range(COUNT)),
    "csv": lambda: CELLS,
    "csv.gz": lambda: gzip.compress(CELLS),
    "jsonl": lambda: LINES,
    "jsonl.zst": lambda: packed(LINES, "zstd"),
    "parquet": lambda: in_memory(lambda sink: pq.write_table(TABLE, sink)),
    "arrow": lambda: arrow(ipc.new_file),
    "arrows": lambda: arrow(ipc.new_stream),
    "tar": lambda: in_memory(tar),
    "tar.gz": lambda: gzip.compress(in_memory(tar)),
    "tar.zst": lambda: packed(in_memory(tar), "zstd"),
    "tfrecord": tfrecord,
    "rec": lambda: b"".join(recordio.record(recordio.packed(float(k))) for k in range(COUNT)),
    "npy": lambda: in_memory(lambda sink: np.save(sink, np.arange(COUNT))),
    "npz": lambda: in_memory(lambda sink: np.savez(sink, i=np.arange(COUNT))),
    "h5": lambda: in_memory(hdf5),
    "bin": lambda: np.arange(500, dtype="<u2").tobytes(),
    "mlf": lambda: b'#!MLF!#\n"*/a.lab"\n0 100000 0\n.\n',
    "scp": lambda: b"a=a.htk[0,3]\n",
    "mds": lambda: b"",
    "litdata": lambda: b"",
}
FOLDERS = {"mds": "shard.00000.mds", "litdata": "chunk-0-0.bin"}
PLACES = ("empty", "cut", "random", "zeros", "directory", "unreadable", "dangling", "pipe", "loop")


def put(path, content, place):
    if path.exists():
        path.unlink()
    if place == "directory":
        path.mkdir()
    elif place in ("dangling", "loop"):
        path.symlink_to(path if place == "loop" else path.parent / "nowhere")
    elif place == "pipe":
        os.mkfifo(path)
    else:
        noise = np.random.default_rng(7).bytes(4000)
        contents = {"empty": b"", "cut": content[: len(content) // 3], "random": content[:8] + noise}
        contents |= {"zeros": content[:8] + bytes(4000)}
        path.write_bytes(contents.get(place, content))
        path.chmod(0 if place == "unreadable" else 0o644)


def read(path):
    """Open and read. Damaged rows count as well."""
    streams = {"tokens": fl.Stream(50, "uint16")} if path.suffix == ".bin" else {}
    corpus = fl.open_corpus(path, streams=streams)
    for k in range(len(corpus.chunks())):
        dict(corpus.read(k).errors)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", FILES)
def test_what_is_in_the_place_of_a_file_is_read_or_named(tmp_path, kind, place):
    path = tmp_path / f"data.{kind}"
    content = FILES[kind]()
    if kind in FOLDERS:
        rows = [(struct.pack("<q", k),) for k in range(10)]
        if kind == "mds":
            write_mds(path, {"i": ("int64", 8)}, rows, 4)
        else:
            write_litdata(path, {"i": "int"}, rows, 4)
        content = (path / FOLDERS[kind]).read_bytes()
    put(path / FOLDERS[kind] if kind in FOLDERS else path, content, place)
    root = os.geteuid() == 0
    if place == "unreadable" and root:
        tmp_path.chmod(0o755)
        os.chmod(tmp_path.parent, 0o755)
        os.chmod(tmp_path.parent.parent, 0o755)
        os.seteuid(65534)
    said = None
    tracemalloc.start()
    try:
        read(path)  # which is right, too: of text that was cut, most rows are left
    except fl.DataError as error:  # a SchemaError could be avoided by another declaration
        said = str(error)
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if place == "unreadable" and root:
            os.seteuid(0)
    assert most < 32 << 20
    # A script that was cut within a name asks for another file.
    assert said is None or path.stem in said or (kind, place) == ("scp", "cut")


def test_a_compressed_text_that_is_cut_at_once_is_reported(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packed(LINES, "zstd")[:20])
    with pytest.raises(fl.DataError, match="expected text in zstd, got none that can be unpacked"):
        fl.open_corpus(path)


def test_shards_without_their_index_are_named(tmp_path):
    write_mds(tmp_path / "a", {"i": ("int64", 8)}, [(struct.pack("<q", k),) for k in range(10)], 4)
    (tmp_path / "a" / "index.json").unlink()
    with pytest.raises(fl.DataError, match=r"got a shard of MDS(.|\n)*missing or damaged index\.json there"):
        fl.open_corpus(tmp_path / "a")


def test_an_empty_file_is_reported_as_empty(tmp_path):
    (tmp_path / "a.data").touch()
    with pytest.raises(fl.DataError, match="got an empty one"):
        fl.open_corpus(tmp_path / "a.data")
