"""Datasets for loaders, importable by worker processes without torch."""

from __future__ import annotations

import os
import random
import time

import numpy as np


class Augmented:
    """Item ``i`` is ``i`` and its random numbers. Some are slow.

    Args:
        n: items.
        slow: seconds that every 13th item takes.
        deadly: the item whose reader is killed, once. ``marker`` exists after that.
        marker: path of a file.
        wide: numbers in an item.
    """

    def __init__(self, n: int, slow: float = 0.0, deadly: int | None = None, marker: str = "", wide: int = 3) -> None:
        self.n, self.slow, self.deadly, self.marker, self.wide = n, slow, deadly, marker, wide

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        if not 0 <= index < self.n:
            raise IndexError(index)
        if self.slow and index % 13 == 5:
            time.sleep(self.slow)
        if index == self.deadly and not os.path.exists(self.marker):
            open(self.marker, "w").close()
            os.kill(os.getpid(), 9)
        drawn = [index, random.random(), np.random.standard_normal()]
        return index, np.resize(np.array(drawn), self.wide)


class Raising(Augmented):
    """One of its items raises."""

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        if index == self.n // 2:
            raise ValueError("planted")
        return super().__getitem__(index)


def contents(batch: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, str]]:
    """Items of a collated batch: number and content."""
    numbers, rows = (np.asarray(part) for part in batch)
    return [(int(i), row.tobytes().hex()) for i, row in zip(numbers, rows, strict=True)]
