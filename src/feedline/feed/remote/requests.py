"""Requests to object stores that end: with the bytes, or with an error that says what was tried.

One thread per process runs an event loop, from which all requests are made: up to `IN_FLIGHT` at a time, each for at
most `PART_BYTES`. A request that fails, stalls or breaks off is made again from the byte that it had reached, after a
delay that doubles and is drawn at random, so that many processes do not return together; a store that says how long
to wait is heeded. A request that gets no first byte for much longer than others do is made a second time, and the first
of the two counts. After `Patience.deadline_s` the failure is an error, with the object, the range, the attempts and the
last answer.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from feedline.errors import DataError
from feedline.feed.remote.stores import ObjectInfo, Store, StoreFault

PART_BYTES = 8 << 20
"""Bytes of one request."""

IN_FLIGHT = 32
"""Requests at a time, of a process."""

DEADLINE_S = 300.0
"""Seconds until what a store does not deliver is an error, if not said otherwise."""

STALL_S = 20.0
"""Seconds without a byte after which a request has failed."""

_FIRST_DELAY_S, _MOST_DELAY_S = 0.1, 20.0
_LEAST_HEDGE_S, _HEDGE = 0.25, 3.0  # of the 95th percentile of what came before
_LEAST_SEEN = 16  # first bytes, before any request is made twice
_HEDGED_SHARE = 0.05  # of all requests
_PATIENCE_S = 0.5
_ENDING_S = 2.0  # that cancelled requests are given to end

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait.

    Attributes:
        deadline_s: seconds until a range that cannot be had is an error.
        stall_s: seconds without a byte after which a request counts as failed.
    """

    deadline_s: float = DEADLINE_S
    stall_s: float = STALL_S

    @classmethod
    def until(cls, deadline_s: float) -> Patience:
        """Return the patience with a deadline.

        Raises:
            ValueError: it is not positive.
        """
        if not deadline_s > 0:
            raise ValueError(f"expected deadline_s above 0, got {deadline_s!r}")
        return cls(deadline_s, min(STALL_S, deadline_s / 4))


@dataclass(slots=True)
class Traffic:
    """What was asked of stores in this process.

    Attributes:
        requests: requests for bytes, repeated ones included.
        fetched_bytes: bytes that came.
        lookups: requests for names and sizes.
        failed: requests that failed and were made again.
        hedged: requests that were made a second time since the first was slow.
    """

    requests: int = 0
    fetched_bytes: int = 0
    lookups: int = 0
    failed: int = 0
    hedged: int = 0
    first_bytes: deque[float] = field(default_factory=lambda: deque(maxlen=128))

    def slow_s(self) -> float | None:
        """Return the seconds after which a request without a byte is slow; None: not known yet."""
        if len(self.first_bytes) < _LEAST_SEEN:
            return None
        seen = sorted(self.first_bytes)
        return max(_LEAST_HEDGE_S, _HEDGE * seen[int(0.95 * (len(seen) - 1))])


TRAFFIC = Traffic()
"""Of this process."""


class LoopOutcome(Generic[Result]):
    """What another thread will set; waiting for it can be interrupted at any moment (see `feedline.feed.jobs`)."""

    __slots__ = ("_done", "_error", "_lock", "_value")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._done = False
        self._value: Result | None = None
        self._error: BaseException | None = None

    def set(self, value: Result | None, error: BaseException | None = None) -> None:
        """Set the value, or the exception to raise; once."""
        if not self._done:
            self._value, self._error, self._done = value, error, True
            self._lock.release()

    @property
    def done(self) -> bool:
        """Whether it is set."""
        return self._done

    def result(self) -> Result:
        """Wait for the value.

        Raises:
            BaseException: what was set instead.
        """
        while not self._done:
            if self._lock.acquire(timeout=_PATIENCE_S):
                self._lock.release()
        if self._error is not None:
            raise self._error
        return cast(Result, self._value)


class Loop:
    """The event loop of this process, and the thread that runs it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.room = asyncio.Semaphore(IN_FLIGHT)
        self.random = random.Random()
        self._thread = threading.Thread(target=self._run, name="feedline-fetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # Until they have ended: a library's thread that finishes one later would call into a Python that is gone.
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_ENDING_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def begin(self, work: Coroutine[Any, Any, Result]) -> tuple[LoopOutcome[Result], Callable[[], None]]:
        """Begin work on the loop; return its outcome, and what cancels it."""
        outcome: LoopOutcome[Result] = LoopOutcome()
        task: asyncio.Task[Result] | None = None

        def ended(done: asyncio.Task[Result]) -> None:
            if done.cancelled():
                outcome.set(None, asyncio.CancelledError())
            else:
                error = done.exception()
                outcome.set(None if error else done.result(), error)

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(work)
            task.add_done_callback(ended)

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: task.cancel() if task is not None else None)

        self._loop.call_soon_threadsafe(start)
        return outcome, cancel

    def stop(self) -> None:
        """End the thread; what is under way is cancelled."""
        if self.pid == os.getpid() and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:  # where garbage may be collected, too
                self._thread.join(timeout=5)


_running: Loop | None = None
_kept = 0
_starting = threading.Lock()


def loop() -> Loop:
    """Return the loop of this process.

    Raises:
        RuntimeError: this process was forked from one that has used its own loop.
    """
    global _running
    if _running is None:
        with _starting:
            if _running is None:
                _running = Loop()
                atexit.register(_running.stop)
    if _running.pid != os.getpid():
        raise RuntimeError(
            "expected a process of its own to read remote data, got one that was forked from another that reads it: "
            "the libraries for object stores do not survive a fork. Start workers with "
            'multiprocessing_context="forkserver" or "spawn", or read in the main process'
        )
    return _running


@contextlib.contextmanager
def kept_running() -> Iterator[None]:
    """A context in which `rest` does nothing, as something is under way."""
    global _kept
    with _starting:
        _kept += 1
    try:
        yield
    finally:
        with _starting:
            _kept -= 1


def rest() -> None:
    """End the thread, until it is needed again."""
    global _running
    with _starting:
        if _running is not None and not _kept and _running.pid == os.getpid():
            atexit.unregister(_running.stop)
            _running.stop()
            _running = None


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` on the loop and wait for it; an interrupt cancels it."""
    try:
        outcome, cancel = loop().begin(work)
    except RuntimeError:
        work.close()
        raise
    try:
        return outcome.result()
    except BaseException:
        cancel()
        raise


