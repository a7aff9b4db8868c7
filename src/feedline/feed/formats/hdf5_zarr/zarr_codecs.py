"""Codecs of Zarr chunks that decode no more than a chunk can hold.

The libraries decode as much as a chunk expands to: a megabyte of gzip can be a gigabyte of zeros, and a header of
Blosc, LZ4 or Zstandard can claim any size. numcodecs also passes a frame to Blosc without its length, and Blosc reads
as many bytes as the header of the frame claims, beyond the chunk's memory. Here sizes are checked before any memory is
allocated.
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numcodecs
import numcodecs.abc
import numcodecs.compat
import numcodecs.registry
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import VLenBytesCodec

_PREFIX = "numcodecs."  # of names in documents of version 3
_BLOSC = struct.Struct("<4B3I")  # two versions, flags, item size, then bytes decoded, of a block, and of the frame
_LZMA_BYTES = 128 << 20  # memory of a decoder. A header can request 4 GiB
_VLEN = "vlen-bytes"  # texts are read as these
_STRINGS = (_VLEN, "vlen-utf8")


class Bound:
    """The maximum bytes and items of a decoded chunk.

    They are known only after the codecs that observe them have been created.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.max_items = max_bytes, max_bytes


def bound_codec_v2(described: dict[str, Any], bound: Bound) -> Any:
    """Return the codec that an entry of a version 2 document describes, bounded, or None if it does not expand data.

    Args:
        described: the entry.
        bound: limits that the codec observes.
    """
    name = described.get("id")
    return _Bounded(numcodecs.registry.get_codec(described), bound) if name in _CHECKS else None


def bound_codec_v3(described: dict[str, Any] | str, bound: Bound) -> Any:
    """Return the bounded codec for an entry of a version 3 document, or None. See `bound_codec_v2`."""
    entry = described if isinstance(described, dict) else {"name": described}
    name = str(entry.get("name")).removeprefix(_PREFIX)
    if name == _VLEN:
        return _BoundedStrings()
    if name not in _CHECKS:
        return None
    settings = entry.get("configuration")
    # Decoding needs no levels, and no settings of Blosc.
    needed = settings if isinstance(settings, dict) and name == "lzma" else {}
    return _BoundedV3(_Bounded(numcodecs.registry.get_codec({"id": name, **needed}), bound))


def add_string_checks(described: dict[str, Any], bound: Bound) -> dict[str, Any]:
    """Return a version 2 document whose codecs of strings decode no more strings than a chunk can have.

    The codecs themselves stay, as the zarr library derives the kind of an array from them. A check precedes each.
    """
    filters, compressor = described.get("filters"), described.get("compressor")
    if not isinstance(filters, list | None):
        return described
    before = [codec for codec in filters or () if not isinstance(codec, _CheckedStrings)]
    if _is_strings(compressor):
        before, compressor = [*before, compressor], None
    checked = [part for old in before for part in ((old, _CheckedStrings(bound)) if _is_strings(old) else (old,))]
    return {**described, "filters": checked or None, "compressor": compressor}


def _is_strings(described: Any) -> bool:
    return isinstance(described, dict) and described.get("id") in _STRINGS


class _CheckedStrings(numcodecs.abc.Codec):
    """A filter that changes no data, and refuses more strings than a chunk can have."""

    codec_id = "checked-strings"

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def encode(self, buf: Any) -> Any:
        """Return ``buf``."""
        return buf

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return ``buf``.

        Raises:
            ValueError: it claims to have more strings.
        """
        _check_strings(memoryview(numcodecs.compat.ensure_contiguous_ndarray(buf)).cast("B"), self._bound.max_items)
        return buf


class _Bounded(numcodecs.abc.Codec):
    """A codec of numcodecs that observes a bound."""

    codec_id = "bounded"

    def __init__(self, codec: Any, bound: Bound) -> None:
        self._codec, self._bound, self.codec_id = codec, bound, codec.codec_id

    def encode(self, buf: Any) -> Any:
        """Encode."""
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the bytes of a chunk.

        Raises:
            ValueError: it is cut, damaged, or decodes to more bytes than it may.
        """
        data = memoryview(numcodecs.compat.ensure_contiguous_ndarray(buf)).cast("B")
        decoded = _CHECKS[self.codec_id](data, self._bound.max_bytes, self._codec)
        return self._codec.decode(buf, out) if decoded is None else numcodecs.compat.ndarray_copy(decoded, out)

    def get_config(self) -> Any:
        """Return the document of the codec."""
        return self._codec.get_config()


