"""What an index.json says of a folder of shards, checked part by part as it is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from feedline.errors import DataError, shown
from feedline.feed.files import paths
from feedline.feed.files.paths import PathLike, looking
from feedline.feed.formats.shards.packing import CODECS
from feedline.feed.formats.shards_guess import INDEX, folder_of, read_index

DAMAGED = "restore the file, or write it again"
"""What to do about damage."""

_MOST_ITEMS = 1 << 24


class ShardFile(NamedTuple):
    """A file of samples.

    Attributes:
        path: of the file.
        samples: number of samples.
        size: bytes of the file.
        unpacked: bytes that the shard may have when it is unpacked; empty: unknown.
        codec: how it is compressed, None: not at all.
        run: samples that are compressed together, with a table of these runs in the file; 0: the file is compressed
            as a whole; -1: every sample is, for itself.
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
        """Number of samples that are read together at least."""
        return self.samples if self.codec and not self.run else max(1, self.run)


def folders_of(path: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the folders that paths name, themselves or by their index."""
    given = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not given:
        raise ValueError("expected at least one folder, got an empty list")
    return [folder_of(one) for one in given]


def index_of(folder: Path) -> Mapping[str, Any]:
    """Return what the index of a folder holds.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return read_index(folder)
    except OSError as error:
        raise DataError(f"expected a readable {INDEX}: {error.strerror}", path=str(folder / INDEX)) from error
    except ValueError as error:
        raise DataError(
            f"expected JSON that describes shards: {error}", path=str(folder / INDEX), hint=DAMAGED
        ) from error


class IndexEntry:
    """An object of an index, whose parts are checked when they are asked for.

    Args:
        data: what JSON holds.
        path: of the index.
        where: which object it is, in errors.
    """

    def __init__(self, data: Any, path: Path, where: str) -> None:
        self._path, self._where = path, where
        if not isinstance(data, dict):
            raise self.wrong("an object", data)
        self.data: dict[str, Any] = data

    def wrong(self, expected: str, got: Any) -> DataError:
        """Return the error that something is not as expected."""
        return DataError(
            f"expected {expected} in {self._where} of {INDEX}, got {shown(got, 60)}",
            path=str(self._path),
            hint=DAMAGED,
        )

    def number(self, key: str) -> int:
        """Return a number of at least 0."""
        found = self.data.get(key)
        if type(found) is not int or not 0 <= found < 1 << 48:
            raise self.wrong(f"a number `{key}`", found)
        return found

    def text(self, key: str) -> str:
        """Return a text."""
        found = self.data.get(key)
        if not isinstance(found, str):
            raise self.wrong(f"a text `{key}`", found)
        return found

    def items(self, key: str, kind: type) -> list[Any]:
        """Return a list of objects of one kind."""
        found = self.data.get(key)
        if not isinstance(found, list) or len(found) > _MOST_ITEMS or not all(isinstance(f, kind) for f in found):
            raise self.wrong(f"a list `{key}` of {kind.__name__}", found)
        return found

    def inside(self, folder: Path, key: str) -> Path:
        """Return the path of a file that lies inside the folder, as it must."""
        name = self.text(key)
        parts = PurePosixPath(name)
        if not name or "\0" in name or parts.is_absolute() or ".." in parts.parts:
            raise self.wrong(f"a file name `{key}` within the folder", name)
        return folder / name


def size_of(path: Path) -> int | None:
    """Return the size of a file, None if there is none."""
    with looking(path):
        try:
            return paths.size_of(path)
        except FileNotFoundError:
            return None


def missing(what: str, path: Path) -> DataError:
    """Return the error that an index lists a file that is not there."""
    return DataError(
        f"expected a {what} that the index lists: No such file or directory",
        path=str(path),
        hint=f"download the whole folder: {what}s are read in place",
    )


def codec_of(name: str, path: Path) -> str:
    """Return the codec that an index names, without its level.

    Raises:
        DataError: it is none that can be unpacked.
    """
    found = name.partition(":")[0]
    if found not in CODECS:
        raise DataError(
            f"expected shards as they are or compressed by {', '.join(CODECS)}, got {shown(name, 40)}",
            path=str(path),
            hint="unpack them with the library that wrote them",
        )
    return found
