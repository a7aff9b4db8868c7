"""How fast are minibatches from a store on a slow disk, compared with what that disk delivers?

Limits and contenders: those of `cold`, in a control group that reads at most 200 MB and 2,000 times a second, as a
network disk does. Bare reads are those that are best on such a disk: large ones, and many at a time. Unit: samples of
784 float32 and a label a second of wall time. Measured: sweeps in order and in windows of 64 MiB, and 8,000 samples of
a whole shuffle, each by a fresh source over files that were evicted from the page cache, so that each takes seconds,
not the first moment that the group gives for free. Then two sweeps with memory for half of the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import feedline as fl
from benchmarks import cold
from benchmarks.disk import bare_random, bare_sequential, compile_bare, evict
from benchmarks.harness import Answer, Stage, race

BYTES, READS = 200_000_000, 2_000  # a second
WINDOW = 64 << 20
WHERE = "on a disk of 200 MB/s and 2,000 reads/s"
SHUFFLES = cold.SHUFFLES | {"windows": fl.Window(bytes=WINDOW)}
BARE = ("sequential, 4 of 4 MiB", "sequential, 4 of 1 MiB, direct", "random, 32 at a time, direct")
_GROUPS = Path("/sys/fs/cgroup/blkio")


def run(stage: Stage) -> list[Answer]:
    """Measure evicted, in all of memory and in a part of it."""
    rows = stage.size(200_000, 20_000)
    store, flat = cold.make(stage, rows)
    some = min(rows, 1_000 if stage.quick else 8_000)
    contenders = {
        name: cold.feeding(store, shuffle, some if name == "whole" else None) for name, shuffle in SHUFFLES.items()
    }
    if (bare := compile_bare(stage.data)) is not None:
        reads = bare_sequential(bare, [str(flat)]) | bare_random(bare, flat, rows, some)
        contenders |= {name: reads[name] for name in BARE}
    with slow_disk(stage.data) as slowed:
        if not slowed:
            note = "not measured: no control group for disks may be made here"
            return [Answer(f"store evicted, {name} {WHERE}", "samples/s", 0.0, note=note) for name in SHUFFLES]
        ran = race(contenders, stage.rounds(3), "process", 0, before=lambda _: evict(store, flat))
        answers = [here(answer) for answer in cold.bare_reads(ran)]
        answers += [here(cold.beside_the_disk(ran, name)) for name in SHUFFLES]
        answers += [here(answer) for answer in cold.little_memory(store, flat, 2, ran, some)]
    shutil.rmtree(store)
    flat.unlink()
    return answers


def here(answer: Answer) -> Answer:
    """Return an answer about the slow disk."""
    question = answer.question.replace("256 MiB", f"{WINDOW >> 20} MiB")
    return dataclasses.replace(answer, question=f"{question}, {WHERE}")


@contextlib.contextmanager
def slow_disk(folder: Path) -> Iterator[bool]:
    """Let this process, and those that it starts, read slowly from the disk of a folder. False: that is not permitted.

    The limit is that of a control group of version 1.
    """
    group, device = _GROUPS / f"feedline-bench-{os.getpid()}", os.stat(folder).st_dev
    try:
        group.mkdir()
        for name, limit in (("bps", BYTES), ("iops", READS)):
            path = group / f"blkio.throttle.read_{name}_device"
            path.write_text(f"{os.major(device)}:{os.minor(device)} {limit}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        (_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()
