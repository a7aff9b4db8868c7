"""How fast are TFRecord files of Examples read into columns, without TensorFlow?

Peers: ``tf.data`` (read, batch of 256, ``parse_example``, to NumPy, nothing in parallel) where TensorFlow is installed,
else the package ``tfrecord``, record by record, else none, which the row notes. Unit: records a second. The note has MB
a second. Measured: a sweep in file order from the page cache, once indexed, checksums compared. 784 floats and a label,
512 integers of up to 2 bytes, and 20 KB of bytes with a label, all plain, and the first also in gzip. CPU time of all
threads.
"""

from __future__ import annotations

import gzip
import importlib.util
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, compare, race
from feedline.feed.formats.detect_tfrecord import masked_crc32c

BATCH = 256
BYTES, FLOATS, INTEGERS = 1, 2, 3  # kinds of features


class _Kind(NamedTuple):
    """The content of records.

    Attributes:
        what: the content in words.
        count: number of records, and in a quick run.
        streams: the streams to read.
        make: returns the features of record number k, see `record`.
    """

    what: str
    count: tuple[int, int]
    streams: dict[str, fl.Stream]
    make: Callable[[int], dict[str, tuple[int, bytes]]]


def run(stage: Stage) -> list[Answer]:
    """Read each kind, and compare with a peer if there is one."""
    rng = np.random.default_rng(1)
    label = fl.Stream((), "int64")
    kinds = (
        _Kind(
            "784 floats and a label",
            (60_000, 1_000),
            {"x": fl.Stream(784), "label": label},
            lambda k: {"x": (FLOATS, rng.random(784, np.float32).tobytes()), "label": (INTEGERS, varint(k))},
        ),
        _Kind(
            "512 tokens",
            (60_000, 1_000),
            {"tokens": fl.Stream(512, "int64")},
            lambda k: {"tokens": (INTEGERS, b"".join(map(varint, rng.integers(0, 16000, 512).tolist())))},
        ),
        _Kind(
            "20 KB of bytes and a label",
            (10_000, 500),
            {"image": fl.Stream(dtype="bytes"), "label": label},
            lambda k: {"image": (BYTES, rng.bytes(20480)), "label": (INTEGERS, varint(k))},
        ),
    )
    answers = []
    for number, kind in enumerate(kinds):
        count = stage.size(*kind.count)
        plain = stage.data / "bench.tfrecord"
        data = b"".join(record(**kind.make(k)) for k in range(count))
        plain.write_bytes(data)
        for packing in ("", "GZIP") if number == 0 else ("",):
            path = plain.with_suffix(".gz") if packing else plain
            if packing:
                path.write_bytes(gzip.compress(data, 1))
            contenders = {"feedline": _ours(path, kind.streams)}
            contenders |= _peer(path, kind.streams, packing)
            for name, contender in contenders.items():
                assert contender() == count, name
            ran = race(contenders, stage.rounds(5), "process")
            question = f"TFRecord of {kind.what}{', in gzip' if packing else ''}"
            rate = ran.rate("feedline")
            note = f"{rate * len(data) / count / 1e6:,.0f} MB of records a second"
            peers = [name for name in contenders if name != "feedline"]
            if peers:
                answers.append(compare(ran, "feedline", peers[0], question, "records/s", note=note))
            else:
                missing = "tensorflow, tfrecord: not installed"
                answers.append(Answer(question, "records/s", rate, missing, spread=ran.spread("feedline"), note=note))
            path.unlink()
        plain.unlink(missing_ok=True)
    return answers


def _ours(path: Path, streams: dict[str, fl.Stream]) -> Contender:
    def read() -> float:
        found = 0
        corpus = fl.TFRecordDeserializer(path, streams)
        with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, partition=(0, 1)) as source:
            for minibatch in source.minibatches(BATCH):
                found += len(minibatch.ids)
        return found

    return read


def _peer(path: Path, streams: dict[str, fl.Stream], packing: str) -> dict[str, Contender]:
    """Return the peer that is installed, by its name."""
    if importlib.util.find_spec("tensorflow") is not None:
        return {"tf.data": _tensorflow(path, streams, packing)}
    if importlib.util.find_spec("tfrecord") is not None:
        return {"tfrecord": _package(path, streams, packing)}
    return {}


def _tensorflow(path: Path, streams: dict[str, fl.Stream], packing: str) -> Contender:
    import tensorflow as tf  # type: ignore[import-not-found,unused-ignore]

    types = {"S": tf.string, "i": tf.int64, "f": tf.float32}
    spec = {name: tf.io.FixedLenFeature(s.shape, types[s.dtype.kind]) for name, s in streams.items()}

    def read() -> float:
        found = 0
        data = tf.data.TFRecordDataset(str(path), compression_type=packing).batch(BATCH)
        for batch in data.map(lambda messages: tf.io.parse_example(messages, spec)).as_numpy_iterator():
            found += len(next(iter(batch.values())))
        return found

    return read


def _package(path: Path, streams: dict[str, fl.Stream], packing: str) -> Contender:
    from tfrecord.reader import tfrecord_loader  # type: ignore[import-not-found,unused-ignore]

    types = {"S": "byte", "i": "int", "f": "float"}
    spec = {name: types[s.dtype.kind] for name, s in streams.items()}
    options: dict[str, Any] = {"compression_type": "gzip"} if packing else {}
    return lambda: float(sum(1 for _ in tfrecord_loader(str(path), None, spec, **options)))


# ---- writing, as TensorFlow does --------------------------------------------------------------------------


def varint(n: int) -> bytes:
    """Return a number in seven bits a byte."""
    found = bytearray()
    while n >= 0x80:
        found.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*found, n])


def record(**features: tuple[int, bytes]) -> bytes:
    """Return an Example as a record. By name of the feature: its kind, and its one value or packed values."""
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _field(kind, _field(1, values))))
        for name, (kind, values) in features.items()
    )
    message = _field(1, b"".join(entries))
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(body)) + body
