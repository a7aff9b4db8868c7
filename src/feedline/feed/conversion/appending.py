"""Append to a store: new parts are written to a store of their own next to it, whose files then join it.

The joined store replaces the old one in one step, with links to the files of both, so a kill leaves either of them. A
record tells a repeated call what the killed one has done: it writes nothing twice. It is locked while a call appends,
as the store itself is replaced, and removed last.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.feed.formats.store.combine import combine
from feedline.feed.formats.store.manifest import MANIFEST, Manifest
from feedline.feed.formats.store.staging import StagingFolder, publish


def append_store(
    store: Path, plan: Mapping[str, Any], write: Callable[[Path], tuple[Manifest, int]]
) -> tuple[Manifest, int]:
    """Append sequences to a store, and return its manifest and the number of unreadable sequences skipped.

    Args:
        store: path of the store.
        plan: everything that determines what is appended, in JSON types.
        write: function that writes these sequences to a store at a path, which it may replace.

    Raises:
        DataError: the store is damaged, another process appends to it, or a file cannot be written.
        SchemaError: the sequences have other streams than the store.
    """
    parts = store.parent / f".{store.name}.appending"
    with _locked_record(store.parent / f".{store.name}.appending.json", store) as record:
        done = record.read()
        if done is None or done["plan"] != plan or not (parts / MANIFEST).is_file():
            if done is not None and done["plan"] == plan and done["result"] == Manifest.load(store).digest():
                _clean(parts, record)
                return Manifest.load(store), done["skipped"]
            record.write(None)
            _, skipped = write(parts)
        else:
            skipped = done["skipped"]
            if done["result"] == Manifest.load(store).digest():
                _clean(parts, record)
                return Manifest.load(store), skipped
        staging = StagingFolder(store, lambda folder: publish(folder, store))
        try:
            joined = combine([store, parts], staging.folder)
            record.write({"plan": plan, "skipped": skipped, "result": joined.digest()})
            staging.publish()
        except OSError as error:
            staging.drop()
            raise DataError(f"cannot append to the store: {error.strerror or error}", path=str(store)) from error
        except BaseException:
            staging.drop()
            raise
        _clean(parts, record)
    return joined, skipped


class _AppendRecord:
    """An open record of what a call has done. See `_locked_record`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def read(self) -> Any:
        """Return what was written, or None if there is nothing, or the write was interrupted."""
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        try:
            return json.loads(content) if content else None
        except ValueError:
            return None

    def write(self, values: Any) -> None:
        """Replace the content, in place, as the file is the lock. It is on disk when this returns."""
        content = b"" if values is None else json.dumps(values).encode()
        os.ftruncate(self._descriptor, 0)
        written = os.pwrite(self._descriptor, content, 0)
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._descriptor)

    def remove(self) -> None:
        """Remove the file. The next call makes another."""
        self._path.unlink()

    def remove_if_empty(self) -> None:
        """Remove a file that says nothing."""
        if not os.fstat(self._descriptor).st_size and _is_at(self._path, self._descriptor):
            self.remove()


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clean(parts: Path, record: _AppendRecord) -> None:
    """Remove what a finished call leaves, the record last: with it, a repeated call sees that nothing is left to do."""
    if parts.exists():
        shutil.rmtree(parts)
    record.remove()


@contextlib.contextmanager
def _locked_record(path: Path, store: Path) -> Iterator[_AppendRecord]:
    """Return a context in which no other process appends to a store.

    Raises:
        DataError: another one does.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise DataError(f"cannot append to the store: {error.strerror or error}", path=str(store)) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                record = _AppendRecord(path, descriptor)
                try:
                    yield record
                finally:
                    record.remove_if_empty()
                return
        except BlockingIOError:
            raise DataError(
                "expected no other process to append to the same store, got one",
                path=str(store),
                hint="wait for it to finish, then repeat the call",
            ) from None
        finally:
            os.close(descriptor)
