"""The index of a file: the locations of its sequences and their chunks, built once and kept on disk.

Guarantees: an index is used only if it matches the `IndexKind` and the file (size, modification time, checksum of its
head, middle and tail) and was written by this user, by root or by the owner of the text. A stale or damaged index is
rebuilt. A *shipped* index, which `fl.index` writes beside the file, survives copying: it is used whatever the time of
modification, and without a look at an object whose ETag it has. Entries are checked against their checksum, their chunk
and the file's size before their first use. Writing is atomic, so that several processes may build an index at the same
time. Cost: building reads the file once, at about the speed of the disk, and holds one block of it. Opening reads
O(chunks). The entries, 24 bytes per sequence, remain in the mapped index file.

Layout, little endian::

    header   128 bytes, see _HEADER. Its checksum covers the rest of the header
    entries  per sequence  key u64, offset u64, size u32, samples u32
    table    per chunk     sequences u64, samples u64, offset u64, bytes u64, crc32c of its entries u32, 0 u32
    points   of a compressed text only, see `files.compressed_text`: `POINT` records, and the windows of some of them
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native, system
from feedline.concurrency.thread_pool import call_each
from feedline.errors import DataError, shown_path
from feedline.feed.files.atomic import atomic_file, room_for
from feedline.feed.files.cache_files import READ_ONLY, is_trusted, own_folder, refuse_foreign, user_cache
from feedline.feed.files.change_detection import Watched
from feedline.feed.files.compressed_text import MAX_SPAN, POINT, WINDOW_BYTES, Unpacker
from feedline.feed.files.compressed_text import unpacker as make_unpacker
from feedline.feed.files.paths import INDEX_SUFFIX, PathLike, open_file, open_regular, read_at, status_of
from feedline.feed.files.remote import object_at, remote_of
from feedline.feed.files.streaming import blocks
from feedline.feed.progress_bar import Progress, showing
from feedline.feed.unique import distinct

ENTRY = np.dtype([("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("samples", "<u4")])
CHUNK = np.dtype(
    [("sequences", "<u8"), ("samples", "<u8"), ("offset", "<u8"), ("bytes", "<u8"), ("crc", "<u4"), ("zero", "<u4")]
)
Cache = bool | PathLike

_AT_ONCE = 1 << 16  # entries that are checked in one step
_MAGIC = b"FLCTFIDX"
_VERSION = 1
_HEADER = struct.Struct("<8sIIIIQqQQQQI16sQQI8sI")
_HEADER_BYTES = 128
_CRC_END = 12  # magic and the header's checksum
_HAS_IDS, _SINGLE, _EQUAL = 1, 2, 4
_BLOCK_BYTES = 4 << 20
_SAMPLE_BYTES = 64 << 10
_FETCH_BYTES = 8 << 20
_FETCHES = 32  # of shipped indexes at a time

_log = logging.getLogger("feedline")


def scan_blocks(
    indexer: Any, text: BinaryIO, path: Path, size: int, unpacker: Unpacker | None
) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield the entries that an indexer finds in a text, block after block, and the bytes done."""
    done = 0
    parts = blocks(text, path, size, _BLOCK_BYTES) if unpacker is None else unpacker.parts(text, path, size)
    for part in parts:
        done = done + len(part) if unpacker is None else unpacker.done
        yield indexer.feed(part), done
    yield indexer.finish(), size


@dataclass(frozen=True)
class IndexKind:
    """How a file is indexed.

    Attributes:
        chunk_size: maximum bytes of a chunk, unless a single sequence is longer.
        settings: the options that the entries depend on, of JSON types. An index is used only with equal settings.
        indexer: function that returns a native indexer.
        describe: function that returns the error of an indexer for path, open text, code and byte.
        scan: function that yields the entries that an indexer finds, and the bytes done. Its arguments are indexer,
            open text, path, size of the file, and unpacker.
        packing: function that returns the compression of an open text, such as ``"gzip"``, or None.
        counts_gaps: whether the bytes between two sequences of a chunk count towards its size, unlike in CNTK.
    """

    chunk_size: int
    settings: Any
    indexer: Callable[[], Any]
    describe: Callable[[Path, BinaryIO, int, int], DataError]
    scan: Callable[[Any, BinaryIO, Path, int, Unpacker | None], Iterator[tuple[NDArray[np.uint8], int]]] = scan_blocks
    packing: Callable[[BinaryIO], str | None] = lambda text: None
    counts_gaps: bool = False

    @property
    def digest(self) -> bytes:
        """16 bytes that identify the chunk size and the settings."""
        return hashlib.blake2b(json.dumps([self.chunk_size, self.settings]).encode(), digest_size=16).digest()

    @property
    def variant(self) -> str:
        """Hex digits that distinguish the index files of one text."""
        return self.digest[:5].hex()


