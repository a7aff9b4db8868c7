"""torch's DataLoader and ours, exchanged without other changes, and small data that pickles to any worker.

A test with both checks behaviour on which a program may rely with either class. With torch's (``make prove``) it
proves that the test is right, with ours that the exchange is.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

import feedline

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import Dataset, IterableDataset, get_worker_info  # noqa: E402

from tests.warm import FEW, Python  # noqa: E402

TORCH = torch.utils.data.DataLoader
# torch waits 5 s for each worker of a loop that failed, and workers look as rarely for a parent that has gone.
for module in (insides := torch.utils.data._utils), insides.worker:
    module.MP_STATUS_CHECK_INTERVAL = 0.3


#: torch's runs take as long as ours, and test nothing of ours: ``make prove`` runs both.
LOADERS = (TORCH, feedline.DataLoader) if os.environ.get("FEEDLINE_PROVE") else (feedline.DataLoader,)
both = pytest.mark.parametrize(
    "Loader", [pytest.param(loader, id=loader.__module__.split(".")[0]) for loader in LOADERS]
)
#: In this process, and in two others.
workers = pytest.mark.parametrize("workers", [0, 2])

#: Limit on the duration of anything in another process, far above the actual one.
PATIENCE = 75.0

Pair = namedtuple("Pair", ["data", "label"])


def flat(batches) -> list:
    """The samples of batches of numbers, as a list of Python numbers."""
    return [value for batch in batches for value in torch.as_tensor(batch).reshape(-1).tolist()]


def wait_until(done) -> bool:
    """Whether ``done()`` comes true before patience ends."""
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    """Whether a process runs. One that has ended, but was not waited for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Program:
    """A separate program in which `Loader` is the class tested."""

    def __init__(self, Loader, script: str, folder: Path, *arguments: str) -> None:
        # A file, not -c: workers that are not forked import the program.
        path = folder / "program.py"
        head = f"from {Loader.__module__} import {Loader.__qualname__} as Loader\n"
        path.write_text(head + textwrap.dedent(script), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
        self.process = Python(
            [str(path), *arguments],
            imported=FEW,
            finalized=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def output(self) -> str:
        """All it prints, once it has ended well."""
        out, errors = self.process.communicate(timeout=2 * PATIENCE)
        assert self.process.returncode == 0, errors
        return out

    def line(self) -> str:
        """The next line it prints."""
        return self.process.stdout.readline()


class Numbers(Dataset):
    """Sample ``i`` is the number ``i``."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index):
        return index


class Function(Numbers):
    """Sample ``i`` is ``function(i)``, a function at the top of a module."""

    def __init__(self, function, n: int = 10) -> None:
        super().__init__(n)
        self.function = function

    def __getitem__(self, index):
        return self.function(index)


class Stream(IterableDataset):
    """0 … n-1, of which each worker takes its share, as torch's documentation advises."""

    def __init__(self, n: int = 10, length: int | None = None) -> None:
        self.n, self.length = n, length

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.n, step))

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("no length was given")
        return self.length


class Whole(IterableDataset):
    """0 … n-1 in every worker."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


class Endless(IterableDataset):
    """0, 1, … in every worker."""

    def __iter__(self):
        return itertools.count()


def pid_of(index) -> int:
    """Who makes this sample."""
    return os.getpid()


def draw(index):
    """Draws of the three global generators, each a float64."""
    return [torch.rand((), dtype=torch.float64), np.random.random(), random.random()]


def same(samples):
    """A `collate_fn` that does nothing."""
    return samples


class MyError(Exception):
    """An exception of one's own."""
