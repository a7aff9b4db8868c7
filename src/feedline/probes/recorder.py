"""Record the feeds of this process, and the conditions under which it and its workers run.

The feeds count their figures themselves. Conditions are read from the system when a record is made. What workers do at
a moment is only known if `Recorder.look` is called now and then.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from feedline import system
from feedline.concurrency.conditions import (
    Conditions,
    machine_conditions,
    process_conditions,
    thread_conditions,
)
from feedline.concurrency.hooks import hook_name
from feedline.concurrency.stages import FEEDS
from feedline.interop.launchers import launcher_rank
from feedline.runs.diagnosis import FeedRecord, RankRecord


class Recorder:
    """Records this process from its first feed on, as a program that imports and prepares is no loop yet."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._start = Conditions()
        self._feeds: list[Any] = []  # figures, in order of creation
        self._starts: list[FeedRecord] = []  # their records at the beginning
        self._listed: list[int] = []  # numbers of the feeds in the record, which keep their places
        self._activity: dict[int, Counter[str]] = {}  # by number of the feed
        self._hook, self._looking = "", Conditions()  # reads of the thread that looks
        self._swapped_bytes = 0
        self._workers: dict[int, Conditions] = {}  # by process id, as they were when they were last seen
        traffic = _traffic()
        self._requests = (0, 0) if traffic is None else (traffic.requests, traffic.refused)
        tally = _exchange_tally()
        self._waited_s = 0.0 if tally is None else tally.seconds
        self._stop = FEEDS.listen(self._add)

    def _add(self, figures: Any) -> None:
        if self._began is None:
            self._began, self._start = time.monotonic(), self._conditions()
        self._starts.append(_record_of(figures, Counter()))  # first: another thread may make a record now
        self._feeds.append(figures)
        self._note_hook()

    def _note_hook(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._hook = hook_name() or self._hook

    def look(self) -> None:
        """Note what the workers do at this moment, and what they have done, as they may end before the record."""
        self._look_at_workers()
        process = process_conditions(os.getpid())
        if process is not None and process.swapped_bytes:  # it may be freed before the record
            self._swapped_bytes = max(self._swapped_bytes, process.swapped_bytes)
        self._looking = thread_conditions()
        for number, figures in enumerate(self._feeds):
            pids = _pids_of(figures)
            if pids:
                getattr(figures, "computing", 0.0)  # of torch's workers, which may end before the record
                self._activity.setdefault(number, Counter()).update(filter(None, map(system.activity_of, pids)))

    @property
    def rank(self) -> int:
        """Rank of this process that torch.distributed or a launcher has set, or its feeds. 0 if none has."""
        share = _rank_and_count()
        return max((figures.rank for figures in self._working), default=0) if share is None else share[0]

    @property
    def ranks(self) -> int:
        """Number of ranks. 1 if none is set."""
        share = _rank_and_count()
        return max((figures.ranks for figures in self._working), default=1) if share is None else share[1]

    @property
    def _working(self) -> list[Any]:
        return [self._feeds[number] for number in self._listed]

    @property
    def batches(self) -> int:
        """Number of minibatches that all feeds have delivered."""
        return sum(self._feed_record(number).step.units for number in self._listed)

    def record(self) -> RankRecord:
        """Return the record up to now. Feeds are in the order in which they began to work."""
        self._note_hook()
        record = self.loops()
        traffic, (requests, refused) = _traffic(), self._requests
        record.conditions = self._conditions().since(self._start)
        record.requests = 0 if traffic is None else traffic.requests - requests
        record.refused_requests = 0 if traffic is None else traffic.refused - refused
        return record

    def loops(self) -> RankRecord:
        """Return the part of `record` that costs next to nothing: what the loops did, without conditions and
        requests."""
        for number, figures in enumerate(self._feeds):
            # The source of a loader, ``inside`` it, has its stages in the loader's record.
            if number not in self._listed and not getattr(figures, "inside", False) and self._has_worked(number):
                self._listed.append(number)
        tally = _exchange_tally()
        return RankRecord(
            self.rank,
            socket.gethostname(),
            0.0 if self._began is None else time.monotonic() - self._began,
            [self._feed_record(number) for number in self._listed],
            exchange_seconds=tally.seconds - self._waited_s if tally is not None and tally.count else None,
        )

    def _has_worked(self, number: int) -> bool:
        start = self._starts[number]
        return any(stage.seconds > start.stage(name).seconds for name, stage in self._feeds[number].stages.items())

    def _feed_record(self, number: int) -> FeedRecord:
        record = _record_of(self._feeds[number], self._activity.get(number, Counter()))
        return record.since(self._starts[number])

    def close(self) -> None:
        """End the record: later feeds are not in it, and nothing refers to the feeds."""
        self._stop()
        self._feeds, self._starts, self._listed = [], [], []

    def _conditions(self) -> Conditions:
        """Return the conditions of this process and of its workers, those that have ended included."""
        self._look_at_workers()
        conditions = replace(machine_conditions(), hook=self._hook)
        process = process_conditions(os.getpid())
        for part in [*([] if process is None else [process.since(self._looking)]), *self._workers.values()]:
            conditions = conditions.plus(part)
        if conditions.swapped_bytes is None:
            return conditions
        return replace(conditions, swapped_bytes=max(conditions.swapped_bytes, self._swapped_bytes))

    def _look_at_workers(self) -> None:
        for pid in {pid for figures in self._feeds for pid in _pids_of(figures)}:
            now = process_conditions(pid)
            if now is not None:
                self._workers[pid] = now


def _record_of(figures: Any, activity: Counter[str]) -> FeedRecord:
    return FeedRecord(
        figures.facts,
        figures.stages,
        dict(activity),
        getattr(figures, "computing", 0.0),
        figures.starting,
        figures.starts,
        getattr(figures, "hook", ""),
    )


def _pids_of(figures: Any) -> list[int]:
    """Return the ids of the worker processes of a feed."""
    process = os.getpid()
    return [worker.pid for worker in getattr(figures, "workers", ()) if worker.pid not in (0, process)]


def _traffic() -> Any:
    """Return the counts of requests, or None if nothing was requested from an object store."""
    module = sys.modules.get("feedline.feed.remote.requests")
    return None if module is None else module.TRAFFIC


def _exchange_tally() -> Any:
    """Return the waits for other ranks, or None if nothing connects ranks."""
    module = sys.modules.get("feedline.collective.communicator")
    return None if module is None else module.EXCHANGE_TALLY


def _rank_and_count() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks. None if neither torch.distributed nor a launcher has set
    them."""
    distributed = sys.modules.get("torch.distributed")
    # Another thread may be importing it.
    if distributed is not None and hasattr(distributed, "get_world_size") and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    share = launcher_rank()
    if share is None and os.environ.get("RANK", "").isdigit() and os.environ.get("WORLD_SIZE", "").isdigit():
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return share
