"""Text packed by gzip, zlib or Zstandard, read from any place: one pass finds points where decoding can begin, and an
index keeps them.

A *point* is a place in the file where decoding can begin, with the number of bytes of text before it. A *span* is the
text from one point to the next, at least `SPAN_BYTES`. gzip has points between members (bgzip, several files in one).
It also has points between the blocks of a member, as zlib has, if the 32 KiB of text before them are known. Zstandard
has points only between frames. Decoding is native for gzip and zlib, and done by pyarrow for Zstandard, always without
the GIL. Every span has a checksum, which is compared whenever the span is read.
"""

from __future__ import annotations

import abc
import hashlib
import logging
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import DataError
from feedline.feed.files.atomic import atomic_file
from feedline.feed.files.cache_files import is_trusted, own_folder, refuse_foreign, user_cache
from feedline.feed.files.paths import open_file, open_regular, read_at, status_of
from feedline.feed.files.remote import remote_of
from feedline.feed.files.streaming import blocks

SPAN_BYTES = 2 << 20
"""Minimum bytes of text between points."""

FRAME_BYTES = 32 << 20
"""Bytes of text in a frame of Zstandard above which files are unpacked, as a frame has no points inside."""

POINT = np.dtype(
    [
        *(("packed", "<u8"), ("text", "<u8"), ("window", "<u8"), ("crc", "<u4"), ("window_crc", "<u4")),
        *(("bits", "u1"), ("byte", "u1"), ("zero", "<u2"), ("kind", "<u4")),
    ]
)
"""A point: byte of the file, byte of the text, offset of its window among the windows, checksums of the span and of the
window, and the number of bits of the previous byte that belong to the next block. ``kind`` is 0 without a window, else
1."""

WINDOW_BYTES = 32 << 10
_SLACK = 264  # spare bytes that the decoder needs after the text
_BLOCK_BYTES = 1 << 20
MAX_SPAN = 256 << 20
"""Limit of bytes of text in a span. A longer block of gzip is refused."""
_INPUT, _OUTPUT, _POINT, _END = 0, 1, 2, 3
_PLAIN, _WINDOW = 0, 1
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MAX_BLOCK = 128 << 10  # bytes of text in a block of Zstandard
_SUFFIX = ".feedline-text"

_log = logging.getLogger("feedline")


