"""Corpora of every format that grow: each part is written behind those before, as the format's users append.

Every format has a stream ``n``, which holds the number of its sequence.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import feedline as fl
from feedline.data.value import BytesValue
from tests.feed.formats.shard_writers import write_litdata, write_mds
from tests.oracles.cntk_files import htk
from tests.oracles.recordio import packed, write
from tests.oracles.tfrecord import example, tfrecords

Numbers = Sequence[int]


def append_store(folder: Path, part: int, numbers: Numbers) -> Path:
    fl.convert(fl.ArrayDeserializer(n=np.array(numbers)), folder / "store", append=True, chunk_bytes=30)
    return folder / "store"


def append_npy(folder: Path, part: int, numbers: Numbers) -> Path:
    before = np.load(folder / "n.npy") if part else np.empty(0, np.int64)
    np.save(folder / "n.npy", np.concatenate([before, numbers]))
    return folder


def append_npz(folder: Path, part: int, numbers: Numbers) -> Path:
    before = np.load(folder / "n.npz")["n"] if part else np.empty(0, np.int64)
    joined = np.concatenate([before, numbers])
    np.savez(folder / "n.npz", n=joined, words=joined.astype(str))
    return folder / "n.npz"


def append_arrow(folder: Path, part: int, numbers: Numbers) -> Path:
    import pyarrow as pa

    table = pa.table({"n": numbers})
    path = str(folder / f"{part:03}.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return folder


def append_parquet(folder: Path, part: int, numbers: Numbers) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": numbers}), folder / f"{part:03}.parquet", row_group_size=3)
    return folder


def append_ctf(folder: Path, part: int, numbers: Numbers) -> Path:
    (folder / f"{part:03}.ctf").write_text("".join(f"{n} |n {n}\n" for n in numbers))
    return folder / "*.ctf"


def append_cbf(folder: Path, part: int, numbers: Numbers) -> Path:
    fl.write_cbf(folder / f"{part:03}.cbf", n=np.array(numbers, np.float32)[:, None], chunk_size=40)
    return folder / "*.cbf"


def append_jsonl(folder: Path, part: int, numbers: Numbers) -> Path:
    lines = [json.dumps({"n": [n] * (1 + n % 3)}) for n in numbers]
    (folder / f"{part:03}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def append_csv(folder: Path, part: int, numbers: Numbers) -> Path:
    (folder / f"{part:03}.csv").write_text("\n".join(["n", *map(str, numbers)]) + "\n")
    return folder


def append_tokens(folder: Path, part: int, numbers: Numbers) -> Path:
    np.repeat(np.array(numbers, np.uint16), 4).tofile(folder / f"{part:03}.bin")
    return folder


def append_tar(folder: Path, part: int, numbers: Numbers, packing: str = "") -> Path:
    with tarfile.open(folder / f"{part:03}.tar{packing and '.' + packing}", f"w:{packing}") as archive:
        for n in numbers:
            member = tarfile.TarInfo(f"{n:06}.txt")
            member.size = 6
            archive.addfile(member, io.BytesIO(b"%06d" % n))
    return folder


def append_hdf5(folder: Path, part: int, numbers: Numbers) -> Path:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(folder / f"{part:03}.h5", "w") as file:
        file.create_dataset("n", data=np.array(numbers), chunks=(min(3, len(numbers)),))
    return folder / "*.h5"


def append_zarr(folder: Path, part: int, numbers: Numbers) -> Path:
    """Every third part is a new store, the others make the last one longer."""
    pytest.importorskip("zarr", reason="zarr is not installed")
    from tests.feed.formats import zarr_files

    path = folder / f"{part // 3:03}.zarr"
    before = np.empty(0, np.int64)
    if path.exists():
        before = zarr_files.read(path, "n")
        shutil.rmtree(path)
    zarr_files.write(path, {"n": (np.concatenate([before, numbers]), {"chunks": (3,)})})
    return folder / "*.zarr"


def append_lance(folder: Path, part: int, numbers: Numbers) -> Path:
    lance = pytest.importorskip("lance", reason="lance is not installed: the extra lance")
    import pyarrow as pa

    lance.write_dataset(pa.table({"n": numbers}), folder / "n.lance", mode="append" if part else "create")
    return folder / "n.lance"


def append_images(folder: Path, part: int, numbers: Numbers) -> Path:
    place = folder / "images" / f"class {part // 4:03}"
    place.mkdir(parents=True, exist_ok=True)
    for n in numbers:
        (place / f"{n:06}.png").write_bytes(b"%06d" % n)
    return folder / "images"


def append_map(folder: Path, part: int, numbers: Numbers) -> Path:
    with (folder / "map.txt").open("a") as file:
        for n in numbers:
            (folder / f"{n:06}.png").write_bytes(b"%06d" % n)
            file.write(f".../{n:06}.png\t{n % 3}\n")
    return folder / "map.txt"


def append_htk(folder: Path, part: int, numbers: Numbers) -> Path:
    with (folder / "list.scp").open("a") as script:
        for n in numbers:
            frames = np.full((1 + n % 3, 1), n, np.float32)
            (folder / f"{n:06}.mfc").write_bytes(htk(frames))
            script.write(f"{n:06}.mfc=.../{n:06}.mfc[0,{n % 3}]\n")
    return folder / "list.scp"


def append_mlf(folder: Path, part: int, numbers: Numbers) -> Path:
    labels = [f'"*/{n:06}.lab"\n0 {(1 + n % 3) * 100_000} s {n}\n.\n' for n in numbers]
    (folder / f"{part:03}.mlf").write_text("#!MLF!#\n" + "".join(labels))
    return folder / "*.mlf"


def append_mds(folder: Path, part: int, numbers: Numbers) -> Path:
    rows = [[np.int64(n).tobytes()] for n in numbers]
    write_mds(folder / "new", {"n": ("int", 8)}, rows, 4)
    return _join_index(folder, part, "shards", lambda entry: entry["raw_data"], "basename")


def append_litdata(folder: Path, part: int, numbers: Numbers) -> Path:
    write_litdata(folder / "new", {"n": "int"}, [[np.int64(n).tobytes()] for n in numbers], 4)
    return _join_index(folder, part, "chunks", lambda entry: entry, "filename")


def _join_index(folder: Path, part: int, key: str, about: Callable[[Any], Any], name: str) -> Path:
    """Put the new shards behind those of the folder."""
    joined, new = folder / "shards", folder / "new"
    joined.mkdir(exist_ok=True)
    index = json.loads((new / "index.json").read_text())
    for entry in index[key]:
        renamed = f"{part:03}.{about(entry)[name]}"
        (new / about(entry)[name]).rename(joined / renamed)
        about(entry)[name] = renamed
    if part:
        before = json.loads((joined / "index.json").read_text())
        index = {**before, key: before[key] + index[key]}
    (joined / "index.json").write_text(json.dumps(index))
    shutil.rmtree(new)
    return joined


def append_recordio(folder: Path, part: int, numbers: Numbers) -> Path:
    write(folder / f"{part:03}.rec", [packed(float(n), b"x") for n in numbers])
    return folder


def append_arrayrecord(folder: Path, part: int, numbers: Numbers) -> Path:
    module = pytest.importorskip(
        "array_record.python.array_record_module", reason="array_record is not installed: the extra arrayrecord"
    )
    writer = module.ArrayRecordWriter(str(folder / f"{part:03}.array_record"), "group_size:4")
    for n in numbers:
        writer.write(b"%06d" % n)
    writer.close()
    return folder


def append_tfrecord(folder: Path, part: int, numbers: Numbers) -> Path:
    (folder / f"{part:03}.tfrecord").write_bytes(tfrecords([example(n=[n]) for n in numbers]))
    return folder


class Form(NamedTuple):
    """How a format grows.

    Attributes:
        append: function of a folder, the number of the part, and the numbers that it holds, which returns what to open.
        streams: declarations.
        in_place: whether a file becomes longer.
        deserializer: function of a path, with arguments that make chunks small. None: `open_corpus`.
    """

    append: Callable[[Path, int, Numbers], Path]
    streams: Mapping[str, Any] | None = None
    in_place: bool = False
    deserializer: Callable[..., fl.Deserializer] | None = None


NUMBER = fl.Stream((), "int64")
FORMS = {
    "store": Form(append_store),
    "npy folder": Form(append_npy, in_place=True),
    "npz": Form(append_npz, in_place=True),
    "arrow": Form(append_arrow),
    "parquet": Form(append_parquet),
    "ctf": Form(
        append_ctf, deserializer=lambda path: fl.CTFDeserializer(path, n=fl.Stream(1, "float32"), chunk_size=30)
    ),
    "cbf": Form(append_cbf),
    "jsonl": Form(
        append_jsonl,
        deserializer=lambda path: fl.JSONLinesDeserializer(path, n=NUMBER, sequences=["n"], chunk_size=60),
    ),
    "csv": Form(append_csv, deserializer=lambda path: fl.CSVDeserializer(path, n=NUMBER, chunk_size=9)),
    "tokens": Form(append_tokens, {"n": fl.Stream(4, "uint16")}),
    "tar": Form(append_tar, {"n": fl.Stream(dtype="bytes", field="txt")}),
    "tar.gz": Form(partial(append_tar, packing="gz"), {"n": fl.Stream(dtype="bytes", field="txt")}),
    "mds": Form(append_mds),
    "litdata": Form(append_litdata),
    "tfrecord": Form(append_tfrecord, {"n": NUMBER}),
    "recordio": Form(append_recordio, {"n": fl.Stream((), "float32", field="label")}),
    "arrayrecord": Form(append_arrayrecord, {"n": fl.Stream(dtype="bytes", field="record")}),
    "hdf5": Form(append_hdf5, deserializer=lambda path: fl.HDF5Deserializer(path, chunk_sequences=3)),
    "zarr": Form(append_zarr, in_place=True, deserializer=lambda path: fl.ZarrDeserializer(path, chunk_sequences=3)),
    "lance": Form(append_lance, deserializer=lambda path: fl.LanceDeserializer(path, chunk_sequences=3)),
    "image folder": Form(append_images, {"n": fl.Stream(dtype="bytes", field="image")}, in_place=True),
    "image map": Form(append_map, {"n": fl.Stream(dtype="bytes", field="image")}, in_place=True),
    "htk": Form(
        append_htk,
        in_place=True,
        deserializer=lambda path: fl.HTKFeatureDeserializer(path, n=fl.Stream(1), chunk_frames=5),
    ),
    "mlf": Form(append_mlf, {"n": fl.Stream(4000, sparse=True)}),
}
#: Formats that do not grow, and why.
FIXED = {
    "base64 images": "a single text, whose end decides its digest",
    "lerobot": "its metadata count all frames, and are part of its digest",
    "lhotse": "cuts of a folder of shards are in the order of their names",
    "nemo": "as JSON Lines, whose reader it has",
    "mixture": "its order depends on the sizes of its parts",
    "npy": "as a folder of them",
    "video": "files of a folder are in the order of their paths",
}


def numbers_of(minibatch: fl.Minibatch) -> list[int]:
    """The number in the first sample of each sequence."""
    value = minibatch["n"]
    if isinstance(value, BytesValue):
        return [int(text) for text in value.tolist()]
    if value.is_sparse:
        value = value.class_indices()
    return [int(np.ravel(rows)[0]) for rows in value.sequences()]


class Growth:
    """A corpus of a format, to which parts are appended. Earlier versions are kept as copies.

    Args:
        folder: an empty folder, or one that is made.
        form: name of the format.
        replaced: numbers in place of others.

    Attributes:
        counts: number of sequences of each part.
    """

    def __init__(self, folder: Path, form: str, replaced: Mapping[int, int] | None = None) -> None:
        self.form, self.counts, self._folder = FORMS[form], list[int](), folder / form
        self._replaced = replaced or {}
        self._folder.mkdir(parents=True)
        self._open = Path()

    def append(self, rows: int) -> None:
        first = sum(self.counts)
        part = self._folder / "now"
        part.mkdir(exist_ok=True)
        numbers = [self._replaced.get(n, n) for n in range(first, first + rows)]
        place = self.form.append(part, len(self.counts), numbers)
        self._open = place.relative_to(part)
        self.counts.append(rows)
        shutil.copytree(part, self._folder / str(len(self.counts)))

    def corpus(self, version: int | None = None) -> fl.Deserializer:
        """The corpus now, or when it had a number of parts."""
        path = str(self._folder / ("now" if version is None else str(version)) / self._open)
        if self.form.deserializer is not None:
            return self.form.deserializer(path)
        return fl.open_corpus(path, streams=self.form.streams)
