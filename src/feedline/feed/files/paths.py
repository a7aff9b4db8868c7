"""List the files that a path stands for, in a machine-independent order, and open files safely.

Data is read from regular files only: opening a FIFO waits for a writer, possibly forever, and a device may return
anything. So all files in the feed are opened through this module.
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
INDEX_SUFFIX = ".feedline-index"


def list_files(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the files of a corpus.

    Args:
        path: a file; a list of files, kept in order; a folder, of which all visible files are taken; a glob pattern
            (``**`` for any depth); or one with braces, ``{000..099}`` or ``{a,b}``, which stand for their alternatives
            in order. Folder and pattern are sorted by the bytes of the path relative to the folder or to the pattern's
            fixed part; indexes, which lie next to their texts, are excluded.

    Raises:
        DataError: nothing matches, a file that braces name is missing, or access is denied. Files given by name are not
            checked.
        ValueError: the list is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one file, got an empty list")
        return [Path(p) for p in path]
    return _listed(path, folders=False)


def list_places(path: PathLike) -> list[Path]:
    """Return what a path or a pattern stands for: files, in the order of `list_files`, and folders.

    A pattern without braces stands for folders only if it matches no files.

    Raises:
        DataError: nothing matches, a file or folder that braces name is missing, or access is denied. A file given by
            name is not checked.
    """
    return _listed(path, folders=True)


def _listed(path: PathLike, *, folders: bool) -> list[Path]:
    """Return what a path stands for: ``folders`` themselves, or the files in the one that it names."""
    one = Path(path)
    with looking(one):
        if one.is_dir() and not folders:
            return _in_order([p for p in one.iterdir() if p.is_file() and not p.name.startswith(".")], one)
        if one.exists():
            return [one]
        if len(names := expand_braces(str(path))) > 1:
            _require_all(names)
            return [place for name in names for place in _listed(name, folders=folders)]
        if not glob.has_magic(str(path)):
            return [one]
        found = [Path(p) for p in glob.glob(str(path), recursive=True)]
        files = [p for p in found if os.path.isfile(p)]
        return _in_order(files or [p for p in found if folders and os.path.isdir(p)], one)


def _in_order(found: list[Path], path: Path) -> list[Path]:
    found = [p for p in found if p.suffix != INDEX_SUFFIX]
    if not found:
        raise DataError(f"expected files at {path}, got none")
    return sorted(found, key=lambda p: os.fsencode(p.as_posix()))


def _require_all(names: list[str]) -> None:
    missing = [name for name in names if not glob.has_magic(name) and not os.path.exists(name)]
    if missing:
        more = f" (and {len(missing) - 1} more of {len(names)})" if len(missing) > 1 else ""
        raise DataError(f"expected a file{more}: No such file or directory", path=missing[0])


def name_of(paths: Sequence[PathLike]) -> str:
    """Return what errors call a corpus of these files."""
    first = shown_path(os.fspath(paths[0]))
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


_BRACES = re.compile(r"\{([^{}]*,[^{}]*|-?\d{1,9}\.\.-?\d{1,9})\}")
_MOST_NAMES = 1 << 20


def expand_braces(pattern: str) -> list[str]:
    """Return what a pattern with ``{a,b}`` or ``{000..099}`` stands for, as a shell would; itself if it has neither.

    Raises:
        ValueError: more than a million names.
    """
    names = [""]
    at = 0
    for match in _BRACES.finditer(pattern):
        before, at = pattern[at : match.start()], match.end()
        choices = _choices(match[1])
        if len(names) * len(choices) > _MOST_NAMES:
            raise ValueError(f"expected at most {_MOST_NAMES} names, got more from {pattern!r}")
        names = [name + before + choice for name in names for choice in choices]
    return [name + pattern[at:] for name in names]


def _choices(text: str) -> Sequence[str]:
    first, dots, last = text.partition("..")
    if not dots or "," in text:
        return text.split(",")
    a, b = int(first), int(last)
    if abs(b - a) >= _MOST_NAMES:
        raise ValueError(f"expected at most {_MOST_NAMES} names, got {abs(b - a) + 1} from {{{text}}}")
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
        OSError: it cannot be opened, or is not a regular file.
    """
    found = remote.object_at(path)
    if found is not None:
        return remote.opened(found, path, buffering)
    # Checked before opening, as opening a device may have side effects, and after, as it may have been replaced.
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
    """Open the file at ``path`` for reading, by default unbuffered.

    Raises:
        DataError: it cannot be opened, or is not a regular file.
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
        DataError: reading failed; on network file systems also because the file was replaced or removed.
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
    """Return at most ``size`` bytes of a file that `open_file` opened, from ``byte`` on; fewer at its end.

    Raises:
        DataError: reading failed.
    """
    with reading(file.name, byte):
        return remote.pread(file, size, byte)


def status_of(file: BinaryIO) -> os.stat_result:
    """Return size and times of a file that `open_file` opened.

    Raises:
        DataError: they are unavailable.
    """
    with reading(file.name):
        status = os.fstat(file.fileno())
    found = remote.remote_of(file)
    if found is None:
        return status
    # Its file changes whenever something is fetched; the object does not.
    fields = list(status[:10])
    fields[7:10] = [found.modified_ns // 10**9] * 3
    return os.stat_result(fields, {"st_mtime_ns": found.modified_ns, "st_ctime_ns": found.modified_ns})


def size_of(path: PathLike) -> int:
    """Return the size of a file in bytes.

    Raises:
        OSError: there is none.
    """
    found = remote.object_at(path)
    return os.stat(path).st_size if found is None else found.size


def open_to_append(path: PathLike) -> TextIO:
    """Open a file to append UTF-8 text, creating it if necessary; a FIFO without a reader is refused, not waited for.

    Raises:
        OSError: it cannot be opened or created.
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
    """Return what a file that is not regular is, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _require_regular(status: os.stat_result, path: PathLike) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(status.st_mode)}", os.fspath(path))
