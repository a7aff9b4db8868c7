"""Executors make the planned batches: in this process, in a pool of workers, or with a native gather.

An executor returns batches with their plans, in planned order or as they complete. An error belongs to its batch: the
next call continues after it. An interrupt (an exception that is no `Exception`, such as Ctrl-C or a signal handler's)
belongs to no batch: the next call makes the same batch.

To that end a batch is in exactly one place at any moment: planned, in flight, or finished. CPython checks for signals
when a function begins, after calls into C, and at the end of a loop's body. So a batch moves from one place to the
next by assignments alone, without a call in between. The calls come before, where repeating them is harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from feedline.concurrency.finalizers import unless_exiting
from feedline.concurrency.turns import lend
from feedline.feed.loader.fetch import Fetched, unit_of
from feedline.feed.loader.gather import Columns
from feedline.feed.loader.order import Planned

if TYPE_CHECKING:
    from feedline.feed.workers import Pool

# Maximum number of batches in flight per worker if prefetch_factor is omitted. Ray sends several at a time.
MAX_AHEAD, MAX_AHEAD_RAY = 16, 64
AHEAD_BYTES = 64 << 20


class RemainingBatches(Protocol):
    """The batches still to be planned, which continue after an interrupt."""

    def next(self) -> Planned:
        """Return the next batch.

        Raises:
            StopIteration: there is none.
        """


class Executor(Protocol):
    """Makes the batches of a sweep. The module docstring describes how."""

    def next(self) -> tuple[Planned, Fetched]:
        """Return the next batch.

        Raises:
            StopIteration: there is none.
            Exception: it cannot be made.
        """

    def close(self) -> None:
        """Stop making batches and release resources."""


class DrawnAhead:
    """The batches of a user's sampler, drawn ahead of need as torch draws them for workers.

    Args:
        remaining: remaining batches of the sweep.
        count: number to draw ahead.
    """

    def __init__(self, remaining: RemainingBatches, count: int) -> None:
        self._remaining, self._count = remaining, count
        self._planned: deque[Planned] = deque()
        self._end: Exception | None = None
        self._fill(count)

    def next(self) -> Planned:
        """See `RemainingBatches.next`."""
        self._fill(self._count + 1)
        if not self._planned:
            assert self._end is not None
            raise self._end
        planned = self._planned[0]
        del self._planned[0]
        return planned

    def _fill(self, count: int) -> None:
        while self._end is None and len(self._planned) < count:
            try:
                self._planned.append(self._remaining.next())
            except Exception as error:  # the end, or a sampler's error, raised after the batches before it
                self._end = error


class InProcessExecutor:
    """Makes batches in this process, on demand.

    Args:
        following: function that returns the source of the next batch, such as its `Planned`.
        make: function that makes the batch from its source.
    """

    def __init__(self, following: Callable[[], Any], make: Callable[[Any], tuple[Planned, Fetched]]) -> None:
        self._following, self._make = following, make
        self._source: Any = None

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        source = self._source
        if source is None:
            source = self._source = self._following()
        try:
            batch = self._make(source)
        except Exception:
            self._source = None
            raise
        self._source = None
        return batch

    def close(self) -> None:
        """Do nothing, as there are no resources."""


def gather_from(columns: Columns) -> Callable[[Planned], tuple[Planned, Fetched]]:
    """Return a function that makes a batch by gathering from columns."""
    gather = columns.batch
    return lambda planned: (planned, Fetched(gather(planned.indices), len(planned.indices), [], 0.0, 0.0))


class PoolExecutor:
    """Makes batches in workers, ahead of need.

    Args:
        remaining: remaining batches of the sweep.
        pool: workers that run a `Fetch`.
        seed: seed of the sweep.
        depth: batches in flight.
        most: number to which ``depth`` may grow, if that many batches fit in `AHEAD_BYTES`.
        in_order: whether to return batches in planned order.
        loader: object that the threads of the pool `serve`.
    """

    def __init__(
        self,
        remaining: RemainingBatches,
        pool: Pool,
        *,
        seed: int,
        depth: int,
        most: int,
        in_order: bool,
        loader: object,
    ) -> None:
        self._waiting: dict[int, Planned] = {}  # by ticket, in planned order
        self._pool, self._seed, self._in_order, self._loader = pool, seed, in_order, loader
        self._remaining: RemainingBatches | None = remaining
        self._error: Exception | None = None
        self._planned: Planned | None = None
        self._hand: tuple[Planned, Fetched] | None = None
        self._depth, self._most, self._grows = depth, most, most > depth
        self._fill()

    @property
    def all_in_flight(self) -> bool:
        """Whether the workers have all batches of the sweep that are left."""
        return self._remaining is None and self._error is None

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        hand = self._hand
        if hand is None:
            self._fill()
            hand = self._hand = self._first()
        if self._grows:
            room = AHEAD_BYTES // max(size_of(hand[1].batch), 1)
            self._depth, self._grows = max(self._depth, min(self._most, room)), False
        self._fill()
        self._hand = None
        return hand

    def _first(self) -> tuple[Planned, Fetched]:
        waiting = self._waiting
        if not waiting:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration
        ticket = next(iter(waiting))
        tickets = [ticket] if self._in_order else list(waiting)
        lend(self._loader, lambda: self._pool.any_of(tickets))
        if not self._in_order:
            ticket = self._pool.any_of(tickets)
        planned = waiting[ticket]
        try:
            fetched = self._pool.result(ticket)
        except Exception:
            del waiting[ticket]
            raise
        del waiting[ticket]
        return planned, fetched

    def _fill(self) -> None:
        while self._remaining is not None and len(self._waiting) < self._depth:
            planned = self._planned
            if planned is None:
                try:
                    planned = self._planned = self._remaining.next()
                except StopIteration:  # not kept: it holds frames, and so this executor and its workers
                    self._remaining = None
                    return
                except Exception as error:  # a sampler's error, raised after the batches before it
                    self._remaining, self._error = None, error
                    return
            try:
                ticket = self._pool.submit(unit_of(planned, self._seed))
            except Exception:
                self._planned = None
                raise
            self._planned = None
            self._waiting[ticket] = planned

    def close(self) -> None:
        """Cancel the batches in flight."""
        self._pool.cancel(self._give_up())

    @unless_exiting
    def __del__(self) -> None:
        if hasattr(self, "_depth"):  # else __init__ failed
            self._pool.abandon(self._give_up())

    def _give_up(self) -> list[int]:
        self._remaining = self._planned = self._hand = None
        tickets = list(self._waiting)
        self._waiting.clear()
        return tickets


def size_of(tree: Any) -> int:
    """Return the bytes of the arrays and tensors in a tree."""
    if isinstance(tree, (Mapping, list, tuple)):
        return sum(map(size_of, tree.values() if isinstance(tree, Mapping) else tree))
    try:
        return int(tree.nbytes)
    except (AttributeError, RuntimeError, TypeError):  # sparse tensors have no nbytes
        return 0
