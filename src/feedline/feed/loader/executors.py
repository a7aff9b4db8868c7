"""Executors make the planned batches: in this process, in a pool of workers, or by a native gather.

An executor returns batches with their plans, in planned order or as they complete. An error belongs to its batch: the
next call continues after it. An interrupt (an exception that is no `Exception`, such as Ctrl-C or a signal handler's)
belongs to none: the next call makes the same batch.

To that end a batch is in exactly one place at any moment: planned, in flight, or in hand. CPython checks for signals
when a function begins, after calls into C, and at the end of a loop's body. So a batch moves from one place to the next
by assignments alone, without a call in between; the calls come before, where repeating them is harmless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from feedline.concurrency.turns import lend
from feedline.feed.loader.fetch import Fetched, unit_of
from feedline.feed.loader.gather import Columns
from feedline.feed.loader.order import Planned

if TYPE_CHECKING:
    from feedline.feed.workers import Pool

# Maximum of batches in flight per worker if prefetch_factor is omitted; with Ray several travel together.
MOST_AHEAD, MOST_AHEAD_RAY = 16, 64
AHEAD_BYTES = 64 << 20


class RemainingBatches(Protocol):
    """The batches still to be planned; after an interrupt, it continues where it was."""

    def next(self) -> Planned:
        """Return the next one.

        Raises:
            StopIteration: there is none.
        """


class Executor(Protocol):
    """Makes the batches of a sweep; see the module."""

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
        rest: remaining batches of the sweep.
        count: number to draw ahead.
    """

    def __init__(self, rest: RemainingBatches, count: int) -> None:
        self._rest, self._count = rest, count
        self._drawn: deque[Planned] = deque()
        self._end: Exception | None = None
        self._fill(count)

    def next(self) -> Planned:
        """See `RemainingBatches.next`."""
        self._fill(self._count + 1)
        if not self._drawn:
            assert self._end is not None
            raise self._end
        planned = self._drawn[0]
        del self._drawn[0]
        return planned

    def _fill(self, count: int) -> None:
        while self._end is None and len(self._drawn) < count:
            try:
                self._drawn.append(self._rest.next())
            except Exception as error:  # the end, or a sampler's error: what it chose before comes first
                self._end = error


class InProcessExecutor:
    """Makes batches in this process, on demand.

    Args:
        rest: remaining batches of the sweep.
        make: function that makes one.
    """

    def __init__(self, rest: RemainingBatches, make: Callable[[Planned], Fetched]) -> None:
        self._rest, self._make = rest, make
        self._planned: Planned | None = None

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        planned = self._planned
        if planned is None:
            planned = self._planned = self._rest.next()
        try:
            fetched = self._make(planned)
        except Exception:
            self._planned = None
            raise
        self._planned = None
        return planned, fetched

    def close(self) -> None:
        """Do nothing: no resources are held."""


def gathered(columns: Columns) -> Callable[[Planned], Fetched]:
    """Return a function that makes a batch by gathering from columns."""
    gather = columns.batch
    return lambda planned: Fetched(gather(planned.indices), len(planned.indices), [], 0.0, 0.0)


class PoolExecutor:
    """Makes batches in workers, ahead of need.

    Args:
        rest: remaining batches of the sweep.
        pool: workers that run a `Fetch`.
        seed: seed of the sweep.
        depth: batches in flight.
        most: number that ``depth`` may grow to if `AHEAD_BYTES` holds as many.
        in_order: whether to return batches in planned order.
        loader: what the threads of the pool `serve`.
    """

    def __init__(
        self,
        rest: RemainingBatches,
        pool: Pool,
        *,
        seed: int,
        depth: int,
        most: int,
        in_order: bool,
        loader: object,
    ) -> None:
        self._waiting: deque[tuple[Planned, int]] = deque()
        self._pool, self._seed, self._in_order, self._loader = pool, seed, in_order, loader
        self._rest: RemainingBatches | None = rest
        self._end: Exception = StopIteration()  # raised behind the last batch
        self._planned: Planned | None = None
        self._hand: tuple[Planned, Fetched] | None = None
        self._depth, self._most, self._grows = depth, most, most > depth
        self._fill()

    def next(self) -> tuple[Planned, Fetched]:
        """See `Executor.next`."""
        hand = self._hand
        if hand is None:
            self._fill()
            hand = self._hand = self._first()
        if self._grows:
            self._grow(hand[1].batch)
        self._fill()
        self._hand = None
        return hand

    def _first(self) -> tuple[Planned, Fetched]:
        waiting = self._waiting
        if not waiting:
            end, self._end = self._end, StopIteration()
            raise end
        k = 0
        tickets = [waiting[0][1]] if self._in_order else [ticket for _, ticket in waiting]
        lend(self._loader, lambda: self._pool.any_of(tickets))
        if not self._in_order:
            first = self._pool.any_of(tickets)
            k = next(i for i, (_, ticket) in enumerate(waiting) if ticket == first)
        planned, ticket = waiting[k]
        try:
            fetched = self._pool.result(ticket)
        except Exception:
            del waiting[k]
            raise
        del waiting[k]
        return planned, fetched

    def _grow(self, batch: Any) -> None:
        room = AHEAD_BYTES // max(size_of(batch), 1)
        self._depth = max(self._depth, min(self._most, room))
        self._grows = False

    def _fill(self) -> None:
        while self._rest is not None and len(self._waiting) < self._depth:
            planned = self._planned
            if planned is None:
                try:
                    planned = self._planned = self._rest.next()
                except Exception as error:  # the end, or a sampler's error: what it chose before is delivered first
                    self._rest, self._end = None, error
                    return
            try:
                ticket = self._pool.submit(unit_of(planned, self._seed))
            except Exception:
                self._planned = None
                raise
            self._planned = None
            self._waiting.append((planned, ticket))

    def close(self) -> None:
        """Cancel the batches in flight."""
        self._pool.cancel(self._given_up())

    def __del__(self) -> None:
        if hasattr(self, "_depth"):  # else __init__ failed
            self._pool.abandon(self._given_up())

    def _given_up(self) -> list[int]:
        self._rest = self._planned = self._hand = None
        tickets = [ticket for _, ticket in self._waiting]
        self._waiting.clear()
        return tickets


def size_of(tree: Any) -> int:
    """Return the bytes of the arrays and tensors in a tree."""
    if isinstance(tree, Mapping):
        return sum(size_of(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return sum(size_of(value) for value in tree)
    try:
        return int(tree.nbytes)
    except (AttributeError, RuntimeError, TypeError):  # sparse tensors have no nbytes
        return 0
