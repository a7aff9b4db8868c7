"""A record batch whose buffers are compressed, as Arrow does it: each alone, LZ4 frames or Zstandard.

The bytes are read and compared with their checksum before Arrow sees them, and what the buffers say they expand to is
compared with what the manifest allows before any memory is asked for.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native

CODECS = ("lz4", "zstd")


def read_exactly(descriptor: int, start: int, size: int) -> bytearray:
    """Bytes of a file, in memory of their own.

    Raises:
        OSError: they cannot be read.
        EOFError: the file ends before.
    """
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = os.preadv(descriptor, [view[done:]], start + done)
        if got == 0:
            raise EOFError(f"expected {size} bytes at byte {start}, got {done}")
        done += got
    return data


class CompressedBatch:
    """One message of an Arrow file, decompressed into memory.

    Args:
        data: the message.
        crc32c: its checksum.
        memory: bytes of all buffers together, at most.
        schema: the Arrow schema it must have.

    Attributes:
        arrow: the record batch.

    Raises:
        ValueError: another checksum, or no record batch of that schema and size.
    """

    def __init__(self, data: memoryview, crc32c: int, memory: int, schema: Any) -> None:
        import pyarrow as pa

        got = _native.crc32c(data)
        if got != crc32c:
            raise ValueError(f"expected a chunk with checksum {crc32c:08x}, got {got:08x}")
        marker, length = struct.unpack_from("<ii", data) if len(data) >= 8 else (0, 0)
        if marker != -1 or not 0 < length <= len(data) - 8:
            raise ValueError(f"expected a message of {len(data)} bytes, got one with {length} bytes of metadata")
        expands = expanded(data, 8, 8 + length)
        if expands > memory:
            raise ValueError(f"expected buffers of {memory} bytes at most, got {expands}")
        try:
            self.arrow: Any = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
        except (pa.ArrowException, OSError, EOFError, TypeError) as error:
            raise ValueError(f"expected an Arrow record batch: {error}") from error

    def view(self, buffer: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """An array of ``count`` elements over one of its buffers.

        Raises:
            ValueError: the buffer is too small for that.
        """
        if count == 0:
            return np.empty(0, dtype)
        size = 0 if buffer is None else buffer.size
        if count < 0 or count * dtype.itemsize > size:
            raise ValueError(f"expected {count} elements of {dtype.name} in a buffer of {size} bytes")
        return np.frombuffer(buffer, dtype, count)

    def bounds(self, buffer: Any, count: int) -> NDArray[np.int64]:
        """As `view`, of offsets or bounds of rows."""
        return self.view(buffer, np.dtype(np.int64), count)


def expanded(message: bytes | bytearray | memoryview, start: int, body: int) -> int:
    """Bytes that the buffers of a compressed record batch expand to, by what they say themselves.

    Args:
        message: the encapsulated message.
        start: where its metadata begins, a flatbuffer of the table Message.
        body: where its body begins.

    Raises:
        ValueError: it is no such message.
    """
    try:
        table = _Table.root(message, start)
        batch = table.table(2)  # Message.header
        total = 0
        for offset, size in batch.structs(2, "<qq"):  # RecordBatch.buffers
            if size == 0:
                continue
            at = body + offset
            if offset < 0 or size < 8 or at + size > len(message):
                raise ValueError(f"expected buffers inside the message, got {size} bytes at {offset} of its body")
            (expands,) = struct.unpack_from("<q", message, at)
            # -1: kept as it is, behind these 8 bytes.
            if expands < -1:
                raise ValueError(f"expected the size of a buffer, got {expands}")
            total += size - 8 if expands == -1 else expands
        return total
    except (struct.error, IndexError) as error:
        raise ValueError(f"expected the metadata of an Arrow record batch: {error}") from error


class _Table:
    """A table of a flatbuffer: fields by number, each perhaps absent."""

    def __init__(self, data: bytes | bytearray | memoryview, at: int) -> None:
        self._data, self._at = data, at
        if at < 0:
            raise IndexError("a table outside the buffer")
        self._fields = at - self._number("<i", at)
        self._size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes | bytearray | memoryview, at: int) -> _Table:
        """The table that a buffer at byte ``at`` begins with."""
        return cls(data, at + int(struct.unpack_from("<I", data, at)[0]))

    def table(self, field: int) -> _Table:
        """The table in a field."""
        place = self._place(field)
        return _Table(self._data, place + self._number("<I", place))

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """The structs of a vector in a field."""
        place = self._place(field)
        vector = place + self._number("<I", place)
        count, size = self._number("<I", vector), struct.calcsize(layout)
        if vector + 4 + count * size > len(self._data):
            raise IndexError(f"a vector of {count} outside the buffer")
        return [struct.unpack_from(layout, self._data, vector + 4 + k * size) for k in range(count)]

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = self._number("<H", self._fields + slot) if slot < self._size else 0
        if offset == 0:
            raise IndexError(f"no field {field}")
        return self._at + offset

    def _number(self, layout: str, at: int) -> int:
        if at < 0:
            raise IndexError("a number outside the buffer")
        return int(struct.unpack_from(layout, self._data, at)[0])
