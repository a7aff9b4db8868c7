"""Loaders with worker processes and threads: the training process is killed, or workers are."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import feedline as fl
from tests.torture import items
from tests.torture.arena import children
from tests.torture.case import Case
from tests.torture.restarts import commit, committed
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_feeds import delivered
from tests.torture.victims import Victim, draw, run


class KilledLoaders(Scenario):
    """All starts together deliver the items of an uninterrupted loader. No worker outlives its loader."""

    name = "killed-loaders"
    asks = "are a loader's items whole after kills of it and its workers, and do workers end?"
    seconds = 240.0
    # The socket of Python's fork server, whose folder Python removes at a normal exit.
    leaves = ("pymp-*",)

    def run(self, case: Case) -> None:
        rng = case.rng
        n = rng.choice([40, 150])
        order = {"seed": rng.randrange(1 << 64), "shuffle": True}
        wide = rng.choice([3, 3, 5000])
        reference = fl.DataLoader(items.Augmented(n, wide=wide), batch_size=10, **order)
        expected = [item for _ in range(2) for batch in reference for item in items.contents(batch)]
        path = case.folder / "record"
        operations = 80
        # Processes that import everything again take seconds: most cases fork their workers.
        context = "fork" if rng.random() < 0.93 else rng.choice(["forkserver", "spawn"])
        kills = rng.randint(1, 5) if context == "fork" else 1
        seconds = 0.2 if context == "fork" else 4.0
        for _ in range(kills):
            victim = Victim(
                case,
                deliver,
                n,
                wide,
                order,
                path,
                context,
                rng.random(),
                instant=draw(rng, seconds, operations),
            )
            ended = victim.wait(100)
            operations = max(operations, ended.operations)
            case.tally("kills", int(ended.hit))
            if ended.error is not None and ended.kind != "KeyboardInterrupt" and not ended.hit:
                case.fail("lost" if ended.promised else "foreign", f"{context}, {victim.told()}: {ended.error}")
            elif ended.error is not None and not ended.promised and not ended.hit:
                case.fail("foreign", f"{context}, {victim.told()}: {ended.error}")
        run(case, "going on", deliver, n, wide, order, path, context, rng.random(), seconds=100)
        case.compare(f"DataLoader, {context}", expected, [tuple(one) for one in delivered(path)])


def deliver(n: int, wide: int, order: dict[str, Any], path: Path, context: str, luck: float) -> None:
    """The loop of a start. Now and then it kills one of its workers, and continues."""
    rng = random.Random(luck)
    # A worker killed by its item, or by us, is an error after which the loop continues.
    deadly = rng.randrange(n) if rng.random() < 0.3 else None
    dataset = items.Augmented(n, rng.choice([0.0, 0.003]), deadly, str(path.with_suffix(f".{rng.random()}")), wide)
    options: dict[str, Any] = {"num_workers": rng.choice([0, 1, 2, 3]), "batch_size": rng.choice([1, 4, 9, 30])}
    if options["num_workers"]:
        options["workers"] = rng.choice(["process", "process", "thread"])
        options["prefetch_factor"] = rng.choice([None, 1, 4])
        options["multiprocessing_context"] = context
    if options.get("workers") != "process":
        dataset.deadly = None
    loader = fl.DataLoader(dataset, **order, **options)
    state, length = committed(path)
    if state is not None:
        loader.load_state_dict(state)
    lines = path.read_bytes()[:length].splitlines() if path.exists() else []
    count = len(lines)
    failures = 0
    with open(path, "ab") as file:
        file.truncate(length)
        while count < 2 * n:
            try:
                for batch in loader:
                    found = items.contents(batch)
                    for item in found:
                        file.write(json.dumps(item).encode() + b"\n")
                    file.flush()
                    commit(path, loader.state_dict(), file.tell())
                    count += len(found)
                    if rng.random() < 0.02 and (workers := children(os.getpid())):
                        os.kill(rng.choice(workers), rng.choice([signal.SIGKILL, signal.SIGTERM]))
            except fl.WorkerError:
                # At most one for the deadly item, and one for each worker that we killed.
                failures += 1
                if failures > 20:
                    raise
                state, _ = committed(path)
                loader = fl.DataLoader(dataset, **order, **options)
                if state is not None:
                    loader.load_state_dict(state)
