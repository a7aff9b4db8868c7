"""Iterate over the minibatches of a feed, to its end or up to the end of a span."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Self

from feedline.data import Minibatch, Span, Unit
from feedline.feed.progress_bar import Progress, Report, showing


class Minibatches(itertools.chain[Minibatch]):
    """An iterator over the minibatches of a feed. ``len`` is the remaining number, where it is known.

    A subclass of `itertools.chain`, so that ``next`` is C code: in a method of Python's an interrupt could lose a
    minibatch that counts as delivered.

    Args:
        run: span that takes the minibatches.
    """

    _run: _SpanOfMinibatches

    def __new__(cls, run: _SpanOfMinibatches) -> Self:  # noqa: D102  # see the class
        self = super().__new__(cls, run.minibatches())
        self._run = run
        return self

    def __len__(self) -> int:
        if self._run.remaining is None:
            raise TypeError("expected a feed with a known end for len(), got a user-defined one")
        return self._run.remaining(self._run.remaining_span())

    def __bool__(self) -> bool:
        return True  # not the length: it may be unknown

    def close(self) -> None:
        """End the iterator."""
        self._run.end()


def upto(
    next_minibatch: Callable[[], Minibatch],
    until: Span | None,
    remaining: Callable[[Span | None], int] | None = None,
    *,
    progress: Progress = None,
    remark: Callable[[], str] | None = None,
) -> Minibatches:
    """Return the minibatches to the end of a feed, or up to the one that completes the span ``until`` from here.

    Args:
        next_minibatch: function that returns the next minibatch.
        until: the span. None: to the end.
        remaining: function that returns the number of minibatches from here to the end of a span, or of the feed.
            None if unknown.
        progress: see `feedline.feed.progress_bar`. It counts minibatches.
        remark: function that returns a text to add to the bar.

    Raises:
        TypeError: ``until`` is not a span.
    """
    if until is not None and not isinstance(until, Span):
        raise TypeError(
            f"expected until=fl.samples(n), fl.minibatches(n) or fl.sweeps(n), got {until!r}; "
            f"for a number of minibatches write fl.minibatches({until!r})"
        )
    show = partial(showing, progress, "feeding", "minibatches", remark)
    return Minibatches(_SpanOfMinibatches(next_minibatch, until, show, remaining))


class _SpanOfMinibatches:
    """Takes minibatches until a span is complete.

    Args:
        next_minibatch, until, remaining: see `upto`.
        show: context that provides the function to call with the number of minibatches taken, and in total.
    """

    def __init__(
        self,
        next_minibatch: Callable[[], Minibatch],
        until: Span | None,
        show: Callable[[], AbstractContextManager[Report | None]],
        remaining: Callable[[Span | None], int] | None,
    ) -> None:
        self._next, self._until, self._show, self.remaining = next_minibatch, until, show, remaining
        self._taken = 0
        self._ended = False

    def minibatches(self) -> Iterator[Minibatch]:
        """Yield the minibatches."""
        next_minibatch, until = self._next, self._until
        unit = None if until is None else until.unit
        by_samples, by_minibatches = unit is Unit.SAMPLE, unit is Unit.MINIBATCH
        with self._show() as show:
            number, total = 0, 0 if show is None else self._total()
            while not self._ended and (until is None or self._taken < until.count):
                if show is not None:
                    show(number, total)  # minibatches that the caller has finished
                minibatch = next_minibatch()
                # No call from here on, not even `bool(minibatch)`: an interrupt would lose a minibatch that counts as
                # delivered.
                if minibatch._ended:
                    self._ended = True
                    break
                if by_samples:
                    self._taken += minibatch.global_samples
                elif by_minibatches or minibatch.sweep_end:
                    self._taken += 1
                number += 1
                yield minibatch
            else:
                if show is not None:
                    show(number, total)

    def _total(self) -> int:
        """Return the number of minibatches left, 0 if it is unknown."""
        try:
            return 0 if self.remaining is None else self.remaining(self.remaining_span())
        except TypeError:
            return 0

    def remaining_span(self) -> Span | None:
        """Return the rest of the span, or None for all minibatches."""
        if self._ended:
            return Span(0, Unit.MINIBATCH)
        return None if self._until is None else Span(max(0, self._until.count - self._taken), self._until.unit)

    def end(self) -> None:
        """Take no more minibatches."""
        self._ended = True
