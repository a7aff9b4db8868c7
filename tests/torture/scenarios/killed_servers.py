"""Servers of ``dist_async`` that are killed and stopped while a worker pushes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.torture.case import Case
from tests.torture.scenario import Scenario

ROOT = Path(__file__).resolve().parents[3]
PUSHES = 60


class KilledServers(Scenario):
    """Every push counts once, for any end of the servers. A worker ends by itself, never by a signal."""

    name = "killed-servers"
    asks = "does every push of dist_async count once when servers die?"
    seconds = 400.0
    least = 300.0

    def missing(self) -> str | None:
        return "Ray is not installed" if importlib.util.find_spec("ray") is None else None

    def run(self, case: Case) -> None:
        # Ray handles signals and starts threads, so its worker is a separate program.
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.scenarios.killed_servers", str(case.rng.random()), case.name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        told, noise = worker.communicate(timeout=self.seconds - 20)
        lines = told.splitlines()
        case.tally("kills", sum(line.startswith("kill") for line in lines))
        what = "; ".join(line for line in lines if line.startswith(("kill", "stop")))
        if worker.returncode < 0:
            case.fail("crashes", f"the worker ended with signal {-worker.returncode}: {what}\n{noise[-1500:]}")
        elif worker.returncode:
            case.fail("foreign", f"the worker ended with {worker.returncode}: {what}\n{noise[-1500:]}")
        elif f"holds [{float(PUSHES)}] lost 0" not in lines:  # Ray's log may follow it
            case.fail("lost", f"after {what}: {[line for line in lines if line.startswith('holds')] or lines[-1:]}")


def work(luck: str, name: str) -> None:
    """Pushes ones to small and large keys, and kills servers meanwhile."""
    import random

    import torch

    import feedline as fl
    from tests.kvstore.test_async import process_of

    rng = random.Random(luck)
    kills = sorted(rng.sample(range(PUSHES), rng.randint(1, 4)))
    shapes = {"a": (3,), "b": (), "c": (2, 50_000)}
    with fl.kvstore.create("dist_async", name=name.replace("/", "-"), workers=1, servers=2, timeout=60) as store:
        store.init(list(shapes), [torch.zeros(shape) for shape in shapes.values()])
        store.set_optimizer("test")
        outs = [torch.empty(shape) for shape in shapes.values()]
        for number in range(PUSHES):
            if number in kills:
                server, stop = rng.randrange(2), rng.random() < 0.3
                pid = process_of(store, server)
                os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
                print(f"{'stop' if stop else 'kill'} server {server} at push {number}", flush=True)
                if stop:
                    time.sleep(rng.random())
                    os.kill(pid, signal.SIGCONT)
            ones = [torch.ones(shape) for shape in shapes.values()]
            if rng.random() < 0.5:
                store.pushpull(list(shapes), ones, outs)
            else:
                store.push(list(shapes), ones)
            time.sleep(rng.random() * 0.02)
        store.barrier()
        store.pull(list(shapes), outs)
        values = sorted({float(v) for out in outs for v in out.unique().tolist()})
        print(f"holds {values} lost {store.lost_pushes}", flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
