"""How fast are CNTK's binary format and HTK features with neighbours?

Peers: CNTK 2.7's own reader, whose figure was measured once (0.30 M samples a second of processor time in the first
sweep over CBF of 784 floats, 133 MB, on one of two shared cores), and memcpy of the rows of features, as often as a
frame occurs in them. Unit: samples a second, and MB of rows a second. Measured: opening a file of CNTK's own layout
(one chunk of 32 MB, then a chunk a sequence) and one shuffled sweep in minibatches of 256; `read` of a chunk of
big-endian features with a context of 11 frames, from the page cache to freshly allocated rows. CPU time.
"""

from __future__ import annotations

import struct

import numpy as np

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race
from feedline.feed.formats.cntk.cbf_write import CbfField, CbfWriter

CNTK = 0.3e6
DIM, NEIGHBOURS, VALUES = 784, 5, 33


def run(stage: Stage) -> list[Answer]:
    """Compare CBF with CNTK's figure and HTK with memcpy."""
    return [binary(stage), speech(stage)]


def binary(stage: Stage) -> Answer:
    """The first sweep over a file as ctf2bin writes it."""
    count, path = (2_000 if stage.quick else 42_000), stage.data / "bench.cbf"
    rows = np.random.default_rng(1).random((count, DIM), np.float32)
    first = min(count // 2, (32 << 20) // (4 * DIM))
    with open(path, "wb") as file:
        writer = CbfWriter(file, [CbfField("x", False, np.dtype(np.float32), DIM)])
        writer.chunk([[fl.Value.from_dense(rows[:first])]])
        for i in range(first, count):
            writer.chunk([[fl.Value.from_dense(rows[i : i + 1])]])
        writer.finish()

    def sweep() -> float:
        source = fl.MinibatchSource(fl.CBFDeserializer(path), max_sweeps=1)
        found = sum(len(minibatch["x"].rows) for minibatch in source.minibatches(256))
        source.close()
        return found

    out = np.empty_like(rows)

    def copy() -> float:
        np.copyto(out, rows)
        return count

    ran = race({"feedline": sweep, "memcpy": copy}, stage.rounds(7), "process")
    ours = ran.rate("feedline")
    return Answer(
        question=f"CBF, {DIM} floats, first sweep",
        unit="samples/s",
        ours=ours,
        peer="CNTK 2.7 (measured once)",
        peer_value=CNTK,
        ratio=ours / CNTK,
        target=Target("ratio", ">=", 5, ""),
        spread=ran.spread("feedline"),
        note=f"opening included; {ran.ratio('feedline', 'memcpy'):.2f} of memcpy of the rows",
        detail={"memcpy": ran.rate("memcpy")},
    )


def speech(stage: Stage) -> Answer:
    """A chunk of features, each frame with five neighbours on both sides."""
    frames, each = (9_000 if stage.quick else 90_000), 450
    archive, scp = stage.data / "bench.chunk", stage.data / "bench.scp"
    values = np.random.default_rng(1).random((frames, VALUES), np.float32)
    archive.write_bytes(struct.pack(">iihh", frames, 100_000, 4 * VALUES, 9) + values.astype(">f4").tobytes())
    lines = [f"u{i}.mfc={archive}[{at},{at + each - 1}]\n" for i, at in enumerate(range(0, frames, each))]
    scp.write_text("".join(lines))
    corpus = fl.HTKFeatureDeserializer(scp, context=(NEIGHBOURS, NEIGHBOURS))
    expanded = corpus.read(0)["features"].rows.copy()

    def read() -> float:
        return corpus.read(0)["features"].rows.nbytes

    def copy() -> float:
        return expanded.copy().nbytes

    ran = race({"read": read, "memcpy": copy}, stage.rounds(9), "process")
    return compare(ran, "read", "memcpy", "HTK with a context of 11", "MB/s", 1e-6, 0.5)
