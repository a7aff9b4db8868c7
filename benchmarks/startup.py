"""How long does it take to start: importing, the first batch of a small store, and opening a source?

Limit: 40 ms for ``import feedline`` over NumPy, and for the first batch over torch, pyarrow and the loader.
Opening costs O(chunks). Unit: milliseconds of CPU time. Measured: the import in fresh processes that have imported
NumPy, the first batch of a store of 1,000 rows in fresh processes, and opening a source over corpora of 10^3 to 10^5
chunks without data, where the figure is nanoseconds a chunk and the ratio shows how it grows from the smallest to the
largest.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread
from benchmarks.restore import Synthetic

IMPORT = "import time, numpy; a = time.process_time(); import feedline; print(time.process_time() - a)"
#: A collection of torch's objects, 80 ms, comes due after its import, wherever that ends.
FIRST = """import gc, sys, time, pyarrow, torch
from feedline import DataLoader
gc.collect()
a = time.process_time()
next(iter(DataLoader(sys.argv[1], batch_size=256, shuffle=True, seed=1)))
print(time.process_time() - a)"""


def fresh(question: str, command: Sequence[str], stage: Stage) -> Answer:
    """Answer with the seconds that a program prints, in fresh processes."""
    took = []
    for _ in range(stage.rounds(15) + 1):
        ran = subprocess.run([sys.executable, "-c", *command], capture_output=True, text=True, check=True)
        took.append(float(ran.stdout) * 1e3)
    took = took[1:]  # the first one fills the page cache
    return Answer(
        question=question,
        unit="ms",
        ours=statistics.median(took),
        target=Target("ours", "<=", 40, "40 ms"),
        spread=spread(took),
        detail={"ms": took},
    )


def small_store(data: Path) -> Path:
    """A store of 1,000 rows of 16 numbers."""
    rows, path = data / "startup.npy", data / "startup-store"
    if not path.exists():
        np.save(rows, np.zeros((1000, 16), np.float32))
        fl.convert(rows, path)
    return path


def run(stage: Stage) -> list[Answer]:
    """Import, then the first batch, then opening."""
    answers = [
        fresh("import feedline, over numpy", [IMPORT], stage),
        fresh("the first batch of a small store", [FIRST, str(small_store(stage.data))], stage),
    ]
    each = {}
    for chunks in (10**3, 10**4) if stage.quick else (10**3, 10**4, 10**5):
        corpus = Synthetic(chunks * 10, random_access=True, chunk=10)
        times = []
        for _ in range(stage.rounds(7)):
            began = time.process_time()
            source = fl.MinibatchSource(corpus)
            source.load_state_dict(source.state_dict())
            times.append(time.process_time() - began)
            source.close()
        each[chunks] = [t * 1e9 / chunks for t in times]
    few, many = min(each), max(each)
    medians = {chunks: statistics.median(values) for chunks, values in each.items()}
    answers.append(
        Answer(
            question=f"opening a source of {many:,} chunks",
            unit="ns a chunk",
            ours=medians[many],
            peer=f"{few:,} chunks",
            peer_value=medians[few],
            ratio=medians[few] / medians[many],
            target=Target("ratio", ">=", 0.5),
            spread=spread(each[many]),
            note="the ratio would fall with the number of chunks if opening cost more than O(chunks)",
            detail={"ns_a_chunk": {str(chunks): value for chunks, value in medians.items()}},
        )
    )
    return answers
