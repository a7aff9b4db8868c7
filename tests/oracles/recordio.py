"""RecordIO files written and read by plain Python, record after record, by MXNet's rules."""

from __future__ import annotations

import struct

MAGIC = struct.pack("<I", 0xCED7230A)


def packed(label, image=b"", id=0, id2=0):
    """The payload of a record: a header, its labels if there are several, and a picture."""
    if isinstance(label, (int, float)):
        return struct.pack("<IfQQ", 0, label, id, id2) + image
    return struct.pack("<IfQQ", len(label), 0, id, id2) + struct.pack(f"<{len(label)}f", *label) + image


def part(kind, data):
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def record(payload):
    """One record, in parts if the magic number stands in the payload at a multiple of 4."""
    words = range(0, len(payload) // 4 * 4, 4)
    cuts = [at for at in words if payload[at : at + 4] == MAGIC]
    begins, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(payload)]
    kinds = [0] if not cuts else [1, *[2] * (len(cuts) - 1), 3]
    return b"".join(part(kind, payload[a:b]) for kind, a, b in zip(kinds, begins, ends, strict=True))


def write(path, payloads, keys=None):
    """A file of records, and with keys an index next to it. Returns the offsets."""
    offsets, data = [], bytearray()
    for payload in payloads:
        offsets.append(len(data))
        data += record(payload)
    path.write_bytes(bytes(data))
    if keys is not None:
        lines = [f"{key}\t{offset}\n" for key, offset in zip(keys, offsets, strict=True)]
        path.with_suffix(".idx").write_text("".join(lines))
    return offsets


def payloads(data):
    """The payloads of a file, one after the other."""
    at, parts = 0, []
    while at < len(data):
        magic, word = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        assert magic == MAGIC
        kind, size = word >> 29, word & (1 << 29) - 1
        parts.append(data[at + 8 : at + 8 + size])
        at += 8 + (size + 3) // 4 * 4
        if kind in (0, 3):
            yield MAGIC.join(parts)
            parts = []


def labels_and_image(payload):
    """The labels of a record, and its picture."""
    flag, label = struct.unpack_from("<If", payload)
    if not flag:
        return [label], payload[24:]
    return list(struct.unpack_from(f"<{flag}f", payload, 24)), payload[24 + 4 * flag :]
