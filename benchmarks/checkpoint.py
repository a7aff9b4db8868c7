"""How fast is a checkpoint of 100 million parameters, whole, checked and forced to disk?

Peer: the same bytes by one ``write`` to a new file and one ``fsync``, the limit of the disk. Both keep the
previous file until the new one is on disk and then remove it, so both need fresh pages for what they write. Unit: MB/s.
Measured: wall time, since training waits for it.
"""

from __future__ import annotations

import os
import shutil

import numpy as np
import torch

from benchmarks.harness import Answer, Stage, compare, race
from feedline.train.checkpoint import Checkpoints, load

TENSORS = 100


def run(stage: Stage) -> list[Answer]:
    """Measure saving against a plain write, and loading."""
    each = stage.size(1_000_000, 20_000)
    rng = np.random.default_rng(0)
    tensors = {f"layer{i}": torch.from_numpy(rng.random(each, np.float32)) for i in range(TENSORS)}
    content = np.concatenate([tensor.numpy() for tensor in tensors.values()])
    size = content.nbytes
    folder = stage.data / "bench-checkpoints"
    store = Checkpoints(folder, keep=1)
    number = 0

    def save() -> float:
        nonlocal number
        number += 1
        store.save(number, tensors, {"number": number})
        return size

    def write() -> float:
        nonlocal number
        number += 1
        before = list(stage.data.glob("bench-checkpoint-*.bin"))
        with open(stage.data / f"bench-checkpoint-{number}.bin", "xb", buffering=0) as file:
            left = memoryview(content).cast("B")
            while left:  # one call takes at most 2 GiB
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        for old in before:
            old.unlink()
        return size

    ran = race({"ours": save, "write": write}, stage.rounds(7), clock="wall")
    read = race({"ours": lambda: float(bool(load(store.paths()[-1]))) * size}, stage.rounds(7), clock="wall")
    shutil.rmtree(folder)
    for left in stage.data.glob("bench-checkpoint-*.bin"):
        left.unlink()
    millions = TENSORS * each / 1e6
    return [
        compare(
            ran,
            "ours",
            "write",
            f"a checkpoint of {millions:.0f} M parameters",
            "MB/s",
            scale=1e-6,
            at_least=0.6,
            note="wall time; a CRC-32C of every tensor is in it",
        ),
        Answer(
            question=f"reading a checkpoint of {millions:.0f} M parameters",
            unit="MB/s",
            ours=read.rate("ours") / 1e6,
            spread=read.spread("ours"),
            note="wall time, from the page cache; every CRC-32C is checked",
        ),
    ]
