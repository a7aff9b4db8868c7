"""The sizes in a Parquet file's footer and page headers, read slowly and obviously: the twin of the native parser.

`parse` turns a structure of Thrift's compact protocol into dictionaries by field number. The other functions look up
fields.
"""

from __future__ import annotations

import struct
from typing import Any

STOP, TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID = range(14)


class Damage(Exception):
    """The bytes are no such structure, or one that is not used."""


class Short(Exception):
    """The structure continues after the available bytes."""


class Fields(dict[int, tuple[int, Any]]):
    """Parse the fields of a structure: (type, value) by number."""

    twice = False

    def used(self) -> Fields:
        """Return itself. Fields that come twice matter in structures that are used alone."""
        if self.twice:
            raise Damage
        return self


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        if self.at + n > len(self.data):
            raise Short
        self.at += n
        return self.data[self.at - n : self.at]

    def varint(self) -> int:
        value = 0
        for i in range(10):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * i
            if byte < 128:
                return value % 2**64
        raise Damage

    def number(self) -> int:
        n = self.varint()
        return n // 2 if n % 2 == 0 else -(n // 2) - 1

    def count(self, n: int) -> int:
        if self.at + n > len(self.data):
            raise Short
        return n

    def value(self, kind: int, depth: int, in_list: bool = False) -> Any:
        if depth == 0:
            raise Damage
        if kind in (TRUE, FALSE):
            return self.take(1) == b"\1" if in_list else kind == TRUE
        if kind == I8:
            return self.take(1)
        if kind in (I16, I32, I64):
            return self.number()
        if kind == DOUBLE:
            return struct.unpack("<d", self.take(8))
        if kind == UUID:
            return self.take(16)
        if kind == BINARY:
            return self.take(self.varint())
        if kind in (LIST, SET):
            head = self.take(1)[0]
            count = self.count(self.varint() if head >> 4 == 15 else head >> 4)
            if head & 15 > UUID or (count and head & 15 == 0):  # fastparquet writes empty lists of type 0
                raise Damage
            return head & 15, [self.value(head & 15, depth - 1, True) for _ in range(count)]
        if kind == MAP:
            count = self.count(self.varint())
            types = self.take(1)[0] if count else 0
            return [
                (self.value(types >> 4, depth - 1, True), self.value(types & 15, depth - 1, True)) for _ in range(count)
            ]
        if kind == STRUCT:
            return self.structure(depth - 1)
        raise Damage

    def structure(self, depth: int) -> Fields:
        fields = Fields()
        number = 0
        while (head := self.take(1)[0]) & 15:
            if head & 15 > UUID:
                raise Damage
            number = number + (head >> 4) if head >> 4 else self.number()
            if not 0 <= number < 2**15:
                raise Damage
            fields.twice |= number in fields and number < 32
            fields[number] = (head & 15, self.value(head & 15, depth))
        return fields


def size(fields: Fields, number: int, kind: int, default: int | None = None) -> int:
    if number not in fields:
        if default is None:
            raise Damage
        return default
    found, value = fields[number]
    if found != kind or value < 0 or (kind == I32 and value >= 2**31):
        raise Damage
    return value


def structures(fields: Fields, number: int) -> list[Fields]:
    if number not in fields:
        return []
    kind, value = fields[number]
    if kind != LIST or (value[1] and value[0] != STRUCT):
        raise Damage
    return [item.used() for item in value[1]]


def null_count(meta: Fields, values: int) -> int:
    """The nulls that the statistics of a column count, -1 where they do not, or cannot be right."""
    kind, statistics = meta.get(12, (0, None))
    if kind != STRUCT:
        return -1
    kind, nulls = statistics.used().get(3, (0, -1))
    return nulls if kind == I64 and 0 <= nulls <= values else -1


def footer(data: bytes) -> tuple[list[int], list[list[tuple[int, int, int, int, int]]]]:
    """(rows, by row group and column (values, uncompressed, compressed, begin, nulls)). Raises Damage."""
    try:
        top = Reader(data).structure(64).used()
    except Short:
        raise Damage from None
    if 8 in top or 4 not in top:
        raise Damage
    rows, columns = [], []
    for group in structures(top, 4):
        rows.append(size(group, 3, I64))
        found = []
        for chunk in structures(group, 1):
            if 8 in chunk or 9 in chunk or chunk.get(3, (0, 0))[0] != STRUCT:
                raise Damage
            meta = chunk[3][1].used()
            data_page, dictionary = size(meta, 9, I64), size(meta, 11, I64, 0)
            begin = dictionary if 0 < dictionary < data_page else data_page
            values = size(meta, 5, I64)
            found.append((values, size(meta, 6, I64), size(meta, 7, I64), begin, null_count(meta, values)))
        columns.append(found)
    if len({len(found) for found in columns}) > 1:
        raise Damage
    return rows, columns


def page(data: bytes) -> tuple[int, int, int, int] | None:
    """(header, compressed, uncompressed, values), None where the header is longer. Raises Damage."""
    reader = Reader(data)
    try:
        top = reader.structure(64).used()
    except Short:
        return None
    values = None
    for number, (kind, inner) in top.items():
        if number in (5, 8):
            if kind != STRUCT:
                raise Damage
            values = size(inner.used(), 1, I32) if 1 in inner else values
    kind, uncompressed, compressed = size(top, 1, I32), size(top, 2, I32), size(top, 3, I32)
    if kind in (0, 3):
        if values is None:
            raise Damage
        return reader.at, compressed, uncompressed, values
    return reader.at, compressed, uncompressed, 0
