"""Ctrl-C and SIGTERM as requests to stop, which a session honours after the present update.

The session saves and returns, and the process continues. But a scheduler or launcher that sends SIGTERM expects the
process to end, so the signal is sent again after the session, to the previous handler.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
    """A block within which the first SIGINT or SIGTERM is recorded, and the second has its usual effect.

    Outside the main thread it has no effect on signals. A forked child gets the previous handlers, as its parent may
    end it by SIGTERM.

    Attributes:
        requested: whether a signal was received.
    """

    def __init__(self) -> None:
        self.requested = self._terminated = False
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # None means a handler that was not set from Python and could not be restored.
                if before is not None and not (before is signal.SIG_IGN and number == signal.SIGTERM):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def resend(self) -> None:
        """After the block, send a SIGTERM again that was received within it."""
        if self._terminated:
            self._terminated = False
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        child = os.getpid() != self._process
        if self.requested and number == signal.SIGINT and not child:
            raise KeyboardInterrupt
        if self.requested or child:
            signal.signal(number, self._before[number])
            signal.raise_signal(number)
            return
        self.requested = True
        self._terminated |= number == signal.SIGTERM
