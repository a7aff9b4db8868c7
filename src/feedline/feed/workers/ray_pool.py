"""The same pool with Ray actors, on this machine or others, for Python work that outgrows one machine.

A thread passes units to the actors in intervals: of one unit, or of as many as take a fraction of a second, which
spreads Ray's cost for a call. Each actor has at most two intervals, one to run and one that waits. An interval whose
actor dies is queued again, first in line. The actor's successor is started wherever Ray finds room, and until then the
other actors go on. A unit that killed one actor runs alone, so that it is known which unit kills a second one.

Results stay in Ray's shared memory on the actor's machine and this one until they are taken. Then they are copied,
since Ray's memory is read-only and the caller may write to batches. **Back-pressure by bytes:** while the waiting
results, and the results in flight, might exceed the budget, no unit is sent, except one at a time while the caller
waits and none is in flight. Sizes are judged by the largest result so far.

Cost: 1 to 3 ms of CPU time per interval in all processes together, and one copy of the result.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from feedline.concurrency.named_threads import NamedThread, begin
from feedline.errors import WorkerError
from feedline.feed.workers import limits
from feedline.feed.workers.interrupts import SigintDeferred
from feedline.feed.workers.message import decode
from feedline.feed.workers.ray_actor import RayOptions, RayWorker, UnitAnswer, Whereabouts
from feedline.feed.workers.results import Failed, Outcome, WorkerStats, short
from feedline.interop import ray_session
from feedline.interop.private_ray import START_S, NotStartedError
from feedline.interop.ray_session import RaySession

BUDGET_BYTES = 256 << 20
"""Bytes of results that may wait by default."""

CALLS = 2
"""Intervals that an actor has at a time: the one that it runs, and the next."""

_INTERVAL_S = 0.2  # an interval takes about that long ...
_INTERVAL_BYTES = 16 << 20  # ... unless its results are larger than that
_MAX_UNITS = 32  # of an interval
_LOOK_S = 1.0  # seconds between checks of conditions that send no event


class _Pending:
    """A unit without a result."""

    __slots__ = ("deaths", "text", "unit", "worker")

    def __init__(self, unit: Any, text: bytes, worker: int | None) -> None:
        self.unit, self.text, self.worker, self.deaths = unit, text, worker, 0


class _Interval(NamedTuple):
    """An interval that an actor runs or has waiting."""

    tickets: list[int]
    future: Any


class _Member:
    """One worker: an actor, or the successor of one."""

    def __init__(self, index: int) -> None:
        self.index, self.lives = index, 0
        self.actor: Any = None
        self.ready = False
        self.at = Whereabouts(0, "")
        self.greeting: Any = None  # arrives when it runs
        self.calls: deque[_Interval] = deque()


class RayOutcome(Outcome):
    """A result in Ray's memory."""

    def __init__(self, answer: UnitAnswer, pool: RayPool) -> None:
        self._answer, self._pool, self._counted = answer, pool, True
        pool.waiting += answer.nbytes

    def take(self) -> Any:
        """Return the tree. Its arrays are the caller's. May be interrupted, and called again."""
        tree = decode(self._answer.text, [np.array(buffer).data for buffer in self._answer.buffers])
        self.drop()
        return tree

    def drop(self) -> None:
        """Stop counting the result. Ray's memory is freed with the last reference to this."""
        if self._counted:
            self._counted = False
            self._pool.release(self._answer.nbytes)


