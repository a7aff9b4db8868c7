"""How fast do faces in RecordIO become batches, compared with the usual loader for torch?

Peer: torch's `DataLoader` with two workers over a dataset as InsightFace's for torch is: the record by its key, the
picture decoded and mirrored by Pillow, and normalised to float32 CHW. It reads records in Python, as MXNet cannot be
installed beside a current NumPy. Unit: seconds a batch of 128 pictures of 112 x 112. Measured: wall time, in steady
state.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from feedline_demo import pictures as made

import feedline as fl
from benchmarks.disk import fill
from benchmarks.harness import Answer, Stage
from benchmarks.loaders import alternated, sooner, steady
from feedline import images
from feedline.mxnet import recordio

SIDE, BATCH = 112, 128


def run(stage: Stage) -> list[Answer]:
    """Both loaders in turns, over one file."""
    torch.set_num_threads(1)
    folder = stage.data / "bench-recordio"
    shutil.rmtree(folder, ignore_errors=True)
    write_faces(folder, stage.size(20_000, 1000))
    fill(folder / "train.rec")
    loaders = {"feedline": our_loader, "torch DataLoader": torch_loader}
    running = {name: steady(make(folder), 4 if stage.quick else 24, 8) for name, make in loaders.items()}
    timed = alternated(running, stage.rounds(5))
    running.clear()
    shutil.rmtree(folder)
    question = f"faces of 112 x 112 in RecordIO, flips, float CHW: a batch of {BATCH}, 2 threads vs 2 workers"
    return [sooner(timed, "feedline", "torch DataLoader", question, at_most=1 / 2)]


def write_faces(folder: Path, count: int) -> None:
    """Write pictures of 112 x 112, as JPEGs of quality 90, with an index."""
    folder.mkdir(parents=True)
    contents, labels = made.rows(
        made.pictures(min(count, 500), size=(SIDE, SIDE), kinds=["baseline"], qualities=[90], detail=0.95)
    )
    file = recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "w")
    for i in range(count):
        k = i % len(contents)
        file.write_idx(i, recordio.pack(recordio.IRHeader(0, float(labels[k]), i, 0), contents[k]))
    file.close()


class Faces(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Pictures and labels by index."""

    def __init__(self, folder: Path) -> None:
        self.records = recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "r")

    def __len__(self) -> int:
        return len(self.records.keys)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image, ImageOps

        header, data = recordio.unpack(self.records.read_idx(self.records.keys[index]) or b"")
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        if torch.rand(1) < 0.5:
            picture = ImageOps.mirror(picture)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)
        return pixels.sub(0.5).div(0.5), torch.tensor(header.label, dtype=torch.long)


def our_loader(folder: Path) -> Any:
    """Batches of two native threads."""
    normalize = images.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), layout="CHW")
    decode = images.Decode("image", images.CenterCrop(SIDE), images.Flip(0.5), normalize, threads=2)
    return fl.DataLoader(
        folder / "train.rec", batch_size=BATCH, shuffle=True, seed=1, drop_last=True, transforms=[decode]
    )


def torch_loader(folder: Path) -> Any:
    """Batches of two worker processes."""
    return torch.utils.data.DataLoader(
        Faces(folder), batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True, drop_last=True
    )
