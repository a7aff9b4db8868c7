"""How fast are samples of tar shards, indexed and delivered, compared with reading the files and with WebDataset?

Limits: reading the same files from beginning to end, in the page cache by `readinto` of 1 MiB, evicted by bare reads at
the best of several depths and sizes. Peer: WebDataset in this process, with a shuffle buffer of 1,000 samples. Unit:
MB of archive a second of wall time, microseconds a member of the index, milliseconds to open 100 shards again.
Measured: shards of members of 20 KB, shuffled in windows of 256 MiB, minibatches of 64, bytes out, and the index of
shards of 10,000 members, written in full, then opened again.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import statistics
import tarfile
import time
from pathlib import Path

import numpy as np

import feedline as fl
from benchmarks.disk import bare_sequential, best, compile_bare, evict, fill
from benchmarks.harness import Answer, Contender, Race, Stage, Target, race, spread

SIZE = 20 << 10
WINDOW = fl.Window(bytes=256 << 20)
BYTES = fl.Stream(dtype="bytes")


def run(stage: Stage) -> list[Answer]:
    """Measure the index, then samples in the page cache and evicted."""
    answers = indexed(stage)
    folder = stage.data / "bench-tar"
    paths = shards(folder, stage.size(8, 2), stage.size(5_000, 200), SIZE)
    ours = {"feedline": feeding(folder)}
    ours["feedline"]()  # untimed: make the index
    peers: dict[str, Contender] = {}
    if importlib.util.find_spec("webdataset") is not None:
        peers["WebDataset"] = webdataset(paths)
    fill(*paths)
    warm = race({**ours, **peers, "reading in sequence": reading(paths)}, stage.rounds(5), "process")
    answers += table(warm, "in the page cache", "reading in sequence", warm.rates("reading in sequence"))
    bare = bare_sequential(compile_bare(stage.data), [str(path) for path in paths], unit=1)
    cold = race({**ours, **peers, **bare}, stage.rounds(3), "process", 0, before=lambda _: evict(*paths))
    if (found := best(cold, "sequential")) is not None:
        answers += table(cold, "evicted", f"bare reads: {found[0]}", found[1], "wall")
    shutil.rmtree(folder)
    return answers


def table(ran: Race, where: str, limit: str, limits: list[float], clock: str = "") -> list[Answer]:
    """Compare with the limit and with WebDataset."""
    ours = ran.rates("feedline", clock)
    compared = [(limit, limits, 0.7)]
    if "WebDataset" in ran.rounds:
        compared.append(("WebDataset", ran.rates("WebDataset", clock), 5))
    return [
        Answer(
            question=f"tar of 20 KB members, {where}, in windows of 256 MiB",
            unit="MB/s",
            ours=statistics.median(ours) / 1e6,
            peer=peer,
            peer_value=statistics.median(theirs) / 1e6,
            ratio=statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
            target=Target("ratio", ">=", bound),
            spread=spread(ours),
        )
        for peer, theirs, bound in compared
    ]


def indexed(stage: Stage) -> list[Answer]:
    """Time the first opening of many shards of small members, and the next one."""
    folder = stage.data / "bench-tar-index"
    count, members = stage.size(100, 4), stage.size(10_000, 500)
    paths = shards(folder, count, members, 512)
    fill(*paths)
    first, again = [], []
    for _ in range(stage.rounds(5)):
        for index in folder.glob("*.feedline-index"):
            index.unlink()
        for seconds in (first, again):
            began = time.perf_counter()
            fl.TarDeserializer(folder, jpg=BYTES)
            seconds.append(time.perf_counter() - began)
    shutil.rmtree(folder)
    a_member, opened = (statistics.median(first) / count / members * 1e6, statistics.median(again) * 1e3)
    name = f"{count} shards of {members:,} members"
    note = "of 512 bytes, in the page cache; the index written beside each shard"
    return [
        Answer(f"tar: index of {name}", "us/member", a_member, target=Target("ours", "<=", 2.5), note=note),
        Answer(f"tar: {name}, opened again", "ms", opened, target=Target("ours", "<=", 50)),
    ]


def shards(folder: Path, count: int, members: int, size: int) -> list[Path]:
    """Write shards of random bytes, the same in each."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    first = folder / "s-000.tar"
    with tarfile.open(first, "w", format=tarfile.USTAR_FORMAT) as archive:
        for i in range(members):
            member = tarfile.TarInfo(f"{i:08}.jpg")
            member.size = size
            archive.addfile(member, io.BytesIO(rng.bytes(size)))
    rest = [folder / f"s-{i:03}.tar" for i in range(1, count)]
    for path in rest:
        shutil.copy(first, path)
    return [first, *rest]


def feeding(folder: Path) -> Contender:
    """Return a contender: a sweep from a fresh source, in bytes of members."""

    def feed() -> float:
        found = 0
        with fl.MinibatchSource(
            fl.TarDeserializer(folder, jpg=BYTES), shuffle=WINDOW, partition=(0, 1), max_sweeps=1
        ) as source:
            for minibatch in source.minibatches(64):
                found += minibatch["jpg"].nbytes
        return found

    return feed


def webdataset(paths: list[Path]) -> Contender:
    """Return a contender: a sweep of WebDataset."""
    import webdataset as wds

    def feed() -> float:
        dataset = wds.WebDataset([str(path) for path in paths], shardshuffle=False).shuffle(1000)
        return float(sum(len(sample["jpg"]) for sample in dataset))

    return feed


def reading(paths: list[Path]) -> Contender:
    """Return a contender: the files into one buffer."""
    buffer = bytearray(1 << 20)

    def read() -> float:
        found = 0
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while n := file.readinto(buffer):
                    found += n
        return found

    return read
