"""Batches of like length as plain Python, written from docs/explanation/order.md and not from the code."""

from __future__ import annotations

from feedline import _native
from tests.oracles import order as slow


def batches(lengths, boundaries, budget, most, key):
    """Return places of a window, batch by batch, for ``lengths`` in its order. Without shuffle ``key`` is None."""
    of = [sum(n > boundary for boundary in boundaries) for n in lengths]
    found = []
    for bucket in range(len(boundaries) + 1):
        members = [place for place, b in enumerate(of) if b == bucket]
        if not members:
            continue
        padded = boundaries[bucket] if bucket < len(boundaries) else max(lengths)
        size = max(1, min(budget // padded, most or budget))
        found += [members[a : a + size] for a in range(0, len(members), size)]
    if key is None:
        return sorted(found)
    return [found[i] for i in slow.fisher_yates(key, len(found))]


def key_of(seed, sweep, window):
    """The key of the batches of a window."""
    return _native.hash_key([seed, sweep, 13, window])
