"""A record batch whose bytes stay in their file.

Arrow gets a private copy of the head of the message, which locates the buffers. Untouched memory follows in place of
the body. The addresses that Arrow returns are then translated to bytes of the file. So Arrow never reads a mapping,
which would kill the process if the file were truncated.
"""

from __future__ import annotations

import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.feed.formats.store.mapped_files import StoreMap

MAX_HEAD_BYTES = 64 << 20
"""Maximum bytes of the head of a message. Each stream takes a few hundred."""


class Buffers(Protocol):
    """Access to the buffers of a record batch."""

    def view(self, buffer: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return an array of ``count`` elements over one of its buffers.

        Raises:
            ValueError: the buffer is too small for that.
        """

    def bounds(self, buffer: Any, count: int) -> NDArray[np.int64]:
        """Return a `view` of offsets or row bounds, which will be read from first to last."""


class ArrowBatch:
    """One message of an Arrow file.

    Args:
        file: the mapped file.
        start: first byte of the message.
        size: bytes of the message.
        schema: Arrow schema that the message must have.

    Attributes:
        arrow: the record batch. Only its lengths, null counts and places of buffers are meaningful.

    Raises:
        ValueError: the message is not a record batch of that schema and size.
        DataError: the file was truncated, or its disk fails.
    """

    def __init__(self, file: StoreMap, start: int, size: int, schema: Any) -> None:
        import pyarrow as pa

        self._file, self._start, self._size = file, start, size
        # FFFFFFFF, int32 length of the metadata, metadata, body
        marker, length = file.copy(8, start).view("<i4").tolist()
        if marker != -1 or not 0 < length <= min(size - 8, MAX_HEAD_BYTES):
            raise ValueError(f"expected a message of {size} bytes, got one with {length} bytes of metadata")
        head = file.copy(8 + length, start)
        # Pages that are never written take no memory.
        body = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        body[: len(head)] = head.data
        message = pa.py_buffer(body)
        self._address = message.address
        try:
            self.arrow: Any = pa.ipc.read_record_batch(pa.ipc.read_message(message), schema)
        except (pa.ArrowException, OSError, EOFError, TypeError) as error:
            raise ValueError(f"expected an uncompressed Arrow record batch: {error}") from error

    def view(self, buffer: Any, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return an array of ``count`` elements over the bytes of the file that a buffer of the batch refers to.

        Raises:
            ValueError: the buffer is too small for that, misaligned, or not part of the message (compressed data).
        """
        if count == 0:
            return np.empty(0, dtype)
        size = 0 if buffer is None else buffer.size
        self._check(buffer)
        if count < 0 or count * dtype.itemsize > size:
            raise ValueError(f"expected {count} elements of {dtype.name} in a buffer of {size} bytes")
        byte = self._start + buffer.address - self._address
        if byte % dtype.itemsize:
            raise ValueError(f"expected {dtype.name} at a multiple of {dtype.itemsize} bytes, got byte {byte}")
        return self._file.view(dtype, count, byte)

    def hold(self, buffer: Any) -> None:
        """Keep a buffer readable by `view`, see `StoreMap.hold`.

        Raises:
            ValueError: the buffer is not part of the message (compressed data).
        """
        if buffer is not None and buffer.size:
            self._check(buffer)
            self._file.hold(self._start + buffer.address - self._address, buffer.size)

    def _check(self, buffer: Any) -> None:
        size = 0 if buffer is None else buffer.size
        if size and not 0 <= buffer.address - self._address <= self._size - size:
            raise ValueError("expected buffers within the message, got compressed or foreign ones")

    def bounds(self, buffer: Any, count: int) -> NDArray[np.int64]:
        """Return a `view` of offsets or row bounds, which will be read from first to last."""
        bounds = self.view(buffer, np.dtype(np.int64), count)
        # Read from disk page by page, they would take a hundred times as long.
        self._file.advise("willneed", self._start + buffer.address - self._address, bounds.nbytes)
        return bounds
