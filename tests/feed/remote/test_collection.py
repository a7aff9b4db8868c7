"""Garbage of a library with one lock, freed by whatever thread collects it, while others wait for bytes."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

from feedline.concurrency.collection import no_collection
from tests.servers.object_store import ObjectStore

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

READ = """
import gc, io, sys
import h5py
import numpy as np
import feedline as fl

def litter():
    for i in range(20):
        file = h5py.File(io.BytesIO(), "w")
        cycle = [file.id, file.create_group("a").id]
        cycle.append(cycle)

address, cache, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
gc.set_threshold(5)
for round in range(8):
    remote = fl.Remote(cache=f"{cache}/{round}", storage_options=options)
    corpus = fl.open_corpus(address, remote=remote)
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False, threads=2)
    for minibatch in source.minibatches(16):
        litter()
    corpus.close()
print("read")
"""


def test_readers_of_remote_hdf5_survive_garbage_of_its_library(tmp_path):
    """The library takes its lock to free an object, and holds it while it reads: from a thread that frees such objects
    no bytes would come."""
    (tmp_path / "root" / "b").mkdir(parents=True)
    with h5py.File(tmp_path / "root" / "b" / "a.h5", "w") as file:
        numbers = np.random.default_rng(0).random((256, 256)).astype(np.float32)
        file.create_dataset("x", data=numbers, chunks=(16, 256), compression="gzip")
    with ObjectStore(tmp_path / "root") as store:
        arguments = "s3://b/a.h5", str(tmp_path / "cache"), repr(store.s3())
        ran = subprocess.run([sys.executable, "-c", READ, *arguments], capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stdout) == (0, "read\n"), ran.stderr[-2000:]


def test_nothing_is_collected_in_a_pause():
    threads = []

    def allocate():
        for _ in range(5000):
            cycle = []
            cycle.append(cycle)

    def note(phase, about):
        threads.append(threading.get_ident())

    with no_collection(), no_collection():
        gc.callbacks.append(note)
        thread = threading.Thread(target=allocate)
        thread.start()
        allocate()
        thread.join()
        gc.callbacks.remove(note)
        assert not gc.isenabled()
    assert threads == []
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_pause_begins_after_the_collection_of_another_thread():
    entered, leave = threading.Event(), threading.Event()

    class Slow:
        def __del__(self):
            entered.set()
            leave.wait(0.2)
            leave.set()

    def collect():
        cycle = [Slow()]
        cycle.append(cycle)
        del cycle
        gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    assert entered.wait(20)
    with no_collection():
        assert leave.is_set()
    thread.join()
