"""Conversion by workers of Ray: the store is that of one process, byte for byte, whatever dies."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError
from feedline.feed.formats.ctf_write import write_ctf
from feedline.feed.protocol import ChunkInfo, Deserializer
from feedline.feed.workers import Pool
from tests.cli import shell
from tests.feed.remote import test_convert as remote
from tests.feed.remote.test_convert import Rows
from tests.laws.items import Augmented
from tests.servers.object_store import ObjectStore

# Not imported, as it would read its settings before they are set.
if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'feedline[ray]')", allow_module_level=True)

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


class Ragged(Deserializer):
    """40 chunks of 25 sequences, some unreadable. One chunk kills its first reader, one cannot be read at all."""

    schema = Schema({"x": Stream(3), "y": Stream((), "int64")})

    def __init__(self, marker=None, bad=(), seconds=0.0, cut=None):
        self.marker, self.bad, self.seconds, self.cut = marker, frozenset(bad), seconds, cut

    def chunks(self):
        return [ChunkInfo(25, 25, 1000)] * 40

    def read(self, chunk):
        time.sleep(self.seconds)
        if chunk == self.cut:
            raise DataError("expected more bytes", path="data.bin", byte=17)
        if self.marker is not None and chunk == 21:
            try:
                Path(self.marker).open("x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        numbers = np.arange(25 * chunk, 25 * chunk + 25)
        rows = [np.full((int(n) % 4 if chunk > 9 else 1, 3), n, np.float32) for n in numbers]
        errors = {i: DataError(f"torn {n}") for i, n in enumerate(numbers) if n in self.bad}
        return Chunk(self.schema, {"x": Value.from_sequences(rows), "y": Value.from_dense(numbers)}, errors)

    def digest(self):
        return "00"


SMALL = {"chunk_bytes": 700, "part_bytes": 4000}


@pytest.mark.parametrize("more", [{}, {"compression": "lz4"}, {"shuffle": 4, "memory": 20_000}])
def test_a_corpus_is_the_same_store(tmp_path, more):
    source, how = Ragged(bad=[3, 500]), {"on_error": "skip", **SMALL, **more}
    one = fl.convert(source, tmp_path / "one", **how)
    fl.convert(source, tmp_path / "local", jobs=2, **how)
    ray = fl.convert(source, tmp_path / "ray", jobs=2, executor="ray", **how)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "local") == bytes_of(tmp_path / "ray")
    assert ray._replace(path="") == one._replace(path="")
    assert ray.skipped == 2
    assert len(list((tmp_path / "ray").glob("part-*"))) > (1 if "shuffle" not in more else 0)


def test_a_worker_that_dies_changes_nothing(tmp_path):
    fl.convert(Ragged(), tmp_path / "one", **SMALL)
    fl.convert(Ragged(tmp_path / "killed"), tmp_path / "ray", jobs=2, executor="ray", **SMALL)
    assert (tmp_path / "killed").exists()
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")


def test_workers_killed_from_outside_change_nothing(tmp_path, monkeypatch):
    pools, start = [], Pool.__init__

    def noted(self, *args, **options):
        start(self, *args, **options)
        pools.append(self)

    monkeypatch.setattr(Pool, "__init__", noted)
    kills = []

    def progress(done, total):
        if done // 1000 in (8, 16, 24):
            pid = next(pid for pid in pools[-1].pids if pid)
            kills.append(pid)
            threading.Timer(0.01, kill, [pid]).start()

    def kill(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    fl.convert(Ragged(), tmp_path / "one", **SMALL)
    fl.convert(Ragged(seconds=0.02), tmp_path / "ray", jobs=2, executor="ray", progress=progress, **SMALL)
    assert len(kills) == 3
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")


def test_another_executor_goes_on_where_one_was_interrupted(tmp_path):
    fl.convert(Ragged(), tmp_path / "one", **SMALL)

    class Enough(Exception):
        pass

    def stop(done, total):
        if done >= 25_000:
            raise Enough

    seen = []
    for first, second in (("ray", "local"), ("local", "ray")):
        place = tmp_path / f"{first}-{second}"
        with pytest.raises(Enough):
            fl.convert(Ragged(), place, jobs=2, executor=first, progress=stop, **SMALL)
        fl.convert(Ragged(), place, jobs=2, executor=second, progress=lambda *at: seen.append(at[0]), **SMALL)
        assert bytes_of(place) == bytes_of(tmp_path / "one")
        assert min(seen) > 10_000  # the complete parts were not read again
        seen.clear()


def test_an_unreadable_sequence_or_file_is_the_same_error(tmp_path):
    write_ctf(tmp_path / "t.ctf", x=[np.ones((2, 3), np.float32)] * 500)
    text = (tmp_path / "t.ctf").read_bytes()
    (tmp_path / "t.ctf").write_bytes(text[:3000] + b"|x 1 2 oops\n" + text[3000:])
    said = []
    for executor in ("local", "ray"):
        for source in (Ragged(bad=[77]), Ragged(cut=30), tmp_path / "t.ctf"):
            with pytest.raises(DataError) as caught:
                fl.convert(source, tmp_path / "store", executor=executor)
            said.append(str(caught.value))
    assert said[:3] == said[3:]
    assert not [path for path in tmp_path.iterdir() if "store" in path.name]


def test_paths_of_several_formats(tmp_path):
    write_ctf(tmp_path / "t.ctf", x=[np.full((1 + i % 3, 2), i, np.float32) for i in range(300)])
    np.save(tmp_path / "x.npy", np.arange(3000.0).reshape(1000, 3))
    fl.convert(tmp_path / "x.npy", tmp_path / "store")
    for name in ("t.ctf", "x.npy", "store"):
        for executor in ("local", "ray"):
            fl.convert(tmp_path / name, tmp_path / f"{name}-{executor}", executor=executor, jobs=2, **SMALL)
        assert bytes_of(tmp_path / f"{name}-local") == bytes_of(tmp_path / f"{name}-ray"), name


def test_a_dataset_is_the_same_store_random_augmentation_included(tmp_path):
    for kind, more in {"one": {}, "local": {"jobs": 2}, "ray": {"jobs": 2, "executor": "ray"}}.items():
        fl.convert(Augmented(300), tmp_path / kind, streams=["index", "x"], chunk_bytes=2000, part_bytes=4000, **more)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "local") == bytes_of(tmp_path / "ray")


def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="executor 'local' or 'ray', got 'dask'"):
        fl.convert(Ragged(), tmp_path / "a", executor="dask")
    with pytest.raises(ValueError, match='expected executor="local" for an IterableDataset'):
        fl.convert(iter([1, 2]), tmp_path / "a", executor="ray")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path, joining, monkeypatch):
    for name, value in joining.items():
        monkeypatch.setitem(shell.ENV, name, value)
    np.save(tmp_path / "x.npy", np.arange(30.0).reshape(10, 3))
    fl.convert(tmp_path / "x.npy", tmp_path / "one")
    shell.feedline("convert", tmp_path / "x.npy", tmp_path / "ray", "--executor", "ray", "--jobs", 2)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "ray")
    refused = shell.feedline("convert", tmp_path / "x.npy", tmp_path / "b", "--executor", "dask", code=2)
    assert "--executor local or ray" in refused.stderr


def test_a_bucket_gets_the_same_store(tmp_path, monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    fl.convert(Rows(), tmp_path / "store", **remote.SMALL)
    with ObjectStore() as store:
        store.put("b/other", b"not ours")
        how = {"storage_options": store.s3(), "deadline_s": 20.0, **remote.SMALL}
        fl.convert(Rows(), "s3://b/out/store", jobs=2, executor="ray", **how)
        assert remote.objects_of(store) == bytes_of(tmp_path / "store")
        assert store.unfinished() == []
