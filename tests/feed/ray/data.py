"""Datasets and tasks for workers of Ray, at the top of a module so that they find them."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from tests.feed.workers.tasks import Task
from tests.laws.items import Augmented, Counting, torch_draws


class Slow(Augmented):
    """Augmented items that take some milliseconds."""

    def __getitem__(self, index):
        time.sleep(0.003)
        return super().__getitem__(index)


class Wide(Augmented):
    """Item ``i`` is large, and all ``i``; who reads it leaves a note in a folder."""

    def __init__(self, n, nbytes, folder):
        super().__init__(n)
        self.nbytes, self.folder = nbytes, str(folder)

    def __getitem__(self, index):
        Path(self.folder, str(index)).touch()
        return np.full(self.nbytes, index % 256, np.uint8)


class Failing(Augmented):
    """One item cannot be read."""

    def __getitem__(self, index):
        if index == 17:
            raise LookupError(f"planted in {index}")
        return super().__getitem__(index)


class Deadly(Augmented):
    """One item kills its worker each time."""

    def __getitem__(self, index):
        if index == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Locked(Augmented):
    """It holds what cannot be pickled."""

    def __init__(self, n):
        super().__init__(n)
        self.lock = threading.Lock()


class Drawing(Counting):
    """Iterated, with a state; items draw from the global generators."""

    def item(self, i):
        return i, np.array([np.random.random(), *torch_draws()])


class Sharing:
    """Iterated: each worker its own part."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        import torch

        info = torch.utils.data.get_worker_info()
        yield from range(info.id if info else 0, self.n, info.num_workers if info else 1)


class Noting(Task):
    """A task that notes every unit that it begins, in a file of its own."""

    def __init__(self, folder):
        self.folder = str(folder)

    def big(self, number, nbytes):
        Path(self.folder, str(number)).touch()
        return np.full(nbytes, number % 256, np.uint8)

    def once(self, number, seconds):
        """Note each time that it is run."""
        with open(Path(self.folder, str(number)), "ab") as file:
            file.write(b".")
        time.sleep(seconds)
        return number
