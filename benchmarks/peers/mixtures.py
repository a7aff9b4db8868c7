"""How fast are minibatches of a mixture: four corpora of 784 float32 rows, 4 to 3 to 2 to 1, 256 rows a batch?

Unit: samples a second of wall time, from the first batch on. Measured: 40,000 rows, 126 MB, in each peer's own format
in the page cache. The sizes of the corpora are as their weights, so that an epoch has each row once. A peer whose
mixture is drawn at random cannot have that. Each corpus is shuffled as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import data, mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, plain
from benchmarks.peers.map_style import SEED

PIXELS, BATCH = 784, 256
WEIGHTS = (4, 3, 2, 1)


def part(number: int, count: int) -> Iterator[Block]:
    """Rows of one corpus. Their numbers follow those of the corpora before it."""
    total = sum(WEIGHTS)
    begin, end = (count * sum(WEIGHTS[:k]) // total for k in (number, number + 1))
    rng = np.random.default_rng(number)
    for start in range(begin, end, 10_000):
        ids = np.arange(start, min(start + 10_000, end))
        yield {"x": rng.random((len(ids), PIXELS), np.float32), "id": ids}


def folders(folder: Path) -> list[Path]:
    """The folder of each corpus."""
    return [folder / f"part-{number}" for number in range(len(WEIGHTS))]


def making(form: str) -> Callable[[Path, int], None]:
    """Return a function that writes the corpora in a format."""

    def make(folder: Path, count: int) -> None:
        for number, path in enumerate(folders(folder)):
            data.makers(lambda count, number=number: part(number, count), form)[form](path, count)

    return make


class Rows:
    """A map-style dataset over a mapped array and the numbers of its rows."""

    def __init__(self, folder: Path) -> None:
        self.x, self.id = plain(folder), np.load(folder / "id.npy")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self.x[index]), int(self.id[index])


def stacked(samples: Sequence[Any]) -> Any:
    """A batch of rows, in NumPy."""
    return np.stack([sample[0] for sample in samples]), np.array([sample[1] for sample in samples])


# ---- contenders ----------------------------------------------------------------------------------------------


def ours(given: Given) -> Opened:
    """A loader over a mixture of stores, which ends when all of them have ended."""
    import pyarrow  # noqa: F401

    import feedline as fl

    def opened() -> Any:
        corpora = {path.name: fl.open_corpus(path / "store") for path in folders(given.data)}
        weights = dict(zip(corpora, WEIGHTS, strict=True))
        mixture = fl.Mixture(corpora, weights, when_empty="drop")
        return fl.DataLoader(mixture, batch_size=BATCH, shuffle=True, seed=SEED, num_workers=given.workers)

    return opened


def grain_mix(threads: int) -> Callable[[Given], Opened]:
    """Grain's mix of shuffled sources. Workers are processes, or threads that read samples ahead."""

    def start(given: Given) -> Opened:
        import grain

        def opened() -> Any:
            parts = [grain.MapDataset.source(Rows(path)).shuffle(seed=SEED) for path in folders(given.data)]
            mixed = grain.MapDataset.mix(parts, weights=[float(weight) for weight in WEIGHTS])
            batches = mixed.batch(BATCH, batch_fn=stacked).to_iter_dataset(grain.ReadOptions(threads, 4 * threads))
            if given.workers and not threads:
                batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given.workers))
            return batches

        return opened

    return start


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming over streams with proportions."""
    streaming = mosaic.imported()

    def opened() -> Any:
        total = sum(WEIGHTS)
        streams = [
            streaming.Stream(local=str(path / "mds"), proportion=weight / total)
            for path, weight in zip(folders(given.data), WEIGHTS, strict=True)
        ]
        rows = streaming.StreamingDataset(streams=streams, shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        return streaming.StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


WORKLOAD = Workload(
    title="a mixture: four corpora, 784 floats, 256 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours, form="store"),
        Contender("Grain", grain_mix(0), needs=("grain",), delivers="NumPy"),
        Contender("Grain", grain_mix(2), "threads", needs=("grain",), workers=(2,), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",)),
    ],
    makers={form: making(form) for form in ("raw", "store", "MDS")},
    count=(40_000, 4_000),
    batch=BATCH,
    absent={
        "HF datasets": "it draws the corpus of each sample at random, so that no epoch has every sample once.",
        "LitData": "it draws the corpus of each sample at random, so that no epoch has every sample once.",
    },
)
