"""How long until the first batch of ten million samples, shuffled, and how much memory do they take?

Unit: seconds on the wall from the constructor to the first batch, and MB of private and shared memory of all processes.
Measured: 4 floats a sample from one mapped array, 256 a batch. Everything is imported before the clock starts, except
by workers that are started afresh. The peers differ mostly in how they keep the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain
from benchmarks.peers.map_style import SEED, as_it_is, grain, nodes, ours, spdl, torch_loader

BATCH, WIDTH = 256, 4


def blocks(count: int) -> Iterator[Block]:
    """Rows of 4 floats."""
    rng = np.random.default_rng(4)
    for start in range(0, count, 1_000_000):
        ids = np.arange(start, min(start + 1_000_000, count))
        yield {"x": rng.random((len(ids), WIDTH), np.float32), "id": ids}


class Rows:
    """A row a call, or a batch."""

    def __init__(self, folder: Path) -> None:
        self.x = plain(folder)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self.x[index]), index

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, Any]:
        import torch

        chosen = np.asarray(indices)
        return torch.from_numpy(np.take(self.x, chosen, axis=0)), torch.from_numpy(chosen)


def hugging_face(given: Given) -> Opened:
    """``datasets``, which writes down the order."""
    import datasets

    class Epochs:
        """A new permutation each time."""

        def __init__(self) -> None:
            self.rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")

        def __iter__(self) -> Iterator[Any]:
            return iter(self.rows.shuffle(seed=SEED, keep_in_memory=True).iter(BATCH))

    return Epochs


WORKLOAD = Workload(
    title="a first batch: of ten million samples, and memory: 4 floats, 256 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(Rows, BATCH, as_it_is)),
        Contender("torch DataLoader", torch_loader(Rows, BATCH, as_it_is)),
        Contender("StatefulDataLoader", torch_loader(Rows, BATCH, as_it_is, stateful=True), needs=("torchdata",)),
        Contender("torchdata.nodes", nodes(Rows, BATCH, as_it_is), needs=("torchdata",)),
        Contender("Grain", grain(Rows, BATCH), needs=("grain",), delivers="NumPy"),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",), workers=(0,)),
        Contender("SPDL", spdl(Rows, BATCH, as_it_is), needs=("spdl",)),
    ],
    makers=makers(blocks, "raw", "Arrow"),
    count=(10_000_000, 200_000),
    batch=BATCH,
    by="first_s",
    seconds=0.4,
    absent={
        "MosaicML Streaming, LitData, WebDataset, tf.data, Ray Data": "writing ten million samples as records takes "
        "them minutes each; their first batches are in the other tables."
    },
)
