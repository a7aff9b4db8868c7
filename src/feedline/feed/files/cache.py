"""Files that can be made again: opened if they are good, else written in full, in a folder of one's own.

Guarantees: nobody sees half a file; a stale or damaged one is replaced; several processes may make one at the same
time. Where the folder cannot be written, the file is a temporary one without a name (in ``$TMPDIR``), made again by
every process: slower to open, but no more private memory.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import BinaryIO

from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file, room_for
from feedline.feed.files.paths import open_regular

READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR}
"""Error numbers of a place that cannot be written, a folder of the file's name among them."""

_HINT = "pass cache=<a folder with room>"
_TMPDIR = "set TMPDIR to a folder with room, or pass cache=<a folder with room>"
_log = logging.getLogger("feedline")


def user_cache() -> Path:
    """``$XDG_CACHE_HOME/feedline``, by default ``~/.cache/feedline``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feedline"


def cached_file(
    folder: Path | None,
    name: str,
    usable: Callable[[BinaryIO], bool],
    write: Callable[[BinaryIO], None],
    rebuild: bool = False,
) -> BinaryIO:
    """An open file with the content that ``write`` makes.

    Args:
        folder: where it is kept, created with mode 0700; None: nowhere, as a temporary file without a name.
        name: of the file in the folder.
        usable: whether an existing file, open at its start, has the content wanted.
        write: makes the content in an empty file that is open for reading and writing.
        rebuild: do not look for an existing file.

    Raises:
        DataError: the folder can be written by others, or there is no space left.
    """
    if folder is not None:
        path = folder / name
        refuse_foreign(folder)
        found = None if rebuild else _existing(path, usable)
        if found is not None:
            return found
        try:
            own_folder(folder)
            with atomic_file(path, 0o600, _HINT) as file:
                write(file)
            return open_regular(path)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            _log.warning("%s cannot be written (%s): made again in a temporary file", path, error.strerror)
    with room_for(name, tempfile.gettempdir(), name, _TMPDIR):
        temporary = tempfile.TemporaryFile(prefix="feedline-")  # noqa: SIM115  # handed to the caller
        try:
            write(temporary)
            temporary.flush()
        except BaseException:
            temporary.close()
            raise
        return temporary


def _existing(path: Path, usable: Callable[[BinaryIO], bool]) -> BinaryIO | None:
    try:
        file = open_regular(path)
    except OSError:
        return None
    try:
        if usable(file):
            return file
        _log.warning("%s is stale or damaged and is made again", path)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def own_folder(folder: Path) -> None:
    """Create a cache folder for the user alone, or make sure that nobody else can write there.

    Raises:
        DataError: others can.
        OSError: it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_foreign(folder)


def _is_ours(status: os.stat_result, owners: Collection[int] = ()) -> bool:
    """Whether only root, this user or one of ``owners`` can change it."""
    return status.st_uid in (0, os.geteuid(), *owners) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_trusted(file: BinaryIO, folder: Path, owners: Collection[int] = ()) -> bool:
    """Whether a file found in ``folder`` was written by this user, root or one of ``owners``.

    In a folder that only these can write it was; elsewhere it has to be theirs, and writable by nobody else.
    """
    return _is_ours(folder.stat(), owners) or _is_ours(os.fstat(file.fileno()), owners)


def refuse_foreign(folder: Path) -> None:
    """Refuse a cache folder that others can write: they could make us read what they like.

    Raises:
        DataError: they can.
    """
    try:
        status = folder.stat()
    except OSError:
        return  # what is not there holds no file
    if not _is_ours(status):
        raise DataError(
            f"expected a cache folder that only you can write, got {folder}",
            path=str(folder),
            hint="pass cache=<a folder of yours>, or take the others' right to write away (chmod go-w)",
        )
