"""Whose turn it is to read samples with the global generators of this process.

All threads share the generators of `random`, NumPy and torch, whichever loader they read for. A reading makes one
batch, as a rule. One that seeds generators is alone: nobody else reads until it has restored them. Others only compare
states, and read side by side. Who comes first goes first.

No thread waits for its turn in the middle of user code, as that code may hold what those whose turn it is wait for:

- A reading that begins within another one, in its thread, is a part of that one's turn.
- A thread that waits for threads of a loader lends them its turn until it has what it waits for (`lend`).
- A reading within another one that seeds begins even if others read. They see each other's random numbers, so all of
  them read once more, and the outer one is alone from then on.

What is not known here is that user code waits for a thread of its own which reads a loader: it must not, if it draws
random numbers.

An interrupt may come after any call, so a turn is given back by one call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

# Who has waited this long passes those that only wait, too: who is inside may wait for it, unknown to this module. And
# an interrupt may have kept a thread from telling that its turn is over, so all look this often.
PATIENCE_S = 1.0


class Reading:
    """What is read in one turn.

    Args:
        seeds: function that returns whether it is going to seed generators; called whenever it may begin.

    Attributes:
        alone: whether it seeds generators.
        marks: (when, state) of each generator as it began, or as an earlier one did that has restored them since.
        drawn: the generators that were drawn from though they were not seeded.
        again: whether it has to be repeated, as random numbers of another one may be in it.
        nests: whether the reason is a reading within it, that should have been alone.
        before: what this thread was reading before; None: nothing.
        base: the outermost reading of this thread.
        outer: the reading that this one is a part of, in this thread or lent by another one; None: of none.
        root: the outermost of those.
        lent: the loader whose threads may read as a part of this one; None: no loader's.
    """

    __slots__ = ("again", "alone", "base", "before", "drawn", "lent", "marks", "nests", "outer", "root", "seeds")

    def __init__(self, seeds: Callable[[], bool]) -> None:
        self.seeds, self.alone, self.again, self.nests = seeds, False, False, False
        self.marks: list[tuple[int, Any]] = []
        self.drawn: list[Any] = []
        self.before = _thread.reading
        self.base = self.root = self
        self.outer: Reading | None = None
        self.lent: object | None = None

    def clashes(self, other: Reading) -> bool:
        """Return whether the two cannot be read side by side."""
        return self.alone or other.alone

    def affected_with(self, other: Reading) -> tuple[Reading, Reading]:
        """Return what has to be repeated of this reading's thread, and of the other one's, if they meet."""
        return (self.base, other.base) if other.root is self.root else (self.root, other.root)


class _ReadingThread(threading.local):
    """What this thread reads, and the loader that it reads for; None: the program's own thread."""

    reading: Reading | None = None
    serves: object | None = None


_thread = _ReadingThread()


