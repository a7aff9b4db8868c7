"""Pauses of the garbage collector, which may free any object in any thread.

A library that frees its objects under a lock of its own, and calls our functions with that lock held, would wait for
ever if a thread that we wait for frees such an object meanwhile.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

_STEP_S = 0.001
_PATIENCE_S = 1.0  # a finaliser, inside a collection of its own thread, would wait for ever

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """A context in which no thread of ours begins to collect garbage, or is collecting it.

    Only `gc.collect` collects meanwhile. Contexts may overlap, in several threads and in one.
    """
    global _pauses, _was_enabled
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        until = time.monotonic() + _PATIENCE_S
        while not _collect() and time.monotonic() < until:
            time.sleep(_STEP_S)
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()


def _collect() -> bool:
    """Collect the youngest objects. Return False if nothing was done, as another thread is collecting."""
    thread, began = threading.get_ident(), False

    def note(phase: str, _: dict[str, Any]) -> None:
        nonlocal began
        began |= threading.get_ident() == thread

    gc.callbacks.append(note)
    try:
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
    return began
