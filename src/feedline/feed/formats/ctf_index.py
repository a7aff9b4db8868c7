"""The index of a CTF file: where its sequences are and how they are chunked, built once and kept on disk.

Guarantees: an index is used only if it belongs to these options and to this very file (size, modification time,
checksum of its head, middle and tail) and was written by this user, by root or by the owner of the text; a stale or
damaged one is built anew; entries are compared with their
checksum, their chunk and the file's size before their first use; writing is atomic, so that several processes may
build one index at the same time. Costs: building reads the file once, at about the speed of the disk, and holds one
block of it; opening reads O(chunks); the entries, 24 bytes a sequence, stay in the mapped index file.

Layout, little endian::

    header   128 bytes, see _HEADER; its checksum covers all that follows it in the header
    entries  per sequence  key u64, offset u64, size u32, samples u32
    table    per chunk     sequences u64, samples u64, offset u64, bytes u64, crc32c of its entries u32, 0 u32
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file, room_for
from feedline.feed.files.cache import READ_ONLY, is_trusted, own_folder, refuse_foreign, user_cache
from feedline.feed.files.paths import INDEX_SUFFIX, open_file, open_regular, read_at, status_of
from feedline.feed.files.replaced import Watched
from feedline.feed.files.streaming import blocks
from feedline.feed.formats.ctf_errors import describe_index_error

ENTRY = np.dtype([("key", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("samples", "<u4")])
CHUNK = np.dtype(
    [("sequences", "<u8"), ("samples", "<u8"), ("offset", "<u8"), ("bytes", "<u8"), ("crc", "<u4"), ("zero", "<u4")]
)
Progress = Callable[[int, int], None]
Cache = bool | str | os.PathLike[str]

_MAGIC = b"FLCTFIDX"
_VERSION = 1
_HEADER = struct.Struct("<8sIIIIQqQQQQI16s")
_HEADER_BYTES = 128
_CRC_END = 12  # magic and the header's checksum
_HAS_IDS, _SINGLE = 1, 2
_BLOCK = 4 << 20
_SAMPLE = 64 << 10

_log = logging.getLogger("feedline")


@dataclass(frozen=True)
class IndexOptions:
    """What an index depends on besides the file.

    Attributes:
        size_stream: field of the stream that defines the size, or None.
        skip_ids: every line is a sequence.
        lenient: blank lines do not count.
        chunk_size: bytes of text that a chunk holds at most, unless one sequence alone is longer.
    """

    size_stream: str | None
    skip_ids: bool
    lenient: bool
    chunk_size: int

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for the options."""
        return hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=16).digest()

    @property
    def variant(self) -> str:
        """What tells the index files of one text apart."""
        return self.digest[:5].hex()


class Header(NamedTuple):
    """The fixed part of an index file; field by field as in `_HEADER`."""

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

    def pack(self) -> bytes:
        """The header's bytes with the right checksum."""
        body = _HEADER.pack(*self)[_CRC_END:].ljust(_HEADER_BYTES - _CRC_END, b"\0")
        return self.magic + struct.pack("<I", _native.crc32c(body)) + body


class DamagedIndexError(Exception):
    """An index file is not what was written; it says what is wrong. Build it anew."""


