"""How fast is the first epoch of data in an object store: samples of 20 KB, shuffled, 64 a batch?

Unit: samples a second of wall time, from the constructor to the end of the epoch, with an empty cache. The server is a
process on loopback, with 5 ms before each answer and 200 MB/s, which is 10,000 samples a second. Measured: 3,200
samples, 66 MB, in each peer's own shards of 32 MiB, or as objects of their own. Processor time and memory include the
server.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, samples, shards
from benchmarks.peers.map_style import SEED

BATCH, SIZE, BUFFER, LATENCY_S, LINK = 64, 20 << 10, 1000, 0.005, 200e6
REGION = "us-east-1"


def blocks(count: int) -> Iterator[Block]:
    """Random bytes."""
    rng = np.random.default_rng(4)
    for start in range(0, count, 1000):
        ids = np.arange(start, min(start + 1000, count))
        yield {"jpg": [rng.bytes(SIZE) for _ in ids], "id": ids}


def served(given: Given) -> Any:
    """Return a server of the parent of the data's folder, as a bucket. Set the variables that peers read."""
    server = server_of(given.data.parent.parent)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": REGION,
        "S3_ENDPOINT_URL": server.url,
        "AWS_ENDPOINT_URL": server.url,
    }
    return server


@functools.cache
def server_of(root: Path) -> Any:
    """Return a server of a folder of buckets, one in a process: clients keep addresses."""
    from tests.servers.object_store import ObjectStoreProcess

    return ObjectStoreProcess(root, latency_s=LATENCY_S, bytes_per_second=LINK)


def where(given: Given) -> str:
    """Bucket and key of the data."""
    return f"{given.data.parent.name}/{given.data.name}"


def ours(window: int | None) -> Any:
    """MDS shards, read in place, shuffled as a whole or in windows."""

    def start(given: Given) -> Opened:
        import obstore.store  # noqa: F401
        import pyarrow  # noqa: F401

        import feedline as fl
        from feedline import DataLoader, open_corpus

        server = served(given)
        shuffle = True if window is None else fl.Window(bytes=window)

        def opened() -> Any:
            corpus = open_corpus(
                f"s3://{where(given)}/mds",
                remote=fl.Remote(cache=given.scratch / given.data.name, storage_options=server.s3()),
            )
            return DataLoader(corpus, batch_size=BATCH, shuffle=shuffle, seed=SEED, num_workers=given.workers)

        return opened

    return start


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming over the same shards."""
    streaming = mosaic.imported()

    served(given)

    def opened() -> Any:
        rows = streaming.StreamingDataset(
            remote=f"s3://{where(given)}/mds",
            local=str(given.scratch / given.data.name),
            shuffle=True,
            shuffle_seed=SEED,
            batch_size=BATCH,
        )
        return streaming.StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


def litdata(given: Given) -> Opened:
    """LitData over its chunks."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    server = served(given)
    # It has no option for servers without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}

    def opened() -> Any:
        rows = StreamingDataset(
            f"s3://{where(given)}",
            cache_dir=str(given.scratch / given.data.name),
            shuffle=True,
            drop_last=False,
            seed=SEED,
            storage_options={"endpoint_url": server.url},
        )
        return StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers)

    return opened


def webdataset(given: Given) -> Opened:
    """WebDataset over HTTP."""
    import webdataset as wds

    server = served(given)

    def opened() -> Any:
        names = [os.path.basename(path) for path in shards(given.data, "*.tar")]
        urls = [f"{server.url}/{where(given)}/{name}" for name in names]
        rows = wds.WebDataset(urls, shardshuffle=len(urls), seed=SEED, empty_check=False).shuffle(BUFFER)
        rows = rows.map(number_of).to_tuple("jpg", "cls").batched(BATCH, collation_fn=listed)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers)

    return opened


