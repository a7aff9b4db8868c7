"""How long does opening many files with different schemas take with ``schema="union"``, compared with equal schemas?

Limit: 1.5 times. Unit: seconds of CPU time, all threads counted. Measured: files of twenty rows and four columns, of
Parquet, Arrow, JSON Lines and CSV. The integers of one are narrow, of another wide, the third lacks a column. The peer
is as many files of one schema, opened without ``schema``. The index of texts was written before.
"""

from __future__ import annotations

import json
import logging
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, spread

ROWS = 20
STREAMS = {
    "n": fl.Stream((), "int64"),
    "ratio": fl.Stream((), "float64"),
    "text": fl.Stream((), "str", missing=""),
    "label": fl.Stream((), "int64"),
}


def run(stage: Stage) -> list[Answer]:
    """Measure each format."""
    files = 300 if stage.quick else 10**4
    answers = []
    for form in ("parquet", "arrow", "jsonl", "csv"):
        folders = []
        for name, variants in (("equal", 1), ("differing", 3)):
            folders.append(stage.data / f"bench-schemas-{form}-{name}-{files}")
            if not folders[-1].exists():
                folders[-1].mkdir()
                for number in range(files):
                    write(folders[-1] / f"{number:06}.{form}", form, number % variants)
        answers.append(measure(form, files, *folders, rounds=3 if stage.quick else 5, cache=stage.data / "bench-index"))
    return answers


def write(path: Path, form: str, variant: int) -> None:
    """Write a file: 0 with narrow integers, 1 with wide ones, 2 in another order, without a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(variant)
    columns: dict[str, list[Any]] = {
        "n": [chance.randrange(100) for _ in range(ROWS)],
        "ratio": [chance.random() for _ in range(ROWS)],
        "text": [f"row {chance.random()}" for _ in range(ROWS)],
        "label": [chance.randrange(10) for _ in range(ROWS)],
    }
    if variant == 2:
        columns = {name: columns[name] for name in ("label", "ratio", "n")}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        lines = [",".join(columns), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        kinds = {"n": pa.int64() if variant == 1 else pa.int32(), "label": pa.int64()}
        table = pa.table({name: pa.array(values, kinds.get(name)) for name, values in columns.items()})
        if form == "parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)


def measure(form: str, files: int, equal: Path, differing: Path, *, rounds: int, cache: Path) -> Answer:
    """Open both folders in turn."""
    logging.getLogger("feedline").setLevel(logging.ERROR)
    wide = STREAMS if form in ("jsonl", "csv") else STREAMS | {"n": fl.Stream((), "int32")}
    options: dict[str, Any] = {"cache": str(cache)} if form in ("jsonl", "csv") else {}
    kinds: dict[str, Callable[..., fl.Deserializer]] = {
        "parquet": fl.ParquetDeserializer,
        "arrow": fl.ArrowDeserializer,
        "jsonl": fl.JSONLinesDeserializer,
        "csv": fl.CSVDeserializer,
    }
    opened, peers = list[float](), list[float]()
    for turn in range(rounds + 1):
        for folder, streams, seconds in ((equal, wide, peers), (differing, STREAMS, opened)):
            schema = {"schema": "union"} if folder is differing else {}
            began = time.process_time()
            kinds[form](str(folder), streams, **options, **schema).close()
            if turn:  # the first one writes the index
                seconds.append(time.process_time() - began)
    ratios = [a / b for a, b in zip(opened, peers, strict=True)]
    return Answer(
        question=f"opening {files:,} files of {form} with three schemas",
        unit="s",
        ours=statistics.median(opened),
        peer="with one schema",
        peer_value=statistics.median(peers),
        ratio=statistics.median(ratios),
        target=Target("ratio", "<=", 1.5),
        spread=spread(ratios),
        detail={"differing_s": opened, "equal_s": peers},
    )
