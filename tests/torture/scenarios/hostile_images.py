"""Map files, base64 files and zip archives of pictures, with any of their bytes changed."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

FILES = ("map.txt", "a.zip", "a.zip", "base64.txt")
WORDS = (
    *(b"\t", b"\n", b"\r", b"@", b"@/", b"\\", b"...", b"\0", b"=", b"99999999999999999999", b"-1", b"/dev/zero"),
    *(b"PK\1\2", b"PK\3\4", b"PK\5\6", b"\xff\xff\xff\xff", b"\xff\xff", b"\x08\0", b"\x63\0", b"../.."),
)


class HostileImages(Hostile):
    """Reads or refuses."""

    name = "hostile-images"
    asks = "does any change of a map, base64 file or zip archive end the process, or take memory?"

    def original(self, case: Case) -> Callable[[], Any]:
        write(case.folder / "sound", 0)
        return lambda: _read(case.folder / "sound", {})

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        folder, twin = case.folder / str(k), case.folder / f"{k}.twin"
        write(folder, 0)
        write(twin, 1)
        name = rng.choice(FILES)
        text, how = mutated(rng, (folder / name).read_bytes(), (twin / name).read_bytes(), WORDS)
        (folder / name).write_bytes(text)
        skipping = {"on_error": fl.Quarantine(folder / "q.jsonl")}
        return f"{name}: {how}", lambda: _read(folder, skipping)


def write(folder: Path, twin: int) -> None:
    """Six pictures in each of the forms."""
    (folder / "c").mkdir(parents=True)
    lines, encoded = [], []
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(6):
            data = bytes([i + twin]) * (200 * i + 1)
            archive.writestr(f"c/{i}.jpg", data)
            (folder / "c" / f"{i}.jpg").write_bytes(data)
            lines.append(f"{i}\t.../{'a.zip@/' if i % 2 else ''}c/{i}.jpg\t{i % 3}\n")
            encoded.append(f"{i % 3}\t{base64.b64encode(data).decode()}\n")
    (folder / "map.txt").write_text("".join(lines))
    (folder / "base64.txt").write_text("".join(encoded))


def _read(folder: Path, skipping: dict[str, Any]) -> None:
    streams = {"image": fl.Stream(dtype="bytes"), "label": fl.Stream(3, sparse=True), "key": fl.Stream(dtype="str")}
    # Each in turn: what one refuses does not keep the other from being read.
    refused = []
    for opened in (
        lambda: fl.ImageMapDeserializer(folder / "map.txt", streams),
        lambda: fl.Base64ImageDeserializer(folder / "base64.txt", streams, chunk_size=800),
    ):
        try:
            corpus = opened()
            corpus.keys(np.arange(1))
            for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(4):
                dict(minibatch.items())
        except fl.FeedlineError as error:
            refused.append(error)
    if refused:
        raise refused[0]
