"""How fast are tiny items: 330 steps of Python, 6 us here, 16 floats and a number, 32 a batch, shuffled?

Unit: samples a second of wall time, from the first batch on. Measured: a map-style dataset of 64,000 items in memory,
through every loader that takes one. Epochs follow each other, so that the time includes the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain
from benchmarks.peers.map_style import as_it_is, grain, nodes, ours, spdl, torch_loader
from benchmarks.peers.work import spin

BATCH = 32
#: Loops of `spin`. The same work for all.
LOOPS = 330


def blocks(count: int) -> Iterator[Block]:
    """Rows of 16 floats."""
    yield {"x": np.random.default_rng(0).random((count, 16), np.float32), "id": np.arange(count)}


class Items:
    """Items that cost some Python."""

    def __init__(self, folder: Path) -> None:
        self.x = np.array(plain(folder))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        spin(LOOPS)
        return self.x[index], index


def stacked(samples: Sequence[Any]) -> Any:
    """A collate function in NumPy, which ends in tensors that share its memory."""
    import torch

    rows, ids = zip(*samples, strict=True)
    return torch.from_numpy(np.stack(rows)), torch.from_numpy(np.array(ids))


def stacked_numpy(samples: Sequence[Any]) -> Any:
    """The same as arrays, which processes hand over faster than tensors."""
    rows, ids = zip(*samples, strict=True)
    return np.stack(rows), np.array(ids)


def hugging_face(given: Given) -> Opened:
    """``datasets`` with a transform that does the work, through torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("numpy")
        return DataLoader(
            Worked(rows),
            batch_size=BATCH,
            shuffle=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
            collate_fn=as_it_is,
        )

    return opened


class Worked:
    """Rows of ``datasets``, read a batch a call, each with its Python."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> Any:
        found = self.rows[indices]
        for _ in indices:
            spin(LOOPS)
        return stacked_numpy(list(zip(found["x"], found["id"], strict=True)))


WORKLOAD = Workload(
    title="tiny items: 330 steps of Python, 16 floats, 32 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(Items, BATCH)),
        Contender(OURS, ours(Items, BATCH, stacked), "NumPy collate"),
        Contender("torch DataLoader", torch_loader(Items, BATCH, persistent=False), "usual"),
        Contender("torch DataLoader", torch_loader(Items, BATCH, stacked), "NumPy collate", workers=(0,)),
        Contender(
            "torch DataLoader",
            torch_loader(Items, BATCH, stacked_numpy),
            "NumPy collate, persistent",
            workers=(2,),
            delivers="NumPy",
        ),
        Contender(
            "StatefulDataLoader",
            torch_loader(Items, BATCH, stacked, stateful=True),
            "NumPy collate",
            needs=("torchdata",),
            workers=(0,),
        ),
        Contender(
            "StatefulDataLoader",
            torch_loader(Items, BATCH, stacked_numpy, stateful=True),
            "NumPy collate, persistent",
            needs=("torchdata",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender("torchdata.nodes", nodes(Items, BATCH, stacked), needs=("torchdata",), workers=(0,)),
        Contender(
            "torchdata.nodes",
            nodes(Items, BATCH, stacked_numpy, "process"),
            "processes",
            needs=("torchdata",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender("Grain", grain(Items, BATCH), needs=("grain",), delivers="NumPy"),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",), delivers="NumPy"),
        Contender("SPDL", spdl(Items, BATCH, stacked), needs=("spdl",), workers=(0,)),
        Contender(
            "SPDL",
            spdl(Items, BATCH, stacked_numpy, processes=True),
            "processes",
            needs=("spdl",),
            workers=(2,),
            delivers="NumPy",
        ),
    ],
    makers=makers(blocks, "raw", "Arrow"),
    count=(64_000, 4_000),
    batch=BATCH,
    absent={
        "MosaicML Streaming, LitData, WebDataset, tf.data, Ray Data": "they take no map-style dataset; Python work on "
        "their own samples is in python_work."
    },
)
