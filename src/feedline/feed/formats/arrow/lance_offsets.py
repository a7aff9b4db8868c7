"""Checks of the offsets of lists, texts and byte strings in data files of Lance before version 2.1.

lance allocates as many bytes as two neighbouring offsets are apart, without a look at them. From version 2.1 on they
are in small pieces, which it checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline.feed.files.paths import read_at, status_of
from feedline.feed.formats.arrow.protobuf_fields import fields, integer, integers, messages

# Kinds of encodings of version 2.0.
_FLAT, _NULLABLE, _FIXED_LIST, _LIST, _BINARY, _DICTIONARY, _FSST = 1, 2, 3, 4, 6, 7, 8
# The fields that have offsets, and what is added to those of nulls.
_OFFSETS = {_LIST: (1, 2), _BINARY: (1, 3)}
# The encodings within an encoding that may have offsets.
_WITHIN = {_NULLABLE: ((1, 1), (2, 2)), _FIXED_LIST: ((2,),), _DICTIONARY: ((2,),), _FSST: ((1,),)}
_TEXTS = 2  # encoding of fields of the first format: texts and byte strings


def check_page_offsets(file: BinaryIO, page: bytes, buffers: Sequence[tuple[int, int]]) -> None:
    """Check the offsets of a page of version 2.0, unless they are compressed.

    Args:
        file: the file.
        page: the description of the page.
        buffers: places and lengths of its buffers, within the file.

    Raises:
        ValueError: they are not in order.
    """
    for encoding in messages(page, 4, 2, 1, 2):
        _check_encoding(file, encoding, buffers)


def _check_encoding(file: BinaryIO, encoding: bytes, buffers: Sequence[tuple[int, int]]) -> None:
    for kind, content in fields(encoding):
        if isinstance(content, int):
            raise ValueError(f"an encoding is {content}")
        for path in _WITHIN.get(kind, ()):
            for inner in messages(content, *path):
                _check_encoding(file, inner, buffers)
        if kind in _OFFSETS:
            of_offsets, of_nulls = _OFFSETS[kind]
            added = min(max(1, integer(content, of_nulls)), 1 << 62)  # more than any offset
            for offsets in messages(content, of_offsets):
                if (place := _numbers_of(offsets, buffers)) is not None:
                    numbers = _read(file, *place)
                    _check_order(numbers - np.where(numbers < added, 0, added).astype(np.uint64), added)


def _numbers_of(encoding: bytes, buffers: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the place and length of 64-bit numbers. None: they have another encoding."""
    for values in messages(encoding, _NULLABLE, 1, 1):
        return _numbers_of(values, buffers)
    for flat in messages(encoding, _FLAT):
        compressed = list(messages(flat, 3))
        for buffer in messages(flat, 2):
            number, elsewhere = integer(buffer, 1), integer(buffer, 2)
            if integer(flat, 1) == 64 and not compressed and not elsewhere and number < len(buffers):
                return buffers[number]
    return None


def check_first_format(file: BinaryIO, size: int) -> None:
    """Check the offsets of texts and byte strings of a file of the first format.

    Raises:
        ValueError: they are not in order, or not within the file, or the file does not describe itself.
    """
    metadata = _message(file, int(_read(file, size - 16, 8)[0]))
    if not (manifest := integer(metadata, 1)):
        return  # in another file
    numbers, table = integers(metadata, 2), integer(metadata, 3)
    described = list(messages(_message(file, manifest), 1))
    ids = [integer(field, 3) for field in described]
    for number, field in zip(ids, described, strict=True):
        if integer(field, 7) == _TEXTS:
            batches = len(numbers) - 1
            pages = _read(file, table + 16 * batches * (number - min(ids)), 16 * batches)
            for at, length in pages.reshape(-1, 2).tolist():
                _check_order(_read(file, at, 8 * (length + 1)), size)


def _message(file: BinaryIO, at: int) -> bytes:
    """Return the message at a place, behind its length."""
    length = int.from_bytes(_bytes(file, at, 4), "little")
    return _bytes(file, at + 4, length)


def _read(file: BinaryIO, at: int, length: int) -> NDArray[np.uint64]:
    return np.frombuffer(_bytes(file, at, length), "<u8")


def _bytes(file: BinaryIO, at: int, length: int) -> bytes:
    if at + length > (size := status_of(file).st_size):
        raise ValueError(f"it has {length} bytes from byte {at} on, of {size} bytes")
    return read_at(file, length, at)


def _check_order(offsets: NDArray[np.uint64], limit: int) -> None:
    if (offsets[1:] < offsets[:-1]).any() or (offsets > np.uint64(limit)).any():
        raise ValueError(f"its offsets up to {int(offsets.max())} are not in order, or beyond {limit}")
