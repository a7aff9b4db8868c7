"""Recognise TFRecord files, compressed or not, by the checksum of the length of their first record."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from feedline import _native
from feedline.feed.files.compressed_text import packing_of, text_of
from feedline.feed.files.paths import read_at

RECORD_HEAD = 12
"""Bytes of a record before its message: the length and its checksum."""

_MASK = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Return the checksum of TFRecord files: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = _native.crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def begins_record(head: bytes) -> bool:
    """Return whether bytes begin with a record's head."""
    return len(head) >= RECORD_HEAD and masked_crc32c(head[:8]) == int.from_bytes(head[8:RECORD_HEAD], "little")


def packing_of_records(file: BinaryIO) -> str | None:
    """Return the compression of a file of records, see `packing_of`, or None if it begins with a record."""
    head = read_at(file, RECORD_HEAD, 0)
    return None if begins_record(head) else packing_of(head, zlib=True)


def is_tfrecord(path: Path, head: bytes) -> bool:
    """Return whether a file that begins with ``head`` has records, compressed by zlib or not.

    An empty file with ``.tfrecord`` in its name counts, too, as writers of shards leave such files.
    """
    if begins_record(head) or (not head and ".tfrecord" in path.name):
        return True
    return packing_of(head, zlib=True) == "zlib" and begins_record(text_of(head, "zlib", RECORD_HEAD))
