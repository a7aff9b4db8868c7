"""Write a file completely or not at all.

The content goes to a temporary file in the same folder, is forced to disk and then takes the name at once:
readers see the old file or the whole new one, several writers cannot mix, and an error leaves nothing behind. A writer
holds a lock on its temporary file, so what a killed one left is told from what is being written, on this machine and,
where the file system has locks, on others; the next writer of the name removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from feedline.errors import DataError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o644, hint: str | None = None) -> Iterator[BinaryIO]:
    """A new file open for reading and writing that becomes ``path`` when the block ends without an exception.

    Args:
        path: the name to take; whatever has it is replaced.
        mode: permission bits, narrowed by nothing else.
        hint: what a full disk's error advises.

    Raises:
        DataError: no space is left, or the file would pass a size limit.
        OSError: the folder does not exist or cannot be written.
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
    """A block that writes ``what`` into ``folder``: no room, or no descriptor, is a DataError about ``path``.

    Raises:
        DataError: no space is left, or a file would pass a size limit.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DataError(
                f"expected room for {what} in {folder}, got: {error.strerror}", path=str(path), hint=hint
            ) from error
        if error.errno in _NO_DESCRIPTOR:
            raise DataError(
                f"expected to open {what} in {folder}, got: {error.strerror}",
                path=str(path),
                hint="raise the limit (ulimit -n), or close what is open",
            ) from error
        raise


# ---- temporary files ----------------------------------------------------------------------------------


def _prefix(path: Path) -> str:
    return f".{path.name[:100]}."


def _claim(path: Path) -> tuple[int, str]:
    """A new temporary file for ``path``, locked: (descriptor, name)."""
    while True:
        handle, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent)
        try:
            # Until it is locked it looks like a left-over; whoever takes it for one holds the lock, or has removed it.
            if _lock(handle) is not False and os.fstat(handle).st_nlink:
                return handle, name
        except BaseException:
            os.close(handle)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
        os.close(handle)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _lock(handle: int) -> bool | None:
    """Whether the file is locked by this call; None: this file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files for ``path`` that nobody writes any more."""
    pattern = re.compile(re.escape(_prefix(path)) + r"[a-z0-9_]{8}\.tmp")
    try:
        found = [entry.path for entry in os.scandir(path.parent) if pattern.fullmatch(entry.name)]
    except OSError:
        return  # a folder that may be written but not listed
    for name in found:
        # Others' files are theirs to remove.
        with contextlib.suppress(OSError):
            handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISREG(os.fstat(handle).st_mode) and _lock(handle):
                    os.unlink(name)
            finally:
                os.close(handle)


def _sync_folder(folder: Path) -> None:
    # The rename itself is data of the folder.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the file's own bytes are safe
    finally:
        os.close(handle)
