"""A record batch with compressed buffers. Arrow compresses each buffer by itself, as an LZ4 frame or by Zstandard.

The bytes are read and compared with their checksum before Arrow gets them. The decompressed size that the buffers claim
is compared with the limit in the manifest before any memory is allocated.
"""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.files.remote import preadv

CODECS = ("lz4", "zstd")
_DICTIONARY = 2  # kind of a message


def read_exactly(file: BinaryIO, start: int, size: int) -> bytearray:
    """Read bytes of a file into new memory.

    Raises:
        OSError: reading failed.
        EOFError: the file is too short.
    """
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = preadv(file, view[done:], start + done)
        if got == 0:
            raise EOFError(f"expected {size} bytes at byte {start}, got {done}")
        done += got
    return data


class BatchInMemory:
    """One message of an Arrow file in memory, decompressed if it was compressed.

    Args:
        data: the message.
        crc32c: checksum of the message.
        memory_bytes: maximum bytes of all buffers, or None if the message is not compressed.
        schema: Arrow schema that the message must have.

    Attributes:
        arrow: the record batch.

    Raises:
        ValueError: the checksum differs, or the message is not a record batch of that schema and size.
    """

    def __init__(self, data: memoryview, crc32c: int, memory_bytes: int | None, schema: Any) -> None:
        import pyarrow as pa

        got = _native.crc32c(data)
        if got != crc32c:
            raise ValueError(f"expected a chunk with checksum {crc32c:08x}, got {got:08x}")
        marker, length = struct.unpack_from("<ii", data) if len(data) >= 8 else (0, 0)
        if marker != -1 or not 0 < length <= len(data) - 8:
            raise ValueError(f"expected a message of {len(data)} bytes, got one with {length} bytes of metadata")
        if memory_bytes is None:
            if is_compressed(data, 8):
                raise ValueError("expected buffers that are not compressed, got compressed ones")
        elif (expands := expanded_bytes(data, 8, 8 + length)) > memory_bytes:
            raise ValueError(f"expected buffers of {memory_bytes} bytes at most, got {expands}")
        try:
            self.arrow: Any = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
        except (pa.ArrowException, OSError, EOFError, TypeError) as error:
            raise ValueError(f"expected an Arrow record batch: {error}") from error

    def view(self, buffer: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return an array of ``count`` elements over one of its buffers.

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
        """Return a `view` of offsets or row bounds."""
        return self.view(buffer, np.dtype(np.int64), count)


def expanded_bytes(message: bytes | bytearray | memoryview, start: int, body: int) -> int:
    """Return the bytes that the buffers of a compressed record batch, or dictionary, claim to expand to.

    Args:
        message: the encapsulated message.
        start: offset of its metadata, a flatbuffer of the table Message.
        body: offset of its body.

    Raises:
        ValueError: it is not such a message.
    """
    try:
        table = _Table.root(message, start)
        batch = table.table(2)  # Message.header
        if table.number(1, "<B") == _DICTIONARY:  # Message.header_type
            batch = batch.table(1)  # DictionaryBatch.data
        if table.number(0, "<H") < _VERSION_5 and batch.has(3):  # Arrow would misread the buffers
            raise ValueError("expected compressed buffers only in messages of version 5, got them in an older one")
        total = 0
        for offset, size in batch.structs(2, "<qq"):  # RecordBatch.buffers
            if size == 0:
                continue
            at = body + offset
            if offset < 0 or size < 8 or at + size > len(message):
                raise ValueError(f"expected buffers inside the message, got {size} bytes at {offset} of its body")
            (expands,) = struct.unpack_from("<q", message, at)
            # -1: the buffer follows these 8 bytes uncompressed.
            if expands < -1:
                raise ValueError(f"expected the size of a buffer, got {expands}")
            total += size - 8 if expands == -1 else expands
        return total
    except (struct.error, IndexError) as error:
        raise ValueError(f"expected the metadata of an Arrow record batch: {error}") from error


def is_compressed(head: bytes | bytearray | memoryview, start: int) -> bool:
    """Return whether the buffers of a record batch are compressed.

    Args:
        head: the message, without its body if you like.
        start: offset of its metadata.

    Raises:
        ValueError: it is not such a message.
    """
    try:
        return _Table.root(head, start).table(2).has(3)  # RecordBatch.compression
    except (struct.error, IndexError) as error:
        raise ValueError(f"expected the metadata of an Arrow record batch: {error}") from error


def dictionary_id(head: bytes | bytearray | memoryview, start: int) -> tuple[int, bool]:
    """Return the id of a dictionary, and whether its message only adds to it.

    Args:
        head: the message, without its body if you like.
        start: offset of its metadata.

    Raises:
        ValueError: it is not such a message.
    """
    try:
        batch = _Table.root(head, start).table(2)
        return batch.number(0, "<q"), batch.number(2, "<B") != 0
    except (struct.error, IndexError) as error:
        raise ValueError(f"expected the metadata of an Arrow dictionary: {error}") from error


_VERSION_5 = 4  # of the metadata


class _Table:
    """A table of a flatbuffer: fields by number, each optional."""

    def __init__(self, data: bytes | bytearray | memoryview, at: int) -> None:
        self._data, self._at = data, at
        if at < 0:
            raise IndexError("a table outside the buffer")
        self._fields = at - self._number("<i", at)
        self._size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes | bytearray | memoryview, at: int) -> _Table:
        """Return the root table of a buffer at byte ``at``."""
        return cls(data, at + int(struct.unpack_from("<I", data, at)[0]))

    def table(self, field: int) -> _Table:
        """Return the table in a field."""
        place = self._place(field)
        return _Table(self._data, place + self._number("<I", place))

    def number(self, field: int, layout: str) -> int:
        """Return the number in a field, 0 if it is absent."""
        place = self._find(field)
        return 0 if place is None else self._number(layout, place)

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        """Return the structs of a vector in a field."""
        place = self._place(field)
        vector = place + self._number("<I", place)
        count, size = self._number("<I", vector), struct.calcsize(layout)
        if vector + 4 + count * size > len(self._data):
            raise IndexError(f"a vector of {count} outside the buffer")
        return [struct.unpack_from(layout, self._data, vector + 4 + k * size) for k in range(count)]

    def has(self, field: int) -> bool:
        """Return whether a field is present."""
        return self._find(field) is not None

    def _place(self, field: int) -> int:
        place = self._find(field)
        if place is None:
            raise IndexError(f"no field {field}")
        return place

    def _find(self, field: int) -> int | None:
        slot = 4 + 2 * field
        offset = self._number("<H", self._fields + slot) if slot < self._size else 0
        return None if offset == 0 else self._at + offset

    def _number(self, layout: str, at: int) -> int:
        if at < 0:
            raise IndexError("a number outside the buffer")
        return int(struct.unpack_from(layout, self._data, at)[0])
