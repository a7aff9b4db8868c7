"""Who makes the planned batches: this process, a pool of workers, or a gather.

An executor hands out batches with their plans, in the order planned or as they come. An error belongs to its batch: the
next call goes on behind it. An interrupt (any exception that is no `Exception`: Ctrl-C, a signal's handler) belongs to
none: the next call makes the same batch.

For that, a batch is in one place at any moment: planned, under way, or in hand. CPython looks for signals when a
function begins, behind calls into C and where loops turn. So a batch moves from one place to the next by assignments
alone, without a call in between; and what calls have to do is done before, so that it can be done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from feedline.feed.loader.fetch import Fetched, unit_of
from feedline.feed.loader.gather import Columns
from feedline.feed.loader.order import Planned
from feedline.feed.workers import Pool

MOST_AHEAD = 16  # batches for each worker that are made ahead where nobody said how many
AHEAD_BYTES = 64 << 20


class RemainingBatches(Protocol):
    """The batches still to be planned; interrupted, it goes on where it was."""

    def next(self) -> Planned:
        """The next one.

        Raises:
            StopIteration: there is none.
        """


class Executor(Protocol):
    """See the module."""

    def next(self) -> tuple[Planned, Fetched]:
        """The next batch.

        Raises:
            StopIteration: there is none.
            Exception: it cannot be made.
        """

    def close(self) -> None:
        """Nothing is wanted any more."""


class InProcessExecutor:
    """Made when asked for.

    Args:
        rest: the batches of the sweep.
        make: makes one.
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
        """Nothing is held."""


def gathered(columns: Columns) -> Callable[[Planned], Fetched]:
    """What makes a batch by copying it out of columns."""
    gather = columns.batch
    return lambda planned: Fetched(gather(planned.indices), len(planned.indices), [], 0.0, 0.0)


class PoolExecutor:
    """Made by workers, ahead of need.

    Args:
        rest: the batches of this sweep.
        pool: of workers that run a `Fetch`.
        sweep: of ``plan``.
        share: of the batches.
        depth: batches in flight.
        grows: ``depth`` is that of the beginning; then as many as `AHEAD_BYTES` holds and workers can use.
        in_order: hand out in the order planned.
        beyond: called when they are used up: the batches of the sweep that comes next, or None.
    """

    def __init__(
        self,
        rest: RemainingBatches,
        pool: Pool,
        *,
        sweep: int,
        share: tuple[int, int],
        depth: int,
        grows: bool,
        in_order: bool,
        beyond: Callable[[], RemainingBatches | None],
    ) -> None:
        self._waiting: deque[tuple[Planned, int]] = deque()
        self._pool, self._in_order, self._beyond = pool, in_order, beyond
        self._rest: RemainingBatches | None = rest
        self._sweep, self._share = sweep, share
        self._past = False  # the rest is that of the next sweep
        self._error: Exception | None = None
        self._planned: Planned | None = None
        self._hand: tuple[Planned, Fetched] | None = None
        self._depth, self._grows = depth, grows
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
        if not waiting or waiting[0][0].sweep != self._sweep:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration
        k = 0
        if not self._in_order:
            first = self._pool.any_of([ticket for planned, ticket in waiting if planned.sweep == self._sweep])
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
        self._depth = max(self._depth, min(MOST_AHEAD * self._pool.workers, room))
        self._grows = False

    def _fill(self) -> None:
        while self._rest is not None and len(self._waiting) < self._depth:
            planned = self._planned
            if planned is None:
                try:
                    planned = self._planned = self._rest.next()
                except StopIteration:
                    # The next sweep's batches are a function of the axis: begin with them before this one has ended.
                    rest = None if self._past else self._beyond()
                    self._rest, self._past = rest, True
                    continue
                except Exception as error:  # of a sampler: what it chose before is delivered first
                    self._rest, self._error = None, error
                    return
            try:
                ticket = self._pool.submit(unit_of(planned))
            except Exception:
                self._planned = None
                raise
            self._planned = None
            self._waiting.append((planned, ticket))

    def carry_on(self, sweep: int, share: tuple[int, int], beyond: Callable[[], RemainingBatches | None]) -> bool:
        """Whether this executor, used up for its sweep, has begun with ``sweep``; it then goes on with that."""
        if self._share != share or not self._waiting or self._waiting[0][0].sweep != sweep:
            return False
        self._sweep, self._beyond = sweep, beyond
        if self._rest is None:
            self._rest = beyond()  # all of the new sweep is on its way
        else:
            self._past = False
        return True

    def close(self) -> None:
        """Cancel what is outstanding."""
        self._pool.cancel(self._given_up())

    def __del__(self) -> None:
        if hasattr(self, "_depth"):  # else it was never made
            self._pool.abandon(self._given_up())

    def _given_up(self) -> list[int]:
        self._rest = self._planned = self._hand = None
        tickets = [ticket for _, ticket in self._waiting]
        self._waiting.clear()
        return tickets


def size_of(tree: Any) -> int:
    """Bytes of the arrays and tensors in a tree."""
    if isinstance(tree, Mapping):
        return sum(size_of(value) for value in tree.values())
    if isinstance(tree, (list, tuple)):
        return sum(size_of(value) for value in tree)
    try:
        return int(tree.nbytes)
    except (AttributeError, RuntimeError, TypeError):  # torch has no figure for sparse tensors
        return 0
