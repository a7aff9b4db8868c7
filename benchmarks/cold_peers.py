"""How fast are minibatches of data that is not in memory, compared with the libraries that people use for that?

Peers: LitData's streaming loader over its own chunks, Hugging Face `datasets` over its Arrow files, pyarrow's dataset
scanner over Parquet, and torch's `DataLoader` over a memory map. Missing ones are reported (`pip install litdata
datasets`). Unit: samples of 784 float32 and a label a second of wall time. Measured: the same 470 MB of rows in each
one's own format, evicted from the page cache before each turn, a sweep in minibatches of 256 (some of a whole shuffle),
in order, and shuffled in each one's way: LitData within chunks of 64 MB, we in windows of the same size, `datasets` and
torch as a whole. The same with everything in the page cache.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from benchmarks import data
from benchmarks.cold import PATIENCE, SIZE, TORCH, blocks, cpu, feeding, make, mapped_by_torch
from benchmarks.disk import bare_random, bare_sequential, best, compile_bare, evict, fill
from benchmarks.harness import Answer, Contender, Race, Stage, Target, race, spread

CHUNK = 64 << 20
#: By contender: its package, and whether it shuffles.
PEERS = {
    "LitData": ("litdata", False),
    "LitData, shuffled": ("litdata", True),
    "HF datasets": ("datasets", False),
    "HF datasets, shuffled": ("datasets", True),
    "pyarrow scanner over Parquet": ("pyarrow", False),
    TORCH: ("torch", True),
}
OURS = {"order": "in order", "windows": "in windows of 64 MiB", "whole": "in a whole shuffle"}
SHUFFLES: dict[str, bool | str | fl.Window] = {"order": False, "windows": fl.Window(bytes=CHUNK), "whole": "whole"}


def run(stage: Stage) -> list[Answer]:
    """Measure evicted, then in the page cache."""
    rows = stage.size(150_000, 10_000)
    some = min(rows, 2_000 if stage.quick else 40_000)
    store, flat = make(stage, rows)
    folders = {name: stage.data / f"bench-cold-{name}" for name in ("litdata", "datasets", "pyarrow")}
    contenders, paths = loading(store, flat, folders, rows, some)
    bare = compile_bare(stage.data)
    beside = contenders | bare_sequential(bare, [str(flat)]) | bare_random(bare, flat, rows, some)

    def ready(name: str) -> None:
        contender = contenders.get(name)
        if isinstance(contender, Elsewhere):
            contender.start()

    def ready_and_evicted(name: str) -> None:
        ready(name)
        evict(*paths)

    for turn in contenders.values():
        if not isinstance(turn, Elsewhere):
            turn()  # untimed: imports
    cold = race(beside, stage.rounds(3), "process", 0, before=ready_and_evicted)
    fill(*paths)
    warm = race(contenders, stage.rounds(3), "process", 0, before=ready)
    answers = table(cold, "evicted") + table(warm, "in the page cache")
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return answers


def table(ran: Race, where: str) -> list[Answer]:
    """Compare ours with each peer, in the order in which that peer delivers."""
    answers = []
    for ours, order in OURS.items():
        question = f"store {where}, {order}"
        for peer, (package, shuffled) in PEERS.items():
            if shuffled != (ours != "order"):
                continue
            if peer not in ran.rounds:
                note = f"{package} is not installed"
                answers.append(
                    Answer(question, "samples/s", ran.rate(ours, "wall"), f"{peer}: not installed", note=note)
                )
                continue
            wanted = None
            if where == "evicted" and package in ("litdata", "datasets"):
                wanted = {"order": Target("ratio", ">=", 1), "windows": Target("ratio", ">=", 2)}.get(ours)
            answers.append(beside(ran, ours, peer, question, wanted))
        if (found := best(ran, "random" if ours == "whole" else "sequential")) is not None:
            ratios = [a / b for a, b in zip(ran.rates(ours, "wall"), found[1], strict=True)]
            answers.append(
                Answer(
                    question,
                    "samples/s",
                    ran.rate(ours, "wall"),
                    f"bare reads: {found[0]}",
                    statistics.median(found[1]),
                    statistics.median(ratios),
                    spread=spread(ran.rates(ours, "wall")),
                )
            )
    return answers


def beside(ran: Race, ours: str, peer: str, question: str, wanted: Target | None) -> Answer:
    """Compare by the wall clock, as peers have threads that wait."""
    ratios = [a / b for a, b in zip(ran.rates(ours, "wall"), ran.rates(peer, "wall"), strict=True)]
    return Answer(
        question=question,
        unit="samples/s",
        ours=ran.rate(ours, "wall"),
        peer=peer,
        peer_value=ran.rate(peer, "wall"),
        ratio=statistics.median(ratios),
        target=wanted,
        spread=spread(ran.rates(ours, "wall")),
        note=f"{cpu(ran, ours):.2f} us of processor time a sample"
        + ("" if peer.startswith("LitData") else f", theirs {cpu(ran, peer):.2f}"),
        detail={"rates": {name: ran.rates(name, "wall") for name in (ours, peer)}},
    )


# ---- contenders ----------------------------------------------------------------------------------------------


def loading(
    store: Path, flat: Path, folders: dict[str, Path], rows: int, some: int
) -> tuple[dict[str, Contender], list[Path]]:
    """Write the data of the installed contenders, return the contenders and all paths of data."""
    contenders: dict[str, Contender] = {
        name: feeding(store, shuffle, some if name == "whole" else None) for name, shuffle in SHUFFLES.items()
    }
    contenders[TORCH] = mapped_by_torch(flat, some // 2)
    paths = [store, flat]
    makers: dict[str, Callable[[Path, int, int], dict[str, Contender]]] = {
        "litdata": litdata_loaders,
        "datasets": hugging_face,
        "pyarrow": scanners,
    }
    for package, maker in makers.items():
        if importlib.util.find_spec(package) is not None:
            contenders |= maker(folders[package], rows, some)
            paths.append(folders[package])
    return contenders, paths


def counting(batches: Callable[[], Any], some: int | None = None) -> Contender:
    """Count the labels of a sweep, or of ``some`` samples, from a fresh loader, touching each page of the rows."""

    def feed() -> float:
        found, began = 0, time.perf_counter()
        for batch in batches():
            found += len(batch["y"])
            batch["x"][:, ::512].sum()  # some return views of maps
            if (some is not None and found >= some) or time.perf_counter() - began > PATIENCE:
                break
        return found

    return feed


class Elsewhere:
    """A contender in a fresh process, since LitData keeps its chunks mapped until the process ends.

    `start` starts it and waits until it has imported everything. Its turn is timed from then on. Processor time is
    the caller's, which only waits, so there is none.
    """

    def __init__(self, folder: Path, shuffle: bool) -> None:
        self._command = [sys.executable, "-m", "benchmarks.cold_peers", str(folder), str(int(shuffle))]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, which then waits for a line."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line("ready")

    def _line(self, expected: str) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:  # libraries print
            if line.startswith(expected):
                return line
        raise RuntimeError(f"expected {' '.join(self._command)} to say {expected!r}, got its end")

    def __call__(self) -> float:
        """Run a turn, return the samples it counted."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with process:
            process.stdin.write("go\n")
            process.stdin.flush()
            found = float(self._line("counted").split()[1])
            process.kill()
        return found


