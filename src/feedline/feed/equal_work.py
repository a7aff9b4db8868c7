"""The work of sequences, and their assignment to ranks by it: functions of a minibatch, the same on every rank."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline import _native

Ints = NDArray[np.int64]

#: Work of sequences, (n,), by their lengths, int64 (n,): in samples, or in the streams that the parameters name.
WorkRule = Callable[..., ArrayLike]

_WORK_BITS = 40


def squares(lengths: Ints, /) -> NDArray[np.float64]:
    """Return the work of attention: the squares of lengths."""
    return np.square(lengths, dtype=np.float64)


def streams_of(rule: WorkRule, streams: Collection[str]) -> tuple[str, ...]:
    """Return the streams whose lengths a rule takes: those that its parameters name. None of them: it takes samples.

    Args:
        rule: rule of work.
        streams: streams of the corpus.

    Raises:
        ValueError: a rule of several lengths has a parameter that is no stream.
    """
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature take samples
        return ()
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    named = tuple(p.name for p in required if p.kind is not p.POSITIONAL_ONLY and p.name in streams)
    if len(named) == len(required):
        return named
    if named or len(required) > 1:
        unknown = next(p.name for p in required if p.name not in named)
        raise ValueError(
            f"expected a balance as a function of one parameter, the number of samples, or of parameters with the "
            f"names of streams ({', '.join(streams) or 'a dataset has none'}), got the parameter `{unknown}` of "
            f"{rule!r}"
        )
    return ()


def work_of(rule: WorkRule, lengths: Ints | Mapping[str, Ints]) -> NDArray[np.float64]:
    """Return the work of sequences, float64 (n,).

    Args:
        rule: rule of work.
        lengths: int64 (n,) in samples, or by the names of the rule's parameters.

    Raises:
        ValueError: the rule does not return a finite number of at least 0 for each length.
    """
    by_name = lengths if isinstance(lengths, Mapping) else {"": lengths}
    work = np.asarray(rule(**by_name) if isinstance(lengths, Mapping) else rule(lengths), np.float64)
    shape = next(iter(by_name.values())).shape
    if work.shape != shape:
        raise ValueError(f"expected work (n,) for n = {shape[0]} lengths from {rule!r}, got shape {work.shape}")
    bad = np.flatnonzero(~(work >= 0) | np.isinf(work))
    if len(bad):
        at = int(bad[0])
        of = ", ".join(f"{name} {each[at]}".strip() for name, each in by_name.items())
        raise ValueError(f"expected finite work of at least 0 from {rule!r}, got {work[at]} for length {of}")
    return work


def assign(work: NDArray[np.float64], count: int, counts: Ints | None = None) -> NDArray[np.int32]:
    """Return the rank of each sequence, int32 (n,): the longest first, each to the rank with the least work.

    Args:
        work: float64 (n,), finite and at least 0.
        count: number of ranks.
        counts: int64 (count,), number of sequences of each rank. None if any numbers will do.
    """
    # Compared as integers of up to 40 bits, so that every machine gets the same sums.
    largest = float(work.max(initial=0.0))
    if (work != np.floor(work)).any() or largest >= 1 << _WORK_BITS:
        work = np.floor(np.ldexp(work, _WORK_BITS - math.frexp(largest)[1]))
    return _native.balance(work.astype(np.int64), count, counts)


def by_position(n: int, count: int) -> Ints:
    """Return the number of sequences of each rank by position, int64 (count,): sequence o belongs to rank
    ``o * count // n``."""
    bounds = -(-np.arange(count + 1, dtype=np.int64) * n // count)
    return np.diff(bounds)
