"""Checks of the files of a Lance table, made before lance reads them.

lance allocates as many bytes as a file says, and ends the process where there are not so many. So every place that the
metadata of a data file names has to be within the file. Files of deleted rows are decoded, or in the form of a bitmap
counted. They have no checksums, but the manifest has their number of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from feedline.errors import DataError
from feedline.feed.byte_strings import TooLargeError
from feedline.feed.files.paths import open_file, read_at, size_of, status_of
from feedline.feed.formats.arrow.decoded_batches import decode_batch
from feedline.feed.formats.arrow.file import ArrowFile, read_bytes
from feedline.feed.formats.arrow.lance_offsets import check_first_format, check_page_offsets
from feedline.feed.formats.arrow.protobuf_fields import integers, messages
from feedline.feed.protocol import CHUNK_MEMORY

# Starts of columns, of their table and of that of buffers, the numbers of buffers and columns, version, magic.
_FOOTER = struct.Struct("<QQQIIHH4s")
_SPAN = struct.Struct("<QQ")
_FIRST_FORMAT = ((0, 1), (0, 2))  # versions of files that have another footer
_CHECKS_OFFSETS = (2, 1)  # version from which on lance does
# Of roaring bitmaps: their first two bytes, the fewest containers of one with runs that have offsets, the most numbers
# of a container that are not bits, the bytes of a container of bits.
_WITHOUT_RUNS, _WITH_RUNS, _MIN_OFFSETS, _MAX_SORTED, _BITS_BYTES = 12346, 12347, 4, 4096, 8192
_MAX_CONTAINERS = 1 << 16


def check_data_file(path: Path) -> None:
    """Check that all places that the metadata of a data file names are within the file, and the order of offsets.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        if "\0" in str(path):
            raise ValueError("its name has a null character")
        with open_file(path) as file:
            _check_places(file, status_of(file).st_size)
    except ValueError as error:
        hint = "the table is damaged; restore it"
        raise DataError(f"expected a data file of Lance, but {error}", path=str(path), hint=hint) from error


def check_deletions(path: Path, deleted: int, rows: int) -> None:
    """Check a file of deleted rows.

    Args:
        path: the file.
        deleted: number of deleted rows. 0: nobody has counted them.
        rows: number of rows of the fragment, before any is deleted.

    Raises:
        DataError: it is missing or damaged, or has other rows.
    """
    import pyarrow as pa

    hint = "the table is damaged; restore it"
    try:
        count, largest = _counted_bitmap(path) if path.suffix == ".bin" else _counted_array(path)
    except (ValueError, IndexError, OSError, pa.ArrowException) as error:
        raise DataError(f"expected a file of deleted rows, but {error}", path=str(path), hint=hint) from error
    if count != (deleted or count) or largest >= rows:
        message = f"expected {deleted or 'some'} deleted rows, each below {rows}, got {count}, up to {largest}"
        raise DataError(message, path=str(path), hint=hint)


def _counted_array(path: Path) -> tuple[int, int]:
    """Return how many numbers an Arrow file has, and the largest."""
    import pyarrow as pa

    file = ArrowFile(str(path))
    if file.schema != pa.schema([pa.field("row_id", pa.uint32(), nullable=False)]) or len(file.rows) != 1:
        raise ValueError(f"it has {len(file.rows)} batches with columns {file.schema}")
    batch = file.batch(0)
    data = read_bytes(file.path, batch.start, batch.head + batch.body)
    try:
        numbers = decode_batch(file, batch, data, file.schema.names, CHUNK_MEMORY).column(0)
    except TooLargeError as error:
        raise ValueError(f"it decodes to {error} bytes") from error
    if numbers.null_count:
        raise ValueError(f"it has {numbers.null_count} nulls")
    distinct = np.unique(numbers.to_numpy())
    return len(distinct), int(distinct[-1])


