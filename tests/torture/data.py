"""The corpus of the suite: sequences whose content is determined by their number, in every format.

Sequence ``i`` has its number in each of its streams, so that delivered sequences can be compared with `truth` without
any code of feedline, and lost, repeated, misplaced and altered ones are distinct. A *twin* has the same lengths and
other content: the same sizes in binary files.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.feed.formats.shard_writers import write_litdata, write_mds

SEQUENCES, FEW = 400, 60
WORDS, CLASSES = 50, 5
CHUNK = 2 << 10
"""Bytes of a chunk: small, so that there are many."""

Item = tuple[int, str]
"""A sequence as delivered: its number, and a digest of its content."""


# ---- the truth ------------------------------------------------------------------------------------------


def length(i: int) -> int:
    """Samples of sequence ``i``."""
    return 1 + (i * 2654435761 >> 7) % 6


def words(i: int, twin: int = 0) -> np.ndarray:
    """Indices, int64 (length,)."""
    return (np.arange(length(i)) * 7 + i * 13 + 29 * twin) % WORDS


def x(i: int, twin: int = 0) -> np.ndarray:
    """float32 (3,), exact in few digits."""
    return np.array([i, i / 4 + twin, -i], np.float32)


def y(i: int, twin: int = 0) -> int:
    """A class."""
    return (i * 3 + twin) % CLASSES


@functools.cache
def text(i: int, twin: int = 0) -> str:
    """The text of sequence ``i``: its number, and its words."""
    return " ".join(map(str, [i, *words(i, twin).tolist()]))


def truth(i: int, twin: int = 0) -> str:
    """What `content` gives for sequence ``i`` where it is right."""
    return _digest(words(i, twin), x(i, twin), np.array([y(i, twin)]))


def _digest(*columns: np.ndarray) -> str:
    h = hashlib.blake2b(digest_size=6)
    for column in columns:
        h.update(np.asarray(column, np.float64).tobytes() + b"|")
    return h.hexdigest()


def content(minibatch: Mapping[str, fl.Value]) -> list[str]:
    """Return a digest per sequence, independent of the format's representation of streams."""
    columns = [_plain(minibatch[name]) for name in ("word", "x", "y")]
    return [_digest(*parts) for parts in zip(*columns, strict=True)]


def _plain(value: fl.Value) -> list[np.ndarray]:
    """Return the sequences of a stream as numbers, for one-hot samples their indices."""
    found = []
    for part in value.sequences():
        if hasattr(part, "indices"):
            one_hot = len(part.indices) == len(part.values) and (np.asarray(part.values) == 1).all()
            one_hot = one_hot and (np.diff(part.indptr) == 1).all()
            found.append(np.asarray(part.indices) if one_hot else np.asarray(part.values) + 0.123)
        else:
            found.append(np.asarray(part).reshape(-1))
    return found


def items(minibatch: Any) -> list[Item]:
    """Return the sequences of a minibatch."""
    return list(zip(map(_number, minibatch.ids.tolist()), content(minibatch), strict=True))


def _number(ordinal: int) -> int:
    """Return the number of a sequence by its ordinal, which has chunk and place where sizes of chunks are unknown."""
    chunk, place = ordinal >> 32, ordinal & 0xFFFFFFFF
    return chunk * Recorded.sizes + place


# ---- files ----------------------------------------------------------------------------------------------


def columns(count: int, twin: int = 0, which: Iterable[int] | None = None) -> dict[str, Any]:
    """The streams of sequences as `ArrayDeserializer` and `write_ctf` take them."""
    numbers = list(range(count)) if which is None else list(which)
    return {
        "word": fl.Value.one_hot([words(i, twin) for i in numbers], WORDS),
        "x": np.stack([x(i, twin) for i in numbers]),
        "y": fl.Value.one_hot([y(i, twin) for i in numbers], CLASSES),
    }


def values(count: int) -> dict[str, fl.Value]:
    """The streams of the first sequences as a `StoreWriter` takes them."""
    made = columns(count)
    return {**made, "x": fl.Value.from_dense(made["x"])}


