"""Requests to object stores that always end: with the bytes, or with an error that lists the attempts.

One thread per process runs an event loop, which makes all requests: up to `IN_FLIGHT` at a time, fewer on a slow line
(see `RequestLimiter`), each for at most `PART_BYTES`. A request that fails, stalls or breaks off is made again from the
byte that it had reached, after a delay that doubles and is random, so that many processes do not retry at the same
time. If the store names a time to wait, the delay is at least that long. A request that gets no first byte for much
longer than usual is made a second time, and the first answer counts. When no byte has arrived for
`Patience.deadline_s`, the failure becomes an error with the object, the range, the attempts and the last answer.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from feedline.concurrency.named_threads import begin
from feedline.concurrency.thread_pool import Job, Threads, ended_by
from feedline.errors import DataError
from feedline.feed.arguments import DEADLINE_S
from feedline.feed.remote.blocking_calls import run_in
from feedline.feed.remote.stores import ObjectInfo, Store, StoreFault
from feedline.feed.remote.web import close_connections

PART_BYTES = 8 << 20
"""Bytes of one request."""

IN_FLIGHT = 32
"""Limit of simultaneous requests of a process."""

STALL_S = 20.0
"""Seconds without a byte after which a request has failed."""

_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 20.0
_MIN_HEDGE_S, _HEDGE = 0.25, 3.0  # minimum delay, and factor of the 95th percentile of earlier delays
_MIN_SAMPLES = 16  # delays of first bytes that are known before any request is made twice
_HEDGED_SHARE = 0.05  # limit of the share of requests that are made twice
_PROBE_S = 10.0  # for asking how long to wait
_FILE_THREADS = 6
_FIRST_TURNS = 4
_SLOW_S = 4.0  # a round that takes longer means a slow line
_MIN_GAIN = 1.25  # factor by which twice as many requests must raise the rate
_ROUNDS_BETWEEN_TRIALS = 8  # rounds without a trial after a useless one
_ENDING_S = 0.5  # time for cancelled requests to end

_log = logging.getLogger("feedline")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits for waiting.

    Attributes:
        deadline_s: seconds until a range that cannot be fetched is an error.
        stall_s: seconds without a byte after which a request counts as failed.
    """

    deadline_s: float = DEADLINE_S
    stall_s: float = STALL_S

    @classmethod
    def until(cls, deadline_s: float) -> Patience:
        """Return the patience with a deadline.

        Raises:
            ValueError: the deadline is not positive.
        """
        if not deadline_s > 0:
            raise ValueError(f"expected deadline_s above 0, got {deadline_s!r}")
        return cls(deadline_s, min(STALL_S, deadline_s / 4))


@dataclass(slots=True)
class Traffic:
    """Counts of the requests of this process.

    Attributes:
        requests: requests for bytes, including repeated ones.
        fetched_bytes: bytes that arrived.
        lookups: requests for names and sizes.
        failed: requests that failed and were made again.
        refused: those among them that a store refused because there were too many.
        hedged: requests that were made a second time because the first was slow.
        first_bytes: recent delays until the first byte of an answer, in seconds.
    """

    requests: int = 0
    fetched_bytes: int = 0
    lookups: int = 0
    failed: int = 0
    refused: int = 0
    hedged: int = 0
    first_bytes: deque[float] = field(default_factory=lambda: deque(maxlen=128))

    def slow_s(self) -> float | None:
        """Return the seconds after which a request without a byte is slow, or None if that is not known yet."""
        if len(self.first_bytes) < _MIN_SAMPLES:
            return None
        delays = sorted(self.first_bytes)
        return max(_MIN_HEDGE_S, _HEDGE * delays[int(0.95 * (len(delays) - 1))])


TRAFFIC = Traffic()
"""The requests of this process."""


