"""Writes the same samples in each peer's own format, with its own writer.

A block is a dictionary of columns: ``id``, the number of the sample in the corpus, and arrays (n, ...), lists of arrays
of varying length, or lists of bytes. Shards of all formats are of `SHARD` bytes or so, uncompressed.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import mosaic

SHARD = 32 << 20
#: Column name to array, list of arrays, or list of bytes.
Block = dict[str, Any]
#: Makes the blocks of a number of samples.
Blocks = Callable[[int], Iterator[Block]]


def kind(column: Any) -> str:
    """Return "dense", "ragged" or "bytes"."""
    if isinstance(column, np.ndarray):
        return "dense"
    return "bytes" if isinstance(column[0], bytes) else "ragged"


def samples(blocks: Iterator[Block]) -> Iterator[dict[str, Any]]:
    """Yield the samples of blocks, one by one. ``id`` is an int."""
    for block in blocks:
        names = list(block)
        for values in zip(*block.values(), strict=True):
            sample = dict(zip(names, values, strict=True))
            yield sample | {"id": int(sample["id"])}


def makers(blocks: Blocks, *forms: str) -> dict[str, Callable[[Path, int], None]]:
    """Return a function for each format that writes blocks as it."""

    def maker(write: Callable[[Path, Iterator[Block]], None]) -> Callable[[Path, int], None]:
        def make(folder: Path, count: int) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write(folder, blocks(count))

        return make

    return {form: maker(WRITERS[form]) for form in forms}


# ---- readers of the plain form -------------------------------------------------------------------------------


def plain(folder: Path, name: str = "x") -> NDArray[Any]:
    """A dense column, mapped."""
    found: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return found


# ---- writers -------------------------------------------------------------------------------------------------


def write_plain(folder: Path, blocks: Iterator[Block]) -> None:
    """Write arrays as ``.npy``. Ragged columns and bytes become their values and int64 bounds."""
    held: dict[str, list[Any]] = {}
    for block in blocks:
        for name, column in block.items():
            held.setdefault(name, []).append(column)
    for name, columns in held.items():
        if kind(columns[0]) == "dense":
            np.save(folder / f"{name}.npy", np.concatenate(columns))
            continue
        values = list(itertools.chain.from_iterable(columns))
        if kind(columns[0]) == "bytes":
            values = [np.frombuffer(value, np.uint8) for value in values]
        np.save(folder / f"{name}.npy", np.concatenate(values))
        np.save(folder / f"{name}.bounds.npy", np.cumsum([0, *map(len, values)]))


def write_store(folder: Path, blocks: Iterator[Block]) -> None:
    """feedline's store."""
    import feedline as fl

    first = next(blocks)
    streams = {}
    for name, column in first.items():
        if kind(column) == "bytes":
            streams[name] = fl.Stream(dtype="bytes")
        else:
            shape = column.shape[1:] if kind(column) == "dense" else column[0].shape[1:]
            dtype = column.dtype if kind(column) == "dense" else column[0].dtype
            streams[name] = fl.Stream(shape, dtype)
    with fl.StoreWriter(folder / "store", fl.Schema(streams)) as store:
        for block in itertools.chain([first], blocks):
            values = {}
            for name, column in block.items():
                if kind(column) == "bytes":
                    values[name] = fl.Value.from_bytes(column)
                elif kind(column) == "dense":
                    values[name] = fl.Value.from_dense(column)
                else:
                    values[name] = fl.Value.from_dense(np.concatenate(column), np.cumsum([0, *map(len, column)]))
            store.write(values)


def write_mds(folder: Path, blocks: Iterator[Block]) -> None:
    """MosaicML's shards."""
    streaming = mosaic.imported()

    first = next(blocks)
    columns = {"id": "int"}
    for name, column in first.items():
        if kind(column) == "bytes":
            columns[name] = "bytes"
        elif kind(column) == "ragged":
            columns[name] = f"ndarray:{column[0].dtype}"
        elif name != "id":
            columns[name] = f"ndarray:{column.dtype}:{','.join(map(str, column.shape[1:]))}"
    with streaming.MDSWriter(out=str(folder / "mds"), columns=columns, size_limit=SHARD) as writer:
        for sample in samples(itertools.chain([first], blocks)):
            writer.write(sample)


