"""The placement of arrays on servers, a pure function of keys and shapes, so that workers need not agree on it.

A small key is stored whole on the server that its hash selects. An array of more than `SPLIT_ELEMENTS` elements is
split along its first dimension into one part per server, of equal numbers of rows if possible. The hash selects the
server of the first part. An array with fewer rows than servers is split into single rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from feedline.kvstore.base import Key

#: Largest number of elements that are not split. Splitting adds no messages to a call, so the balance of load decides.
SPLIT_ELEMENTS = 1 << 16


class RowRange(NamedTuple):
    """Rows ``start`` to ``stop`` of an array, on one server. 0 to 1 for a scalar."""

    server: int
    start: int
    stop: int


def parts(key: Key, shape: Sequence[int], servers: int) -> tuple[RowRange, ...]:
    """Return the parts of an array, ascending. They cover each row once, and each server has at most one."""
    first = home(key, servers)
    rows = shape[0] if shape else 1
    if not shape or math.prod(shape) <= SPLIT_ELEMENTS:
        return (RowRange(first, 0, rows),)
    count = min(servers, rows)
    bounds = [rows * i // count for i in range(count + 1)]
    return tuple(RowRange((first + i) % servers, bounds[i], bounds[i + 1]) for i in range(count))


def home(key: Key, servers: int) -> int:
    """Return the server of a key's first part, the same in every process, unlike Python's hash."""
    digest = hashlib.blake2b(f"{type(key).__name__}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % servers
