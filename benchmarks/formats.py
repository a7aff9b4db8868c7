"""How fast is each format read, what does opening it cost, how much room and memory does it take?

The same samples in every format: 784 numbers and a label, or 20 KB of bytes (an encoded picture) and a label. Compared
with our own store. Unit: samples a second of processor time, all threads counted. Measured: a sweep shuffled as a whole
where the format can be read at random, else in windows of an eighth of the data, 256 or 64 samples a minibatch, in the
page cache, after one that does not count. Also noted, each in a fresh process: wall time of the first opening (with
an index where the format needs one, the files in the page cache) and of the next, samples a second of wall time when
the files are evicted, and private memory at its peak over what it was before opening. docs/formats/which.md shows the
figures.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks import data, litdata, mds, tfrecord
from benchmarks.disk import evict, files, fill
from benchmarks.harness import Answer, Stage, spread
from benchmarks.memory import usage
from feedline.mxnet import recordio

PICTURE = 20 << 10
#: Rows in a batch, a row group or a chunk of the formats that have such.
TOGETHER = 1000
PICTURES_TOGETHER = 100
NUMBERS = {"x": fl.Stream(data.PIXELS), "y": fl.Stream((), "int64")}


class Samples(NamedTuple):
    """What is written.

    Attributes:
        x: rows of numbers, or of bytes.
        y: labels.
        size: samples a minibatch.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    size: int


class Kept(NamedTuple):
    """A format that keeps samples.

    Attributes:
        write: writes samples to a path.
        streams: the streams to declare, none where the file's own schema will do.
        suffix: of the path, where the content alone does not identify the format.
    """

    write: Callable[[Path, Samples], None]
    streams: Mapping[str, Any] = MappingProxyType({})
    suffix: str = ""


def run(stage: Stage) -> list[Answer]:
    """Measure numbers, then pictures."""
    rng = np.random.default_rng(1)
    rows, pictures = stage.size(50_000, 2_000), stage.size(20_000, 500)
    ink = rng.integers(1, 256, (rows, data.PIXELS)) * (rng.random((rows, data.PIXELS)) < 0.2)
    numbers = Samples(ink.astype(np.float32), rng.integers(0, data.LABELS, rows), 256)
    encoded = Samples(rng.integers(0, 256, (pictures, PICTURE), np.uint8), rng.integers(0, data.LABELS, pictures), 64)
    return [
        *compared(stage, "784 numbers and a label", OF_NUMBERS, numbers),
        *compared(stage, "20 KB of bytes and a label", OF_BYTES, encoded),
    ]


def compared(stage: Stage, what: str, kinds: dict[str, Kept], samples: Samples) -> list[Answer]:
    """Measure one kind of samples in every format."""
    found = {}
    for name, kept in kinds.items():
        folder = stage.data / "bench-formats"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = folder / f"samples{kept.suffix}"
        kept.write(path, samples)
        fill(path)
        nbytes = sum(Path(file).stat().st_size for file in files(path))
        asked = ["bytes" if kinds is OF_BYTES else "numbers", name, str(path), str(samples.size)]
        found[name] = {"bytes": nbytes} | watch(asked, stage.rounds(5))
        evict(path)
        found[name]["evicted"] = watch(asked, 0)["wall"][0]
        shutil.rmtree(folder)
    store = statistics.median(found["store"]["rates"])
    return [
        Answer(
            question=f"{what}, as {name}, shuffled {'as a whole' if seen['whole'] else 'in windows'}",
            unit="samples/s",
            ours=statistics.median(seen["rates"]),
            peer="store",
            peer_value=store,
            ratio=statistics.median(seen["rates"]) / store,
            spread=spread(seen["rates"]),
            note=f"{seen['bytes'] / 1e6:,.0f} MB on disk; opened in {seen['first'] * 1e3:,.0f} ms, again in "
            f"{seen['again'] * 1e3:,.0f} ms; evicted {seen['evicted']:,.0f} samples a second; "
            f"{seen['private'] / 1e6:,.0f} MB of private memory",
            detail=seen,
        )
        for name, seen in found.items()
    ]


def watch(asked: list[str], rounds: int) -> dict[str, Any]:
    """Start a reader in a fresh process and watch its memory until it ends."""
    command = [sys.executable, "-m", "benchmarks.formats", *asked, str(rounds)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, usage(process.pid)["private"])
            time.sleep(0.01)
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"the reading process failed with exit code {process.returncode}")
    found = json.loads(said)
    return {**found, "private": peak - found.pop("start")}


