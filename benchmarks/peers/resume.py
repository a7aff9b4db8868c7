"""How long from a new process with a saved state to the next batch, at 90 % of an epoch, and is it the right one?

Unit: milliseconds on the wall from the constructor to the next batch. Everything is imported before the clock starts,
except by workers that are started afresh. Measured: 100,000 samples of 16 floats, shuffled, 256 a batch. One process
reads up to the state and three batches further, and another goes on from the state and must deliver the same three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Resumed, Workload
from benchmarks.peers.data import Block, makers, plain, shards
from benchmarks.peers.map_style import SEED, as_it_is

BATCH, WIDTH, BUFFER = 256, 16, 5_000


def blocks(count: int) -> Iterator[Block]:
    """Rows of 16 floats."""
    rng = np.random.default_rng(4)
    for start in range(0, count, 50_000):
        ids = np.arange(start, min(start + 50_000, count))
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


def kept_by(loader: Any, state: Any) -> tuple[Iterator[Any], Any]:
    """Go on with a loader that has ``state_dict`` and ``load_state_dict``."""
    if state is not None:
        loader.load_state_dict(state)
    return iter(loader), loader.state_dict


def ours(given: Given) -> Resumed:
    """Our loader over the dataset."""
    from feedline import DataLoader

    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "collate_fn": as_it_is}
    return lambda state: kept_by(DataLoader(Rows(given.data), num_workers=given.workers, **options), state)


def threads(given: Given) -> Resumed:
    """The same with threads as workers, as in nodes and in a store."""
    from feedline import DataLoader

    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "collate_fn": as_it_is}
    options |= {"num_workers": given.workers, "workers": "thread"}
    return lambda state: kept_by(DataLoader(Rows(given.data), **options), state)


def store(given: Given) -> Resumed:
    """Our loader over a store."""
    import pyarrow  # noqa: F401

    from feedline import DataLoader

    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": SEED}
    return lambda state: kept_by(DataLoader(given.data / "store", num_workers=given.workers, **options), state)


def read_again(given: Given) -> Resumed:
    """torch's loader has no state: with the same seed, read up to there again."""
    import torch
    from torch.utils.data import DataLoader

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        generator = torch.Generator().manual_seed(SEED)
        loader = DataLoader(
            Rows(given.data),
            batch_size=BATCH,
            shuffle=True,
            generator=generator,
            num_workers=given.workers,
            collate_fn=as_it_is,
        )
        batches, taken = iter(loader), state or 0
        for _ in range(taken):
            next(batches)

        def counted() -> Iterator[Any]:
            nonlocal taken
            for batch in batches:
                taken += 1
                yield batch

        return counted(), lambda: taken

    return resumed


