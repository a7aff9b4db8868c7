"""The packets of a video stream: when each frame is displayed, where its packet is, and which are key frames.

Frames are numbered in the order in which they are displayed. A group of pictures is a key frame and the frames that are
displayed after it, up to the next key frame. To decode a frame, its group is decoded from the key frame on.

The bytes of an index, little endian::

    header   magic 8s, version u32, crc32c of the rest u32, identity of the file 16s, size of the file u64, number of
             the stream u32, time base u32 / u32, 0 u32, frames u64
    frames   per frame  pts i64, duration i64, offset u64, size u32, key u32
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.feed.protocol import Ints

FRAME = np.dtype([("pts", "<i8"), ("duration", "<i8"), ("offset", "<u8"), ("size", "<u4"), ("key", "<u4")])

_HEAD = struct.Struct("<8sII16sQIIIIQ")
_MAGIC = b"FLPACKET"
_VERSION = 1
_CHECKED = 16  # bytes before those that the checksum covers
_MOST = 1 << 62  # so that sums do not overflow

_LEAD = 32
"""Frames that are decoded before a group that cannot be decoded from its own key frame: more than are reordered."""

ROUNDING_S = 1e-4
"""Seconds by which a time may be before its frame, as times that were rounded are."""
_SINGLE_ROUNDING = 2.0**-24  # of the time: half of the spacing of single-precision numbers


class DamagedPacketsError(Exception):
    """The packets, or the bytes of an index, are impossible, as the message describes."""


class PacketIndex:
    """The packets of a video stream.

    Args:
        frames: `FRAME` records, ascending by ``pts``.
        stream: number of the stream in the file.
        time_base: numerator and denominator of the unit of ``pts`` and ``duration``, in seconds.
        file_size: bytes of the file.

    Attributes:
        begins: float64 (frames,), seconds at which each frame is displayed.
        end: seconds at which the last frame ends.
        groups: int64 (groups + 1,), number of the first frame of each group of pictures, and the number of frames.
            Frames before the first key frame are in the first group.

    Raises:
        DamagedPacketsError: there are no such packets.
    """

    def __init__(self, frames: NDArray[Any], stream: int, time_base: tuple[int, int], file_size: int) -> None:
        self.frames, self.stream, self.time_base, self.file_size = frames, stream, time_base, file_size
        self._check()
        pts, duration = frames["pts"], frames["duration"]
        self.begins: NDArray[np.float64] = self._seconds(pts)
        self.end = float(self._seconds((pts + duration).max()))
        keys = np.flatnonzero(frames["key"])
        self.groups: Ints = np.concatenate([keys, [len(frames)]]).astype(np.int64)
        self.first_key = int(keys[0])
        self.groups[0] = 0

    def _check(self) -> None:
        frames, (numerator, denominator) = self.frames, self.time_base
        if not len(frames):
            raise DamagedPacketsError("it has no packets")
        if not (0 < numerator < 2**31 and 0 < denominator < 2**31):
            raise DamagedPacketsError(f"its unit of time is {numerator}/{denominator} s")
        pts, duration = frames["pts"], frames["duration"]
        if (np.abs(pts) > _MOST).any() or (pts == -(2**63)).any() or (duration < 0).any() or (duration > _MOST).any():
            raise DamagedPacketsError("its times are out of range")
        if (pts[1:] <= pts[:-1]).any():
            raise DamagedPacketsError("two packets have the same time")
        if not frames["key"].any() or (frames["key"] > 1).any():
            raise DamagedPacketsError("it has no key frame")
        size = np.uint64(self.file_size)
        if (frames["offset"] > size).any() or (frames["size"] > size - frames["offset"]).any():
            raise DamagedPacketsError("a packet is outside the file")

    def _seconds(self, pts: Any) -> Any:
        numerator, denominator = self.time_base
        return pts.astype(np.float64) * numerator / denominator  # the order of operations of torchcodec

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.frames.nbytes + self.begins.nbytes + self.groups.nbytes)

    def frames_at(self, times: NDArray[np.float64]) -> Ints:
        """Return the number of the frame that is displayed at each time, or -1 where there is none, int64 (n,).

        A time that is a little before a frame, by rounding, is a time of that frame: at most `ROUNDING_S`, and at most
        half the duration of the frame before.
        """
        begins, last = self.begins, len(self.begins) - 1
        at = np.searchsorted(begins, times, side="right") - 1
        following = np.minimum(at + 1, last)
        gap = begins[following] - times
        slack = ROUNDING_S + np.abs(times) * _SINGLE_ROUNDING
        half = np.where(at >= 0, (begins[following] - begins[np.maximum(at, 0)]) / 2, np.inf)
        at = np.where((gap > 0) & (gap <= slack) & (gap <= half), following, at)
        return np.where(times < self.end, at, -1).astype(np.int64)

    def group_of(self, numbers: Ints) -> Ints:
        """Return the group of pictures of each frame, int64 (n,)."""
        return np.searchsorted(self.groups, numbers, side="right") - 1

    def frames_before(self, number: int) -> range:
        """Return the frames of a group of pictures up to a frame, and this one."""
        begin = int(self.groups[int(self.group_of(np.array([number]))[0])])
        return range(max(begin, self.first_key) if number >= self.first_key else begin, number + 1)

    def extent(self, first: int, last: int) -> tuple[int, int]:
        """Return begin and end of the bytes of the packets that frames ``first`` to ``last`` of a group need."""
        group = int(self.group_of(np.array([first]))[0])
        part = self.frames[self.groups[group] : last + 1]
        begin = int(part["offset"].min())
        return begin, int((part["offset"] + part["size"]).max())

    def mappings(self, from_earlier: int | None = None) -> str:
        """Return the frames in the JSON that torchcodec takes.

        Args:
            from_earlier: number of a group of pictures to decode from an earlier key frame than its own.
        """
        keys = self.frames["key"].copy()
        if from_earlier is not None:
            earlier = int(np.searchsorted(self.groups, self.groups[from_earlier] - _LEAD, side="right")) - 1
            keys[self.groups[max(earlier, 0) + 1 : from_earlier + 1]] = 0
        rows = zip(self.frames["pts"].tolist(), self.frames["duration"].tolist(), keys.tolist(), strict=True)
        return '{"frames":[' + ",".join(f'{{"pts":{p},"duration":{d},"key_frame":{int(k)}}}' for p, d, k in rows) + "]}"

    def to_bytes(self, identity: bytes) -> bytes:
        """Return the bytes of the index of a file of some identity, 16 bytes."""
        body = _HEAD.pack(
            _MAGIC, _VERSION, 0, identity, self.file_size, self.stream, *self.time_base, 0, len(self.frames)
        )
        body = body[_CHECKED:] + self.frames.tobytes()
        return struct.pack("<8sII", _MAGIC, _VERSION, _native.crc32c(body)) + body


def from_bytes(data: bytes, identity: bytes) -> PacketIndex:
    """Return the index in ``data``, of a file of some identity.

    Raises:
        DamagedPacketsError: they are not the bytes of an index of that file.
    """
    if len(data) < _HEAD.size:
        raise DamagedPacketsError(f"{len(data)} bytes")
    magic, version, crc, of, file_size, stream, numerator, denominator, _, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or crc != _native.crc32c(data[_CHECKED:]):
        raise DamagedPacketsError("no index, a damaged one or another version")
    if of != identity:
        raise DamagedPacketsError("the index of another file")
    if len(data) != _HEAD.size + count * FRAME.itemsize:
        raise DamagedPacketsError(f"{len(data)} bytes for {count} frames")
    frames = np.frombuffer(data, FRAME, offset=_HEAD.size)
    return PacketIndex(frames, stream, (numerator, denominator), file_size)
