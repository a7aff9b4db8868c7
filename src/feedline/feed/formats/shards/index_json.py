"""The index.json of a folder of shards. Each of its parts is checked when it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from feedline.errors import DataError, shown
from feedline.feed.files import paths
from feedline.feed.files.paths import PathLike, looking
from feedline.feed.formats.detect_shards import INDEX, folder_of, read_index
from feedline.feed.formats.shards.shard_compression import CODECS

DAMAGED = "restore the file, or write it again"
"""Hint of errors about damage."""

_MAX_ITEMS = 1 << 24


class ShardFile(NamedTuple):
    """A file of samples.

    Attributes:
        path: path of the file.
        samples: number of samples.
        size: bytes of the file.
        unpacked: possible sizes of the unpacked shard in bytes. Empty if the size is unknown.
        codec: codec that compresses it, or None if it is not compressed.
        run: number of samples that are compressed in one run, with a table of the runs in the file. With 0 the whole
            file is compressed, with -1 every sample by itself.
        hashes: digests of the file by algorithm.
    """

    path: Path
    samples: int
    size: int
    unpacked: tuple[int, ...] = ()
    codec: str | None = None
    run: int = 0
    hashes: Mapping[str, str] = {}

    @property
    def step(self) -> int:
        """Smallest number of samples that can be read at once."""
        return self.samples if self.codec and not self.run else max(1, self.run)


def folders_of(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the folders at paths of folders or of their index."""
    entries = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not entries:
        raise ValueError("expected at least one folder, got an empty list")
    return [folder_of(entry) for entry in entries]


def index_of(folder: Path) -> Mapping[str, Any]:
    """Return the content of the index of a folder.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return read_index(folder)
    except OSError as error:
        raise DataError(f"expected a readable {INDEX}: {error.strerror}", path=str(folder / INDEX)) from error
    except ValueError as error:
        raise DataError(f"expected JSON that lists shards: {error}", path=str(folder / INDEX), hint=DAMAGED) from error


class IndexEntry:
    """An object of an index, whose parts are checked when they are read.

    Args:
        data: the parsed JSON.
        path: path of the index.
        where: name of the object, for errors.
    """

    def __init__(self, data: Any, path: Path, where: str) -> None:
        self._path, self._where = path, where
        if not isinstance(data, dict):
            raise self.error("an object", data)
        self.data: dict[str, Any] = data

    def error(self, expected: str, got: Any) -> DataError:
        """Return the error for a value that is not as expected."""
        return DataError(
            f"expected {expected} in {self._where} of {INDEX}, got {shown(got, 60)}", path=str(self._path), hint=DAMAGED
        )

    def number(self, key: str) -> int:
        """Return a number of at least 0."""
        value = self.data.get(key)
        if type(value) is not int or not 0 <= value < 1 << 48:
            raise self.error(f"a number `{key}`", value)
        return value

    def text(self, key: str) -> str:
        """Return a text."""
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.error(f"a text `{key}`", value)
        return value

    def items(self, key: str, kind: type) -> list[Any]:
        """Return a list of objects of one kind."""
        value = self.data.get(key)
        if not isinstance(value, list) or len(value) > _MAX_ITEMS or not all(isinstance(f, kind) for f in value):
            raise self.error(f"a list `{key}` of {kind.__name__}", value)
        return value

    def file_path(self, folder: Path, key: str) -> Path:
        """Return the path of a file, which must be inside the folder."""
        name = self.text(key)
        parts = PurePosixPath(name)
        if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts:
            raise self.error(f"a file name `{key}` within the folder", name)
        return folder / name


def size_of(path: Path) -> int | None:
    """Return the size of a file, or None if there is no file."""
    with looking(path):
        try:
            return paths.size_of(path)
        except FileNotFoundError:
            return None


def no_file(what: str, path: Path) -> DataError:
    """Return the error for a missing file that an index lists."""
    return DataError(
        f"expected a {what} that the index lists: No such file or directory",
        path=str(path),
        hint=f"download the whole folder: {what}s are read in place",
    )


def codec_of(name: str, path: Path) -> str:
    """Return the codec that an index names, without its level.

    Raises:
        DataError: shards with this codec cannot be unpacked.
    """
    codec = name.partition(":")[0]
    if codec not in CODECS:
        raise DataError(
            f"expected shards as they are or compressed by {', '.join(CODECS)}, got {shown(name, 40)}",
            path=str(path),
            hint="unpack them with the library that wrote them",
        )
    return codec
