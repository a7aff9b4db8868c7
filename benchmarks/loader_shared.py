"""What do annotations in Python objects cost the workers of a `DataLoader`, as they are and by `feedline.shared`?

Peers: torch's `DataLoader` over the same dictionaries in a list; forking, for the start. Two workers. Unit: MB of
memory, microseconds for a record, milliseconds for a batch. Measured:

- Memory: private memory (`Private_Clean` + `Private_Dirty`) of the larger worker near the end of the third epoch over
  shuffled records, over that of a worker which has read 1,000 of them. A fresh process for each.
- One record: CPU time of reading records in random order.
- Later epochs: from `iter` to the first batch, on the wall, where items take 0.24 ms and the loop 10 ms a batch.
- Start: from `iter` to the first batch over shared annotations, on the wall, after a first loader of each kind.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race
from benchmarks.loader_memory import private
from benchmarks.loaders import LOADERS, TORCH, alternated, loops_for, sooner, spin

BATCH = 64
CONTENDERS = {
    "torch DataLoader": (TORCH, lambda items: items),
    "feedline, a list": (fl.DataLoader, lambda items: items),
    "feedline, shared": (fl.DataLoader, fl.shared),
}


class Annotated:
    """Records in a list of dictionaries.

    Args:
        count: number of records.
        loops: work for each item.
        more: bytes of text in each record.
    """

    def __init__(self, count: int, loops: int = 0, more: int = 0) -> None:
        self.records = [
            {"file": f"{'x' * more}img_{i:08d}.jpg", "box": [i, i + 1], "class": i % 80} for i in range(count)
        ]
        self.loops = loops

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> int:
        spin(self.loops)
        record = self.records[i]
        return len(record["file"]) + record["box"][0] + record["class"]


def run(stage: Stage) -> list[Answer]:
    """Memory, one record, later epochs, start."""
    records = stage.size(600_000, 20_000)
    return [*memory(records), one_record(stage, records), later_epochs(stage), start(stage)]


def memory(records: int) -> list[Answer]:
    """Private memory of a worker, as a list and shared."""
    grown = {}
    for name in CONTENDERS:
        command = [sys.executable, "-m", "benchmarks.loader_shared", name, str(records)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"the reading process failed with exit code {ran.returncode}:\n{ran.stderr}")
        grown[name] = float(ran.stdout.split()[-1]) / 1e6
    *_, ours = CONTENDERS
    return [
        Answer(
            question=f"private memory of a worker after three epochs over {records:,} dictionaries, {name}",
            unit="MB",
            ours=grown[name],
            peer="torch DataLoader",
            peer_value=grown["torch DataLoader"],
            target=Target("ours", "<=", 10, "10 MB") if name == ours else None,
            detail=grown,
        )
        for name in ("feedline, a list", ours)
    ]


def read(name: str, count: int) -> float:
    """In a fresh process: private bytes that a worker has gained since it had read 1,000 records."""
    make, of = CONTENDERS[name]
    early = late = 0
    # Persistent workers keep what they have copied in all epochs.
    loader = make(of(Annotated(count)), batch_size=500, shuffle=True, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        batches = iter(loader)
        for number in range(len(loader) - 1):
            next(batches)
            if number == 1 and not epoch:
                early = max(private(process.pid) for process in batches._workers)
        late = max(private(process.pid) for process in batches._workers)
        list(batches)
    return late - early


def one_record(stage: Stage, records: int) -> Answer:
    """Read single records of a shared list."""
    listed = Annotated(records).records
    shared, places = fl.shared(listed), random.Random(1).choices(range(records), k=stage.size(100_000, 10_000))

    def reading(sequence: Any) -> Callable[[], float]:
        def turn() -> float:
            for place in places:
                sequence[place]
            return len(places)

        return turn

    raced = race({"shared": reading(shared), "list": reading(listed)}, stage.rounds(9))
    answer = compare(raced, "shared", "list", "", "")
    return Answer(
        question="reading one record of a shared list",
        unit="us",
        ours=1e6 / raced.rate("shared"),
        peer="a list",
        peer_value=1e6 / raced.rate("list"),
        target=Target("ours", "<=", 1.5, "1.5 us"),
        spread=answer.spread,
        detail=answer.detail,
    )


def later_epochs(stage: Stage) -> Answer:
    """From ``iter`` to the first batch."""
    items = Annotated(16 * BATCH, loops_for(0.24e-3))
    shared = {"feedline": fl.shared(items), "torch DataLoader": items}
    said: dict[str, list[float]] = {name: [] for name in LOADERS}
    for _ in range(stage.rounds(5)):
        for name, make in LOADERS.items():
            said[name] += later(make(shared[name], batch_size=BATCH, shuffle=True, num_workers=2))
    question = "first batch of a later epoch over shared records, 2 workers, fork"
    return sooner(said, "feedline", "torch DataLoader", question, at_most=0.25)


def later(loader: Any) -> list[float]:
    """Seconds from ``iter`` to the first batch, of three epochs after the first."""
    took = []
    for _ in range(4):
        began = time.perf_counter()
        batches = iter(loader)
        next(batches)
        took.append(time.perf_counter() - began)
        for _ in batches:
            time.sleep(0.01)
    return took[1:]


def start(stage: Stage) -> Answer:
    """From ``iter`` to the first batch, by start method."""
    records = stage.size(660_000, 10_000)
    items = fl.shared(Annotated(records, more=3000))

    def first(method: str) -> float:
        with fl.DataLoader(items, batch_size=BATCH, num_workers=2, multiprocessing_context=method) as loader:
            time.sleep(0.5)  # the server is there
            began = time.perf_counter()
            next(iter(loader))
            return time.perf_counter() - began

    said = alternated({method: lambda m=method: first(m) for method in ("forkserver", "fork")}, stage.rounds(9))  # type: ignore[misc]
    question = f"start of 2 workers over {records * 3.1e-6:.2g} GB of shared annotations, forkserver"
    return sooner(said, "forkserver", "fork", question, at_most=1.2)


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]))))
