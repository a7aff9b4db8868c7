"""How much memory do a loader over 10 million shuffled samples and its workers take?

Peer: torch's `DataLoader`. Unit: bytes a sample, MB. Measured: in a fresh process for each, private memory
(`Private_Clean` + `Private_Dirty` of `/proc/PID/smaps_rollup`) of the process that reads, over what it was before the
loader was made, at its peak, and of all its descendants together, where the epoch is at 10 % and where it ends, each
sampled every 50 batches. Items are made from their index, so no data counts. 2 workers, 1024 a batch.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import Answer, Stage, Target
from benchmarks.loader_resume import Indices, as_it_is

BATCH = 1024
#: Bytes of workers' memory that come and go with batches in flight and with the interpreter's free lists.
SLACK = 8e6


def run(stage: Stage) -> list[Answer]:
    """Parent, then workers."""
    n = stage.size(10_000_000, 100_000)
    seen = {name: watch(name, n) for name in ("feedline", "torch")}
    ours, theirs = seen["feedline"], seen["torch"]
    return [
        Answer(
            question=f"private memory of the reading process, {n:,} samples, shuffled",
            unit="B a sample",
            ours=ours["parent"] / n,
            peer="torch DataLoader",
            peer_value=theirs["parent"] / n,
            ratio=theirs["parent"] / max(ours["parent"], 1),
            target=Target("ours", "<=", 16, "16 B"),
            note=f"{ours['parent'] / 1e6:.0f} MB over {ours['before'] / 1e6:.0f} MB before",
            detail=seen,
        ),
        Answer(
            question="growth of the workers' private memory over an epoch",
            unit="MB",
            ours=(ours["last"] - ours["early"]) / 1e6,
            peer="torch DataLoader",
            peer_value=(theirs["last"] - theirs["early"]) / 1e6,
            target=Target("ours", "<=", SLACK / 1e6, f"{SLACK / 1e6:.0f} MB"),
            note=f"{ours['early'] / 1e6:.0f} MB at 10 % (torch {theirs['early'] / 1e6:.0f} MB), a server that starts "
            "the workers included",
            detail=seen,
        ),
    ]


def watch(name: str, n: int) -> dict[str, float]:
    """Return the memory that a fresh process reports for itself and its workers."""
    command = [sys.executable, "-m", "benchmarks.loader_memory", name, str(n)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the reading process failed with exit code {ran.returncode}:\n{ran.stderr}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def private(pid: int | str) -> int:
    """Return the bytes of private memory. 0 for a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def descendants(pid: int) -> list[int]:
    """Return the processes that ``pid`` started, directly or through others."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def read(name: str, n: int) -> dict[str, float]:
    """In the fresh process: one epoch."""
    import feedline as fl
    from benchmarks.loaders import TORCH

    make = fl.DataLoader if name == "feedline" else TORCH
    items = Indices(n)
    # What a first loader loads and allocates once is not what 10 million samples cost.
    for _ in make(Indices(10 * BATCH), batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=as_it_is):
        pass
    gc.collect()
    me = os.getpid()
    before = peak = private("self")
    early = last = 0
    loader = make(items, batch_size=BATCH, shuffle=True, num_workers=2, collate_fn=as_it_is)
    batches = -(-n // BATCH)
    step = max(1, min(50, batches // 20))
    for number, _ in enumerate(loader):
        if number % step and number != batches // 10:
            continue
        peak = max(peak, private("self"))
        # Towards the end workers may be gone already.
        if batches // 10 <= number <= batches - 20 or not early:
            last = sum(private(pid) for pid in descendants(me))
            early = last if number <= batches // 10 else early
    return {"before": before, "parent": peak - before, "early": early, "last": last}


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], int(sys.argv[2]))))