class Header(NamedTuple):
    """The fixed part of an index file, with the fields of `_HEADER`."""

    magic: bytes
    crc: int
    version: int
    flags: int
    sample: int
    file_size: int
    mtime_ns: int
    sequences: int
    samples: int
    chunks: int
    lines: int
    table_crc: int
    options: bytes
    unpacked: int = 0  # bytes of text of a compressed file
    points: int = 0  # of a compressed file
    points_crc: int = 0
    etag: bytes = bytes(8)  # hash of the ETag of an object, or zeros
    shipped: int = 0  # 1: made to be copied with the text. No flag, as the digest of CTF has the flags

    @property
    def text_size(self) -> int:
        """Size of the text that the entries point into."""
        return self.unpacked if self.points else self.file_size

    def pack(self) -> bytes:
        """Return the header's bytes with the correct checksum."""
        body = _HEADER.pack(*self)[_CRC_END:].ljust(_HEADER_BYTES - _CRC_END, b"\0")
        return self.magic + struct.pack("<I", _native.crc32c(body)) + body


class DamagedIndexError(Exception):
    """An index file is damaged, in the way that the message describes, and must be rebuilt."""


class TextIndex:
    """A complete, mapped index. Created by `open_index`.

    Attributes:
        header: counts, and the fields that identify the text.
        table: one `CHUNK` record per chunk.
        first: int64 (chunks + 1,), number of sequences before each chunk.
        modified_ns: time of modification of the text to which the index belongs.
        points: `POINT` records of a compressed text.
    """

    def __init__(self, file: BinaryIO, place: Path | None = None) -> None:
        """Open an index. ``place`` is the path of the file, if other processes can modify it."""
        raw = os.pread(file.fileno(), _HEADER_BYTES, 0)
        if len(raw) < _HEADER_BYTES or raw[:8] != _MAGIC:
            raise DamagedIndexError("no index")
        self.header = head = Header(*_HEADER.unpack_from(raw))
        self.modified_ns = head.mtime_ns
        if head.crc != _native.crc32c(raw[_CRC_END:]) or head.version != _VERSION:
            raise DamagedIndexError("a damaged header or another version")
        table_at = _HEADER_BYTES + head.sequences * ENTRY.itemsize
        status = os.fstat(file.fileno())
        size = status.st_size
        points_at = table_at + head.chunks * CHUNK.itemsize
        self._windows_at = points_at + head.points * POINT.itemsize
        if size < self._windows_at or (head.points == 0 and size != points_at):
            raise DamagedIndexError(f"{size} bytes")
        table = os.pread(file.fileno(), points_at - table_at, table_at)
        if _native.crc32c(table) != head.table_crc:
            raise DamagedIndexError("a damaged chunk table")
        self.table = np.frombuffer(table, CHUNK)
        self.points = np.frombuffer(os.pread(file.fileno(), self._windows_at - points_at, points_at), POINT)
        if head.points:
            self._check_points(size - self._windows_at)
        size_of_text, rows = np.uint64(min(head.text_size, 2**63 - 1)), self.table
        # The checksums may have the same author as the file, so make sure that later sums do not overflow.
        if (rows["offset"] > size_of_text).any() or (rows["bytes"] > size_of_text - rows["offset"]).any():
            raise DamagedIndexError("chunks outside the text")
        if (rows["samples"] > rows["sequences"] * np.uint64(2**32)).any() or not 0 <= head.samples < 2**63:
            raise DamagedIndexError("chunks of impossibly many samples")
        self.first = np.concatenate([[0], np.cumsum(self.table["sequences"], dtype=np.int64)])
        if self.first[-1] != head.sequences or (self.table["sequences"] > head.sequences).any():
            raise DamagedIndexError("a chunk table of other sequences")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        system.note_map(mapped, place)
        self._watched = Watched(mapped, status, place)
        self._mapped = mapped
        self._entries = np.frombuffer(mapped, ENTRY, head.sequences, _HEADER_BYTES)
        self._checked = np.zeros(head.chunks, np.bool_)

    def _check_points(self, windows: int) -> None:
        points, head = self.points, self.header
        if _native.crc32c(points) != head.points_crc or len(points) != head.points:
            raise DamagedIndexError("damaged points")
        packed, text = points["packed"], points["text"]
        if (
            (packed[1:] < packed[:-1]).any()
            or (text[1:] < text[:-1]).any()
            or (int(packed[0]), int(text[0]), int(text[-1])) != (0, 0, head.unpacked)
            or int(packed[-1]) > head.file_size
            or (text[1:] - text[:-1] > np.uint64(MAX_SPAN)).any()
            or head.unpacked >= 2**62
            or (points["bits"] > 7).any()
            or (points["window"][points["kind"] != 0] > np.uint64(max(0, windows - WINDOW_BYTES))).any()
            or ((points["kind"] != 0).any() and windows < WINDOW_BYTES)
        ):
            raise DamagedIndexError("impossible points")

    def window(self, number: int) -> NDArray[np.uint8] | None:
        """Return the checked text before point ``number``, or None if the point needs no text.

        Raises:
            DamagedIndexError: it is damaged.
        """
        point = self.points[number]
        if not point["kind"]:
            return None
        self._drop_stale_checks()
        begin = self._windows_at + int(point["window"])
        window = np.frombuffer(self._mapped[begin : begin + WINDOW_BYTES], np.uint8)
        if _native.crc32c(window) != point["window_crc"]:
            raise DamagedIndexError(f"a damaged window of point {number}")
        return window

    @property
    def has_ids(self) -> bool:
        """Whether ids separate the sequences. Otherwise every line is one."""
        return bool(self.header.flags & _HAS_IDS)

    @property
    def single(self) -> bool:
        """Whether every sequence has exactly one sample."""
        return bool(self.header.flags & _SINGLE)

    @property
    def equal(self) -> bool:
        """Whether all sequences with samples have the same number of them."""
        return bool(self.header.flags & _EQUAL)

    def entries(self, chunk: int) -> NDArray[Any]:
        """Return the checked `ENTRY` records of a chunk, as a view of the file.

        Raises:
            DamagedIndexError: they are damaged.
        """
        self._drop_stale_checks()
        entries = self._entries[self.first[chunk] : self.first[chunk + 1]]
        if not self._checked[chunk]:
            if not self._is_sound(self.table[chunk], entries):
                raise DamagedIndexError(f"damaged entries in chunk {chunk}")
            self._checked[chunk] = True
        return entries

    def at(self, ordinals: NDArray[np.int64], field: str | None = None) -> NDArray[Any]:
        """Return a checked copy of the `ENTRY` records of sequences, or of one field. Ordinals are below ``sequences``.

        Raises:
            DamagedIndexError: they are damaged.
        """
        self._drop_stale_checks()
        if not self._checked.all():
            for chunk in distinct(np.searchsorted(self.first, ordinals, side="right") - 1).tolist():
                self.entries(chunk)
        return self._entries[ordinals] if field is None else self._entries[field][ordinals]

    def _drop_stale_checks(self) -> None:
        """Forget checks that a modification of the file has invalidated."""
        if self._watched.resized:
            raise DamagedIndexError(f"truncated to {self._watched.size()} bytes since it was opened")
        if self._watched.modified_in_place():
            self._checked[:] = False

    def _is_sound(self, row: Any, entries: NDArray[Any]) -> bool:
        # A valid checksum does not prove who wrote the file, so bounds are checked as well. In blocks, as a chunk of
        # tiny rows has more bytes of entries than of text.
        if len(entries) == 0 or entries[0]["offset"] != row["offset"]:
            return False
        crc, samples, before, size = 0, 0, 0, self.header.text_size
        for first in range(0, len(entries), _AT_ONCE):
            block = entries[first : first + _AT_ONCE]
            crc = _native.crc32c(block, crc)
            if int(block["offset"].max()) > size:
                return False
            begin = block["offset"].astype(np.int64)
            end = begin + block["size"]
            if begin[0] < before or not (begin[1:] >= end[:-1]).all():
                return False
            before, samples = int(end[-1]), samples + int(block["samples"].sum(dtype=np.uint64))
        counts = before == row["offset"] + row["bytes"] and samples == row["samples"]
        return bool(counts and crc == row["crc"] and before <= size)

    @property
    def is_shipped(self) -> bool:
        """Whether the index was made to be copied with the text."""
        return bool(self.header.shipped)

    def difference(self, text: BinaryIO, kind: IndexKind) -> str | None:
        """Return why the index cannot be used for ``text`` as ``kind``. None: it belongs to its current content."""
        now, head = status_of(text), self.header
        if head.options != kind.digest:
            return "it was made for other streams or another chunk_size"
        if head.file_size != now.st_size:
            return f"it is of a file of {head.file_size} bytes, and the file has {now.st_size}"
        if not self.is_shipped and head.mtime_ns != now.st_mtime_ns:
            return "the file was modified since"
        etag = _etag_of(text)
        if not (any(etag) and etag == head.etag) and head.sample != _content_sample(text, now.st_size):
            return "it is of another content of the file"
        self.modified_ns = now.st_mtime_ns
        return None

    def ship(self, file: BinaryIO) -> None:
        """Write the index to a file as one that can be copied with the text."""
        file.write(self.header._replace(shipped=1).pack())
        for begin in range(_HEADER_BYTES, len(self._mapped), _BLOCK_BYTES):
            file.write(self._mapped[begin : begin + _BLOCK_BYTES])


