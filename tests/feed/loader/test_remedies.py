"""What `stats().advice` says of loops: from figures, and from datasets planted to be slow."""

from __future__ import annotations

import time

import numpy as np
import pytest

import feedline as fl
from feedline.feed.loader import LoaderStats
from feedline.feed.loader.figures.remedies import remedy
from feedline.feed.workers import WorkerStats


def advice(cores=4, workers=(), **figures):
    """The advice for figures of 100 batches in seconds, and the busy seconds of workers."""
    members = [WorkerStats(index=i, seconds=seconds) for i, seconds in enumerate(workers)]
    return remedy(LoaderStats(batches=100, workers=members, **figures), cores)


def test_a_loop_that_hardly_waits():
    said = advice(waiting=0.5, consuming=9.5, reading=30.0, computing=30.0)
    assert said.startswith("The loop is the limit: it waits for data 5% of its time.")


def test_few_batches_give_no_advice():
    assert remedy(LoaderStats(batches=3, waiting=9.0, consuming=1.0), 4) == (
        "Read more batches: 3 are too few for advice."
    )


@pytest.mark.parametrize(
    ("figures", "workers", "number"),
    [
        ({"consuming": 10.0, "reading": 8.0}, (), 1),
        ({"consuming": 10.0, "reading": 25.0}, (), 3),
        ({"consuming": 10.0, "reading": 20.0, "collating": 20.0}, (), 4),
        ({"consuming": 10.0, "reading": 25.0}, (12.0, 13.0), 3),
        ({"consuming": 10.0, "reading": 19.0}, (9.5, 9.5), 3),  # busy, though two would do
    ],
)
def test_as_many_workers_as_keep_up(figures, workers, number):
    computing = figures["reading"] + figures.get("collating", 0.0)
    said = advice(waiting=2.5, computing=computing, workers=workers, **figures)
    assert said.startswith(
        f"Add workers: num_workers={number}. The dataset and collate_fn take {10 * computing:.3g} ms"
    )
    assert said.endswith("for a batch, the loop 100 ms.")


def test_no_more_workers_than_cores():
    """Unless items wait for something else than a processor."""
    figures = {"waiting": 90.0, "consuming": 10.0, "reading": 100.0}
    said = advice(computing=100.0, **figures)
    assert said.startswith("Add workers: num_workers=4.")
    assert "These workers do not keep up either, so also convert the dataset once" in said
    assert "decode pictures natively, with feedline.images." in said
    said = advice(computing=10.0, **figures)
    assert said.startswith("Add workers: num_workers=10.")
    assert "too few" not in said


def test_cheaper_items_where_all_cores_work():
    figures = {"waiting": 90.0, "consuming": 10.0, "workers": (95.0,) * 4, "reading": 380.0}
    said = advice(computing=380.0, **figures)
    assert said.startswith("Convert the dataset once, with fl.convert, if items are the same in every epoch, or decode")
    assert said.endswith("All 4 workers are busy.")
    said = advice(computing=90.0, cores=1, **figures)  # more workers than cores, each of which waits for its turn
    assert said.startswith("Convert the dataset once, with fl.convert, if items are the same in every epoch, or decode")
    said = advice(computing=10.0, cores=1, **figures)
    assert said.startswith("Convert the dataset once, with fl.convert, so that items do not wait for files")


def test_a_cheaper_collate_fn():
    said = advice(waiting=90.0, consuming=10.0, workers=(95.0,) * 4, reading=80.0, collating=300.0, computing=380.0)
    assert said.startswith("Make collate_fn cheaper")


def test_a_loop_that_does_nothing():
    assert advice(waiting=1.0, consuming=0.0, reading=1.0, computing=1.0).startswith("Add workers: num_workers=4.")


def test_workers_that_start():
    said = advice(waiting=5.0, starting=4.0, consuming=5.0, workers=(2.0, 2.0), reading=4.0, computing=4.0)
    assert said.startswith("The start of workers is the limit: 80% of the waiting was for first batches.")
    assert "persistent_workers=True" in said
    assert "loader.prefetch()" in said


def test_workers_that_are_idle_while_the_loop_waits():
    said = advice(waiting=5.0, consuming=5.0, workers=(4.0, 4.0), reading=8.0, computing=8.0)
    assert "workers are busy 40% of the time" in said
    assert "in_order=False" in said


def test_copies_to_a_device():
    said = advice(waiting=5.0, transfer=4.0, consuming=5.0, workers=(4.0,), reading=4.0, computing=4.0)
    assert said.startswith("Pinning and copying to the device are the limit, with 40 ms for a batch.")


def test_batches_that_no_python_makes():
    assert advice(waiting=5.0, reading=4.0, consuming=5.0).startswith("Reading and decoding files is the limit")
    assert advice(waiting=5.0, consuming=5.0).startswith("Copying is the limit, with 50 ms for a batch.")


# ---- planted ------------------------------------------------------------------------------------------


class Planted:
    """Items that sleep or compute for some milliseconds."""

    def __init__(self, sleeping=0.0, computing=0.0):
        self.sleeping, self.computing = sleeping, computing

    def __len__(self):
        return 24

    def __getitem__(self, i):
        time.sleep(self.sleeping / 1e3)
        began = time.thread_time()
        while time.thread_time() - began < self.computing / 1e3:
            pass
        return np.float32(i)


def advised(dataset, work_ms=0.0, **options):
    """The advice after a loop that takes at least so long for a batch."""
    with fl.DataLoader(dataset, batch_size=4, **options) as loader:
        for _ in loader:
            if work_ms:
                time.sleep(work_ms / 1e3)
        stats = loader.stats()
        assert stats.advice in repr(stats)
        assert stats.to_json()["advice"] == stats.advice
        return stats.advice


def test_a_slow_loop():
    assert advised(np.zeros((24, 2)), work_ms=50).startswith("The loop is the limit")


@pytest.mark.parametrize("slow", [{"sleeping": 5}, {"computing": 5}])
def test_a_slow_dataset(slow):
    assert advised(Planted(**slow), work_ms=5).startswith("Add workers")


def test_a_dataset_that_keeps_all_cores_busy(monkeypatch):
    """One worker, where the process may use one core. The second sweep of all has no start."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    with fl.DataLoader(Planted(computing=8), batch_size=1, num_workers=1) as loader:
        assert len([*loader, *loader]) == 48
        stats = loader.stats()
    assert 0 < stats.starting < stats.waiting
    assert 0 < stats.computing <= stats.workers[0].seconds
    assert "convert the dataset once" in stats.advice.lower()


def test_a_slow_collate_fn(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    told = advised(Planted(), collate_fn=lambda items: Planted(computing=30)[len(items)], num_workers=1)
    assert "make collate_fn cheaper" in told.lower()


def test_arrays_that_a_loop_outruns():
    assert advised(np.zeros((24, 2))).startswith("Copying is the limit")
