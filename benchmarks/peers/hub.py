"""How fast is the first epoch of a data set on a hub: Parquet files by ``hf://``, samples of 20 KB, 64 a batch?

Unit: samples a second of wall time, from the constructor to the end of the epoch, with an empty cache. The hub is a
process on loopback that lists files and redirects requests for their bytes to the object store of `remote`, with 5 ms
before each answer and 200 MB/s, which is 10,000 samples a second. Measured: 3,200 samples, 66 MB. Processor time and
memory include the servers.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import makers
from benchmarks.peers.map_style import SEED
from benchmarks.peers.remote import BATCH, BUFFER, blocks, listed, server_of

REPOSITORY = "me/pictures"


@functools.cache
def hub_of(folder: Path) -> str:
    """Return the address of a hub whose data set is a folder. It ends with this process."""
    elsewhere = f"{server_of(folder.parent).url}/{folder.name}"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.hub", REPOSITORY, str(folder), elsewhere],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    _PROCESSES.append(process)
    return process.stdout.readline().strip()


_PROCESSES: list[subprocess.Popen[str]] = []


def served(given: Given) -> str:
    """Start a hub of the parent of the data's folder. Return the address of it, and set the variables that peers read.

    Call it before huggingface_hub is imported, which reads them once.
    """
    url = hub_of(given.data.parent)
    os.environ |= {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return url


def pattern(given: Given) -> str:
    """Return the address of all files."""
    return f"hf://datasets/{REPOSITORY}/{given.data.name}/*.parquet"


def ours(window: int | None) -> Callable[[Given], Opened]:
    """A loader over the files, shuffled as a whole or in windows."""

    def start(given: Given) -> Opened:
        url = served(given)
        import pyarrow  # noqa: F401

        import feedline as fl

        shuffle = True if window is None else fl.Window(bytes=window)

        def opened() -> Any:
            remote = fl.Remote(cache=given.scratch / given.data.name, storage_options={"endpoint": url})
            corpus = fl.open_corpus(pattern(given), remote=remote)
            return fl.DataLoader(corpus, batch_size=BATCH, shuffle=shuffle, seed=SEED, num_workers=given.workers)

        return opened

    return start


def hf_datasets(given: Given) -> Opened:
    """Hugging Face's datasets, streaming files one at a time: it waits five seconds after a mix of several."""
    served(given)
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_dataset("parquet", data_files={"train": pattern(given)}, split="train", streaming=True)
        rows = rows.shuffle(seed=SEED, buffer_size=BUFFER, max_buffer_input_shards=1)
        return DataLoader(rows, batch_size=BATCH, collate_fn=collated, num_workers=given.workers)

    return opened


def plain_torch(given: Given) -> Opened:
    """A dataset by hand over the hub's file system and pyarrow, in the order of the files."""
    served(given)
    from huggingface_hub import HfFileSystem
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            import pyarrow.parquet as pq

            system, worker = HfFileSystem(), get_worker_info()
            first, count = (worker.id, worker.num_workers) if worker else (0, 1)
            for path in sorted(system.glob(pattern(given).removeprefix("hf://")))[first::count]:
                with system.open(path) as file:
                    for batch in pq.ParquetFile(file, pre_buffer=True).iter_batches(BATCH):
                        yield batch.column("jpg").to_pylist(), batch.column("id").to_numpy()

    return lambda: DataLoader(Rows(), batch_size=None, num_workers=given.workers)


def litdata(given: Given) -> Opened:
    """LitData over Parquet files of a hub, which it downloads whole."""
    served(given)
    from litdata import StreamingDataLoader, StreamingDataset

    def opened() -> Any:
        rows = StreamingDataset(
            f"hf://datasets/{REPOSITORY}/{given.data.name}",
            cache_dir=str(given.scratch / given.data.name),
            shuffle=True,
            drop_last=False,
            seed=SEED,
        )
        return StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers, collate_fn=collated)

    return opened


def collated(rows: Any) -> Any:
    """Bytes as they are, numbers as an array, of rows of datasets."""
    return listed([(row["jpg"], row["id"]) for row in rows])


WORKLOAD = Workload(
    title="a hub, the first epoch of Parquet files by hf://, samples of 20 KB, 64 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(None), form="Parquet"),
        Contender(OURS, ours(16 << 20), "in windows of 16 MiB", form="Parquet", order="windows"),
        Contender("HF datasets", hf_datasets, "streaming", form="Parquet", needs=("datasets",), order="buffer"),
        Contender("torch DataLoader", plain_torch, "HfFileSystem and pyarrow", form="Parquet", order="none"),
        Contender("LitData", litdata, form="Parquet", needs=("litdata",), workers=(0,), order="chunks"),
    ],
    makers=makers(blocks, "Parquet"),
    count=(3_200, 640),
    batch=BATCH,
    check=320,
    whole=True,
    absent={
        "MosaicML Streaming": "it reads its own shards from a hub, and the row of the object store has them.",
        "WebDataset": "it reads tars by HTTP, and the row of the object store has them.",
        "Ray Data, tf.data, torchdata, Grain, SPDL": "they have no client of a hub, or read by fsspec as torch's row.",
    },
)
