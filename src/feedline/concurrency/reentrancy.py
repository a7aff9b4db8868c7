"""Error for a second thread that enters a call that only one thread may be in.

Two threads in such a call could get the same data, or lose some, unnoticed. The guard of a call keeps the id of the
thread that is inside in an attribute, and tests and sets it with no call in between. Under the GIL, which the native
module keeps enabled, that is atomic, and cheaper than a lock. The second thread gets an error rather than waiting:
otherwise chance would decide which data each of them gets, and a forked child would wait forever for a thread that it
does not have.
"""

from __future__ import annotations

import threading


def refusal(what: str, inside: int) -> RuntimeError:
    """Return the error to raise in this thread.

    Args:
        what: name of the object in use, such as "this source".
        inside: id of the thread inside the call.
    """
    current = threading.current_thread()
    if inside == current.ident:
        return RuntimeError(
            f"expected no call of {what} until the current one has returned, got another from within it (a "
            f"transform, a dataset, a signal handler) in {_name_of(current)}"
        )
    occupant = next((thread for thread in threading.enumerate() if thread.ident == inside), None)
    who = f"a thread that has ended ({inside})" if occupant is None else _name_of(occupant)
    return RuntimeError(
        f"expected one thread at a time to use {what}, got a call in {_name_of(current)} while {who} is in one: both "
        "would get the same data\n"
        "  let one thread read and pass the data on, or guard the calls with a lock, or give each thread its own "
        "reader (partition=)"
    )


def _name_of(thread: threading.Thread) -> str:
    return f"thread {thread.name!r} ({thread.ident})"
