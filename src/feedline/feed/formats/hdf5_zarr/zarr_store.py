"""Zarr stores as keys and values, in a folder or in a zip archive, and the documents that describe arrays in them.

Nothing here needs the zarr library, and nothing is decoded: values are bytes of a file. Documents that name the codec
of pickles are refused before any library sees them.
"""

from __future__ import annotations

import abc
import functools
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from feedline.errors import DataError, SchemaError
from feedline.feed.files.archives import open_archive, read_member, read_part
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, list_places, looking, open_regular
from feedline.feed.files.remote import pread

V3, V2_ARRAY, V2_GROUP = "zarr.json", ".zarray", ".zgroup"
V2_ATTRIBUTES = ".zattrs"
_DOCUMENTS = (V3, V2_ARRAY, V2_GROUP)
_MAX_BYTES = 64 << 20  # of a document
_SUFFIXES = (".zarr", ".zarr.zip")  # of stores in a folder
_DAMAGED = "the file is damaged or was truncated; restore it, or write it again"


def is_zarr(folder: Path) -> bool:
    """Return whether a folder is a Zarr store, or has entries with the suffix of one."""
    return _is_store(folder) or any(entry.name.endswith(_SUFFIXES) for entry in folder.iterdir())


def is_zarr_zip(names: Sequence[str]) -> bool:
    """Return whether the names in a zip archive belong to a Zarr store, in its root or in its only folder."""
    return any(name.split("/")[-1] in _DOCUMENTS and name.count("/") < 2 for name in names)


def stores_at(path: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the stores at a path, a pattern or a list of paths, in corpus order.

    Raises:
        DataError: there are none.
        ValueError: the list is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise ValueError("expected at least one store, got an empty list")
        return [store for entry in path for store in stores_at(entry)]
    stores = []
    for place in list_places(path):
        with looking(place):
            if not place.is_dir() or _is_store(place):
                stores.append(str(place))
                continue
            inside = [entry for entry in place.iterdir() if entry.name.endswith(_SUFFIXES)]
        if not inside:
            raise DataError(f"expected a folder with {', '.join(_DOCUMENTS)} or Zarr stores, got none", path=str(place))
        stores += map(str, sorted(inside, key=os.fsencode))
    return stores


def _is_store(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _DOCUMENTS)


class Keys(abc.ABC):
    """A store: values by key.

    Args:
        path: path of the folder or archive.
        memory_bytes: maximum bytes of a value.
    """

    def __init__(self, path: str, memory_bytes: int) -> None:
        self.path, self._memory_bytes = path, memory_bytes

    @abc.abstractmethod
    def where(self, key: str) -> str:
        """Return the path of a value, for errors."""

    @abc.abstractmethod
    def names(self, key: str) -> list[str]:
        """Return the names directly below a key, sorted. There may be none."""

    @abc.abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None, *, max_bytes: int = 0) -> bytes | None:
        """Return a value, or a part of it, or None if there is no value.

        Args:
            key: the key.
            start: first byte, counted from the end if negative.
            stop: end of the part, by default the end of the value.
            max_bytes: bytes that the part may take. With 0, as many as a chunk.

        Raises:
            DataError: the value cannot be read, or takes more.
        """

    @abc.abstractmethod
    def files(self, key: str) -> Iterator[str]:
        """Yield the paths of the files at and below a key, its documents first."""

    def close(self) -> None:  # noqa: B027  # folders keep nothing open
        """Close the archive that is open in this process. Reading opens it again."""

    def _bounds(self, key: str, part: slice, size: int, max_bytes: int) -> tuple[int, int]:
        start, stop, _ = part.indices(size)
        if stop - start > (max_bytes or self._memory_bytes):
            raise DataError(
                f"expected at most {max_bytes or self._memory_bytes} bytes (memory), got {stop - start}",
                path=self.where(key),
                hint="raise memory=, or write it in smaller chunks",
            )
        return start, max(start, stop)


