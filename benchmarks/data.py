"""Generated data: three kinds of CTF text, token sequences, and a large dense store. Same bytes in every run.

Files are in the stage's folder, made once per run, and shared by the questions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import feedline as fl
from benchmarks.harness import Stage

PIXELS, LABELS = 784, 10
CLASSES = 1000


class Text(NamedTuple):
    """One kind of CTF text.

    Attributes:
        name: in the tables.
        ctf: makes a block of text of about a given number of bytes. Blocks may be concatenated.
        svmlight: the same rows as svmlight text, from a block.
        streams: the streams to declare.
    """

    name: str
    ctf: Callable[[int], bytes]
    svmlight: Callable[[bytes], bytes]
    streams: dict[str, fl.Stream]


def mnist_text(size: int) -> bytes:
    """10 labels, then 784 integers with strokes of non-zeros (about 80 % zeros, in runs). 1.9 KB a line."""
    rng = np.random.default_rng(1)
    digits = [str(i).encode() for i in range(256)]
    one_hot = [b" ".join(b"1" if i == k else b"0" for i in range(LABELS)) for k in range(LABELS)]
    y, x = np.mgrid[0:28, 0:28]
    lines, length = [], 0
    while length < size:
        # A stroke: overlapping blobs along a line.
        at, to = rng.uniform(4, 24, (2, 2))
        image = np.zeros((28, 28))
        for t in np.linspace(0, 1, 7):
            cy, cx = at + (to - at) * t
            np.maximum(image, 1.35 - ((y - cy) ** 2 + (x - cx) ** 2) / 13.0, out=image)
        pixels = np.clip(image * 190 + rng.integers(-20, 20, image.shape), 0, 255) * (image > 0)
        body = b" ".join([digits[v] for v in pixels.astype(int).ravel().tolist()])
        lines.append(b"|y " + one_hot[int(rng.integers(LABELS))] + b" |x " + body + b"\n")
        length += len(lines[-1])
    return b"".join(lines)


def float_text(size: int) -> bytes:
    """1 + 100 numbers of 6 to 8 digits, a tenth of them with exponents. 1.1 KB a line."""
    rng = np.random.default_rng(2)
    lines, length = [], 0
    while length < size:
        numbers = rng.normal(size=101).tolist()
        digits = rng.integers(6, 9, 101).tolist()
        powers = (rng.random(101) < 0.1).tolist()
        words = [
            b"%.*e" % (d - 1, v * 1e-5) if p else b"%.*f" % (d - 1, v)
            for v, d, p in zip(numbers, digits, powers, strict=True)
        ]
        lines.append(b"|y " + words[0] + b" |x " + b" ".join(words[1:]) + b"\n")
        length += len(lines[-1])
    return b"".join(lines)


def one_hot_text(size: int) -> bytes:
    """``id |x class:1`` lines, 14 a sequence on average, classes by Zipf. 14.5 B a line."""
    rng = np.random.default_rng(3)
    lines: list[bytes] = []
    length, number = 0, 100000
    while length < size:
        for k in np.minimum(rng.zipf(1.2, int(rng.integers(1, 28))), CLASSES).tolist():
            lines.append(b"%d |x %d:1\n" % (number, k - 1))
            length += len(lines[-1])
        number += 1
    return b"".join(lines)


def _svm_dense(block: bytes, keep_zeros: bool) -> bytes:
    out = []
    for line in block.splitlines():
        fields = line.split(b"|x ")[1].split()
        pairs = [b"%d:%s" % (i, v) for i, v in enumerate(fields, 1) if keep_zeros or v != b"0"]
        out.append(b"1 " + b" ".join(pairs) + b"\n")
    return b"".join(out)


def _svm_one_hot(block: bytes) -> bytes:
    # One row a line: the format has no sequences.
    out = []
    for line in block.splitlines():
        index, _, value = line.partition(b"|x ")[2].partition(b":")
        out.append(b"1 %d:%s\n" % (int(index) + 1, value))
    return b"".join(out)


MNIST = Text(
    "MNIST-like ints",
    mnist_text,
    lambda block: _svm_dense(block, keep_zeros=False),
    {"x": fl.Stream(PIXELS), "y": fl.Stream(LABELS)},
)
FLOATS = Text(
    "6-8 digit floats",
    float_text,
    lambda block: _svm_dense(block, keep_zeros=True),
    {"x": fl.Stream(100), "y": fl.Stream(1)},
)
ONE_HOT = Text("one-hot sequences", one_hot_text, _svm_one_hot, {"x": fl.Stream(CLASSES, sparse=True)})
TEXTS = {"mnist": MNIST, "floats": FLOATS, "one-hot": ONE_HOT}


def padded(block: bytes, pad: int = 64) -> NDArray[np.uint8]:
    """Return the block with padding on both sides, as the parser requires. The text starts at ``pad``."""
    buffer = np.zeros(len(block) + 2 * pad, np.uint8)
    buffer[pad : pad + len(block)] = np.frombuffer(block, np.uint8)
    return buffer


def ctf_file(stage: Stage, kind: str, size: int) -> Path:
    """A CTF file of about ``size`` bytes: one block of text, repeated."""
    path = stage.data / f"bench-{kind}-{size}.ctf"
    if not path.exists():
        block = TEXTS[kind].ctf(min(size, 32 << 20))
        with open(path, "wb") as file:
            for _ in range(max(1, round(size / len(block)))):
                file.write(block)
    return path


def dense_rows(stage: Stage) -> int:
    """Rows of `dense_store`: 4.1 GB of them in a full run."""
    return stage.size(1_300_000, 20_000)


def dense_store(stage: Stage) -> Path:
    """A store of random rows: x float32 (784,), y int64 (); one Arrow file, chunks of 32 MiB."""
    rows = dense_rows(stage)
    path = stage.data / f"bench-dense-{rows}.store"
    if not path.exists():
        schema = fl.Schema({"x": fl.Stream(PIXELS), "y": fl.Stream((), "int64")})
        rng = np.random.default_rng(4)
        with fl.StoreWriter(path, schema, part_bytes=1 << 40) as store:
            for start in range(0, rows, 10_000):
                n = min(10_000, rows - start)
                x = rng.random((n, PIXELS), np.float32)
                y = rng.integers(0, LABELS, n)
                store.write({"x": fl.Value.from_dense(x), "y": fl.Value.from_dense(y)})
    return path


def overlay(store: Path, rows: int) -> NDArray[np.float32]:
    """The store's bytes mapped as one (rows, 784) array, for peers that want a single array.

    Its rows lie in the same pages of the same file as the store's, a few bytes off: a gather costs the same, but
    delivers other bytes, as record batches have headers and labels in between.
    """
    (file,) = sorted(store.glob("*.arrow"), key=os.path.getsize)[-1:]
    flat: NDArray[np.float32] = np.memmap(file, np.float32, mode="r", offset=4096, shape=(rows * PIXELS,))
    return np.asarray(flat).reshape(rows, PIXELS)


class Tokens(NamedTuple):
    """Token sequences: int32 tokens, and int64 offsets (n + 1,)."""

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]


def tokens(stage: Stage) -> Tokens:
    """Lengths lognormal with mean 60, at most 1024. 500,000 sequences, 120 MB."""
    rng = np.random.default_rng(5)
    n = stage.size(500_000, 20_000)
    lengths = np.clip(np.exp(rng.normal(3.79, 0.785, n)), 1, 1024).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(rng.integers(0, 50_000, offsets[-1], np.int32), offsets)
