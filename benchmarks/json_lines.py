"""How fast are JSON Lines, as text and in Zstandard?

Peers: pyarrow's JSON reader with one thread, told the schema. For Zstandard, unpacking all of it and then reading the
plain file. Unit: MB of text a second. Measured: reading all chunks of 100 numbers a row into columns, from the page
cache, once indexed. The peer of the first parses the same text from memory. CPU time.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.json

import feedline as fl
from benchmarks.harness import Answer, Stage, compare, race

DIM = 100
FRAME = 4 << 20


def run(stage: Stage) -> list[Answer]:
    """Compare text with pyarrow, and Zstandard with unpacking and parsing."""
    rows = 2_000 if stage.quick else 60_000
    plain, packed = stage.data / "bench.jsonl", stage.data / "bench.jsonl.zst"
    numbers = np.random.default_rng(1).standard_normal((rows, DIM)).round(6)
    text = "".join(json.dumps({"x": row}) + "\n" for row in numbers.tolist()).encode()
    plain.write_bytes(text)
    frames = [pa.compress(text[i : i + FRAME], codec="zstd", asbytes=True) for i in range(0, len(text), FRAME)]
    packed.write_bytes(b"".join(frames))
    ours, unpacking = (fl.JSONLinesDeserializer(path, x=fl.Stream(DIM, "float64")) for path in (plain, packed))
    schema = pa.schema({"x": pa.list_(pa.float64())})
    options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    blocks = pyarrow.json.ReadOptions(use_threads=False, block_size=16 << 20)

    def read(corpus: fl.Deserializer) -> float:
        for i in range(len(corpus.chunks())):
            corpus.read(i)
        return len(text)

    def arrow() -> float:
        pyarrow.json.read_json(pa.py_buffer(text), read_options=blocks, parse_options=options)
        return len(text)

    def in_sequence() -> float:
        codec = pa.Codec("zstd")
        for i, frame in enumerate(frames):
            codec.decompress(frame, decompressed_size=min(FRAME, len(text) - i * FRAME))
        return read(ours)

    question = f"JSON Lines of {DIM} numbers"
    ran = race({"feedline": lambda: read(ours), "pyarrow": arrow}, stage.rounds(7), "process")
    found = [compare(ran, "feedline", "pyarrow", question, "MB/s", 1e-6, 0.8)]
    ran = race({"feedline": lambda: read(unpacking), "in sequence": in_sequence}, stage.rounds(7), "process")
    found.append(compare(ran, "feedline", "in sequence", f"{question}, in Zstandard", "MB/s", 1e-6, 0.8))
    for corpus in (ours, unpacking):
        corpus.close()
    return found
