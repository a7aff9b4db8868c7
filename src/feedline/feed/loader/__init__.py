"""One door to data by index: `DataLoader`, torch's constructor over feedline's order, clock and workers.

Inside: ``loader → iterator → factory → corpus | staged → batches → executors | iterable | sampling | options | sweeps →
fetch | gather | state → collate | random | order``. torch is reached through `interop` alone, and only where it is
installed.
"""

from feedline.feed.loader.loader import DataLoader
from feedline.feed.loader.random import sample_rng
from feedline.feed.loader.stats import LoaderStats

__all__ = ["DataLoader", "LoaderStats", "sample_rng"]
