"""Forked children of a test."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def die(status: int = 0) -> NoReturn:
    """End this process at once, as a crash would: nothing is flushed, and no exit function runs."""
    os._exit(status)


class Forked:
    """A child process that runs one function, and never the rest of the tests.

    It exits with 0 if the function returns something true, with 1 if something false or an exception, and an alarm
    ends it if it hangs.

    Args:
        work: function to run.
        seconds: until the alarm.

    Attributes:
        pid: process id of the child.
    """

    def __init__(self, work: Callable[[], object], seconds: int = 60) -> None:
        self.pid = os.fork()
        if self.pid:
            return
        good = False
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            good = bool(work())
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            die(not good)

    def status(self) -> int:
        """Wait for its end, and return its exit code, for a signal the negative number."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
