"""How fast is text as it is: JSON Lines with a sentence, a score and a number, 256 a batch, in order?

Unit: lines a second of wall time, from the first batch on. Measured: 60,000 lines of 330 bytes in 8 files, in the page
cache and evicted from it. Nothing is converted before. A batch is a list of texts, and arrays of the rest. In order,
since most of the peers cannot shuffle text.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import mosaic
from benchmarks.peers.contender import OURS, Contender, Given, Opened, Workload
from benchmarks.peers.data import shards

BATCH, FILES = 256, 8


def lines(count: int) -> Iterator[dict[str, Any]]:
    """Made-up rows."""
    rng = np.random.default_rng(7)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(2, 9)))) for _ in range(2000)]
    for number in range(count):
        chosen = rng.integers(0, len(words), rng.integers(30, 60))
        yield {"text": " ".join([words[at] for at in chosen]), "score": round(float(rng.random()), 6), "id": number}


def write_lines(folder: Path, count: int) -> None:
    """JSON Lines."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = lines(count)
    for number in range(FILES):
        size = count // FILES + (number < count % FILES)
        text = "".join(json.dumps(next(rows)) + "\n" for _ in range(size))
        (folder / f"part-{number}.jsonl").write_text(text)


def write_mosaic(folder: Path, count: int) -> None:
    """MosaicML's JSON shards: JSON Lines with an index."""
    streaming = mosaic.imported()

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    columns = {"text": "str", "score": "float", "id": "int"}
    with streaming.JSONWriter(out=str(folder / "json"), columns=columns, size_limit=4 << 20) as writer:
        for row in lines(count):
            writer.write(row)


def batch_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Texts as they are, numbers as tensors."""
    import torch

    return {
        "text": [row["text"] for row in rows],
        "score": torch.tensor([row["score"] for row in rows]),
        "id": torch.tensor([row["id"] for row in rows]),
    }


def parsed(texts: Sequence[str]) -> dict[str, Any]:
    """The same of lines."""
    return batch_of([json.loads(text) for text in texts])


def read_lines(files: Sequence[str]) -> Iterator[str]:
    """The lines of files."""
    for name in files:
        with open(name, encoding="utf-8") as file:
            yield from file


def groups(files: Sequence[str]) -> Iterator[list[str]]:
    """Lines of a batch at a time."""
    held: list[str] = []
    for line in read_lines(files):
        held.append(line)
        if len(held) == BATCH:
            yield held
            held = []
    if held:
        yield held


# ---- contenders ----------------------------------------------------------------------------------------------


def ours(given: Given) -> Opened:
    """JSON Lines, natively."""
    import pyarrow  # noqa: F401

    import feedline as fl
    from feedline import DataLoader, JSONLinesDeserializer

    def opened() -> Any:
        streams = {"text": fl.Stream(dtype="str"), "score": fl.Stream(()), "id": fl.Stream((), "int64")}
        corpus = JSONLinesDeserializer(shards(given.data, "*.jsonl"), streams)
        return DataLoader(corpus, batch_size=BATCH, shuffle=False, num_workers=given.workers)

    return opened


def torch_loader(given: Given) -> Opened:
    """torch: an iterable dataset that parses, whose workers share the files."""
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Lines(IterableDataset):  # type: ignore[misc]
        """Rows of some of the files."""

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
            return map(json.loads, read_lines(shards(given.data, "*.jsonl")[first::step]))

    return lambda: DataLoader(
        Lines(),
        batch_size=BATCH,
        num_workers=given.workers,
        collate_fn=batch_of,
        persistent_workers=given.workers > 0,
    )


def nodes(given: Given) -> Opened:
    """torchdata's nodes: lines, in batches, parsed in processes."""
    from torchdata.nodes import IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher

    def opened() -> Any:
        node = IterableWrapper(Groups(shards(given.data, "*.jsonl")))
        if not given.workers:
            return Loader(Mapper(node, parsed))
        return Loader(Prefetcher(ParallelMapper(node, parsed, num_workers=given.workers, method="process"), 4))

    return opened


class Groups:
    """An iterable of lines of a batch at a time."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[list[str]]:
        return groups(self.files)


def mosaic_loader(given: Given) -> Opened:
    """MosaicML Streaming over its JSON shards."""
    streaming = mosaic.imported()

    def opened() -> Any:
        rows = streaming.StreamingDataset(local=str(given.data / "json"), shuffle=False, batch_size=BATCH)
        return streaming.StreamingDataLoader(
            rows, batch_size=BATCH, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def hugging_face(given: Given) -> Opened:
    """``datasets``, streaming, whose batches need no collating beyond tensors."""
    import datasets
    from torch.utils.data import DataLoader

    def opened() -> Any:
        files = shards(given.data, "*.jsonl")
        rows = datasets.load_dataset("json", data_files=files, split="train", streaming=True).with_format("torch")
        return DataLoader(
            rows.batch(BATCH), batch_size=None, num_workers=given.workers, persistent_workers=given.workers > 0
        )

    return opened


def spdl(given: Given) -> Opened:
    """SPDL: lines of a batch at a time, parsed in threads."""
    from spdl.pipeline import PipelineBuilder

    threads = max(given.workers, 1)

    class Epochs:
        """A pipeline for each epoch."""

        def __iter__(self) -> Iterator[Any]:
            builder = PipelineBuilder().add_source(groups(shards(given.data, "*.jsonl")))
            builder = builder.pipe(parsed, concurrency=threads, output_order="input")
            with (pipeline := builder.add_sink(4).build(num_threads=threads)).auto_stop():
                yield from pipeline

    return Epochs


def ray(given: Given) -> Opened:
    """Ray Data's reader of JSON, by pyarrow."""
    import ray

    # A cluster is there before data is opened.
    ray.init(num_cpus=max(given.workers, 1), include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)

    def opened() -> Any:
        rows = ray.data.read_json(str(given.data), lines=True, file_extensions=["jsonl"])

        class Epochs:
            """An execution for each epoch."""

            def __iter__(self) -> Iterator[Any]:
                return iter(rows.iter_batches(batch_size=BATCH, batch_format="numpy"))

        return Epochs()

    return opened


WORKLOAD = Workload(
    title="JSON Lines: a sentence and two numbers, 256 a batch, in order",
    unit="lines/s",
    contenders=[
        Contender(OURS, ours, form="lines", order="none"),
        Contender("torch DataLoader", torch_loader, "json.loads", form="lines", order="none"),
        Contender("torchdata.nodes", nodes, "json.loads", form="lines", needs=("torchdata",), order="none"),
        Contender("MosaicML Streaming", mosaic_loader, form="MDS JSON", needs=("streaming",), order="none"),
        Contender("HF datasets", hugging_face, "streaming", form="lines", needs=("datasets",), order="none"),
        Contender("SPDL", spdl, "json.loads", form="lines", needs=("spdl",), order="none"),
        Contender("Ray Data", ray, form="lines", needs=("ray",), order="none", workers=(2,), delivers="NumPy"),
    ],
    makers={"lines": write_lines, "MDS JSON": write_mosaic},
    count=(60_000, 4_000),
    batch=BATCH,
    cold=True,
    absent={"Grain, LitData, WebDataset, tf.data": "they have no reader of JSON Lines."},
)
