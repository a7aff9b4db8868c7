"""List the files that a path or pattern names, in an order that does not depend on the machine, and open files safely.

Data is read from regular files only: opening a FIFO waits for a writer, possibly forever, and a device may return
anything. So the feed opens all files through this module.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from feedline.errors import DataError, shown_path
from feedline.feed.files import remote

PathLike = str | os.PathLike[str]
COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd")
"""Suffixes of compressed files, after their own."""

TAR_SUFFIXES = (".tar", ".tgz", *(f".tar{suffix}" for suffix in COMPRESSED_SUFFIXES))
"""Suffixes of tar archives, compressed or not."""

INDEX_SUFFIX = ".feedline-index"


def list_files(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the files of a corpus.

    Args:
        path: a file, a list of files (kept in order), a folder (all its visible files), a glob pattern (``**`` for any
            depth), or a pattern with braces, ``{000..099}`` or ``{a,b}``, which expand to their alternatives in order.
            Files of a folder or pattern are sorted by the bytes of their path relative to the folder or to the
            pattern's fixed part. Indexes, which are stored next to their texts, are left out.

    Raises:
        DataError: nothing matches, a file that braces name is missing, or access is denied. Files given by name are not
            checked.
        ValueError: the list is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [Path(p) for p in path]
    return _list(path, folders=False)


def list_places(path: PathLike) -> list[Path]:
    """Return the files of a path or a pattern, in the order of `list_files`, and its folders.

    A pattern without braces matches folders only if it matches no files.

    Raises:
        DataError: nothing matches, a file or folder that braces name is missing, or access is denied. A file given by
            name is not checked.
    """
    return _list(path, folders=True)


def _list(path: PathLike, *, folders: bool) -> list[Path]:
    """Return the paths that match: ``folders`` themselves, or the files in a folder."""
    target = Path(path)
    with looking(target):
        if target.is_dir() and not folders:
            return _in_order([p for p in target.iterdir() if p.is_file() and not p.name.startswith(".")], target)
        if target.exists():
            return [target]
        if len(names := expand_braces(str(path))) > 1:
            _require_all(names)
            return [place for name in names for place in _list(name, folders=folders)]
        if not glob.has_magic(str(path)):
            return [target]
        matches = [Path(p) for p in glob.glob(str(path), recursive=True)]
        files = [p for p in matches if os.path.isfile(p)]
        return _in_order(files or [p for p in matches if folders and os.path.isdir(p)], target)


def _in_order(files: list[Path], path: Path) -> list[Path]:
    files = [p for p in files if p.suffix != INDEX_SUFFIX]
    if not files:
        raise DataError(f"expected files at {path}, got none")
    return sorted(files, key=lambda p: os.fsencode(p.as_posix()))


def _require_all(names: list[str]) -> None:
    missing = [name for name in names if not glob.has_magic(name) and not os.path.exists(name)]
    if missing:
        suffix = f" (and {len(missing) - 1} more of {len(names)})" if len(missing) > 1 else ""
        raise DataError(f"expected a file{suffix}: No such file or directory", path=missing[0])


def name_of(paths: Sequence[PathLike]) -> str:
    """Return the name of a corpus of these files, for errors."""
    first = shown_path(os.fspath(paths[0]))
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


_BRACES = re.compile(r"\{([^{}]*,[^{}]*|-?\d{1,9}\.\.-?\d{1,9})\}")
_MAX_NAMES = 1 << 20


def expand_braces(pattern: str) -> list[str]:
    """Expand a pattern with ``{a,b}`` or ``{000..099}`` as a shell does. Other patterns are returned unchanged.

    Raises:
        ValueError: more than a million names.
    """
    names = [""]
    at = 0
    for match in _BRACES.finditer(pattern):
        before, at = pattern[at : match.start()], match.end()
        choices = _choices(match[1])
        if len(names) * len(choices) > _MAX_NAMES:
            raise ValueError(f"expected at most {_MAX_NAMES} names, got more from {pattern!r}")
        names = [name + before + choice for name in names for choice in choices]
    return [name + pattern[at:] for name in names]


def _choices(text: str) -> Sequence[str]:
    first, dots, last = text.partition("..")
    if not dots or "," in text:
        return text.split(",")
    a, b = int(first), int(last)
    if abs(b - a) >= _MAX_NAMES:
        raise ValueError(f"expected at most {_MAX_NAMES} names, got {abs(b - a) + 1} from {{{text}}}")
    width = max(len(n) for n in (first, last)) if re.search(r"(^|\.\.)-?0\d", text) else 0
    return [f"{n:0{width}d}" for n in range(a, b + (1 if b >= a else -1), 1 if b >= a else -1)]


def open_regular(path: PathLike, buffering: int = -1, *, links: bool = True) -> BinaryIO:
    """Open like ``open(path, "rb", buffering)``, but refuse anything except a regular file, without blocking.

    The path of an object's placeholder opens the object.

    Args:
        path: path of the file.
        buffering: as for `open`.
        links: whether to follow a link, rather than refuse it.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    remote_object = remote.object_at(path)
    if remote_object is not None:
        return remote.open_object(remote_object, path, buffering)
    # Checked before opening, as opening a device may have side effects, and after it, as the file may have been
    # replaced.
    _require_regular(os.stat(path, follow_symlinks=links), path)
    extra = os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    file = open(path, "rb", buffering, opener=lambda name, flags: os.open(name, flags | extra))  # noqa: SIM115
    try:
        _require_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def open_file(path: PathLike, buffering: int = 0) -> BinaryIO:
    """Open the file at ``path`` for reading, by default unbuffered.

    Raises:
        DataError: the file cannot be opened, or is not a regular file.
    """
    try:
        return open_regular(path, buffering)
    except OSError as error:
        raise DataError(f"expected a readable file: {error.strerror}", path=os.fspath(path)) from error