class Turns:
    """The turns of a process.

    Attributes:
        lock: held while generators are looked at as a turn begins or ends; re-entrant, as a signal handler may read.
        inside: who reads now; readings leave it without the lock.
        queue: who waits for a turn, in the order in which they came.
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.inside: dict[Reading, None] = {}
        self.queue: dict[Reading, None] = {}
        self._bells: dict[SimpleQueue[None], None] = {}
        self._begun = 0

    def begin(self, reading: Reading, look: Callable[[], list[Any]]) -> None:
        """Wait until it is the turn of a reading, and begin it.

        Args:
            reading: what is going to be read.
            look: function that returns the states of the generators.
        """
        _thread.reading = reading
        try:
            self.queue[reading] = None
            self._wait(lambda late: self._begins(reading, look, late))
        finally:
            self.queue.pop(reading, None)

    def _begins(self, reading: Reading, look: Callable[[], list[Any]], late: bool) -> bool:
        with self.lock:
            reading.alone = reading.seeds()
            self._place(reading)
            waits = reading.base is reading  # else this thread is in the middle of user code
            affected: list[tuple[Reading, Reading]] = []
            for other in self._others(reading):
                if reading.clashes(other):
                    if waits and (reading.outer is None or other.root is reading.root):
                        return False
                    affected.append(reading.affected_with(other))
            if reading.outer is None and not (late or self._is_next(reading)):
                return False
            for mine, theirs in affected:
                mine.again = mine.nests = theirs.again = True
            self._begun += 1
            reading.marks = [(self._begun, state) for state in look()]
            self.inside[reading] = None
            return True

    def _place(self, reading: Reading) -> None:
        """Find out what a reading is a part of."""
        own = self.current(reading.before)
        outer = own
        if own is None and _thread.serves is not None:
            outer = next((other for other in list(self.inside) if other.lent is _thread.serves), None)
        reading.base = reading if own is None else own.base
        reading.outer, reading.root = outer, reading if outer is None else outer.root

    def _is_next(self, reading: Reading) -> bool:
        """Return whether it need not wait for any that came before it, and wait too."""
        own = self._line(reading, "before")  # a signal handler may have interrupted them
        for other in list(self.queue):
            if other is reading:
                break
            if reading.clashes(other) and other not in own:
                return False
        return True

    def _others(self, reading: Reading) -> list[Reading]:
        """Return who reads now, other than what this reading is a part of."""
        own = self._line(reading, "outer")
        return [other for other in list(self.inside) if other not in own]

    @staticmethod
    def _line(reading: Reading, name: str) -> list[Reading]:
        """Return a reading, and all that an attribute of it and of those leads to."""
        line: list[Reading] = []
        part: Reading | None = reading
        while part is not None:
            line.append(part)
            part = getattr(part, name)
        return line

    def current(self, reading: Reading | None) -> Reading | None:
        """Return a reading of this thread, or the innermost around it that has not ended; None: there is none."""
        while reading is not None and reading not in self.inside:
            reading = reading.before
        return reading

    def take_back(self, reading: Reading, lent: object | None = None) -> None:
        """Wait until no other thread reads as a part of a reading, unless it is still ``lent``."""
        reading.lent = lent
        if lent is None:
            self._wait(lambda _: not self._has_parts(reading))

    def _has_parts(self, reading: Reading) -> bool:
        with self.lock:
            return any(other.outer is reading for other in list(self.inside))

    def restored(self, reading: Reading) -> None:
        """Tell the others that a reading has restored generators, which they may have drawn from; the lock is held.

        If it has drawn, they see no difference, and have to repeat what they read. Their marks may lie after its draws,
        or after those of a reading within it. Then its marks are the ones to restore.
        """
        for other in self._others(reading):
            if reading.drawn:
                _, theirs = reading.affected_with(other)
                theirs.again = True
            # A loader in threads has no mark of torch's generator.
            shared = [min(pair, key=lambda mark: mark[0]) for pair in zip(other.marks, reading.marks, strict=False)]
            other.marks = shared + other.marks[len(shared) :]

    def wake(self) -> None:
        """Let all that wait look again."""
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


def _forked() -> None:
    vars(turns).update(vars(Turns()))  # threads that do not exist here may be inside


os.register_at_fork(after_in_child=_forked)


def serve(loader: object) -> None:
    """Note that this thread reads for ``loader``."""
    _thread.serves = loader


def lend(loader: object, call: Callable[[], Any]) -> None:
    """Call ``call``, which waits for threads that `serve` a loader, if this thread is reading; they may read meanwhile.

    Otherwise do nothing: the caller waits next, and has nothing to lend. A finaliser may also call this while this
    thread looks at generators, when nobody else can begin to read.
    """
    reading = turns.current(_thread.reading)
    if reading is None or turns.lock._is_owned():
        return
    before = reading.lent  # by what a signal handler has interrupted
    try:
        reading.lent = loader
        turns.wake()
        call()
    finally:
        turns.take_back(reading, before)