class RayPool:
    """A pool of Ray actors. `Pool` documents the semantics. The thread refers to this, not to the `Pool`, which can be
    freed.

    Args:
        task: object sent to every worker.
        workers: number of workers.
        budget_bytes: bytes of results that may wait.

    Attributes:
        lock: a finaliser calls `cancel` only while nobody holds it.
        outcomes: finished units that have not been collected.
        figures: counts and times, by worker.
        pids: process ids, by worker, maybe on other machines. 0 for a worker that has not started yet.
        processes: none, as Ray starts them.
        events: events that the thread waits for: a member and the number of its life, or None to check everything.
        wanted: units without a result.
        queue, own: unsent tickets, for any worker and by worker.
        waiting: bytes of results that have not been taken.
        flying: number of units in flight.
        hungry: number of callers that wait for a result.
        open: whether the thread could send a new unit.
        full: whether only the budget prevents it.
    """

    def __init__(self, task: Any, workers: int, budget_bytes: int | None) -> None:
        self._task, self._pid, self.workers = task, os.getpid(), workers
        self._thread: NamedThread | None = None
        self.budget = BUDGET_BYTES if budget_bytes is None else budget_bytes
        self.lock = threading.RLock()  # reentrant: signal handlers and finalisers may call in from within a call
        self.arrived = threading.Condition(self.lock)
        self.events: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self.wanted: dict[int, _Pending] = {}
        self.queue: deque[int] = deque()
        self.own: list[deque[int]] = [deque() for _ in range(workers)]
        self.outcomes: deque[tuple[int, Outcome]] = deque()
        self.waiting = self.flying = self.hungry = 0
        self.open, self.full = True, False
        self.broken: WorkerError | None = None
        self.closed, self.deadline_s = False, 0.0
        self.pids, self.processes = [0] * workers, ()
        self.figures = [WorkerStats(index=i) for i in range(workers)]

    def start(self) -> None:
        """Join Ray, and let it start the workers.

        Raises:
            ModuleNotFoundError: Ray is not installed.
            WorkerError: there is no Ray to join, and none can be started.
            TypeError, AttributeError, PicklingError: the task cannot be pickled.
        """
        try:
            session = ray_session.join()
        except (ConnectionError, NotStartedError) as error:
            raise WorkerError(str(error)) from error
        self._dumps = ray_session.pickling().dumps
        parcel = session.ray.put(self._parcel())
        _pools.add(self)
        # Before Ray's own exit function disconnects, which was registered when Ray was imported.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
        self._thread = begin("ray", _Dispatcher(self, session, parcel).run)

    # ---- called by Pool --------------------------------------------------------------------------------

    def put(self, ticket: int, unit: Any, worker: int | None) -> None:
        """Queue a unit. Never blocks."""
        try:
            text = pickle.dumps(unit, 5)
        except (AttributeError, TypeError, pickle.PicklingError):
            text = self._dumps(unit)
        with self.lock:
            self.wanted[ticket] = _Pending(unit, text, worker)
            (self.queue if worker is None else self.own[worker]).append(ticket)
            if self.open:
                self.events.put(None)

    def poll(self, timeout_s: float | None) -> bool:
        """Wait up to ``timeout_s`` seconds for outcomes. Return whether there are any."""
        with self.lock:
            if not self.outcomes and not self.closed and timeout_s != 0:
                self.hungry += 1
                try:
                    if not self.flying:
                        self.events.put(None)
                    self.arrived.wait(timeout_s)
                finally:
                    self.hungry -= 1
            return bool(self.outcomes)

    def cancel(self, tickets: Iterable[int]) -> None:
        """Forget units. The results of running ones are dropped."""
        with self.lock:
            for ticket in tickets:
                self.wanted.pop(ticket, None)

    def leave(self, wait_s: float) -> bool:
        """Let the workers exit: idle ones at once, busy ones after their interval or `GRACE_S` seconds.

        Return whether all have exited within ``wait_s`` seconds. As a finaliser this may run in any thread. In the
        pool's own it does not wait.
        """
        if os.getpid() != self._pid:
            return True  # forked: the workers are the parent's
        if not self.closed:
            self.deadline_s = time.monotonic() + limits.GRACE_S
            self.closed = True
        self.events.put(None)
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        with self.lock:
            self.arrived.notify_all()
        self._thread.join(wait_s)
        with self.lock:
            while self.outcomes:
                self.outcomes.popleft()[1].drop()
        return not self._thread.is_alive()

    def close(self, grace_s: float = limits.GRACE_S) -> None:
        """Let the workers exit, and kill those that are busy after ``grace_s`` seconds."""
        if os.getpid() == self._pid and not self.closed:
            self.deadline_s = time.monotonic() + grace_s
            self.closed = True
        self.deadline_s = min(self.deadline_s, time.monotonic() + grace_s)
        self.leave(grace_s + 2 * _LOOK_S)
        _pools.discard(self)

    # ---- called by the thread ---------------------------------------------------------------------------

    def release(self, nbytes: int) -> None:
        """Note that a result has been taken or dropped."""
        with SigintDeferred(), self.lock:
            self.waiting -= nbytes
            if self.full:
                self.events.put(None)

    def put_outcome(self, ticket: int, outcome: Outcome) -> None:
        """Deliver an outcome. The lock is held."""
        if self.wanted.pop(ticket, None) is None:
            outcome.drop()
        else:
            self.outcomes.append((ticket, outcome))

    def fail_all(self, error: WorkerError) -> None:
        """Let all units fail, later ones included."""
        with self.lock:
            self.broken = error
            for ticket in list(self.wanted):
                self.put_outcome(ticket, Failed(error))
            self.arrived.notify_all()

    # ---- internals -------------------------------------------------------------------------------------

    def _parcel(self) -> bytes:
        try:
            return self._dumps(self._task)
        except Exception as error:
            kind = type(error) if type(error) in (AttributeError, TypeError, pickle.PicklingError) else TypeError
            raise kind(
                "expected dataset, collate_fn and worker_init_fn that can be pickled, as Ray sends them to other "
                f"machines; got: {error}. Leave out open files, locks and connections, and open them in the worker: in "
                "worker_init_fn, or when the first item is read"
            ) from error