def _counted_bitmap(path: Path) -> tuple[int, int]:
    """Return how many numbers a roaring bitmap has, and the largest.

    Numbers with the same upper 16 bits are in a container: sorted, as bits, or as runs.
    """
    data = read_bytes(str(path), 0, size_of(path))
    cookie, count = np.frombuffer(data, "<u2", 2).tolist()
    if cookie == _WITH_RUNS:
        count, at = count + 1, 4 + (count + 8) // 8
        is_run = np.unpackbits(np.frombuffer(data, np.uint8, at - 4, 4), bitorder="little")
    elif cookie == _WITHOUT_RUNS:
        count, at = int.from_bytes(data[4:8], "little"), 8
        is_run = np.zeros(_MAX_CONTAINERS, np.uint8)
    else:
        raise ValueError(f"it begins with {data[:4]!r}")
    if not 0 < count <= _MAX_CONTAINERS:
        raise ValueError(f"it has {count} containers")
    keys, sizes = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.int64).T
    sizes = sizes + 1
    has_offsets = cookie == _WITHOUT_RUNS or count >= _MIN_OFFSETS
    at += 4 * count * (2 if has_offsets else 1)
    for size, run in zip(sizes.tolist(), is_run.tolist(), strict=False):
        if run:
            runs = int.from_bytes(data[at : at + 2], "little")
            begin, length = np.frombuffer(data, "<u2", 2 * runs, at + 2)[-2:].tolist()
            last, at = begin + length, at + 2 + 4 * runs
        elif size > _MAX_SORTED:
            bits = np.frombuffer(data, np.uint8, _BITS_BYTES, at)
            last, at = int(np.flatnonzero(np.unpackbits(bits, bitorder="little"))[-1]), at + _BITS_BYTES
        else:
            last, at = int(np.frombuffer(data, "<u2", size, at)[-1]), at + 2 * size
    if at != len(data) or (np.diff(keys) <= 0).any():
        raise ValueError(f"its {count} containers end at byte {at} of {len(data)}")
    return int(sizes.sum()), (int(keys[-1]) << 16) + last


def _check_places(file: BinaryIO, size: int) -> None:
    if size < _FOOTER.size:
        raise ValueError(f"it has {size} bytes")
    _, columns, buffers, buffer_count, column_count, *version, magic = _FOOTER.unpack(
        read_at(file, _FOOTER.size, size - _FOOTER.size)
    )
    if magic != b"LANC":
        raise ValueError(f"it ends with {magic!r}")
    if tuple(version) in _FIRST_FORMAT:
        check_first_format(file, size)
        return
    for at, length in _spans(file, size, buffers, buffer_count):
        _check_span("buffer", at, length, size)
    for at, length in _spans(file, size, columns, column_count):
        _check_span("description of a column", at, length, size)
        column = read_at(file, length, at)
        _buffers(column, 3, size)
        for page in messages(column, 2):
            page_buffers = _buffers(page, 1, size)
            if tuple(version) < _CHECKS_OFFSETS:
                check_page_offsets(file, page, page_buffers)


def _spans(file: BinaryIO, size: int, at: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the pairs of a table of places and lengths."""
    _check_span("table", at, count * _SPAN.size, size)
    yield from _SPAN.iter_unpack(read_at(file, count * _SPAN.size, at))


def _check_span(what: str, at: int, length: int, size: int) -> None:
    if at + length > size:
        raise ValueError(f"a {what} has {length} bytes from byte {at} on, of {size} bytes")


def _buffers(message: bytes, first: int, size: int) -> list[tuple[int, int]]:
    """Return the buffers of a column, whose places are field 3, or of a page, field 1. The next field has lengths."""
    places, lengths = integers(message, first), integers(message, first + 1)
    if len(places) != len(lengths):
        raise ValueError(f"{len(places)} places of buffers have {len(lengths)} lengths")
    for at, length in zip(places, lengths, strict=True):
        _check_span("buffer", at, length, size)
    return list(zip(places, lengths, strict=True))
