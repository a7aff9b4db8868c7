"""Loaders that take a map-style dataset, each as its documentation recommends. Shared by the workloads.

All get the same: a function that opens the dataset in a folder, the size of a batch, and, where batches are not made by
the dataset's own ``__getitems__``, a function that makes one of a list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contender import Given, Opened

SEED = 1
#: Opens a dataset in a folder. Importable, as worker processes call it.
Dataset = Callable[[Path], Any]
Collate = Callable[[Sequence[Any]], Any]
Start = Callable[[Given], Opened]


def as_it_is(batch: Any) -> Any:
    """The batch as the dataset made it."""
    return batch


class Gather:
    """Makes a batch of a list of indices, in any process."""

    def __init__(self, items: Any, collate: Collate | None) -> None:
        self.items, self.collate = items, collate

    def __call__(self, indices: Sequence[int]) -> Any:
        """Return the batch."""
        if self.collate is None or self.collate is as_it_is:
            return self.items.__getitems__(indices)
        return self.collate([self.items[int(index)] for index in indices])


def ours(dataset: Dataset, batch: int, collate: Collate | None = None, **options: Any) -> Start:
    """Our loader."""

    def start(given: Given) -> Opened:
        from feedline import DataLoader

        return lambda: DataLoader(
            dataset(given.data),
            **{"batch_size": batch, "shuffle": True, "seed": SEED, "collate_fn": collate} | options,
            num_workers=given.workers,
        )

    return start


def torch_loader(
    dataset: Dataset,
    batch: int,
    collate: Collate | None = None,
    persistent: bool = True,
    stateful: bool = False,
    **options: Any,
) -> Start:
    """torch's loader, or torchdata's with a state."""

    def start(given: Given) -> Opened:
        if stateful:
            from torchdata.stateful_dataloader import StatefulDataLoader as Loader
        else:
            from torch.utils.data import DataLoader as Loader
        return lambda: Loader(
            dataset(given.data),
            **{"batch_size": batch, "shuffle": True, "collate_fn": collate} | options,
            num_workers=given.workers,
            persistent_workers=persistent and given.workers > 0,
        )

    return start


def nodes(
    dataset: Dataset,
    batch: int,
    collate: Collate,
    method: str = "thread",
    shuffle: bool = True,
    in_order: bool = True,
) -> Start:
    """torchdata's nodes: a sampler, batches of indices, and a mapper that makes them, in threads or processes."""

    def start(given: Given) -> Opened:
        from torch.utils.data import RandomSampler, SequentialSampler
        from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, Prefetcher, SamplerWrapper

        def opened() -> Any:
            items = dataset(given.data)
            sampler = (RandomSampler if shuffle else SequentialSampler)(items)
            node = Batcher(SamplerWrapper(sampler), batch, drop_last=False)
            gather = Gather(items, collate)
            if not given.workers:
                return Loader(Mapper(node, gather))
            mapper = ParallelMapper(node, gather, num_workers=given.workers, method=method, in_order=in_order)
            return Loader(Prefetcher(mapper, 4))

        return opened

    return start


def grain(
    dataset: Dataset,
    batch: int,
    collate: Collate | None = None,
    threads: int = 0,
    shuffle: bool = True,
    late: bool = False,
) -> Start:
    """Grain: an index shuffle, batches before the iterator, or after it from the samples that threads have read ahead.
    Workers are processes or threads."""

    def start(given: Given) -> Opened:
        import grain

        def opened() -> Any:
            samples = grain.MapDataset.source(dataset(given.data))
            samples = samples.shuffle(seed=SEED) if shuffle else samples
            if late:
                return samples.to_iter_dataset(grain.ReadOptions(threads, 500)).batch(batch, batch_fn=collate)
            batches = samples.batch(batch, batch_fn=collate)
            # The documentation has no threads for sources that are in memory.
            batches = batches.to_iter_dataset(grain.ReadOptions(threads, 4 * threads))
            if given.workers and not threads:
                batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given.workers))
            return batches

        return opened

    return start


_gather: Gather | None = None


def _prepare(dataset: Dataset, folder: Path, collate: Collate) -> None:
    """In a process of a pool: open the items once."""
    global _gather
    _gather = Gather(dataset(folder), collate)


def _gathered(indices: Sequence[int]) -> Any:
    """In a process of a pool: make a batch."""
    assert _gather is not None
    return _gather(indices)


def spdl(
    dataset: Dataset,
    batch: int,
    collate: Collate,
    processes: bool = False,
    shuffle: bool = True,
    in_order: bool = True,
) -> Start:
    """SPDL: batches of indices, made by threads, or by a process pool that outlives the epochs."""
    output = "input" if in_order else "completion"

    def start(given: Given) -> Opened:
        from spdl.pipeline import PipelineBuilder

        threads = max(given.workers, 1)

        class Epochs:
            """A pipeline for each epoch."""

            def __init__(self) -> None:
                self.items, self.rng = dataset(given.data), np.random.default_rng(SEED)
                arguments = (dataset, given.data, collate)
                pooled = processes and given.workers
                self.pool = ProcessPoolExecutor(given.workers, None, _prepare, arguments) if pooled else None

            def __iter__(self) -> Iterator[Any]:
                count = len(self.items)
                order = self.rng.permutation(count) if shuffle else np.arange(count)
                builder = PipelineBuilder().add_source(order[at : at + batch] for at in range(0, count, batch))
                if self.pool is None:
                    gather = Gather(self.items, collate)
                    builder = builder.pipe(gather, concurrency=threads, output_order=output)
                else:
                    builder = builder.pipe(_gathered, executor=self.pool, concurrency=threads + 1, output_order=output)
                with (pipeline := builder.add_sink(4).build(num_threads=threads)).auto_stop():
                    yield from pipeline

        return Epochs

    return start
