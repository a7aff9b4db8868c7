"""Figures of torch's own loaders, compared with clocks of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


class Slow:
    """Items that a disk delivers slowly."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        time.sleep(2e-3)
        return np.full(4, index)


def timed(loader, step_s=3e-3, sweeps=1):
    """Loop over a loader. Return its batches, and the seconds of waits and of steps."""
    batches, waits, steps = [], 0.0, 0.0
    for _ in range(sweeps):
        iterator = iter(loader)
        while True:
            began = time.perf_counter()
            batch = next(iterator, None)
            waits += time.perf_counter() - began
            if batch is None:
                break
            began = time.perf_counter()
            time.sleep(step_s)
            steps += time.perf_counter() - began
            batches.append(batch.numpy()[:, 0].tolist())
    return batches, waits, steps


@pytest.mark.parametrize("workers", [0, 2])
def test_figures_are_those_of_the_programs_own_clocks(workers):
    loader = DataLoader(Slow(), batch_size=8, num_workers=workers)
    before = timed(loader)[0]
    with fl.doctor() as examination:
        batches, waits, steps = timed(loader, sweeps=2)
    feed = examination.record.feed
    assert batches == before + before
    assert feed.facts["feed"] == "torch.utils.data.DataLoader"
    assert (feed.facts["workers"], feed.starts) == (workers, 2)
    assert feed.step.units == 24
    # The program's clocks also see what is around the call: all is within them.
    assert 0 < feed.waiting <= waits
    assert feed.step.seconds == pytest.approx(steps, rel=0.2, abs=0.1)
    assert feed.stage("fetch").waiting > feed.stage("decode").waiting


def test_torch_is_left_as_it_was():
    methods = _BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__
    with fl.doctor():
        assert _BaseDataLoaderIter.__next__ is not methods[1]
    assert (_BaseDataLoaderIter.__init__, _BaseDataLoaderIter.__next__) == methods


def test_an_iterator_may_outlive_the_examination():
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=2)
    with fl.doctor():
        iterator = iter(loader)
        first = next(iterator)[0].tolist()
    assert first + [number for (batch,) in iterator for number in batch.tolist()] == list(range(12))


def test_a_loader_is_timed_from_its_import_on():
    """The program imports torch after the examination has begun, and loops at once."""
    code = """
import feedline as fl
with fl.doctor() as examination:
    from torch.utils.data import DataLoader
    for _ in DataLoader(range(64), batch_size=4):
        pass
print(examination.record.feed.step.units, examination.record.feed.starts)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["16", "1"], done.stderr
