"""Frames that were decoded, for later minibatches of the same window.

To decode a frame, all frames from its key frame on are decoded. A window that is shuffled needs most of them soon. So
they are kept, up to `MEMORY_BYTES` in a process, the latest ones. Where few of them are used, as in a whole shuffle of
many files, the frames that nobody requested are no longer converted and kept, but for a sample of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from numpy.typing import NDArray

from feedline.concurrency.fork_local import PerProcess

MEMORY_BYTES = 256 << 20
"""Bytes of the frames that a process keeps."""

_LOCKS = 64
_TRIED = 512  # frames in advance after which their use is judged
_WORTH = 0.25  # share of them that must have been used
_SAMPLE = 16  # of this many groups, one is kept as a whole all the same

Frame = NDArray[Any]
_Key = tuple[bytes, int]


class _Kept:
    """A frame, and whether it was kept in advance, without a request so far."""

    __slots__ = ("frame", "in_advance")

    def __init__(self, frame: Frame, in_advance: bool) -> None:
        self.frame, self.in_advance = frame, in_advance


class DecodedFrames:
    """The decoded frames of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups = [threading.Lock() for _ in range(_LOCKS)]
        self._frames: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0
        self._asked = 0
        self._in_advance = self._used = 0.0  # of late

    def group_lock(self, identity: bytes, group: int) -> threading.Lock:
        """Return a lock for a group of pictures, so that one thread decodes it, and others find its frames."""
        return self._groups[hash((identity, group)) % _LOCKS]

    def get(self, identity: bytes, numbers: list[int]) -> dict[int, Frame]:
        """Return the frames ``numbers`` of a file that are kept, by number."""
        frames = {}
        with self._lock:
            for number in numbers:
                kept = self._frames.get((identity, number))
                if kept is not None:
                    self._frames.move_to_end((identity, number))
                    self._used += kept.in_advance
                    kept.in_advance = False
                    frames[number] = kept.frame
        return frames

    def are_worth(self) -> bool:
        """Return whether to keep the frames that are decoded on the way to the requested ones."""
        with self._lock:
            self._asked += 1
            return self._in_advance < _TRIED or self._used >= _WORTH * self._in_advance or self._asked % _SAMPLE == 0

    def put(self, identity: bytes, frames: dict[int, Frame], numbers: set[int]) -> None:
        """Keep frames by number, of which ``numbers`` are requested now."""
        with self._lock:
            for number, frame in frames.items():
                if (identity, number) in self._frames:
                    continue
                self._frames[identity, number] = _Kept(frame, number not in numbers)
                self._bytes += frame.nbytes
                self._in_advance += number not in numbers
            while self._bytes > MEMORY_BYTES:
                self._bytes -= self._frames.popitem(last=False)[1].frame.nbytes
            if self._in_advance > 4 * _TRIED:  # forget slowly, as another window may be different
                self._in_advance, self._used = self._in_advance / 2, self._used / 2


_decoded: PerProcess[DecodedFrames] = PerProcess(DecodedFrames)


def decoded_frames() -> DecodedFrames:
    """Return the decoded frames of this process."""
    return _decoded.get()
