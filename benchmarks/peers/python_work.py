"""How fast is Python work: samples that take 0.24 ms of it, 3 x 64 x 64 bytes, 64 a batch, shuffled?

Unit: samples a second of wall time, from the first batch on. Measured: 2,560 samples, so that some epochs end within a
turn, and its time includes that. Each peer does the work where its documentation puts a transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain, shards
from benchmarks.peers.map_style import SEED, grain, nodes, ours, spdl, torch_loader
from benchmarks.peers.work import spin

BATCH, SHAPE = 64, (3, 64, 64)
#: Loops of `spin`, about 0.24 ms where these figures come from. The same work for all.
LOOPS = 9_000


def blocks(count: int) -> Any:
    """Random pictures."""
    block: Block = {"x": np.random.default_rng(0).integers(0, 256, (count, *SHAPE), np.uint8), "id": np.arange(count)}
    yield block


def work(x: Any) -> Any:
    """The work on a sample, which stays as it is."""
    spin(LOOPS)
    return x


def work_on(sample: Any) -> Any:
    """The same on a sample that is a dictionary."""
    return sample | {"x": work(sample["x"])}


def work_on_pair(sample: Any) -> Any:
    """The same on a sample that is a pair."""
    return work(sample[0]), sample[1]


class Items:
    """Samples that cost some Python."""

    def __init__(self, folder: Path) -> None:
        self.x = plain(folder)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return work(np.array(self.x[index])), index


def stacked(samples: Sequence[Any]) -> Any:
    """A collate function for processes that hand over arrays."""
    rows, ids = zip(*samples, strict=True)
    return np.stack(rows), np.array(ids)


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming: a dataset's own ``__getitem__``."""
    streaming = mosaic.imported()

    class Worked(streaming.StreamingDataset):  # type: ignore[misc]
        """Samples with the work done."""

        def __getitem__(self, at: Any) -> Any:
            return work_on(super().__getitem__(at))

    def opened() -> Any:
        rows = Worked(local=str(given.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        return streaming.StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def litdata(given: Given) -> Opened:
    """LitData: a transform."""
    from litdata import StreamingDataLoader, StreamingDataset

    def opened() -> Any:
        rows = StreamingDataset(str(given.data), shuffle=True, drop_last=False, seed=SEED, transform=work_on)
        return StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def webdataset(given: Given) -> Opened:
    """WebDataset: a mapped function."""
    import webdataset as wds

    def opened() -> Any:
        tars = shards(given.data, "*.tar")
        rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(1000).decode()
        rows = rows.to_tuple("x.npy", "cls").map(work_on_pair).batched(BATCH)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers, persistent_workers=given.workers > 0)

    return opened


class Transform:
    """A function for ``with_transform``: of a batch of columns."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch."""
        return {"x": [work(np.asarray(x, np.uint8)) for x in batch["x"]], "id": batch["id"]}


def hugging_face(given: Given) -> Opened:
    """``datasets``, with a transform, through torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_from_disk(str(given.data / "arrow"))
        rows.set_format("numpy")
        return DataLoader(
            Transformed(rows),
            batch_size=BATCH,
            shuffle=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
        )

    return opened


class Transformed:
    """Rows of ``datasets`` as NumPy arrays, with the work done. Lists of numbers would cost more than the work."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.transform = rows, Transform()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        found = self.transform(self.rows[indices])
        return list(zip(found["x"], found["id"], strict=True))


def tensorflow(given: Given) -> Opened:
    """tf.data: Python within a `numpy_function`, of as many calls at a time as there are workers."""
    import tensorflow as tf

    class Epochs:
        """As NumPy arrays."""

        def __init__(self) -> None:
            items = Items(given.data)

            def read(index: Any) -> Any:
                x = tf.numpy_function(lambda at: items[at][0], [index], tf.uint8)
                return tf.ensure_shape(x, SHAPE), index

            rows = tf.data.Dataset.range(len(items)).shuffle(len(items), seed=SEED)
            rows = rows.map(read, num_parallel_calls=max(given.workers, 1))
            options = tf.data.Options()
            options.threading.private_threadpool_size = max(given.workers, 1)
            self.batches = rows.batch(BATCH).prefetch(tf.data.AUTOTUNE).with_options(options)

        def __iter__(self) -> Any:
            return iter(self.batches.as_numpy_iterator())

    return Epochs


def ray(given: Given) -> Opened:
    """Ray Data: a function of rows in its workers."""
    import ray

    # A cluster is there before data is opened.
    ray.init(num_cpus=max(given.workers, 1), include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)

    def opened() -> Any:
        rows = ray.data.read_parquet(str(given.data), shuffle="files").map(work_on)

        class Epochs:
            """An execution for each epoch."""

            def __iter__(self) -> Any:
                return iter(rows.iter_torch_batches(batch_size=BATCH, local_shuffle_buffer_size=1000))

        return Epochs()

    return opened


WORKLOAD = Workload(
    title="Python work: 0.24 ms a sample, 3 x 64 x 64 bytes, 64 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(Items, BATCH)),
        Contender("torch DataLoader", torch_loader(Items, BATCH, persistent=False), "usual"),
        Contender("torch DataLoader", torch_loader(Items, BATCH), "persistent", workers=(2,)),
        Contender("StatefulDataLoader", torch_loader(Items, BATCH, stateful=True), "persistent", needs=("torchdata",)),
        Contender("torchdata.nodes", nodes(Items, BATCH, stacked, "process"), needs=("torchdata",), delivers="NumPy"),
        Contender("Grain", grain(Items, BATCH), needs=("grain",), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",), workers=(2,)),
        Contender("LitData", litdata, form="LitData", needs=("litdata",), order="chunks", workers=(2,)),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer", workers=(2,)),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",), workers=(2,)),
        Contender("SPDL", spdl(Items, BATCH, stacked, processes=True), needs=("spdl",), delivers="NumPy"),
        Contender("tf.data", tensorflow, needs=("tensorflow",), delivers="NumPy"),
        Contender("Ray Data", ray, form="Parquet", needs=("ray",), order="buffer", workers=(2,)),
    ],
    makers=makers(blocks, "raw", "MDS", "LitData", "tar", "Arrow", "Parquet"),
    count=(2_560, 640),
    batch=BATCH,
    check=320,
    seconds=1.5,
)