def open_index(
    path: Path, kind: IndexKind, cache: Cache = True, progress: Progress = None, rebuild: bool = False
) -> TextIndex:
    """Return the stored or shipped index of the text at ``path``. If none matches, build and store one.

    Args:
        path: path of the text.
        kind: how to index it.
        cache: folder for the index. With True, next to the text, or in the user's cache folder if that is not writable.
            With False, in a temporary file without a name.
        progress: called with (bytes done, bytes in total) after each block. An exception from it aborts.
            With True, a bar is shown on stderr.
        rebuild: whether to ignore a stored index.

    Raises:
        DataError: the text is not of this kind, cannot be opened or changes meanwhile, the index cannot be written, or
            other users can write to the cache folder.
    """
    with open_file(path) as text:
        adjacent, shipped = _path_next_to(path, kind), shipped_path(path)
        targets = [] if cache is False else _places(path, kind, cache)
        if not rebuild:
            fetch_shipped([path], kind, cache)
            for place in [*targets, *([shipped] if object_at(shipped) is None else [])]:
                try:
                    stored = _load_stored(text, place, kind)
                except _ForeignIndexError as foreign:
                    _log.info("%s", foreign)
                    if place == adjacent:
                        targets.remove(place)  # not replaced, as its owner would just rebuild it in turn
                    continue
                if stored is not None:
                    return stored
        if cache is False:
            hint = "set TMPDIR to a folder with room, or pass cache=<a folder with room>"
            with (
                room_for(f"the index of {path.name}", tempfile.gettempdir(), path, hint),
                tempfile.TemporaryFile(prefix="feedline-index-") as file,
            ):
                return _build(text, path, kind, file=file, progress=progress)
        hint = "pass cache=<a folder with room>, or cache=False for a temporary file"
        for target in targets:
            try:
                if target != adjacent:
                    with room_for(target.name, target.parent, target, hint):
                        own_folder(target.parent)
                # Write permission for the text does not extend to its index, which is replaced, never modified.
                mode = stat.S_IMODE(status_of(text).st_mode) & 0o644 | 0o600
                with atomic_file(target, mode, hint) as file:
                    return _build(text, path, kind, file=file, progress=progress, place=target)
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                refusal = error
        raise DataError(
            f"expected to write an index to {target.parent}, got: {refusal.strerror}",
            path=str(path),
            hint="pass cache=<a folder of yours>, or cache=False to index it for this run only",
        ) from refusal


