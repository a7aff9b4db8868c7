"""``python -m benchmarks.peers.run CONTENDER WORKLOAD``: one turn of one contender, in this process.

Prints one line of JSON. ``--make`` writes a format's data instead. ``--save`` and ``--resume`` are the two halves of a
turn that resumes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contender import Contender, Given, Workload, ids_of, load, touch
from benchmarks.peers.tree import adopt, cpu_seconds, end

#: Share of an epoch after which a run stops, to be resumed.
STOP = 0.9
#: Batches after a state that must equal the batches of an uninterrupted run.
BEHIND = 3


def main() -> None:
    """Run one turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.run", description=__doc__)
    parser.add_argument("contender", help="its name, or with --make a format")
    parser.add_argument("workload")
    parser.add_argument("--data", type=Path, required=True, help="folder of the format's data")
    parser.add_argument("--scratch", type=Path, help="an empty folder for this turn")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="to count batches for")
    parser.add_argument("--check", type=Path, help="a folder of less data, of which every sample is checked")
    parser.add_argument("--make", type=int, metavar="COUNT", help="write so many samples")
    parser.add_argument("--save", type=Path, metavar="FILE", help="read up to a state, and write it")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from a state")
    parser.add_argument("--samples", type=int, help="of --data; needed by --save")
    options = parser.parse_args()
    adopt()
    try:
        found, failed = json.dumps(turn(options)), None
    except BaseException:
        found, failed = "", traceback.format_exc()
    # Not all peers end their threads and processes by themselves, and torch raises where a worker is ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end(os.getpid())
    print(f"\n{found}" if failed is None else failed, file=sys.stdout if failed is None else sys.stderr, flush=True)
    os._exit(failed is not None)


def turn(options: argparse.Namespace) -> dict[str, Any]:
    """Run the turn that the arguments describe."""
    workload = load(options.workload)
    if options.make is not None:
        workload.makers[options.contender](options.data, options.make)
        if options.check is not None:
            workload.makers[options.contender](options.check, workload.check)
        return {"made": options.make}
    contender = workload.find(options.contender)
    if contender.delivers == "torch":
        import torch  # noqa: F401  # no contender pays for its import
    given = Given(options.data, options.workers, options.scratch or options.data.parent)
    if options.save is not None:
        return save(contender, workload, given, options.samples, options.save)
    if options.resume is not None:
        return resume(contender, given, options.resume)
    checked = {}
    if workload.whole:  # the clock includes the opening, but no imports: a pass over less data makes them
        checked = checks(contender, given, workload, options.check)
    measure = whole if workload.whole else speed
    figures = measure(contender, given, options.seconds or workload.seconds)
    return figures | (checked or checks(contender, given, workload, options.check))


def checks(contender: Contender, given: Given, workload: Workload, folder: Path | None) -> dict[str, Any]:
    """Check less data, in a folder. Return the number of its samples, and nothing if there is no folder."""
    if folder is None:
        return {}
    check(contender, given._replace(data=folder), workload.check, workload.shares)
    return {"checked": workload.check}


def started(contender: Contender, given: Given) -> Any:
    """Import a contender, return its timed function. Collecting the imports' garbage takes 80 ms, off the clock."""
    found = contender.start(given)
    gc.collect()
    return found


def speed(contender: Contender, given: Given, seconds: float) -> dict[str, Any]:
    """Count samples for a while from the first batch on, through as many epochs as that takes."""
    opened = started(contender, given)
    ids = contender.ids or ids_of
    began = time.perf_counter()
    loader = opened()  # type: ignore[call-arg]
    batches = endless(loader)
    touch(next(batches)[1])
    first_s = time.perf_counter() - began
    counted, epoch, spent = 0, 0, cpu_seconds(os.getpid())
    began = time.perf_counter()
    while (wall_s := time.perf_counter() - began) < seconds:
        epoch, batch = next(batches)
        touch(batch)
        counted += len(ids(batch))
    spent = cpu_seconds(os.getpid()) - spent
    return {"units": counted, "wall_s": wall_s, "cpu_s": spent, "first_s": first_s, "epochs": epoch}


def whole(contender: Contender, given: Given, seconds: float) -> dict[str, Any]:
    """Count the samples of one epoch, opening included, however long it takes."""
    opened = started(contender, given)
    ids = contender.ids or ids_of
    began, spent, counted, first_s = time.perf_counter(), cpu_seconds(os.getpid()), 0, 0.0
    for batch in opened():  # type: ignore[call-arg]
        first_s = first_s or time.perf_counter() - began
        touch(batch)
        counted += len(ids(batch))
    wall_s, spent = time.perf_counter() - began, cpu_seconds(os.getpid()) - spent
    return {"units": counted, "wall_s": wall_s, "cpu_s": spent, "first_s": first_s, "epochs": 1}


def endless(loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Epoch after epoch: the number of the epoch, and a batch.

    Raises:
        RuntimeError: an epoch has no batch.
    """
    for epoch in itertools.count():
        batch = None
        for batch in loader:
            yield epoch, batch
        if batch is None:
            raise RuntimeError(f"expected batches in epoch {epoch}, got none")


def check(contender: Contender, given: Given, count: int, shares: int = 1) -> None:
    """Read an epoch of all shares, in which each of ``count`` samples must come once.

    Raises:
        RuntimeError: one is missing or comes twice.
    """
    ids = contender.ids or ids_of
    found = np.concatenate(
        [
            np.array(ids(batch))
            for share in range(shares)
            for batch in contender.start(given._replace(share=share))()  # type: ignore[call-arg]
        ]
    )
    if not np.array_equal(np.sort(found), np.arange(count)):
        lost = count - len(np.unique(found))
        raise RuntimeError(f"expected each of {count} samples once, got {len(found)}, of which {lost} are missing")


def save(contender: Contender, workload: Workload, given: Given, samples: int, file: Path) -> dict[str, Any]:
    """Read `STOP` of an epoch, write the state after it and the samples that follow."""
    ids = contender.ids or ids_of
    batches, state = contender.start(given)(None)  # type: ignore[call-arg]
    for _ in range(int(samples * STOP) // workload.batch):
        next(batches)
    held = state()
    size = len(pickle.dumps(held))
    expected = [np.array(ids(next(batches))) for _ in range(BEHIND)]
    file.write_bytes(pickle.dumps((held, expected)))
    return {"state_bytes": size}


def resume(contender: Contender, given: Given, file: Path) -> dict[str, Any]:
    """Go on from a state, return the seconds until the next batch, and whether it and the following ones are right."""
    ids = contender.ids or ids_of
    held, expected = pickle.loads(file.read_bytes())
    resumed = started(contender, given)
    began, spent = time.perf_counter(), cpu_seconds(os.getpid())
    batches, _ = resumed(held)  # type: ignore[call-arg]
    first = next(batches)
    resume_s, spent = time.perf_counter() - began, cpu_seconds(os.getpid()) - spent
    found = [np.array(ids(first)), *(np.array(ids(batch)) for batch in itertools.islice(batches, BEHIND - 1))]
    right = len(found) == len(expected) and all(map(np.array_equal, found, expected))
    return {"resume_s": resume_s, "cpu_s": spent, "right": bool(right)}


if __name__ == "__main__":
    main()
