"""Parquet files with any of their bytes changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile


class HostileParquet(Hostile):
    """Reads or refuses. Inputs that would crash pyarrow never reach it."""

    name = "hostile-parquet"
    asks = "does any change of a Parquet file end the process, or take memory without bound?"
    batch = 10

    def original(self, case: Case) -> Callable[[], Any]:
        return lambda: _read(case.data / "few" / "data.parquet", {})

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng = case.rng
        text, other = ((case.data / name / "data.parquet").read_bytes() for name in ("few", "twin"))
        if rng.random() < 0.6:
            # The footer contains all metadata, so half of the changes go there.
            size = int.from_bytes(text[-8:-4], "little")
            footer, how = mutated(rng, text[-8 - size : -8], other[-8 - size : -8])
            text = text[: -8 - size] + footer + len(footer).to_bytes(4, "little") + text[-4:]
            how = f"in the footer of {size} bytes: {how}"
        else:
            text, how = mutated(rng, text, other)
        path = case.folder / f"{k}.parquet"
        path.write_bytes(text)
        skip = {"on_error": fl.Quarantine(str(case.folder / "q.jsonl"))} if rng.random() < 0.3 else {}
        return how, lambda: _read(path, skip)


def _read(path: Path, options: dict[str, Any]) -> None:
    corpus = fl.ParquetDeserializer(path)
    for minibatch in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, **options).minibatches(100):
        dict(minibatch.items())
