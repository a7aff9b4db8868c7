"""Blosc frames of Zarr chunks, decoded only if they are as long as they say.

numcodecs hands a frame to Blosc without its length, and Blosc reads as far as the frame's header says: a header of a
damaged chunk makes it read memory that is not the chunk's. Here the header is checked first; from then on Blosc bounds
what it reads by the length in the header, and what it writes by the decoded length.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import numcodecs
import numcodecs.blosc
from zarr.abc.codec import BytesBytesCodec

NAMES = ("blosc", "numcodecs.blosc")  # of the codec, in documents of either version
_HEADER = struct.Struct("<4B3I")  # two versions, flags, item size; then bytes decoded, of a block, and of the frame


class BloscV2(numcodecs.Blosc):
    """The codec of a version 2 array.

    Args:
        most: bytes that a decoded frame may take.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the bytes of a frame.

        Raises:
            ValueError: the frame is cut, damaged, or decodes to more bytes than it may.
        """
        _check(memoryview(buf).cast("B"), self._most)
        return super().decode(buf, out)


class BloscV3(BytesBytesCodec):
    """The codec of a version 3 array, or of the chunks within its shards.

    Args:
        most: bytes that a decoded frame may take.
    """

    is_fixed_size = False

    def __init__(self, most: int) -> None:
        self._codec = BloscV2(most)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Refuse: how small a frame becomes depends on its bytes."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        decoded = await asyncio.to_thread(self._codec.decode, chunk_data.as_numpy_array())
        return chunk_spec.prototype.buffer.from_bytes(decoded)


def _check(frame: memoryview, most: int) -> None:
    if len(frame) < _HEADER.size:
        raise ValueError(f"expected a Blosc frame, whose header takes {_HEADER.size} bytes, got {len(frame)} bytes")
    *_, decoded, _, length = _HEADER.unpack_from(frame)
    if length > len(frame):
        raise ValueError(f"expected a Blosc frame of {length} bytes, as its header says, got {len(frame)} bytes")
    if decoded > most:
        raise ValueError(f"expected a Blosc frame that decodes to at most {most} bytes (memory), got one of {decoded}")
