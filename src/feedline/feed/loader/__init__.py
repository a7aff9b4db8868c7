"""Map-style and iterable datasets: `DataLoader`, torch's constructor over feedline's order, state and workers.

Inside: ``loader → iterator | samplers → epoch → corpus | staged → sweeps → batches → executors | iterable | options |
sampling → fetch | gather | state → draws → collate | random | order → turns``. torch is reached only through
`interop`, and only if it is installed.
"""

from feedline.feed.loader.figures.loader_stats import LoaderStats
from feedline.feed.loader.loader import DataLoader
from feedline.feed.loader.sample_seeds import sample_rng

__all__ = ["DataLoader", "LoaderStats", "sample_rng"]
