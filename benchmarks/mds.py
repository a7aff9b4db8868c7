"""How fast is a folder of MDS shards delivered in place, compared with MosaicML Streaming's own loader?

Peer: ``StreamingDataset`` in this process, local, shuffled by ``py1e``, sample by sample. Unit: samples a second of
processor time, all threads counted. Measured: shards as they are and compressed by Zstandard, in the page cache, with
samples of 784 floats and a label, and of 20 KB of bytes. Shuffled, in minibatches of 256 or 64. The peer unpacks shards
once, next to the compressed ones, untimed, feedline every time they are read.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, Target, race, spread

SHARD_BYTES = 64 << 20


def run(stage: Stage) -> list[Answer]:
    """Measure both kinds of samples, as they are and compressed."""
    answers = []
    rng = np.random.default_rng(1)
    rows, pictures = stage.size(100_000, 2_000), stage.size(20_000, 500)
    floats = {"label": "int", "x": "ndarray:float32:784"}
    encoded = {"jpeg": "bytes", "label": "int"}
    kinds = (
        ("784 floats and a label", floats, 256, rows, lambda k: (k.to_bytes(8, "little"), b"", rng.bytes(3136))),
        ("20 KB of bytes and a label", encoded, 64, pictures, lambda k: (b"\0P\0\0", rng.bytes(20480), bytes(8))),
    )
    for what, columns, size, count, sample in kinds:
        for codec in (None, "zstd"):
            folder = stage.data / "bench-mds"
            shutil.rmtree(folder, ignore_errors=True)
            write(folder, columns, (b"".join(sample(k)) for k in range(count)), codec)
            contenders = {"feedline": feeding(folder, size)}
            if importlib.util.find_spec("streaming") is not None:
                contenders["MosaicML Streaming"] = streaming(folder, stage.data / "bench-mds-copy")
            question = f"MDS in place, {what}, shuffled{f', {codec}' if codec else ''}"
            answers.append(compared(stage, question, contenders, "MosaicML Streaming"))
            shutil.rmtree(folder)
            shutil.rmtree(stage.data / "bench-mds-copy", ignore_errors=True)
    return answers


def compared(stage: Stage, question: str, contenders: dict[str, Contender], peer: str) -> Answer:
    """Race feedline against the peer, if there is one. Each has a turn before that is not timed."""
    for contender in contenders.values():
        contender()
    ran = race(contenders, stage.rounds(5), "process")
    ours, theirs = ran.rates("feedline"), ran.rates(peer) if peer in contenders else None
    return Answer(
        question=question,
        unit="samples/s",
        ours=statistics.median(ours),
        peer=peer if theirs else "",
        peer_value=statistics.median(theirs) if theirs else None,
        ratio=statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) if theirs else None,
        target=Target("ratio", ">=", 5) if theirs else None,
        spread=spread(ours),
    )


def shard_of(samples: Sequence[bytes], config: bytes = b"") -> bytes:
    """Return a shard: its number of samples, their offsets, and them."""
    ends = np.cumsum([4 + 4 * (len(samples) + 1) + len(config), *map(len, samples)]).astype("<u4")
    return len(samples).to_bytes(4, "little") + ends.tobytes() + config + b"".join(samples)


def write(folder: Path, columns: dict[str, str], samples: Iterator[bytes], codec: str | None) -> None:
    """Write encoded samples as ``MDSWriter`` does, in shards of 64 MiB."""
    folder.mkdir(parents=True)
    shards: list[dict[str, object]] = []
    held: list[bytes] = []
    fixed = {"int": 8, "ndarray:float32:784": 3136}
    about = {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [fixed.get(encoding) for encoding in columns.values()],
        "compression": codec,
        "format": "mds",
        "hashes": [],
        "size_limit": SHARD_BYTES,
        "version": 2,
    }

    def flush() -> None:
        config = json.dumps(about, sort_keys=True).encode()
        raw = shard_of(held, config)
        name = f"shard.{len(shards):05d}.mds"
        data = {"raw_data": {"basename": name, "bytes": len(raw), "hashes": {}}, "zip_data": None}
        if codec is not None:
            raw = pa.compress(raw, codec, asbytes=True)
            name += f".{codec}"
            data["zip_data"] = {"basename": name, "bytes": len(raw), "hashes": {}}
        (folder / name).write_bytes(raw)
        shards.append({**about, **data, "samples": len(held)})
        held.clear()

    for sample in samples:
        held.append(sample)
        if len(held) * len(sample) >= SHARD_BYTES:
            flush()
    if held:
        flush()
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def feeding(folder: Path, size: int, opened: Callable[[Path], fl.Deserializer] = fl.MDSDeserializer) -> Contender:
    """Return a contender: a sweep from a fresh source."""

    def feed() -> float:
        found = 0
        corpus = opened(folder)
        with fl.MinibatchSource(corpus, seed=1, partition=(0, 1), max_sweeps=1) as source:
            for minibatch in source.minibatches(size):
                found += len(minibatch["label"].rows)
        return found

    return feed


def streaming(folder: Path, copy: Path) -> Contender:
    """Return a contender: a sweep of MosaicML Streaming, which unpacks shards into the copy the first time."""
    import streaming as mosaic  # type: ignore[import-not-found,unused-ignore]

    shutil.copytree(folder, copy)
    dataset = mosaic.StreamingDataset(local=str(copy), shuffle=True, batch_size=1)

    def feed() -> float:
        return float(sum(1 for _ in dataset))

    return feed