def hf_datasets(given: Given) -> Opened:
    """Hugging Face's datasets, streaming tars by HTTP, one at a time: it waits five seconds after a mix of several."""
    os.environ["HF_HUB_OFFLINE"] = "0"  # it refuses any address otherwise
    import datasets
    from torch.utils.data import DataLoader

    server = served(given)

    def opened() -> Any:
        urls = [f"{server.url}/{where(given)}/{os.path.basename(path)}" for path in shards(given.data, "*.tar")]
        rows = datasets.load_dataset("webdataset", data_files={"train": urls}, split="train", streaming=True)
        rows = rows.cast_column("jpg", datasets.Image(decode=False)).shuffle(
            seed=SEED, buffer_size=BUFFER, max_buffer_input_shards=1
        )
        return DataLoader(rows, batch_size=BATCH, collate_fn=collated, num_workers=given.workers)

    return opened


def connector(mapped: bool) -> Any:
    """Amazon's connector of S3 and torch: an object a sample, map-style or in order."""

    def start(given: Given) -> Opened:
        from s3torchconnector import S3ClientConfig, S3IterableDataset, S3MapDataset
        from torch.utils.data import DataLoader

        server = served(given)

        def opened() -> Any:
            kind = S3MapDataset if mapped else S3IterableDataset
            rows = kind.from_prefix(
                f"s3://{where(given)}/files/",
                region=REGION,
                endpoint=server.url,
                transform=object_of,
                s3client_config=S3ClientConfig(force_path_style=True),
                **({} if mapped else {"enable_sharding": True}),
            )
            return DataLoader(rows, BATCH, shuffle=mapped or None, collate_fn=listed, num_workers=given.workers)

        return opened

    return start


def object_of(reader: Any) -> tuple[bytes, int]:
    """Return the bytes of an object, and the number in its name."""
    return reader.read(), int(os.path.basename(reader.key))


def write_files(folder: Path, count: int) -> None:
    """A file for each sample."""
    (folder / "files").mkdir(parents=True)
    for sample in samples(blocks(count)):
        (folder / "files" / f"{sample['id']:08}").write_bytes(sample["jpg"])


def collated(rows: Any) -> Any:
    """Bytes as they are, numbers as an array, of rows of datasets."""
    return [row["jpg"]["bytes"] for row in rows], np.array([int(row["cls"]) for row in rows])


def number_of(sample: Any) -> Any:
    """Decode the number of a sample."""
    return sample | {"cls": int(sample["cls"])}


def listed(samples: Any) -> Any:
    """Bytes as they are, numbers as an array."""
    contents, ids = zip(*samples, strict=True)
    return list(contents), np.array(ids)


WORKLOAD = Workload(
    title="an object store, the first epoch of samples of 20 KB, 64 a batch",
    unit="samples/s",
    contenders=[
        Contender(OURS, ours(None), "MDS", form="MDS"),
        Contender(OURS, ours(16 << 20), "MDS, in windows of 16 MiB", form="MDS", order="windows"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming", "boto3")),
        Contender("LitData", litdata, form="LitData", needs=("litdata", "obstore"), order="chunks"),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer"),
        Contender("HF datasets", hf_datasets, "tars", form="tar", needs=("datasets",), order="buffer"),
        Contender(
            "torch DataLoader",
            connector(True),
            "S3MapDataset, an object a sample",
            form="files",
            needs=("s3torchconnector",),
        ),
        Contender(
            "torch DataLoader",
            connector(False),
            "S3IterableDataset, an object a sample",
            form="files",
            needs=("s3torchconnector",),
            order="none",
        ),
    ],
    makers=makers(blocks, "MDS", "LitData", "tar") | {"files": write_files},
    count=(3_200, 640),
    batch=BATCH,
    check=320,
    whole=True,
    absent={
        "Ray Data, tf.data": "they read object stores by pyarrow or a plugin; not set up here.",
        "torchdata, Grain, SPDL": "they have no client of an object store.",
    },
)
