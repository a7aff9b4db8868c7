"""How fast are CTF text and Parquet files that are not in memory, compared with the slower of disk and parser?

Limit: the slower of bare reads of the same file, at the best of several depths and sizes, and our own feed of it from
the page cache. Peer: pyarrow's dataset scanner over the same Parquet file, in order. Unit: MB of file a
second of wall time. Measured: dense and sparse text, and Parquet with and without compression; a shuffled sweep in
windows of 64 MiB and minibatches of 256 samples, with the index of the text made before. Evicted before each turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
from benchmarks import data
from benchmarks.cold import SIZE, blocks, cpu
from benchmarks.disk import bare_sequential, best, compile_bare, evict, fill
from benchmarks.harness import Answer, Contender, Stage, Target, race, spread

WINDOW = fl.Window(bytes=64 << 20)
SCANNER = "pyarrow scanner"
Open = Callable[[], fl.Deserializer]


def run(stage: Stage) -> list[Answer]:
    """Measure text, then Parquet."""
    bare = compile_bare(stage.data)
    answers = []
    for kind in ("mnist", "floats", "one-hot"):
        text = data.TEXTS[kind]
        path = data.ctf_file(stage, kind, stage.size(384 << 20, 4 << 20))

        def open_text(path: Path = path, text: data.Text = text) -> fl.Deserializer:
            return fl.CTFDeserializer(path, text.streams)

        answers += evicted(stage, f"CTF, {text.name}", path, open_text, bare)
    for compression in ("none", "zstd"):
        path = parquet_file(stage, stage.size(150_000, 10_000), compression)

        def open_parquet(path: Path = path) -> fl.Deserializer:
            return fl.ParquetDeserializer(path)

        answers += evicted(
            stage, f"Parquet, compression {compression}", path, open_parquet, bare, {SCANNER: scan(path)}
        )
    return answers


def evicted(
    stage: Stage, what: str, path: Path, opens: Open, bare: Any, peers: dict[str, Contender] | None = None
) -> list[Answer]:
    """Compare with the slower of disk and parser, and with peers, then remove the file."""
    nbytes = path.stat().st_size
    feed = feeding(opens, nbytes)
    feed()  # untimed: make the index
    contenders = {"feedline": feed, **(peers or {}), **bare_sequential(bare, [str(path)], unit=1)}
    ran = race(contenders, stage.rounds(3), "process", 0, before=lambda _: evict(path))
    fill(path)
    warm = race({"feedline": feed, **(peers or {})}, stage.rounds(3), "process")
    for made in (path, *path.parent.glob(f"{path.name}.*.feedline-index")):
        made.unlink()
    ours, parsing = ran.rates("feedline", "wall"), warm.rates("feedline", "wall")
    parse = statistics.median(parsing)
    found = best(ran, "sequential")
    limits = [min(parse, rate) for rate in found[1]] if found else [parse] * len(ours)
    disk = f"{statistics.median(found[1]) / 1e6:,.0f} MB/s ({found[0]})" if found else "not measured, no C compiler"
    answers = [
        Answer(
            question=f"{what}, evicted, in windows of 64 MiB",
            unit="MB/s",
            ours=statistics.median(ours) / 1e6,
            peer="the slower of disk and page cache",
            peer_value=statistics.median(limits) / 1e6,
            ratio=statistics.median(a / b for a, b in zip(ours, limits, strict=True)),
            target=Target("ratio", ">=", 0.9),
            spread=spread(ours),
            note=f"{nbytes / 1e6:,.0f} MB; out of the page cache {parse / 1e6:,.0f} MB/s; bare reads {disk}; "
            f"{cpu(ran, 'feedline') * 1e3:.2f} ns of processor time a byte",
            detail={"rates": ours, "warm": parsing, "limits": limits},
        )
    ]
    for where, seen in (("evicted", ran), ("in the page cache", warm)):
        for peer in peers or {}:
            ratios = [a / b for a, b in zip(seen.rates("feedline", "wall"), seen.rates(peer, "wall"), strict=True)]
            answers.append(
                Answer(
                    question=f"{what}, {where}, in windows of 64 MiB",
                    unit="MB/s",
                    ours=seen.rate("feedline", "wall") / 1e6,
                    peer=f"{peer}, in order",
                    peer_value=seen.rate(peer, "wall") / 1e6,
                    ratio=statistics.median(ratios),
                    spread=spread(seen.rates("feedline", "wall")),
                )
            )
    return answers


def feeding(opens: Open, nbytes: int) -> Contender:
    """Return a contender: a sweep from a fresh source, in bytes of the file."""

    def feed() -> float:
        with fl.MinibatchSource(opens(), shuffle=WINDOW, partition=(0, 1), max_sweeps=1) as source:
            for _ in source.minibatches(SIZE):
                pass
        return nbytes

    return feed


def parquet_file(stage: Stage, rows: int, compression: str) -> Path:
    """Write rows of `cold.blocks` in row groups of 31 MB. Half of each row is zeros, so that it compresses."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = stage.data / f"bench-cold-{rows}-{compression}.parquet"
    kind = pa.list_(pa.float32(), data.PIXELS)
    schema = pa.schema([("x", kind), ("y", pa.int64())])
    with pq.ParquetWriter(
        path, schema, compression=compression, use_dictionary=False, write_statistics=False
    ) as writer:
        for x, y in blocks(rows):
            x[:, data.PIXELS // 2 :] = 0
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), data.PIXELS), pa.array(y)]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=10_000)
    return path


def scan(path: Path) -> Contender:
    """Return a contender: pyarrow's dataset scanner, which reads ahead on its own threads."""
    import pyarrow.dataset as ds

    def feed() -> float:
        for batch in ds.dataset(str(path)).scanner(batch_size=SIZE).to_batches():
            batch.column(0).flatten().to_numpy()[::512].sum()
        return path.stat().st_size

    return feed
