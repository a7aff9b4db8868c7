"""How fast is Parquet whose nulls are filled, beside the same rows without nulls?

Unit: million rows a second of CPU time. Measured: the chunks of a table with the columns of a click log (a float32
number of clicks, an int64 of the day, 8 float32), 2 % nulls in one column or in all of them, one thread. pyarrow's own
decoding of the same files, in the same turns, is in the note: nulls cost it time, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, compare, race

GROUP = 100_000
NULLS = 0.02
COLUMNS = {"click": "float32", "day": "int64", **{f"x{i}": "float32" for i in range(8)}}
WITH_NULLS = {"no column": (), "one column": ("x0",), "all columns": tuple(COLUMNS)}


def run(stage: Stage) -> list[Answer]:
    """Compare files with nulls in one column and in all with a file without."""
    rows = stage.size(2_000_000, 20_000)
    streams = {name: fl.Stream((), dtype, missing=0) for name, dtype in COLUMNS.items()}
    contenders: dict[str, Contender] = {}
    for name, columns in WITH_NULLS.items():
        path = stage.data / f"bench-nulls-{len(columns)}-{rows}.parquet"
        if not path.exists():
            _write(path, rows, columns)
        contenders[name] = _chunks(fl.ParquetDeserializer(path, streams), rows)
        contenders[f"pyarrow, {name}"] = _groups(path, rows)
    ran = race(contenders, stage.rounds(9), "process")
    answers = []
    for name, target in (("one column", 0.95), ("all columns", None)):
        alone = ran.ratio(f"pyarrow, {name}", "pyarrow, no column")
        question = f"Parquet, 10 columns, 2 % nulls in {name}, filled"
        note = f"pyarrow's own decoding has {alone:.2f} of its speed without nulls"
        answers.append(compare(ran, name, "no column", question, "M rows/s", 1e-6, target, note=note))
    return answers


def _chunks(corpus: fl.Deserializer, rows: int) -> Contender:
    def read() -> float:
        for number in range(len(corpus.chunks())):
            corpus.read(number)
        return rows

    return read


def _groups(path: Path, rows: int) -> Contender:
    def read() -> float:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                file.read_row_group(number, use_threads=False)
        return rows

    return read


def _write(path: Path, rows: int, columns: tuple[str, ...]) -> None:
    rng = np.random.default_rng(1)
    table = {}
    for name, dtype in COLUMNS.items():
        numbers, lost = rng.normal(0, 100, rows).astype(dtype), rng.random(rows) < NULLS
        table[name] = pa.array(numbers, mask=lost if name in columns else None)
    pq.write_table(pa.table(table), path, row_group_size=GROUP)