def write_litdata(folder: Path, blocks: Iterator[Block]) -> None:
    """LitData's chunks."""
    import torch
    from litdata.streaming.writer import BinaryWriter

    # What `litdata.optimize` calls in its worker processes.
    writer = BinaryWriter(str(folder), chunk_bytes=SHARD)
    for number, sample in enumerate(samples(blocks)):
        writer[number] = {
            name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
            for name, value in sample.items()
        }
    writer.done()
    writer.merge()


def write_tar(folder: Path, blocks: Iterator[Block]) -> None:
    """WebDataset's shards."""
    import webdataset as wds

    with wds.ShardWriter(f"{folder}/shard-%03d.tar", maxsize=SHARD, maxcount=1 << 30, verbose=0) as writer:
        for sample in samples(blocks):
            fields = {
                (f"{name}.npy" if isinstance(value, np.ndarray) else name if isinstance(value, bytes) else "cls"): value
                for name, value in sample.items()
            }
            writer.write({"__key__": f"{sample['id']:08}", **fields})


def write_arrow(folder: Path, blocks: Iterator[Block]) -> None:
    """A dataset that Hugging Face's ``datasets`` saves."""
    import datasets

    datasets.disable_progress_bars()
    parts = [datasets.Dataset.from_dict(block, features=_features(block)) for block in blocks]
    datasets.concatenate_datasets(parts).save_to_disk(str(folder / "arrow"), max_shard_size=SHARD)


def _features(block: Block) -> Any:
    import datasets

    features = {}
    for name, column in block.items():
        if kind(column) == "bytes":
            features[name] = datasets.Value("binary")
        elif kind(column) == "ragged":
            features[name] = datasets.List(datasets.Value(str(column[0].dtype)))
        elif column.ndim == 1:
            features[name] = datasets.Value("int64")
        elif column.ndim == 2:
            features[name] = datasets.List(datasets.Value(str(column.dtype)), length=column.shape[1])
        else:
            features[name] = datasets.Array3D(column.shape[1:], str(column.dtype))
    return datasets.Features(features)


def write_arrayrecord(folder: Path, blocks: Iterator[Block]) -> None:
    """ArrayRecord, as Grain's documentation has it for random access: a group for each record."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1,uncompressed")
    for sample in samples(blocks):
        body = sample["x"] if isinstance(sample["x"], bytes) else sample["x"].tobytes()
        writer.write(sample["id"].to_bytes(8, "little") + body)
    writer.close()


def write_tfrecord(folder: Path, blocks: Iterator[Block]) -> None:
    """TFRecord files of Examples, arrays as their bytes."""
    import tensorflow as tf

    def feature(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        body = value if isinstance(value, bytes) else value.tobytes()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[body]))

    writer, room, number = None, 0, 0
    for sample in samples(blocks):
        features = tf.train.Features(feature={name: feature(value) for name, value in sample.items()})
        record = tf.train.Example(features=features).SerializeToString()
        if writer is None or room < len(record):
            if writer is not None:
                writer.close()
            writer, room = tf.io.TFRecordWriter(str(folder / f"rows-{number:03}.tfrecord")), SHARD
            number += 1
        writer.write(record)
        room -= len(record)
    if writer is not None:
        writer.close()


def write_parquet(folder: Path, blocks: Iterator[Block]) -> None:
    """Parquet files as Ray Data writes them: arrays as its tensors."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from ray.data.extensions import ArrowTensorArray

    for number, block in enumerate(blocks):
        columns = {
            name: ArrowTensorArray.from_numpy(column)
            if kind(column) == "dense" and column.ndim > 1
            else pa.array(column if kind(column) != "ragged" else list(column))
            for name, column in block.items()
        }
        pq.write_table(pa.table(columns), folder / f"rows-{number:03}.parquet", compression="none")


WRITERS: dict[str, Callable[[Path, Iterator[Block]], None]] = {
    "raw": write_plain,
    "store": write_store,
    "MDS": write_mds,
    "LitData": write_litdata,
    "tar": write_tar,
    "Arrow": write_arrow,
    "ArrayRecord": write_arrayrecord,
    "TFRecord": write_tfrecord,
    "Parquet": write_parquet,
}


def shards(folder: Path, pattern: str) -> Sequence[str]:
    """The files of a folder, as peers want to be told."""
    return [str(path) for path in sorted(folder.glob(pattern))]
