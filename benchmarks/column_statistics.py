"""How fast are statistics of a table, beside reading it and beside pandas, and how much memory do they take?

Peers: reading the same chunks with as many threads, and pandas, which reads the file and computes count, mean,
deviation, limits and percentiles of each number, and counts of each integer and text. Unit: million rows a second.
Measured: 10 columns of Parquet (6 float32 of which one has nulls, 3 integers, 1 text), 2 threads, CPU time of
all threads. Memory is private memory of a fresh process at its peak, see `memory`. Its limit: the chunks that two
threads hold, as Arrow's tables and as values, what the process had before, and 150 MB.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race
from benchmarks.memory import SLACK, usage, watch_command
from feedline.feed.conversion.read_ahead import read_ahead

THREADS = 2
GROUP = 250_000
STREAMS = {
    **{f"x{i}": fl.Stream((), "float32", mask=i == 0) for i in range(6)},
    "id": fl.Stream((), "int64"),
    "code": fl.Stream((), "int32"),
    "label": fl.Stream((), "int8"),
    "word": fl.Stream((), "str"),
}


def run(stage: Stage) -> list[Answer]:
    """Compare statistics with reading, and with pandas."""
    rows = 20_000 if stage.quick else 5_000_000
    path = stage.data / "bench-statistics.parquet"
    _write(path, rows)
    with_pandas = _pandas(path)
    corpus = fl.ParquetDeserializer(path, STREAMS)

    def statistics() -> float:
        fl.statistics(corpus, jobs=THREADS)
        return rows

    def reading() -> float:
        deque(read_ahead(corpus.read, range(len(corpus.chunks())), THREADS), maxlen=0)
        return rows

    def pandas() -> float:
        with_pandas()
        return rows

    question = f"statistics of {rows / 1e6:g} million rows x 10 columns"
    ran = race({"feedline": statistics, "reading": reading, "pandas": pandas}, stage.rounds(5), "process")
    ours, theirs = (watch_command("benchmarks.column_statistics", name, str(path)) for name in ("feedline", "pandas"))
    limit = ours["start"] + 2 * (THREADS + 1) * corpus.read(0).nbytes + SLACK
    answers = [
        compare(ran, "feedline", "reading", f"{question}, beside reading", "M rows/s", 1e-6, 0.8),
        compare(ran, "feedline", "pandas", f"{question}, beside pandas", "M rows/s", 1e-6, 3.0),
        Answer(
            question=f"private memory, {question}",
            unit="MB",
            ours=ours["private"] / 1e6,
            peer="pandas",
            peer_value=theirs["private"] / 1e6,
            ratio=theirs["private"] / ours["private"],
            target=Target("ours", "<=", limit / 1e6),
            note=f"{ours['start'] / 1e6:.0f} MB before opening; a chunk has {corpus.read(0).nbytes / 1e6:.0f} MB",
            detail={"feedline": ours, "pandas": theirs},
        ),
    ]
    corpus.close()
    return answers


def _pandas(path: Path):
    """Return a function that computes with pandas what `fl.statistics` does."""
    import pandas as pd

    def compute() -> None:
        table = pd.read_parquet(path)
        for name in table:
            column = table[name]
            if column.dtype.kind in "fiu":
                column.agg(["count", "mean", "std", "min", "max"])
                column.quantile(np.linspace(0, 1, 101))
            if column.dtype.kind != "f":
                column.value_counts()

    return compute


def _compute_once(name: str, path: Path) -> None:
    """Compute the statistics in a fresh process, and print the memory that it had before."""
    compute = _pandas(path) if name == "pandas" else None
    start = usage("self")["private"]
    if compute is None:
        fl.statistics(fl.ParquetDeserializer(path, STREAMS), jobs=THREADS)
    else:
        compute()
    print(json.dumps({"start": start}))


def _write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    columns = {f"x{i}": pa.array(rng.normal(i, 1 + i, rows).astype("float32")) for i in range(1, 6)}
    columns["x0"] = pa.array(rng.normal(0, 1, rows).astype("float32"), mask=rng.random(rows) < 0.02)
    columns["id"] = pa.array(rng.zipf(1.5, rows).clip(0, 10**6))
    columns["code"] = pa.array(rng.integers(0, 1000, rows, "int32"))
    columns["label"] = pa.array((rng.random(rows) < 0.1).astype("int8"))
    columns["word"] = pa.array(np.array([f"word {i}" for i in range(500)])[rng.integers(0, 500, rows)])
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)


if __name__ == "__main__":
    _compute_once(sys.argv[1], Path(sys.argv[2]))
