"""The work of a transform that runs in other threads, and ends when nobody waits for it any more."""

from __future__ import annotations

from typing import Protocol

from feedline.concurrency.finalizers import unless_exiting
from feedline.feed.transforms.transform import Transformed


class Work(Protocol):
    """Work on a minibatch."""

    def begin(self) -> None:
        """Begin in other threads."""

    def result(self) -> Transformed:
        """Wait for the work, and return the result."""

    def cancel(self) -> None:
        """End the work as soon as possible."""


class BegunWork:
    """Work that has begun. Deleting this object ends it. See `Begun`."""

    def __init__(self, work: Work) -> None:
        work.begin()
        self._work = work

    def result(self) -> Transformed:
        """Wait for the work, and return the result."""
        return self._work.result()

    @unless_exiting
    def __del__(self) -> None:
        work = getattr(self, "_work", None)  # missing if the work could not begin
        if work is not None:
            work.cancel()