class _BoundedV3(BytesBytesCodec):
    """A bounded codec of a version 3 array, or of the chunks within its shards."""

    is_fixed_size = False

    def __init__(self, codec: _Bounded) -> None:
        self._codec = codec

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Raise NotImplementedError, as the size of an encoded chunk depends on its bytes."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        decoded = await asyncio.to_thread(self._codec.decode, chunk_data.as_numpy_array())
        return chunk_spec.prototype.buffer.from_bytes(bytes(decoded))


class _BoundedStrings(VLenBytesCodec):
    """The codec of byte strings of a version 3 array. It refuses more strings than a chunk can have."""

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        _check_strings(memoryview(chunk_bytes.as_numpy_array()).cast("B"), math.prod(chunk_spec.shape))
        return await super()._decode_single(chunk_bytes, chunk_spec)


def _too_large(max_bytes: int, got: object) -> ValueError:
    return ValueError(f"expected a chunk that decodes to at most {max_bytes} bytes, got {got}")


def _check_blosc(frame: memoryview, max_bytes: int, codec: Any) -> None:
    if len(frame) < _BLOSC.size:
        raise ValueError(f"expected a Blosc frame, whose header takes {_BLOSC.size} bytes, got {len(frame)} bytes")
    *_, decoded, _, length = _BLOSC.unpack_from(frame)
    if length > len(frame):
        raise ValueError(f"expected a Blosc frame of {length} bytes, as its header says, got {len(frame)} bytes")
    if decoded > max_bytes:
        raise _too_large(max_bytes, decoded)


def _check_strings(data: memoryview, max_items: int) -> None:
    if (count := int.from_bytes(data[:4], "little")) > max_items:
        raise ValueError(f"expected a chunk of at most {max_items} strings, got one of {count}")


def _check_lz4(data: memoryview, max_bytes: int, codec: Any) -> None:
    if (decoded := int.from_bytes(data[:4], "little")) > max_bytes:
        raise _too_large(max_bytes, decoded)


def _in_members(data: memoryview, max_bytes: int, make: Callable[[], Any], *, only_one: bool = False) -> bytes:
    """Return the decoded bytes of all members, one after the other, or of the first if there is ``only_one``."""
    parts, total, remaining = list[bytes](), 0, bytes(data)
    while remaining:
        member = make()
        part = member.decompress(remaining, max_bytes - total + 1)
        total += len(part)
        if total > max_bytes:
            raise _too_large(max_bytes, "more")
        if not member.eof:
            raise ValueError("expected a whole chunk, got a truncated one")
        parts.append(part)
        remaining = b"" if only_one else member.unused_data.lstrip(b"\0")  # as gzip pads
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _lzma(data: memoryview, max_bytes: int, codec: Any) -> bytes:
    memory = None if codec.format == lzma.FORMAT_RAW else _LZMA_BYTES
    return _in_members(data, max_bytes, lambda: lzma.LZMADecompressor(codec.format, memory, codec.filters))


def _zstd(data: memoryview, max_bytes: int, codec: Any) -> bytes | None:
    """Return the decoded bytes of a frame whose header lacks their size, or None if the header has a size that fits."""
    descriptor = data[4] if len(data) > 4 else 0
    single, code = descriptor >> 5 & 1, descriptor >> 6
    size = (1 if single else 0, 2, 4, 8)[code]
    if size == 0:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
            decoded = stream.read(max_bytes + 1)
        if len(decoded) > max_bytes:
            raise _too_large(max_bytes, "more")
        return bytes(decoded)
    begin = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    decoded_size = int.from_bytes(data[begin : begin + size], "little") + (256 if size == 2 else 0)
    if decoded_size > max_bytes:
        raise _too_large(max_bytes, decoded_size)
    return None


_CHECKS: dict[str, Callable[[memoryview, int, Any], bytes | None]] = {
    "blosc": _check_blosc,
    "lz4": _check_lz4,
    "zstd": _zstd,
    "gzip": lambda data, max_bytes, codec: _in_members(data, max_bytes, lambda: zlib.decompressobj(31)),
    "zlib": lambda data, max_bytes, codec: _in_members(data, max_bytes, lambda: zlib.decompressobj(15), only_one=True),
    "bz2": lambda data, max_bytes, codec: _in_members(data, max_bytes, bz2.BZ2Decompressor),
    "lzma": _lzma,
}
"""By codec: ``check(data, max_bytes, codec)`` raises a ValueError if the data would decode to more than ``max_bytes``.
It returns the decoded data, or None if the codec can decode them safely after the check."""
