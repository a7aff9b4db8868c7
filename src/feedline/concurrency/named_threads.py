"""Long-lived threads with one purpose each, such as a heartbeat. `thread_pool` has threads for calls that end.

No other module starts a thread. So all of them have a name, and the process waits at its end for a thread that may
block only where that was decided.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from feedline import system


class NamedThread(threading.Thread):
    """A thread that the system, debuggers and error messages know by a name.

    Args:
        name: purpose of the thread, prefixed by `feedline-`.
        call: function to call, without arguments.
        waited: whether the process waits for it at its end.
    """

    def __init__(self, name: str, call: Callable[[], object], *, waited: bool = False) -> None:
        super().__init__(target=call, name=f"feedline-{name}", daemon=not waited)

    def run(self) -> None:
        """Name the thread in the system, and make the call."""
        system.name_thread(self.name)
        super().run()

    def end(self, timeout_s: float) -> None:
        """Wait until it has ended, or for some seconds. Do nothing in the thread itself, where a finaliser may run."""
        if threading.current_thread() is not self:
            self.join(timeout_s)


def begin(name: str, call: Callable[[], object], *, waited: bool = False) -> NamedThread:
    """Start a `NamedThread`."""
    thread = NamedThread(name, call, waited=waited)
    thread.start()
    return thread
