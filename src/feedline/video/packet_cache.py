"""The packet indexes of files, each built once and kept in the user's cache folder.

An index is used only for the file of which it was made: the name of its file is a hash of path, size, times of the last
changes and inode, or of the address, size and ETag of an object. A damaged index is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from feedline.errors import DataError
from feedline.feed.files.cache_files import open_cached, user_cache
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import looking
from feedline.feed.files.remote import RemoteObject, object_at
from feedline.video.packet_index import DamagedPacketsError, PacketIndex, from_bytes
from feedline.video.packets import list_packets

SUFFIX = ".feedline-packets"
"""Suffix of the files of packet indexes."""

_FOLDER = "video"  # in the cache folder of the user
_CACHE_HINT = "set XDG_CACHE_HOME to another folder"
_MEMORY_BYTES = 64 << 20  # of indexes in memory


class FileVersion(NamedTuple):
    """A file as it is now.

    Attributes:
        path: path of the file, or of the placeholder of an object.
        identity: 16 bytes that change with the file.
        remote: the object in a store, or None for a local file. Another corpus of the same object has another one.
    """

    path: str
    identity: bytes
    remote: RemoteObject | None


def version_of(path: str) -> FileVersion:
    """Return the present version of a file.

    Raises:
        DataError: there is no such file, or it is not a regular one.
    """
    remote_object = object_at(path)
    about: list[str | int]
    if remote_object is not None:
        about = [remote_object.url, remote_object.size, remote_object.modified_ns, remote_object.etag]
    else:
        with looking(path):
            status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise DataError("expected a regular file", path=path)
        about = [os.path.abspath(path), status.st_size, status.st_mtime_ns]
        about += [status.st_ctime_ns, status.st_ino, status.st_dev]
    identity = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).digest()
    return FileVersion(path, identity, remote_object)


def packets_of(version: FileVersion) -> PacketIndex:
    """Return the packet index of a file.

    Raises:
        DataError: the file cannot be read, or is no video, or the index cannot be written.
        ModuleNotFoundError: PyAV is not installed.
    """
    return _indexes.get((version.path, version.identity))


def _load(key: tuple[str, bytes]) -> PacketIndex:
    path, identity = key

    def write(file: BinaryIO) -> None:
        file.write(list_packets(path).to_bytes(identity))

    def is_usable(file: BinaryIO) -> bool:
        return _read(file, identity) is not None

    name = f"{identity.hex()}{SUFFIX}"
    folder: Path = user_cache() / _FOLDER
    for rebuild in (False, True):
        with open_cached(folder, name, is_usable, write, rebuild=rebuild, elsewhere=_CACHE_HINT) as file:
            index = _read(file, identity)
        if index is not None:
            return index
    return list_packets(path)


def _read(file: BinaryIO, identity: bytes) -> PacketIndex | None:
    file.seek(0)
    try:
        return from_bytes(file.read(), identity)
    except DamagedPacketsError:
        return None


# Without the objects in stores, which would live on after their corpora.
_indexes: LruCache[tuple[str, bytes], PacketIndex] = LruCache(_load, lambda index: index.nbytes, _MEMORY_BYTES)
