"""The law of resuming, for every format: a loop with two workers is killed, and one with three continues to the end.

Each format is opened as its users open it, by `open_corpus`. The formats' own tests check its content. A loop of a
`MinibatchSource` has threads that read, and ranks that take their parts, instead of workers: formats that other
packages decode are read by it, too. The files of a hub are read as the local ones that they are.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline as fl
from feedline.feed.formats.detect import FORMATS
from tests.feed.formats.robot_datasets import write_robot
from tests.feed.formats.shard_writers import write_litdata, write_mds
from tests.oracles.cntk_files import htk
from tests.oracles.recordio import packed, write
from tests.oracles.tfrecord import example, tfrecords
from tests.servers.hub import Hub
from tests.video.clips import make_video
from tests.warm import Python

torch = pytest.importorskip("torch", reason="torch is not installed")

COUNT, SWEEPS, SEED = 60, 2, 5
X = np.arange(3.0 * COUNT, dtype=np.float32).reshape(COUNT, 3) / 8
Y = np.arange(COUNT, dtype=np.int64)
NUMBERS = {"x": fl.Stream(3), "y": fl.Stream((), "int64")}
HALVES = (slice(0, COUNT // 2), slice(COUNT // 2, COUNT))


def write_store(folder: Path) -> Path:
    fl.convert(fl.ArrayDeserializer(x=X, y=Y), folder / "store", chunk_bytes=300)
    return folder / "store"


def write_npy(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return folder


def write_npz(folder: Path) -> Path:
    np.savez(folder / "both.npz", x=X, y=Y)
    return folder / "both.npz"


def table(rows: slice) -> Any:
    import pyarrow as pa

    return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(X[rows].ravel()), 3), "y": Y[rows]})


def write_arrow(folder: Path) -> Path:
    import pyarrow as pa

    for i, rows in enumerate(HALVES):
        columns = table(rows)
        with pa.ipc.new_stream(str(folder / f"{i}.arrow"), columns.schema) as stream:
            stream.write_table(columns, max_chunksize=7)
    return folder


def write_parquet(folder: Path) -> Path:
    import pyarrow.parquet as pq

    for i, rows in enumerate(HALVES):
        pq.write_table(table(rows), folder / f"{i}.parquet", row_group_size=7)
    return folder


def write_ctf(folder: Path) -> Path:
    for i, rows in enumerate(HALVES):
        fl.write_ctf(folder / f"{i}.ctf", x=X[rows], y=Y[rows, None].astype(np.float32))
    return folder / "*.ctf"


def write_cbf(folder: Path) -> Path:
    fl.write_cbf(folder / "both.cbf", x=X, y=Y[:, None].astype(np.float32), chunk_size=100)
    return folder / "both.cbf"


def write_jsonl(folder: Path) -> Path:
    for i, rows in enumerate(HALVES):
        lines = [json.dumps({"x": x, "y": y}) for x, y in zip(X[rows].tolist(), Y[rows].tolist(), strict=True)]
        (folder / f"{i}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder / "{0,1}.jsonl.gz"


def write_csv(folder: Path) -> Path:
    rows = [f"{x[0]},{x[1]},{x[2]},{y}" for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,y", *rows]))
    return folder / "rows.csv"


def write_tokens(folder: Path) -> Path:
    np.arange(8 * COUNT, dtype=np.uint16).tofile(folder / "train.bin")
    return folder / "train.bin"


def write_tar(folder: Path) -> Path:
    for i, rows in enumerate(HALVES):
        with tarfile.open(folder / f"{i}.tar", "w") as archive:
            for x, y in zip(X[rows], Y[rows].tolist(), strict=True):
                npy = io.BytesIO()
                np.save(npy, x)
                for suffix, content in (("npy", npy.getvalue()), ("cls", b"%d" % y)):
                    member = tarfile.TarInfo(f"{y:04}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return folder


def write_packed_tar(folder: Path) -> Path:
    import pyarrow as pa

    write_tar(folder)
    for path in sorted(folder.glob("*.tar")):
        text = path.read_bytes()
        packed = gzip.compress(text) if path.stem == "0" else pa.compress(text, "zstd", asbytes=True)
        path.with_suffix(".tar.gz" if path.stem == "0" else ".tar.zst").write_bytes(packed)
        path.unlink()
    return folder


def write_hdf5(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(folder / "both.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(7, 3))
        file.create_dataset("y", data=Y, chunks=(9,))
    return folder / "both.h5"


def write_zarr(folder: Path) -> Path:
    pytest.importorskip("zarr", reason="zarr is not installed")
    from tests.feed.formats import zarr_files

    for i, rows in enumerate(HALVES):
        sharded = {"chunks": (7, 3), "shards": (14, 3)}
        zarr_files.write(folder / f"{i}.zarr", {"x": (X[rows], sharded), "y": (Y[rows], {"chunks": (9,)})})
    return folder / "*.zarr"


def write_lance(folder: Path) -> Path:
    lance = pytest.importorskip("lance", reason="lance is not installed: the extra lance")
    for rows in HALVES:
        lance.write_dataset(table(rows), folder / "both.lance", mode="append" if rows.start else "create")
    return folder / "both.lance"


def write_lerobot(folder: Path) -> Path:
    write_robot(folder / "robot", lengths=(7, 4, 9, 20, 1, 19), group=5)
    return folder / "robot"


def write_nemo(folder: Path) -> Path:
    lines = [{"audio_filepath": f"{y}.wav", "duration": 1 + y / 4, "text": f"number {y}"} for y in Y.tolist()]
    (folder / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "train.json"


def write_lhotse(folder: Path) -> Path:
    cuts = [
        {
            "id": f"cut-{y}",
            "start": y / 8,
            "duration": 1.5,
            "channel": 0,
            "supervisions": [],
            "recording": {
                "id": f"r{y}",
                "sources": [{"type": "file", "channels": [0], "source": f"{y}.wav"}],
                "sampling_rate": 16000,
                "num_samples": 160_000 + y,
                "duration": (160_000 + y) / 16_000,
            },
            "type": "MonoCut",
        }
        for y in Y.tolist()
    ]
    with gzip.open(folder / "cuts.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(cut) + "\n" for cut in cuts))
    return folder / "cuts.jsonl.gz"


def write_images(folder: Path) -> Path:
    for y in Y.tolist():
        place = folder / "images" / str(y % 3)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{y}.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes([y]) * (y % 5))
    return folder / "images"


def write_map(folder: Path) -> Path:
    write_images(folder)
    names = sorted((folder / "images").rglob("*.jpg"))
    (folder / "map.txt").write_text("".join(f"{name}\t{i % 4}\n" for i, name in enumerate(names)))
    return folder / "map.txt"


def write_base64(folder: Path) -> Path:
    import base64

    texts = [base64.b64encode(b"\xff\xd8\xff\xe0" + bytes([y]) * 40).decode() for y in Y.tolist()]
    (folder / "images.txt").write_text("".join(f"{y}\t{y % 4}\t{text}\n" for y, text in enumerate(texts)))
    return folder / "images.txt"


def write_htk(folder: Path) -> Path:
    lines = []
    for y in Y.tolist():
        (folder / f"{y}.mfc").write_bytes(htk(X[y : y + 1].repeat(2 + y % 3, axis=0)))
        lines.append(f"{y}.mfc={folder / str(y)}.mfc[0,{1 + y % 3}]")
    (folder / "list.scp").write_text("\n".join(lines) + "\n")
    return folder / "list.scp"


def write_mlf(folder: Path) -> Path:
    labels = [f'"*/{y}.lab"\n0 {(1 + y % 3) * 100_000} s {y % 4}\n.\n' for y in Y.tolist()]
    (folder / "labels.mlf").write_text("#!MLF!#\n" + "".join(labels))
    return folder / "labels.mlf"


def shard_rows() -> list[list[bytes]]:
    return [[x.tobytes(), y.tobytes()] for x, y in zip(X, Y, strict=True)]


def folder_of_mds(folder: Path) -> Path:
    write_mds(folder / "mds", {"x": ("ndarray:float32:3", 12), "y": ("int", 8)}, shard_rows(), 13)
    return folder / "mds"


def folder_of_litdata(folder: Path) -> Path:
    write_litdata(folder / "litdata", {"x": "no_header_numpy:9", "y": "int"}, shard_rows(), 13)
    return folder / "litdata"


def write_recordio(folder: Path) -> Path:
    for i, rows in enumerate(HALVES):
        payloads = [packed(x, bytes([y])) for x, y in zip(X[rows].tolist(), Y[rows].tolist(), strict=True)]
        write(folder / f"{i}.rec", payloads)
    return folder


def write_arrayrecord(folder: Path) -> Path:
    module = pytest.importorskip(
        "array_record.python.array_record_module", reason="array_record is not installed: the extra arrayrecord"
    )
    for i, rows in enumerate(HALVES):
        writer = module.ArrayRecordWriter(str(folder / f"{i}.array_record"), "group_size:4")
        for x, y in zip(X[rows], Y[rows].tolist(), strict=True):
            writer.write(x.tobytes() + bytes([y]))
        writer.close()
    return folder


def write_tfrecord(folder: Path) -> Path:
    for i, rows in enumerate(HALVES):
        messages = [example(x=x, y=[y]) for x, y in zip(X[rows].tolist(), Y[rows].tolist(), strict=True)]
        (folder / f"{i}.tfrecord").write_bytes(tfrecords(messages))
    return folder


def write_video(folder: Path) -> Path:
    pytest.importorskip("av", reason="av is not installed: the extra video")
    for i, rows in enumerate(HALVES):
        make_video(folder / str(i), frames=len(Y[rows]))
    return folder


def write_mixture(folder: Path) -> Path:
    parts = {}
    for i, rows in enumerate(HALVES):
        np.savez(folder / f"{i}.npz", x=X[rows], y=Y[rows])
        parts[f"half {i}"] = f"{i}.npz"
    (folder / "mixture.json").write_text(json.dumps({"mixture": parts, "when_empty": "drop", "block": 8}))
    return folder / "mixture.json"


WRITERS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "store": (write_store, {}),
    "npy folder": (write_npy, {}),
    "npz": (write_npz, {}),
    "arrow": (write_arrow, {}),
    "parquet": (write_parquet, {}),
    "lerobot": (write_lerobot, {}),
    "lhotse": (write_lhotse, {}),
    "nemo": (write_nemo, {}),
    "ctf": (write_ctf, {"x": fl.Stream(3), "y": fl.Stream(1)}),
    "cbf": (write_cbf, {}),
    "jsonl": (write_jsonl, NUMBERS),
    "csv": (write_csv, {"x": ["a", "b", "c"], "y": "y"}),
    "tokens": (write_tokens, {"tokens": fl.Stream(8, "uint16")}),
    "tar": (write_tar, {"x": fl.Stream(3, field="npy"), "y": fl.Stream((), "int64", field="cls")}),
    "packed tar": (write_packed_tar, {"x": fl.Stream(3, field="npy"), "y": fl.Stream((), "int64", field="cls")}),
    "mds": (folder_of_mds, {}),
    "litdata": (folder_of_litdata, {"x": fl.Stream(3), "y": fl.Stream((), "int64")}),
    "tfrecord": (write_tfrecord, NUMBERS),
    "recordio": (write_recordio, {"x": fl.Stream(3, field="label"), "image": fl.Stream(dtype="bytes")}),
    "arrayrecord": (write_arrayrecord, {}),
    "hdf5": (write_hdf5, {}),
    "zarr": (write_zarr, {}),
    "lance": (write_lance, {}),
    "image folder": (write_images, {}),
    "image map": (write_map, {}),
    "base64 images": (write_base64, {}),
    "htk": (write_htk, {}),
    "mixture": (write_mixture, {}),
    "video": (write_video, {}),
    "mlf": (write_mlf, {"labels": fl.Stream(4, sparse=True)}),
}


def loader_of(name: str, path: str, **options: Any) -> Any:
    """Return the loader of one start. Starts differ only in the number of workers."""
    corpus = fl.open_corpus(path, streams=WRITERS[name][1])
    return fl.DataLoader(corpus, batch_size=4, shuffle=True, seed=SEED, collate_fn=list, **options)


class Ranks:
    """Minibatches of all ranks of a `MinibatchSource`, one list of samples after the other, as a loader has batches."""

    def __init__(self, name: str, path: str, num_workers: int) -> None:
        corpus = fl.open_corpus(path, streams=WRITERS[name][1])
        self.sources = [
            fl.MinibatchSource(corpus, seed=SEED, max_sweeps=SWEEPS, threads=num_workers, partition=(rank, num_workers))
            for rank in range(num_workers)
        ]

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        while all(parts := [source.next_minibatch(9) for source in self.sources]):
            samples = []
            for part in parts:
                columns = {name: value.sequences() for name, value in part.items()}
                samples += [{name: columns[name][i] for name in columns} for i in range(part.num_sequences)]
            yield samples

    def state_dict(self) -> dict[str, Any]:
        return self.sources[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for source in self.sources:
            source.load_state_dict(state)


FEEDS: dict[str, Callable[..., Any]] = {"loader": loader_of, "source": Ranks}


def digest(sample: Any) -> str:
    """Return 8 hex digits of a sample, as JSON."""
    parts = {name: np.asarray(value).tolist() for name, value in sample.items()}
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def train(feed: str, name: str, path: str, record: Path, workers: int) -> None:
    """Run the loop from the state in ``record`` to the end of the last sweep. State and samples are saved together."""
    loader = FEEDS[feed](name, path, num_workers=workers)
    delivered: list[str] = []
    if record.exists():
        saved = json.loads(record.read_text())
        delivered = saved["delivered"]
        loader.load_state_dict(saved["state"])
    while len(delivered) < COUNT * SWEEPS:
        for batch in loader:
            delivered += map(digest, batch)
            if workers == 2 and len(delivered) == COUNT * SWEEPS:
                time.sleep(60)  # for the kill, which comes late on a busy machine
            new = record.with_suffix(".new")
            new.write_text(json.dumps({"delivered": delivered, "state": loader.state_dict()}))
            os.replace(new, record)
            time.sleep(0.001)


def delivered_in(record: Path) -> list[str]:
    return json.loads(record.read_text())["delivered"] if record.exists() else []


def test_no_format_is_forgotten():
    """`npy` files are tested as arrays in a folder."""
    assert WRITERS.keys() == {form.name for form in FORMATS} - {"npy"} | {"packed tar"}


@pytest.mark.parametrize(
    ("name", "feed"),
    [*((name, "loader") for name in WRITERS), *((name, "source") for name in ("recordio", "arrayrecord", "lance"))],
)
def test_killed_with_two_workers_it_goes_on_with_three(tmp_path, name, feed):
    data = tmp_path / "data"
    data.mkdir()
    path = str(WRITERS[name][0](data))
    check_kill_and_resume(tmp_path, name, feed, path, path)


@pytest.mark.parametrize("feed", FEEDS)
def test_killed_over_a_hub_it_goes_on_with_three(tmp_path, monkeypatch, feed):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    data, commit = tmp_path / "data", "1" * 40
    data.mkdir()
    path = str(write_jsonl(data))
    with Hub("me/numbers") as hub:
        hub.commits[commit] = {f"train/{file.name}": file.read_bytes() for file in data.iterdir()}
        hub.branches = {"main": commit}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        check_kill_and_resume(tmp_path, "jsonl", feed, path, "hf://datasets/me/numbers/train")
        assert {where.partition("/")[0] for kind, where in hub.log if kind == "read"} == {commit}


def check_kill_and_resume(folder: Path, name: str, feed: str, local: str, path: str) -> None:
    """Kill a loop over ``path`` and resume it. Its samples are those of an uninterrupted one over ``local``."""
    record = folder / "record.json"
    loader = FEEDS[feed](name, local, num_workers=1)
    sweeps = SWEEPS if feed == "loader" else 1  # a source has all sweeps
    expected = [digest(sample) for _ in range(sweeps) for batch in loader for sample in batch]
    assert len(expected) == COUNT * SWEEPS
    assert len(set(expected)) > 5
    assert sorted(expected[:COUNT]) == sorted(expected[COUNT:])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    rng, environment["XDG_CACHE_HOME"] = random.Random(name), str(folder / "cache")
    for workers in (2, 3):
        command = ["-m", "tests.laws.test_formats_killed", feed, name, path, str(record), str(workers)]
        process = Python(command, env=environment, stderr=subprocess.PIPE, text=True)
        if workers == 2:
            while process.poll() is None and not record.exists():  # a kill before the first batch would test nothing
                time.sleep(0.002)
            time.sleep(rng.random() * 0.03)
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if workers == 2 else 0), errors
        assert delivered_in(record) == expected[: len(delivered_in(record))]
        if workers == 2:
            assert 0 < len(delivered_in(record)) < len(expected)
    assert delivered_in(record) == expected


if __name__ == "__main__":
    train(*sys.argv[1:4], Path(sys.argv[4]), int(sys.argv[5]))
