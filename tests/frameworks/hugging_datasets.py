"""Hugging Face `datasets` over a loader: in memory, by index, and streamed, on one rank and on several.

A program returns a `Made`; `tests.frameworks.at_once` runs it over torch's DataLoader and over ours. Row ``i`` has
``i`` in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from tests.frameworks.at_once import Cell, Made

COUNT, BATCH, SHARDS = 26, 4, 6


def prepare() -> None:
    """Import what takes long, once for all ranks."""
    import datasets
    import datasets.distributed

    datasets.disable_progress_bars()


def _rows() -> Any:
    import datasets

    return datasets.Dataset.from_dict({"x": list(range(COUNT)), "text": [f"row {i}" for i in range(COUNT)]})


def _told(batch: Any) -> Any:
    rows = batch["x"].tolist()
    assert batch["text"] == [f"row {i}" for i in rows]
    return [rows, [round(value, 6) for value in batch["noise"].flatten().tolist()] if "noise" in batch else None]


def _of_rows(cell: Cell, rows: Any) -> Made:
    sampler = DistributedSampler(rows, seed=2) if cell.world > 1 else None
    loader = cell.Loader(
        rows, batch_size=BATCH, shuffle=sampler is None, sampler=sampler, num_workers=cell.workers, drop_last=False
    )
    return Made(loader, _told, lambda epoch: None if sampler is None else sampler.set_epoch(epoch))


def formatted(cell: Cell) -> Made:
    """``with_format("torch")``: whole batches by ``__getitems__``."""
    return _of_rows(cell, _rows().with_format("torch"))


def _noisy(rows: dict[str, list[Any]]) -> dict[str, Any]:
    count = len(rows["x"])
    return {"x": torch.tensor(rows["x"]), "text": rows["text"], "noise": torch.rand(count, 2)}


def transformed(cell: Cell) -> Made:
    """``set_transform`` with random numbers, over an indices mapping."""
    rows = _rows().shuffle(seed=7)
    rows.set_transform(_noisy)
    return _of_rows(cell, rows)


def split(cell: Cell) -> Made:
    """``split_dataset_by_node`` of rows: ranks read different parts, which may differ in length."""
    from datasets.distributed import split_dataset_by_node

    rows = split_dataset_by_node(_rows(), rank=cell.rank, world_size=cell.world).with_format("torch")
    loader = cell.Loader(rows, batch_size=BATCH, shuffle=True, num_workers=cell.workers)
    return Made(loader, _told, lambda epoch: None)


# ---- streams --------------------------------------------------------------------------------------------


def _shards(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for i in range(shard, COUNT, SHARDS):
            yield {"x": i, "text": f"row {i}"}


def _stream(cell: Cell) -> Any:
    import datasets
    from datasets.distributed import split_dataset_by_node

    stream = datasets.IterableDataset.from_generator(_shards, gen_kwargs={"shards": list(range(SHARDS))})
    return split_dataset_by_node(stream, rank=cell.rank, world_size=cell.world)


def _of_stream(cell: Cell, stream: Any, set_epoch: Any = None) -> Made:
    loader = cell.Loader(stream, batch_size=BATCH, num_workers=cell.workers)
    return Made(loader, _told, stream.set_epoch if set_epoch is None else set_epoch)


def streamed(cell: Cell) -> Made:
    """Shards in another order each epoch, a function of each row, tensors."""
    stream = _stream(cell).map(lambda row: {**row, "noise": torch.rand(1).item()})
    return _of_stream(cell, stream.with_format("torch"))


def shuffled(cell: Cell) -> Made:
    """Shards and rows shuffled."""
    return _of_stream(cell, _stream(cell).shuffle(seed=4, buffer_size=3).with_format("torch"))


def without_epochs(cell: Cell) -> Made:
    """Nobody calls ``set_epoch``: every epoch is the first."""
    return _of_stream(cell, _stream(cell).with_format("torch"), lambda epoch: None)


def from_rows(cell: Cell) -> Made:
    """``to_iterable_dataset`` of rows on disk or in memory, in batches of a table."""
    from datasets.distributed import split_dataset_by_node

    stream = _rows().to_iterable_dataset(num_shards=SHARDS)
    return _of_stream(cell, split_dataset_by_node(stream, cell.rank, cell.world).with_format("torch"))


PROGRAMS = {
    "datasets, by index": [formatted, transformed, split],
    "datasets, streamed": [streamed, shuffled, without_epochs, from_rows],
}
for _program in PROGRAMS["datasets, streamed"]:
    _program.keeps_workers = True  # type: ignore[attr-defined]
