"""Compressed shards. A whole file is compressed, or within it, as LitData does, its samples in runs or one by one.

A file of runs begins with ``"LDFZ01\\0\\0", u16 version, u16 flags, u32 samples, u32 samples in a run, u32 runs``. Then
follow ``u32 offsets[samples + 1]`` of the unpacked samples, and for each run ``u32 first sample, u32 samples, u64 first
byte, u32 bytes, u32 bytes unpacked``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.feed.files.paths import read_at
from feedline.feed.protocol import Ints

CODECS = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}
"""Names of codecs in indexes to their names in pyarrow."""

_STEP_BYTES = 8 << 20  # that are allocated in one step, whatever size a file claims
# Memory for a claimed size is allocated at once up to this many bytes, or this many times the packed bytes.
_AT_ONCE, _LIKELY = 8 << 20, 64
_MAGIC = b"LDFZ01\0\0\1\0\0\0"  # with version and flags
_HEAD = struct.Struct("<12sIII")
_RUN = np.dtype([("first", "<u4"), ("samples", "<u4"), ("byte", "<u8"), ("size", "<u4"), ("unpacked", "<u4")])


class TooMuchError(ValueError):
    """Unpacked data take more memory than they may: ``taken`` bytes or more."""

    def __init__(self, taken: int) -> None:
        super().__init__(f"{taken} or more")
        self.taken = taken


class PackedRuns(NamedTuple):
    """Consecutive runs of samples in a file. Each run is compressed by itself.

    Attributes:
        low, high: first byte of the runs in the file, and their end.
        bounds: bounds of the samples in the unpacked runs, int64 (samples + 1,), from 0.
        begins: first byte of each run after ``low``.
        sizes, unpacked: bytes of each run, packed and unpacked.
    """

    low: int
    high: int
    bounds: Ints
    begins: Ints
    sizes: Ints
    unpacked: Ints


def words(data: bytes | NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return numbers of 4 bytes each. An incomplete number at the end, where a file was cut, is left out."""
    return np.frombuffer(data, "<u4", len(data) // 4)


def read_runs(file: BinaryIO, size: int, *, samples: int, per_run: int, start: int, stop: int) -> PackedRuns:
    """Return the runs with the samples ``start:stop`` in a file of ``size`` bytes.

    Raises:
        ValueError: the file is damaged, or does not have ``samples`` samples in runs of ``per_run``.
    """
    head, runs = read_at(file, _HEAD.size, 0), -(-samples // per_run)
    expected = _HEAD.pack(_MAGIC, samples, per_run, runs)
    if head != expected:
        raise ValueError(f"expected a file of {samples} samples in {runs} runs, got one that begins with {head!r}")
    table = _HEAD.size + 4 * (samples + 1)
    offsets = words(read_at(file, 4 * (stop - start + 1), _HEAD.size + 4 * start)).astype(np.int64)
    first, end = start // per_run, -(-stop // per_run)
    entries = read_at(file, _RUN.itemsize * (end - first), table + _RUN.itemsize * first)
    listed = np.frombuffer(entries, _RUN, len(entries) // _RUN.itemsize)
    if len(offsets) != stop - start + 1 or len(listed) != end - first:
        raise ValueError(f"expected the offsets of {samples} samples, got a file that ends before them")
    begins, sizes, unpacked = (listed[name].astype(np.int64) for name in ("byte", "size", "unpacked"))
    firsts = np.arange(first, end) * per_run
    ends = np.minimum(firsts + per_run, samples)
    edges = np.append(firsts, stop) - start
    if (listed["first"] != firsts).any() or (listed["samples"] != ends - firsts).any():
        raise ValueError("expected runs of samples one after the other, got others")
    if (begins[1:] != begins[:-1] + sizes[:-1]).any() or begins[0] < table or int(begins[-1] + sizes[-1]) > size:
        raise ValueError("expected runs of bytes one after the other within the file, got others")
    if (np.diff(offsets) < 0).any() or (np.diff(offsets[edges]) != unpacked).any():
        raise ValueError("expected offsets of samples that ascend as the runs are long, got others")
    low = int(begins[0])
    return PackedRuns(
        low=low,
        high=int(begins[-1] + sizes[-1]),
        bounds=offsets - offsets[0],
        begins=begins - low,
        sizes=sizes,
        unpacked=unpacked,
    )


def unpack_runs(runs: PackedRuns, packed: NDArray[np.uint8], codec: str, max_bytes: int) -> NDArray[np.uint8]:
    """Return the bytes of the samples.

    Raises:
        TooMuchError: they would take more than ``max_bytes``.
        ValueError: a run is damaged, or of another size.
    """
    total = int(runs.unpacked.sum())
    if total > max_bytes:
        raise TooMuchError(total)
    places = zip(runs.begins.tolist(), runs.sizes.tolist(), runs.unpacked.tolist(), strict=True)
    parts = (unpack(packed[begin : begin + size], codec, (n,), max_bytes) for begin, size, n in places)
    if not _is_likely(total, packed):
        return np.concatenate(list(parts))
    samples, at = np.empty(total, np.uint8), 0
    for part in parts:
        # Copied while it is in the processor's cache.
        samples[at : at + len(part)] = part
        at += len(part)
    return samples


def _is_likely(size: int, packed: NDArray[np.uint8]) -> bool:
    """Return whether a claimed unpacked size is plausible enough to allocate memory for it."""
    return size <= max(_AT_ONCE, _LIKELY * len(packed))


def unpack_each(
    bounds: Ints, packed: NDArray[np.uint8], codec: str, max_bytes: int
) -> tuple[Ints, NDArray[np.uint8], Mapping[int, str]]:
    """Unpack samples that are compressed one by one. Return their bounds, their bytes, and by index the reasons why
    some failed.

    Raises:
        TooMuchError: they would take more than ``max_bytes``.
    """
    ends, parts, wrong = [0], [], dict[int, str]()
    for i, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        part = packed[:0]
        try:
            if not 0 <= begin <= end <= len(packed):
                raise ValueError("expected offsets of a sample within the shard, got others")
            part = unpack(packed[begin:end], codec, None, max_bytes - ends[-1])
        except TooMuchError as error:
            raise TooMuchError(ends[-1] + error.taken) from None
        except ValueError as error:
            wrong[i] = f"expected a sample compressed by {codec}: {error}"
        parts.append(part)
        ends.append(ends[-1] + len(part))
    return np.array(ends, np.int64), np.concatenate(parts), wrong


def unpack(packed: NDArray[np.uint8], codec: str, sizes: Collection[int] | None, max_bytes: int) -> NDArray[np.uint8]:
    """Return the unpacked bytes.

    Args:
        packed: the packed bytes.
        codec: one of `CODECS`.
        sizes: possible sizes of the unpacked bytes. With None, any size up to ``max_bytes``.
        max_bytes: bytes that they may take.

    Raises:
        TooMuchError: they take more, where ``sizes`` is None.
        ValueError: they are damaged, or have another size.
    """
    import pyarrow as pa

    pieces, total, limit = [], 0, max_bytes if sizes is None else max(sizes)
    try:
        if codec == "zstd" and sizes is not None and len(sizes) == 1 and _is_likely(limit, packed):
            # Three times as fast. An error about another size does not name that size.
            return np.frombuffer(pa.Codec("zstd").decompress(pa.py_buffer(packed), decompressed_size=limit), np.uint8)
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), CODECS[codec]) as stream:
            while total <= limit:
                piece = stream.read_buffer(min(limit + 1 - total, _STEP_BYTES))
                if not piece.size:
                    break
                pieces.append(np.frombuffer(piece, np.uint8))
                total += piece.size
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    if total > limit and sizes is None:
        raise TooMuchError(total)
    if sizes is not None and total not in sizes:
        raise ValueError(f"expected {' or '.join(map(str, sizes))} bytes, got {'more' if total > limit else total}")
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
