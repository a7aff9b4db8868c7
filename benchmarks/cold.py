"""How fast are minibatches from a store that is not in memory, compared with what the disk delivers?

Limits: bare sequential reads and bare random reads of rows, by C threads that do nothing else, each at the best of
several depths and sizes, through the page cache and bypassing it. Peer: torch's `DataLoader` over a memory map, which
is given a batch of indices at a time; other peers are in `cold_peers`. Unit: samples of 784 float32 and a label a
second of wall time. Measured: a whole sweep in order and in windows of 256 MiB, some 60,000 samples of a whole shuffle,
each by a fresh source over files that were evicted from the page cache. The same with half of each file in the page
cache, and with all of it. Then in memory control groups of a half and a tenth of the data's size, two sweeps each, if
they can be created; otherwise next to a process that locks the rest of the memory; otherwise not, with a remark. Also:
processor time a sample, the first minibatch after a restore, and how much page cache a feed leaves occupied.
"""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.disk import (
    ROW,
    WINDOW,
    bare_random,
    bare_sequential,
    best,
    compile_bare,
    evict,
    files,
    fill,
    reading,
)
from benchmarks.groups import Group, limited
from benchmarks.harness import Answer, Contender, Race, Stage, Target, race, spread
from feedline.feed.files.disk import resident
from feedline.feed.reading.reader import MIN_AHEAD_BYTES

SIZE = 256
SHUFFLES: dict[str, bool | str | fl.Window] = {"order": False, "windows": fl.Window(bytes=WINDOW), "whole": "whole"}
NAMES = {"order": "in order", "windows": "in windows of 256 MiB", "whole": "in a whole shuffle"}
TORCH = "torch over a memory map"
#: Seconds after which a contender with a page fault per row is stopped. Its rate is known by then.
PATIENCE = 8.0


def run(stage: Stage) -> list[Answer]:
    """Measure evicted, half cached, cached, with little memory, restored, and the pages that stay in the page cache."""
    rows = stage.size(600_000, 20_000)
    store, flat = make(stage, rows)
    bare = compile_bare(stage.data)
    some = min(rows, 2_000 if stage.quick else 60_000)
    ran = contend(stage, store, flat, bare, rows, some)
    answers = bare_reads(ran)
    answers += [beside_the_disk(ran, name) for name in SHUFFLES]
    answers += [beside_torch(ran, name) for name in SHUFFLES]
    for share in (2, 10):
        answers += little_memory(store, flat, share, ran, some)
    answers += restored(stage, store, flat, bare, rows)
    answers.append(left_behind(store))
    answers += [half_there(stage, store, name, some) for name in SHUFFLES]
    answers += all_there(stage, store, flat, some)
    shutil.rmtree(store)
    flat.unlink()
    return answers


def make(stage: Stage, rows: int) -> tuple[Path, Path]:
    """Write a store of several files, and a flat file of the same rows for the peers."""
    store, flat = stage.data / f"bench-cold-{rows}.store", stage.data / f"bench-cold-{rows}.npy"
    if not store.exists():
        schema = fl.Schema({"x": fl.Stream(data.PIXELS), "y": fl.Stream((), "int64")})
        flat_rows = np.lib.format.open_memmap(flat, "w+", np.float32, (rows, data.PIXELS))
        with fl.StoreWriter(store, schema, part_bytes=512 << 20) as writer:
            for x, y in blocks(rows):
                writer.write({"x": fl.Value.from_dense(x), "y": fl.Value.from_dense(y)})
                flat_rows[y[0] : y[-1] + 1] = x
        flat_rows.flush()
        del flat_rows
    return store, flat


