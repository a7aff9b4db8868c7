"""Write a file completely or not at all.

The content is written to a temporary file in the same folder, flushed to disk, and renamed: readers see the old file or
the complete new one, concurrent writers do not mix, and an error leaves no file. A writer locks its temporary file. So
other writers can tell it from the leftovers of a killed writer, on this machine and, if the file system supports locks,
on other machines. The next writer of the same name removes leftovers.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from feedline.errors import DataError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_FAILING = {errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT}


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o644, hint: str | None = None) -> Iterator[BinaryIO]:
    """Open a new file for reading and writing that becomes ``path`` if the block ends without an exception.

    Args:
        path: path to create or replace.
        mode: permission bits. The umask does not apply.
        hint: advice to add to the error on a full disk.

    Raises:
        DataError: no space is left, the file would exceed a size limit, or the disk fails.
        OSError: the folder does not exist or is not writable.
    """
    with room_for(path.name, path.parent, path, hint):
        _remove_leftovers(path)
        handle, name = _claim(path)
        try:
            with os.fdopen(handle, "w+b") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
                os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def room_for(what: str, folder: Path | str, path: Path | str, hint: str | None = None) -> Iterator[None]:
    """A context that writes ``what`` into ``folder``. A lack of space or descriptors, or a failing disk, becomes a
    DataError of ``path``.

    Raises:
        DataError: no space or descriptor is left, a file would exceed a size limit, or the disk fails.
    """
    try:
        yield
    except OSError as error:
        need = "room for"
        if error.errno in _NO_DESCRIPTOR:
            need, hint = "to open", "raise the limit (ulimit -n), or close open files"
        elif error.errno in _FAILING:
            need, hint = "to write", f"check the disk or the mount{'' if hint is None else f', or {hint}'}"
        elif error.errno not in _NO_SPACE:
            raise
        message = f"expected {need} {what} in {folder}, got: {error.strerror}"
        raise DataError(message, path=str(path), hint=hint) from error


# ---- temporary files ----------------------------------------------------------------------------------


def _prefix(path: Path) -> str:
    return f".{path.name[:100]}."


def _claim(path: Path) -> tuple[int, str]:
    """Create and lock a temporary file for ``path``, and return its descriptor and name."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent)
        claimed = False
        try:
            # Until it is locked, the file looks like a leftover. A process that takes it for one holds the lock, or has
            # removed the file.
            claimed = try_lock(handle) is not False and os.fstat(handle).st_nlink > 0
        finally:
            if not claimed:
                os.close(handle)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        if claimed:
            return handle, name


def try_lock(handle: int) -> bool | None:
    """Lock a file, and return whether that succeeded, or None if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


class _Listing(NamedTuple):
    """Temporary files that a folder had when it was listed, by the beginning of their names."""

    folder: Path
    files: dict[str, list[str]]
    until: float  # time of the next listing


_MAX_LISTING_SHARE = 0.05
"""Limit for the share of time spent on listing a folder: in a folder of 10^5 files with an index each, one listing
takes as long as writing 50 indexes."""

_SHORT_S = 0.0005
"""Faster listings are always repeated, so that leftovers from a moment ago are found."""

_TEMPORARY = re.compile(r"(\..*\.)[a-z0-9_]{8}\.tmp", re.DOTALL)

_listing: _Listing | None = None  # of the folder that was last written to


def _list_temporary(folder: Path) -> _Listing:
    """Return the temporary files of a folder, which may have been listed a moment ago."""
    global _listing
    now, listing = time.monotonic(), _listing
    if listing is None or listing.folder != folder or now >= listing.until:
        files: dict[str, list[str]] = {}
        for entry in os.scandir(folder):
            match = _TEMPORARY.fullmatch(entry.name)
            if match:
                files.setdefault(match[1], []).append(entry.path)
        listed = time.monotonic()
        # Replaced, not changed: other threads may be reading it.
        duration = listed - now if listed - now > _SHORT_S else 0.0
        _listing = listing = _Listing(folder, files, listed + duration / _MAX_LISTING_SHARE)
    return listing


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files for ``path`` whose writers are gone."""
    try:
        names = _list_temporary(path.parent).files.get(_prefix(path), ())
    except OSError:
        return  # a folder that can be written but not listed
    for name in names:
        # Files of other users are left to them.
        with contextlib.suppress(OSError):
            handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode) and try_lock(handle):
                    os.unlink(name)
            finally:
                os.close(handle)


def _sync_folder(folder: Path) -> None:
    # The rename is itself data of the folder.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse. The bytes of the file are safe
    finally:
        os.close(handle)
