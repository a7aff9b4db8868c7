"""Arguments that belong together, as values, and errors for the arguments that they replaced.

The values describe settings and hold no running state, so that one of them may be passed to several sources.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from numpy.typing import ArrayLike

from feedline.feed.protocol import whole_number

DEADLINE_S = 300.0
"""Seconds after which bytes that an object store does not deliver are an error, by default."""

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


@dataclass(frozen=True)
class Quarantine:
    """Skip unreadable sequences or items, and list them: an ``on_error`` of sources and loaders.

    Args:
        path: JSON Lines file with a line for each. None: ``quarantine-rank<i>.jsonl`` in the working directory. The
            file is created when the first one is skipped.
        limit: number of sequences skipped by this rank after which to raise. None: no limit.

    Raises:
        TypeError, ValueError: ``limit`` is no int of at least 0.
    """

    path: str | os.PathLike[str] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_int(self, "limit", 0)


@dataclass(frozen=True)
class Arcs:
    """An order of equal parts (arcs) of a sweep that take turns: an ``order`` of `MinibatchSource`.

    Each of at most ``count`` ranks reads only its own arcs, and all together read the data about once.
    Each arc has an equal share of the window. See docs/explanation/order.md.

    Args:
        count: number of arcs. 64 suits most jobs.
        version: 1 or 2, to continue from states that name ``"arcs-1"`` or ``"arcs-2"``. None: the current best.

    Raises:
        TypeError, ValueError: ``count`` is no int of at least 1, or there is no such version.
    """

    count: int
    version: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole_number("count", self.count, 1))
        if self.version not in (None, 1, 2):
            raise ValueError(f"expected version 1, 2 or None, got {self.version!r}")


@dataclass(frozen=True, eq=False)
class Weighted:
    """Draw items at random by weight, with replacement: a ``sampler`` of `DataLoader`.

    A sweep draws as many items as there are.

    Args:
        weights: (items,), relative weights of at least 0.
    """

    weights: ArrayLike


@dataclass(frozen=True, eq=False)
class BatchByLength:
    """Limit batches by their samples, for items of varying length: a ``batch_sampler`` of `DataLoader`.

    Items keep the order of ``shuffle``, ``seed`` and ``sampler``. An item that is longer than a batch is delivered
    alone. Every array of an item with at least one dimension is a sequence along its first. A batch ends with the
    lengths, int64 (items,), or has them under the key ``"lengths"``.

    Args:
        samples: maximum number of samples in a batch of this rank, in place of ``batch_size``. None, for a corpus or
            with a balance of `Partition`: batches keep their size.
        lengths: (items,), number of samples of each item. None for a corpus, which knows them.
        layout: sequences in a batch are ``"padded"`` with zeros, (items, longest, ...), or ``"packed"``,
            (samples, ...).

    Raises:
        TypeError, ValueError: ``samples`` is no int of at least 1, or there is no such layout.
    """

    samples: int | None = None
    lengths: ArrayLike | None = None
    layout: str = "padded"

    def __post_init__(self) -> None:
        _check_int(self, "samples", 1)
        if self.layout not in ("padded", "packed"):
            raise ValueError(f'expected layout to be "padded" or "packed", got {self.layout!r}')


@dataclass(frozen=True)
class Remote:
    """How to reach object stores: the ``remote`` of `open_corpus` and `convert`.

    Args:
        cache: folder that keeps parts of objects. None: ``objects`` in the user's cache folder. See
            docs/how-to/object-stores.md.
        cache_bytes: maximum number of bytes that it keeps, at least 64 MiB, which is checked at opening.
            None: 16 GiB.
        storage_options: options for obstore or fsspec, such as credentials.
        deadline_s: seconds after which bytes that a store does not deliver, or take, are an error.

    Raises:
        TypeError, ValueError: ``cache_bytes`` is no int of at least 1, or ``deadline_s`` not above 0.
    """

    cache: str | os.PathLike[str] | None = None
    cache_bytes: int | None = None
    storage_options: Mapping[str, Any] | None = None
    deadline_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        _check_int(self, "cache_bytes", 1)
        if not self.deadline_s > 0:
            raise ValueError(f"expected deadline_s above 0, got {self.deadline_s!r}")


def quarantine_of(on_error: Any) -> Quarantine | None:
    """Return how unreadable sequences are skipped, or None if they are errors.

    Raises:
        ValueError: ``on_error`` is something else.
    """
    if isinstance(on_error, Quarantine):
        return on_error
    if on_error not in ("raise", "skip"):
        raise ValueError(f'expected on_error to be "raise", "skip" or an fl.Quarantine, got {on_error!r}')
    return None if on_error == "raise" else Quarantine()


def refuse_replaced(
    **instead: str,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Decorate a function so that its error for an argument that was removed names the replacement.

    Args:
        instead: replacement by name of the argument.
    """

    def decorated(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(function)
        def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            for name in kwargs.keys() & instead.keys():
                raise TypeError(f"{name}= has been replaced; write {instead[name]}")
            return function(*args, **kwargs)

        return checked

    return decorated


def _check_int(value: Any, name: str, least: int) -> None:
    number = getattr(value, name)
    if number is not None:
        object.__setattr__(value, name, whole_number(name, number, least))