class CtfIndex:
    """A complete index, mapped. Made by `open_index`.

    Attributes:
        header: counts and what tells whether the index belongs to the text.
        table: one `CHUNK` record per chunk.
        first: int64 (chunks + 1,), the number of sequences before each chunk.
    """

    def __init__(self, file: BinaryIO, place: Path | None = None) -> None:
        """``place``: where the file is, if others can get at it."""
        raw = os.pread(file.fileno(), _HEADER_BYTES, 0)
        if len(raw) < _HEADER_BYTES or raw[:8] != _MAGIC:
            raise DamagedIndexError("no index")
        self.header = head = Header(*_HEADER.unpack_from(raw))
        if head.crc != _native.crc32c(raw[_CRC_END:]) or head.version != _VERSION:
            raise DamagedIndexError("a damaged header or another version")
        table_at = _HEADER_BYTES + head.sequences * ENTRY.itemsize
        status = os.fstat(file.fileno())
        size = status.st_size
        if size != table_at + head.chunks * CHUNK.itemsize:
            raise DamagedIndexError(f"{size} bytes")
        table = os.pread(file.fileno(), size - table_at, table_at)
        if _native.crc32c(table) != head.table_crc:
            raise DamagedIndexError("a damaged chunk table")
        self.table = np.frombuffer(table, CHUNK)
        size_of_text, rows = np.uint64(min(head.file_size, 2**63 - 1)), self.table
        # Whoever wrote it wrote the checksums too: what is added up later has to stay a number.
        if (rows["offset"] > size_of_text).any() or (rows["bytes"] > size_of_text - rows["offset"]).any():
            raise DamagedIndexError("chunks that lie outside the text")
        if (rows["samples"] > rows["sequences"] * np.uint64(2**32)).any() or not 0 <= head.samples < 2**63:
            raise DamagedIndexError("chunks of impossibly many samples")
        self.first = np.concatenate([[0], np.cumsum(self.table["sequences"], dtype=np.int64)])
        if self.first[-1] != head.sequences or (self.table["sequences"] > head.sequences).any():
            raise DamagedIndexError("a chunk table of other sequences")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._watched = Watched(mapped, status, place)
        self._entries = np.frombuffer(mapped, ENTRY, head.sequences, _HEADER_BYTES)
        self._checked = np.zeros(head.chunks, np.bool_)

    @property
    def has_ids(self) -> bool:
        """Ids part the sequences; otherwise every line is one."""
        return bool(self.header.flags & _HAS_IDS)

    @property
    def single(self) -> bool:
        """Every sequence has exactly one sample."""
        return bool(self.header.flags & _SINGLE)

    def entries(self, chunk: int) -> NDArray[Any]:
        """The `ENTRY` records of a chunk: a view of the file, checked.

        Raises:
            DamagedIndexError: they are not what was written.
        """
        self._look_again()
        entries = self._entries[self.first[chunk] : self.first[chunk + 1]]
        if not self._checked[chunk]:
            if not self._is_sound(self.table[chunk], entries):
                raise DamagedIndexError(f"damaged entries in chunk {chunk}")
            self._checked[chunk] = True
        return entries

    def at(self, ordinals: NDArray[np.int64], field: str | None = None) -> NDArray[Any]:
        """The `ENTRY` records of sequences, each ``0 <= ordinal < sequences``, or one field: a checked copy.

        Raises:
            DamagedIndexError: they are not what was written.
        """
        self._look_again()
        if not self._checked.all():
            for chunk in np.unique(np.searchsorted(self.first, ordinals, side="right") - 1).tolist():
                self.entries(chunk)
        return self._entries[ordinals] if field is None else self._entries[field][ordinals]

    def _look_again(self) -> None:
        """Check anew what somebody has written to."""
        if self._watched.cut:
            raise DamagedIndexError(f"cut to {self._watched.size()} bytes since it was opened")
        if self._watched.changed():
            self._checked[:] = False

    def _is_sound(self, row: Any, entries: NDArray[Any]) -> bool:
        # A checksum does not tell who wrote the file, so that bounds are looked at as well.
        if len(entries) == 0 or _native.crc32c(entries) != row["crc"]:
            return False
        size = self.header.file_size
        if int(entries["offset"].max()) > size:
            return False
        begin = entries["offset"].astype(np.int64)
        end = begin + entries["size"]
        return bool(
            begin[0] == row["offset"]
            and end[-1] == row["offset"] + row["bytes"]
            and end[-1] <= size
            and (begin[1:] >= end[:-1]).all()
            and entries["samples"].sum(dtype=np.uint64) == row["samples"]
        )

    def belongs_to(self, text: BinaryIO, options: IndexOptions) -> bool:
        """Was it built for these options from what is in ``text`` now?"""
        now = status_of(text)
        return (
            self.header.options == options.digest
            and self.header.file_size == now.st_size
            and self.header.mtime_ns == now.st_mtime_ns
            and self.header.sample == _content_sample(text, now.st_size)
        )


def open_index(
    path: Path, options: IndexOptions, cache: Cache = True, progress: Progress | None = None, rebuild: bool = False
) -> CtfIndex:
    """The index of the text at ``path``: a stored one that fits, else built and stored.

    Args:
        path: the text.
        options: what it is indexed for.
        cache: True: the index lies beside the text, or in the user's cache folder where it cannot be written there;
            a folder: in there; False: in a temporary file without a name.
        progress: called with (bytes done, bytes in all) after each block; what it raises ends the indexing.
        rebuild: do not look for a stored one.

    Raises:
        DataError: the text is no CTF or changes meanwhile, the index cannot be written, or the cache folder is
            somebody else's, or the text cannot be opened.
    """
    with open_file(path) as text:
        if cache is False:
            hint = "set TMPDIR to a folder with room, or pass cache=<a folder with room>"
            with (
                room_for(f"the index of {path.name}", tempfile.gettempdir(), path, hint),
                tempfile.TemporaryFile(prefix="feedline-index-") as file,
            ):
                return _build(text, path, options, file, progress)
        hint = "pass cache=<a folder with room>, or cache=False for a temporary file"
        beside = _beside(path, options)
        if cache is True:
            targets = [beside, _in_folder(user_cache(), path, options)]
        else:
            refuse_foreign(Path(cache))
            targets = [_in_folder(Path(cache), path, options)]
        for target in [] if rebuild else targets[:]:
            try:
                found = _stored(text, target, options)
            except _ForeignIndexError as foreign:
                _log.info("%s", foreign)
                if target is beside:
                    targets.remove(target)  # left alone: whoever wrote it would only build his anew in turn
                continue
            if found is not None:
                return found
        for target in targets:
            try:
                if target is not beside:
                    with room_for(target.name, target.parent, target, hint):
                        own_folder(target.parent)
                # Whoever may write the text need not write its index: it is replaced, never changed.
                mode = stat.S_IMODE(status_of(text).st_mode) & 0o644 | 0o600
                with atomic_file(target, mode, hint) as file:
                    return _build(text, path, options, file, progress, target)
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                refusal = error
        raise DataError(
            f"expected to write an index to {target.parent}, got: {refusal.strerror}",
            path=str(path),
            hint="pass cache=<a folder of yours>, or cache=False to index it for this run alone",
        ) from refusal