STREAMS = {"word": fl.Stream(WORDS, sparse=True), "x": fl.Stream(3), "y": fl.Stream(CLASSES, sparse=True)}


def build(folder: Path) -> None:
    """Write all corpora below ``folder``: ``many`` and ``few``, and ``twin``, the few with other content."""
    for name, count, twin in (("many", SEQUENCES, 0), ("few", FEW, 0), ("twin", FEW, 1)):
        place = folder / name
        place.mkdir(parents=True)
        write(place, count, twin)
        # Cases that do not test indices find existing ones, whichever comes first.
        for name in ("ctf", "join", "tar", "mds", "zarr"):
            FORMATS[name](place).close()


def write(place: Path, count: int, twin: int = 0) -> None:
    """Write one corpus in every format, CTF without its index."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    streams = columns(count, twin)
    (place / "texts.jsonl").write_text("".join(json.dumps({"text": text(i, twin)}) + "\n" for i in range(count)))
    fl.write_ctf(place / "data.ctf", **streams)
    fl.convert(fl.ArrayDeserializer(streams), place / "data.store", chunk_bytes=CHUNK // 2, part_bytes=4 * CHUNK)
    table = pa.table(
        {
            "word": pa.array([words(i, twin).tolist() for i in range(count)], pa.list_(pa.int64())),
            "x": pa.FixedSizeListArray.from_arrays(pa.array(streams["x"].ravel()), 3),
            "y": pa.array([y(i, twin) for i in range(count)], pa.int64()),
        }
    )
    pq.write_table(table, place / "data.parquet", row_group_size=20, write_page_checksum=True)
    with pa.ipc.new_stream(str(place / "data.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=20)
    flat = {"x": streams["x"], "y": np.array([y(i, twin) for i in range(count)])}
    np.savez(place / "data.npz", **flat)
    write_stored(place, flat, count, twin)
    (place / "arrays").mkdir()
    for name, array in flat.items():
        np.save(place / "arrays" / f"{name}.npy", array)
    # For joins: features in the order of the corpus, labels in another.
    with open(place / "features.ctf", "w") as file:
        for i in range(count):
            for k, word in enumerate(words(i, twin)):
                dense = " ".join(f"{v:g}" for v in x(i, twin))
                file.write(f"{i} |word {word}:1{f' |x {dense}' if k == 0 else ''}\n")
    with open(place / "labels.ctf", "w") as file:
        for i in sorted(range(count), key=lambda i: (i * 37) % count):
            file.write(f"{i} |y {y(i, twin)}:1\n")
    with tarfile.open(place / "data.tar", "w") as archive:
        for i in range(count):
            npy = io.BytesIO()
            np.save(npy, x(i, twin))
            for suffix, content in (("npy", npy.getvalue()), ("cls", b"%d" % y(i, twin))):
                member = tarfile.TarInfo(f"{i:06}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    labels = [struct.pack("<q", y(i, twin)) for i in range(count)]
    dense = [x(i, twin).tobytes() for i in range(count)]
    columns_of_shards = {"x": ("ndarray:float32:3", 12), "y": ("int", 8)}
    write_mds(place / "data.mds", columns_of_shards, list(zip(dense, labels, strict=True)), 30)
    formats = {"word": "no_header_tensor:18", "x": "no_header_numpy:9", "y": "int"}
    encoded = [words(i, twin).tobytes() for i in range(count)]
    write_litdata(place / "data.litdata", formats, list(zip(encoded, dense, labels, strict=True)), 30)
    with open(place / "data.csv", "w") as file:
        file.write("x0,x1,x2,y\n")
        for i in range(count):
            file.write(",".join(f"{v:g}" for v in [*x(i, twin), y(i, twin)]) + "\n")


def write_stored(place: Path, flat: dict[str, Any], count: int, twin: int) -> None:
    """HDF5 and Zarr, in blocks of several sizes."""
    import h5py

    from tests.feed.formats import zarr_files

    with h5py.File(place / "data.h5", "w") as file:
        file.create_dataset("x", data=flat["x"], chunks=(17, 2), compression="gzip")
        file["y"] = flat["y"]
        vectors = file.create_dataset("word", (count,), h5py.vlen_dtype(np.int64), chunks=(23,))
        vectors[:] = [words(i, twin) for i in range(count)]
    shards = {"chunks": (5, 3), "shards": (30, 3)}
    zarr_files.write(place / "data.zarr", {"x": (flat["x"], shards), "y": (flat["y"], {"chunks": (17,)})})


# ---- opening --------------------------------------------------------------------------------------------


class Recorded(fl.UserDeserializer):
    """A user-defined format: chunks made in Python."""

    schema = fl.Schema(STREAMS)
    sizes = 17

    def __init__(self, count: int) -> None:
        self.count = count

    def num_chunks(self) -> int:
        return -(-self.count // self.sizes)

    def _numbers(self, chunk: int) -> range:
        return range(chunk * self.sizes, min(self.count, (chunk + 1) * self.sizes))

    def chunk_info(self, chunk: int) -> tuple[int, int]:
        numbers = self._numbers(chunk)
        return len(numbers), sum(length(i) for i in numbers)

    def chunk_lengths(self, chunk: int) -> list[int]:
        return [length(i) for i in self._numbers(chunk)]

    def get_chunk(self, chunk: int) -> dict[str, Any]:
        return columns(0, which=self._numbers(chunk))


class Unsized(Recorded):
    """Like `Recorded`, without declared sizes of chunks."""

    chunk_info = fl.UserDeserializer.chunk_info
    chunk_lengths = fl.UserDeserializer.chunk_lengths


class Walk(fl.UserMinibatchSource):
    """A user-defined source: the sequences in turn, with a state."""

    schema = fl.Schema(STREAMS)

    def __init__(self, count: int, sweeps: int) -> None:
        self.count, self.next, self.end = count, 0, sweeps * count

    def make_minibatch(self, num_samples: int, workers: int, rank: int, device: Any) -> Any:
        first, samples = self.next, 0
        while self.next < self.end:
            more = length(self.next % self.count)
            if samples and samples + more > num_samples:
                break
            samples, self.next = samples + more, self.next + 1
        if first == self.next:
            return None
        mine = [i % self.count for i in range(first, self.next) if i % workers == rank]
        ends = any(i % self.count == self.count - 1 for i in range(first, self.next))
        return fl.UserMinibatch(columns(0, which=mine), ends, samples, self.next - first, ids=mine)

    def get_checkpoint_state(self) -> dict[str, int]:
        return {"next": self.next}

    def restore_from_checkpoint(self, state: dict[str, int]) -> None:
        if type(state["next"]) is not int or not 0 <= state["next"] <= self.end:
            raise ValueError(f"expected 0 <= next <= {self.end}, got {state['next']!r}")
        self.next = state["next"]


def open_ctf(folder: Path, **options: Any) -> fl.Deserializer:
    return fl.CTFDeserializer(folder / "data.ctf", STREAMS, **{"chunk_size": CHUNK, **options})


def open_store(folder: Path, **options: Any) -> fl.Deserializer:
    return fl.StoreDeserializer(folder / "data.store", **options)


def open_parquet(folder: Path, **options: Any) -> fl.Deserializer:
    return fl.ParquetDeserializer(folder / "data.parquet", **options)


def open_arrow(folder: Path, **options: Any) -> fl.Deserializer:
    return fl.ArrowDeserializer(folder / "data.arrow", **options)


def open_join(folder: Path, **options: Any) -> fl.Deserializer:
    features = {name: STREAMS[name] for name in ("word", "x")}
    primary = fl.CTFDeserializer(folder / "features.ctf", features, chunk_size=CHUNK)
    return fl.Join(primary, fl.CTFDeserializer(folder / "labels.ctf", y=STREAMS["y"], chunk_size=CHUNK), **options)


def open_tar(folder: Path, **options: Any) -> fl.Deserializer:
    """An archive has one sample a key: the words are joined to it."""
    words = fl.CTFDeserializer(folder / "features.ctf", word=STREAMS["word"], chunk_size=CHUNK)
    streams = {"x": fl.Stream(3, field="npy"), "y": fl.Stream((), "int64", field="cls")}
    return fl.Join(words, fl.TarDeserializer(folder / "data.tar", streams, chunk_size=16 * CHUNK), **options)


def open_mds(folder: Path, **options: Any) -> fl.Deserializer:
    """Columns have one sample each: the words are joined to them."""
    words = fl.CTFDeserializer(folder / "features.ctf", word=STREAMS["word"], chunk_size=CHUNK)
    return fl.Join(words, fl.MDSDeserializer(folder / "data.mds", chunk_size=CHUNK // 4), **options)


def open_litdata(folder: Path, **options: Any) -> fl.Deserializer:
    streams = {"word": fl.Stream((), "int64"), "x": fl.Stream(3), "y": fl.Stream((), "int64")}
    return fl.LitDataDeserializer(folder / "data.litdata", streams, **{"chunk_size": CHUNK // 2, **options})


def open_hdf5(folder: Path, **options: Any) -> fl.Deserializer:
    return fl.HDF5Deserializer(folder / "data.h5", **{"chunk_sequences": 20, **options})


def open_zarr(folder: Path, **options: Any) -> fl.Deserializer:
    """A row is one sample: the words are joined to it."""
    words = fl.CTFDeserializer(folder / "features.ctf", word=STREAMS["word"], chunk_size=CHUNK)
    return fl.Join(words, fl.ZarrDeserializer(folder / "data.zarr", chunk_sequences=20), **options)


def open_arrays(folder: Path) -> fl.Deserializer:
    return fl.ArrayDeserializer(columns(count_of(folder)))


def open_user(folder: Path) -> fl.Deserializer:
    return Recorded(count_of(folder))


def open_unsized(folder: Path) -> fl.Deserializer:
    return Unsized(count_of(folder))


def count_of(folder: Path) -> int:
    """Sequences of the corpus in ``folder``."""
    return SEQUENCES if folder.name == "many" else FEW


FORMATS: dict[str, Callable[[Path], fl.Deserializer]] = {
    "ctf": open_ctf,
    "store": open_store,
    "parquet": open_parquet,
    "arrow": open_arrow,
    "hdf5": open_hdf5,
    "zarr": open_zarr,
    "arrays": open_arrays,
    "join": open_join,
    "tar": open_tar,
    "mds": open_mds,
    "litdata": open_litdata,
    "user": open_user,
    "unsized": open_unsized,
}


def settings(rng: Any, kind: str) -> dict[str, Any]:
    """Draw settings of a source over a format that determine its order."""
    made: dict[str, Any] = {"seed": rng.randrange(1 << 64), "max_sweeps": 2}
    windows = [fl.Window(chunks=rng.randint(1, 5))]
    if kind != "unsized":
        windows += [fl.Window(samples=rng.randint(20, 500)), fl.Window(bytes=rng.randint(100, 20_000))]
    made["shuffle"] = rng.choice([True, True, False, *windows])
    if kind != "unsized" and rng.random() < 0.4:
        made["order"] = rng.choice(["cntk", "feedline-1"])
        if made["order"] == "cntk" and getattr(made["shuffle"], "bytes", None) is not None:
            made["shuffle"] = True
    return made


def speed(rng: Any) -> dict[str, Any]:
    """Draw settings that must not change the result."""
    return {"threads": rng.randint(1, 3), "read_ahead": rng.choice([0, 1 << 12, 64 << 20])}


def in_order(source: Any, size: int = 100) -> list[Item]:
    """Return everything that a source delivers, to its end."""
    return [item for minibatch in source.minibatches(size) for item in items(minibatch)]


def check_sweeps(order: list[Item], count: int) -> str:
    """Describe defects of whole sweeps over ``count`` sequences. Empty if there are none."""
    for start in range(0, len(order), count):
        sweep = order[start : start + count]
        if sorted(i for i, _ in sweep) != list(range(count)):
            return f"sweep {start // count} does not hold each of {count} sequences once"
        if wrong := [i for i, digest in sweep if digest != truth(i)]:
            return f"sweep {start // count} holds other content in sequences {wrong[:8]}"
    return ""
