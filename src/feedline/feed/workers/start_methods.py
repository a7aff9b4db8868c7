"""How worker processes are started: forkserver, spawn and fork, made quick and safe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from multiprocessing import forkserver, resource_tracker
from typing import Any

from feedline.feed.workers import worker_process as process

METHODS = ("forkserver", "spawn", "fork")


def context(method: Any) -> Any:
    """The multiprocessing context for a start method's name, a context, or None.

    Raises:
        ValueError: no such method here.
    """
    if method is None:
        method = "forkserver"
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"expected a start method among {', '.join(map(repr, METHODS))}, got {method!r}")
        return multiprocessing.get_context(method)
    if not hasattr(method, "Process"):
        raise TypeError(f"expected a start method's name or a multiprocessing context, got {type(method).__name__}")
    return method


def prepare(context: Any) -> None:
    """Make a start quick, and warn of what makes it dangerous."""
    method = context.get_start_method()
    if method == "forkserver":
        server: Any = forkserver._forkserver
        if server._forkserver_pid is None:
            # The server imports once what every worker would import for itself. It starts with the first process,
            # and what the user has asked for stays.
            modules = ["feedline.feed.workers.worker_process"]
            if "torch" in sys.modules:
                modules.append("feedline.interop.torch_messages")
            wanted = list(server._preload_modules)
            context.set_forkserver_preload(wanted + [name for name in modules if name not in wanted])
    elif method == "fork":
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            warnings.warn(
                f"workers are forked from a process with {threads} threads; locks that these hold stay locked in the "
                "workers, which may then hang. Use forkserver, the default, or spawn",
                RuntimeWarning,
                stacklevel=5,
            )


def warm(method: Any = None) -> None:
    """Begin what starting workers begins with, so that it goes on while the caller does something else.

    Args:
        method: as for `Pool`. With forkserver the server starts and imports what workers need, torch too if it is
            imported here; the other methods have nothing to prepare.
    """
    chosen = context(method)
    if chosen.get_start_method() == "forkserver":
        prepare(chosen)
        forkserver.ensure_running()


def launch(context: Any, arguments: tuple[Any, ...]) -> Any:
    """A started process that runs `process.main`. An interrupt in here could leave the fork server dead."""
    child = context.Process(target=process.main, args=arguments, name=f"feedline-worker-{arguments[2].worker}")
    child.daemon = True
    method = context.get_start_method()
    if method == "forkserver":
        # Others that it starts must not find the signal blocked.
        child.start()
        return child
    if method == "spawn":
        resource_tracker.ensure_running()  # now, as it would unblock the signal
    # Ctrl-C is for the parent, also while the child cannot say so itself yet.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child
