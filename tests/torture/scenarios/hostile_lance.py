"""Lance tables with any bytes of any of their files changed. Lance has no checksums, so other values may be read."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

FORMS = ("2.0", "2.1", "legacy")
ROWS = 60
STREAMS = {
    "x": fl.Stream((), "int32"),
    "v": fl.Stream(3),
    "s": fl.Stream(dtype="str"),
    "r": fl.Stream((), "int64"),
    "n": fl.Stream((), "float64", missing=-1.0),
}
WORDS = (
    *(b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", (2**40).to_bytes(8, "little"), (2**62).to_bytes(8, "little")),
    *(b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"LANC", b"../", b"\x0a\xff\x0f"),
)


class HostileLance(Hostile):
    """Reads or refuses."""

    name = "hostile-lance"
    asks = "does any change of a Lance table end the process, or take memory without bound?"

    memory = 1 << 36

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("lance") else "lance is not installed"

    def prepare(self, case: Case) -> None:
        for form in FORMS:
            _write(case.folder / form, form)
            _read(case.folder / form, "raise")  # starts the threads of lance, for which memory is not limited

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: [_read(case.folder / form, "raise") for form in FORMS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        form = rng.choice(FORMS)
        folder = Path(shutil.copytree(case.folder / form, case.folder / f"changed-{k}"))
        # By age, as their names are random.
        files = sorted(
            (path for path in folder.rglob("*.*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns
        )
        target = rng.choice(files)
        twin = rng.choice([path for path in files if path.suffix == target.suffix])
        data, how = mutated(rng, target.read_bytes(), twin.read_bytes(), WORDS)
        what = f"{form}/{target.relative_to(folder)}: {how}"
        if rng.random() < 0.2:
            corpus = _open(folder)
            target.write_bytes(data)
            return f"{what}, in use", lambda: _deliver(corpus, "skip")
        target.write_bytes(data)
        return what, lambda: _read(folder, "skip")


def _write(folder: Path, form: str) -> None:
    lance: Any = importlib.import_module("lance")
    import pyarrow as pa

    x = np.arange(ROWS, dtype=np.int32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(x, 3).astype(np.float32)), 3)
    columns = {
        "x": x,
        "v": vectors,
        "s": [f"räum {i}" * (1 + i % 3) for i in range(ROWS)],
        "r": [list(range(i % 4)) for i in range(ROWS)],
        "n": pa.array([None if i % 7 == 3 and form != "legacy" else i / 2 for i in range(ROWS)]),
    }
    lance.write_dataset(pa.table(columns), folder, max_rows_per_file=25, data_storage_version=form)
    lance.dataset(folder).delete("x % 9 = 4")


def _open(folder: Path) -> fl.LanceDeserializer:
    return fl.LanceDeserializer(folder, STREAMS, chunk_sequences=10, memory=1 << 20)


def _read(folder: Path, on_error: str) -> None:
    dict(fl.open_corpus(folder).read(0).errors)
    _deliver(_open(folder), on_error)


def _deliver(corpus: fl.LanceDeserializer, on_error: str) -> None:
    """Read all rows in chunks, and some by themselves."""
    corpus.digest()
    skipping = {"on_error": fl.Quarantine("q.jsonl")} if on_error == "skip" else {}
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(20):
        dict(minibatch.items())
    corpus.select(np.arange(0, sum(info.sequences for info in corpus.chunks()), 3))
