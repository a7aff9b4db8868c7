"""The code of a Ray actor: one worker, which takes intervals of units and returns their results.

An interval is a list of pickled units. Its result has a `UnitAnswer` for each. Large arrays of a result stay apart from
its pickle, so that Ray copies them once, into its shared memory, and the parent's machine reads them in place.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from typing import Any, NamedTuple

from feedline.feed.workers import limits, message
from feedline.feed.workers.failure import Failure
from feedline.interop import ray_session


class RayOptions(NamedTuple):
    """Settings of one worker.

    Attributes:
        worker, workers: its number, and the number of workers.
        path: the parent's ``sys.path``.
        folder: the parent's working folder.
    """

    worker: int
    workers: int
    path: list[str]
    folder: str


class Whereabouts(NamedTuple):
    """Where a worker runs: its process id, and the address of its machine."""

    pid: int
    host: str


class UnitAnswer(NamedTuple):
    """The outcome of one unit.

    Attributes:
        failed: whether ``text`` is a pickled `Failure` rather than a result.
        text: pickle.
        buffers: large buffers of the result, uint8.
        nbytes: bytes of both.
        seconds: time taken.
    """

    failed: bool
    text: bytes
    buffers: list[Any]
    nbytes: int
    seconds: float


class RayWorker:
    """A worker in a process of Ray.

    Args:
        parcel: the pickled `Task`.
        options: settings.
    """

    def __init__(self, parcel: bytes, options: RayOptions) -> None:
        host, placed = ray_session.place()
        self._at = Whereabouts(os.getpid(), host)
        self._where = f"in DataLoader worker process {options.worker} (Ray, pid {os.getpid()} on {host})"
        # As in processes that multiprocessing starts. Entries that another machine lacks are harmless.
        sys.path += [entry for entry in options.path if entry not in sys.path]
        if not placed:
            with contextlib.suppress(OSError):
                os.chdir(options.folder)
        self._dumps, kind = ray_session.pickling()
        self._encoder = message.Encoder(None, fallback=kind)
        self._broken: Failure | None = None
        self._task: Any = None
        try:
            self._task = pickle.loads(parcel)
            limits.limit_torch()
            self._task.start(options.worker, options.workers)
        except Exception as error:
            # As in torch, the units fail, so that the error is raised where results are requested.
            self._broken = Failure(error, self._where, self._dumps)

    def whereabouts(self) -> Whereabouts:
        """Return where this worker runs. The parent learns from the answer that it is ready."""
        return self._at

    def run(self, units: list[bytes]) -> list[UnitAnswer]:
        """Run an interval."""
        return [self._run(unit) for unit in units]

    def _run(self, unit: bytes) -> UnitAnswer:
        began = time.perf_counter()
        failure = self._broken
        if failure is None:
            try:
                result = self._task.run(pickle.loads(unit))
                limits.limit_torch()
                text, buffers, nbytes = self._encoder.parts(result)
                return UnitAnswer(False, text, buffers, nbytes, time.perf_counter() - began)
            except Exception as error:
                failure = Failure(error, self._where, self._dumps)
                error.__traceback__ = None  # its frames hold the objects of the unit
        text = pickle.dumps(failure, 5)
        return UnitAnswer(True, text, [], len(text), time.perf_counter() - began)
