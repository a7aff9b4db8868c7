"""Manifests of speech with any of their bytes or values changed, and the archives beside them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile, tree
from tests.torture.hostile_shards import WORDS, deliver

ROWS = 12
KINDS: dict[str, type[fl.Deserializer]] = {
    "cuts": fl.LhotseDeserializer,
    "shar": fl.LhotseDeserializer,
    "nemo": fl.NeMoDeserializer,
    "tarred": fl.NeMoDeserializer,
}


class HostileManifests(Hostile):
    """Reads or refuses."""

    name = "hostile-manifests"
    asks = "does any change of a manifest of speech, or of its archives, crash its reader?"

    def original(self, case: Case) -> Callable[[], Any]:
        for kind in KINDS:
            _write(case.folder / kind, kind)
        return lambda: [_read(case.folder / kind, kind, "raise") for kind in KINDS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        kind = rng.choice(list(KINDS))
        folder = Path(shutil.copytree(case.folder / kind, case.folder / f"case-{k}"))
        target = rng.choice(sorted(file for file in folder.iterdir() if file.suffix in (".json", ".jsonl", ".tar")))
        if target.suffix != ".tar" and rng.random() < 0.5:
            rows = [json.loads(row) for row in target.read_text().splitlines()]
            at = rng.randrange(len(rows))
            rows[at], how = tree(rng, rows[at])
            target.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            text, how = mutated(rng, target.read_bytes(), target.read_bytes()[100:], WORDS)
            target.write_bytes(text)
        return f"{kind}/{target.name}: {how}", lambda: _read(folder, kind, "skip")


def _write(folder: Path, kind: str) -> None:
    folder.mkdir()
    archived = kind in ("shar", "tarred")
    rows = [_cut(i, archived) if KINDS[kind] is fl.LhotseDeserializer else _line(i, archived) for i in range(ROWS)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / {"shar": "cuts.0.jsonl", "tarred": "tarred_audio_manifest.json"}.get(kind, "train.json")).write_text(text)
    if archived:
        with tarfile.open(folder / ("recording.0.tar" if kind == "shar" else "audio_0.tar"), "w") as archive:
            for i in range(ROWS):
                member = tarfile.TarInfo(f"{i}.flac")
                member.size = 40 + i
                archive.addfile(member, io.BytesIO(bytes(40 + i)))


def _cut(i: int, archived: bool) -> dict[str, Any]:
    source = {"type": "shar" if archived else "file", "channels": [0], "source": "x.flac"}
    recording = {"id": "r", "sources": [source], "sampling_rate": 16000, "num_samples": 16000, "duration": 1.0}
    said = [{"id": "s", "start": 0, "duration": 1.0, "text": f"said {i}"}]
    return {"id": str(i), "start": 0, "duration": 1.0, "channel": 0, "supervisions": said, "recording": recording}


def _line(i: int, archived: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"audio_filepath": f"{i}.flac", "duration": 1.0, "text": f"said {i}"}
    return row | ({"shard_id": 0} if archived else {"offset": 0.5})


def _read(folder: Path, kind: str, on_error: str) -> None:
    """Read all of a folder, by its own class and by its first bytes."""
    archived = kind in ("shar", "tarred")
    path = folder if archived else folder / "train.json"
    deliver(KINDS[kind](path), folder, on_error)
    deliver(fl.Bucketed(KINDS[kind](path), 2, budget=40000), folder, on_error)
    fl.open_corpus(path)