def read(kinds: dict[str, Kept], name: str, path: str, size: int, rounds: int) -> dict[str, Any]:
    """Open twice in the fresh process, then sweep. With no rounds, one sweep in file order."""
    streams = kinds[name].streams
    start = usage("self")["private"]
    opened = []
    for _ in range(2):
        began = time.perf_counter()
        corpus = fl.open_corpus(path, streams=streams)
        opened.append(time.perf_counter() - began)
    rates, wall = [], []
    window = fl.Window(bytes=max(1, sum(info.bytes for info in corpus.chunks()) // 8))
    shuffle = True if (corpus.capability(fl.RandomAccess) is not None) else window
    with fl.MinibatchSource(corpus, shuffle=shuffle, seed=1, partition=(0, 1)) as source:
        for _ in range(rounds + 1):
            left, cpu, began = source.num_sequences, time.process_time(), time.perf_counter()
            while left > 0:
                left -= source.next_minibatch(size).num_sequences
            rates.append(source.num_sequences / (time.process_time() - cpu))
            wall.append(source.num_sequences / (time.perf_counter() - began))
    found = {"start": start, "first": opened[0], "again": opened[1], "rates": rates[1:] or rates, "wall": wall}
    return found | {"whole": (corpus.capability(fl.RandomAccess) is not None)}


# ---- writers ------------------------------------------------------------------------------------------------


def corpus_of(samples: Samples) -> fl.Deserializer:
    """Return the samples as a corpus in memory."""
    if samples.x.dtype == np.uint8:
        return fl.ArrayDeserializer(x=[row.tobytes() for row in samples.x], y=samples.y)
    return fl.ArrayDeserializer(x=samples.x, y=samples.y)


def write_store(path: Path, samples: Samples) -> None:
    """Write our own store."""
    fl.convert(corpus_of(samples), path)


def write_npy(path: Path, samples: Samples) -> None:
    """Write a folder of one array a stream."""
    path.mkdir()
    np.save(path / "x.npy", samples.x)
    np.save(path / "y.npy", samples.y)


def batches(samples: Samples) -> Iterator[Any]:
    """Yield record batches of Arrow."""
    import pyarrow as pa

    for i in range(0, len(samples.y), TOGETHER):
        x = samples.x[i : i + TOGETHER]
        if x.dtype == np.uint8:
            column = pa.array([row.tobytes() for row in x], pa.binary())
        else:
            column = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1])
        yield pa.record_batch({"x": column, "y": pa.array(samples.y[i : i + TOGETHER])})


def write_arrow(path: Path, samples: Samples) -> None:
    """Write an Arrow IPC file."""
    import pyarrow as pa

    first = next(batches(samples))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, first.schema) as writer:
        for batch in batches(samples):
            writer.write_batch(batch)


def write_parquet(path: Path, samples: Samples) -> None:
    """Write Parquet as pyarrow does by default, a row group a batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_batches(batches(samples)), path, row_group_size=TOGETHER)


def write_mds(path: Path, samples: Samples) -> None:
    """Write a folder of MDS shards."""
    rows = zip(samples.x, samples.y.tolist(), strict=True)
    if samples.x.dtype == np.uint8:
        sizes = np.uint32(PICTURE).tobytes()
        encoded = (sizes + row.tobytes() + label.to_bytes(8, "little") for row, label in rows)
        mds.write(path, {"x": "bytes", "y": "int"}, encoded, None)
    else:
        encoded = (row.tobytes() + label.to_bytes(8, "little") for row, label in rows)
        mds.write(path, {"x": "ndarray:float32:784", "y": "int"}, encoded, None)


def write_litdata(path: Path, samples: Samples) -> None:
    """Write a folder of LitData's chunks of items."""
    kind = "bytes" if samples.x.dtype == np.uint8 else "no_header_numpy:9"
    rows = ((row.tobytes(), label) for row, label in zip(samples.x, samples.y.tolist(), strict=True))
    litdata.write(path, {"x": kind, "y": "int"}, rows, None)


def write_tfrecord(path: Path, samples: Samples) -> None:
    """Write a TFRecord file of Examples."""
    kind = tfrecord.BYTES if samples.x.dtype == np.uint8 else tfrecord.FLOATS
    with open(path, "wb") as file:
        for row, label in zip(samples.x, samples.y.tolist(), strict=True):
            file.write(tfrecord.record(x=(kind, row.tobytes()), y=(tfrecord.INTEGERS, tfrecord.varint(label))))


def write_recordio(path: Path, samples: Samples) -> None:
    """Write a RecordIO file."""
    file = recordio.MXRecordIO(str(path), "w")
    for i, (row, label) in enumerate(zip(samples.x, samples.y.tolist(), strict=True)):
        file.write(recordio.pack(recordio.IRHeader(0, float(label), i, 0), row.tobytes()))
    file.close()