def litdata_loaders(folder: Path, rows: int, some: int) -> dict[str, Contender]:
    """Return LitData contenders without worker processes: LitData's own thread reads ahead."""
    import torch
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=CHUNK)
    number = 0
    for x, y in blocks(rows):
        for row, label in zip(x, y.tolist(), strict=True):
            writer[number] = {"x": torch.from_numpy(row), "y": label}
            number += 1
    writer.done()
    writer.merge()

    return {"LitData": Elsewhere(folder, False), "LitData, shuffled": Elsewhere(folder, True)}


def with_litdata(folder: str, shuffle: str) -> None:
    """In the fresh process: run a sweep when told to."""
    import litdata

    def loader() -> Any:
        dataset = litdata.StreamingDataset(folder, shuffle=shuffle == "1", drop_last=False)
        return litdata.StreamingDataLoader(dataset, batch_size=SIZE, num_workers=0)

    print("ready", flush=True)
    sys.stdin.readline()
    print("counted", counting(loader)(), flush=True)


def hugging_face(folder: Path, rows: int, some: int) -> dict[str, Contender]:
    """Return contenders of `datasets` over the Arrow files that it writes, as NumPy arrays, batch by batch."""
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        {"x": datasets.Sequence(datasets.Value("float32"), length=data.PIXELS), "y": datasets.Value("int64")}
    )
    folder.mkdir()
    path = str(folder / "rows.arrow")
    with datasets.arrow_writer.ArrowWriter(path=path, features=features, writer_batch_size=10_000) as writer:
        for x, y in blocks(rows):
            writer.write_batch({"x": x, "y": y})
        writer.finalize()

    def loader(shuffle: bool) -> Callable[[], Any]:
        def make_loader() -> Any:
            dataset = datasets.Dataset.from_file(path).with_format("numpy")
            return (dataset.shuffle(seed=1) if shuffle else dataset).iter(SIZE)

        return make_loader

    return {"HF datasets": counting(loader(False)), "HF datasets, shuffled": counting(loader(True), some)}


def scanners(folder: Path, rows: int, some: int) -> dict[str, Contender]:
    """Return contenders of pyarrow's dataset scanner over uncompressed Parquet, with its own read-ahead."""
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    folder.mkdir()
    kind = pa.list_(pa.float32(), data.PIXELS)
    schema = pa.schema([("x", kind), ("y", pa.int64())])
    with pq.ParquetWriter(
        folder / "rows.parquet", schema, compression="none", use_dictionary=False, write_statistics=False
    ) as writer:
        for x, y in blocks(rows):
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), data.PIXELS), pa.array(y)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=10_000)

    def batches() -> Any:
        for batch in ds.dataset(str(folder / "rows.parquet")).scanner(batch_size=SIZE).to_batches():
            yield {"x": batch.column(0).flatten().to_numpy().reshape(-1, data.PIXELS), "y": batch.column(1).to_numpy()}

    return {"pyarrow scanner over Parquet": counting(batches)}


if __name__ == "__main__":
    with_litdata(*sys.argv[1:])
