"""How fast are padded minibatches of token sequences: int32, 60 long on average, 64 a batch, shuffled?

Unit: sequences a second of wall time, from the first batch on. Measured: 40,000 sequences, lengths lognormal and at
most 1,024, 10 MB, in each peer's own format in the page cache. A batch is padded with zeros to its longest sequence,
and has the lengths and numbers of its sequences. Peers that cannot shuffle as a whole mix as in `dense`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import map_style, mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import Block, makers, plain, shards
from benchmarks.peers.map_style import SEED

BATCH, BUFFER, VOCABULARY = 64, 5_000, 50_000


def blocks(count: int) -> Iterator[Block]:
    """Sequences of random tokens."""
    rng = np.random.default_rng(5)
    for start in range(0, count, 25_000):
        ids = np.arange(start, min(start + 25_000, count))
        lengths = np.clip(np.exp(rng.normal(3.79, 0.785, len(ids))), 1, 1024).astype(int)
        yield {"x": [rng.integers(0, VOCABULARY, length, np.int32) for length in lengths], "id": ids}


class Sequences:
    """A map-style dataset over mapped tokens and their bounds."""

    def __init__(self, folder: Path) -> None:
        self.x, self.bounds = plain(folder), np.load(folder / "x.bounds.npy")

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.array(self.x[self.bounds[index] : self.bounds[index + 1]]), index


def padded(samples: Sequence[Any]) -> Any:
    """A collate function: tokens padded by `pad_sequence`, lengths, numbers."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens = [torch.as_tensor(sample[0]) for sample in samples]
    lengths = torch.tensor([len(one) for one in tokens])
    return pad_sequence(tokens, batch_first=True), lengths, torch.tensor([int(sample[1]) for sample in samples])


def padded_dictionaries(samples: Sequence[dict[str, Any]]) -> Any:
    """The same for samples that are dictionaries."""
    return padded([(sample["x"], sample["id"]) for sample in samples])


def padded_numpy(samples: Sequence[Any]) -> Any:
    """The same in NumPy."""
    lengths = np.array([len(sample[0]) for sample in samples])
    out = np.zeros((len(samples), lengths.max()), np.int32)
    for row, (tokens, _) in zip(out, samples, strict=True):
        row[: len(tokens)] = tokens
    return out, lengths, np.array([sample[1] for sample in samples])


# ---- contenders ----------------------------------------------------------------------------------------------


def store(given: Given) -> Opened:
    """A loader over a store, which pads by itself."""
    import pyarrow  # noqa: F401

    from feedline import DataLoader

    return lambda: DataLoader(
        given.data / "store", batch_size=BATCH, shuffle=True, seed=SEED, num_workers=given.workers
    )


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming over shards that are there."""
    streaming = mosaic.imported()

    def opened() -> Any:
        rows = streaming.StreamingDataset(
            local=str(given.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH
        )
        return streaming.StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, collate_fn=padded_dictionaries
        )

    return opened


def litdata(given: Given) -> Opened:
    """LitData's loader."""
    from litdata import StreamingDataLoader, StreamingDataset

    def opened() -> Any:
        rows = StreamingDataset(str(given.data), shuffle=True, drop_last=False, seed=SEED)
        return StreamingDataLoader(rows, batch_size=BATCH, num_workers=given.workers, collate_fn=padded_dictionaries)

    return opened


def webdataset(given: Given) -> Opened:
    """WebDataset: batches are made in the workers."""
    import webdataset as wds

    def opened() -> Any:
        tars = shards(given.data, "*.tar")
        rows = wds.WebDataset(tars, shardshuffle=len(tars), seed=SEED, empty_check=False).shuffle(BUFFER)
        rows = rows.decode().to_tuple("x.npy", "cls").batched(BATCH, collation_fn=padded)
        return wds.WebLoader(rows, batch_size=None, num_workers=given.workers)

    return opened


def hugging_face(given: Given) -> Opened:
    """``datasets`` in torch's format, through torch's loader."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        rows = datasets.load_from_disk(str(given.data / "arrow")).with_format("torch")
        return DataLoader(
            rows,
            batch_size=BATCH,
            shuffle=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
            collate_fn=padded_dictionaries,
        )

    return opened


def tensorflow(given: Given) -> Opened:
    """tf.data: parsed as a whole batch, then decoded, which pads."""
    import tensorflow as tf

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(
            records, {"x": tf.io.FixedLenFeature([], tf.string), "id": tf.io.FixedLenFeature([], tf.int64)}
        )
        sizes = tf.strings.length(found["x"])
        tokens = tf.io.decode_raw(found["x"], tf.int32, fixed_length=tf.reduce_max(sizes))
        return tokens, sizes // 4, found["id"]

    class Epochs:
        """As NumPy arrays, which share the tensors' memory."""

        def __init__(self) -> None:
            files = tf.data.Dataset.from_tensor_slices(shards(given.data, "*.tfrecord")).shuffle(100, seed=SEED)
            rows = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE)
            batches = rows.shuffle(BUFFER, seed=SEED).batch(BATCH)
            batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            options = tf.data.Options()
            options.threading.private_threadpool_size = max(given.workers, 1)
            self.batches = batches.prefetch(tf.data.AUTOTUNE).with_options(options)

        def __iter__(self) -> Iterator[Any]:
            return iter(self.batches.as_numpy_iterator())

    return Epochs


WORKLOAD = Workload(
    title="token sequences: 60 tokens on average, padded, 64 a batch",
    unit="sequences/s",
    contenders=[
        Contender(OURS, store, "a store", form="store"),
        Contender(OURS, map_style.ours(Sequences, BATCH, padded), "the dataset"),
        Contender("torch DataLoader", map_style.torch_loader(Sequences, BATCH, padded)),
        Contender("torchdata.nodes", map_style.nodes(Sequences, BATCH, padded), needs=("torchdata",)),
        Contender("Grain", map_style.grain(Sequences, BATCH, padded_numpy), needs=("grain",), delivers="NumPy"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS", needs=("streaming",)),
        Contender("LitData", litdata, form="LitData", needs=("litdata",), order="chunks"),
        Contender("WebDataset", webdataset, form="tar", needs=("webdataset",), order="buffer"),
        Contender("HF datasets", hugging_face, form="Arrow", needs=("datasets",)),
        Contender("SPDL", map_style.spdl(Sequences, BATCH, padded), needs=("spdl",)),
        Contender("tf.data", tensorflow, form="TFRecord", needs=("tensorflow",), order="buffer", delivers="NumPy"),
    ],
    makers=makers(blocks, "raw", "store", "MDS", "LitData", "tar", "Arrow", "TFRecord"),
    count=(40_000, 4_000),
    batch=BATCH,
    absent={
        "StatefulDataLoader": "without a state to save it is torch's DataLoader.",
        "Ray Data": "its batches are tensors of one shape; padding them is left to a function of the caller's.",
    },
)