def stateful(given: Given) -> Resumed:
    """torchdata's loader with a state."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        torch.manual_seed(SEED)
        loader = StatefulDataLoader(
            Rows(given.data), batch_size=BATCH, shuffle=True, num_workers=given.workers, collate_fn=as_it_is
        )
        return kept_by(loader, state)

    return resumed


def nodes(given: Given) -> Resumed:
    """torchdata's nodes, whose sampler is torchdata's own, with a state."""
    import torch
    from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper
    from torchdata.stateful_dataloader.sampler import RandomSampler

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        rows = Rows(given.data)
        generator = torch.Generator().manual_seed(SEED)
        node = Batcher(SamplerWrapper(RandomSampler(rows, generator=generator)), BATCH, drop_last=False)
        if given.workers:
            mapped = ParallelMapper(node, rows.__getitems__, num_workers=given.workers, method="thread")
            return kept_by(Loader(Prefetcher(mapped, 4)), state)
        return kept_by(Loader(Mapper(node, rows.__getitems__)), state)

    return resumed


def grain(given: Given) -> Resumed:
    """Grain: the iterator has the state."""
    import grain

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        dataset = grain.MapDataset.source(Rows(given.data)).shuffle(seed=SEED).batch(BATCH)
        batches = dataset.to_iter_dataset(grain.ReadOptions(0, 0))
        if given.workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given.workers))
        iterator = iter(batches)
        if state is not None:
            iterator.set_state(state)
        return iterator, iterator.get_state

    return resumed


def mosaic_loader(given: Given) -> Resumed:
    """MosaicML Streaming: the loader has the state."""
    streaming = mosaic.imported()

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        rows = streaming.StreamingDataset(
            local=str(given.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH
        )
        return kept_by(streaming.StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers), state)

    return resumed


def litdata(given: Given) -> Resumed:
    """LitData: the loader has the state."""
    from litdata import StreamingDataLoader, StreamingDataset

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        rows = StreamingDataset(str(given.data), shuffle=True, drop_last=False, seed=SEED)
        return kept_by(StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers), state)

    return resumed


def hugging_face(given: Given) -> Resumed:
    """``datasets`` as an iterable with shuffled files and buffer, through torchdata's loader with workers."""
    import datasets
    from torchdata.stateful_dataloader import StatefulDataLoader

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")
        rows = rows.to_iterable_dataset(num_shards=8).shuffle(seed=SEED, buffer_size=BUFFER)
        return kept_by(StatefulDataLoader(rows, batch_size=BATCH, num_workers=given.workers), state)

    return resumed


def tensorflow(given: Given) -> Resumed:
    """tf.data: a checkpoint of the iterator, with the buffer in it."""
    import tensorflow as tf

    folder = given.data / "checkpoint"

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(
            records, {"x": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
        )
        return tf.reshape(tf.io.decode_raw(found["x"], tf.float32), (-1, WIDTH)), found["id"]

    def resumed(state: Any) -> tuple[Iterator[Any], Any]:
        options = tf.data.Options()
        # The documentation: an iterator's checkpoint may be very large otherwise.
        options.experimental_symbolic_checkpoint = True
        options.threading.private_threadpool_size = max(given.workers, 1)
        rows = tf.data.TFRecordDataset(shards(given.data, "*.tfrecord")).shuffle(BUFFER, seed=SEED)
        batches = rows.batch(BATCH).map(parse, num_parallel_calls=max(given.workers, 1)).prefetch(2)
        iterator = iter(batches.with_options(options))
        saved = tf.train.Checkpoint(iterator=iterator)
        if state is not None:
            saved.read(state)

        def arrays() -> Iterator[Any]:
            for x, numbers in iterator:
                yield x.numpy(), numbers.numpy()

        return arrays(), lambda: saved.write(str(folder / f"{given.workers}"))

    return resumed


WORKLOAD = Workload(
    title="resuming: at 90 % of an epoch of 100,000 samples, 256 a batch",
    unit="ms",
    contenders=[
        Contender(OURS, ours, "the dataset"),
        Contender(OURS, threads, "the dataset, threads", workers=(2,)),
        Contender(OURS, store, "a store", form="store"),
        Contender("torch DataLoader", read_again, "read again up to there"),
        Contender("StatefulDataLoader", stateful, needs=("torchdata",)),
        Contender("torchdata.nodes", nodes, needs=("torchdata",)),
        Contender("Grain", grain, needs=("grain",), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",)),
        Contender("LitData", litdata, form="LitData", needs=("litdata",), order="chunks"),
        Contender(
            "HF datasets",
            hugging_face,
            "an iterable, in StatefulDataLoader",
            form="Arrow",
            needs=("datasets", "torchdata"),
            order="buffer",
        ),
        Contender("tf.data", tensorflow, form="TFRecord", needs=("tensorflow",), order="buffer", delivers="NumPy"),
    ],
    makers=makers(blocks, "raw", "store", "MDS", "LitData", "Arrow", "TFRecord"),
    count=(100_000, 10_000),
    batch=BATCH,
    resumes=True,
    by="resume_s",
    absent={
        "WebDataset, SPDL, Ray Data": "they have no state to resume from within an epoch; what was read is read again."
    },
)
