"""How fast are shuffled minibatches from a dataset that `datasets` saved: 784 float32 and a label, 256 a minibatch?

Limits and peers: our own store of the same rows; `datasets` itself with torch's format, behind torch's
`DataLoader(batch_size=256, shuffle=True)` without workers, which asks it for whole batches. Unit: samples a second of
processor time, all threads counted. Measured: files of `save_to_disk`, 1000 rows a batch, 940 MB in the page cache,
all pages touched before. The orders differ, but both shuffle the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.dense_shuffled import SIZE, feeding
from benchmarks.harness import Answer, Contender, Stage, compare, race

ROWS_OF_A_BATCH = 1000


def run(stage: Stage) -> list[Answer]:
    """Compare with our own store and with `datasets`."""
    import datasets

    rows = stage.size(300_000, 20_000)
    saved, store = written(stage, rows)
    count = 20 if stage.quick else 500
    sources = [fl.MinibatchSource(corpus) for corpus in (fl.ArrowDeserializer(saved), fl.StoreDeserializer(store))]
    contenders: dict[str, Contender] = {
        "feedline": feeding(sources[0], count),
        "feedline's store": feeding(sources[1], count),
        "datasets, torch format": theirs(datasets.load_from_disk(str(saved)), count // 20),
    }
    for source in sources:  # every page is touched
        for _ in range(rows // SIZE):
            source.next_minibatch(SIZE)
    ran = race(contenders, stage.rounds(9), "process")
    name = "a dataset of Hugging Face's in place, shuffled"
    return [
        compare(ran, "feedline", "feedline's store", name, "samples/s", 1.0, 0.9),
        compare(ran, "feedline", "datasets, torch format", name, "samples/s", 1.0, 10),
    ]


def written(stage: Stage, rows: int) -> tuple[Path, Path]:
    """The folder that `datasets` saved, and the store of the same rows."""
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    saved, store = stage.data / f"bench-hf-{rows}", stage.data / f"bench-hf-{rows}.store"
    if not store.exists():
        rng = np.random.default_rng(4)
        x = rng.random((rows, data.PIXELS), np.float32)
        y = rng.integers(0, data.LABELS, rows)
        columns = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), data.PIXELS), "y": pa.array(y)}
        batches = pa.table(columns).to_batches(max_chunksize=ROWS_OF_A_BATCH)
        datasets.Dataset(pa.Table.from_batches(batches)).save_to_disk(str(saved))
        fl.convert(saved, store)
    return saved, store


def theirs(rows: Any, count: int) -> Contender:
    """Return a contender: batches of torch's loader over the dataset, across epochs."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(rows.with_format("torch"), batch_size=SIZE, shuffle=True)

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    stream = batches()
    next(stream)
    return lambda: sum(len(next(stream)["x"]) for _ in range(max(1, count)))
