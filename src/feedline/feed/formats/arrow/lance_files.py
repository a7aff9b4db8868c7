"""Checks of the files of a Lance table, made before lance reads them.

lance allocates as many bytes as a file says, and ends the process where there are not so many. So every place that the
metadata of a data file names has to be within the file, and files of deleted rows have to be sound Arrow files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from feedline.errors import DataError
from feedline.feed.files.paths import open_file, read_at, status_of
from feedline.feed.formats.arrow.arrow import ArrowDeserializer

# Starts of columns, of their table and of that of buffers, the numbers of buffers and columns, version, magic.
_FOOTER = struct.Struct("<QQQIIHH4s")
_SPAN = struct.Struct("<QQ")
_LEGACY_VERSIONS = ((0, 1), (0, 2))  # of files that have another footer
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _DamageError(ValueError):
    """A file contradicts itself."""


def check_data_file(path: Path) -> None:
    """Check that all places that the metadata of a data file names are within the file.

    Raises:
        DataError: the file is missing, or a place is not.
    """
    try:
        if "\0" in str(path):
            raise _DamageError("its name has a null character")
        with open_file(path) as file:
            _check_places(file, status_of(file).st_size)
    except _DamageError as error:
        hint = "the table is damaged; restore it"
        raise DataError(f"expected a data file of Lance, but {error}", path=str(path), hint=hint) from error


def check_deletions(path: Path, deleted: int, rows: int) -> None:
    """Check a file of deleted rows, if it is of Arrow.

    Args:
        path: the file.
        deleted: number of deleted rows.
        rows: number of rows of the fragment, before any is deleted.

    Raises:
        DataError: it is missing or damaged, or has other rows.
    """
    if path.suffix != ".arrow":
        return
    corpus = ArrowDeserializer(path, ["row_id"])
    chunks = [corpus.read(chunk) for chunk in range(len(corpus.chunks()))]
    for chunk in chunks:
        for error in chunk.errors.values():
            raise error
    numbers = {number for chunk in chunks for number in chunk["row_id"].rows.tolist()}
    if len(numbers) != deleted or not 0 <= min(numbers) <= max(numbers) < rows:
        what = f"expected {deleted} deleted rows, each below {rows}, got {len(numbers)}, up to {max(numbers)}"
        raise DataError(what, path=str(path), hint="the table is damaged; restore it")


def _check_places(file: BinaryIO, size: int) -> None:
    if size < _FOOTER.size:
        raise _DamageError(f"it has {size} bytes")
    _, columns, buffers, buffer_count, column_count, *version, magic = _FOOTER.unpack(
        read_at(file, _FOOTER.size, size - _FOOTER.size)
    )
    if magic != b"LANC":
        raise _DamageError(f"it ends with {magic!r}")
    if tuple(version) in _LEGACY_VERSIONS:
        return
    for at, length in _spans(file, size, buffers, buffer_count):
        _check_span("buffer", at, length, size)
    for at, length in _spans(file, size, columns, column_count):
        _check_span("description of a column", at, length, size)
        _check_column(read_at(file, length, at), size)


def _spans(file: BinaryIO, size: int, at: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a table of places and lengths."""
    _check_span("table", at, count * _SPAN.size, size)
    yield from _SPAN.iter_unpack(read_at(file, count * _SPAN.size, at))


def _check_span(what: str, at: int, length: int, size: int) -> None:
    if at + length > size:
        raise _DamageError(f"a {what} has {length} bytes from byte {at} on, of {size} bytes")


def _check_column(message: bytes, size: int) -> None:
    """Check the buffers of a column and of its pages: places are field 3, or 1 of a page, lengths the next field."""
    _check_buffers(message, 3, size)
    for number, page in _fields(message):
        if number == 2 and isinstance(page, bytes):
            _check_buffers(page, 1, size)


def _check_buffers(message: bytes, first: int, size: int) -> None:
    places, lengths = list[int](), list[int]()
    for number, content in _fields(message):
        if number in (first, first + 1):
            (places if number == first else lengths).extend(_varints(content))
    if len(places) != len(lengths):
        raise _DamageError(f"{len(places)} places of buffers have {len(lengths)} lengths")
    for at, length in zip(places, lengths, strict=True):
        _check_span("buffer", at, length, size)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message of Protocol Buffers: their numbers, and their numbers or bytes as values."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise _DamageError(f"a description has a field of kind {kind}")
        if at + length > len(message):
            raise _DamageError(f"a description has a field of {length} bytes, of {len(message)} bytes")
        yield key >> 3, message[at : at + length]
        at += length


def _varints(content: int | bytes) -> Iterator[int]:
    if isinstance(content, int):
        yield content
        return
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise _DamageError("a description has a number without an end")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
