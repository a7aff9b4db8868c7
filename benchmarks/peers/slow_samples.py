"""How much do a few slow samples hold up the others: one in a hundred takes 50 ms, the others 1 ms?

Unit: samples a second of wall time, from the first batch on. Two workers that never wait would deliver 1,195, as 11 of
the 800 are slow, and 1,140 to 1,160 where a sleep of 1 ms takes 1.06 to 1.09. Measured: samples that wait, as for a
disk or a network, so that the figure is about the schedule, not about cores. 4 a batch, by 2 workers, delivered in
order, or, in a setting of each that has one, as they come, through as many epochs of 800 as a turn lasts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contender import OURS, Contender, Workload
from benchmarks.peers.data import Block, makers, plain
from benchmarks.peers.map_style import grain, nodes, ours, spdl, torch_loader

BATCH = 4


def blocks(count: int) -> Any:
    """Which samples are slow."""
    block: Block = {"x": np.random.default_rng(5).random(count) < 0.01, "id": np.arange(count)}
    yield block


class Uneven:
    """Samples that wait."""

    def __init__(self, folder: Path) -> None:
        self.slow = plain(folder)

    def __len__(self) -> int:
        return len(self.slow)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(0.05 if self.slow[index] else 0.001)
        return np.float32([index]), index


def stacked(samples: Sequence[Any]) -> Any:
    """A collate function for peers that have none."""
    rows, ids = zip(*samples, strict=True)
    return np.stack(rows), np.array(ids)


WORKLOAD = Workload(
    title="slow samples: 1 % take 50 times as long, 4 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(Uneven, BATCH), workers=(2,)),
        Contender(OURS, ours(Uneven, BATCH, in_order=False), "out of order", workers=(2,)),
        Contender(OURS, ours(Uneven, BATCH, workers="thread"), "threads", workers=(2,)),
        Contender(OURS, ours(Uneven, BATCH, in_order=False, workers="thread"), "threads, out of order", workers=(2,)),
        Contender("torch DataLoader", torch_loader(Uneven, BATCH), "persistent", workers=(2,)),
        Contender("torch DataLoader", torch_loader(Uneven, BATCH, in_order=False), "out of order", workers=(2,)),
        Contender("StatefulDataLoader", torch_loader(Uneven, BATCH, stateful=True), needs=("torchdata",), workers=(2,)),
        Contender(
            "StatefulDataLoader",
            torch_loader(Uneven, BATCH, stateful=True, in_order=False),
            "out of order",
            needs=("torchdata",),
            workers=(2,),
        ),
        Contender(
            "torchdata.nodes",
            nodes(Uneven, BATCH, stacked, in_order=False),
            "threads, out of order",
            needs=("torchdata",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender(
            "torchdata.nodes",
            nodes(Uneven, BATCH, stacked),
            "threads",
            needs=("torchdata",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender("Grain", grain(Uneven, BATCH), "processes", needs=("grain",), workers=(2,), delivers="NumPy"),
        Contender(
            "Grain", grain(Uneven, BATCH, threads=2), "threads", needs=("grain",), workers=(2,), delivers="NumPy"
        ),
        Contender(
            "Grain",
            grain(Uneven, BATCH, threads=2, late=True),
            "threads, batches behind them",
            needs=("grain",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender(
            "SPDL",
            spdl(Uneven, BATCH, stacked, in_order=False),
            "threads, out of order",
            needs=("spdl",),
            workers=(2,),
            delivers="NumPy",
        ),
        Contender("SPDL", spdl(Uneven, BATCH, stacked), "threads", needs=("spdl",), workers=(2,), delivers="NumPy"),
    ],
    makers=makers(blocks, "raw"),
    count=(800, 400),
    batch=BATCH,
    check=200,
    seconds=2.5,
    absent={
        "MosaicML Streaming, LitData, WebDataset, HF datasets": "their workers are those of torch's DataLoader.",
        "tf.data, Ray Data": "they take no map-style dataset.",
    },
)
