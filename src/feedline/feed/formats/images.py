"""Encoded pictures with labels: folders of classes, and CNTK's map files and base64 files.

Guarantees: classes and files are in torchvision's order, lines of CNTK's files in the order of the file. A picture that
cannot be read is an unreadable sequence with its file or line. Nothing is decoded here. Cost: opening lists the files
(not their sizes, which are estimated from some of them) and keeps the bytes of their names. A chunk is a few files, so
that any window mixes classes, and reading it opens each of its files. A base64 file gets an index, built once, like
CTF's.
"""

from __future__ import annotations

import binascii
import copy
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.data.value import BytesValue, DenseValue, SparseValue, strings_from_list
from feedline.errors import DataError, SchemaError
from feedline.feed.files.archives import open_archive, read_member
from feedline.feed.files.digest import ContentDigest
from feedline.feed.files.lru import LruCache
from feedline.feed.files.paths import PathLike, looking, open_file, open_regular, size_of
from feedline.feed.files.read_into import read_exactly
from feedline.feed.files.remote import object_at
from feedline.feed.formats.cntk.ctf import ctf_index
from feedline.feed.formats.detect_images import SUFFIXES
from feedline.feed.formats.indexed.file_index import Cache
from feedline.feed.formats.indexed.indexed_file import IndexedFile
from feedline.feed.formats.pickled_by_arguments import PickledByArguments
from feedline.feed.formats.unreadable import read_error, reraise_if_transient
from feedline.feed.progress_bar import Progress
from feedline.feed.protocol import (
    CHUNK_MEMORY,
    ChunkInfo,
    Deserializer,
    Extent,
    Fetchable,
    Growing,
    Ints,
    Keyed,
    Piece,
    Selective,
    Unread,
    declared_streams,
    whole_number,
)
from feedline.feed.unique import distinct

CHUNK_FILES = 16
"""Files in a chunk: part of the order. Chunks are small so that a window, made of chunks, mixes distant classes."""

_FIELDS = ("image", "label", "key")
_SIZED_FILES = 256  # whose sizes are looked up when a corpus is opened
_MAX_ARCHIVES = 64  # zip archives that are kept open
_MAX_NAMED = 10  # missing members that an error names
_SKIP = 'pass on_error="skip" to the source to skip such pictures and list them'
_NUMBER = re.compile(rb"[0-9]{1,19}")


class _Images(Deserializer, Selective, PickledByArguments):
    """Encoded pictures with a label and a key each."""

    def _declare(self, streams: Mapping[str, Stream] | None, keywords: Mapping[str, Stream], memory_bytes: int) -> None:
        declared = declared_streams(streams, keywords)
        self.schema = Schema(declared or {"image": Stream(dtype="bytes"), "label": Stream((), "int64")})
        self._memory = whole_number("memory", memory_bytes, 1)
        self._fields = {name: stream.field or name for name, stream in self.schema.items()}
        for name, stream in self.schema.items():
            field = self._fields[name]
            if field not in _FIELDS:
                raise SchemaError(
                    f"expected `image`, `label` or `key` as field of stream `{name}`, got `{field}`; "
                    f"write {name}=fl.Stream(..., field='image')"
                )
            if field == "label" and (stream.is_bytes or (not stream.sparse and stream.shape != ())):
                raise SchemaError(
                    f"expected a number or one-hot, fl.Stream((), 'int64') or fl.Stream(classes, sparse=True), for "
                    f"stream `{name}` of labels, got {stream}"
                )
            if field != "label" and not stream.is_bytes:
                raise SchemaError(
                    f"expected bytes or str for stream `{name}`, got {stream}; declare fl.Stream(dtype='bytes', "
                    f"field='{field}') and decode pictures in an fl.Map"
                )

    def _build_chunk(
        self,
        images: list[bytes],
        labels: Ints,
        keys: list[bytes],
        errors: dict[int, DataError],
        locations: Sequence[dict[str, Any]],
    ) -> Chunk:
        """Return a chunk. Labels that their streams cannot hold are errors.

        ``locations`` has the place of each sequence, for its error.
        """
        values: dict[str, Value] = {}
        for name, stream in self.schema.items():
            field = self._fields[name]
            if field == "image":
                values[name] = _strings(images, stream)
            elif field == "key":
                values[name] = _strings(keys, stream)
            else:
                limit = stream.size if stream.sparse else _label_limit(stream.dtype)
                wrong = (labels < 0) | (labels >= limit)
                for i in np.flatnonzero(wrong).tolist():
                    what = f"expected a label below {limit}, got {labels[i]}" if labels[i] >= 0 else "expected a label"
                    errors.setdefault(i, DataError(what, stream=name, hint=_SKIP, **locations[i]))
                values[name] = _labels(np.where(wrong, 0, labels), stream)
        return Chunk(self.schema, values, errors)