class _Dispatcher:
    """The code of the thread: it sends intervals, takes answers, and replaces dead actors.

    Args:
        pool: the pool.
        session: connection to Ray.
        parcel: reference to the pickled task in Ray's memory.
    """

    def __init__(self, pool: RayPool, session: RaySession, parcel: Any) -> None:
        self._pool, self._session, self._parcel = pool, session, parcel
        self._ray = session.ray
        # Only this program uses a private Ray. As with local workers, nothing limits their number there.
        self._class = self._ray.remote(RayWorker).options(
            num_cpus=0 if session.private else 1,
            max_restarts=0,
            scheduling_strategy="DEFAULT" if session.private else "SPREAD",
        )
        self._members = [_Member(i) for i in range(pool.workers)]
        self._path, self._folder = [entry for entry in sys.path if entry], os.getcwd()
        self._deaths_in_row = 0
        self._largest, self._mean_s = 0, 0.0
        self._seen = False

    def run(self) -> None:
        """Work until the pool is closed."""
        pool = self._pool
        began_s = time.monotonic()
        try:
            for member in self._members:
                self._begin(member)
            while not pool.closed:
                self._dispatch()
                self._handle(self._events())
                self._look(began_s)
        except Exception as error:
            fault = WorkerError(f"expected Ray to run DataLoader's workers, got {type(error).__name__}: {error}")
            fault.__cause__ = error
            pool.fail_all(fault)
            while not pool.closed:
                pool.events.get()
                pool.fail_all(fault)
        finally:
            self._end()

    def _events(self) -> set[tuple[int, int]]:
        """Wait for events. Return the members that have some, with their lives."""
        events = self._pool.events
        received: set[tuple[int, int] | None] = set()
        with suppress(Empty):
            received.add(events.get(timeout=_LOOK_S))
            while True:
                received.add(events.get_nowait())
        return {event for event in received if event is not None}

    def _look(self, began_s: float) -> None:
        """Check conditions that send no event: Ray was shut down, or no actor ever starts."""
        if not self._ray.is_initialized():
            raise RuntimeError("the end of this process's connection; was ray.shutdown() called?")
        if self._seen or any(member.ready or member.lives > 1 for member in self._members):
            return
        if time.monotonic() - began_s > START_S:
            raise RuntimeError(
                f"no actor within {START_S:g} s, which needs 1 CPU: {self._session.resources()}. Add machines, or end "
                "what uses them; if some are free, the logs of Ray's workers say what keeps them from starting"
            )

    # ---- sending --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        pool = self._pool
        if pool.broken is not None:
            pool.fail_all(pool.broken)
            return
        pool.open, pool.full = True, False  # first, so that units that arrive meanwhile are handled next time
        if not pool.wanted:
            return
        ready = [member for member in self._members if member.ready]
        for level in range(CALLS):
            for member in ready:
                if len(member.calls) == level:
                    tickets, units = self._interval(member, len(ready))
                    if units:
                        future = member.actor.run.remote(units).future()
                        member.calls.append(_Interval(tickets, future))
                        self._listen(member, future)
        pool.open = any(len(member.calls) < CALLS for member in self._members)

    def _interval(self, member: _Member, ready: int) -> tuple[list[int], list[bytes]]:
        """Take the next units that a member may run."""
        pool = self._pool
        tickets: list[int] = []
        units: list[bytes] = []
        with pool.lock:
            queue = pool.own[member.index] or pool.queue
            most = min(_MAX_UNITS, -(-len(queue) // (CALLS * (ready if queue is pool.queue else 1))))
            if self._seen:
                most = min(most, int(_INTERVAL_S / max(self._mean_s, 1e-6)), _INTERVAL_BYTES // max(self._largest, 1))
            while queue and len(units) < max(most, 1):
                pending = pool.wanted.get(queue[0])
                if pending is None:
                    queue.popleft()
                    continue
                if not self._affords(member, pending, len(units)):
                    pool.full = True
                    break
                tickets.append(queue.popleft())
                units.append(pending.text)
                pool.flying += 1
                if pending.deaths or not self._seen:
                    break
        return tickets, units

    def _affords(self, member: _Member, pending: _Pending, taken: int) -> bool:
        """Return whether one more unit may be sent. The lock is held."""
        pool = self._pool
        if pending.deaths and (taken or member.calls):
            return False  # alone, so that the unit that kills an actor is known
        if pool.hungry and not pool.flying and not pool.outcomes:
            return True  # an outcome may be the caller's, even if it has not woken up yet
        if not self._seen and member.calls:
            return False  # the size of results is unknown
        return pool.waiting + (pool.flying + 1) * self._largest <= pool.budget

    # ---- answers ---------------------------------------------------------------------------------------

    def _listen(self, member: _Member, future: Any) -> None:
        events, event = self._pool.events, (member.index, member.lives)
        future.add_done_callback(lambda _: events.put(event))

    def _handle(self, events: set[tuple[int, int]]) -> None:
        for index, life in sorted(events):
            member = self._members[index]
            if member.lives != life:
                continue
            if not member.ready:
                self._greet(member)
            while member.lives == life and member.calls and member.calls[0].future.done():
                error = member.calls[0].future.exception()
                if error is None:
                    self._deliver(member, member.calls.popleft())
                else:
                    self._lose(member, error)

    def _greet(self, member: _Member) -> None:
        error = member.greeting.exception()
        if error is not None:
            self._lose(member, error)
            return
        member.at, member.ready = member.greeting.result(), True
        self._pool.pids[member.index] = member.at.pid

    def _deliver(self, member: _Member, call: _Interval) -> None:
        pool = self._pool
        self._deaths_in_row, self._seen = 0, True
        answers: list[UnitAnswer] = call.future.result()
        with pool.lock:
            figures = pool.figures[member.index]
            pool.flying -= len(call.tickets)
            for ticket, answer in zip(call.tickets, answers, strict=True):
                figures.units += 1
                figures.seconds += answer.seconds
                figures.bytes += answer.nbytes
                self._mean_s += (answer.seconds - self._mean_s) * (0.2 if self._mean_s else 1.0)
                self._largest = max(self._largest, answer.nbytes)
                if answer.failed:
                    pool.put_outcome(ticket, Failed(pickle.loads(answer.text)))
                else:
                    pool.put_outcome(ticket, RayOutcome(answer, pool))
            pool.arrived.notify_all()

    # ---- dead actors -----------------------------------------------------------------------------------

    def _begin(self, member: _Member) -> None:
        """Start an actor. Ray reports when it runs."""
        options = RayOptions(member.index, self._pool.workers, self._path, self._folder)
        member.lives += 1
        member.ready = False
        member.actor = self._class.remote(self._parcel, options)
        member.greeting = future = member.actor.whereabouts.remote().future()
        self._listen(member, future)

    def _lose(self, member: _Member, error: BaseException) -> None:
        """Queue the units of a dead actor again, and start another actor."""
        pool = self._pool
        # Results that it returned before it died are valid.
        while member.calls and member.calls[0].future.done() and member.calls[0].future.exception() is None:
            self._deliver(member, member.calls.popleft())
        self._kill(member)
        self._deaths_in_row += 1
        calls = list(member.calls)
        member.calls.clear()
        with pool.lock:
            # The first interval is the one that it was running.
            for ticket in calls[0].tickets if calls else ():
                pending = pool.wanted.get(ticket)
                if pending is None:
                    continue
                pending.deaths += 1
                if pending.deaths >= 2:
                    fault = self._error(member, f"twice while it ran unit {short(pending.unit)}", error)
                    fault.unit = pending.unit
                    pool.put_outcome(ticket, Failed(fault))
            tickets = sorted(ticket for call in calls for ticket in call.tickets)
            pool.flying -= len(tickets)
            for ticket in reversed(tickets):
                pending = pool.wanted.get(ticket)
                if pending is not None:
                    (pool.queue if pending.worker is None else pool.own[pending.worker]).appendleft(ticket)
            pool.arrived.notify_all()
        if self._deaths_in_row > 2 * pool.workers + 3:
            words = f"the last of {self._deaths_in_row} workers in a row that died without finishing a unit"
            pool.fail_all(self._error(member, words, error))
            return
        pool.figures[member.index].restarts += 1
        self._begin(member)

    def _error(self, member: _Member, words: str, error: BaseException) -> WorkerError:
        where = f" on {member.at.host}" if member.at.host else ""
        lines = "\n    ".join(str(error).strip().splitlines()[:40])
        fault = WorkerError(
            f"DataLoader worker (pid(s) {member.at.pid}) exited unexpectedly, {words}\n"
            f"  worker {member.index} of {self._pool.workers}, a Ray actor{where}; Ray says:\n    {lines}"
        )
        fault.__cause__ = error
        return fault

    # ---- the end ---------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Kill the actors after their current intervals."""
        pool = self._pool
        with suppress(Exception):
            while (remaining_s := pool.deadline_s - time.monotonic()) > 0 and self._ray.is_initialized():
                if all(not member.calls or member.calls[0].future.done() for member in self._members):
                    break
                with suppress(Empty):
                    pool.events.get(timeout=min(remaining_s, _LOOK_S))
        for member in self._members:
            self._kill(member)
            member.actor = None
            member.calls.clear()
        self._parcel = None

    def _kill(self, member: _Member) -> None:
        """Kill an actor. If Ray was shut down its actors ended with it, and `ray.kill` would start another Ray."""
        if member.actor is not None and self._ray.is_initialized():
            with suppress(Exception):
                self._ray.kill(member.actor)


_pools: weakref.WeakSet[RayPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close(limits.LAST_GRACE_S)
