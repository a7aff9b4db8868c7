"""Readers of objects of one name, in places of like names, over one cache. Killed as in `killed_fetchers`."""

from __future__ import annotations

import numpy as np

from tests.torture.case import Case
from tests.torture.scenarios.killed_fetchers import KINDS, KilledFetchers, files_of

PLACES = ("data_1", "data__1", "data-1", "data.1")
"""Buckets whose names differ in what a simple name of a folder would not have."""


class KilledNeighbours(KilledFetchers):
    """Each place has its own part of the cache: no bytes of a neighbour are ever delivered or kept for it."""

    name = "killed-neighbours"
    asks = "are places of like names kept apart in a cache, through kills?"
    kinds = tuple(kind for kind in KINDS if kind != "store")

    def write(self, case: Case, kind: str) -> tuple[str | list[str], dict[str, bytes]]:
        rng = np.random.default_rng(case.rng.randrange(1 << 32))
        places = case.rng.sample(PLACES, case.rng.randint(2, 3))
        objects = files_of(case, kind, rng, [f"{place}/x.{kind}" for place in places])
        return list(objects), objects