def blocks(rows: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield rows and their numbers, 10,000 at a time."""
    x = np.random.default_rng(4).random((10_000, data.PIXELS), np.float32)
    for start in range(0, rows, len(x)):
        y = np.arange(start, min(start + len(x), rows))
        x[: len(y), 0] = y
        yield x[: len(y)], y


# ---- contenders ----------------------------------------------------------------------------------------------


def feeding(store: Path, shuffle: bool | str | fl.Window, samples: int | None) -> Contender:
    """Return a contender: a sweep, or ``some`` samples, from a fresh source."""

    def feed() -> float:
        found = 0
        with fl.MinibatchSource(
            fl.StoreDeserializer(store),
            shuffle=shuffle,
            partition=(0, 1),
            max_sweeps=1 if samples is None else None,
            max_samples=samples,
        ) as source:
            for minibatch in source.minibatches(SIZE):
                found += len(minibatch["x"].rows) + 0 * len(minibatch["y"].rows)
        return found

    return feed


def mapped_by_torch(flat: Path, some: int) -> Contender:
    """Return a contender: samples of torch's DataLoader over a fresh memory map, shuffled."""
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
        found, began = 0, time.perf_counter()
        for batch in DataLoader(Rows(), SIZE, shuffle=True, collate_fn=lambda batch: batch):
            found += len(batch)
            if found >= some or time.perf_counter() - began > PATIENCE:
                break
        return found

    return feed


def contend(stage: Stage, store: Path, flat: Path, bare: Any, rows: int, some: int) -> Race:
    """Race all contenders, with everything evicted before each turn."""
    contenders: dict[str, Contender] = {
        name: feeding(store, shuffle, some if name == "whole" else None) for name, shuffle in SHUFFLES.items()
    }
    contenders |= bare_sequential(bare, [str(flat)])
    contenders |= bare_random(bare, flat, rows, some)
    contenders[TORCH] = mapped_by_torch(flat, some // 4)
    contenders[TORCH]()  # untimed: import torch and make its first batch
    return race(contenders, stage.rounds(3), "process", 0, before=lambda _: evict(store, flat))


# ---- evicted -------------------------------------------------------------------------------------------------


def bare_reads(ran: Race) -> list[Answer]:
    """Return contenders that measure the disk, in order and at random."""
    answers = []
    for name in ran.rounds:
        if name.startswith(("sequential", "random")):
            rates = ran.rates(name, "wall")
            gives = f"{statistics.median(rates) * ROW / 1e6:,.0f} MB/s; {cpu(ran, name):.2f} us of processor time a row"
            answers.append(
                Answer(f"bare reads, {name}", "rows/s", statistics.median(rates), spread=spread(rates), note=gives)
            )
    return answers


def cpu(ran: Race, name: str) -> float:
    """Return microseconds of processor time per sample."""
    return statistics.median(1e6 * r.seconds / max(r.units, 1) for r in ran.rounds[name])


def beside_the_disk(ran: Race, name: str) -> Answer:
    """Compare our rate with the best bare reads of the same round."""
    ours = ran.rates(name, "wall")
    kind, most = ("random", 5) if name == "whole" else ("sequential", 4)
    found = best(ran, kind)
    ratios = [a / b for a, b in zip(ours, found[1], strict=True)] if found else []
    note = f"{cpu(ran, name):.2f} us of processor time a sample (wanted: at most {most})"
    return Answer(
        question=f"store evicted, {NAMES[name]}",
        unit="samples/s",
        ours=statistics.median(ours),
        peer=f"bare reads: {found[0]}" if found else "bare reads: no C compiler",
        peer_value=statistics.median(found[1]) if found else None,
        ratio=statistics.median(ratios) if found else None,
        target=Target("ratio", ">=", 0.95) if found else None,
        spread=spread(ours),
        note=note,
        detail={"rates": {n: ran.rates(n, "wall") for n in ran.rounds}, "cpu_us": cpu(ran, name), "ratios": ratios},
    )


def beside_torch(ran: Race, name: str) -> Answer:
    """Compare our rate with torch's over a memory map."""
    ratios = [a / b for a, b in zip(ran.rates(name, "wall"), ran.rates(TORCH, "wall"), strict=True)]
    return Answer(
        question=f"store evicted, {NAMES[name]}",
        unit="samples/s",
        ours=ran.rate(name, "wall"),
        peer=f"{TORCH}, whole shuffle",
        peer_value=ran.rate(TORCH, "wall"),
        ratio=statistics.median(ratios),
        target=None if name == "order" else Target("ratio", ">=", 2 if name == "windows" else 1),
        spread=spread(ran.rates(name, "wall")),
        note=f"torch: {cpu(ran, TORCH):.2f} us of processor time a sample",
    )


# ---- half and all of it in the page cache --------------------------------------------------------------------


def timed(feed: Contender) -> float:
    """Return units per second."""
    began = time.perf_counter()
    return feed() / (time.perf_counter() - began)


def half_there(stage: Stage, store: Path, name: str, some: int) -> Answer:
    """Measure with the second half of each file in the page cache."""
    feed = feeding(store, SHUFFLES[name], some if name == "whole" else None)
    rates, limits = [], []
    for _ in range(stage.rounds(3)):
        fill(store)
        there = timed(feed)
        evict(store)
        cold = timed(feed)
        fill(store)
        evict(store, share=0.5)
        rates.append(timed(feed))
        limits.append(2 / (1 / there + 1 / cold))
    evict(store)
    return Answer(
        question=f"store half in the page cache, {NAMES[name]}",
        unit="samples/s",
        ours=statistics.median(rates),
        peer="harmonic mean of all and none",
        peer_value=statistics.median(limits),
        ratio=statistics.median(a / b for a, b in zip(rates, limits, strict=True)),
        target=Target("ratio", ">=", 1),
        spread=spread(rates),
        detail={"rates": rates, "limits": limits},
    )


def all_there(stage: Stage, store: Path, flat: Path, some: int) -> list[Answer]:
    """Race the same contenders with nothing evicted. `dense_shuffled` has the targets and compares with NumPy."""
    contenders = {name: feeding(store, SHUFFLES[name], some if name == "whole" else None) for name in SHUFFLES}
    contenders[TORCH] = mapped_by_torch(flat, some)
    fill(store, flat)
    ran = race(contenders, stage.rounds(3), "process")
    return [
        Answer(
            question=f"store in the page cache, {NAMES[name]}",
            unit="samples/s",
            ours=ran.rate(name, "wall"),
            peer=f"{TORCH}, whole shuffle",
            peer_value=ran.rate(TORCH, "wall"),
            ratio=statistics.median(
                a / b for a, b in zip(ran.rates(name, "wall"), ran.rates(TORCH, "wall"), strict=True)
            ),
            spread=spread(ran.rates(name, "wall")),
            note=f"{cpu(ran, name):.2f} us of processor time a sample; a fresh source in each round",
        )
        for name in SHUFFLES
    ]


# ---- restored ------------------------------------------------------------------------------------------------


def restored(stage: Stage, store: Path, flat: Path, bare: Any, rows: int) -> list[Answer]:
    """Measure from a state to its first minibatch, against bare reads of what that needs, at their best depth."""
    rng = np.random.default_rng(7)
    answers = []
    for name, shuffle in SHUFFLES.items():
        needed = min(rows * ROW, WINDOW) if name == "windows" else SIZE * ROW
        limits = bare_random(bare, flat, rows, SIZE) if name == "whole" else needing(bare, flat, needed) if bare else {}
        ours, theirs = [], []
        for _ in range(stage.rounds(5)):
            place = int(rng.integers(rows))
            ours.append(first_minibatch(store, shuffle, place))
            took = []
            for read in limits.values():
                evict(flat)
                began = time.perf_counter()
                if read() >= min(SIZE, rows):
                    took.append(1e3 * (time.perf_counter() - began))
            theirs.append(min(took) if took else float("nan"))
        what = {"order": "its rows", "windows": "its window", "whole": "its rows"}[name]
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        answers.append(
            Answer(
                question=f"first minibatch after a restore, evicted, {NAMES[name]}",
                unit="ms",
                ours=statistics.median(ours),
                peer=f"bare reads of {what}" if limits else "bare reads: no C compiler",
                peer_value=statistics.median(theirs) if limits else None,
                ratio=statistics.median(ratios) if limits else None,
                target=Target("ratio", ">=", 1 / 1.2, "1/1.2") if limits else None,
                spread=spread(ours),
                note=f"{needed / 1e6:.1f} MB are needed; from `load_state_dict` on, of a source that was just opened",
                detail={"ms": ours, "bare_ms": theirs},
            )
        )
    return answers


def needing(bare: Any, flat: Path, nbytes: int) -> dict[str, Contender]:
    """Return contenders that read a number of consecutive bytes in small pieces."""
    found = {}
    for threads, piece in ((1, 1 << 20), (4, 256 << 10), (4, 4 << 20), (8, 4 << 20)):
        found[f"{threads} of {piece}"] = reading(bare, [str(flat)], threads, piece, True, most=nbytes)
    return found


def first_minibatch(store: Path, shuffle: bool | str | fl.Window, place: int) -> float:
    """Return milliseconds from `load_state_dict` to the first minibatch."""
    with fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=shuffle, partition=(0, 1)) as saved:
        saved.seek(fl.Position(0, place, place))
        state = saved.state_dict()
    evict(store)
    with fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=shuffle, partition=(0, 1)) as source:
        began = time.perf_counter()
        source.load_state_dict(state)
        minibatch = source.next_minibatch(SIZE)
        took = 1e3 * (time.perf_counter() - began)
        assert minibatch["y"].num_samples == SIZE
    return took