@contextlib.contextmanager
def looking(path: PathLike) -> Iterator[None]:
    """A context that inspects ``path``.

    Raises:
        DataError: inspection failed: no permission, a name that is too long, a failing disk or server.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"expected a readable file or folder: {error.strerror or error}", path=os.fspath(path)
        ) from error


@contextlib.contextmanager
def reading(path: PathLike, byte: int | None = None) -> Iterator[None]:
    """A context that reads an open file from ``byte`` on, and turns a failing disk into a DataError.

    Raises:
        DataError: reading failed. On network file systems the reason may be that the file was replaced or removed.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"expected readable bytes, got: {error.strerror or error}",
            path=os.fspath(path),
            byte=byte,
            hint="restore the file or write it again, then continue from the last state",
        ) from error


def read_at(file: BinaryIO, size: int, byte: int) -> bytes:
    """Return ``size`` bytes of a file that `open_file` opened, from ``byte`` on. There are fewer at its end.

    Raises:
        DataError: reading failed.
    """
    with reading(file.name, byte):
        return remote.pread(file, size, byte)


def status_of(file: BinaryIO) -> os.stat_result:
    """Return size and times of a file that `open_file` opened.

    Raises:
        DataError: the file system does not return them.
    """
    with reading(file.name):
        status = os.fstat(file.fileno())
    remote_object = remote.remote_of(file)
    if remote_object is None:
        return status
    # Its file changes with every fetch, but the object does not.
    fields = list(status[:10])
    fields[7:10] = [remote_object.modified_ns // 10**9] * 3
    return os.stat_result(fields, {"st_mtime_ns": remote_object.modified_ns, "st_ctime_ns": remote_object.modified_ns})


def size_and_time(file: BinaryIO) -> tuple[int, int]:
    """Return the size of a file that `open_file` opened, in bytes, and the time of its last change, in nanoseconds.

    Raises:
        DataError: the file system does not return them.
    """
    status = status_of(file)
    return status.st_size, status.st_mtime_ns


def check_unchanged(file: BinaryIO, at_opening: tuple[int, int]) -> None:
    """Check that a file has the size and time that it had when its corpus was opened.

    Raises:
        DataError: it was changed or replaced since.
    """
    if size_and_time(file) != at_opening:
        raise DataError(
            "expected the file as it was when it was opened, got one that has changed since",
            path=file.name,
            hint="open it again; its sequences and their order may have changed",
        )


def size_of(path: PathLike) -> int:
    """Return the size of a file in bytes.

    Raises:
        OSError: the file does not exist.
    """
    remote_object = remote.object_at(path)
    return os.stat(path).st_size if remote_object is None else remote_object.size


def open_to_append(path: PathLike) -> TextIO:
    """Open a file to append UTF-8 text. Creates it if necessary. Refuses a FIFO without a reader instead of waiting.

    Raises:
        OSError: the file cannot be opened or created.
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
    """Return the kind of a file that is not regular, from its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def _require_regular(status: os.stat_result, path: PathLike) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(status.st_mode)}", os.fspath(path))
