"""The reader of mapped files in a whole shuffle. It fetches the sequences that the page cache lacks one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from feedline import _native
from feedline.errors import DataError
from feedline.feed.packing.axis import SegmentSlice
from feedline.feed.protocol import Ints
from feedline.feed.reading.fetching_reader import FetchingReader
from feedline.feed.reading.reader import Slots

# Seconds between checks of the page cache while it holds everything, and number of sequences that are checked.
_LOOK_EVERY_S = 0.005
_LOOK_AT = 4
# Fetching stops once this many minibatches in a row were in the page cache.
_WARM_MINIBATCHES = 16


class RowReader(FetchingReader):
    """Stages the sequences of the next minibatches (`CopyAhead` requests them) while the page cache lacks some."""

    scattered: ClassVar[bool] = True

    _cold = False
    _look_at_s = 0.0
    _begun = False  # whether a minibatch was staged since the position last jumped

    @property
    def stages(self) -> bool:
        """See `Staging.stages`."""
        return self._cold or self.forced

    def take(self, parts: Sequence[SegmentSlice]) -> tuple[Slots, Ints]:
        """See `Reader.take`."""
        slots, index = super().take(parts)
        if not self._cold and len(slots):
            self.watch(slots, index)
        return slots, index

    def ready(self, parts: Sequence[SegmentSlice]) -> bool:
        """Return True: the chunks of sequences that are staged ahead are mapped."""
        return True

    def finds(self, ordinals: Ints) -> bool:
        """Return whether the page cache holds the sequences ``ordinals``, judged by a sample of pages.

        If not, call `take_ordinals`.
        """
        if self.stages or not len(ordinals):
            return False
        if time.perf_counter() >= self._look_at_s:
            self.watch(*self.in_files(ordinals))
        return not self._cold

    def take_ordinals(self, ordinals: Ints) -> tuple[Slots, Ints]:
        """Return slots and indices as `take` does, of sequences that the page cache may lack."""
        return self.in_files(ordinals)

    def stage(self, slots: Slots, index: Ints) -> _native.Staged:
        """See `Staging.stage`. The first minibatch does not wait for neighbours, of which none are needed yet."""
        begun, self._begun = self._begun, True
        if begun:
            return super().stage(slots, index)
        return self._chunks.stage(self._disk(), slots, index, None, [0] * len(self._corpus.schema))

    def reset(self) -> None:
        """See `Reader.reset`."""
        self._begun = False
        super().reset()

    def wait(self, staged: _native.Staged, ids: Ints) -> dict[int, DataError]:
        """See `Staging.wait`."""
        errors = super().wait(staged, ids)
        if self._hits >= _WARM_MINIBATCHES:
            self._cold = False
        return errors

    def watch(self, slots: Slots, index: Ints) -> None:
        """See `Staging.watch`."""
        now = time.perf_counter()
        if now < self._look_at_s:
            return
        self._look_at_s = now + _LOOK_EVERY_S
        if self.forced or self._chunks.lacking(self._disk(), slots, index, None, most=_LOOK_AT, pages=1):
            self._cold, self._hits = True, 0
