"""How fast are windows of 50 steps around shuffled frames: 14 float32 a step, episodes of 100 frames, 256 a batch?

Unit: windows a second of wall time, from the first batch on. Measured: 100,000 frames, 5.6 MB, in the page cache, a
window for each. Beyond the end of an episode its last step is repeated, and a mask says where. Peers index a mapped
array by places that they compute, a window a call as LeRobot's dataset does, or a batch a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import map_style
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain
from benchmarks.peers.map_style import SEED, as_it_is

FRAMES, WIDTH, STEPS, BATCH = 100, 14, 50, 256


def blocks(count: int) -> Iterator[Block]:
    """Frames of random numbers."""
    rng = np.random.default_rng(8)
    for start in range(0, count, 50_000):
        ids = np.arange(start, min(start + 50_000, count))
        yield {"action": rng.random((len(ids), WIDTH), np.float32), "id": ids}


class Windows:
    """A map-style dataset over a mapped array, a window a call."""

    def __init__(self, folder: Path) -> None:
        self.action = plain(folder, "action")

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, index: int) -> tuple[Any, Any, int]:
        end = index // FRAMES * FRAMES + FRAMES
        places = np.arange(index, index + STEPS)
        return self.action[np.minimum(places, end - 1)], places < end, index


class Batches(Windows):
    """The same with a batch a call."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, Any, Any]:
        import torch

        chosen = np.asarray(indices)
        end = (chosen // FRAMES * FRAMES + FRAMES)[:, None]
        places = chosen[:, None] + np.arange(STEPS)
        windows = self.action[np.minimum(places, end - 1)]
        return torch.from_numpy(windows), torch.from_numpy(places < end), torch.from_numpy(chosen)


def stacked(samples: Sequence[Any]) -> Any:
    """A batch of windows, in NumPy."""
    windows, masks, ids = zip(*samples, strict=True)
    return np.stack(windows), np.stack(masks), np.array(ids)


def store(given: Given) -> Opened:
    """A loader over windows of a store."""
    import pyarrow  # noqa: F401

    import feedline as fl

    def opened() -> Any:
        corpus = fl.open_corpus(given.data / "store")
        frames = sum(chunk.sequences for chunk in corpus.chunks())
        episodes = np.full(frames // FRAMES, FRAMES)
        windows = fl.TimeWindows(corpus, {"action": range(STEPS), "id": (0,)}, within=episodes)
        return fl.DataLoader(windows, batch_size=BATCH, shuffle=True, seed=SEED, num_workers=given.workers)

    return opened


WORKLOAD = Workload(
    title="windows in time: 50 steps of 14 floats, 256 a batch",
    unit="windows/s",
    contenders=[
        Contender(OURS, store, "a store", form="store"),
        Contender("torch DataLoader", map_style.torch_loader(Windows, BATCH), "a window a call"),
        Contender("torch DataLoader", map_style.torch_loader(Batches, BATCH, as_it_is), "a batch a call"),
        Contender("torchdata.nodes", map_style.nodes(Batches, BATCH, as_it_is), needs=("torchdata",)),
        Contender("Grain", map_style.grain(Windows, BATCH, stacked), needs=("grain",), delivers="NumPy"),
        Contender("SPDL", map_style.spdl(Batches, BATCH, as_it_is), needs=("spdl",)),
    ],
    makers=makers(blocks, "raw", "store"),
    count=(100_000, 10_000),
    batch=BATCH,
    absent={"LeRobot": "its dataset is torch's loader over a window a call."},
)
