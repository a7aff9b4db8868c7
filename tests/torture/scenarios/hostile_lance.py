"""Lance tables with any bytes of any of their files changed.

Lance has no checksums, so manifests, data and numbers of deleted rows may be read as something else. Such inputs are
counted. Where damaged data is delivered, rows of other fragments are complete.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.torture.case import Case, WrongError
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile

FORMS = ("2.0", "2.1", "2.2", "legacy", "bitmap", "history")
ROWS, FRAGMENT = 60, 25
PLAIN = {
    "x": fl.Stream((), "int32"),
    "v": fl.Stream(3),
    "s": fl.Stream(dtype="str"),
    "b": fl.Stream(dtype="bytes"),
    "n": fl.Stream((), "float64", missing=-1.0),
    "t": fl.Stream((), "int64"),
    "flag": fl.Stream((), "bool"),
}
RAGGED = {**PLAIN, "r": fl.Stream((), "int64"), "texts": fl.Stream(dtype="str")}
WORDS = (
    *(b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f", (2**40).to_bytes(8, "little"), (2**62).to_bytes(8, "little")),
    *(b"\x80\x80\x80\x80\x08", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"LANC", b"../", b"\x0a\xff\x0f"),
)
CHANGEABLE = ("data", "_deletions", "_versions")
Record = tuple[int, str]


class HostileLance(Hostile):
    """Reads or refuses."""

    name = "hostile-lance"
    asks = "does a damaged Lance table end the process, take unbounded memory, or lose other rows?"
    batch = 100
    processor = 150
    memory = 1 << 33

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("lance") else "lance is not installed"

    def prepare(self, case: Case) -> None:
        self._sound: dict[tuple[str, bool], list[Record]] = {}
        self._fragments: dict[str, list[tuple[set[str], set[int]]]] = {}
        for form in FORMS:
            _write(case.folder / form, form)
            self._fragments[form] = _fragments(case.folder / form)
            for ragged in (False, True):
                # This also starts the threads of lance, for which memory is not limited.
                self._sound[form, ragged] = _deliver(_open(case.folder / form, form, ragged), "raise")

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: [_deliver(_open(case.folder / form, form, True), "raise") for form in FORMS]

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        form, ragged = rng.choice(FORMS), rng.random() < 0.5
        folder = Path(shutil.copytree(case.folder / form, case.folder / f"changed-{k}"))
        # By age, as their names are random.
        files = sorted(
            (path for path in folder.rglob("*.*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns
        )
        kind = rng.choice(sorted({_kind(path, folder) for path in files}))
        target = rng.choice([path for path in files if _kind(path, folder) == kind])
        twin = rng.choice([path for path in files if path.suffix == target.suffix])
        data, how = mutated(rng, target.read_bytes(), twin.read_bytes(), WORDS)
        corpus = _open(folder, form, ragged) if rng.random() < 0.2 else None
        target.write_bytes(data)

        def read() -> None:
            if corpus is None and rng.random() < 0.2:
                fl.open_corpus(folder).read(0)
            records = _deliver(corpus or _open(folder, form, ragged), "skip")
            self._compare(case, form, ragged, target.relative_to(folder), records)

        in_use = "" if corpus is None else ", in use"
        return f"{form}/{target.relative_to(folder)}: {how}{in_use}{', ragged' * ragged}", read

    def _compare(self, case: Case, form: str, ragged: bool, target: Path, records: Iterable[Record]) -> None:
        sound, delivered = self._sound[form, ragged], set(records)
        case.tally("delivered")
        if delivered == set(sound):
            return
        kind = target.parts[0]
        if kind not in CHANGEABLE:
            raise WrongError(f"{len(delivered)} of {len(sound)} records, such as {next(iter(delivered), None)!r:.200}")
        case.tally(f"delivered with other values, {kind}")
        if kind == "data":
            changed = [rows for names, rows in self._fragments[form] if target.name in names]
            others = {record for record in sound if not any(record[0] in rows for rows in changed)}
            if others - delivered:
                raise WrongError(f"{len(others - delivered)} of {len(others)} records of other fragments are lost")


def _kind(path: Path, folder: Path) -> str:
    return path.relative_to(folder).parts[0]


def _write(folder: Path, form: str) -> None:
    lance: Any = importlib.import_module("lance")
    import pyarrow as pa

    if form == "bitmap":  # for so many deleted rows
        x = np.arange(5300, dtype=np.int32)
        lance.write_dataset(pa.table({"x": x, "s": [f"räum {i}" for i in x]}), folder)
        lance.dataset(folder).delete("x % 90 != 4")
        return
    x = np.arange(ROWS, dtype=np.int32)
    columns = {
        "x": x,
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(x, 3).astype(np.float32)), 3),
        "s": [f"räum {i}" * (1 + i % 3) for i in range(ROWS)],
        "b": [bytes([i]) * (1 + i % 4) for i in range(ROWS)],
        "n": pa.array([None if i % 7 == 3 and form != "legacy" else i / 2 for i in range(ROWS)]),
        "t": pa.array(range(ROWS), pa.timestamp("us")),
        "flag": [i % 3 == 0 for i in range(ROWS)],
        "r": [list(range(i % 4)) for i in range(ROWS)],
        "texts": [[f"t{j}" for j in range(i % 3)] for i in range(ROWS)],
    }
    version = "2.1" if form == "history" else form
    lance.write_dataset(pa.table(columns), folder, max_rows_per_file=FRAGMENT, data_storage_version=version)
    if form == "history":
        lance.dataset(folder).create_scalar_index("x", "BTREE")
        lance.dataset(folder).add_columns({"more": "x * 2"})
        lance.dataset(folder).update({"n": "5.0"}, where="x = 9")
        lance.dataset(folder).tags.create("first", 1)
    lance.dataset(folder).delete("x % 9 = 4")


def _fragments(folder: Path) -> list[tuple[set[str], set[int]]]:
    """Return the names of files and the rows of each fragment."""
    table: Any = importlib.import_module("lance").dataset(folder)
    return [
        ({file.path for file in fragment.data_files()}, set(fragment.to_table(columns=["x"])["x"].to_pylist()))
        for fragment in table.get_fragments()
    ]


def _open(folder: Path, form: str, ragged: bool) -> fl.LanceDeserializer:
    names = ["x", "s"] if form == "bitmap" else list(RAGGED if ragged else PLAIN)
    return fl.LanceDeserializer(folder, {name: RAGGED[name] for name in names}, chunk_sequences=10, memory=1 << 20)


def _deliver(corpus: fl.LanceDeserializer, on_error: str) -> list[Record]:
    """Return all rows, which begin with x, read in chunks. Some are also read by themselves."""
    corpus.digest()
    skipping = {"on_error": fl.Quarantine("q.jsonl")} if on_error == "skip" else {}
    records: list[Record] = []
    for minibatch in fl.MinibatchSource(corpus, max_sweeps=1, **skipping).minibatches(20):
        x, *others = (minibatch[name].tolist() for name in corpus.schema)
        records += [(number, repr(values)) for number, *values in zip(x, *others, strict=True)]
    if on_error == "raise":
        corpus.select(np.arange(0, len(records), 3))
    return records
