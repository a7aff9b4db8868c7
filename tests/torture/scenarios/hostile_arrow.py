"""Arrow files, Feather and what describes a dataset, with any of their bytes changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

WORDS = (
    *(b"\xff\xff\xff\xff", bytes(8), (2**63 - 1).to_bytes(8, "little"), (2**31 - 1).to_bytes(4, "little")),
    *((2**62).to_bytes(8, "little"), b"\xff" * 8, b"ARROW1\0\0", (2**40).to_bytes(8, "little")),
)
KINDS = ("mapped", "zstd", "file", "state")


class HostileArrow(Hostile):
    """Reads or refuses. Arrow decodes only data that was compared with its message before."""

    name = "hostile-arrow"
    asks = "does any change of an Arrow file end the process, or cost memory without bound?"

    def original(self, case: Case) -> Callable[[], Any]:
        for kind in KINDS:
            for name, first in (("whole", 0), ("twin", 7)):
                _write(case.folder / f"{name}-{kind}", kind, first)
        skip = {"on_error": fl.Quarantine(str(case.folder / "q.jsonl"))}  # of nulls
        return lambda: [_read(case.folder / f"whole-{kind}", skip) for kind in KINDS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        kind = rng.choice(KINDS)
        whole, twin = ((case.folder / f"{name}-{kind}") for name in ("whole", "twin"))
        skip = {"on_error": fl.Quarantine(str(case.folder / "q.jsonl"))} if rng.random() < 0.5 else {}
        place = case.folder / f"{k}"
        if kind == "state":
            place.mkdir()
            for file in whole.iterdir():
                (place / file.name).write_bytes(file.read_bytes())
            name = rng.choice(["state.json", "indices.arrow"])
            text, how = mutated(rng, (whole / name).read_bytes(), (twin / name).read_bytes(), WORDS)
            (place / name).write_bytes(text)
        else:
            text, how = mutated(rng, whole.read_bytes(), twin.read_bytes(), WORDS)
            place.write_bytes(text)
        return f"{kind}: {how}", lambda: _read(place, skip)


def _write(path: Path, kind: str, first: int) -> None:
    rows = range(first, first + 30)
    table = pa.table(
        {
            "n": pa.array(rows),
            "v": pa.array([[i, -i] for i in rows], pa.list_(pa.float32(), 2)),
            "m": pa.array([[[i] * 3] * (i % 3) for i in rows], pa.list_(pa.list_(pa.int16(), 3))),
            "t": pa.array([f"text {i}" if i % 7 else None for i in rows]),
            "l": pa.array([[b"x" * j for j in range(i % 4)] for i in rows], pa.large_list(pa.large_binary())),
            "flag": pa.array([i % 3 == 0 for i in rows]),
            "image": pa.array([{"bytes": bytes([i]), "path": None} for i in rows]),
        }
    )
    if kind == "zstd":
        table = table.append_column("d", pa.array([f"w{i % 5}" for i in rows]).dictionary_encode())
    options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "zstd" else None)
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    data = path / "data.arrow" if kind == "state" else path
    if kind == "state":
        path.mkdir()
        (path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}], "_split": "train"}')
        indices = pa.table({"indices": pa.array([i % 30 for i in range(first, first + 9)], pa.uint64())})
        with pa.ipc.new_stream(str(path / "indices.arrow"), indices.schema) as writer:
            writer.write_table(indices)
    with make(str(data), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=11)


def _read(path: Path, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are no streams any more
        corpus = fl.ArrowDeserializer(path, memory=64 << 20)
    for minibatch in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options).minibatches(100):
        dict(minibatch.items())
