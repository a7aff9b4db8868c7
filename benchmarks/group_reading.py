"""What does a rank pay whose group reads once: ranks of a machine that get the same samples, as tensor parallelism has?

Processes that read in step, each minibatch looked at page by page. Processor time: two ranks, over pictures decoded to
bytes and to floats, Parquet in Zstandard, and JSON Lines. Peer: the same process reading the same for itself, in turn.
Of the follower (target: a third), and of the leader, which hands minibatches on. Bytes: eight ranks in two groups of
four, a sweep of a store and of Parquet, evicted before. Limit: 1.05 copies of the shares of the groups, which add up to
the files. Unit: milliseconds of processor time a minibatch, copies. Measured: CPU time of all threads of a process, and
bytes that the kernel has read from the disk for all processes.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks.disk import evict, files
from benchmarks.harness import Answer, Race, Stage, Target, race
from benchmarks.pictures import MEAN, STD, encode
from feedline import images
from feedline.interop.meshes import MeshShare

WIDTH, TOKENS, PICTURES, ROWS, LINES = 784, 320, 64, 256, 1024
OWN, GROUP = "by itself", "in the group"
LIMIT = 1.05


def run(stage: Stage) -> list[Answer]:
    """What followers and leaders pay, then what machines read."""
    folder = stage.data / "bench-group"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(stage, folder)
    answers = []
    for question, opening, size in (
        ("64 pictures to bytes", functools.partial(pictures, stage.size(512, 64)), PICTURES),
        ("64 pictures to floats", functools.partial(pictures, stage.size(512, 64), MEAN, STD), PICTURES),
        ("256 rows of 784 floats, Parquet in Zstandard", functools.partial(rows, str(folder / "rows.parquet")), ROWS),
        ("1,024 lines of 2 KB, JSON Lines", functools.partial(lines, str(folder / "lines.jsonl")), LINES * TOKENS),
    ):
        answers += paid(stage, question, opening, size)
    for name in ("rows.parquet", "rows.store"):
        answers.append(read(folder / name))
    shutil.rmtree(folder)
    return answers


# ---- data ----------------------------------------------------------------------------------------------------


def write(stage: Stage, folder: Path) -> None:
    """Write rows as Parquet and as a store, and lines of tokens."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, count = np.random.default_rng(0), stage.size(40_000, 8_000)
    values = rng.integers(0, 64, (count, WIDTH)).astype(np.float32)
    x = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), WIDTH)
    pq.write_table(pa.table({"x": x}), folder / "rows.parquet", compression="zstd", row_group_size=1000)
    fl.convert(fl.ArrayDeserializer(x=values), str(folder / "rows.store"))
    with open(folder / "lines.jsonl", "w", encoding="utf-8") as file:
        for tokens in rng.integers(0, 50_000, (count // 2, TOKENS)).tolist():
            file.write(json.dumps({"tokens": tokens}) + "\n")


def pictures(count: int, *normalized: Sequence[float]) -> dict[str, Any]:
    """Return the arguments of a source of pictures."""
    steps = [images.RandomResizedCrop(224), images.Flip(), *([images.Normalize(*normalized)] if normalized else [])]
    corpus = fl.ArrayDeserializer(image=encode(count, 256, 256).contents)
    return {"corpus": corpus, "transforms": [images.Decode("image", *steps)]}


def rows(path: str) -> dict[str, Any]:
    """Return the arguments of a source of rows, in windows that a turn passes several of."""
    return {"corpus": fl.open_corpus(path), "shuffle": fl.Window(bytes=4 << 20)}


def lines(path: str) -> dict[str, Any]:
    """Return the arguments of a source of lines, in such windows."""
    streams = {"tokens": fl.Stream((), "int32")}
    return {"corpus": fl.open_corpus(path, streams=streams), "shuffle": fl.Window(bytes=4 << 20)}


# ---- processes -----------------------------------------------------------------------------------------------


def together(function: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """Return the results of ``function(rank, barrier, *arguments)`` in processes that are the ranks of one job."""
    context = multiprocessing.get_context("spawn")
    barrier, pipes, processes = context.Barrier(count), [], []
    for rank in range(count):
        receiving, sending = context.Pipe(duplex=False)
        arguments_of_rank = (sending, os.getpid(), function, rank, barrier, arguments)
        processes.append(context.Process(target=_main, args=arguments_of_rank))
        pipes.append(receiving)
        processes[-1].start()
        sending.close()
    try:
        return [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(60)


def _main(
    sending: Any, job: int, function: Callable[..., Any], rank: int, barrier: Any, arguments: Iterable[Any]
) -> None:
    os.environ |= {"MASTER_ADDR": "benchmark", "MASTER_PORT": str(job)}
    sending.send(function(rank, barrier, *arguments))


def look_at(minibatch: fl.Minibatch) -> None:
    """Read a byte of every page."""
    for value in minibatch.values():
        flat = value.rows.reshape(-1).view(np.uint8)
        flat[:: 1 << 12].sum()


# ---- processor time ------------------------------------------------------------------------------------------


def paid(stage: Stage, question: str, opening: Callable[[], dict[str, Any]], size: int) -> list[Answer]:
    """Compare both ranks of a group with themselves alone."""
    results: list[tuple[Race, int]] = together(worker, 2, opening, size, stage.rounds(9), 3 if stage.quick else 24)
    (leader,) = [race for race, shared in results if not shared]
    (follower,) = [race for race, shared in results if shared]
    answers = []
    for role, ran, target in (
        ("follower", follower, Target("ratio", ">=", 3, "3")),
        ("leader", leader, None),
    ):
        times = {name: [1e3 / rate for rate in ran.rates(name)] for name in (GROUP, OWN)}
        answers.append(
            Answer(
                question=f"{question}: a {role} of a group of two",
                unit="ms of CPU/minibatch",
                ours=statistics.median(times[GROUP]),
                peer=OWN,
                peer_value=statistics.median(times[OWN]),
                ratio=ran.ratio(GROUP, OWN),
                target=target,
                spread=ran.spread(GROUP),
            )
        )
    return answers


def worker(
    rank: int, barrier: Any, opening: Callable[[], dict[str, Any]], size: int, rounds: int, count: int
) -> tuple[Race, int]:
    """Return a race of one rank, and how many minibatches came from the other."""
    shares = {OWN: (0, 1), GROUP: fl.Partition(MeshShare(0, 1, group=(0, 1)))}
    sources = {}
    for name, partition in shares.items():
        arguments = opening()
        sources[name] = fl.MinibatchSource(arguments.pop("corpus"), seed=1, partition=partition, **arguments)

    def take(name: str) -> float:
        for _ in range(count):
            barrier.wait()
            look_at(sources[name].next_minibatch(size))
        settle()
        return count

    contenders = {name: functools.partial(take, name) for name in sources}
    ran = race(contenders, rounds, clock="process", warm_up=2)
    barrier.wait()
    return ran, sources[GROUP].stats().shared_minibatches


def settle() -> None:
    """Wait until threads that read ahead are done, so that their time counts in this turn."""
    while True:
        before = time.process_time()
        time.sleep(0.05)
        if time.process_time() - before < 0.002:
            return


# ---- bytes ---------------------------------------------------------------------------------------------------


def read(path: Path) -> Answer:
    """Count what eight ranks read of evicted files."""
    evict(path)
    results = together(reader, 8, str(path))
    nbytes = sum(os.path.getsize(name) for name in files(path))
    copies = sum(read_bytes for read_bytes, _ in results) / nbytes
    return Answer(
        question=f"bytes that 8 ranks in 2 groups of 4 read of {path.name}, evicted",
        unit="copies of their shares",
        ours=copies,
        target=Target("ours", "<=", LIMIT, f"{LIMIT} copies"),
        note=f"{nbytes / 1e6:.0f} MB, {sum(shared for _, shared in results)} minibatches shared",
    )


def reader(rank: int, barrier: Any, path: str) -> tuple[int, int]:
    """Go through a sweep. Return the bytes that came from the disk, and the minibatches that were shared."""
    part, before = rank // 4, bytes_read()
    share = MeshShare(part, 2, group=tuple(range(4 * part, 4 * part + 4)))
    source = fl.MinibatchSource(fl.open_corpus(path), seed=1, max_sweeps=1, partition=fl.Partition(share))
    for _ in source.minibatches(ROWS):
        barrier.wait()
    barrier.wait()
    return bytes_read() - before, source.stats().shared_minibatches


def bytes_read() -> int:
    """Return the bytes that this process has had read from disks."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(dict(line.split(": ") for line in file.read().splitlines())["read_bytes"])
