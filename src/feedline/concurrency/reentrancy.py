"""The error for a second thread that enters a call in which only one thread may be.

Two threads in such a call could get the same data, or lose some, unnoticed. The guard of a call keeps the id of the
thread inside in an attribute, and tests and sets it with no call in between: under the GIL, which the native module
keeps enabled, that is atomic, and cheaper than a lock. The second thread gets an error rather than waiting: which of
the two got what would be a matter of chance, and a forked child would wait forever for a thread that it does not have.
"""

from __future__ import annotations

import threading


def refusal(what: str, inside: int) -> RuntimeError:
    """Return the error to raise in this thread.

    Args:
        what: name of the object in use, such as "this source".
        inside: id of the thread inside the call.
    """
    here = threading.current_thread()
    if inside == here.ident:
        return RuntimeError(
            f"expected no call of {what} until the current one has returned, got another from within it (a "
            f"transform, a dataset, a signal handler) in {_named(here)}"
        )
    there = next((thread for thread in threading.enumerate() if thread.ident == inside), None)
    other = f"a thread that has ended ({inside})" if there is None else _named(there)
    return RuntimeError(
        f"expected one thread at a time to use {what}, got a call in {_named(here)} while {other} is in one: both "
        "would get the same data\n"
        "  let one thread read and pass the data on, or guard the calls with a lock, or give each thread its own "
        "reader (partition=)"
    )


def _named(thread: threading.Thread) -> str:
    return f"thread {thread.name!r} ({thread.ident})"
