"""Lists and dicts as LitData stores them in a leaf: a byte for the kind, then the content.

=======  ===============================================================================================
byte     content
=======  ===============================================================================================
0        u32 size, JSON text
1 to 4   u32 count, then texts (u32 size each), int64, float64, or bools of a byte
5        u32 count, then pairs of a text and another value
6        u32 rows, u32 keys, the keys, then for each row and key a byte (16 null, 17 text, 18 int64, 19 float64,
         20 bool) and the value
7 to 11  a text, int64, float64, bool, or null
=======  ===============================================================================================

Older versions wrote JSON text, which begins with a bracket.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_BRACKETS = (b"[", b"{")
_LISTS = {2: ("<i8", 8), 3: ("<f8", 8), 4: ("?", 1)}
_KINDS = {16: 11, 17: 7, 18: 8, 19: 9, 20: 10}  # kind of a value in a row to the kind of a single value
_MAX_DEPTH = 200


def json_text(data: bytes) -> str:
    """Return the content of a leaf as JSON text.

    Raises:
        ValueError: it is damaged.
    """
    if data.startswith(_BRACKETS):
        return data.decode()
    reader = _LeafReader(data)
    value = reader.value(reader.byte(), 0)
    if reader.at != len(data):
        raise ValueError(f"expected lists and dicts of {len(data)} bytes, got {reader.at}")
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape and UTF-8 lacks
        return json.dumps(value)
    return text


class _LeafReader:
    """A reader of values, one after the other, that never reads beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        data = self._data[self.at : self.at + size]
        if len(data) < size:
            raise ValueError(f"expected {size} bytes of a list or dict at byte {self.at}, got {len(data)}")
        self.at += size
        return data

    def byte(self) -> int:
        return self.take(1)[0]

    def count(self, min_bytes: int) -> int:
        """Return the number of items that follow, of at least ``min_bytes`` bytes each."""
        (count,) = struct.unpack("<I", self.take(4))
        if count * min_bytes > len(self._data) - self.at:
            raise ValueError(f"expected room for {count} values, got {len(self._data) - self.at} bytes")
        return int(count)

    def text(self) -> str:
        return self.take(self.count(1)).decode()

    def value(self, kind: int, level: int) -> Any:
        if level == _MAX_DEPTH:
            raise ValueError(f"expected values nested at most {_MAX_DEPTH} deep, got deeper ones")
        if kind == 0:
            return json.loads(self.text())
        if kind == 1:
            return [self.text() for _ in range(self.count(4))]
        if kind in _LISTS:
            dtype, size = _LISTS[kind]
            return np.frombuffer(self.take(self.count(size) * size), dtype).tolist()
        if kind == 5:
            return {self.text(): self.value(self.byte(), level + 1) for _ in range(self.count(5))}
        if kind == 6:
            return self._rows()
        if kind == 7:
            return self.text()
        if kind in (8, 9):
            return struct.unpack("<q" if kind == 8 else "<d", self.take(8))[0]
        if kind == 10:
            return self.byte() != 0
        if kind == 11:
            return None
        raise ValueError(f"expected a list or dict at byte {self.at - 1}, got kind {kind}")

    def _rows(self) -> list[dict[str, Any]]:
        (rows,) = struct.unpack("<I", self.take(4))
        keys = [self.text() for _ in range(self.count(4))]
        if rows * max(1, len(keys)) > len(self._data) - self.at:
            raise ValueError(f"expected room for {rows} rows, got {len(self._data) - self.at} bytes")
        return [{key: self.value(_KINDS.get(self.byte(), -1), 0) for key in keys} for _ in range(rows)]
