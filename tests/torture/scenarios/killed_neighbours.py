"""Places whose names differ only in characters that a folder's name cannot hold, read through one cache and killed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from tests.servers.object_store import ObjectStoreProcess
from tests.torture.case import Case
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_fetchers import draw
from tests.torture.victims import Instant, Victim, run

NAMES = (("data_1", "data__1"), ("größe", "grüße"), ("a b", "a_b"), ("x~", "x_"))
ROWS = 800


class KilledNeighbours(Scenario):
    """Each place is read once, whatever was killed over the same cache before."""

    name = "killed-neighbours"
    asks = "do places of like names, in one cache and killed, each give their own data?"

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("obstore") else "the package obstore"

    def run(self, case: Case) -> None:
        rng, names = case.rng, NAMES[case.number % len(NAMES)]
        for number, name in enumerate(names):
            (case.folder / "objects" / name).mkdir(parents=True)
            lines = (json.dumps({"place": number, "pad": "x" * 500}) + "\n" for _ in range(ROWS))
            (case.folder / "objects" / name / "x.jsonl").write_text("".join(lines))
        with ObjectStoreProcess(case.folder / "objects", bytes_per_second=rng.choice([1e6, 20e6, None])) as server:
            addresses = [server.http(f"{name}/x.jsonl") for name in names]
            for _ in range(rng.randint(2, 5)):
                instant = draw(rng)
                ended = Victim(case, deliver, addresses, case.folder / "cache", None, instant, instant=instant).wait()
                case.tally("kills", int(ended.hit))
            server.set(bytes_per_second=None)
            counts = case.folder / "counts"
            run(case, "reading neighbours", deliver, addresses, case.folder / "cache", counts, None)
        if not counts.exists():
            return  # as was told
        found = json.loads(counts.read_text())
        for number, name in enumerate(names):
            if (got := found.get(str(number), 0)) != ROWS:
                case.fail("twice" if got > ROWS else "lost", f"{got} rows of {name}, rather than {ROWS}: {found}")


def deliver(addresses: Any, cache: Path, counts: Path | None, instant: Instant | None) -> None:
    """Read all places through one cache; write down how many rows came of each."""
    streams = {"place": fl.Stream((), "int64"), "pad": fl.Stream(dtype="str")}
    corpus = fl.open_corpus(addresses, cache=cache, deadline_s=20.0, **streams)
    with fl.MinibatchSource(corpus, shuffle=fl.Window(bytes=1 << 18), seed=1, max_sweeps=1) as source:
        places = [minibatch["place"].rows.ravel() for minibatch in source.minibatches(50)]
    corpus.close()
    numbers, of_each = np.unique(np.concatenate(places), return_counts=True)
    if counts is not None:
        counts.write_text(json.dumps({str(n): k for n, k in zip(numbers.tolist(), of_each.tolist(), strict=True)}))
