"""The content of a test object store: objects in memory, or the files of a folder.

Both have the same few methods. Keys are text, and a listing is in the order of their UTF-8 bytes. An `Opened` object
is unchanged when another one takes its place. In memory the ETag is the MD5 of the content, as in S3. In a folder,
where a bucket is a folder and a key a path in it, it is made of time, size and inode of the file, so that opening reads
nothing. Replacing an object always changes the ETag of a file. In memory it changes with the bytes.

A listing of a folder walks the whole bucket for each page.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol


class Missing(Exception):
    """There is no such bucket or key: ``NoSuchBucket`` or ``NoSuchKey``."""


class Refused(Exception):
    """The key cannot be a file's path."""


@dataclass(frozen=True)
class Facts:
    """Size in bytes, ETag with its quotes, seconds since the epoch."""

    size: int
    etag: str
    modified: float


@dataclass
class Opened:
    """An object that is being read: bytes, or the descriptor of a file."""

    facts: Facts
    data: bytes | None = None
    fd: int = -1

    def close(self) -> None:
        """Close the file."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Contents(Protocol):
    """What both kinds do."""

    def buckets(self) -> list[str]: ...
    def create(self, bucket: str) -> None: ...
    def open(self, bucket: str, key: str) -> Opened: ...
    def put(self, bucket: str, key: str, pieces: list[bytes], etag: str | None = None) -> Facts: ...
    def delete(self, bucket: str, key: str) -> None: ...
    def names(self, bucket: str) -> list[bytes]: ...
    def facts(self, bucket: str, key: str) -> Facts: ...
    def change(self, bucket: str, key: str) -> None: ...


class _Changes:
    """Objects whose ETag is said to be another."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], tuple[int, float]] = {}

    def change(self, bucket: str, key: str) -> None:
        """Say from now on that the object is a new one, with the same bytes."""
        count = self._changes.get((bucket, key), (0, 0.0))[0]
        self._changes[bucket, key] = count + 1, time.time()

    def _told(self, bucket: str, key: str, facts: Facts) -> Facts:
        if not (change := self._changes.get((bucket, key))):
            return facts
        return replace(facts, etag=f'{facts.etag[:-1]}-changed{change[0]}"', modified=change[1])


class InMemory(_Changes):
    """Objects in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, Opened]] = {}
        self._names: dict[str, list[bytes]] = {}  # sorted, until a key is new or gone

    def buckets(self) -> list[str]:
        """All buckets."""
        return sorted(self._buckets)

    def create(self, bucket: str) -> None:
        """Make a bucket, if there is none."""
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def open(self, bucket: str, key: str) -> Opened:
        """The object, to be closed."""
        try:
            found = self._bucket(bucket)[key]
        except KeyError:
            raise Missing("NoSuchKey") from None
        return Opened(self._told(bucket, key, found.facts), found.data)

    def facts(self, bucket: str, key: str) -> Facts:
        """Facts of the object."""
        return self.open(bucket, key).facts

    def put(self, bucket: str, key: str, pieces: list[bytes], etag: str | None = None) -> Facts:
        """Store an object."""
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        etag = etag or f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        facts = Facts(len(data), etag, time.time())
        with self._lock:
            objects = self._bucket(bucket)
            if key not in objects:
                self._names.pop(bucket, None)
            objects[key] = Opened(facts, data)
            self._changes.pop((bucket, key), None)
        return facts

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object, if there is one."""
        with self._lock:
            if self._bucket(bucket).pop(key, None):
                self._names.pop(bucket, None)

    def names(self, bucket: str) -> list[bytes]:
        """Keys as UTF-8, sorted."""
        with self._lock:
            objects = self._bucket(bucket)
            if bucket not in self._names:
                self._names[bucket] = sorted(key.encode() for key in objects)
            return self._names[bucket]

    def _bucket(self, bucket: str) -> dict[str, Opened]:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise Missing("NoSuchBucket") from None


