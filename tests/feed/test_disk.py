"""Measured speeds of the disk are plausible for known files, and measuring leaves no trace."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import feedline as fl
from feedline.feed.files import disk
from tests.linux import linux_only

MIB = 1 << 20


def direct(path):
    """Whether the file system reads past the page cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(MIB) * 16)
    return str(path)


@linux_only("a page cache that tells what it holds")
def test_the_page_cache_is_asked_and_emptied(file):
    """A file that was just written is cached. Evicted, it is not. With half of it read again, half of it is."""
    assert disk.resident([file]) == 1.0
    if not direct(file):
        pytest.skip("the temporary folder is in memory: nothing can be evicted from it")
    disk.evict([file])
    assert disk.resident([file]) == 0.0
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 8 * MIB, 0)
    os.close(descriptor)
    assert disk.resident([file]) == pytest.approx(0.5, abs=0.1)
    found = disk.survey([file], 3000, 0.1)
    assert found.resident == pytest.approx(0.5, abs=0.1)
    assert disk.resident([file]) == pytest.approx(0.5, abs=0.1), "measuring leaves the page cache as it was"


@linux_only("reads past the page cache")
def test_survey_of_several_files(file, tmp_path):
    """Empty files count nothing, small ones are read within their bounds, and all threads have ended."""
    small, empty = tmp_path / "small", tmp_path / "empty"
    small.write_bytes(b"x" * 5000)
    empty.write_bytes(b"")
    before = set(threading.enumerate())
    found = disk.survey([file, str(small), str(empty)], 100, 0.1)
    assert found.bytes == 16 * MIB + 5000
    assert not set(threading.enumerate()) - before, "threads of earlier tests may end meanwhile"
    if direct(file):
        assert found.sequential > 0 < found.random
        late = disk.survey([file], 100, 0.0)  # as on a machine that runs no thread in time
        assert late.sequential > 0 < late.random
    else:
        assert found.sequential is found.random is None
    assert disk.survey([str(empty)], 100) is None
    assert disk.survey([], 100) is None
    assert disk.survey([str(small)], 10**12, 0.1).bytes == 5000


def test_missing_files_are_named(tmp_path):
    """As everywhere: a DataError with the path."""
    for call in (lambda p: disk.survey([p], 1), lambda p: disk.evict([p]), lambda p: disk.resident([p])):
        with pytest.raises(fl.DataError, match=r"gone\.bin"):
            call(str(tmp_path / "gone.bin"))


def test_corpora_name_their_files(tmp_path):
    """Stores, CTF, Parquet, mapped arrays and joins of them have files, arrays in memory have none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x = np.arange(20, dtype=np.float32)[:, None]
    memory = fl.ArrayDeserializer(x=x)
    fl.convert(memory, tmp_path / "store")
    np.save(tmp_path / "x.npy", x)
    fl.write_ctf(tmp_path / "a.ctf", x=fl.Value.from_dense(x))
    pq.write_table(pa.table({"z": x[:, 0]}), tmp_path / "a.parquet")
    corpora = {
        "part-00000.arrow": fl.StoreDeserializer(tmp_path / "store"),
        "x.npy": fl.open_corpus(tmp_path / "x.npy"),
        "a.ctf": fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1)),
        "a.parquet": fl.ParquetDeserializer(tmp_path / "a.parquet"),
    }
    for name, corpus in corpora.items():
        (path,) = corpus.paths()
        assert path.endswith(name)
        assert os.path.isfile(path)
    assert list(memory.paths()) == []
    join = fl.Join(corpora["a.ctf"], corpora["a.parquet"], cache=False)
    assert [os.path.basename(path) for path in join.paths()] == ["a.ctf", "a.parquet"]
