"""Tar archives, compressed or not, and their indexes, with any of their bytes changed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(b"\0" * 512, b"ustar\0" + b"00", b"ustar  \0", b"\x80" + bytes(11), b"\x80" + b"\xff" * 11, b"\xff" * 12),
    *(b"77777777777\0", b"00000000000\0", b"L", b"x", b"g", b"1", b"S", b"11 size=999\n", b"99999999999 path=a.jpg\n"),
    *(b"22 GNU.sparse.major=1\n", b"\x93NUMPY", b"O", b"[" * 600, b"1e999", b"../../a.jpg", b".", b"/"),
)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in (data[:5000], data[5000:])),
}


class HostileTar(Hostile):
    """Reads or refuses."""

    name = "hostile-tar"
    asks = "does any change of a tar archive crash, read beyond it, or take memory without bound?"

    def original(self, case: Case) -> Callable[[], Any]:
        for k, form in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
            _write(case.folder / f"{k}.tar", form)
        return lambda: [_read(case.folder / f"{k}.tar", "raise") for k in range(2)]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        one = rng.randrange(2)
        whole, twin = ((case.folder / f"{n}.tar").read_bytes() for n in (one, 1 - one))
        text, how = mutated(rng, whole, twin, WORDS)
        if rng.random() < 0.7:
            text = _summed(text)  # else little would be read
        packing = rng.choice(["", "", ".gz", ".zst"])
        path = case.folder / str(k) / f"a.tar{packing}"
        path.parent.mkdir()
        text = PACK[packing](text)
        if packing and rng.random() < 0.5:
            text, how = mutated(rng, PACK[packing](whole), PACK[packing](twin), WORDS)
        path.write_bytes(text)
        if rng.random() < 0.3:
            # Damaged after it was indexed.
            whole = PACK[packing](whole)
            path.write_bytes(whole)
            corpus = fl.TarDeserializer(path, x=fl.Stream(dtype="bytes", field="jpg"), y=fl.Stream(3, field="x.npy"))
            path.write_bytes(text[: len(whole)].ljust(len(whole), b"\0"))
            return f"{how}{packing}, in use", lambda: _deliver(corpus, path)
        return f"{how}{packing}", lambda: _read(path, "skip")


def _summed(text: bytes) -> bytes:
    """With sums as they should be, in whatever looks like a header."""
    found = bytearray(text)
    for at in range(0, len(found) - 511, 512):
        if found[at + 257 : at + 262] == b"ustar":
            found[at + 148 : at + 156] = b" " * 8
            found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + 512])
    return bytes(found)


def _write(path: Path, form: int) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        for i in range(6):
            npy = io.BytesIO()
            np.save(npy, np.full(3, i, np.float32))
            name = f"{'d' * 120}/{i}" if i % 2 else str(i)
            for suffix, data in (
                ("jpg", b"j" * 300 * i),
                ("x.npy", npy.getvalue()),
                ("json", b"[1, 2]"),
                ("cls", b"1"),
            ):
                info = tarfile.TarInfo(f"{name}.{suffix}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def _read(path: Path, on_error: str) -> None:
    streams = {
        "x": fl.Stream(dtype="bytes", field="jpg"),
        "y": fl.Stream(3, field="x.npy"),
        "j": fl.Stream(2, field="json"),
        "c": fl.Stream((), "int64", field="cls"),
        "k": fl.Stream(dtype="str", field="__key__"),
    }
    _deliver(fl.TarDeserializer(path, streams, chunk_size=4000), path, on_error)
    fl.open_corpus(path)


def _deliver(corpus: fl.Deserializer, path: Path, on_error: str = "skip") -> None:
    skipping = {"on_error": fl.Quarantine(path.with_suffix(".jsonl"))} if on_error == "skip" else {}
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(4):
        dict(minibatch.items())
