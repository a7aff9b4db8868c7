"""What a module's programs were fed in each cell, by `tests.frameworks.at_once`, and how cells are compared."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.at_once import WORKERS, WORLDS
from tests.warm import run

worlds = pytest.mark.parametrize("world", WORLDS)
numbers_of_workers = pytest.mark.parametrize("workers", WORKERS)


class Cells:
    """Everything that the programs of a module were fed.

    Args:
        module: of this package.
        folder: for the files of the ranks.
    """

    def __init__(self, module: str, folder: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1"}
        ran = run(
            ["-m", "tests.frameworks.at_once", module, str(folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        self._folder = folder

    @functools.cache  # noqa: B019  # lives as long as the module's tests
    def _rank(self, world: int, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / f"{world}-{rank}.json").read_text())
        return found

    def of(self, program: str, loader: str, world: int, what: str) -> list[Any]:
        """Of each rank: the batches of each epoch, as (samples, everything else)."""
        return [self._told(world, rank, program, loader, what)["epochs"] for rank in range(world)]

    def left(self, program: str, world: int, workers: int) -> list[Any]:
        """The same for our loader after the place of the state."""
        whole = self.of(program, "feedline", world, f"fresh {workers}")
        taken = self._told(world, 0, program, "feedline", f"fresh {workers}")["taken"]
        return [[first[taken:], *later] for first, *later in whole]

    def _told(self, world: int, rank: int, program: str, loader: str, what: str) -> dict[str, Any]:
        found: dict[str, Any] = self._rank(world, rank)[f"{program} {loader}"][what]
        return found


def samples(told: list[Any]) -> list[Any]:
    """Which samples each rank got, in their batches."""
    return [[[batch[0] for batch in epoch] for epoch in rank] for rank in told]


def steps(told: list[Any]) -> list[Any]:
    """How many batches each rank got in each epoch."""
    return [[len(epoch) for epoch in rank] for rank in told]


def counts(told: list[Any]) -> list[Any]:
    """For each epoch how often samples came on all ranks together."""
    epochs = zip(*samples(told), strict=True)
    return [sorted(Counter(i for rank in epoch for batch in rank for i in batch).values()) for epoch in epochs]


def by_epoch_alone(cells: Cells, program: str, world: int) -> bool:
    """Whether torch's own second epoch is the same in a run that begins with it."""
    whole, second = (samples(cells.of(program, "torch", world, what)) for what in ("fresh 0", "second 0"))
    return [epochs[1] for epochs in whole] == [epochs[0] for epochs in second]