# ---- location -----------------------------------------------------------------------------------------


def shipped_path(path: Path) -> Path:
    """Return the path of the index that was shipped with a file."""
    return path.with_name(path.name + INDEX_SUFFIX)


def fetch_shipped(paths: Sequence[Path], kind: IndexKind, cache: Cache = True) -> None:
    """Copy the indexes that were shipped with objects to the cache, where it has none, many at a time.

    Args:
        paths: paths of the objects. Those of local files are left out.
        kind, cache: as for `open_index`.

    Raises:
        DataError: an index cannot be fetched, or the cache has no room for it.
    """
    if cache is False:
        return

    def fetch(path: Path) -> None:
        target = _places(path, kind, cache)[0]
        if target.exists():
            return
        own_folder(target.parent)
        with open_regular(shipped_path(path), buffering=0) as shipped, atomic_file(target, 0o600) as file:
            while block := shipped.read(_FETCH_BYTES):
                file.write(block)

    objects = [path for path in paths if object_at(shipped_path(path)) is not None]
    if len(objects) < 2:
        for path in objects:
            fetch(path)
        return
    call_each(fetch, objects, _FETCHES)


def _places(path: Path, kind: IndexKind, cache: PathLike | Literal[True]) -> list[Path]:
    """Return the paths at which an index may be stored, the best one first.

    Raises:
        DataError: others can write to the cache folder.
    """
    if cache is True:
        return [_path_next_to(path, kind), _path_in_folder(user_cache(), path, kind)]
    refuse_foreign(Path(cache))
    return [_path_in_folder(Path(cache), path, kind)]


