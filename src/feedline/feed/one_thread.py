"""One thread at a time: what a second one is told that enters a call which must not be entered twice.

Two threads in one such call would be given the same data, or lose some, without anybody noticing. Whoever guards a call
keeps the id of the thread inside in an attribute, and tests and sets it without another call in between: under the GIL,
which the native module keeps on, that is one step, and it costs less than a lock. The second thread is refused rather
than made to wait: which of them is given what would be a matter of luck, and a forked child would wait for ever for a
thread that it does not have.
"""

from __future__ import annotations

import threading


def refusal(what: str, inside: int) -> RuntimeError:
    """The error for this thread.

    Args:
        what: is being used: "this source".
        inside: id of the thread that is in the call.
    """
    here = threading.current_thread()
    if inside == here.ident:
        return RuntimeError(
            f"expected {what} to be left alone until a call of it has returned, got another call from within (a "
            f"transform, a dataset, a signal handler) in {_named(here)}"
        )
    there = next((thread for thread in threading.enumerate() if thread.ident == inside), None)
    other = f"a thread that has ended ({inside})" if there is None else _named(there)
    return RuntimeError(
        f"expected one thread at a time to use {what}, got a call in {_named(here)} while {other} is in one: both "
        "would be given the same data\n"
        "  let one thread read and hand over what it read, or guard the calls by a lock, or give each thread a reader "
        "of its own (partition=)"
    )


def _named(thread: threading.Thread) -> str:
    return f"thread {thread.name!r} ({thread.ident})"
