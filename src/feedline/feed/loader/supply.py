"""Who makes the planned batches: this process, a pool of workers, or a gather.

A supply hands out batches with their plans, in the order planned or as they come. An error belongs to its batch: the
next call goes on behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from feedline.feed.loader.fetch import Fetch, Fetched, unit_of
from feedline.feed.loader.gather import Columns
from feedline.feed.loader.order import Planned
from feedline.feed.workers import Pool

MOST_AHEAD = 16  # batches for each worker that are made ahead where nobody said how many
AHEAD_BYTES = 64 << 20


class Supply(Protocol):
    """See the module."""

    def next(self) -> tuple[Planned, Fetched]:
        """The next batch.

        Raises:
            StopIteration: there is none.
            Exception: it cannot be made.
        """

    def close(self) -> None:
        """Nothing is wanted any more."""


class Here:
    """Made when asked for."""

    def __init__(self, plan: Iterator[Planned], fetch: Fetch) -> None:
        self._plan, self._fetch = plan, fetch

    def next(self) -> tuple[Planned, Fetched]:
        """See `Supply.next`."""
        planned = next(self._plan)
        return planned, self._fetch.run(unit_of(planned))

    def close(self) -> None:
        """Nothing is held."""


class Gathered:
    """Copied out of columns when asked for."""

    def __init__(self, plan: Iterator[Planned], columns: Columns) -> None:
        self._plan, self._columns = plan, columns

    def next(self) -> tuple[Planned, Fetched]:
        """See `Supply.next`."""
        planned = next(self._plan)
        return planned, Fetched(self._columns.batch(planned.indices), len(planned.indices), [], 0.0, 0.0)

    def close(self) -> None:
        """Nothing is held."""


class Pooled:
    """Made by workers, ahead of need.

    Args:
        plan: the batches of this sweep.
        pool: of workers that run a `Fetch`.
        sweep: of ``plan``.
        share: of the batches.
        depth: batches outstanding; negative: at first so many, then as many as `AHEAD_BYTES` holds and workers can use.
        in_order: hand out in the order planned.
        beyond: called when the plan is used up: the batches of the sweep that comes next, or None.
    """

    def __init__(
        self,
        plan: Iterator[Planned],
        pool: Pool,
        sweep: int,
        share: tuple[int, int],
        depth: int,
        in_order: bool,
        beyond: Callable[[], Iterator[Planned] | None],
    ) -> None:
        self._plan: Iterator[Planned] | None = plan
        self._pool, self._in_order, self._beyond = pool, in_order, beyond
        self._sweep, self._share = sweep, share
        self._depth, self._grows = abs(depth), depth < 0
        self._waiting: deque[tuple[Planned, int]] = deque()
        self._past = False  # the plan is that of the next sweep
        self._error: Exception | None = None
        self._fill()

    def next(self) -> tuple[Planned, Fetched]:
        """See `Supply.next`."""
        self._fill()
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
        if self._grows:
            self._grow(fetched.batch)
        self._fill()
        return planned, fetched

    def _grow(self, batch: Any) -> None:
        self._grows = False
        room = AHEAD_BYTES // max(size_of(batch), 1)
        self._depth = max(self._depth, min(MOST_AHEAD * self._pool.workers, room))

    def _fill(self) -> None:
        while self._plan is not None and len(self._waiting) < self._depth:
            try:
                planned = next(self._plan, None)
            except Exception as error:  # of a sampler: what it chose before is delivered first
                self._plan, self._error = None, error
                return
            if planned is None:
                # The next sweep's batches are a function of the axis: begin with them before this one has ended.
                self._plan = None if self._past else self._beyond()
                self._past = True
                continue
            self._waiting.append((planned, self._pool.submit(unit_of(planned))))

    def carry_on(self, sweep: int, share: tuple[int, int], beyond: Callable[[], Iterator[Planned] | None]) -> bool:
        """Whether this supply, used up for its sweep, has begun with ``sweep``; it then goes on with that."""
        if self._share != share or not self._waiting or self._waiting[0][0].sweep != sweep:
            return False
        self._sweep, self._beyond = sweep, beyond
        if self._plan is None:
            self._plan = beyond()  # all of the new sweep is on its way
        else:
            self._past = False
        return True

    def close(self) -> None:
        """Cancel what is outstanding."""
        self._plan = None
        tickets = [ticket for _, ticket in self._waiting]
        self._waiting.clear()
        try:
            self._pool.cancel(tickets)
        except RuntimeError:  # the pool is closed, and everything with it
            pass

    def __del__(self) -> None:
        self.close()


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