def _path_next_to(path: Path, kind: IndexKind) -> Path:
    return path.with_name(f"{path.name[:180]}.{kind.variant}{INDEX_SUFFIX}")


def _path_in_folder(folder: Path, path: Path, kind: IndexKind) -> Path:
    place = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=6).hexdigest()
    return folder / f"{path.name[:160]}.{place}.{kind.variant}{INDEX_SUFFIX}"


class _ForeignIndexError(Exception):
    """An index that an untrusted user wrote."""


def _load_stored(text: BinaryIO, place: Path, kind: IndexKind) -> TextIndex | None:
    try:
        with open_regular(place, buffering=0) as file:
            if not is_trusted(file, place.parent, {os.fstat(text.fileno()).st_uid}):
                raise _ForeignIndexError(
                    f"the index {place} is not used: others can write to its folder, and it was written by user "
                    f"{os.fstat(file.fileno()).st_uid} or is writable by others"
                )
            index = TextIndex(file, place)
            difference = index.difference(text, kind)
            if difference is None:
                return index
            if index.is_shipped:
                _log.warning(
                    "the shipped index %s is not used, as %s: the file is scanned; write it again: feedline index",
                    shown_path(str(place)),
                    difference,
                )
            else:
                _log.info("the index %s is not used, as %s; rebuilding it", place, difference)
    except FileNotFoundError:
        pass
    except (DamagedIndexError, OSError, ValueError) as error:
        _log.warning("the index %s is not usable (%s); rebuilding it", place, error)
    return None


# ---- building -----------------------------------------------------------------------------------------


def _etag_of(text: BinaryIO) -> bytes:
    """Return 8 bytes that identify the ETag of an object, or zeros."""
    remote_object = remote_of(text)
    if remote_object is None or not remote_object.etag:
        return bytes(8)
    # Some stores quote ETags in one answer, but not in another.
    return hashlib.blake2b(remote_object.etag.strip('"').encode(), digest_size=8).digest()


