"""In a control group with little memory, a source reads less ahead, or raises an error. It is never killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.feed.assembly import ChunkSet
from feedline.feed.reading import decoding_reader
from feedline.feed.reading.decoding_reader import DecodingReader
from feedline.feed.reading.stats import Stats
from feedline.feed.timeline import ChunkTable
from tests.linux import linux_only

pytestmark = linux_only("control groups")

LIMIT = 256 << 20
PYARROW = 32 << 20  # bytes more with it, of which it takes 20 to 30, differing from run to run
SIZE = 112 << 20  # of each file: one window is more than the group has besides the interpreter


def _parent():
    """Folder of this process's memory group and the name of its limit, in version 1 or 2, None: there is none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup"), "memory.max"


@pytest.fixture(scope="module")
def group():
    parent, name = _parent()
    made = parent / f"feedline-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / name).write_text(str(LIMIT))
    except OSError as error:
        if made.is_dir():
            made.rmdir()
        pytest.skip(f"memory control groups cannot be made: {error.strerror}")
    yield made / name
    made.rmdir()


def _lines(path, block):
    with path.open("ab") as file:
        for _ in range(SIZE // len(block)):
            file.write(block)


def parquet(path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = np.random.default_rng(0).normal(size=1 << 20).astype("f4")  # 4 MiB
    table = pa.table(dict.fromkeys("abcd", rows))
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        for _ in range(SIZE // table.nbytes):
            writer.write_table(table)


def arrow(path):
    pa, ipc = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    rows = np.random.default_rng(0).normal(size=1 << 20).astype("f4")
    table = pa.table(dict.fromkeys("abcd", rows))
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        for _ in range(SIZE // table.nbytes):
            writer.write_table(table)


def zarr(path):
    package = pytest.importorskip("zarr")
    rows = np.random.default_rng(0).normal(size=1 << 20).astype("f4")
    group = package.open_group(path, mode="w")
    for name in "ab":
        array = group.create_array(name, shape=(SIZE // 8,), chunks=rows.shape, dtype="f4")
        for start in range(0, array.shape[0], len(rows)):
            array[start : start + len(rows)] = rows[: array.shape[0] - start]


def h5(path):
    package = pytest.importorskip("h5py")
    rows = np.random.default_rng(0).normal(size=1 << 20).astype("f4")
    with package.File(path, "w") as file:
        for name in "ab":
            data = file.create_dataset(name, (SIZE // 8,), "f4", chunks=rows.shape, compression="lzf")
            for start in range(0, data.shape[0], len(rows)):
                data[start : start + len(rows)] = rows[: data.shape[0] - start]


def csv(path):
    path.write_bytes(b"a,b\n")
    _lines(path, b"".join(b"%d,%d\n" % (i, i % 7) for i in range(10_000)))


def jsonl(path):
    _lines(path, b"".join(b'{"a": %d, "b": %d}\n' % (i, i % 7) for i in range(10_000)))


def ctf(path):
    _lines(path, b"".join(b"|a %d |b %d\n" % (i, i % 7) for i in range(10_000)))


PROGRAM = """
import os, sys
limit, path, window = sys.argv[1:]
folder = os.path.dirname(limit)
open(folder + "/cgroup.procs", "w").write(str(os.getpid()))
import feedline as fl
kind = path.rpartition(".")[2]
options = {} if window == "default" else {"shuffle": fl.Window(bytes=int(window) << 20)}
small = {} if window == "default" else {"chunk_size": 4 << 20}
if kind == "ctf":
    one = fl.Stream((), "float32")
    corpus = fl.CTFDeserializer(path, a=one, b=one, cache=False, **small)
elif kind in ("csv", "jsonl"):
    corpus = {"csv": fl.CSVDeserializer, "jsonl": fl.JSONLinesDeserializer}[kind](path, **small)
else:
    corpus = fl.open_corpus(path)
try:
    with fl.MinibatchSource(corpus, max_sweeps=1, **options) as source:
        print("read", sum(m.num_sequences for m in source.minibatches(1 << 16)) == source.num_sequences)
except MemoryError as error:
    print("refused", "MiB used" in str(error) and "fl.Window" in str(error))
"""


@pytest.mark.parametrize("write", [parquet, arrow, zarr, h5, csv, jsonl, ctf])
def test_a_source_is_not_killed(group, tmp_path, write):
    path = tmp_path / f"data.{write.__name__}"
    write(path)
    group.write_text(str(LIMIT + PYARROW if write in (parquet, arrow) else LIMIT))
    told = {}
    for window in ("default", "8"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(group), str(path), window], capture_output=True, text=True
        )
        assert done.returncode == 0, f"{window}: {done.returncode} {done.stderr[-800:]}"
        told[window] = done.stdout.strip()
    assert told["default"] in ("read True", "refused True")
    assert told["8"] == "read True"


def test_what_was_fetched_for_a_chunk_that_has_no_room_is_dropped(tmp_path, monkeypatch):
    """Otherwise the room for reading ahead would shrink with every error."""
    _lines(tmp_path / "data.ctf", b"".join(b"|a %d |b %d\n" % (i, i % 7) for i in range(10_000)))
    one = fl.Stream((), "float32")
    corpus = fl.CTFDeserializer(tmp_path / "data.ctf", a=one, b=one, cache=False, chunk_size=4 << 20)
    reader = DecodingReader(
        corpus,
        ChunkSet(corpus.schema),
        Stats(),
        total=len(corpus.chunks()),
        table=ChunkTable(corpus.chunks()),
        threads=2,
        budget_bytes=None,
    )
    reader.ranges.forced = True
    with monkeypatch.context() as patch:
        patch.setattr(decoding_reader, "available", lambda: 1 << 20)
        for chunk in range(4):
            with pytest.raises(MemoryError, match=f"chunk {chunk} of .*data.ctf"):
                reader.fetch(np.array([chunk]))
            assert reader.ranges.used_bytes == 0
    assert [chunk.num_sequences for chunk in reader.fetch(np.arange(2))] == [
        info.sequences for info in corpus.chunks()[:2]
    ]
    reader.close()
