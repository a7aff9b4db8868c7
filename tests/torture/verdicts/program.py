"""`Program`: the code of a training loop, and the verdict on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROW = np.arange(256, dtype=np.float32)


@dataclass(frozen=True)
class Place:
    """Where a program runs.

    Attributes:
        folder: folder on a disk, for its data. Empty at first, and the same for all ranks.
        mended: whether the setting of the verdict is changed as it says.
        rank: rank of the process.
    """

    folder: Path
    mended: bool
    rank: int


@dataclass(frozen=True)
class Program:
    """A program to examine.

    Attributes:
        name: for people and the command line.
        run: the program.
        stage: stage of the first finding. Empty: a healthy program, without findings.
        says: a part of its reason, its evidence or its setting.
        rank: rank that it names.
        ranks: number of processes.
        around: context in which its processes run, with the folder of each.
        lacks: returns what this machine lacks for it, or None.
        mends: whether ``mended=True`` changes the setting, so that the gain can be compared.
    """

    name: str
    run: Callable[[Place], object]
    stage: str = ""
    says: tuple[str, ...] = ()
    rank: int = 0
    ranks: int = 1
    around: Callable[[Path], AbstractContextManager[object]] = nullcontext
    lacks: Callable[[], str | None] = lambda: None
    mends: bool = False


class Items:
    """A dataset of ``count`` items, ``read(index)`` each."""

    def __init__(self, count: int, read: Callable[[int], Any]) -> None:
        self.count, self.read = count, read

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def wait(seconds: float) -> np.ndarray:
    """Return an item that a disk or a network delivers after some time."""
    time.sleep(seconds)
    return ROW


def compute(seconds: float) -> np.ndarray:
    """Return an item that takes processor time in Python."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return ROW


def loader_of(torch: bool) -> Any:
    """Return the class of loaders: torch's own, or feedline's."""
    if torch:
        from torch.utils.data import DataLoader

        return DataLoader
    import feedline as fl

    return fl.DataLoader


def train(batches: Iterable[Any], step_s: float, sweeps: int = 1) -> None:
    """Loop over batches, with steps of equal length on a device."""
    began = time.monotonic()
    for _ in range(sweeps):
        for _ in batches:
            time.sleep(step_s)
    print(f"seconds {time.monotonic() - began:.4f}", flush=True)


def cores() -> int:
    """Return the number of processors of this process."""
    return len(os.sched_getaffinity(0))
