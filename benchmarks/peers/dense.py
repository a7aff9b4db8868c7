"""How fast are shuffled minibatches of dense rows: 784 float32 and their number, 256 a batch?

Unit: samples a second of wall time, from the first batch on. Measured: 40,000 rows, 126 MB, in each peer's own format,
in the page cache and evicted from it. Peers that cannot shuffle as a whole mix within a buffer of 5,000 samples, or
within chunks of 32 MiB. We shuffle as a whole, which is the default for this much data, and in windows of 32 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import map_style, mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain, shards
from benchmarks.peers.map_style import SEED, as_it_is

PIXELS, BATCH, BUFFER = 784, 256, 5_000


def blocks(count: int) -> Iterator[Block]:
    """Rows of random numbers."""
    rng = np.random.default_rng(4)
    for start in range(0, count, 10_000):
        ids = np.arange(start, min(start + 10_000, count))
        yield {"x": rng.random((len(ids), PIXELS), np.float32), "id": ids}


class Rows:
    """A map-style dataset over a mapped array, a row a call."""

    def __init__(self, folder: Path) -> None:
        self.x = plain(folder)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self.x[index]), index


class Batches(Rows):
    """The same with a batch a call."""

    def __getitems__(self, indices: Sequence[int]) -> tuple[Any, Any]:
        import torch

        chosen = np.asarray(indices)
        return torch.from_numpy(np.take(self.x, chosen, axis=0)), torch.from_numpy(chosen)


def store(window: int | None) -> Any:
    """A loader over a store, shuffled as a whole or in windows."""

    def start(given: Given) -> Opened:
        import pyarrow  # noqa: F401

        import feedline as fl
        from feedline import DataLoader

        shuffle = True if window is None else fl.Window(bytes=window)
        return lambda: DataLoader(
            given.data / "store", batch_size=BATCH, shuffle=shuffle, seed=SEED, num_workers=given.workers
        )

    return start


def hugging_face_iterable(given: Given) -> Opened:
    """``datasets`` as an iterable, whose files and buffer are shuffled."""
    import datasets

    class Epochs:
        """Another order each time."""

        def __init__(self) -> None:
            rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")
            self.rows = rows.to_iterable_dataset(num_shards=8).shuffle(seed=SEED, buffer_size=BUFFER)
            self.epoch = -1

        def __iter__(self) -> Iterator[Any]:
            self.epoch += 1
            self.rows.set_epoch(self.epoch)
            return iter(self.rows.iter(BATCH))

    return Epochs


class RecordRows:
    """Records of ArrayRecord as rows."""

    def __init__(self, folder: Path) -> None:
        import grain

        self.records = grain.sources.ArrayRecordDataSource(str(folder / "rows.array_record"))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        record = self.records[index]
        return np.frombuffer(record, np.float32, offset=8), int.from_bytes(record[:8], "little")


def arrays(given: Given) -> Opened:
    """Our loader over arrays, which it gathers natively."""
    import pyarrow  # noqa: F401

    from feedline import DataLoader

    def opened() -> Any:
        x = plain(given.data)
        columns = {"x": x, "id": np.arange(len(x))}
        return DataLoader(columns, batch_size=BATCH, shuffle=True, seed=SEED, num_workers=given.workers)

    return opened


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming over shards that are there."""
    streaming = mosaic.imported()

    def opened() -> Any:
        rows = streaming.StreamingDataset(
            local=str(given.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH
        )
        return streaming.StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


def litdata(given: Given) -> Opened:
    """LitData's loader."""
    from litdata import StreamingDataLoader, StreamingDataset

    def opened() -> Any:
        rows = StreamingDataset(str(given.data), shuffle=True, drop_last=False, seed=SEED)
        return StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


def webdataset(given: Given) -> Opened:
    """WebDataset: batches are made in the workers."""
    import webdataset as wds

    def opened() -> Any:
        tars = shards(given.data, "*.tar")
        rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(BUFFER)
        rows = rows.decode().to_tuple("x.npy", "cls").batched(BATCH)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers)

    return opened