class RequestLimiter:
    """Limits the number of simultaneous requests. As a context, it is the turn of one request.

    On a slow line more requests do not raise the rate: each is only slower, and the bytes that are needed first arrive
    as late as the others. So there are few turns at first. There are more while requests end soon, or raise the rate.

    The rate is measured in rounds. In a round all turns are taken, and other requests wait. It ends after a few
    seconds, or when as many requests have ended as there are turns.
    """

    def __init__(self) -> None:
        self.turns = _FIRST_TURNS
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._began: float | None = None  # start of the present round. None if there is no round
        self._bytes = self._ended = 0
        self._before: tuple[int, float] | None = None  # turns and rate before the change that is on trial
        self._rounds_until_trial = 0  # rounds until the next trial
        self._grows = True  # whether the next trial raises the number of turns

    async def __aenter__(self) -> None:
        if self._taken >= self.turns or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._taken += 1

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._grant_turns()

    def _grant_turns(self) -> None:
        """Give turns to waiting requests."""
        while self._waiting and self._taken < self.turns:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)

    def count_bytes(self, size: int) -> None:
        """Count bytes that have arrived."""
        now = time.monotonic()
        if self._taken != self.turns or not self._waiting:
            self._began = None  # the line is not the limit
        elif self._began is None:
            self._began, self._bytes, self._ended = now, 0, 0
        else:
            self._bytes += size
            if now - self._began >= _SLOW_S:
                self._end_round(self._bytes / (now - self._began), soon=False)

    def count_request(self) -> None:
        """Count a request whose bytes have all arrived."""
        if self._began is not None:
            self._ended += 1
            if self._ended >= self.turns:
                self._end_round(self._bytes / max(time.monotonic() - self._began, 1e-9), soon=True)

    def _end_round(self, rate: float, *, soon: bool) -> None:
        """End a round, and decide about the number of turns."""
        self._began = None
        turns, before, self._before = self.turns, self._before, None
        if soon:
            self.turns = min(IN_FLIGHT, 2 * turns)
        elif before is not None:
            worth = rate >= _MIN_GAIN * before[1] if turns > before[0] else rate >= before[1] / _MIN_GAIN
            if not worth:
                self.turns, self._rounds_until_trial = before[0], _ROUNDS_BETWEEN_TRIALS
            self._grows = worth == (turns > before[0])
        elif self._rounds_until_trial:
            self._rounds_until_trial -= 1
        else:
            self._before = turns, rate
            self.turns = min(IN_FLIGHT, 2 * turns) if self._grows else max(1, turns // 2)
        self._grant_turns()


class Loop:
    """The event loop of this process, and the thread that runs it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, about: _log.debug("%s", about.get("message")))
        self.limiter = RequestLimiter()
        self._ending = False
        self._not_begun: dict[Job[Any], Coroutine[Any, Any, Any]] = {}  # not begun yet
        self.random = random.Random()
        self.files = Threads(_FILE_THREADS)
        self._thread = begin("fetch", self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._ending = True
            # Wait until they have ended: a thread of a library that finished later would call into a finalized Python.
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_ENDING_S))
            close_connections()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            for outcome in list(self._not_begun):
                self._drop(outcome)
            self.files.close()

    def begin(self, work: Coroutine[Any, Any, Result]) -> tuple[Job[Result], Callable[[], None]]:
        """Begin work on the loop, and return its outcome and a function that cancels it."""
        task: asyncio.Task[Result] | None = None

        def result() -> Result:
            if task is None:
                raise asyncio.CancelledError
            return task.result()

        def start() -> None:
            nonlocal task
            if self._ending:
                self._drop(outcome)
                return
            del self._not_begun[outcome]
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: outcome.run())

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: task.cancel() if task is not None else None)

        outcome = Job(result)
        self._not_begun[outcome] = work
        try:
            self._loop.call_soon_threadsafe(start)
        except RuntimeError:  # the loop has ended
            self._drop(outcome)
        return outcome, cancel

    def _drop(self, outcome: Job[Any]) -> None:
        """Cancel work that has not begun."""
        if (work := self._not_begun.pop(outcome, None)) is not None:
            work.close()
            outcome.run()

    def stop(self) -> None:
        """End the thread, and cancel work in progress."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.end(5)


_running: Loop | None = None
_keepers = 0
_starting = threading.RLock()  # reentrant, as garbage collection inside it may close a cache


def loop() -> Loop:
    """Return the loop of this process.

    Raises:
        RuntimeError: this process was forked from one that has used its loop.
    """
    global _running
    if _running is None:
        with _starting:
            if _running is None:
                _running = Loop()
                atexit.register(_running.stop)
    if _running.pid != os.getpid():
        raise RuntimeError(
            "expected a new process to read remote data, got one that was forked from a process that reads it: the "
            "libraries for object stores do not survive a fork. Start workers with "
            'multiprocessing_context="forkserver" or "spawn", or read in the main process'
        )
    return _running


@contextlib.contextmanager
def keep_running() -> Iterator[None]:
    """A context in which `stop_if_idle` does nothing, because work is in progress."""
    global _keepers
    with _starting:
        _keepers += 1
    try:
        yield
    finally:
        with _starting:
            _keepers -= 1


def stop_if_idle() -> None:
    """End the thread, until it is needed again."""
    global _running
    with _starting:
        if _running is not None and not _keepers and _running.pid == os.getpid():
            atexit.unregister(_running.stop)
            _running.stop()
            _running = None


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` on the loop and wait for it. An interrupt cancels it, and so does cancelling the job of the
    thread."""
    with keep_running():  # another thread may close the last cache meanwhile
        try:
            outcome, cancel = loop().begin(work)
        except RuntimeError:
            work.close()
            raise
        try:
            with ended_by(cancel):
                return outcome.result()
        except BaseException:
            cancel()
            outcome.wait()  # bytes that have arrived must be kept first
            raise


async def in_thread(call: Callable[[], Result]) -> Result:
    """Await a call that works on local files, in a thread of the loop. The end of the process waits for it.

    Raises:
        Exception: an exception of the call.
    """
    return await run_in(loop().files.submit, call)


async def wait_until_idle() -> None:
    """Wait until all work on the loop has ended, such as fetching ahead."""
    me = asyncio.current_task()
    while tasks := [task for task in asyncio.all_tasks() if task is not me]:
        await asyncio.wait(tasks)


async def request_lookup(
    store: Store, what: str, ask: Callable[[], Coroutine[Any, Any, Result]], patience: Patience
) -> Result:
    """Make a request for names or sizes, and repeat it if it fails.

    Raises:
        DataError: the store does not answer, or refuses.
    """
    tries = Tries(store.url(what), "an answer that lists objects and their sizes", patience)
    return await _retry_until_answered(
        tries, lambda: asyncio.wait_for(ask(), patience.stall_s), patience.stall_s, store, what
    )


async def listing(store: Store, folder: str, patience: Patience, *, deep: bool = True) -> list[ObjectInfo]:
    """Return the objects of a folder, sorted by the bytes of their keys. See `Store.list_objects`.

    Raises:
        DataError: the store does not answer, or refuses.
    """
    tries = Tries(store.url(folder).rstrip("/"), "an answer that lists objects and their sizes", patience)
    # A long listing that arrives in one piece takes long to send its first byte.
    stall_s = patience.deadline_s / 2 if store.blocks or not deep else patience.stall_s

    async def ask() -> list[ObjectInfo]:
        infos: list[ObjectInfo] = []
        pages = store.list_objects(folder, deep=deep)
        async with contextlib.aclosing(pages):  # type: ignore[type-var]  # a generator
            while (page := await asyncio.wait_for(anext(pages, None), stall_s)) is not None:
                infos += page
                tries.note_bytes()
        return sorted(infos, key=lambda info: os.fsencode(info.key))

    return await _retry_until_answered(tries, ask, stall_s, store, folder)


async def _retry_until_answered(
    tries: Tries, ask: Callable[[], Awaitable[Result]], stall_s: float, store: Store, what: str
) -> Result:
    """Repeat a request for names or sizes until the store answers."""
    while True:
        tries.begin()
        TRAFFIC.lookups += 1
        try:
            return await ask()
        except TimeoutError:
            await tries.wait_after(StoreFault(f"no answer in {stall_s:g} s", again=True))
        except StoreFault as fault:
            await tries.wait_after(fault, store, what)


@dataclass(slots=True)
class Tries:
    """The attempts of one request, and the delays between them.

    The deadline starts with the first request, and starts again with each byte that arrives.

    Args:
        url: the object.
        what: the expected result, for the error.
        patience: limits for waiting.
        instead: the actual result, for the error.
        after: advice, for the error.
    """

    url: str
    what: str
    patience: Patience
    instead: str = "nothing"
    after: str = "continue from the last state"
    _since: float | None = None
    _attempts: int = 0
    _began: float = 0.0  # of the latest attempt
    _renewed: bool = False  # whether credentials were renewed since bytes arrived

    def begin(self) -> None:
        """Note the start of a request: time spent waiting for a turn does not count."""
        self._began = time.monotonic()
        if self._since is None:
            self._since = self._began

    def note_bytes(self) -> None:
        """Note that bytes have arrived."""
        self._since, self._attempts, self._renewed = time.monotonic(), 0, False

    async def wait_after(self, fault: StoreFault, store: Store | None = None, key: str = "") -> None:
        """Wait after a failed attempt, before the next one. A denied request is made once more with new credentials.

        Raises:
            DataError: there is no next attempt.
        """
        if self._since is None:
            self.begin()
        self._attempts += 1
        elapsed_s = self._elapsed_s
        if fault.kind == "denied" and store is not None and not self._renewed:
            self._renewed = await store.renew(self._began)
            if self._renewed:
                TRAFFIC.failed += 1
                return
        if not fault.again:
            raise self._error(fault, elapsed_s) from fault
        TRAFFIC.failed += 1
        TRAFFIC.refused += fault.throttled
        most = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._attempts - 1, 16))
        delay = most * (0.5 + loop().random.random() / 2)
        remaining_s = self.patience.deadline_s - elapsed_s
        if fault.throttled and remaining_s > 0:
            wait_s = fault.wait_s
            if wait_s is None and store is not None:
                with contextlib.suppress(TimeoutError):
                    wait_s = await asyncio.wait_for(store.retry_after(key), min(_PROBE_S, remaining_s))
            if wait_s is not None:
                delay = max(delay, wait_s)
        if delay > self.patience.deadline_s - self._elapsed_s:
            raise self._error(fault, elapsed_s) from fault
        await asyncio.sleep(delay)

    @property
    def _elapsed_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def changed_error(self, was: ObjectInfo, now: str) -> DataError:
        """Return the error for an object that has changed since it was opened."""
        return DataError(
            f"expected the object as it was when it was opened, of {was}, got {now}",
            path=self.url,
            hint="open it again; its sequences and their order may have changed",
        )

    def _error(self, fault: StoreFault, elapsed_s: float) -> DataError:
        times = "one attempt" if self._attempts == 1 else f"{self._attempts} attempts in {elapsed_s:.1f} s"
        hint = {
            "missing": "it was removed, or its name is wrong",
            "unnamable": "keys with an empty part, `.` or `..` cannot be read: name other folders, or single objects",
            "denied": "check credentials and permissions; fl.Remote(storage_options=...) passes them on",
        }.get(fault.kind, f"check the store and the network, then {self.after}")
        what = f"expected {self.what}, got {self.instead} after {times}; the last answer: {fault.answer}"
        return DataError(what, path=self.url, hint=hint)


async def fetch_range(
    store: Store,
    info: ObjectInfo,
    begin: int,
    into: memoryview,
    *,
    patience: Patience,
    on_bytes: Callable[[int], object],
) -> None:
    """Fill memory with the bytes of an object from ``begin`` on.

    Args:
        store: the store.
        info: the object.
        begin: the first byte.
        into: memory for them.
        patience: limits for waiting.
        on_bytes: function called with the number of bytes at the beginning of ``into`` that have arrived so far.

    Raises:
        DataError: the bytes cannot be fetched.
    """
    done, end = begin, begin + len(into)
    tries = Tries(store.url(info.key), f"the bytes {begin} to {end}", patience)
    limiter = loop().limiter
    while done < end:
        try:
            async with limiter:
                tries.begin()
                async for piece in _hedged_pieces(store, info, done, end, patience):
                    view = memoryview(piece).cast("B")
                    if len(view) > end - done:
                        raise StoreFault(f"more than the {end - done} bytes that were asked for", again=True)
                    into[done - begin : done - begin + len(view)] = view
                    done += len(view)
                    TRAFFIC.fetched_bytes += len(view)
                    limiter.count_bytes(len(view))
                    tries.note_bytes()
                    on_bytes(done - begin)
            if done < end:
                raise StoreFault(f"{done - begin} of {end - begin} bytes", again=True)
            limiter.count_request()
        except StoreFault as fault:
            if fault.kind == "changed":
                instead = await _describe_replacement(store, info.key, fault, patience)
                raise tries.changed_error(info, instead) from fault
            await tries.wait_after(fault, store, info.key)


async def _describe_replacement(store: Store, key: str, fault: StoreFault, patience: Patience) -> str:
    """Describe the object that has replaced another one, if the store answers."""
    try:
        info = await asyncio.wait_for(store.head(key), patience.stall_s)
    except (StoreFault, TimeoutError):
        return fault.answer
    return "none" if info is None else f"one of {info}"


async def _hedged_pieces(store: Store, info: ObjectInfo, begin: int, end: int, patience: Patience) -> Any:
    """Yield the pieces of a range. If the first byte is late, make a second request and use the faster one."""
    pending: dict[asyncio.Task[Any], Any] = {}

    def ask() -> None:
        TRAFFIC.requests += 1
        pieces = store.read(info, begin, end)
        pending[asyncio.ensure_future(anext(pieces))] = pieces

    began = time.monotonic()
    ask()
    slow = TRAFFIC.slow_s()
    may_hedge = slow is not None and TRAFFIC.hedged < 1 + _HEDGED_SHARE * TRAFFIC.requests
    try:
        while True:
            limit = patience.stall_s - (time.monotonic() - began)
            if may_hedge and slow is not None:
                limit = min(limit, slow)
            done, _ = await asyncio.wait(pending, timeout=max(0.0, limit), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                if may_hedge:
                    may_hedge = False
                    TRAFFIC.hedged += 1
                    ask()
                    continue
                raise StoreFault(f"no byte in {patience.stall_s:g} s", again=True)
            first = done.pop()
            pieces = pending.pop(first)
            error = first.exception()
            if error is not None and pending and not isinstance(error, StopAsyncIteration):
                await pieces.aclose()
                continue  # the other request may still deliver
            break
        TRAFFIC.first_bytes.append(time.monotonic() - began)
        if isinstance(error, StopAsyncIteration):
            return
        if error is not None:
            raise error
    finally:
        for task, stream in pending.items():
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
            await stream.aclose()
    try:
        yield first.result()
        while True:
            try:
                piece = await asyncio.wait_for(anext(pieces), patience.stall_s)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise StoreFault(f"no byte in {patience.stall_s:g} s", again=True) from None
            yield piece
    finally:
        await pieces.aclose()
