"""Which files a path stands for, in an order that does not depend on the machine; and how all files are opened.

Data is read from regular files alone: opening a FIFO waits for a writer, for ever where there is none, and a device
may answer anything. So nothing in the feed calls ``open`` for reading itself.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from feedline.errors import DataError

PathLike = str | os.PathLike[str]
INDEX_SUFFIX = ".feedline-index"


def list_files(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """The files of a corpus.

    Args:
        path: a file; a list of files, taken as listed; a folder, all of whose visible files are taken; or a glob
            pattern (``**`` for any depth). Folder and pattern are sorted by the bytes of the path relative to the
            folder or to the pattern's fixed part; indexes, which lie beside their texts, are no files of theirs.

    Raises:
        DataError: nothing matches, or nobody may look. Files that are named are not looked for.
        ValueError: an empty list.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [Path(p) for p in path]
    one = Path(path)
    with looking(one):
        if one.is_dir():
            found = [p for p in one.iterdir() if p.is_file() and not p.name.startswith(".")]
        elif one.exists() or not glob.has_magic(str(path)):
            return [one]
        else:
            found = [Path(p) for p in glob.glob(str(path), recursive=True) if os.path.isfile(p)]
    found = [p for p in found if p.suffix != INDEX_SUFFIX]
    if not found:
        raise DataError(f"expected files at {path}, got none")
    return sorted(found, key=lambda p: os.fsencode(p.as_posix()))


def open_regular(path: PathLike, buffering: int = -1, *, links: bool = True) -> BinaryIO:
    """As ``open(path, "rb", buffering)`` for a regular file; anything else is refused, and never waited for.

    Args:
        path: the file.
        buffering: as of `open`.
        links: follow a link; False: refuse it too.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    # Looked at before it is opened, as opening some devices has consequences, and again, as it may be another by now.
    _require_regular(os.stat(path, follow_symlinks=links), path)
    more = os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    file = open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | more))  # noqa: SIM115
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def open_file(path: PathLike, buffering: int = 0) -> BinaryIO:
    """The file at ``path``, open for reading, by default without a buffer.

    Raises:
        DataError: it cannot be opened, or is no regular file.
    """
    try:
        return open_regular(path, buffering)
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror}", path=os.fspath(path)) from error


@contextlib.contextmanager
def looking(path: PathLike) -> Iterator[None]:
    """A block that looks what there is at ``path``.

    Raises:
        DataError: that cannot be told: no permission, a name that is too long, a disk or a server that fails.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"expected a readable file or folder: {error.strerror or error}", path=os.fspath(path)
        ) from error


@contextlib.contextmanager
def reading(path: PathLike, byte: int | None = None) -> Iterator[None]:
    """A block that reads an open file, from ``byte`` on: a disk that fails is a DataError, as it is under a map.

    Raises:
        DataError: it cannot be read; network file systems say so, too, where a file was replaced or removed.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"expected bytes that can be read, got: {error.strerror or error}",
            path=os.fspath(path),
            byte=byte,
            hint="restore the file or write it again, then go on from the last state",
        ) from error


def read_at(file: BinaryIO, size: int, byte: int) -> bytes:
    """At most ``size`` bytes of a file that `open_file` opened, from ``byte`` on; fewer at its end.

    Raises:
        DataError: they cannot be read.
    """
    with reading(file.name, byte):
        return os.pread(file.fileno(), size, byte)


def status_of(file: BinaryIO) -> os.stat_result:
    """Size and times of a file that `open_file` opened.

    Raises:
        DataError: nobody can tell them.
    """
    with reading(file.name):
        return os.fstat(file.fileno())


def open_to_append(path: PathLike) -> TextIO:
    """A file to add UTF-8 text to, made if it is not there; a FIFO that nobody reads is refused, not waited for.

    Raises:
        OSError: it cannot be opened or made.
    """
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666))


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str:
    """What a file that is no regular one is, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _require_regular(status: os.stat_result, path: PathLike) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(status.st_mode)}", os.fspath(path))
