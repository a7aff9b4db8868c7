"""Deferral of Ctrl-C while other processes depend on this one.

A rank that leaves collective work halfway ends up in another state than its peers. Ctrl-C is therefore deferred during
such work until the rank waits for others and can resume the wait later, or else to the end. A second Ctrl-C is not
deferred.

Costs: about a microsecond for each outermost block.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

#: Outermost block of the main thread, the only one in which Python runs signal handlers.
_outermost: DeferredInterrupt | None = None


class DeferredInterrupt:
    """A block within which Ctrl-C is deferred. Blocks nest: the outermost one decides.

    Args:
        may_leave: whether `deliver` raises a deferred Ctrl-C within the block. Otherwise it is raised at the end.
    """

    __slots__ = ("_handler", "_noted", "_old", "may_leave")

    def __init__(self, *, may_leave: bool = False) -> None:
        self.may_leave = may_leave
        self._noted: tuple[int, FrameType | None] | None = None
        self._old: Any = None
        self._handler: Any = None

    def __enter__(self) -> DeferredInterrupt:
        global _outermost
        if _outermost is None and threading.current_thread() is threading.main_thread():
            try:
                _outermost, self._handler = self, self._note
                self._old = signal.signal(signal.SIGINT, self._handler)
            except BaseException:  # from an earlier signal, before the handler has changed
                _outermost = None
                raise
            if not callable(self._old):  # ignored or default: no handler to call
                self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        global _outermost
        if _outermost is not self:
            return
        _outermost, raised, back = None, None, self._old
        while back is not None:
            try:
                replaced = signal.signal(signal.SIGINT, back)
            except BaseException as error:  # a pending signal is handled first, and may raise
                raised = error
            else:
                # A handler that was set within the block stays.
                theirs = back is self._old and replaced not in (self._handler, self._old)
                back = replaced if theirs else None
        if raised is not None:
            raise raised
        self._let_out()

    def _note(self, number: int, frame: FrameType | None) -> None:
        second = self._noted is not None
        self._let_out()
        if second:
            self._old(number, frame)
        else:
            self._noted = number, frame

    def _let_out(self) -> None:
        if self._noted is not None:
            noted, self._noted = self._noted, None
            self._old(*noted)


def deliver() -> None:
    """Raise a deferred Ctrl-C, if the outermost block may be left."""
    block = _outermost
    if block is not None and block.may_leave and threading.current_thread() is threading.main_thread():
        block._let_out()


def waiting() -> bool:
    """Return whether a Ctrl-C is deferred to the end of the outermost block."""
    block = _outermost
    return block is not None and block._noted is not None and threading.current_thread() is threading.main_thread()
