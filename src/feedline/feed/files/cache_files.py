"""Cache files that can be regenerated: open a valid one, or write it, in the user's own folder.

No process sees a partial file. A stale or damaged file is replaced. Several processes may write a file at the same
time. If the folder is not writable, the file is a temporary one without a name (in ``$TMPDIR``), which every process
writes again. That is slower, but takes no more private memory.
"""

from __future__ import annotations

import contextlib
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
"""Error numbers for a place that is not writable, or where a folder has the file's name."""

_ELSEWHERE = "pass cache=<another folder>"
_log = logging.getLogger("feedline")


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/feedline``, by default ``~/.cache/feedline``.

    For a user without a writable home folder, as in containers, it is ``$TMPDIR/feedline-UID``.

    Raises:
        DataError: that folder belongs to another user.
    """
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "feedline"
    with contextlib.suppress(RuntimeError):  # no home
        folder = Path.home() / ".cache" / "feedline"
        nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
        if nearest == folder or (nearest.is_dir() and os.access(nearest, os.W_OK, effective_ids=True)):
            return folder
    folder = Path(tempfile.gettempdir()) / f"feedline-{os.geteuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    refuse_foreign(folder, "set XDG_CACHE_HOME to a folder of yours")
    return folder


def open_cached(
    folder: Path | None,
    name: str,
    usable: Callable[[BinaryIO], bool],
    write: Callable[[BinaryIO], None],
    *,
    rebuild: bool = False,
    elsewhere: str = _ELSEWHERE,
) -> BinaryIO:
    """Return an open file with the content that ``write`` writes.

    Args:
        folder: folder of the file, created with mode 0700. None: a temporary file without a name.
        name: name of the file in the folder.
        usable: whether an existing file, open at its start, has the right content.
        write: function that writes the content to an empty file, open for reading and writing.
        rebuild: whether to ignore an existing file.
        elsewhere: advice how to choose another folder, for errors.

    Raises:
        DataError: the folder is writable by others, or no space is left.
    """
    if folder is not None:
        path = folder / name
        refuse_foreign(folder, elsewhere)
        existing = None if rebuild else _existing(path, usable)
        if existing is not None:
            return existing
        try:
            own_folder(folder, elsewhere)
            with atomic_file(path, 0o600, elsewhere) as file:
                write(file)
            return open_regular(path)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            _log.warning("%s cannot be written (%s): writing a temporary file instead", path, error.strerror)
    with room_for(name, tempfile.gettempdir(), name, f"set TMPDIR to a folder with room, or {elsewhere}"):
        temporary = tempfile.TemporaryFile(prefix="feedline-")  # noqa: SIM115  # returned to the caller
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
        _log.warning("%s is stale or damaged and is written again", path)
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def own_folder(folder: Path, elsewhere: str = _ELSEWHERE) -> None:
    """Create a cache folder for this user only, or check that nobody else can write to it.

    Raises:
        DataError: others can write to it.
        OSError: the folder cannot be created.
    """
    make_folder(folder)
    refuse_foreign(folder, elsewhere)


def make_folder(folder: Path) -> None:
    """Create a missing folder for this user only, and its missing parents, which others can read but not write.

    Raises:
        OSError: the folder cannot be created, or the path is not a folder.
    """
    missing = []
    above = folder.parent
    while not above.exists():
        missing.append(above)
        above = above.parent
    for parent in reversed(missing):
        parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _is_ours(status: os.stat_result, owners: Collection[int] = ()) -> bool:
    """Return whether only root, this user or one of ``owners`` can change a file or folder."""
    return status.st_uid in (0, os.geteuid(), *owners) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_trusted(file: BinaryIO, folder: Path, owners: Collection[int] = ()) -> bool:
    """Return whether a file found in ``folder`` was written by this user, root or one of ``owners``.

    That is known if only they can write to the folder. Otherwise one of them must own the file, and others must not be
    able to write it.
    """
    return _is_ours(folder.stat(), owners) or _is_ours(os.fstat(file.fileno()), owners)


def refuse_foreign(folder: Path, elsewhere: str = _ELSEWHERE) -> None:
    """Refuse a cache folder that others can write to, as they could plant files.

    Raises:
        DataError: others can write to the folder.
    """
    try:
        status, link = folder.stat(), folder.lstat()
    except OSError:
        return  # a missing folder holds no files
    if not _is_ours(status) or link.st_uid not in (0, os.geteuid()):  # a link of another user may lead anywhere
        raise DataError(
            f"expected a cache folder that only you can write, got {folder}",
            path=str(folder),
            hint=f"{elsewhere}, or remove others' write permission (chmod go-w)",
        )
