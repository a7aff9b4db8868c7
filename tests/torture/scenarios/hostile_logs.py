"""Run folders with any byte of their logs changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

import feedline as fl
from tests.torture import hostile
from tests.torture.case import Case
from tests.torture.damage import mutated
from tests.torture.hostile import Hostile


class HostileLogs(Hostile):
    """A page, or a `DataError`."""

    name = "hostile-logs"
    asks = "is a damaged run log or quarantine file shown or refused?"

    def prepare(self, case: Case) -> None:
        with open(case.folder / "quarantine.jsonl", "w") as file:
            for i in range(5):
                line = {"sequence": i, "path": "a.ctf", "line": i, "byte": 9 * i, "stream": "x", "reason": "planted"}
                file.write(json.dumps(line) + "\n")

    def original(self, case: Case) -> Callable[[], Any]:
        shutil.copy(case.data / "run" / "run.jsonl", case.folder / "run.jsonl")
        return lambda: fl.report(case.folder)

    def draw(self, case: Case, k: int) -> tuple[str, Callable[[], Any]]:
        rng, folder = case.rng, case.folder / str(k)
        folder.mkdir()
        shutil.copy(case.data / "run" / "run.jsonl", folder / "run.jsonl")
        shutil.copy(case.folder / "quarantine.jsonl", folder / "quarantine.jsonl")
        path = folder / rng.choice(["run.jsonl", "run.jsonl", "quarantine.jsonl"])
        if rng.random() < 0.6:
            lines = path.read_text().splitlines()
            at = rng.randrange(len(lines))
            changed, how = hostile.tree(rng, json.loads(lines[at]))
            lines[at] = json.dumps(changed)
            path.write_text("\n".join(lines) + "\n", "utf-8")
        else:
            text, how = mutated(rng, path.read_bytes())
            path.write_bytes(text)
        return f"{path.name}: {how}", lambda: fl.report(folder)
