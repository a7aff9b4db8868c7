"""How fast are statistics of a table, beside reading it and beside pandas?

Peers: reading the same chunks with as many threads, and pandas, which reads the file and computes count, mean,
deviation, limits and percentiles of each number, and counts of each integer and text. Unit: million rows a second.
Measured: 10 columns of Parquet (6 float32 of which one has nulls, 3 integers, 1 text), 2 threads, wall time.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import feedline as fl
from benchmarks.harness import Answer, Stage, compare, race
from feedline.feed.conversion.read_ahead import read_ahead

THREADS = 2
GROUP = 250_000


def run(stage: Stage) -> list[Answer]:
    """Compare statistics with reading, and with pandas."""
    rows = 20_000 if stage.quick else 5_000_000
    path = stage.data / "table.parquet"
    _write(path, rows)
    streams = {f"x{i}": fl.Stream((), "float32", mask=i == 0) for i in range(6)}
    streams |= {"id": fl.Stream((), "int64"), "code": fl.Stream((), "int32"), "label": fl.Stream((), "int8")}
    corpus = fl.ParquetDeserializer(path, {**streams, "word": fl.Stream((), "str")})

    def statistics() -> float:
        fl.statistics(corpus, jobs=THREADS)
        return rows

    def reading() -> float:
        deque(read_ahead(corpus.read, range(len(corpus.chunks())), THREADS), maxlen=0)
        return rows

    def pandas() -> float:
        table = pd.read_parquet(path)
        for name in table:
            column = table[name]
            if column.dtype.kind in "fiu":
                column.agg(["count", "mean", "std", "min", "max"])
                column.quantile(np.linspace(0, 1, 101))
            if column.dtype.kind != "f":
                column.value_counts()
        return rows

    question = f"statistics of {rows / 1e6:g} million rows x 10 columns"
    ran = race({"feedline": statistics, "reading": reading, "pandas": pandas}, stage.rounds(5), "wall")
    answers = [
        compare(ran, "feedline", "reading", f"{question}, beside reading", "M rows/s", 1e-6, 0.8),
        compare(ran, "feedline", "pandas", f"{question}, beside pandas", "M rows/s", 1e-6, 3.0),
    ]
    corpus.close()
    return answers


def _write(path, rows: int) -> None:
    rng = np.random.default_rng(1)
    columns = {f"x{i}": pa.array(rng.normal(i, 1 + i, rows).astype("float32")) for i in range(1, 6)}
    columns["x0"] = pa.array(rng.normal(0, 1, rows).astype("float32"), mask=rng.random(rows) < 0.02)
    columns["id"] = pa.array(rng.zipf(1.5, rows).clip(0, 10**6))
    columns["code"] = pa.array(rng.integers(0, 1000, rows, "int32"))
    columns["label"] = pa.array((rng.random(rows) < 0.1).astype("int8"))
    columns["word"] = pa.array(np.array([f"word {i}" for i in range(500)])[rng.integers(0, 500, rows)])
    pq.write_table(pa.table(columns), path, row_group_size=GROUP)
