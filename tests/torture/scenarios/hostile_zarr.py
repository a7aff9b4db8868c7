"""Zarr stores with any of their bytes changed: in a document, in a chunk or a shard, or in an archive of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr.codecs

import feedline as fl
from tests.feed.formats import zarr_files
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile, tree

WORDS = (
    *(b"\xff" * 8, bytes(8), (2**40).to_bytes(8, "little"), b"\xff\xff\xff\x7f", b"PK\x03\x04", b"PK\x01\x02"),
    *(b"99999999999999999999", b"-1", b"null", b"1e999", b"[" * 600, b'"pickle"', b'"vlen-array"', b'"|O"'),
    *(b'"<M8[ns]"', b'"sharding_indexed"', b'"blosc"', b"../", b"\\ud800", b"NaN", b"{}", b"(\xb5/\xfd"),
)
FORMS = ("2", "3", "2.zip", "3.zip")


class HostileZarr(Hostile):
    """Reads or refuses. Nothing is unpickled, for any document."""

    name = "hostile-zarr"
    asks = "does any change of a Zarr store crash, hang, unpickle, or take memory without bound?"
    batch = 10

    def original(self, case: Case) -> Callable[[], Any]:
        for form in FORMS:
            _write(case.folder / form, form)
        return lambda: [_read(case.folder / form, {}) for form in FORMS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        form = rng.choice(FORMS)
        skip = {"on_error": fl.Quarantine(str(case.folder / "q.jsonl"))} if rng.random() < 0.5 else {}
        path = case.folder / f"case-{k}.{form}"
        if form.endswith("zip"):
            text, how = mutated(rng, (case.folder / form).read_bytes(), (case.folder / "2.zip").read_bytes(), WORDS)
            path.write_bytes(text)
            return f"{form}: {how}", lambda: _read(path, skip)
        shutil.copytree(case.folder / form, path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        target = rng.choice(files)
        if target.name in ("zarr.json", ".zarray") and rng.random() < 0.7:
            about, how = tree(rng, json.loads(target.read_text()))
            target.write_text(json.dumps(about))
        else:
            text, how = mutated(rng, target.read_bytes(), rng.choice(files).read_bytes(), WORDS)
            target.write_bytes(text)
        return f"{form}/{target.relative_to(path)}: {how}", lambda: _read(path, skip)


def _write(path: Path, form: str) -> None:
    version, zipped = int(form[0]), form.endswith("zip")
    count = 40 + version
    texts = np.array(["é" * (i % 5) for i in range(count)], object)
    shards = {"shards": (21, 3)} if version == 3 else {}
    blosc = zarr.codecs.BloscCodec() if version == 3 else {"id": "blosc"}
    arrays = {
        "number": (np.arange(count), {"chunks": (30,), "compressors": None}),
        "packed": (np.arange(count), {"chunks": (20,), "compressors": blosc}),
        "rows": (np.ones((count, 3)), {"chunks": (7, 3), **shards}),
        "text": (texts, {"chunks": (11,), "dtype": str}),
        "below/more": (np.ones((count, 2)), {"chunks": (count, 1)}),
    }
    zarr_files.write(path, arrays, version, zipped)


def _read(path: Path, options: dict[str, Any]) -> None:
    # An array may claim any number of rows, all of the fill value. The first and the last are read.
    corpus = fl.open_corpus(path)
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False, **options)
    for minibatch in source.minibatches(100, until=fl.minibatches(5)):
        dict(minibatch.items())
    corpus.read(len(corpus.chunks()) - 1)
    corpus.close()
