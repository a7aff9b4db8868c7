"""How fast is CTF text turned into columns, on one thread?

Peers: memcpy of the same text bytes (the machine's own speed), and scikit-learn's `load_svmlight_file` on the same
rows. Unit: MB of text a second for memcpy, rows a second for scikit-learn. Measured: 8 MB of text in memory,
with its index, to freshly allocated columns (`parse`), and an 8 MB file to columns with a warm index
(`CTFDeserializer.read` against the whole `load_svmlight_file`). CPU time of the thread.
"""

from __future__ import annotations

import numpy as np

import feedline as fl
from benchmarks import data
from benchmarks.harness import Answer, Stage, compare, race
from feedline import _native

TARGETS = {"mnist": (1 / 20, "1/20"), "floats": (1 / 28, "1/28"), "one-hot": (1 / 28, "1/28")}
PAD = 64


def run(stage: Stage) -> list[Answer]:
    """Compare three texts with memcpy, then rows with scikit-learn."""
    from sklearn.datasets import load_svmlight_file

    size = 1 << 20 if stage.quick else 8 << 20
    beside_copy, by_rows = [], []
    for kind, (bound, shown) in TARGETS.items():
        text = data.TEXTS[kind]
        block = text.ctf(size)
        parse = parser(text, block)
        source, target = np.frombuffer(block, np.uint8), np.empty(len(block), np.uint8)

        def copy(source: np.ndarray = source, target: np.ndarray = target) -> float:
            for _ in range(16):
                np.copyto(target, source)
            return 16.0 * len(source)

        ran = race({"parse": parse, "memcpy": copy}, stage.rounds(15))
        beside_copy.append(compare(ran, "parse", "memcpy", f"CTF parse, {text.name}", "MB/s", 1e-6, bound, shown))

        path = stage.data / f"bench-parse-{kind}.ctf"
        path.write_bytes(block)
        svm = stage.data / f"bench-parse-{kind}.svm"
        svm.write_bytes(text.svmlight(block))
        corpus = fl.CTFDeserializer(path, text.streams)
        width, rows = text.streams["x"].size, block.count(b"\n")

        def read(corpus: fl.CTFDeserializer = corpus, rows: int = rows) -> float:
            for chunk in range(len(corpus.chunks())):
                corpus.read(chunk)
            return rows

        def load(svm: str = str(svm), width: int = width, rows: int = rows) -> float:
            load_svmlight_file(svm, n_features=width, dtype=np.float32)
            return rows

        ran = race({"read": read, "load_svmlight_file": load}, stage.rounds(5))
        by_rows.append(compare(ran, "read", "load_svmlight_file", f"CTF parse by rows, {text.name}", "rows/s", 1.0, 20))
    return beside_copy + by_rows


def parser(text: data.Text, block: bytes):  # type: ignore[no-untyped-def]
    """Return a contender that parses the block, which is in memory with its index."""
    indexer = _native.CtfIndexer(None)
    found = [indexer.feed(np.frombuffer(block, np.uint8)), indexer.finish()]
    entries = np.concatenate(found)
    streams = text.streams
    kernel = _native.CtfParser(
        [name.encode() for name in streams],
        [stream.size for stream in streams.values()],
        [stream.sparse for stream in streams.values()],
        [False] * len(streams),
        [0] * len(streams),
        memory_bytes=1 << 32,
    )
    buffer = data.padded(block, PAD)

    def parse() -> float:
        _, _, errors, _ = kernel.parse(buffer, PAD, entries, 0, -1)
        assert len(errors) == 0
        return len(block)

    return parse
