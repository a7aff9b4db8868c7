"""Lengths of the sequences in shards, counted once. Lengths of large shards are kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.files.cache_files import open_cached, user_cache
from feedline.feed.files.paths import looking
from feedline.feed.formats.shards.index_json import ShardFile

Lengths = NDArray[np.int32]

WORTH_BYTES = 64 << 20
"""Bytes of shards above which their lengths are kept."""

SUFFIX = ".feedline-lengths"
"""Suffix of files of lengths."""

_HEAD = struct.Struct("<8sIIQ")  # magic, version, crc32c of the lengths, their number
_ELSEWHERE = "set XDG_CACHE_HOME to another folder"
_MAGIC = b"FLLENGTH"
_VERSION = 1


def kept_lengths(shards: Sequence[ShardFile], about: str, count: int, counted: Callable[[], Lengths]) -> Lengths:
    """Return the lengths of ``count`` sequences.

    Args:
        shards: files of the sequences.
        about: further dependencies of the lengths: the known content of the files, and the streams.
        count: number of sequences.
        counted: function that counts.
    """
    if sum(shard.size for shard in shards) < WORTH_BYTES:
        return counted()
    identity = hashlib.blake2b(about.encode(), digest_size=16)
    for shard in shards:
        with looking(shard.path):
            status = shard.path.stat()
        identity.update(struct.pack("<qqq", status.st_size, status.st_mtime_ns, shard.samples))

    def write(file: BinaryIO) -> None:
        table = counted().astype("<i4", copy=False)
        file.write(_HEAD.pack(_MAGIC, _VERSION, _native.crc32c(table), len(table)) + table.tobytes())

    def usable(file: BinaryIO) -> bool:
        return _read(file, count) is not None

    name = f"{identity.hexdigest()}{SUFFIX}"
    for rebuild in (False, True):
        with open_cached(user_cache(), name, usable, write, rebuild=rebuild, elsewhere=_ELSEWHERE) as file:
            lengths = _read(file, count)
        if lengths is not None:
            return lengths
    return counted()


def _read(file: BinaryIO, count: int) -> Lengths | None:
    """Return the lengths in a file; None: it is damaged, or has other lengths."""
    if os.fstat(file.fileno()).st_size != _HEAD.size + 4 * count:
        return None
    file.seek(0)
    head, data = _HEAD.unpack(file.read(_HEAD.size)), file.read(4 * count)
    if head[:2] != (_MAGIC, _VERSION) or head[2:] != (_native.crc32c(data), count):
        return None
    return np.frombuffer(data, "<i4").astype(np.int32, copy=False)
