"""CNTK's binary format and HTK's files, written byte by byte from their layouts: slow and obvious."""

from __future__ import annotations

import struct

import numpy as np

MAGIC = 0x636E746B5F62696E


def cbf(streams, chunks):
    """Return the bytes of a CBF file.

    Args:
        streams: (name, sparse, "f" or "d", dim) each.
        chunks: lists of sequences. A sequence has for each stream a list of samples: lists of numbers, or of
            (index, number) pairs.
    """
    out, table = struct.pack("<QI", MAGIC, 1), []
    for chunk in chunks:
        lengths = [max(map(len, sequence)) for sequence in chunk]
        table.append(struct.pack("<qII", len(out), len(chunk), sum(lengths)))
        out += struct.pack(f"<{len(lengths)}I", *lengths)
        for s, (_, sparse, code, _) in enumerate(streams):
            for sequence in chunk:
                samples = sequence[s]
                out += struct.pack("<I", len(samples))
                if not sparse:
                    out += b"".join(struct.pack(f"<{len(sample)}{code}", *sample) for sample in samples)
                    continue
                pairs = [pair for sample in samples for pair in sorted(sample, key=lambda pair: pair[0])]
                out += struct.pack("<i", len(pairs))
                out += struct.pack(f"<{len(pairs)}{code}", *(number for _, number in pairs))
                out += struct.pack(f"<{len(pairs)}i", *(index for index, _ in pairs))
                out += struct.pack(f"<{len(samples)}i", *map(len, samples))
    header_at = len(out)
    out += struct.pack("<QII", MAGIC, len(chunks), len(streams))
    for name, sparse, code, dim in streams:
        out += struct.pack("<BI", sparse, len(name)) + name.encode() + struct.pack("<BI", code == "d", dim)
    return out + b"".join(table) + struct.pack("<q", header_at)


def htk(frames, kind=9, order=">", period=100_000, compressed=None):
    """Return the bytes of a feature file. With ``compressed``, a pair (A, B), ``frames`` are int16."""
    frames = np.asarray(frames)
    count = len(frames)
    if compressed is None:
        body, size = frames.astype(order + "f4").tobytes(), 4 * frames.shape[1]
    else:
        tables = b"".join(np.asarray(table, order + "f4").tobytes() for table in compressed)
        body, size, count, kind = (
            tables + frames.astype(order + "i2").tobytes(),
            2 * frames.shape[1],
            count + 4,
            kind | 0o2000,
        )
    guid = b"G" * 16 if kind == 12 else b""
    return struct.pack(order + "iihh", count, period, size, kind) + guid + body


def windows(frames, left, right):
    """Return each frame with its neighbours. Beyond the ends the first or last frame is repeated."""
    n = len(frames)
    at = [[min(max(t + k, 0), n - 1) for k in range(-left, right + 1)] for t in range(n)]
    return np.asarray(frames)[np.array(at)].reshape(n, -1)


def mlf(utterances):
    """Return the text of labels, given by name as lists of (frames, word). Times are in units of 100 ns."""
    lines = ["#!MLF!#"]
    for name, runs in utterances.items():
        lines.append(f'"*/{name}.lab"')
        at = 0
        for frames, word in runs:
            lines.append(f"{at * 100_000} {(at + frames) * 100_000} {word} -1.5")
            at += frames
        lines.append(".")
    return "\n".join(lines) + "\n"
