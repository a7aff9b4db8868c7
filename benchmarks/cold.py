"""How fast are minibatches of a store that is not in memory, beside what the disk gives?

Limits: bare sequential reads and bare random reads of rows, by C threads that do nothing else, each at the best of
several depths and sizes, through the page cache and past it. Peer: torch's `DataLoader` over a memory map, which gets
a batch of indices at a time. Unit: samples of 784 float32 and a label a second of wall time. Measured: a whole sweep
in order and in windows of 256 MiB, some 100,000 samples of a whole shuffle, each by a fresh source over files that the
page cache was told to drop. Then the same in memory control groups of a half and a tenth of the data's size, two
sweeps each, where one may be made; else that is said. Also: half of the data in the page cache; processor time a
sample; how much page cache a feed takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.groups import Group, limited
from benchmarks.harness import Answer, Contender, Race, Stage, Target, race, spread

SIZE = 256
ROW = data.PIXELS * 4
WINDOW = 256 << 20
SHUFFLES: dict[str, bool | str | fl.Window] = {"order": False, "windows": fl.Window(bytes=WINDOW), "whole": "whole"}
SEQUENTIAL = ((1, 8 << 20, False), (4, 4 << 20, False), (4, 1 << 20, True), (8, 4 << 20, True))
RANDOM = ((1, True), (8, True), (32, False), (32, True), (96, True))
NAMES = {"order": "in order", "windows": "in windows of 256 MiB", "whole": "in a whole shuffle"}


def run(stage: Stage) -> list[Answer]:
    """Evicted, half there, and with little memory."""
    rows = stage.size(600_000, 20_000)
    store, flat = make(stage, rows)
    bare = compile_bare(stage.data)
    some = min(rows, 2_000 if stage.quick else 60_000)
    ran = contend(stage, store, flat, bare, rows, some)
    answers = [beside_the_disk(ran, name, bare is not None) for name in SHUFFLES]
    answers += [beside_torch(ran, name) for name in ("windows", "whole")]
    answers.append(half_there(stage, store, rows, ran))
    for share in (2, 10):
        answers += little_memory(stage, store, rows, share, ran)
    shutil.rmtree(store)
    flat.unlink()
    return answers


# ---- data, and having it dropped -----------------------------------------------------------------------------


def make(stage: Stage, rows: int) -> tuple[Path, Path]:
    """A store in several files, and a flat file of the same rows for the peers."""
    store, flat = stage.data / f"bench-cold-{rows}.store", stage.data / f"bench-cold-{rows}.npy"
    if not store.exists():
        schema = fl.Schema({"x": fl.Stream(data.PIXELS), "y": fl.Stream((), "int64")})
        x = np.random.default_rng(4).random((10_000, data.PIXELS), np.float32)
        flat_rows = np.lib.format.open_memmap(flat, "w+", np.float32, (rows, data.PIXELS))
        with fl.StoreWriter(store, schema, part_bytes=512 << 20) as writer:
            for start in range(0, rows, len(x)):
                n = min(len(x), rows - start)
                x[:, 0] = np.arange(start, start + len(x))
                writer.write({"x": fl.Value.from_dense(x[:n]), "y": fl.Value.from_dense(np.arange(start, start + n))})
                flat_rows[start : start + n] = x[:n]
        flat_rows.flush()
        del flat_rows
    return store, flat


def evict(*paths: Path, share: float = 1.0) -> None:
    """Have the page cache drop files, or the first ``share`` of each."""
    for path in paths:
        for file in sorted(path.glob("*.arrow")) if path.is_dir() else [path]:
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, int(file.stat().st_size * share), os.POSIX_FADV_DONTNEED)


# ---- contenders ----------------------------------------------------------------------------------------------


def feeding(store: Path, shuffle: bool | str | fl.Window, samples: int | None) -> Contender:
    """A sweep, or so many samples, from a fresh source."""

    def feed() -> float:
        found = 0
        limits = {"max_sweeps": 1} if samples is None else {"max_samples": samples}
        with fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=shuffle, partition=(0, 1), **limits) as source:
            for minibatch in source.minibatches(SIZE):
                found += len(minibatch["x"].rows) + 0 * len(minibatch["y"].rows)
        return found

    return feed


def compile_bare(folder: Path) -> Any | None:
    """`bare.c` as a library; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    library = folder / "bench-bare.so"
    source = Path(__file__).with_name("bare.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    found = ctypes.CDLL(str(library)).bare_reads
    found.restype = ctypes.c_int64
    found.argtypes = [
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_size_t,
        ctypes.c_uint64,
        ctypes.c_void_p,
        ctypes.c_int,
    ]
    return found


def reading(bare: Any, flat: Path, threads: int, size: int, direct: bool) -> Contender:
    """The file from its beginning to its end; in rows."""
    count = -(-flat.stat().st_size // size)

    def read() -> float:
        got = bare(str(flat).encode(), threads, size, count, None, direct)
        return got / ROW if got > 0 else 0.0

    return read


def jumping(bare: Any, flat: Path, rows: int, some: int, threads: int, direct: bool) -> Contender:
    """So many rows in random order."""
    offsets = np.random.default_rng(1).permutation(rows)[:some].astype(np.uint64) * np.uint64(ROW) + np.uint64(128)

    def read() -> float:
        # One at a time is slow: a tenth of them tells as much.
        count = some if threads > 1 else some // 10
        return count if bare(str(flat).encode(), threads, ROW, count, offsets.ctypes.data, direct) > 0 else 0.0

    return read


def mapped_by_torch(flat: Path, some: int) -> Contender:
    """So many samples of torch's DataLoader over a fresh memory map, shuffled."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset[Any]):
        def __init__(self) -> None:
            self.x = np.load(flat, mmap_mode="r")

        def __len__(self) -> int:
            return len(self.x)

        def __getitems__(self, indices: list[int]) -> Any:
            return torch.from_numpy(self.x[indices])

    def feed() -> float:
        found = 0
        for batch in DataLoader(Rows(), SIZE, shuffle=True, collate_fn=lambda batch: batch):
            found += len(batch)
            if found >= some:
                break
        return found

    return feed


def contend(stage: Stage, store: Path, flat: Path, bare: Any, rows: int, some: int) -> Race:
    """All of them in turn, everything evicted before each."""
    contenders: dict[str, Contender] = {
        name: feeding(store, shuffle, some if name == "whole" else None) for name, shuffle in SHUFFLES.items()
    }
    if bare is not None:
        for threads, size, direct in SEQUENTIAL:
            name = f"sequential, {threads} of {size >> 20} MiB{', direct' if direct else ''}"
            contenders[name] = reading(bare, flat, threads, size, direct)
        for threads, direct in RANDOM:
            name = f"random, {threads} at a time{', direct' if direct else ''}"
            contenders[name] = jumping(bare, flat, rows, some, threads, direct)
    contenders["torch over a memory map"] = mapped_by_torch(flat, some // 4)

    def turn(contender: Contender) -> Contender:
        return lambda: contender()

    def tick(_: str) -> tuple[float, float]:
        return time.process_time(), time.perf_counter()

    dropping = {name: dropped(contender, store, flat) for name, contender in contenders.items()}
    return race(dropping, stage.rounds(3), "wall", 0, tick)


def dropped(contender: Contender, *paths: Path) -> Contender:
    """The contender; what it has left in the page cache is dropped after its turn."""
    evict(*paths)

    def turn() -> float:
        units = contender()
        evict(*paths)
        return units

    return turn


# ---- answers -------------------------------------------------------------------------------------------------


def best(ran: Race, kind: str) -> tuple[str, list[float]]:
    """The bare reads of a kind that were best in the median, and the best rate of each round."""
    names = [name for name in ran.rounds if name.startswith(kind)]
    rates = [ran.rates(name, "wall") for name in names]
    winner = max(names, key=lambda name: ran.rate(name, "wall"))
    return winner, [max(column) for column in zip(*rates, strict=True)]


def cpu(ran: Race, name: str) -> float:
    """Microseconds of processor time a sample."""
    return statistics.median(1e6 * r.seconds / r.units for r in ran.rounds[name])


def beside_the_disk(ran: Race, name: str, has_bare: bool) -> Answer:
    """Our rate beside the best bare reads of the same round."""
    ours = ran.rates(name, "wall")
    kind, most = ("random", 5) if name == "whole" else ("sequential", 4)
    winner, theirs = best(ran, kind) if has_bare else ("", [0.0] * len(ours))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)] if has_bare else []
    bares = {n: f"{ran.rate(n, 'wall'):,.0f}" for n in ran.rounds if n.startswith(kind)}
    note = f"{cpu(ran, name):.2f} us of processor time a sample (wanted: at most {most}); bare reads: "
    note += "; ".join(f"{n}: {rate}" for n, rate in bares.items()) if has_bare else "not measured, no C compiler"
    return Answer(
        question=f"store evicted, {NAMES[name]}",
        unit="samples/s",
        ours=statistics.median(ours),
        peer=winner,
        peer_value=statistics.median(theirs) if has_bare else None,
        ratio=statistics.median(ratios) if ratios else None,
        target=Target("ratio", ">=", 0.9) if has_bare else None,
        spread=spread(ours),
        note=note,
        detail={"rates": {n: ran.rates(n, "wall") for n in (name, *bares)}, "cpu_us": cpu(ran, name)},
    )


def beside_torch(ran: Race, name: str) -> Answer:
    """Our rate beside torch over a memory map."""
    peer = "torch over a memory map"
    ratios = [a / b for a, b in zip(ran.rates(name, "wall"), ran.rates(peer, "wall"), strict=True)]
    return Answer(
        question=f"store evicted, {NAMES[name]}",
        unit="samples/s",
        ours=ran.rate(name, "wall"),
        peer=peer,
        peer_value=ran.rate(peer, "wall"),
        ratio=statistics.median(ratios),
        target=Target("ratio", ">=", 2),
        spread=spread(ran.rates(name, "wall")),
    )


def half_there(stage: Stage, store: Path, rows: int, ran: Race) -> Answer:
    """A sweep in order, the second half of each file in the page cache."""
    feed = feeding(store, False, None)

    def timed() -> float:
        began = time.perf_counter()
        return feed() / (time.perf_counter() - began)

    rates, limits = [], []
    for _ in range(stage.rounds(3)):
        for file in store.glob("*.arrow"):
            file.read_bytes()
        there = timed()
        evict(store)
        cold = timed()
        for file in store.glob("*.arrow"):
            file.read_bytes()
        evict(store, share=0.5)
        rates.append(timed())
        limits.append(2 / (1 / there + 1 / cold))
    evict(store)
    return Answer(
        question="store half in the page cache, in order",
        unit="samples/s",
        ours=statistics.median(rates),
        peer="harmonic mean of all and none",
        peer_value=statistics.median(limits),
        ratio=statistics.median(a / b for a, b in zip(rates, limits, strict=True)),
        target=Target("ratio", ">=", 1),
        spread=spread(rates),
    )


def little_memory(stage: Stage, store: Path, rows: int, share: int, ran: Race) -> list[Answer]:
    """Two sweeps, or parts of a whole shuffle, in a control group of ``1 / share`` of the data's size."""
    total = sum(file.stat().st_size for file in store.glob("*.arrow"))
    answers = []
    for name in SHUFFLES:
        # A window, and the next, must have room beside the interpreter.
        window = min(WINDOW, total // share // 8)
        limit = max(total // share, 160 << 20)
        question = f"store, memory for 1/{share} of it, {NAMES[name].replace('256 MiB', f'{window >> 20} MiB')}"
        evict(store)
        with limited(limit) as group:
            if group is None:
                answers.append(Answer(question, "samples/s", 0.0, note="not measured: no memory control group allowed"))
                continue
            found = ask(group, store, name, window, 500 if stage.quick else 60_000)
        evicted = ran.rate(name, "wall")
        answers.append(
            Answer(
                question=question,
                unit="samples/s",
                ours=min(found["rates"]),
                peer="evicted, all of memory",
                peer_value=evicted,
                ratio=min(found["rates"]) / evicted,
                target=Target("ratio", ">=", 0.9),
                note=f"group of {limit / 1e6:.0f} MB for {total / 1e6:.0f} MB of data; first and second sweep "
                f"{found['rates'][0]:,.0f} and {found['rates'][1]:,.0f}; {found['cpu_us']:.2f} us of processor time a "
                f"sample; private memory at most {found['private'] / 1e6:.0f} MB, page cache "
                f"{found['page_cache'] / 1e6:.0f} MB, {found['faults']} major faults",
                detail=found,
            )
        )
    return answers


def ask(group: Group, store: Path, name: str, window: int, some: int) -> dict[str, Any]:
    """Run a fresh process in the group."""
    command = [sys.executable, "-m", "benchmarks.cold", str(group.folder), str(int(group.second)), str(store), name]
    ran = subprocess.run([*command, str(window), str(some)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the process in a control group failed with {ran.returncode}:\n{ran.stderr}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def in_group(folder: str, second: str, store: str, name: str, window: str, some: str) -> dict[str, Any]:
    """In the fresh process: two sweeps (or parts), and what they took."""
    group = Group(Path(folder), second == "1")
    group.enter()
    shuffle = fl.Window(bytes=int(window)) if name == "windows" else SHUFFLES[name]
    source = fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=shuffle, partition=(0, 1))
    rates, samples = [], 0
    began_cpu, page_cache = time.process_time(), 0
    for _ in range(2):
        found, began = 0, time.perf_counter()
        until: Mapping[str, Any] = {"until": fl.samples(int(some)) if name == "whole" else fl.sweeps(1)}
        for minibatch in source.minibatches(SIZE, **until):
            found += len(minibatch["x"].rows)
        rates.append(found / (time.perf_counter() - began))
        samples += found
        page_cache = max(page_cache, group.page_cache())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rates": rates,
        "cpu_us": 1e6 * (time.process_time() - began_cpu) / samples,
        "page_cache": page_cache,
        "peak": group.peak(),
        "private": source.stats().peak_bytes,
        "faults": usage.ru_majflt,
        "resident": usage.ru_maxrss * 1024,
    }


if __name__ == "__main__":
    main: Callable[..., dict[str, Any]] = in_group
    print(json.dumps(main(*sys.argv[1:])))
