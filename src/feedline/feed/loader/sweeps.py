"""Which sweep comes next, and how far the present one has been delivered.

A loader and its iterators share a `Sweeps`, and know nothing else of each other.
"""

from __future__ import annotations

from typing import NamedTuple

from feedline.feed.loader.order import Planned
from feedline.feed.loader.state import ResumePoint


class SweepProgress:
    """How far an iterator has delivered; it outlives the iterator."""

    def __init__(self, place: ResumePoint) -> None:
        self.place = place

    def after(self, planned: Planned) -> ResumePoint:
        """Where it stands once this batch has been delivered.

        Behind the last batch that is the end of the sweep: only the loop's next question, which finds nothing, begins
        another one.
        """
        place = self.place
        if planned.start == place.start and not place.done:
            return ResumePoint(place.sweep, planned.stop, (), planned.memo)
        start = place.start
        done: list[tuple[int, int]] = []
        for a, b in sorted((*place.done, (planned.start, planned.stop))):
            if a <= start:
                start = max(start, b)
            elif done and a <= done[-1][1]:
                done[-1] = (done[-1][0], max(b, done[-1][1]))
            else:
                done.append((a, b))
        return ResumePoint(place.sweep, start, tuple(done), planned.memo)


class LoaderStanding(NamedTuple):
    """Where a loader stands.

    Attributes:
        next_sweep: the sweep of the next iterator.
        resume: where that begins, if a state was loaded or an iterator could not be made.
        newest: progress of the iterator made last; None: there is none, or a state was loaded since.
    """

    next_sweep: int = 0
    resume: ResumePoint | None = None
    newest: SweepProgress | None = None

    @property
    def upcoming(self) -> ResumePoint:
        """Where the next iterator begins."""
        return self.resume or ResumePoint(self.next_sweep)

    @property
    def place(self) -> ResumePoint:
        """What follows the last batch delivered by the iterator made last."""
        return self.upcoming if self.newest is None else self.newest.place


class Sweeps:
    """The present `LoaderStanding`, replaced as a whole: an interrupt finds it as it was or as it will be.

    Attributes:
        now: where the loader stands.
    """

    def __init__(self, now: LoaderStanding) -> None:
        self.now = now

    def beyond(self, progress: SweepProgress) -> ResumePoint | None:
        """Where the sweep after that of an iterator begins; None: unknown, as it is not the iterator made last."""
        now = self.now
        return ResumePoint(now.next_sweep) if now.newest is progress and now.resume is None else None