# ---- pages left in the page cache
# -------------------------------------------------------------------------------------


def left_behind(store: Path) -> Answer:
    """Measure how much of the store a windowed sweep over evicted files leaves in the page cache."""
    evict(store)
    feeding(store, SHUFFLES["windows"], None)()
    total = sum(file.stat().st_size for file in store.glob("*.arrow"))
    held = resident(files(store)) * total
    evict(store)
    most = WINDOW + MIN_AHEAD_BYTES + 100e6
    return Answer(
        question="page cache taken by a sweep, evicted, in windows of 256 MiB",
        unit="MB",
        ours=held / 1e6,
        peer="window + read-ahead + 100 MB",
        peer_value=most / 1e6,
        target=Target("ours", "<=", most / 1e6),
        note=f"of {total / 1e6:,.0f} MB of data; all of memory was there to be taken",
    )


# ---- little memory -------------------------------------------------------------------------------------------


def little_memory(store: Path, flat: Path, share: int, ran: Race, some: int) -> list[Answer]:
    """Run two sweeps, or parts of a whole shuffle, in ``1 / share`` of the data's size, the shuffle against torch."""
    total = sum(file.stat().st_size for file in store.glob("*.arrow"))
    answers = []
    for name in [name for name in (*SHUFFLES, TORCH) if name in ran.rounds]:
        # Two windows must fit next to the interpreter and torch's libraries.
        window = min(WINDOW, total // share // 8)
        limit = max(total // share, (400 << 20) if name == TORCH else (160 << 20))
        order = TORCH if name == TORCH else f"store, {NAMES[name].replace('256 MiB', f'{window >> 20} MiB')}"
        question = f"{order}, memory for 1/{share} of the data"
        evict(store, flat)
        with limited(limit) as group:
            if group is None:
                answers.append(
                    Answer(
                        question,
                        "samples/s",
                        0.0,
                        note="not measured: neither may a memory control group be made, nor memory be locked",
                    )
                )
                continue
            found = ask(group, flat if name == TORCH else store, name, window, some)
        evicted = ran.rate(name, "wall")
        answers.append(
            Answer(
                question=question,
                unit="samples/s",
                ours=min(found["rates"]),
                peer="evicted, all of memory",
                peer_value=evicted,
                ratio=min(found["rates"]) / evicted,
                target=None if name == TORCH else Target("ratio", ">=", 0.9),
                note=f"{group.kind} of {limit / 1e6:.0f} MB for {total / 1e6:.0f} MB of data; first and second sweep "
                f"{found['rates'][0]:,.0f} and {found['rates'][1]:,.0f}; {found['cpu_us']:.2f} us of processor time a "
                f"sample; held at most {found['held'] / 1e6:.0f} MB, page cache "
                f"{found['page_cache'] / 1e6:.0f} MB, {found['faults']} major faults",
                detail=found,
            )
        )
    return answers


def ask(group: Group, path: Path, name: str, window: int, some: int) -> dict[str, Any]:
    """Run a fresh process in the group."""
    command = [sys.executable, "-m", "benchmarks.cold", *group.arguments(), str(path), name, str(window), str(some)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the process in {group.kind} failed with {ran.returncode}:\n{ran.stderr}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def in_group(version: str, folder: str, path: str, name: str, window: str, some: str) -> dict[str, Any]:
    """In the fresh process: run two sweeps (or parts), and report their cost."""
    group = Group(int(version), Path(folder))
    source: fl.MinibatchSource | None = None
    if name == TORCH:
        sweep = mapped_by_torch(Path(path), int(some) // 4)  # import torch while there is memory for it
    group.enter()
    if name != TORCH:
        shuffle = fl.Window(bytes=int(window)) if name == "windows" else SHUFFLES[name]
        source = fl.MinibatchSource(fl.StoreDeserializer(path), shuffle=shuffle, partition=(0, 1))
        sweep = going_on(source, int(some) if name == "whole" else None)
    rates, samples, page_cache = [], 0.0, 0
    began_cpu = time.process_time()
    for _ in range(2):
        began = time.perf_counter()
        found = sweep()
        rates.append(found / (time.perf_counter() - began))
        samples += found
        page_cache = max(page_cache, group.page_cache())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rates": rates,
        "cpu_us": 1e6 * (time.process_time() - began_cpu) / samples,
        "page_cache": page_cache,
        "held": source.stats().peak_bytes if source is not None else 0,
        "faults": usage.ru_majflt,
        "resident": usage.ru_maxrss * 1024,
    }


def going_on(source: fl.MinibatchSource, samples: int | None) -> Contender:
    """Read the next sweep of a source, or ``some`` samples of it."""

    def feed() -> float:
        until: Mapping[str, Any] = {"until": fl.sweeps(1) if samples is None else fl.samples(samples)}
        return sum(len(minibatch["x"].rows) for minibatch in source.minibatches(SIZE, **until))

    return feed


if __name__ == "__main__":
    main: Callable[..., dict[str, Any]] = in_group
    print(json.dumps(main(*sys.argv[1:])))