class _Folder(Keys):
    def where(self, key: str) -> str:
        return os.path.join(self.path, key)

    def names(self, key: str) -> list[str]:
        try:
            return sorted(os.listdir(self.where(key)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise DataError(f"expected a readable folder: {error.strerror}", path=self.where(key)) from error

    def read(self, key: str, start: int = 0, stop: int | None = None, *, max_bytes: int = 0) -> bytes | None:
        path = self.where(key)
        try:
            with open_regular(path, 0) as file:
                start, stop = self._bounds(key, slice(start, stop), os.fstat(file.fileno()).st_size, max_bytes)
                return pread(file, stop - start, start)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DataError(f"expected a readable file: {error.strerror}", path=path) from error

    def files(self, key: str) -> Iterator[str]:
        described = [path for name in _DOCUMENTS if os.path.isfile(path := self.where(join(key, name)))]
        yield from described
        for folder, _, names in os.walk(self.where(key)):
            yield from (path for name in sorted(names) if (path := os.path.join(folder, name)) not in described)


class _Archive(Keys):
    def __init__(self, path: str, memory_bytes: int) -> None:
        super().__init__(path, memory_bytes)
        self._opened = LruCache(open_archive, lambda _: 1, 1)
        # An archive of a folder, rather than of its content, has the folder's name before all keys.
        names = [name for name in self._archive().namelist() if name.split("/")[-1] in _DOCUMENTS]
        self._root = min(names, key=lambda name: name.count("/"), default="").rpartition("/")[0]

    def _archive(self) -> zipfile.ZipFile:
        archive: zipfile.ZipFile = self._opened.get(self.path)
        return archive

    def where(self, key: str) -> str:
        return f"{self.path}@/{self._full_key(key)}"

    def _full_key(self, key: str) -> str:
        return "/".join(filter(None, (self._root, key)))

    def names(self, key: str) -> list[str]:
        prefix = self._full_key(key) + "/" if self._full_key(key) else ""
        names = (name for name in self._archive().namelist() if name.startswith(prefix))
        return sorted({name[len(prefix) :].split("/")[0] for name in names} - {""})

    def read(self, key: str, start: int = 0, stop: int | None = None, *, max_bytes: int = 0) -> bytes | None:
        archive = self._archive()
        try:
            member = archive.getinfo(self._full_key(key))
        except KeyError:
            return None
        complete = (start, stop) == (0, None)
        start, stop = self._bounds(key, slice(start, stop), member.file_size, max_bytes)
        try:
            return read_member(archive, member) if complete else read_part(archive, member, start, stop)
        except DataError as error:
            raise error.located(path=self.where(key)) from None

    def files(self, key: str) -> Iterator[str]:
        yield self.path

    def close(self) -> None:
        self._opened.clear()


class StoredFiles(Sequence[str]):
    """Paths of the files of arrays. They are listed only when they are needed, as there may be millions.

    Args:
        arrays: stores and keys.
    """

    def __init__(self, arrays: list[tuple[Keys, str]]) -> None:
        self._arrays = arrays

    def __iter__(self) -> Iterator[str]:
        archives = set()
        for keys, key in self._arrays:
            for path in keys.files(key):
                if path == keys.path and path in archives:
                    continue
                archives.add(keys.path)
                yield path

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        return self._paths[index]

    @functools.cached_property
    def _paths(self) -> list[str]:
        return list(iter(self))


def open_keys(path: str, memory_bytes: int) -> Keys:
    """Open a store.

    Raises:
        DataError: there is no store.
    """
    with looking(path):
        folder = os.path.isdir(path)
    return _Folder(path, memory_bytes) if folder else _Archive(path, memory_bytes)


def join(*keys: str) -> str:
    """Return the key of a path whose parts are ``keys``."""
    return "/".join(part for key in keys for part in key.split("/") if part)


def metadata(keys: Keys, key: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the content of the document that describes a group or an array, or None if there is no
    document.

    Raises:
        DataError: the document is damaged.
        SchemaError: it names the codec of pickles.
    """
    if any(part in (".", "..") for part in key.split("/")):
        return None
    for name in _DOCUMENTS:
        text = keys.read(join(key, name), max_bytes=_MAX_BYTES)
        if text is not None:
            return name, _parse_document(text, keys.where(join(key, name)))
    return None


def attributes_of(keys: Keys, key: str, described: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of an array: of its document, or in format 2 of a document beside it.

    Raises:
        DataError: the document is damaged.
    """
    attributes = described.get("attributes")
    if attributes is None:
        text = keys.read(join(key, V2_ATTRIBUTES), max_bytes=_MAX_BYTES)
        attributes = None if text is None else _parse_document(text, keys.where(join(key, V2_ATTRIBUTES)))
    return attributes if isinstance(attributes, dict) else {}


def is_array(entry: tuple[str, dict[str, Any]] | None) -> bool:
    """Return whether a document describes an array."""
    return entry is not None and (entry[0] == V2_ARRAY or (entry[0] == V3 and entry[1].get("node_type") == "array"))


def _parse_document(text: bytes, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
        if not isinstance(parsed, dict):
            raise ValueError(f"expected an object, got {type(parsed).__name__}")
        named = {str(name) for name in _codec_names(parsed)}
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected readable metadata: {error}", path=path, hint=_DAMAGED) from error
    if pickles := [name for name in named if "pickle" in name.lower()]:
        raise SchemaError(
            f"expected numbers or strings, got the codec `{pickles[0]}`: {path}; feedline never unpickles data: write "
            "the array with another codec, or declare the streams that you need: x=fl.Stream(..., field='name')"
        )
    return parsed


def _codec_names(node: Any) -> Iterator[Any]:
    """Yield every value, at any depth, that may be the name of a codec."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("id", "name") if key in node)
        for key, value in node.items():
            if key not in ("attributes", "consolidated_metadata"):  # these name no codec, or describe other arrays
                yield from _codec_names(value)
    elif isinstance(node, list):
        for value in node:
            yield from _codec_names(value)
