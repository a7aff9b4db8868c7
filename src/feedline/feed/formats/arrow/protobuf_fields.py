"""Messages of Protocol Buffers, without their schemas."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: their numbers, and their numbers or bytes as values.

    Raises:
        ValueError: it is damaged, as for the other functions.
    """
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
            raise ValueError(f"a description has a field of kind {kind}")
        if at + length > len(message):
            raise ValueError(f"a description has a field of {length} bytes, of {len(message)} bytes")
        yield key >> 3, message[at : at + length]
        at += length


def messages(message: bytes, *numbers: int) -> Iterator[bytes]:
    """Yield the messages within a message that are fields of these numbers, and within these fields of the next ones.

    Args:
        message: the message.
        numbers: number of a field, then of one within it, and so on.
    """
    for number, content in fields(message):
        if number == numbers[0] and isinstance(content, bytes):
            yield from messages(content, *numbers[1:]) if numbers[1:] else [content]


def integer(message: bytes, number: int) -> int:
    """Return the integer of a field, 0 if it is absent."""
    return (integers(message, number) or [0])[-1]


def integers(message: bytes, number: int) -> list[int]:
    """Return the integers of a field, packed or not."""
    result = list[int]()
    for of, content in fields(message):
        if of == number:
            result.extend([content] if isinstance(content, int) else _packed(content))
    return result


def _packed(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        value, at = _varint(content, at)
        yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a description has a number without an end")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
