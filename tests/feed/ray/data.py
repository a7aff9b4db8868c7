"""Datasets and tasks for workers of Ray, at the top of a module so that they find them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from tests.feed.workers.tasks import Task
from tests.laws.items import Augmented, Counting, torch_draws


class Locked(Augmented):
    """It holds what cannot be pickled."""

    def __init__(self, n):
        super().__init__(n)
        self.lock = threading.Lock()


class Drawing(Counting):
    """Iterated, with a state. Items draw from the global generators."""

    def item(self, i):
        return i, np.array([np.random.random(), *torch_draws()])


class Noting(Task):
    """A task that records every unit that it begins, in a separate file."""

    def __init__(self, folder):
        self.folder = str(folder)

    def big(self, number, nbytes):
        Path(self.folder, str(number)).touch()
        return np.full(nbytes, number % 256, np.uint8)

    def once(self, number):
        """Note each time that it is run."""
        with open(Path(self.folder, str(number)), "ab") as file:
            file.write(b".")
        return number
