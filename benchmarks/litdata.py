"""How fast is a folder of LitData delivered in place, compared with LitData's own loader?

Peers: ``StreamingDataset`` in this process, local, shuffled, sample by sample, bytes copied out of its map, as any use
of them reads them, and its ``StreamingDataLoader`` without workers, but for bytes, which it collates one by one. Unit:
samples a second of processor time, all threads counted. Measured: chunks of 64 MiB as they are and compressed by
Zstandard in runs of 256 samples, LitData's default, in the page cache; samples of 784 floats and a label, of 20 KB of
bytes and a label, and rows of text in Arrow's format. Shuffled, in minibatches of 256 or 64. The compressed
bytes are random, and are unpacked as fast as copied.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage
from benchmarks.mds import compared, feeding, shard_of

CHUNK_BYTES = 64 << 20
RUN = 256


def run(stage: Stage) -> list[Answer]:
    """Measure items, as they are and compressed, and rows."""
    rng = np.random.default_rng(1)
    rows, pictures, texts = stage.size(40_000, 2_000), stage.size(8_000, 500), stage.size(100_000, 2_000)
    floats = {"x": "no_header_numpy:9", "label": "int"}
    encoded = {"jpeg": "bytes", "label": "int"}
    text = {"text": "str", "label": "int"}
    kinds: tuple[tuple[str, dict[str, str], str | None, int, int, Callable[[int], bytes]], ...] = (
        ("784 floats and a label", floats, None, 256, rows, lambda k: rng.bytes(3136)),
        ("784 floats and a label, zstd", floats, "zstd", 256, rows, lambda k: rng.bytes(3136)),
        ("20 KB of bytes and a label", encoded, None, 64, pictures, lambda k: rng.bytes(20480)),
        ("20 KB of bytes and a label, zstd", encoded, "zstd", 64, pictures, lambda k: rng.bytes(20480)),
        ("rows of 200 letters and a label", text, None, 256, texts, lambda k: b"%08d" % k * 25),
    )
    answers = []
    for what, formats, codec, size, count, sample in kinds:
        folder = stage.data / "bench-litdata"
        shutil.rmtree(folder, ignore_errors=True)
        write(folder, formats, ((sample(k), k) for k in range(count)), codec)
        peers: dict[str, Contender] = {}
        if importlib.util.find_spec("litdata") is not None:
            peers = {"LitData, sample by sample": dataset(folder)}
            if "jpeg" not in formats:
                peers["LitData's DataLoader"] = loader(folder, size)
        for peer in peers or [""]:
            contenders = {"feedline": feeding(folder, size, fl.LitDataDeserializer)}
            contenders |= {peer: peers[peer]} if peers else {}
            answers.append(compared(stage, f"LitData in place, {what}, shuffled", contenders, peer))
        shutil.rmtree(folder)
    return answers


def write(folder: Path, formats: dict[str, str], samples: Iterable[tuple[bytes, int]], codec: str | None) -> None:
    """Write samples of bytes and a label as LitData's ``optimize`` does."""
    folder.mkdir(parents=True)
    chunks: list[dict[str, Any]] = []
    held: list[tuple[bytes, int]] = []

    def flush() -> None:
        if "str" in formats.values():
            content = rows_of(formats, held)
        else:
            items = [struct.pack("<II", len(one), 8) + one + struct.pack("<q", label) for one, label in held]
            content = shard_of(items) if codec is None else runs_of(items, codec)
        name = f"chunk-0-{len(chunks)}.bin"
        (folder / name).write_bytes(content)
        chunks.append({"chunk_bytes": len(content), "chunk_size": len(held), "dim": None, "filename": name})
        held.clear()

    for sample in samples:
        held.append(sample)
        if len(held) * len(sample[0]) >= CHUNK_BYTES:
            flush()
    if held:
        flush()
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": json.dumps(list(formats)), "children_spec": [leaf, leaf]}
    config = {"compression": codec, "compression_level": codec and "batch", "compression_batch_size": codec and RUN}
    config |= {"chunk_bytes": CHUNK_BYTES, "chunk_size": None, "encryption": None, "item_loader": "PyTreeLoader"}
    config |= {"data_format": list(formats.values()), "data_spec": json.dumps([1, tree])}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))


def rows_of(formats: dict[str, str], samples: list[tuple[bytes, int]]) -> bytes:
    """Return a chunk of rows: a table of offsets that are all the same, and an Arrow file."""
    texts, labels = zip(*samples, strict=True)
    table = pa.table(dict(zip(formats, (pa.array(texts, pa.string()), pa.array(labels)), strict=True)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table, max_chunksize=RUN)
    rows = sink.getvalue().to_pybytes()
    return shard_of([b""] * len(samples)) + rows + struct.pack("<I8s", len(rows), b"LDARW01\0")


def runs_of(items: list[bytes], codec: str) -> bytes:
    """Return a chunk of items that are compressed in runs."""
    ends = np.cumsum([0, *map(len, items)]).astype("<u4")
    runs = [b"".join(items[k : k + RUN]) for k in range(0, len(items), RUN)]
    at, table, packed = 24 + 4 * len(ends) + 24 * len(runs), [], []
    for k, run_of_items in enumerate(runs):
        packed.append(pa.compress(run_of_items, codec, asbytes=True))
        count = min(RUN, len(items) - RUN * k)
        table.append(struct.pack("<IIQII", RUN * k, count, at, len(packed[-1]), len(run_of_items)))
        at += len(packed[-1])
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(items), RUN, len(runs))
    return head + ends.tobytes() + b"".join(table) + b"".join(packed)


def dataset(folder: Path) -> Contender:
    """Return a contender: a sweep of LitData, sample by sample."""
    from litdata import StreamingDataset  # type: ignore[import-not-found,unused-ignore]

    samples = StreamingDataset(str(folder), shuffle=True)

    def read() -> float:
        count = 0
        for sample in samples:
            if "jpeg" in sample:
                bytes(sample["jpeg"])
            count += 1
        return count

    return read


def loader(folder: Path, size: int) -> Contender:
    """Return a contender: a sweep of LitData's loader, in minibatches."""
    from litdata import StreamingDataLoader, StreamingDataset

    batches = StreamingDataLoader(StreamingDataset(str(folder), shuffle=True), batch_size=size, num_workers=0)
    return lambda: float(sum(len(batch["label"]) for batch in batches))
