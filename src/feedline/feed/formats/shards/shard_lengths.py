"""Lengths of the sequences in shards. The lengths of large shards are counted once and kept in the user's cache
folder."""

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

MIN_CACHED_BYTES = 64 << 20
"""Minimum bytes of shards whose lengths are kept."""

SUFFIX = ".feedline-lengths"
"""Suffix of files with lengths."""

_HEAD = struct.Struct("<8sIIQ")  # magic, version, crc32c of the lengths, their number
_CACHE_HINT = "set XDG_CACHE_HOME to another folder"
_MAGIC = b"FLLENGTH"
_VERSION = 1


def cached_lengths(shards: Sequence[ShardFile], content: str, count: int, count_all: Callable[[], Lengths]) -> Lengths:
    """Return the lengths of ``count`` sequences.

    Args:
        shards: files of the sequences.
        content: identity of the content and of the streams, on which the lengths depend.
        count: number of sequences.
        count_all: function that counts them.
    """
    if sum(shard.size for shard in shards) < MIN_CACHED_BYTES:
        return count_all()
    digest = hashlib.blake2b(content.encode(), digest_size=16)
    for shard in shards:
        with looking(shard.path):
            status = shard.path.stat()
        digest.update(struct.pack("<qqq", status.st_size, status.st_mtime_ns, shard.samples))

    def write(file: BinaryIO) -> None:
        table = count_all().astype("<i4", copy=False)
        file.write(_HEAD.pack(_MAGIC, _VERSION, _native.crc32c(table), len(table)) + table.tobytes())

    def is_usable(file: BinaryIO) -> bool:
        return _read(file, count) is not None

    name = f"{digest.hexdigest()}{SUFFIX}"
    for rebuild in (False, True):
        with open_cached(user_cache(), name, is_usable, write, rebuild=rebuild, elsewhere=_CACHE_HINT) as file:
            lengths = _read(file, count)
        if lengths is not None:
            return lengths
    return count_all()


def _read(file: BinaryIO, count: int) -> Lengths | None:
    """Return the lengths in a file, or None if it is damaged or has another number of lengths."""
    if os.fstat(file.fileno()).st_size != _HEAD.size + 4 * count:
        return None
    file.seek(0)
    head, data = _HEAD.unpack(file.read(_HEAD.size)), file.read(4 * count)
    if head[:2] != (_MAGIC, _VERSION) or head[2:] != (_native.crc32c(data), count):
        return None
    return np.frombuffer(data, "<i4").astype(np.int32, copy=False)