async def settled() -> None:
    """Wait until all that was begun on the loop has ended, as what is fetched ahead."""
    me = asyncio.current_task()
    while others := [task for task in asyncio.all_tasks() if task is not me]:
        await asyncio.wait(others)


async def looked_up(
    store: Store, what: str, ask: Callable[[], Coroutine[Any, Any, Result]], patience: Patience
) -> Result:
    """Make a request for names or sizes, again if it fails.

    Raises:
        DataError: the store does not answer, or refuses.
    """
    tries = Tries(store.url(what), "an answer that lists objects and their sizes", patience)
    while True:
        TRAFFIC.lookups += 1
        try:
            return await asyncio.wait_for(ask(), patience.stall_s)
        except TimeoutError:
            await tries.failed(StoreFault(f"no answer in {patience.stall_s:g} s", again=True))
        except StoreFault as fault:
            await tries.failed(fault, store, what)


class Tries:
    """The attempts to get one thing, and the delays between them.

    Args:
        url: the object.
        what: what was expected, for the error.
        patience: for how long.
        instead: what came instead.
        after: what to do after it.
    """

    def __init__(
        self,
        url: str,
        what: str,
        patience: Patience,
        *,
        instead: str = "nothing",
        after: str = "go on from the last state",
    ) -> None:
        self._url, self._what, self._patience, self._instead, self._after = url, what, patience, instead, after
        self._began, self._attempts = time.monotonic(), 0

    async def failed(self, fault: StoreFault, store: Store | None = None, key: str = "") -> None:
        """Wait before the next attempt.

        Raises:
            DataError: there is none.
        """
        self._attempts += 1
        elapsed_s = time.monotonic() - self._began
        if not fault.again:
            raise self._error(fault, elapsed_s) from fault
        TRAFFIC.failed += 1
        most = min(_MOST_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._attempts - 1, 16))
        delay = most * (0.5 + loop().random.random() / 2)
        left = self._patience.deadline_s - elapsed_s
        if fault.throttled and store is not None and left > 0:
            wanted = await store.retry_after(key)
            if wanted is not None:
                delay = max(delay, wanted)
        if delay > left:
            raise self._error(fault, elapsed_s) from fault
        await asyncio.sleep(delay)

    def _error(self, fault: StoreFault, elapsed_s: float) -> DataError:
        if fault.kind == "changed":
            return DataError(
                f"expected the object as it was when it was opened, got another one: {fault.answer}",
                path=self._url,
                hint="open it again; its sequences and their order may have changed",
            )
        times = "one attempt" if self._attempts == 1 else f"{self._attempts} attempts in {elapsed_s:.1f} s"
        hint = {
            "missing": "it was removed, or its name is wrong",
            "denied": "check credentials and permissions; storage_options= passes them on",
        }.get(fault.kind, f"check the store and the network, then {self._after}")
        return DataError(
            f"expected {self._what}, got {self._instead} after {times}; the last answer: {fault.answer}",
            path=self._url,
            hint=hint,
        )


async def fetched(
    store: Store, info: ObjectInfo, begin: int, end: int, *, into: memoryview, patience: Patience
) -> None:
    """Fetch the bytes ``begin:end`` of an object into memory.

    Raises:
        DataError: they cannot be had.
    """
    tries = Tries(store.url(info.key), f"the bytes {begin} to {end}", patience)
    done = begin
    while done < end:
        room = loop().room
        try:
            async with room:
                async for piece in _started(store, info, done, end, patience):
                    view = memoryview(piece).cast("B")
                    if len(view) > end - done:
                        raise StoreFault(f"more than the {end - done} bytes that were asked for", again=True)
                    into[done - begin : done - begin + len(view)] = view
                    done += len(view)
                    TRAFFIC.fetched_bytes += len(view)
            if done < end:
                raise StoreFault(f"{done - begin} of {end - begin} bytes", again=True)
        except StoreFault as fault:
            await tries.failed(fault, store, info.key)


async def _started(store: Store, info: ObjectInfo, begin: int, end: int, patience: Patience) -> Any:
    """Yield pieces of a range, from the first of one or two requests that delivers a byte."""
    pending: dict[asyncio.Task[Any], Any] = {}

    def ask() -> None:
        TRAFFIC.requests += 1
        pieces = store.read(info, begin, end)
        pending[asyncio.ensure_future(anext(pieces))] = pieces

    asked = time.monotonic()
    ask()
    slow = TRAFFIC.slow_s()
    may_hedge = slow is not None and TRAFFIC.hedged < 1 + _HEDGED_SHARE * TRAFFIC.requests
    try:
        while True:
            limit = patience.stall_s - (time.monotonic() - asked)
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
        TRAFFIC.first_bytes.append(time.monotonic() - asked)
        if isinstance(error, StopAsyncIteration):
            return
        if error is not None:
            raise error
    finally:
        for task, others in pending.items():
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
            await others.aclose()
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