def write_tar(path: Path, samples: Samples) -> None:
    """Write one shard, numbers as ``.npy``."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for i, (row, label) in enumerate(zip(samples.x, samples.y.tolist(), strict=True)):
            body = row.tobytes()
            if row.dtype != np.uint8:
                file = io.BytesIO()
                np.save(file, row)
                body = file.getvalue()
            for suffix, content in (("x" if row.dtype == np.uint8 else "x.npy", body), ("y.cls", b"%d" % label)):
                member = tarfile.TarInfo(f"{i:08}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_hdf5(path: Path, samples: Samples) -> None:
    """Write a file of two datasets in chunks, uncompressed."""
    import h5py

    with h5py.File(path, "w") as file:
        if samples.x.dtype == np.uint8:
            kind = h5py.vlen_dtype(np.uint8)
            x = file.create_dataset("x", len(samples.y), kind, chunks=(PICTURES_TOGETHER,))
            for i, row in enumerate(samples.x):
                x[i] = row
        else:
            file.create_dataset("x", data=samples.x, chunks=(TOGETHER, samples.x.shape[1]))
        file.create_dataset("y", data=samples.y, chunks=True)


def write_zarr(path: Path, samples: Samples) -> None:
    """Write a store of two arrays, of the same chunks, uncompressed."""
    import zarr.dtype

    group = zarr.open_group(str(path), mode="w")
    if samples.x.dtype == np.uint8:
        encoded = np.empty(len(samples.y), object)
        encoded[:] = [row.tobytes() for row in samples.x]
        kind = zarr.dtype.VariableLengthBytes()
        chunks = (PICTURES_TOGETHER,)
        group.create_array("x", shape=encoded.shape, dtype=kind, chunks=chunks, compressors=None)[:] = encoded
    else:
        group.create_array("x", data=samples.x, chunks=(TOGETHER, samples.x.shape[1]), compressors=None)
    group.create_array("y", data=samples.y, compressors=None)


def write_images(path: Path, samples: Samples) -> None:
    """Write a folder of files for each class. Only the head of their bytes is a JPEG."""
    for i, (row, label) in enumerate(zip(samples.x, samples.y.tolist(), strict=True)):
        folder = path / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:08}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + row[4:].tobytes())


def write_ctf(path: Path, samples: Samples) -> None:
    """Write CTF, sparse numbers dense."""
    fl.write_ctf(path, x=fl.Value.from_dense(samples.x), y=fl.Value.from_dense(samples.y[:, None].astype(np.float32)))


def write_cbf(path: Path, samples: Samples) -> None:
    """Write CBF."""
    fl.write_cbf(path, x=samples.x, y=samples.y[:, None].astype(np.float32))


def write_jsonl(path: Path, samples: Samples) -> None:
    """Write JSON Lines."""
    with open(path, "w", encoding="ascii") as file:
        for row, label in zip(samples.x.astype(int).tolist(), samples.y.tolist(), strict=True):
            file.write(json.dumps({"x": row, "y": label}) + "\n")


def write_jsonl_zst(path: Path, samples: Samples) -> None:
    """Write JSON Lines in frames of Zstandard."""
    import pyarrow as pa

    write_jsonl(path, samples)
    text = path.read_bytes()
    path.write_bytes(
        b"".join(pa.compress(text[i : i + (4 << 20)], "zstd", asbytes=True) for i in range(0, len(text), 4 << 20))
    )


def write_csv(path: Path, samples: Samples) -> None:
    """Write CSV."""
    with open(path, "w", encoding="ascii", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*(f"x{i}" for i in range(samples.x.shape[1])), "y"])
        for row, label in zip(samples.x.astype(int).tolist(), samples.y.tolist(), strict=True):
            rows.writerow([*row, label])


OF_NUMBERS = {
    "store": Kept(write_store),
    "NumPy arrays": Kept(write_npy),
    "Arrow": Kept(write_arrow),
    "Parquet": Kept(write_parquet),
    "MDS": Kept(write_mds),
    "LitData": Kept(write_litdata),
    "TFRecord": Kept(write_tfrecord),
    "tar": Kept(write_tar),
    "HDF5": Kept(write_hdf5),
    "Zarr": Kept(write_zarr),
    "CBF": Kept(write_cbf, {"x": fl.Stream(data.PIXELS), "y": fl.Stream(1)}),
    "CTF": Kept(write_ctf, {"x": fl.Stream(data.PIXELS), "y": fl.Stream(1)}, ".ctf"),
    "JSON Lines": Kept(write_jsonl, NUMBERS),
    "JSON Lines in Zstandard": Kept(write_jsonl_zst, NUMBERS),
    "CSV": Kept(write_csv, {"x": fl.Stream(data.PIXELS, field="x*"), "y": fl.Stream((), "int64")}, ".csv"),
}
OF_BYTES = {
    "store": Kept(write_store),
    "Arrow": Kept(write_arrow),
    "Parquet": Kept(write_parquet),
    "MDS": Kept(write_mds),
    "LitData": Kept(write_litdata),
    "TFRecord": Kept(write_tfrecord),
    "RecordIO": Kept(write_recordio),
    "tar": Kept(write_tar),
    "HDF5": Kept(write_hdf5, {"x": fl.Stream(dtype="bytes"), "y": fl.Stream((), "int64")}),
    "Zarr": Kept(write_zarr),
    "a folder of classes": Kept(write_images),
}


if __name__ == "__main__":
    of, name, path, size, rounds = sys.argv[1:]
    print(json.dumps(read(OF_BYTES if of == "bytes" else OF_NUMBERS, name, path, int(size), int(rounds))))
