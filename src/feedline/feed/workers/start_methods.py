"""Start worker processes with fork, forkserver or spawn, quickly and safely."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from multiprocessing import forkserver, resource_tracker
from typing import Any

from feedline.feed.workers import worker_process as process
from feedline.feed.workers.interrupts import SigintDeferred

_MAIN = process.__name__

METHODS = ("fork", "forkserver", "spawn")

UNGUARDED = 97
"""Exit status of a worker whose import of the main module tried to start workers."""


def context(method: Any) -> Any:
    """Return the multiprocessing context for a start method's name, a context, or None for multiprocessing's default.

    Raises:
        ValueError: the start method is unknown.
    """
    if method is None:
        return multiprocessing.get_context()
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"expected one of the start methods {', '.join(map(repr, METHODS))}, got {method!r}")
        return multiprocessing.get_context(method)
    if not hasattr(method, "Process"):
        raise TypeError(f"expected a start method's name or a multiprocessing context, got {type(method).__name__}")
    return method


def prepare(context: Any) -> None:
    """Start the fork server if it will fork the workers. It imports their modules while this process goes on.

    Called as soon as it is known that there will be workers. Does nothing for other start methods, or when called
    again.
    """
    if context.get_start_method() != "forkserver" or inheriting():
        return
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None:
        # The user's own preloads stay. Workers mostly need the modules of feedline that this process has imported,
        # since they import the main module. The server does not import it for programs that `python -m` runs.
        modules = [_MAIN, *sorted(name for name in sys.modules if name.startswith("feedline.") and name != _MAIN)]
        if "torch" in sys.modules:
            modules.append("feedline.interop.torch_messages")
        preloads = list(server._preload_modules)
        context.set_forkserver_preload(preloads + [name for name in modules if name not in preloads])
    with SigintDeferred():
        server.ensure_running()


def inheriting() -> bool:
    """Return whether this is a worker that is importing the main module."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def launch(context: Any, arguments: tuple[Any, ...]) -> Any:
    """Start a process that runs `worker_process.main`. Interrupting this could leave the fork server dead.

    Raises:
        AttributeError, TypeError, PicklingError: the task cannot be pickled, which the start method requires.
    """
    child = context.Process(target=process.main, args=arguments, name=f"feedline-worker-{arguments[2].worker}")
    child.daemon = True
    method = context.get_start_method()
    if method != "fork" and inheriting():
        os._exit(UNGUARDED)  # this is a worker importing the main module, which the parent reports
    try:
        if method == "forkserver":
            # SIGINT must not be blocked here: the server's later children would inherit that.
            child.start()
        else:
            _start_shielded(child, method)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise type(error)(
            f"expected dataset, collate_fn and worker_init_fn that can be pickled, as start method {method!r} sends "
            f"them to workers; got: {error}. Define them at the top level of a module, or {process.WAYS_OUT}"
        ) from None
    return child


def _start_shielded(child: Any, method: str) -> None:
    """Start a child that leaves Ctrl-C to the parent, even before it can ignore it."""
    if method == "spawn":
        resource_tracker.ensure_running()  # now, since starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
