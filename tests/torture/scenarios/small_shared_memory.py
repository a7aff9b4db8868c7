"""Loaders with worker processes where /dev/shm is small or full."""

from __future__ import annotations

import os
from pathlib import Path

import feedline as fl
from tests.forked import Forked
from tests.torture import items
from tests.torture.arena import mount_memory, own_mounts
from tests.torture.case import Case, Refused
from tests.torture.scenario import Scenario
from tests.torture.scenarios.few_descriptors import items_of


class SmallSharedMemory(Scenario):
    """The right items, or an error."""

    name = "small-shared-memory"
    asks = "do loaders do without room in /dev/shm, or say so?"
    seconds = 90.0

    def missing(self) -> str | None:
        if os.geteuid() != 0:
            return "only root may mount a small /dev/shm"
        child = Forked(lambda: own_mounts() and mount_memory(Path("/dev/shm"), "1m"))
        return "mounts are refused here" if child.status() else None

    def run(self, case: Case) -> None:
        own_mounts()
        size = case.rng.choice([4096, 8192, 64 << 10, 1 << 20])
        mount_memory(Path("/dev/shm"), str(size))
        full = case.rng.random() < 0.5
        if full:
            try:
                Path("/dev/shm/full").write_bytes(bytes(2 * size))
            except OSError:
                pass
        order = {"seed": case.rng.randrange(1 << 64), "shuffle": True}
        dataset = items.Augmented(60, wide=case.rng.choice([3, 50_000]))
        context = "fork" if case.rng.random() < 0.9 else "spawn"
        workers = {"num_workers": 2, "workers": "process", "multiprocessing_context": context}
        expected = items_of(fl.DataLoader(dataset, batch_size=5, **order))
        room = f"{size} bytes of /dev/shm{', full' if full else ''}"
        what = f"a loader, {context}, items of {dataset.wide} numbers, {room}"

        def read() -> list[tuple[int, str]]:
            return items_of(fl.DataLoader(dataset, batch_size=5, **workers, **order))

        got = case.attempt(what, read, (fl.FeedlineError, MemoryError))
        if not isinstance(got, Refused):
            case.compare(what, expected, got)