def hugging_face(batched: bool) -> Any:
    """``datasets``, in torch's format: its own batches, or through torch's loader."""

    def start(given: Given) -> Opened:
        import datasets
        from torch.utils.data import DataLoader

        class Epochs:
            """A new permutation each time."""

            def __init__(self) -> None:
                self.rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")

            def __iter__(self) -> Iterator[Any]:
                return iter(self.rows.shuffle(seed=SEED).iter(BATCH))

        def loaded() -> Any:
            rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")
            return DataLoader(
                rows,
                batch_size=BATCH,
                shuffle=True,
                num_workers=given.workers,
                persistent_workers=given.workers > 0,
            )

        return Epochs if batched else loaded

    return start


def tensorflow(given: Given) -> Opened:
    """tf.data: records of several files at a time, a buffer, batches parsed as a whole."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(max(given.workers, 1))

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(
            records, {"x": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
        )
        return tf.reshape(tf.io.decode_raw(found["x"], tf.float32), (-1, PIXELS)), found["id"]

    class Epochs:
        """As NumPy arrays, which share the tensors' memory."""

        def __init__(self) -> None:
            files = tf.data.Dataset.from_tensor_slices(shards(given.data, "*.tfrecord")).shuffle(100, seed=SEED)
            rows = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
            batches = rows.shuffle(BUFFER, seed=SEED).batch(BATCH).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            options = tf.data.Options()
            options.threading.private_threadpool_size = max(given.workers, 1)
            self.batches = batches.prefetch(tf.data.AUTOTUNE).with_options(options)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.batches.as_numpy_iterator())

    return Epochs


def ray(given: Given) -> Opened:
    """Ray Data: files in random order, then a buffer."""
    import ray

    # A cluster is there before data is opened.
    ray.init(num_cpus=max(given.workers, 1), include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)

    def opened() -> Any:
        rows = ray.data.read_parquet(str(given.data), shuffle="files")

        class Epochs:
            """An execution for each epoch."""

            def __iter__(self) -> Iterator[Any]:
                return iter(rows.iter_torch_batches(batch_size=BATCH, local_shuffle_buffer_size=BUFFER))

        return Epochs()

    return opened


WORKLOAD = Workload(
    title="shuffled dense rows: 784 float32, 256 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, store(None), "a store", form="store"),
        Contender(OURS, store(32 << 20), "a store, in windows of 32 MiB", form="store", order="windows"),
        Contender(OURS, arrays, "a mapped array"),
        Contender(OURS, map_style.ours(Batches, BATCH, as_it_is), "the dataset with __getitems__"),
        Contender("torch DataLoader", map_style.torch_loader(Rows, BATCH, persistent=False), "a row a call"),
        Contender("torch DataLoader", map_style.torch_loader(Batches, BATCH, as_it_is), "__getitems__, persistent"),
        Contender(
            "StatefulDataLoader",
            map_style.torch_loader(Batches, BATCH, as_it_is, stateful=True),
            "__getitems__",
            needs=("torchdata",),
        ),
        Contender("torchdata.nodes", map_style.nodes(Batches, BATCH, as_it_is), needs=("torchdata",)),
        Contender("Grain", map_style.grain(Rows, BATCH), "a mapped array", needs=("grain",), delivers="NumPy"),
        Contender(
            "Grain",
            map_style.grain(RecordRows, BATCH),
            "ArrayRecord",
            form="ArrayRecord",
            needs=("grain", "array_record"),
            delivers="NumPy",
        ),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",)),
        Contender("LitData", litdata, form="LitData", needs=("litdata",), order="chunks"),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer"),
        Contender("HF datasets", hugging_face(True), "iter", form="Arrow", needs=("datasets",), workers=(0,)),
        Contender(
            "HF datasets",
            hugging_face_iterable,
            "an iterable",
            form="Arrow",
            needs=("datasets",),
            workers=(0,),
            order="buffer",
        ),
        Contender("HF datasets", hugging_face(False), "torch's loader", form="Arrow", needs=("datasets",)),
        Contender("SPDL", map_style.spdl(Batches, BATCH, as_it_is), needs=("spdl",)),
        Contender("tf.data", tensorflow, form="TFRecord", needs=("tensorflow",), order="buffer", delivers="NumPy"),
        Contender("Ray Data", ray, form="Parquet", needs=("ray",), order="buffer", workers=(2,)),
    ],
    makers=makers(blocks, "raw", "store", "MDS", "LitData", "tar", "Arrow", "ArrayRecord", "TFRecord", "Parquet"),
    count=(40_000, 4_000),
    batch=BATCH,
    cold=True,
)
