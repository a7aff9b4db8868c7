"""Which server holds what: a pure function of keys and shapes, so that workers need not agree on it.

A small key lies whole on the server that its hash names. An array of more than `SPLIT` elements is cut along its first
dimension into one part for each server, as equal as rows allow, so that rows are whole; the hash says which server
gets the first part. An array with fewer rows than there are servers is cut into its rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from feedline.kvstore.base import Key

#: Elements from which on an array is split. As a call is one message for each server, this may be small, for balance.
SPLIT = 1 << 16


class RowRange(NamedTuple):
    """Rows of an array on one server: ``start`` to ``stop``; of a whole array without rows, 0 to 1."""

    server: int
    start: int
    stop: int


def parts(key: Key, shape: Sequence[int], servers: int) -> tuple[RowRange, ...]:
    """Where an array lies: rows ascending, each once, a server at most once."""
    first = home(key, servers)
    rows = shape[0] if shape else 1
    if not shape or math.prod(shape) <= SPLIT:
        return (RowRange(first, 0, rows),)
    count = min(servers, rows)
    bounds = [rows * i // count for i in range(count + 1)]
    return tuple(RowRange((first + i) % servers, bounds[i], bounds[i + 1]) for i in range(count))


def home(key: Key, servers: int) -> int:
    """The server of a key; the same in every process, unlike Python's own hash."""
    digest = hashlib.blake2b(f"{type(key).__name__}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % servers
