"""Ctrl-C and SIGTERM as a wish to stop, which a session fulfils when the update under way is done.

A session saves and then ends as if its data had: the process is not ended by it. What sent SIGTERM (a scheduler, a
launcher) wants the process to end, though; so it is sent again when the session is over, to whatever handled it before.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stopping:
    """Within the block, the first SIGINT or SIGTERM is noted, and the second does what it always does.

    In another thread than the main one signals go where they go. A forked child has signals as they were before: its
    parent ends it by SIGTERM.

    Attributes:
        asked: whether one came.
    """

    def __init__(self) -> None:
        self.asked = self._terminated = False
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # None: a handler that is not Python's, which could not be put back.
                if before is not None and not (before is signal.SIG_IGN and number == signal.SIGTERM):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def pass_on(self) -> None:
        """Send a SIGTERM that came within the block again, behind it."""
        if self._terminated:
            self._terminated = False
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        child = os.getpid() != self._process
        if self.asked and number == signal.SIGINT and not child:
            raise KeyboardInterrupt
        if self.asked or child:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
            return
        self.asked = True
        self._terminated |= number == signal.SIGTERM
