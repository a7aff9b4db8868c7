"""How fast does a rank of a mesh get its share: 2 data x 2 tensor ranks, shuffled rows of 784 float32, 256 a batch?

Unit: samples a second of wall time, from the first batch on. Measured: rank 0 of four alone, whose share is 20,000 of
40,000 rows, in the page cache. Its process group exchanges nothing, so that the other ranks need not run. Ranks 0 and
1, and ranks 2 and 3, get the same rows: feedline takes the mesh, MosaicML Streaming a replication, samplers and Grain
the place along the data dimension. The untimed check reads the shares of ranks 0 and 2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers import map_style, mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import makers
from benchmarks.peers.dense import BATCH, Batches, Rows, blocks
from benchmarks.peers.map_style import SEED, as_it_is

DATA_RANKS, TENSOR_RANKS = 2, 2


def mesh_of(given: Given) -> Any:
    """Return the mesh, in a process that is the first rank with this share."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    world = DATA_RANKS * TENSOR_RANKS
    dist.init_process_group("fake", store=FakeStore(), rank=given.share * TENSOR_RANKS, world_size=world)
    return init_device_mesh("cpu", (DATA_RANKS, TENSOR_RANKS), mesh_dim_names=("dp", "tp"))


# ---- contenders ----------------------------------------------------------------------------------------------


def store(given: Given) -> Opened:
    """A loader over a store and the mesh."""
    import pyarrow  # noqa: F401

    from feedline import DataLoader

    mesh = mesh_of(given)
    return lambda: DataLoader(
        given.data / "store",
        batch_size=BATCH,
        shuffle=True,
        seed=SEED,
        partition=mesh,
        num_workers=given.workers,
    )


def dataset(given: Given) -> Opened:
    """A loader over a dataset and the mesh."""
    return map_style.ours(Batches, BATCH, as_it_is, partition=mesh_of(given))(given)


def torch_loader(batched: bool, stateful: bool = False) -> Callable[[Given], Opened]:
    """torch's loader, or torchdata's with a state, with a sampler of the data ranks."""

    def start(given: Given) -> Opened:
        if stateful:
            from torchdata.stateful_dataloader import StatefulDataLoader as Loader
            from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler as Sampler
        else:
            from torch.utils.data import DataLoader as Loader
            from torch.utils.data import DistributedSampler as Sampler

        data = mesh_of(given)["dp"]

        class Epochs:
            """Another order each time."""

            def __init__(self) -> None:
                rows = (Batches if batched else Rows)(given.data)
                self.sampler = Sampler(rows, num_replicas=data.size(), rank=data.get_local_rank(), seed=SEED)
                self.loader = Loader(
                    rows,
                    batch_size=BATCH,
                    sampler=self.sampler,
                    collate_fn=as_it_is if batched else None,
                    num_workers=given.workers,
                    persistent_workers=given.workers > 0,
                )
                self.epoch = -1

            def __iter__(self) -> Iterator[Any]:
                self.epoch += 1
                self.sampler.set_epoch(self.epoch)
                return iter(self.loader)

        return Epochs

    return start


def grain(given: Given) -> Opened:
    """Grain: a slice of the shuffled rows."""
    import grain

    def opened() -> Any:
        rows = grain.MapDataset.source(Rows(given.data)).shuffle(seed=SEED)[given.share :: DATA_RANKS]
        batches = rows.batch(BATCH).to_iter_dataset(grain.ReadOptions(0, 0))
        if given.workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given.workers))
        return batches

    return opened


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming with a replication. It asks launchers' variables which rank this is. A machine for each rank,
    as those of one machine would wait for each other."""
    streaming = mosaic.imported()
    mesh = mesh_of(given)
    os.environ |= {"RANK": str(mesh.get_rank()), "WORLD_SIZE": str(mesh.size()), "LOCAL_WORLD_SIZE": "1"}

    def opened() -> Any:
        rows = streaming.StreamingDataset(
            local=str(given.data / "mds"),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=BATCH,
            replication=TENSOR_RANKS,
        )
        return streaming.StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


WORKLOAD = Workload(
    title="a rank's share: on a mesh of 2 x 2, 784 floats, 256 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, store, "a store", form="store"),
        Contender(OURS, dataset, "the dataset with __getitems__"),
        Contender("torch DataLoader", torch_loader(batched=False), "DistributedSampler, a row a call"),
        Contender("torch DataLoader", torch_loader(batched=True), "DistributedSampler, __getitems__"),
        Contender("StatefulDataLoader", torch_loader(batched=True, stateful=True), needs=("torchdata",)),
        Contender("Grain", grain, needs=("grain",), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",)),
    ],
    makers=makers(blocks, "raw", "store", "MDS"),
    count=(40_000, 4_000),
    batch=BATCH,
    shares=DATA_RANKS,
    absent={"LitData": "its streaming dataset divides rows among all ranks, so that tensor ranks would get others."},
)