# ---- where it lies ------------------------------------------------------------------------------------


def _beside(path: Path, options: IndexOptions) -> Path:
    return path.with_name(f"{path.name[:180]}.{options.variant}{INDEX_SUFFIX}")


def _in_folder(folder: Path, path: Path, options: IndexOptions) -> Path:
    place = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=6).hexdigest()
    return folder / f"{path.name[:160]}.{place}.{options.variant}{INDEX_SUFFIX}"


class _ForeignIndexError(Exception):
    """An index that somebody wrote whom there is no reason to believe."""


def _stored(text: BinaryIO, place: Path, options: IndexOptions) -> CtfIndex | None:
    try:
        with open_regular(place, buffering=0) as file:
            if not is_trusted(file, place.parent, {os.fstat(text.fileno()).st_uid}):
                raise _ForeignIndexError(
                    f"the index {place} is not used: it lies where others can write, and was written by user "
                    f"{os.fstat(file.fileno()).st_uid} or can be"
                )
            index = CtfIndex(file, place)
            if index.belongs_to(text, options):
                return index
            _log.info("the index %s belongs to another state of the file; building it anew", place)
    except FileNotFoundError:
        pass
    except (DamagedIndexError, OSError, ValueError) as error:
        _log.warning("the index %s is not usable (%s); building it anew", place, error)
    return None


# ---- building -----------------------------------------------------------------------------------------


def _content_sample(text: BinaryIO, size: int) -> int:
    """Checksum of the first, middle and last 64 KiB: what a change without a new size or time is caught by."""
    crc = 0
    for at in sorted({0, max(0, size // 2 - _SAMPLE // 2), max(0, size - _SAMPLE)}):
        crc = _native.crc32c(read_at(text, _SAMPLE, at), crc)
    return crc


class _ChunkTable:
    """Deals entries into chunks as they come; keeps O(chunks)."""

    def __init__(self, chunk_size: int) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.single = True
        self._limit = chunk_size
        self._sequences = self._samples = self._begin = self._end = self._crc = 0

    def add(self, entries: NDArray[Any]) -> None:
        end = entries["offset"].astype(np.int64) + entries["size"]
        # CNTK's rule: a chunk closes when its bytes, gaps included, and those of the next sequence pass the limit.
        reach = np.concatenate([[self._end], end[:-1]]) + entries["size"]
        self.single &= bool((entries["samples"] == 1).all())
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
    text: BinaryIO,
    path: Path,
    options: IndexOptions,
    file: BinaryIO,
    progress: Progress | None,
    place: Path | None = None,
) -> CtfIndex:
    before = status_of(text)
    field = None if options.size_stream is None else options.size_stream.encode()
    indexer = _native.CtfIndexer(field, options.skip_ids, options.lenient)
    table = _ChunkTable(options.chunk_size)
    file.write(bytes(_HEADER_BYTES))
    done = sequences = samples = 0

    def take(found: NDArray[np.uint8]) -> None:
        nonlocal sequences, samples
        if indexer.error is not None:
            raise describe_index_error(path, text, *indexer.error)
        entries = found.view(ENTRY)
        table.add(entries)
        sequences += len(entries)
        samples += int(entries["samples"].sum(dtype=np.uint64))
        file.write(entries.data)

    for part in blocks(text, path, before.st_size, _BLOCK):
        take(indexer.feed(part))
        done += len(part)
        if progress is not None:
            progress(done, before.st_size)
    take(indexer.finish())
    table.close()
    rows = np.array(table.rows, CHUNK)
    header = Header(
        magic=_MAGIC,
        crc=0,
        version=_VERSION,
        flags=(_HAS_IDS if indexer.has_ids else 0) | (_SINGLE if table.single else 0),
        sample=_content_sample(text, before.st_size),
        file_size=before.st_size,
        mtime_ns=before.st_mtime_ns,
        sequences=sequences,
        samples=samples,
        chunks=len(rows),
        lines=indexer.lines,
        table_crc=_native.crc32c(rows),
        options=options.digest,
    )
    file.write(rows.data)
    file.seek(0)
    file.write(header.pack())
    file.flush()
    after = status_of(text)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise DataError("expected a file that stays as it is, got one that changes while it is indexed", path=str(path))
    return CtfIndex(file, place)