class Unpacker(abc.ABC):
    """Reads a packed file from its beginning, and notes points.

    Attributes:
        done: bytes of the file that have been read.
        total: bytes of text so far.
        windows: the windows of all points.
    """

    def __init__(self) -> None:
        self.done = self.total = 0
        self.windows: Any = tempfile.SpooledTemporaryFile(16 << 20, prefix="feedline-")  # noqa: SIM115
        self._rows: list[tuple[int, ...]] = []
        self._crc = self._since = 0
        self._begin(0)

    @abc.abstractmethod
    def parts(self, file: BinaryIO, path: Path, size: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the text in parts, each valid until the next.

        Raises:
            DataError: the file is damaged.
            LargeFrameError: the file has no points where they are needed.
        """

    def points(self) -> NDArray[Any]:
        """Return `POINT` records, the last one at the end, after all parts."""
        self._begin(self.done)
        return np.array(self._rows, POINT)

    def _begin(self, packed: int, bits: int = 0, byte: int = 0, window: NDArray[np.uint8] | None = None) -> None:
        """Note a point at a byte of the file."""
        if self._rows:
            self._rows[-1] = (*self._rows[-1][:3], self._crc, *self._rows[-1][4:])
        self._crc, self._since = 0, self.total
        at, check, kind = 0, 0, _PLAIN
        if window is not None:
            at, check, kind = self.windows.tell(), _native.crc32c(window), _WINDOW
            self.windows.write(window.data)
        self._rows.append((packed, self.total, at, 0, check, bits, byte, 0, kind))

    def _add(self, part: NDArray[np.uint8]) -> None:
        """Note text that follows."""
        self._crc = _native.crc32c(part, self._crc)
        self.total += len(part)


class Points(NamedTuple):
    """The points of a packed file.

    Attributes:
        packing: ``"gzip"``, ``"zlib"`` or ``"zstd"``.
        table: `POINT` records, the last one at the end.
    """

    packing: str
    table: NDArray[Any]

    def spans(self, begin: int, end: int) -> range:
        """Return the numbers of the spans that hold the text from byte ``begin`` to ``end``."""
        places = self.table["text"]
        first = int(np.searchsorted(places, begin, side="right")) - 1
        return range(max(first, 0), int(np.searchsorted(places, end, side="left")))

    def span(self, number: int, packed: NDArray[np.uint8], window: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """Return the text of a span from its bytes in the file.

        Raises:
            ValueError: the bytes are damaged.
        """
        point, end = self.table[number], self.table[number + 1]
        size = int(end["text"] - point["text"])
        if not size:
            return np.empty(0, np.uint8)  # zeros after the last member, frames without text
        if self.packing == "zstd":
            text = _unzstd(packed, size)
        else:
            text = _inflate(point, packed, window, size, self.packing == "zlib")
        if len(text) != size or _native.crc32c(text) != point["crc"]:
            raise ValueError("other text than when it was indexed")
        return text


def packing_of(head: bytes, zlib: bool = False) -> str | None:
    """Return the packing of a file that begins with ``head``, ``"gzip"`` or ``"zstd"``, or None if it is not packed.

    With ``zlib`` it may be ``"zlib"``, too. A text may look like it, as its magic number has only two bytes.
    """
    if head.startswith(_GZIP):
        return "gzip"
    if zlib and len(head) >= 2 and head[0] == 0x78 and not head[1] & 0x20 and int.from_bytes(head[:2]) % 31 == 0:
        return "zlib"
    return "zstd" if head.startswith(_ZSTD) or _is_skippable(head) else None


def unpacker(packing: str) -> Unpacker:
    """Return an unpacker for a packing."""
    return _Zstd() if packing == "zstd" else _Deflate(packing)


def _damage_error(packing: str, problem: object, path: Path, byte: int) -> DataError:
    name = "Zstandard" if packing == "zstd" else packing
    return DataError(
        f"expected intact {name}, got: {problem}",
        path=str(path),
        byte=byte,
        hint="restore the file, or unpack what can be unpacked of it with its own program",
    )


class _Deflate(Unpacker):
    def __init__(self, packing: str) -> None:
        super().__init__()
        self._packing = packing

    def parts(self, file: BinaryIO, path: Path, size: int) -> Iterator[NDArray[np.uint8]]:
        packing, inflater = self._packing, _native.Inflater.file(self._packing == "zlib")
        out = np.empty(WINDOW_BYTES + _BLOCK_BYTES + _SLACK, np.uint8)
        at, remainder = 0, np.empty(0, np.uint8)
        for block in blocks(file, path, size, _BLOCK_BYTES):
            data = np.concatenate([remainder, block])
            last, used = self.done + len(data) == size, 0
            while True:
                point_after = max(0, self._since + SPAN_BYTES - (self.total - at))
                status, consumed, to, member = inflater.run(
                    data, used, len(data), last, out, position=at, point_after=point_after
                )
                used += consumed
                if self.total + to - at - self._since > MAX_SPAN:
                    raise _damage_error(packing, f"a block of over {MAX_SPAN} bytes of text", path, self.done + used)
                if to > at:
                    self._add(out[at:to])
                    yield out[at:to]
                    at = to
                if status == _POINT:
                    window = None if member else _window(out, at)
                    self._begin(self.done + used, inflater.bits, inflater.byte, window)
                elif status == _OUTPUT:
                    out[:WINDOW_BYTES] = out[at - WINDOW_BYTES : at].copy()
                    at = WINDOW_BYTES
                else:
                    break
            self.done += used
            remainder = data[used:].copy()
            if status < _INPUT:
                raise _damage_error(packing, inflater.problem, path, self.done)


def _window(out: NDArray[np.uint8], at: int) -> NDArray[np.uint8]:
    window = np.zeros(WINDOW_BYTES, np.uint8)
    count = min(at, WINDOW_BYTES)
    window[WINDOW_BYTES - count :] = out[at - count : at]
    return window


def _inflate(
    point: Any, packed: NDArray[np.uint8], window: NDArray[np.uint8] | None, size: int, zlib: bool
) -> NDArray[np.uint8]:
    begin = 0 if window is None else WINDOW_BYTES
    out = np.empty(begin + size + _SLACK, np.uint8)
    if window is None:
        inflater = _native.Inflater.file(zlib)
    else:
        out[:begin] = window
        inflater = _native.Inflater(int(point["bits"]), int(point["byte"]), zlib)
    status, _, end, _ = inflater.run(packed, 0, len(packed), True, out, position=begin, point_after=begin + size)
    if status not in (_POINT, _END):
        raise ValueError(inflater.problem or "more text than when it was indexed")
    return out[begin:end]


# ---- Zstandard ----------------------------------------------------------------------------------------


class _Frame(NamedTuple):
    begin: int
    end: int
    text: int | None  # size of the text. None if the header has none
    most: int  # largest possible size of the text


def _is_skippable(head: bytes) -> bool:
    return len(head) >= 4 and 0x184D2A50 <= int.from_bytes(head[:4], "little") <= 0x184D2A5F


def _frames(file: BinaryIO, path: Path, size: int) -> Iterator[_Frame]:
    """Yield the frames of a file, from the headers of their blocks alone."""
    begin = 0
    while begin < size:
        head = read_at(file, 18, begin)
        if len(head) >= 8 and _is_skippable(head):
            end = begin + 8 + int.from_bytes(head[4:8], "little")
            if end > size:
                raise _damage_error("zstd", "a truncated file", path, begin)
            yield _Frame(begin, end, 0, 0)
            begin = end
            continue
        if len(head) < 6:
            raise _damage_error("zstd", "a truncated file", path, begin)
        if not head.startswith(_ZSTD):
            raise _damage_error("zstd", "no frame begins here", path, begin)
        kind = head[4]
        single = kind >> 5 & 1
        at = 5 + (not single) + (0, 1, 2, 4)[kind & 3]
        width = (single, 2, 4, 8)[kind >> 6]
        text_bytes = None if not width else int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)
        place, count = begin + at + width, 0
        while True:
            block = read_at(file, 3, place)
            if len(block) < 3:
                raise _damage_error("zstd", "a truncated file", path, min(place, size))
            (word,) = struct.unpack("<I", block + b"\0")
            count += 1
            place += 3 + (1 if word >> 1 & 3 == 1 else word >> 3)
            if word & 1:
                break
        place += 4 if kind & 4 else 0
        most = count * _MAX_BLOCK
        if place > size or (text_bytes is not None and text_bytes > most):
            raise _damage_error("zstd", "a truncated file" if place > size else "an impossible frame size", path, begin)
        yield _Frame(begin, place, text_bytes, most if text_bytes is None else text_bytes)
        begin = place


class _Zstd(Unpacker):
    def parts(self, file: BinaryIO, path: Path, size: int) -> Iterator[NDArray[np.uint8]]:
        for frame in _frames(file, path, size):
            if frame.most > FRAME_BYTES:
                raise LargeFrameError
            if self.total - self._since >= SPAN_BYTES:
                self._begin(frame.begin)
            if frame.most:
                packed = np.frombuffer(read_at(file, frame.end - frame.begin, frame.begin), np.uint8)
                try:
                    text = _unzstd(packed, frame.text, frame.most)
                except ValueError as error:
                    raise _damage_error("zstd", error, path, frame.begin) from error
                self._add(text)
                if len(text):
                    yield text
            self.done = frame.end


def _unzstd(packed: NDArray[np.uint8], size: int | None, most: int = 0) -> NDArray[np.uint8]:
    """Return the text of whole frames.

    Raises:
        ValueError: the frames are damaged, or their text has another size.
    """
    import pyarrow as pa

    try:
        if size is not None:
            text = pa.Codec("zstd").decompress(pa.py_buffer(packed), decompressed_size=size)
        else:
            with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), "zstd") as stream:
                text = stream.read_buffer(most + 1)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(error) from error
    array = np.frombuffer(text, np.uint8)
    if size is not None and len(array) != size:
        raise ValueError(f"{len(array)} bytes of text instead of {size}")
    return array


# ---- files without points -----------------------------------------------------------------------------


class LargeFrameError(Exception):
    """A frame of Zstandard has more than `FRAME_BYTES` of text: the file must be unpacked, see `unpack`."""


def find_unpacked(path: Path, file: BinaryIO, cache: bool | str | os.PathLike[str]) -> Path | None:
    """Return the file to which `unpack` has written the text of ``path``, or None if there is none, in O(1).

    Args:
        path, file: path of the Zstandard file, and the open file.
        cache: as for `unpack`.
    """
    if cache is False:
        return None
    folder, place = _place(path, file, cache)
    try:
        with open_regular(place) as text_file:
            return place if is_trusted(text_file, folder) else None
    except OSError:
        return None


def unpack(path: Path, file: BinaryIO, cache: bool | str | os.PathLike[str], budget_bytes: int) -> Path:
    """Write the text of a Zstandard file with a large frame, which has no points inside, to a cache folder.

    Args:
        path, file: path of the packed file, and the open file.
        cache: as for an index. True: ``$XDG_CACHE_HOME/feedline``. A path: that folder. False: the file cannot be
            unpacked.
        budget_bytes: bytes that the text may take in that folder.

    Raises:
        DataError: the file is damaged, its text is larger than ``budget_bytes`` or than the free space, or ``cache`` is
            False.
    """
    hint = (
        "compress it again in frames (`zstd --seekable`, `pzstd`, or pieces one after the other), pass "
        "unpack=<bytes of disk> and cache=<a folder with room>, or convert it: feedline convert"
    )
    if cache is False:
        raise DataError(
            f"expected Zstandard in frames of at most {FRAME_BYTES} bytes of text, or a cache to unpack it in, got a "
            "larger frame and cache=False",
            path=str(path),
            hint=hint,
        )
    folder, place = _place(path, file, cache)
    refuse_foreign(folder)
    _log.info("unpacking %s to %s, as its frame has no points to begin at", path, place)
    own_folder(folder)
    with atomic_file(place, 0o600, hint) as out:
        written = 0
        for part in _stream_text(file, path):
            written += len(part)
            if written > budget_bytes:
                what = f"expected at most {budget_bytes} bytes of unpacked text (unpack), got more"
                raise DataError(what, path=str(path), hint=hint)
            out.write(part)
    return place


def _place(path: Path, file: BinaryIO, cache: bool | str | os.PathLike[str]) -> tuple[Path, Path]:
    """Return the cache folder, and its file for the text of the present version of ``path``."""
    folder = user_cache() if isinstance(cache, bool) else Path(cache)
    status = status_of(file)
    what = f"{os.fsencode(path.absolute())!r} {status.st_size} {status.st_mtime_ns}"
    name = f"{path.name[:150]}.{hashlib.blake2b(what.encode(), digest_size=8).hexdigest()}{_SUFFIX}"
    return folder, folder / name


def _stream_text(file: BinaryIO, path: Path) -> Iterator[bytes]:
    import pyarrow as pa

    os.lseek(file.fileno(), 0, os.SEEK_SET)
    try:
        again = open_file(path) if remote_of(file) is not None else os.fdopen(os.dup(file.fileno()), "rb")
        with pa.CompressedInputStream(pa.PythonFile(again, "r"), "zstd") as stream:
            while part := stream.read(_BLOCK_BYTES):
                yield part
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, pa.ArrowException):
            raise
        raise _damage_error("zstd", error, path, 0) from error


def head_of(file: BinaryIO, size: int, packing: str | None = None) -> bytes:
    """Return the first bytes of the text of an open file, at most ``size``. For a damaged file, return the bytes before
    the damage.

    Args:
        file: the file.
        size: bytes of text.
        packing: packing of the file. None: detected from its first bytes.
    """
    packing = packing or packing_of(read_at(file, 4, 0))
    if packing is None:
        return read_at(file, size, 0)
    return text_of(read_at(file, size + _BLOCK_BYTES, 0), packing, size)  # incompressible text becomes longer


def text_of(packed: bytes, packing: str, size: int) -> bytes:
    """Return the first bytes of the text of a file that begins with ``packed``, as `head_of` does."""
    if packing != "zstd":
        out = np.empty(size + _SLACK, np.uint8)
        data = np.frombuffer(packed, np.uint8)
        inflater = _native.Inflater.file(packing == "zlib")
        _, _, end, _ = inflater.run(data, 0, len(data), True, out, position=0, point_after=size)
        return out[: min(end, size)].tobytes()
    import pyarrow as pa

    text = b""
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            while len(text) < size and (part := stream.read(size - len(text))):
                text += part
    except (pa.ArrowException, OSError):
        pass  # ``packed`` ends in the middle of a frame
    return text
