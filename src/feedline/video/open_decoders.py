"""Decoders that are kept open, so that a file is opened once for many minibatches.

A decoder is lent to one thread at a time. At most `MOST_OPEN`, of about `MOST_BYTES`, wait for their next use. The one
that has waited longest is closed first.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from feedline.concurrency.fork_local import PerProcess
from feedline.feed.protocol import Ints
from feedline.video.libraries import torchcodec
from feedline.video.packet_cache import FileVersion
from feedline.video.packet_index import PacketIndex
from feedline.video.ranged_file import RangedFile

MOST_OPEN = 128
"""Decoders that a process keeps open while no thread uses them."""

MOST_BYTES = 256 << 20
"""Bytes that they may take together, as estimated from the sizes of their frames."""


_REFERRED = 16


class WrongFrameError(Exception):
    """A decoder returned other frames than those that were requested."""


class FrameDecoder:
    """A decoder of one file.

    Args:
        source: the file, or the bytes of a whole clip.
        packets: the packets of the file.
        device: see `feedline.video.Decode`.
        from_earlier: number of a group of pictures to decode from an earlier key frame than its own.

    Raises:
        RuntimeError: torchcodec cannot decode it.
        DataError: a store does not deliver its bytes.
    """

    def __init__(
        self,
        source: FileVersion | bytes,
        packets: PacketIndex,
        device: str | None,
        from_earlier: int | None = None,
    ) -> None:
        self._packets = packets
        options = {"custom_frame_mappings": packets.mappings(from_earlier), "stream_index": packets.stream}
        self._file: RangedFile | None = None
        opened: Any = source
        if isinstance(source, FileVersion):
            self._file = None if source.remote is None else RangedFile(source.path)
            opened = source.path if self._file is None else self._file
        self._decoder = torchcodec().VideoDecoder(
            opened, dimension_order="NHWC", num_ffmpeg_threads=1, device=device or "cpu", **options
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes of a decoded frame, as the file says."""
        return 3 * (self._decoder.metadata.width or 0) * (self._decoder.metadata.height or 0)

    @property
    def nbytes(self) -> int:
        """About the bytes that the decoder takes: its own, and those of the frames that it refers to."""
        return (1 << 20) + _REFERRED * self.frame_bytes // 2  # two chroma samples for four pixels

    def fetch(self, begin: int, end: int) -> None:
        """Fetch bytes of an object in one request, before they are decoded.

        Raises:
            DataError: they cannot be fetched.
        """
        if self._file is not None:
            self._file.fetch(begin, end)

    def decode(self, numbers: Ints) -> Any:
        """Return the frames ``numbers``, which ascend, as a tensor of uint8 (frames, height, width, 3).

        Raises:
            RuntimeError: they cannot be decoded. The decoder is of no more use then.
            WrongFrameError: the file has other frames at these times.
        """
        frames = self._decoder.get_frames_at(numbers.tolist())
        expected = self._packets.begins[numbers]
        wrong = np.flatnonzero(frames.pts_seconds.numpy() != expected)
        if len(wrong):
            at = int(wrong[0])
            raise WrongFrameError(
                f"expected a frame at {float(expected[at])!r} s, got one at {float(frames.pts_seconds[at])!r} s"
            )
        return frames.data


class _Waiting(NamedTuple):
    version: FileVersion
    device: str | None
    decoder: FrameDecoder


class _OpenDecoders:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()  # the least recently used first
        self._bytes = 0

    def take(self, version: FileVersion, device: str | None) -> FrameDecoder | None:
        with self._lock:
            for at in range(len(self._waiting) - 1, -1, -1):
                if self._waiting[at][:2] == (version, device):
                    decoder = self._waiting[at].decoder
                    del self._waiting[at]
                    self._bytes -= decoder.nbytes
                    return decoder
        return None

    def give_back(self, version: FileVersion, device: str | None, decoder: FrameDecoder) -> None:
        closed = []
        with self._lock:
            self._waiting.append(_Waiting(version, device, decoder))
            self._bytes += decoder.nbytes
            while self._bytes > MOST_BYTES or len(self._waiting) > MOST_OPEN:
                closed.append(self._waiting.popleft())
                self._bytes -= closed[-1].decoder.nbytes
        del closed  # without the lock, as closing takes time

    def clear(self) -> None:
        with self._lock:
            closed, self._waiting, self._bytes = self._waiting, deque(), 0
        del closed


_open: PerProcess[_OpenDecoders] = PerProcess(_OpenDecoders)


@atexit.register
def _close_all() -> None:
    # While modules are taken down, files and clients of stores can no longer be closed in order.
    _open.get().clear()


def take_decoder(version: FileVersion, packets: PacketIndex, device: str | None) -> FrameDecoder:
    """Return a decoder of a file, which belongs to the calling thread until `give_back`.

    Raises:
        RuntimeError: torchcodec cannot decode the file.
    """
    return _open.get().take(version, device) or FrameDecoder(version, packets, device)


def give_back(version: FileVersion, device: str | None, decoder: FrameDecoder) -> None:
    """Give back a decoder that has raised no error. One that has must be dropped, as its next frames may be wrong."""
    _open.get().give_back(version, device, decoder)
