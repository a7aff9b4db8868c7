"""Deferral of Ctrl-C while other processes depend on this one.

A rank that leaves collective work halfway ends up in another state than its peers. So during such work Ctrl-C is
deferred: to a wait for other ranks that can be resumed later, or else to the end of the work. A second Ctrl-C is not
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

    __slots__ = ("_deferred", "_handler", "_previous", "may_leave")

    def __init__(self, *, may_leave: bool = False) -> None:
        self.may_leave = may_leave
        self._deferred: tuple[int, FrameType | None] | None = None
        self._previous: Any = None
        self._handler: Any = None

    def __enter__(self) -> DeferredInterrupt:
        global _outermost
        if _outermost is None and threading.current_thread() is threading.main_thread():
            try:
                _outermost, self._handler = self, self._handle
                self._previous = signal.signal(signal.SIGINT, self._handler)
            except BaseException:  # from an earlier signal, before the handler has changed
                _outermost = None
                raise
            if not callable(self._previous):  # ignored or default: no handler to call
                self.__exit__()
        return self

    def __exit__(self, *_: object) -> None:
        global _outermost
        if _outermost is not self:
            return
        _outermost, raised, handler = None, None, self._previous
        while handler is not None:
            try:
                replaced = signal.signal(signal.SIGINT, handler)
            except BaseException as error:  # a pending signal is handled first, and may raise
                raised = error
            else:
                # A handler that was set within the block stays.
                set_within = handler is self._previous and replaced not in (self._handler, self._previous)
                handler = replaced if set_within else None
        if raised is not None:
            raise raised
        self._raise_deferred()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        second = self._deferred is not None
        self._raise_deferred()
        if second:
            self._previous(number, frame)
        else:
            self._deferred = number, frame

    def _raise_deferred(self) -> None:
        if self._deferred is not None:
            deferred, self._deferred = self._deferred, None
            self._previous(*deferred)


def deliver() -> None:
    """Raise a deferred Ctrl-C, if the outermost block may be left."""
    block = _outermost
    if block is not None and block.may_leave and threading.current_thread() is threading.main_thread():
        block._raise_deferred()


def waiting() -> bool:
    """Return whether a Ctrl-C is deferred to the end of the outermost block."""
    block = _outermost
    return block is not None and block._deferred is not None and threading.current_thread() is threading.main_thread()
