"""How fast is the index pass over CTF text?

Limits: a newline scan on lines of about 1 KB (the faster of memchr a line and a vectorised count, both in C), and an
index made by scanning every character once, in C, on lines of about 15 bytes with sequence ids. Unit: GB of text a
second. Measured: 8 MB in memory, fed in 4 MiB blocks, as the deserializer does. CPU time of the thread. Without a C
compiler, `numpy.count_nonzero` replaces the newline scan, and the second is left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.harness import Answer, Contender, Stage, compare, race
from benchmarks.scans import compile_scans
from feedline import _native

BLOCK = 4 << 20


def run(stage: Stage) -> list[Answer]:
    """Compare long lines with a newline scan, short lines with a scan by characters."""
    size = 1 << 20 if stage.quick else 8 << 20
    long_lines = np.frombuffer(data.float_text(size), np.uint8)
    short_lines = np.frombuffer(data.one_hot_text(size), np.uint8)
    scans = compile_scans(stage.data)
    if scans is None:
        contenders = {"index": indexing(long_lines), "numpy count": repeated(long_lines, _count)}
        ran = race(contenders, stage.rounds(15))
        note = "no C compiler here: the scan is numpy.count_nonzero(text == 10), slower than memchr"
        return [compare(ran, "index", "numpy count", "index pass, 1 KB lines", "GB/s", 1e-9, 0.4, note=note)]
    contenders = {
        "index": indexing(long_lines),
        "memchr a line": repeated(long_lines, scans["memchr a line"]),
        "vector count": repeated(long_lines, scans["vector count"]),
    }
    ran = race(contenders, stage.rounds(15))
    best = max(("memchr a line", "vector count"), key=ran.rate)
    answers = [compare(ran, "index", best, "index pass, 1 KB lines", "GB/s", 1e-9, 0.4)]
    contenders = {
        "index": indexing(short_lines),
        "C scan per character": repeated(short_lines, scans["per character"]),
    }
    ran = race(contenders, stage.rounds(15))
    name = "index pass, 15-byte lines"
    return [*answers, compare(ran, "index", "C scan per character", name, "GB/s", 1e-9, 2)]


def indexing(text: NDArray[np.uint8]) -> Contender:
    """Index the text four times over."""

    def index() -> float:
        for _ in range(4):
            indexer = _native.CtfIndexer(None)
            for start in range(0, len(text), BLOCK):
                indexer.feed(text[start : start + BLOCK])
            indexer.finish()
        return 4.0 * len(text)

    return index


def repeated(text: NDArray[np.uint8], scan) -> Contender:  # type: ignore[no-untyped-def]
    """Scan the text four times over, block by block as the index does."""

    def again() -> float:
        for _ in range(4):
            for start in range(0, len(text), BLOCK):
                scan(text[start : start + BLOCK])
        return 4.0 * len(text)

    return again


def _count(text: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(text == 10))