def _content_sample(text: BinaryIO, size: int) -> int:
    """Return a checksum of the first, middle and last 64 KiB, to detect changes that keep size and time."""
    crc = 0
    for at in sorted({0, max(0, size // 2 - _SAMPLE_BYTES // 2), max(0, size - _SAMPLE_BYTES)}):
        crc = _native.crc32c(read_at(text, _SAMPLE_BYTES, at), crc)
    return crc


class _ChunkTable:
    """Groups entries into chunks as they arrive, in O(chunks) memory."""

    def __init__(self, chunk_size: int, counts_gaps: bool) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.single = self.equal = True
        self._each = 0  # samples of the first sequence that has some
        self._limit, self._counts_gaps = chunk_size, counts_gaps
        self._sequences = self._samples = self._begin = self._end = self._crc = 0

    def add(self, entries: NDArray[Any]) -> None:
        end = entries["offset"].astype(np.int64) + entries["size"]
        # CNTK's rule: a chunk ends when its bytes, gaps included, plus the bytes of the next sequence exceed the limit.
        reach = end if self._counts_gaps else np.concatenate([[self._end], end[:-1]]) + entries["size"]
        counts = entries["samples"]
        self.single &= bool((counts == 1).all())
        if not self._each and counts.any():
            self._each = int(counts[np.flatnonzero(counts)[0]])
        self.equal &= bool(((counts == self._each) | (counts == 0)).all())
        at, n = 0, len(entries)
        while at < n:
            begun = self._sequences > 0
            if not begun:
                self._begin = int(entries["offset"][at])
            next_at = at if begun else at + 1
            stop = next_at + int(np.searchsorted(reach[next_at:], self._begin + self._limit, side="right"))
            if stop > at:
                part = entries[at:stop]
                self._sequences += len(part)
                self._samples += int(part["samples"].sum(dtype=np.uint64))
                self._end = int(end[stop - 1])
                self._crc = _native.crc32c(part, self._crc)
            if stop < n:
                self.close()
            at = stop

    def close(self) -> None:
        if self._sequences:
            size = self._end - self._begin
            self.rows.append((self._sequences, self._samples, self._begin, size, self._crc, 0))
        self._sequences = self._samples = self._crc = 0


def _build(
    text: BinaryIO, path: Path, kind: IndexKind, *, file: BinaryIO, progress: Progress, place: Path | None = None
) -> TextIndex:
    before = status_of(text)
    indexer = kind.indexer()
    table = _ChunkTable(kind.chunk_size, kind.counts_gaps)
    file.write(bytes(_HEADER_BYTES))
    sequences = samples = 0
    packing = kind.packing(text)
    unpacker = None if packing is None else make_unpacker(packing)
    with showing(progress, f"indexing {path.name}") as report:
        for records, done in kind.scan(indexer, text, path, before.st_size, unpacker):
            if indexer.error is not None:
                raise kind.describe(path, text, *indexer.error)
            entries = records.view(ENTRY)
            table.add(entries)
            sequences += len(entries)
            samples += int(entries["samples"].sum(dtype=np.uint64))
            file.write(entries.data)
            if report is not None:
                report(done, before.st_size)
    table.close()
    rows = np.array(table.rows, CHUNK)
    points = np.empty(0, POINT) if unpacker is None else unpacker.points()
    header = Header(
        magic=_MAGIC,
        crc=0,
        version=_VERSION,
        flags=(_HAS_IDS if indexer.has_ids else 0) | (_SINGLE if table.single else 0) | (_EQUAL if table.equal else 0),
        sample=_content_sample(text, before.st_size),
        file_size=before.st_size,
        mtime_ns=before.st_mtime_ns,
        sequences=sequences,
        samples=samples,
        chunks=len(rows),
        lines=indexer.lines,
        table_crc=_native.crc32c(rows),
        options=kind.digest,
        unpacked=0 if unpacker is None else unpacker.total,
        points=len(points),
        points_crc=_native.crc32c(points),
        etag=_etag_of(text),
    )
    file.write(rows.data)
    file.write(points.data)
    if unpacker is not None:
        unpacker.windows.seek(0)
        shutil.copyfileobj(unpacker.windows, file)
        unpacker.windows.close()
    file.seek(0)
    file.write(header.pack())
    file.flush()
    after = status_of(text)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DataError("expected an unchanging file, got one that changes while it is indexed", path=str(path))
    return TextIndex(file, place)
