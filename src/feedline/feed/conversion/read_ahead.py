"""Read chunks in order, by threads that read ahead."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from feedline.concurrency.thread_pool import Job, Threads

Result = TypeVar("Result")


def read_ahead(read: Callable[[int], Result], numbers: Iterable[int], jobs: int) -> Generator[Result]:
    """Yield ``read(number)`` for each number, in order.

    Args:
        read: function to call.
        numbers: arguments of the calls.
        jobs: number of threads that call it. Up to ``jobs + 1`` results are held. With 1, there are no threads, and one
            result is held.
    """
    if jobs == 1:
        yield from map(read, numbers)
        return
    with contextlib.closing(Threads(jobs)) as threads:
        ahead: deque[Job[Result]] = deque()
        for number in numbers:
            ahead.append(threads.submit(functools.partial(read, number)))
            if len(ahead) > jobs:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
