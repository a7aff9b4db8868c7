"""Shared by the questions about data on disk: eviction, and bare reads to compare with.

Bare reads are C threads that do nothing but `pread` (`bare.c`), through the page cache and bypassing it, at several
depths and sizes. The disk's speed is the best of them in each round.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.harness import Answer, Contender, Race, Stage, race, spread
from feedline.feed.files.disk import resident

ROW = data.PIXELS * 4
WINDOW = 256 << 20
# Reads at a time, bytes of each, past the page cache.
SEQUENTIAL = ((1, 8 << 20, False), (4, 4 << 20, False), (4, 1 << 20, True), (8, 4 << 20, True))
RANDOM = ((1, True), (8, True), (32, False), (32, True), (96, True))
# A file with more than this share in the page cache after an eviction is not cold.
_STAYS = 0.02


def files(*paths: Path) -> list[str]:
    """The files that the data is in: of folders, all that lie below."""
    found: list[Path] = []
    for path in paths:
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [str(path) for path in found]


def evict(*paths: Path, share: float = 1.0) -> None:
    """Have the page cache drop files, or the first ``share`` of each.

    Raises:
        RuntimeError: they stay cached: the file system is in memory, or a process maps them.
    """
    gc.collect()  # maps of contenders that are gone
    for path in files(*paths):
        with open(path, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, int(os.stat(path).st_size * share), os.POSIX_FADV_DONTNEED)
    if share < 1.0:
        return
    for given in paths:
        if (stays := resident(files(given))) > _STAYS:
            raise RuntimeError(
                f"expected {given} to leave the page cache, but {stays:.0%} stays: is it on a file system in memory or "
                "mapped by somebody? --data says where generated data goes"
            )


def fill(*paths: Path) -> None:
    """Have the page cache hold files."""
    for path in files(*paths):
        with open(path, "rb", buffering=0) as opened:
            while opened.read(8 << 20):
                pass


def compile_bare(folder: Path) -> Any | None:
    """Return `bare.c` as a function. None without a C compiler."""
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


def reading(
    bare: Any, paths: Sequence[str], threads: int, size: int, direct: bool, unit: float = ROW, most: int | None = None
) -> Contender:
    """Files from their beginning to their end, or to byte ``most``, in units of a number of bytes."""

    def read() -> float:
        total = 0
        for path in paths:
            nbytes = min(os.stat(path).st_size, most or 1 << 62)
            got = bare(path.encode(), threads, min(size, nbytes), -(-nbytes // size), None, direct)
            if got < 0:
                return 0.0  # past the page cache there may be no reads
            total += got
        return total / unit

    return read


def jumping(bare: Any, flat: Path, offsets: np.ndarray[Any, Any], threads: int, direct: bool) -> Contender:
    """Rows at random places."""
    places = np.ascontiguousarray(offsets, np.uint64)

    def read() -> float:
        # One at a time is slow: a tenth of them is enough.
        count = len(places) if threads > 1 else max(1, len(places) // 10)
        return count if bare(str(flat).encode(), threads, ROW, count, places.ctypes.data, direct) > 0 else 0.0

    return read


def bare_sequential(bare: Any, paths: Sequence[str], unit: float = ROW) -> dict[str, Contender]:
    """Return one contender per depth and size, named ``sequential...``."""
    if bare is None:
        return {}
    return {
        f"sequential, {threads} of {size >> 20} MiB{', direct' if direct else ''}": reading(
            bare, paths, threads, size, direct, unit
        )
        for threads, size, direct in SEQUENTIAL
    }


def bare_random(bare: Any, flat: Path, rows: int, some: int) -> dict[str, Contender]:
    """Return one contender per depth, named ``random...``."""
    if bare is None:
        return {}
    offsets = np.random.default_rng(1).permutation(rows)[:some].astype(np.uint64) * np.uint64(ROW) + np.uint64(128)
    return {
        f"random, {threads} at a time{', direct' if direct else ''}": jumping(bare, flat, offsets, threads, direct)
        for threads, direct in RANDOM
    }


def best(ran: Race, kind: str) -> tuple[str, list[float]] | None:
    """The bare reads of a kind that were best in the median, and the best rate of each round; None: there are none."""
    names = [name for name in ran.rounds if name.startswith(kind)]
    if not names:
        return None
    rates = [ran.rates(name, "wall") for name in names]
    winner = max(names, key=lambda name: ran.rate(name, "wall"))
    return winner, [max(column) for column in zip(*rates, strict=True)]


def coldly(
    stage: Stage, question: str, unit: str, feed: Contender, *paths: Path, scale: float = 1.0, rounds: int = 5
) -> Answer:
    """Answer a question's cold row: the wall-clock rate of a feed over evicted files, compared with files in memory.

    Args:
        stage: the run's stage.
        question: as printed, with ", evicted" added.
        unit: the answer's unit.
        feed: makes the source, afresh each turn.
        paths: the files it reads.
        scale: from the contender's units to the answer's.
        rounds: number of rounds of each contender.
    """
    cold = race({question: feed}, stage.rounds(rounds), "process", 0, before=lambda _: evict(*paths))
    fill(*paths)
    warm = race({question: feed}, stage.rounds(rounds), "process")
    rates, there = cold.rates(question, "wall"), warm.rates(question, "wall")
    spent = statistics.median(1e6 * r.seconds / r.units for r in cold.rounds[question])
    return Answer(
        question=f"{question}, evicted",
        unit=f"{unit} (wall)",
        ours=statistics.median(rates) * scale,
        peer="the same in the page cache",
        peer_value=statistics.median(there) * scale,
        ratio=statistics.median(rates) / statistics.median(there),
        spread=spread(rates),
        note=f"{spent / scale:.3g} us of processor time a unit; a fresh source in each round",
        detail={"evicted": rates, "warm": there},
    )
