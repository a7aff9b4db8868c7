"""The next items of an iterator that belongs to a user's code."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any


def next_items(iterator: Iterator[Any], n: int | None = None) -> Iterator[Any]:
    """Return the next ``n`` items, or as many as there are. None: all.

    Unlike `islice`, `chain` and a ``for`` loop, this does not call ``iter``: an iterator that is the dataset or the
    sampler itself may start again then.
    """
    return map(next, repeat(iterator) if n is None else repeat(iterator, n))