def _strings(samples: list[bytes], stream: Stream) -> BytesValue:
    value = strings_from_list(samples)
    return BytesValue(value.bounds, value.data, None, text=stream.is_text)


def _labels(labels: Ints, stream: Stream) -> Value:
    if not stream.sparse:
        return DenseValue(labels.astype(stream.dtype))
    ones = np.ones(len(labels), stream.dtype)
    return SparseValue(np.arange(len(labels) + 1), labels.astype(np.int32), ones, stream.size, None)


def _label_limit(dtype: np.dtype[Any]) -> int:
    """Return the number of labels that a dtype can hold exactly."""
    if dtype.kind in "iu":
        return int(min(np.iinfo(dtype).max, 2**62)) + 1
    return 2 if dtype.kind == "b" else 1 << (np.finfo(dtype).nmant + 1)


class _ImageFiles(_Images, Fetchable, Growing, Keyed):
    """Pictures that are single files, or members of zip archives."""

    def _set_pictures(self, names: list[bytes], labels: Ints) -> None:
        """Set the names of all pictures, in the form that `_place` parses, and their labels."""
        self._bounds = np.concatenate([[0], np.cumsum([len(name) for name in names], dtype=np.int64)])
        self._names, self._labels = b"".join(names), labels
        self._archives = LruCache(open_archive, lambda _: 1, _MAX_ARCHIVES)
        self._set_sizes()

    def _set_sizes(self) -> None:
        """Set the sizes of chunks, from those of some files."""
        total = len(self._labels)
        sized = distinct(np.linspace(0, total - 1, min(total, _SIZED_FILES)).astype(np.int64))
        self._sizes = np.array([self._size(i) for i in sized.tolist()], np.int64)
        mean = max(1, int(self._sizes.mean()))
        counts = [min(CHUNK_FILES, total - first) for first in range(0, total, CHUNK_FILES)]
        self._table = [ChunkInfo(n, n, n * mean) for n in counts]

    def _name(self, ordinal: int) -> bytes:
        return self._names[self._bounds[ordinal] : self._bounds[ordinal + 1]]

    @abstractmethod
    def _place(self, ordinal: int) -> tuple[str, str | None]:
        """Return the file of a picture and None, or its archive and its name in the archive."""

    def _location(self, ordinal: int) -> dict[str, Any]:
        """Return the place of the label of a picture, for errors."""
        return {"path": self._place(ordinal)[0], "sequence": ordinal}

    def _size(self, ordinal: int) -> int:
        path, inner = self._place(ordinal)
        try:
            return size_of(path) if inner is None else self._archives.get(path).getinfo(inner).file_size
        except (OSError, DataError, KeyError):
            return 0  # reading the picture raises the error

    # ---- description ------------------------------------------------------------------------------

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` is estimated from the sizes of some files."""
        return self._table

    def digest(self) -> str:
        """Return 32 hex digits over names and labels, and sizes of some of the files."""
        content = ContentDigest()
        content.numbers(len(self._labels), CHUNK_FILES)
        content.array(self._labels)
        content.array(np.frombuffer(self._names, np.uint8))
        content.array(self._sizes)
        return content.hexdigest()

    def digests(self) -> Iterator[tuple[int, str]]:
        """Yield the digest of all. See `Growing.digests`."""
        yield len(self._table), self.digest()

    def shorter(self, sequences: int) -> Iterator[Self]:
        """Yield the corpus of the first pictures. See `Growing.shorter`."""
        first = copy.copy(self)
        first._bounds, first._labels = self._bounds[: sequences + 1], self._labels[:sequences]
        first._names = self._names[: self._bounds[sequences]]
        first._set_sizes()
        yield first

    # ---- reading ----------------------------------------------------------------------------------

    def read(self, chunk: int) -> Chunk:
        """Return the pictures of a chunk."""
        if not 0 <= chunk < len(self._table):
            raise IndexError(f"expected a chunk from 0 to {len(self._table) - 1}, got {chunk}")
        return self.select(self._ordinals(chunk))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the pictures ``ordinals``, in that order, reading only their files.

        Raises:
            IndexError: an ordinal is outside the corpus.
        """
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < len(self._labels):
            raise IndexError(f"expected 0 <= ordinal < {len(self._labels)}, got {ordinals.min()} to {ordinals.max()}")
        return self._read_pictures(ordinals, lambda i, ordinal, budget: self._image(ordinal, budget))

    def extents(self, chunk: int) -> list[Extent]:
        """Return the files of a chunk if all are objects in object stores, else none, as they are read one by one."""
        if "image" not in self._fields.values():
            return []
        extents = []
        for path, inner in (self._place(ordinal) for ordinal in self._ordinals(chunk).tolist()):
            remote = object_at(path)
            if remote is None or inner is not None:
                return []
            extents.append(Extent(path, 0, remote.size))
        return extents

    def read_fetched(self, chunk: int, pieces: Sequence[Piece]) -> Chunk:
        """See `Fetchable.read_fetched`."""

        def image(i: int, ordinal: int, budget_bytes: int) -> bytes:
            piece = pieces[i]
            if isinstance(piece, Unread):
                raise read_error(piece, self._place(ordinal)[0], ordinal)
            _check_size(len(piece), budget_bytes)
            return bytes(piece)

        return self._read_pictures(self._ordinals(chunk), image)

    def _ordinals(self, chunk: int) -> Ints:
        first = chunk * CHUNK_FILES
        return np.arange(first, first + self._table[chunk].sequences)

    def _read_pictures(self, ordinals: Ints, read: Callable[[int, int, int], bytes]) -> Chunk:
        """Return pictures as a chunk.

        Args:
            ordinals: ordinals of the pictures.
            read: function of an index into ``ordinals``, the ordinal, and the bytes that the picture may take, which
                returns the content of a file.
        """
        images, errors, budget = [], dict[int, DataError](), self._memory
        reads_images = "image" in self._fields.values()
        numbers = ordinals.tolist()
        for i, ordinal in enumerate(numbers):
            image = b""
            try:
                if reads_images:
                    image = read(i, ordinal, budget)
                    budget -= len(image)
            except DataError as error:
                reraise_if_transient(error)
                errors[i] = error
            images.append(image)
        keys = [self._key(ordinal) for ordinal in numbers] if "key" in self._fields.values() else []
        locations = [self._location(ordinal) for ordinal in numbers]
        return self._build_chunk(images, self._labels[ordinals], keys, errors, locations)

    def _key(self, ordinal: int) -> bytes:
        return self._name(ordinal)

    def _image(self, ordinal: int, memory_bytes: int) -> bytes:
        path, inner = self._place(ordinal)
        try:
            if inner is not None:
                return self._member(path, inner, memory_bytes)
            with open_regular(path, 0) as file:
                _check_size(os.fstat(file.fileno()).st_size, memory_bytes)
                content: bytes = file.read()
        except OSError as error:
            what = f"expected a readable picture: {error.strerror or error}"
            raise DataError(what, path=path, sequence=ordinal, hint=_SKIP) from error
        except DataError as error:
            raise DataError(error.what, path=path, sequence=ordinal, hint=error.hint or _SKIP) from error
        return content

    def _member(self, path: str, inner: str, memory_bytes: int) -> bytes:
        archive = self._archives.get(path)
        try:
            member = archive.getinfo(inner)
        except KeyError as error:
            raise DataError(f"expected `{inner}` in the archive, got no such member", hint=_SKIP) from error
        _check_size(member.file_size, memory_bytes)
        return read_member(archive, member)

    def close(self) -> None:
        """Close archives."""
        self._archives.clear()


def _check_size(size: int, memory_bytes: int) -> None:
    if size > memory_bytes:
        raise DataError(
            f"expected pictures of at most {memory_bytes} bytes more in a chunk (memory), got one of {size}",
            hint=f"raise memory=, or {_SKIP}",
        )


class ImageFolderDeserializer(_ImageFiles):
    """Pictures in folders of classes: ``train/cat/1.jpg``, ``train/dog/7/2.png``.

    In the order of torchvision's ``ImageFolder``: classes by name, and in each class the files of every folder below
    it, by name, in the order of the folders' paths. The label of a class is its place.

    Args:
        path: the folder with the folders of classes.
        streams: stream name to `Stream`, also as keyword arguments. Fields: ``image`` (the file's bytes), ``label`` (a
            number or one-hot, ``fl.Stream(classes, sparse=True)``), and ``key`` (the file's path in the folder). By
            default ``image``, and ``label`` as int64.
        memory: bytes that the pictures of a chunk may take.
        stream_kwargs: more streams.

    Attributes:
        classes: names of the classes, in the order of their labels.

    Raises:
        DataError: there is no such folder, or a class has no pictures.
        SchemaError: a stream has another field, or a type that the field cannot fill.
    """

    def __init__(
        self,
        path: PathLike,
        streams: Mapping[str, Stream] | None = None,
        *,
        memory: int = CHUNK_MEMORY,
        **stream_kwargs: Stream,
    ) -> None:
        self.name = os.fspath(path)
        self._declare(streams, stream_kwargs, memory)
        self._set_arguments(path, dict(self.schema.streams), memory=memory)
        with looking(path):
            self.classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
            names, labels = [], []
            for label, folder in enumerate(self.classes):
                pictures = _list_pictures(self.name, folder)
                if not pictures:
                    raise DataError(
                        f"expected pictures ({', '.join(SUFFIXES)}) in every class, got none in `{folder}`",
                        path=os.path.join(self.name, folder),
                        hint="remove the folder: labels are the numbers of the folders",
                    )
                names += pictures
                labels.append(np.full(len(pictures), label))
        if not names:
            raise DataError("expected a folder with a folder for each class, got none", path=self.name)
        self._set_pictures(names, np.concatenate(labels).astype(np.int64))

    def _place(self, ordinal: int) -> tuple[str, str | None]:
        return os.path.join(self.name, os.fsdecode(self._name(ordinal))), None

    def class_counts(self) -> dict[str, int]:
        """Return the number of pictures in each class, by name."""
        counts = np.bincount(self._labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def paths(self) -> list[str]:
        """Return the path of the first picture."""
        return [self._place(0)[0]]

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return hashes of the files' paths in the folder, without suffix, uint64 (n,)."""
        ordinals = np.asarray(ordinals, np.int64)
        begin, end = (np.ascontiguousarray(self._bounds[ordinals + k]) for k in (0, 1))
        return _native.name_keys(self._names, begin, end)


def _list_pictures(root: str, folder: str) -> list[bytes]:
    """Return the paths of the pictures below a folder, relative to ``root``, in torchvision's order."""
    top = os.path.join(root, folder)
    listed, above = [], {top: frozenset[tuple[int, int]]()}
    for place, folders, files in os.walk(top, onerror=_raise_walk_error, followlinks=True):
        status, outer = os.stat(place), above.pop(place)
        if (status.st_dev, status.st_ino) in outer:  # a link to a folder above it
            folders.clear()
            continue
        inner = outer | {(status.st_dev, status.st_ino)}
        above |= {os.path.join(place, name): inner for name in folders}
        listed.append((place, sorted(files)))
    return [
        os.fsencode(os.path.relpath(os.path.join(place, name), root))
        for place, files in sorted(listed)
        for name in files
        if name.lower().endswith(SUFFIXES)
    ]


def _raise_walk_error(error: OSError) -> None:
    """Raise an error that `os.walk` would ignore: pictures must not be missing silently."""
    raise error


class ImageMapDeserializer(_ImageFiles):
    """Pictures that a map file lists, as CNTK's ``ImageDeserializer`` reads it: ``path<TAB>label`` a line.

    Or ``key<TAB>path<TAB>label``. A path ``archive.zip@/inner/path`` names a member of an archive, and ``...`` in a
    path is the map file's folder.

    Args:
        path: the map file.
        streams: stream name to `Stream`, also as keyword arguments. Fields: ``image`` (the file's bytes), ``label`` (a
            number or one-hot, ``fl.Stream(classes, sparse=True)``), and ``key`` (the line's key, or its number from 0).
            By default ``image``, and ``label`` as int64.
        root: folder that relative paths start from, by default the working directory, as in CNTK.
        memory: bytes that the pictures of a chunk may take.
        stream_kwargs: more streams.

    Raises:
        DataError: the file is missing or empty.
        SchemaError: a stream has another field, or a type that the field cannot fill.
    """

    def __init__(
        self,
        path: PathLike,
        streams: Mapping[str, Stream] | None = None,
        *,
        root: PathLike | None = None,
        memory: int = CHUNK_MEMORY,
        **stream_kwargs: Stream,
    ) -> None:
        self.name = os.fspath(path)
        self._root = os.path.abspath(os.getcwd() if root is None else root)
        self._folder = os.path.dirname(os.path.abspath(path))
        self._declare(streams, stream_kwargs, memory)
        self._set_arguments(path, dict(self.schema.streams), root=self._root, memory=memory)
        with open_file(path, -1) as file:
            lines = file.read().removeprefix(b"\xef\xbb\xbf").split(b"\n")
        if not lines[-1]:
            lines.pop()
        if not lines:
            raise DataError("expected at least one line `path<TAB>label`, got none", path=self.name)
        fields = [line.removesuffix(b"\r").split(b"\t") for line in lines]
        sound = [len(f) > 1 and _NUMBER.fullmatch(f[-1]) and not any(b"\0" in part for part in f) for f in fields]
        labels = [int(f[-1]) if is_sound else -1 for f, is_sound in zip(fields, sound, strict=True)]
        self._keyed = [len(f) > 2 for f in fields]
        # A malformed line is known only by its number.
        names = [b"\t".join(f[:-1][:2]) if label >= 0 else b"" for f, label in zip(fields, labels, strict=True)]
        self._set_pictures(names, np.minimum(np.array(labels, np.float64), 2**62).astype(np.int64))

    def check(self) -> None:
        """Check all lines and the archives that they name, as CNTK does when it opens a map file. Reads no picture.

        Raises:
            DataError: a line is not ``path<TAB>label``, or its label is no class (the error names the first such line),
                or an archive cannot be read or lacks members (the error names them).
        """
        limits = [
            stream.size if stream.sparse else _label_limit(stream.dtype)
            for name, stream in self.schema.items()
            if self._fields[name] == "label"
        ]
        limit = min(limits, default=1 << 63)
        wrong = np.flatnonzero((self._labels < 0) | (self._labels >= limit))
        for i in wrong[:1].tolist():
            label = int(self._labels[i])
            what = "expected `path<TAB>label`, the label a number"
            if label >= 0:
                what = f"expected a label below {limit}, got {label}: exceeding the label dimension"
            raise DataError(what, **self._location(i))
        places = enumerate(map(self._place, range(len(self._labels))))
        members: dict[str, frozenset[str]] = {}
        missing = []
        for i, (path, inner) in places:
            if inner is None:
                continue
            if path not in members:
                members[path] = frozenset(self._archives.get(path).namelist())
            if inner not in members[path]:
                missing.append((i, f"{path}@{inner}"))
        if missing:
            named = ", ".join(name for _, name in missing[:_MAX_NAMED])
            omitted = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
            where = self._location(missing[0][0])
            raise DataError(f"expected these members of archives, got none: {named}{omitted}", **where)

    def _place(self, ordinal: int) -> tuple[str, str | None]:
        name = os.fsdecode(self._name(ordinal).rpartition(b"\t")[2]).replace("...", self._folder)
        archive, at, inner = name.partition("@")
        if not at:
            return os.path.join(self._root, name), None
        inner = inner.replace("\\", "/")
        return os.path.join(self._root, archive), inner.removeprefix("/")

    def _location(self, ordinal: int) -> dict[str, Any]:
        return {"path": self.name, "line": ordinal + 1, "sequence": ordinal}

    def _image(self, ordinal: int, memory_bytes: int) -> bytes:
        if not self._name(ordinal):
            raise DataError("expected `path<TAB>label`, the label a number", hint=_SKIP, **self._location(ordinal))
        return super()._image(ordinal, memory_bytes)

    def _key(self, ordinal: int) -> bytes:
        return self._name(ordinal).partition(b"\t")[0] if self._keyed[ordinal] else b"%d" % ordinal

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return numeric keys as they are, hashes of other keys, or the numbers of lines, uint64 (n,)."""
        return _keys([self._key(ordinal) for ordinal in np.asarray(ordinals).tolist()])

    def paths(self) -> list[str]:
        """Return the paths of the map file and of the first picture."""
        return [self.name, self._place(0)[0]]


def _keys(keys: list[bytes]) -> NDArray[np.uint64]:
    """Return keys by which corpora are joined: numbers as they are, names hashed."""
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    hashes = _native.name_keys(b"".join(keys), starts, ends)
    for i, key in enumerate(keys):
        if _NUMBER.fullmatch(key):
            hashes[i] = int(key)
    return hashes


class Base64ImageDeserializer(_Images, Keyed):
    """Pictures in a text, as CNTK's ``Base64ImageDeserializer`` reads it: ``label<TAB>base64`` a line.

    Or ``key<TAB>label<TAB>base64``. The first line decides for all.

    Args:
        path: the file.
        streams: as for `ImageMapDeserializer`.
        chunk_size: bytes of text in a chunk. Part of the order.
        cache: where to keep the index, as for `CTFDeserializer`.
        memory: bytes that the pictures of a chunk may take.
        progress: function that is called with (bytes done, bytes in total) while indexing. An exception from it
            aborts. With True, a bar is shown on stderr.
        stream_kwargs: more streams.

    Raises:
        DataError: the file is missing or empty, or an index cannot be written.
        SchemaError: a stream has another field, or a type that the field cannot fill.
    """

    def __init__(
        self,
        path: PathLike,
        streams: Mapping[str, Stream] | None = None,
        *,
        chunk_size: int = 32 << 20,
        cache: Cache = True,
        memory: int = CHUNK_MEMORY,
        progress: Progress = None,
        **stream_kwargs: Stream,
    ) -> None:
        self.name = os.fspath(path)
        self._declare(streams, stream_kwargs, memory)
        chunk_size = whole_number("chunk_size", chunk_size, 1)
        self._set_arguments(path, dict(self.schema.streams), chunk_size=chunk_size, cache=cache, memory=memory)
        kind = ctf_index(chunk_size, None, skip_ids=True, lenient=False)
        self._file = IndexedFile(Path(path), kind, cache, progress)
        self._infos = [ChunkInfo(*row) for row in self._file.sizes()]
        self._keyed = len(self._lines(np.zeros(1, np.int64))[0].split(b"\t")) > 2

    def chunks(self) -> list[ChunkInfo]:
        """Return the size of every chunk. ``bytes`` counts its text."""
        return self._infos

    def digest(self) -> str:
        """Return 32 hex digits over the file's size, its chunk table, and excerpts."""
        content, head = ContentDigest(), self._file.index.header
        content.numbers(head.file_size, head.sample, head.sequences)
        content.array(np.frombuffer(self._file.index.table.tobytes(), np.uint8))
        return content.hexdigest()

    def paths(self) -> list[str]:
        """Return the path of the file."""
        return [self.name]

    def keys(self, ordinals: Ints) -> NDArray[np.uint64]:
        """Return numeric keys as they are, hashes of other keys, or the numbers of lines, uint64 (n,)."""
        if not self._keyed:
            return ordinals.astype(np.uint64)
        return _keys([line.partition(b"\t")[0] for line in self._lines(np.asarray(ordinals, np.int64))])

    def read(self, chunk: int) -> Chunk:
        """Return the pictures of a chunk.

        Raises:
            DataError: the file has changed since it was indexed.
        """
        if not 0 <= chunk < len(self._infos):
            raise IndexError(f"expected a chunk from 0 to {len(self._infos) - 1}, got {chunk}")
        first = self._file.index.first
        return self.select(np.arange(first[chunk], first[chunk + 1]))

    def select(self, ordinals: Ints) -> Chunk:
        """Return the pictures ``ordinals``, in that order, reading only their lines.

        Raises:
            IndexError: an ordinal is outside the corpus.
            DataError: the file has changed since it was indexed.
        """
        images, keys, labels = list[bytes](), list[bytes](), np.full(len(ordinals), -1)
        errors, budget = dict[int, DataError](), self._memory
        numbers = ordinals.tolist()
        locations = [{"path": self.name, "line": ordinal + 1, "sequence": ordinal} for ordinal in numbers]
        for i, line in enumerate(self._lines(ordinals)):
            fields = line.split(b"\t")
            image = b""
            try:
                if len(fields) != 2 + self._keyed:
                    shape = "key<TAB>label<TAB>base64" if self._keyed else "label<TAB>base64"
                    raise DataError(f"expected `{shape}`, got {len(fields)} words")
                if not _NUMBER.fullmatch(fields[-2]):
                    raise DataError(f"expected a number as label, got {fields[-2]!r:.60}")
                labels[i] = min(int(fields[-2]), 2**62)
                image = _decode_base64(fields[-1])
                _check_size(len(image), budget)
                budget -= len(image)
            except DataError as error:
                errors[i] = DataError(error.what, hint=error.hint or _SKIP, **locations[i])
            images.append(image if i not in errors else b"")
            keys.append(fields[0] if self._keyed else b"%d" % numbers[i])
        return self._build_chunk(images, labels, keys, errors, locations)

    def _lines(self, ordinals: Ints) -> list[bytes]:
        """Return lines without their ends. Neighbours are read together."""
        count = self._file.index.header.sequences
        if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < count:
            raise IndexError(f"expected 0 <= ordinal < {count}, got {ordinals.min()} to {ordinals.max()}")
        entries = self._file.entries_at(ordinals)
        begin, size = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
        heads = np.flatnonzero(begin != np.concatenate([[-1], (begin + size)[:-1]])).tolist()
        lines: list[bytes] = []
        with self._file.open() as text:
            for a, b in zip(heads, [*heads[1:], len(begin)], strict=True):
                buffer = np.empty(int(begin[b - 1] + size[b - 1] - begin[a]), np.uint8)
                read_exactly(text, buffer, int(begin[a]), self._file.path)
                run, at = buffer.tobytes(), (begin[a:b] - begin[a]).tolist()
                lines += [run[i : i + n].rstrip(b"\r\n") for i, n in zip(at, size[a:b].tolist(), strict=True)]
            self._file.compare(text)
        return lines


_TRAILING = re.compile(rb"[^A-Za-z0-9+/=]+\Z")


def _decode_base64(text: bytes) -> bytes:
    try:
        picture = binascii.a2b_base64(_TRAILING.sub(b"", text), strict_mode=True)
    except binascii.Error as error:
        raise DataError(f"expected base64: {error}") from error
    if not picture:
        raise DataError("expected a picture in base64, got none")
    return picture


def files_in_map(path: str) -> list[str]:
    """Return the paths of the pictures and archives in a map file. Relative paths start from its folder."""
    corpus = ImageMapDeserializer(path, {"label": Stream((), "int64")}, root=os.path.dirname(path))
    return list(dict.fromkeys(corpus._place(i)[0] for i in range(len(corpus._labels)) if corpus._name(i)))


def open_map(paths: list[str], streams: Mapping[str, Stream], memory_bytes: int) -> ImageMapDeserializer:
    """Open a map file. See `open_corpus`."""
    # A store has no working directory.
    root = os.path.dirname(paths[0]) if object_at(paths[0]) is not None else None
    return ImageMapDeserializer(paths[0], streams, root=root, memory=memory_bytes)
