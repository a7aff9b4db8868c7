"""How fast do JPEGs become batches of pixels: 256 x 256, cropped at random to 224, float32 CHW, 64 a batch, shuffled?

Unit: pictures a second of wall time, from the first batch on. Measured: 1,500 made pictures at quality 90, in each
peer's own format, in the page cache. Python decodes by simplejpeg, which is faster than Pillow and
OpenCV here. tf.data decodes and crops natively, as we do. 0 workers are one thread, the loop's or another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain, shards
from benchmarks.peers.map_style import SEED, grain, nodes, ours, spdl, torch_loader

BATCH, WHOLE, SIDE, BUFFER = 64, 256, 224, 1000


def blocks(count: int) -> Iterator[Block]:
    """Encoded pictures."""
    from feedline_demo import pictures as made

    drawn = made.pictures(count, size=(WHOLE, WHOLE), kinds=["baseline"], qualities=[90], detail=0.95)
    contents, _ = made.rows(drawn)
    yield {"jpg": list(contents), "id": np.arange(count)}


def pixels(content: Any) -> Any:
    """Decode, crop at random, and turn into floats."""
    import simplejpeg

    whole = simplejpeg.decode_jpeg(content)
    top, left = np.random.randint(0, WHOLE - SIDE + 1, 2)
    out = np.empty((3, SIDE, SIDE), np.float32)
    np.multiply(whole[top : top + SIDE, left : left + SIDE].transpose(2, 0, 1), np.float32(1 / 255), out=out)
    return out


def decoded(sample: Any) -> Any:
    """The same for a sample that is a dictionary."""
    return {"x": pixels(sample["jpg"]), "id": sample["id"]}


def decoded_pair(sample: Any) -> Any:
    """The same for a sample that is a pair."""
    return pixels(sample[0]), int(sample[1])


class Pictures:
    """A map-style dataset of encoded pictures in one mapped file."""

    def __init__(self, folder: Path) -> None:
        self.data, self.bounds = plain(folder, "jpg"), np.load(folder / "jpg.bounds.npy")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return pixels(self.data[self.bounds[index] : self.bounds[index + 1]].tobytes()), index


def stacked(samples: Sequence[Any]) -> Any:
    """A collate function for peers that have none."""
    rows, ids = zip(*samples, strict=True)
    return np.stack(rows), np.array(ids)


# ---- contenders ----------------------------------------------------------------------------------------------


def tar(given: Given) -> Opened:
    """Tar shards, decoded natively in threads."""
    import feedline as fl
    from feedline import DataLoader, images, open_corpus

    def opened() -> Any:
        streams = {"x": fl.Stream(dtype="bytes", field="jpg"), "id": fl.Stream((), "int64", field="cls")}
        steps = images.RandomCrop(SIDE), images.Normalize((0, 0, 0), (1, 1, 1), layout="CHW")
        return DataLoader(
            open_corpus(given.data, streams=streams),
            batch_size=BATCH,
            shuffle=True,
            seed=SEED,
            transforms=[images.Decode("x", *steps, threads=max(given.workers, 1))],
        )

    return opened


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming: a dataset's own ``__getitem__``."""
    streaming = mosaic.imported()

    class Decoded(streaming.StreamingDataset):  # type: ignore[misc]
        """Pixels."""

        def __getitem__(self, at: Any) -> Any:
            return decoded(super().__getitem__(at))

    def opened() -> Any:
        rows = Decoded(local=str(given.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        return streaming.StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def litdata(given: Given) -> Opened:
    """LitData: a transform."""
    from litdata import StreamingDataLoader, StreamingDataset

    def opened() -> Any:
        rows = StreamingDataset(str(given.data), shuffle=True, drop_last=False, seed=SEED, transform=decoded)
        return StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def webdataset(given: Given) -> Opened:
    """WebDataset: a mapped function, batches made in the workers."""
    import webdataset as wds

    def opened() -> Any:
        tars = shards(given.data, "*.tar")
        rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(BUFFER)
        rows = rows.to_tuple("jpg", "cls").map(decoded_pair).batched(BATCH)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers, persistent_workers=given.workers > 0)

    return opened


class Transform:
    """A function for ``with_transform``."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch."""
        return {"x": [pixels(content) for content in batch["jpg"]], "id": batch["id"]}


def hugging_face(given: Given) -> Opened:
    """``datasets``, with a transform, through torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_from_disk(str(given.data / "arrow")).with_transform(Transform())
        return DataLoader(
            rows,
            batch_size=BATCH,
            shuffle=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
        )

    return opened


def tensorflow(given: Given) -> Opened:
    """tf.data: decoded and cropped in one operation, in as many threads as there are workers."""
    import tensorflow as tf

    def decode(record: Any) -> Any:
        found = tf.io.parse_single_example(
            record, {"jpg": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
        )
        at = tf.random.uniform([2], 0, WHOLE - SIDE + 1, tf.int32)
        cropped = tf.io.decode_and_crop_jpeg(found["jpg"], tf.concat([at, [SIDE, SIDE]], 0), channels=3)
        return tf.transpose(tf.cast(cropped, tf.float32) * (1 / 255), (2, 0, 1)), found["id"]

    class Epochs:
        """As NumPy arrays, which share the tensors' memory."""

        def __init__(self) -> None:
            files = tf.data.Dataset.from_tensor_slices(shards(given.data, "*.tfrecord")).shuffle(100, seed=SEED)
            rows = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
            rows = rows.shuffle(BUFFER, seed=SEED).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
            options = tf.data.Options()
            options.threading.private_threadpool_size = max(given.workers, 1)
            self.batches = rows.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.batches.as_numpy_iterator())

    return Epochs


WORKLOAD = Workload(
    title="JPEGs: 256 x 256 to float32 crops of 224, 64 a batch",
    unit="pictures/s",
    contenders=[
        Contender(OURS, tar, "tar, decoded natively", form="tar"),
        Contender(OURS, ours(Pictures, BATCH), "the dataset, simplejpeg"),
        Contender("torch DataLoader", torch_loader(Pictures, BATCH), "simplejpeg, persistent"),
        Contender("torchdata.nodes", nodes(Pictures, BATCH, stacked), needs=("torchdata",), delivers="NumPy"),
        Contender("Grain", grain(Pictures, BATCH), needs=("grain",), workers=(0,), delivers="NumPy"),
        Contender(
            "Grain", grain(Pictures, BATCH, threads=2), "threads", needs=("grain",), workers=(2,), delivers="NumPy"
        ),
        Contender("Grain", grain(Pictures, BATCH), "processes", needs=("grain",), workers=(2,), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",), workers=(2,)),
        Contender("LitData", litdata, form="LitData", needs=("litdata",), order="chunks", workers=(2,)),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer", workers=(2,)),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",), workers=(2,)),
        Contender("SPDL", spdl(Pictures, BATCH, stacked), needs=("spdl",), delivers="NumPy"),
        Contender("tf.data", tensorflow, form="TFRecord", needs=("tensorflow",), order="buffer", delivers="NumPy"),
    ],
    makers=makers(blocks, "raw", "MDS", "LitData", "tar", "Arrow", "TFRecord"),
    count=(1_500, 256),
    batch=BATCH,
    check=200,
    seconds=1.5,
    absent={
        "StatefulDataLoader": "without a state to save it is torch's DataLoader.",
        "Ray Data": "its processes take a core each; two of them and the loop do not fit two cores.",
        "SPDL's own decoder": "spdl.io needs FFmpeg's shared libraries on the system; its threads call simplejpeg.",
    },
)
