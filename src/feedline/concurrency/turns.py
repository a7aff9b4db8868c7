"""Turns of threads that read samples with the global generators of this process.

All threads share the generators of `random`, NumPy and torch, for any loader. A reading usually makes one batch. A
reading that seeds generators runs alone: no other begins until it has restored them. Other readings only compare
states, and run concurrently. The order is first come, first served.

No thread waits for its turn in the middle of user code, as that code may hold a resource for which a thread inside
waits:

- A reading that begins within another one, in its thread, is a part of the outer one's turn.
- A thread that waits for threads of a loader lends them its turn for the time of the wait (`lend`).
- A reading within another one that seeds begins even if other threads read. They share random numbers then, so all of
  them read once more, and the outer one is alone from then on.

This module cannot detect user code that waits for its own thread which reads a loader. Such code must not draw random
numbers.

An interrupt may come after any call, so one call ends a turn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

# After this wait a reading passes other waiting readings: a thread inside may wait for it, unknown to this
# module. An interrupt may also have prevented the signal at the end of a turn, so all waiters look again after this
# time.
PATIENCE_S = 1.0


class Reading:
    """Samples that are read in one turn.

    Args:
        seeds: function that returns whether it is going to seed generators, called whenever it may begin.

    Attributes:
        alone: whether it seeds generators.
        marks: (time, state) of each generator at its beginning, or at the beginning of an earlier reading that has
            restored them since.
        drawn: generators that were drawn from without being seeded.
        again: whether it has to be repeated, as it may contain random numbers of another reading.
        nests: whether the reason is a reading within it that should have been alone.
        before: previous reading of this thread, or None.
        outer: the reading that this one is a part of, in this thread or lent by another thread, or None.
        lent: the loader whose threads may read as a part of this one, or None.
    """

    __slots__ = ("_base", "_root", "again", "alone", "before", "drawn", "lent", "marks", "nests", "outer", "seeds")

    def __init__(self, seeds: Callable[[], bool]) -> None:
        self.seeds, self.alone, self.again, self.nests = seeds, False, False, False
        self.marks: list[tuple[int, Any]] = []
        self.drawn: list[Any] = []
        self.before = _thread.reading
        # None: this one. A cycle would keep the marks, some 10 KB a batch, until the next collection of garbage.
        self._base: Reading | None = None
        self._root: Reading | None = None
        self.outer: Reading | None = None
        self.lent: object | None = None

    @property
    def base(self) -> Reading:
        """The outermost reading of this thread."""
        return self._base or self

    @property
    def root(self) -> Reading:
        """The outermost reading that this one is a part of."""
        return self._root or self

    def place(self, inner: Reading | None, outer: Reading | None) -> None:
        """Note the reading of this thread around this one, and the reading that this one is a part of, if any."""
        self.outer = outer
        self._base, self._root = inner and inner.base, outer and outer.root

    def clashes(self, peer: Reading) -> bool:
        """Return whether the two readings exclude each other."""
        return self.alone or peer.alone

    def affected_with(self, peer: Reading) -> tuple[Reading, Reading]:
        """Return the readings to repeat, in this reading's thread and in the peer's, if they overlap."""
        return (self.base, peer.base) if peer.root is self.root else (self.root, peer.root)


class _ReadingThread(threading.local):
    """The reading of this thread, and the loader that it serves, or None in a thread of the program."""

    reading: Reading | None = None
    serves: object | None = None


_thread = _ReadingThread()


class Turns:
    """The turns of a process.

    Attributes:
        lock: lock held while generators are compared at the beginning or end of a turn. Re-entrant, as a signal handler
            may read.
        inside: current readings. They leave it without the lock.
        queue: readings that wait for a turn, in the order of arrival.
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.inside: dict[Reading, None] = {}
        self.queue: dict[Reading, None] = {}
        self._bells: dict[SimpleQueue[None], None] = {}
        self._begun = 0

    def begin(self, reading: Reading, look: Callable[[], list[Any]]) -> None:
        """Wait for the turn of a reading, and begin it.

        Args:
            reading: reading to begin.
            look: function that returns the states of the generators.
        """
        _thread.reading = reading
        with self.lock:
            if not self.inside and not self.queue:  # as usual
                reading.alone = reading.seeds()
                self._enter(reading, look())
                return
        try:
            self.queue[reading] = None
            self._wait(lambda late: self._begins(reading, look, late))
        finally:
            self.queue.pop(reading, None)

    def _enter(self, reading: Reading, states: list[Any]) -> None:
        self._begun = number = self._begun + 1
        reading.marks = [(number, state) for state in states]
        self.inside[reading] = None

    def _begins(self, reading: Reading, look: Callable[[], list[Any]], late: bool) -> bool:
        with self.lock:
            reading.alone = reading.seeds()
            self._place(reading)
            waits = reading.base is reading  # otherwise this thread is in the middle of user code
            affected: list[tuple[Reading, Reading]] = []
            for peer in self._peers(reading):
                if reading.clashes(peer):
                    if waits and (reading.outer is None or peer.root is reading.root):
                        return False
                    affected.append(reading.affected_with(peer))
            if reading.outer is None and not (late or self._is_next(reading)):
                return False
            for mine, theirs in affected:
                mine.again = mine.nests = theirs.again = True
            self._enter(reading, look())
            return True

    def _place(self, reading: Reading) -> None:
        """Determine the outer readings of a reading."""
        inner = self.current(reading.before)
        outer = inner
        if inner is None and _thread.serves is not None:
            outer = next((lender for lender in list(self.inside) if lender.lent is _thread.serves), None)
        reading.place(inner, outer)

    def _is_next(self, reading: Reading) -> bool:
        """Return whether no earlier waiting reading excludes it."""
        enclosing = self._line(reading, "before")  # interrupted by a signal handler
        for waiter in list(self.queue):
            if waiter is reading:
                break
            if reading.clashes(waiter) and waiter not in enclosing:
                return False
        return True

    def _peers(self, reading: Reading) -> list[Reading]:
        """Return the current readings that this one is not a part of."""
        ancestors = self._line(reading, "outer")
        return [peer for peer in list(self.inside) if peer not in ancestors]

    @staticmethod
    def _line(reading: Reading, name: str) -> list[Reading]:
        """Return a reading, and the chain of readings that an attribute leads to."""
        line: list[Reading] = []
        part: Reading | None = reading
        while part is not None:
            line.append(part)
            part = getattr(part, name)
        return line

    def current(self, reading: Reading | None) -> Reading | None:
        """Return a reading of this thread, or the innermost one around it that has not ended. None if there is none."""
        while reading is not None and reading not in self.inside:
            reading = reading.before
        return reading

    def take_back(self, reading: Reading, lent: object | None = None) -> None:
        """Wait until no other thread reads as a part of a reading, unless it is still ``lent``."""
        reading.lent = lent
        if lent is None and self._has_parts(reading):
            self._wait(lambda _: not self._has_parts(reading))

    def _has_parts(self, reading: Reading) -> bool:
        with self.lock:
            return len(self.inside) > 1 and any(peer.outer is reading for peer in list(self.inside))

    def restored(self, reading: Reading) -> None:
        """Note for its peers that a reading has restored generators that they may have drawn from. The lock is held.

        If it has drawn, they detect no difference, and have to be repeated. Their marks may be later than its draws, or
        than the draws of a reading within it. Then its marks are the ones to restore.
        """
        for peer in self._peers(reading):
            if reading.drawn:
                _, theirs = reading.affected_with(peer)
                theirs.again = True
            # A loader in threads has no mark of torch's generator.
            shared = [min(pair, key=lambda mark: mark[0]) for pair in zip(peer.marks, reading.marks, strict=False)]
            peer.marks = shared + peer.marks[len(shared) :]

    def wake(self) -> None:
        """Make all waiting threads look again."""
        for bell in list(self._bells):
            bell.put(None)

    def end(self, reading: Reading) -> None:
        """End the turn of a reading that is no longer inside."""
        _thread.reading = reading.before
        self.wake()

    def _wait(self, ready: Callable[[bool], bool]) -> None:
        if ready(False):
            return
        bell: SimpleQueue[None] = SimpleQueue()
        late = False
        try:
            self._bells[bell] = None
            while not ready(late):
                try:
                    bell.get(timeout=PATIENCE_S)
                except Empty:
                    late = True
        finally:
            self._bells.pop(bell, None)


turns = Turns()


def _after_fork() -> None:
    vars(turns).update(vars(Turns()))  # threads that do not exist here may be inside


os.register_at_fork(after_in_child=_after_fork)


def serve(loader: object) -> None:
    """Note that this thread reads for ``loader``."""
    _thread.serves = loader


def lend(loader: object, call: Callable[[], Any]) -> None:
    """If this thread is reading, call ``call``, which waits for threads that `serve` a loader, and lend them the turn.

    Otherwise do nothing: the caller waits next, and has nothing to lend. A finaliser may also call this while this
    thread compares generators, when no other thread can begin to read.
    """
    reading = turns.current(_thread.reading)
    if reading is None or turns.lock._is_owned():
        return
    before = reading.lent  # to another loader, if a signal handler runs this
    try:
        reading.lent = loader
        turns.wake()
        call()
    finally:
        turns.take_back(reading, before)
