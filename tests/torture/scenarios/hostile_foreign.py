"""Files of other writers with any of their bytes changed, and small files that ask for huge memory."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WRITERS = Path(__file__).parents[2] / "fixtures" / "foreign"
WORDS = (
    *(b"ARROW1", b"PAR1", b"\xff\xff\xff\xff", bytes(4), bytes(8), struct.pack("<i", 20240520)),
    *(struct.pack("<q", -1), struct.pack("<q", 2**62), struct.pack("<i", 2**31 - 1), b"\x19\x00", b"\x19\xfc"),
)


class HostileForeign(Hostile):
    """Reads or refuses, within a fixed memory for any claim of a file."""

    name = "hostile-foreign"
    asks = "does a damaged file of another writer, or one that claims to be huge, do harm?"
    memory = 400 << 20

    def original(self, case: Case) -> Callable[[], Any]:
        self.files = {
            path.name: path.read_bytes()
            for path in WRITERS.iterdir()
            if path.suffix in (".arrow", ".arrows", ".parquet")
        }
        tokens = np.arange(500, dtype="<u2")
        header = np.zeros(256, "<i4")
        header[:3] = 20240520, 1, len(tokens)
        self.files["shard.bin"] = header.tobytes() + tokens.tobytes()
        for name, content in self.files.items():
            (case.folder / name).write_bytes(content)
        return lambda: [_read(case.folder / name) for name in self.files]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng, folder = case.rng, case.folder / str(k)
        folder.mkdir()
        if rng.random() < 0.3:
            bomb = rng.choice(BOMBS)
            path = bomb(folder, rng)
            return bomb.__name__, lambda: _read(path, "raise")
        name = rng.choice(sorted(self.files))
        twin = rng.choice([other for other in self.files if other.endswith(Path(name).suffix)])
        path = folder / (name if rng.random() < 0.8 else f"label={rng.choice(['a', '1', '%ff', '%00', ''])}/{name}")
        path.parent.mkdir(exist_ok=True)
        content, how = mutated(rng, self.files[name], self.files[twin], WORDS)
        path.write_bytes(content)
        return f"{name}: {how}", lambda: _read(path)


def _read(path: Path, on_error: str = "skip") -> None:
    streams = {"tokens": fl.Stream(50, "uint16")} if path.suffix == ".bin" else {}
    corpus = fl.open_corpus(path, streams=streams)
    for minibatch in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error=on_error).minibatches(100):
        dict(minibatch.items())


def _expanding(size: int) -> bytes:
    """Return gzip of zeros, a thousandth of their size."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def zarr_chunk(folder: Path, rng: random.Random) -> Path:
    """A chunk of Zarr that expands beyond what the array can have."""
    described = {"zarr_format": 2, "shape": [20], "chunks": [10], "dtype": "<i8", "fill_value": 0, "order": "C"}
    place = folder / "a.zarr"
    place.mkdir()
    document = {**described, "compressor": {"id": "gzip", "level": 9}, "filters": None}
    (place / ".zarray").write_text(json.dumps(document))
    (place / "0").write_bytes(_expanding(rng.choice([500, 700]) << 20))
    (place / "1").write_bytes(gzip.compress(np.arange(10).tobytes()))
    return place


def packed_row(folder: Path, rng: random.Random) -> Path:
    """A row of text that expands."""
    path = folder / f"a.{rng.choice(['jsonl', 'csv'])}.gz"
    path.write_bytes(gzip.compress(b'{"i": 1}\n' if ".jsonl" in path.name else b"i\n1\n") + _expanding(500 << 20))
    return path


def aliases(folder: Path, rng: random.Random) -> Path:
    """Aliases of aliases in a description."""
    path, names = folder / "a.yaml", "abcdefghijk"[: rng.randrange(6, 11)]
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]" for a, b in itertools.pairwise(names)]
    path.write_text("\n".join([*lines, f"mixture: {{m: {{path: *{names[-1]}}}}}"]))
    return path


def nulls(folder: Path, rng: random.Random) -> Path:
    """Millions of nulls in some kilobytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "a.parquet"
    pq.write_table(pa.table({"i": pa.nulls(rng.choice([500_000, 1_000_000]), pa.int64())}), path)
    return path


def hdf5_block(folder: Path, rng: random.Random) -> Path:
    """A stored block of HDF5 that expands beyond what it can hold."""
    import h5py

    packed = zlib.compressobj(9)
    bomb = b"".join(packed.compress(bytes(1 << 20)) for _ in range(rng.choice([500, 700]))) + packed.flush()
    path = folder / "a.h5"
    with h5py.File(path, "w") as file:
        kind = rng.choice(["<i8", h5py.string_dtype()])
        dataset = file.create_dataset("x", (10,), kind, chunks=(10,), compression="gzip", shuffle=rng.random() < 0.5)
        dataset.id.write_direct_chunk((0,), bomb)
    return path


def bad_rows(folder: Path, rng: random.Random) -> Path:
    """Many rows of CTF, each shorter than the description of its fault."""
    path = folder / "a.ctf"
    path.write_bytes(b"|x 1 2\n" + rng.choice([b"|x 1\n", b"|x a\n", b"|x 1 2 3\n"]) * 300_000)
    return path


BOMBS = (zarr_chunk, hdf5_block, bad_rows, packed_row, aliases, nulls)
