"""Blocking calls, awaited on an event loop.

`asyncio.to_thread` is not used, as the process could not end while a call of another library never returns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from feedline.concurrency import thread_pool

Result = TypeVar("Result")


async def run_in(submit: Callable[[Callable[[], None]], object], call: Callable[[], Result]) -> Result:
    """Await a call in another thread. If the task is cancelled, a call that has not begun is skipped.

    Args:
        submit: function that makes a thread call a function.
        call: the call.

    Raises:
        Exception: an exception of the call.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def finish(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def work() -> None:
        if future.cancelled():
            return
        try:
            result = call()
        except BaseException as error:
            if isinstance(error, StopIteration):  # futures refuse it
                error = RuntimeError(f"unexpected {error!r}")
            outcome: tuple[Callable[[Any], None], Any] = (future.set_exception, error)
        else:
            outcome = (future.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, *outcome)

    submit(work)
    return await future


async def in_own_thread(call: Callable[[], Result]) -> Result:
    """Await a call that may block forever, in a separate thread. The end of the process does not wait for it.

    Raises:
        Exception: an exception of the call.
    """
    return await run_in(thread_pool.start, call)
