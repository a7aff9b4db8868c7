"""Append to a store: new parts are written to a store of their own next to it, whose files then join it.

The joined store replaces the old one in one step, with links to the files of both, so a kill leaves either of them. A
record tells a repeated call what the killed one has done: it writes nothing twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feedline.errors import DataError
from feedline.feed.files.records import read_record, write_record
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
    record = store.parent / f".{store.name}.appending.json"
    with _locked(store):
        done = read_record(record)
        if done is None or done["plan"] != plan or not (parts / MANIFEST).is_file():
            if done is not None and done["plan"] == plan and done["result"] == Manifest.load(store).digest():
                _clean(parts, record)
                return Manifest.load(store), done["skipped"]
            record.unlink(missing_ok=True)
            _, skipped = write(parts)
        else:
            skipped = done["skipped"]
            if done["result"] == Manifest.load(store).digest():
                _clean(parts, record)
                return Manifest.load(store), skipped
        staging = StagingFolder(store, lambda folder: publish(folder, store))
        try:
            joined = combine([store, parts], staging.folder)
            write_record(record, {"plan": plan, "skipped": skipped, "result": joined.digest()})
            staging.publish()
        except OSError as error:
            staging.drop()
            raise DataError(f"cannot append to the store: {error.strerror or error}", path=str(store)) from error
        except BaseException:
            staging.drop()
            raise
        _clean(parts, record)
    return joined, skipped


def _clean(parts: Path, record: Path) -> None:
    """Remove what a finished call leaves, the record last: with it, a repeated call sees that nothing is left to do."""
    if parts.exists():
        shutil.rmtree(parts)
    record.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Return a context in which no other process appends to a store.

    Raises:
        DataError: another one does.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(
            "expected no other process to append to the same store, got one",
            path=str(folder),
            hint="wait for it to finish, then repeat the call",
        ) from None
    finally:
        os.close(descriptor)