class InFolder(_Changes):
    """The files of a folder. Other writers should rename files into place."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._root = Path(root)
        self._lock = threading.Lock()

    def buckets(self) -> list[str]:
        """All folders of the root."""
        return sorted(entry.name for entry in os.scandir(self._root) if entry.is_dir() and _is_name(entry.name))

    def create(self, bucket: str) -> None:
        """Make a folder, if there is none."""
        if not _is_name(bucket):
            raise Refused(bucket)
        (self._root / bucket).mkdir(exist_ok=True)

    def open(self, bucket: str, key: str) -> Opened:
        """The file, open, to be closed."""
        path = self._path(bucket, key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise Missing("NoSuchKey") from None
        status = os.fstat(fd)
        if not _is_file(status):
            os.close(fd)
            raise Missing("NoSuchKey")
        return Opened(self._told(bucket, key, _facts(status)), fd=fd)

    def facts(self, bucket: str, key: str) -> Facts:
        """Facts of the file."""
        try:
            status = os.stat(self._path(bucket, key))
        except (FileNotFoundError, NotADirectoryError):
            raise Missing("NoSuchKey") from None
        if not _is_file(status):
            raise Missing("NoSuchKey")
        return self._told(bucket, key, _facts(status))

    def put(self, bucket: str, key: str, pieces: list[bytes], etag: str | None = None) -> Facts:
        """Write a file aside and rename it."""
        path = self._path(bucket, key)
        fd, aside = tempfile.mkstemp(prefix=".put-", dir=self._root)
        try:
            with os.fdopen(fd, "wb") as file:
                for piece in pieces:
                    file.write(piece)
            with self._lock:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    _be_later(aside, path)
                    os.rename(aside, path)
                except (NotADirectoryError, IsADirectoryError, FileExistsError):
                    raise Refused(key) from None
                self._changes.pop((bucket, key), None)
            return _facts(os.stat(path))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)

    def delete(self, bucket: str, key: str) -> None:
        """Remove a file, and folders that it leaves empty."""
        path, top = self._path(bucket, key), self._root / bucket
        with self._lock:
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
            with contextlib.suppress(OSError):
                while (path := path.parent) != top:
                    path.rmdir()

    def names(self, bucket: str) -> list[bytes]:
        """Paths of all files, sorted by their bytes."""
        top = os.fsencode(self._folder(bucket))
        return sorted(os.path.join(folder, name)[len(top) + 1 :] for folder, _, names in os.walk(top) for name in names)

    def _folder(self, bucket: str) -> Path:
        if not _is_name(bucket) or not (self._root / bucket).is_dir():
            raise Missing("NoSuchBucket")
        return self._root / bucket

    def _path(self, bucket: str, key: str) -> Path:
        folder = self._folder(bucket)
        if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise Refused(key)
        return folder / key


class Uploads:
    """Parts of multipart uploads, in memory, and no more than a number of bytes of them."""

    def __init__(self, most_bytes: int) -> None:
        self._lock = threading.Lock()
        self._uploads: dict[str, tuple[str, str, dict[int, tuple[bytes, str]]]] = {}
        self._count, self._bytes, self._most = 0, 0, most_bytes

    def begin(self, bucket: str, key: str) -> str:
        """Id of a new upload."""
        with self._lock:
            self._count += 1
            self._uploads[f"upload-{self._count}"] = bucket, key, {}
            return f"upload-{self._count}"

    def add(self, upload: str, bucket: str, key: str, number: int, data: bytes) -> str:
        """ETag of a part, which replaces one of the same number."""
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        with self._lock:
            parts = self._parts(upload, bucket, key)
            more = len(data) - len(parts.get(number, (b"",))[0])
            if self._bytes + more > self._most:
                raise Refused(f"unfinished uploads exceed {self._most} bytes")
            self._bytes += more
            parts[number] = data, etag
        return f'"{etag}"'

    def complete(self, upload: str, bucket: str, key: str, chosen: list[tuple[int, str]]) -> tuple[list[bytes], str]:
        """Return the object's pieces and its ETag. The upload is over when it is `forgotten`."""
        with self._lock:
            parts = self._parts(upload, bucket, key)
            numbers = [number for number, _ in chosen]
            if not chosen or numbers != sorted(set(numbers)):
                raise Refused("parts are not in ascending order")
            if any(number not in parts or parts[number][1] != etag.strip('"') for number, etag in chosen):
                raise Refused("a part is missing or another one")
            found = [parts[number] for number in numbers]
        digest = hashlib.md5(b"".join(bytes.fromhex(etag) for _, etag in found), usedforsecurity=False)
        return [data for data, _ in found], f'"{digest.hexdigest()}-{len(found)}"'

    def forget(self, upload: str, bucket: str, key: str) -> None:
        """Remove an upload with its parts."""
        with self._lock:
            self._bytes -= sum(len(data) for data, _ in self._parts(upload, bucket, key).values())
            del self._uploads[upload]

    def unfinished(self) -> list[str]:
        """Keys of uploads neither completed nor aborted."""
        with self._lock:
            return [f"{bucket}/{key}" for bucket, key, _ in self._uploads.values()]

    def _parts(self, upload: str, bucket: str, key: str) -> dict[int, tuple[bytes, str]]:
        if upload not in self._uploads or self._uploads[upload][:2] != (bucket, key):
            raise Missing("NoSuchUpload")
        return self._uploads[upload][2]


@dataclass(frozen=True)
class Page:
    """Part of a listing. `rest` is its last name if more follow."""

    keys: list[str]
    prefixes: list[str]
    rest: bytes | None


def page(names: list[bytes], prefix: str, delimiter: str, after: bytes, most: int) -> Page:
    """Return keys and common prefixes that come after a name, up to a limit."""
    begin, sep = prefix.encode(), delimiter.encode()
    keys: list[str] = []
    prefixes: list[str] = []
    at, last = max(bisect.bisect_right(names, after), bisect.bisect_left(names, begin)), after
    if sep and len(after) > len(begin) and after.endswith(sep):  # the last name was a common prefix
        at = max(at, bisect.bisect_left(names, after + b"\xff"))
    while at < len(names) and names[at].startswith(begin):
        if len(keys) + len(prefixes) >= most:
            return Page(keys, prefixes, last)
        cut = names[at].find(sep, len(begin)) if sep else -1
        if cut < 0:
            last = names[at]
            keys.append(last.decode(errors="surrogateescape"))
            at += 1
        else:
            last = names[at][: cut + len(sep)]
            prefixes.append(last.decode(errors="surrogateescape"))
            at = bisect.bisect_left(names, last + b"\xff", at)
    return Page(keys, prefixes, None)


def _is_name(bucket: str) -> bool:
    return bool(bucket) and not bucket.startswith(".") and "/" not in bucket and "\0" not in bucket


def _is_file(status: os.stat_result) -> bool:
    return status.st_mode & 0o170000 == 0o100000


def _facts(status: os.stat_result) -> Facts:
    etag = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'
    return Facts(status.st_size, etag, status.st_mtime)


def _be_later(new: str, old: Path) -> None:
    """Clocks of file systems tick every few milliseconds. A replaced file must not look like its predecessor."""
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(new)
        later = max(status.st_mtime_ns, os.stat(old).st_mtime_ns + 1)
        os.utime(new, ns=(later, later))
