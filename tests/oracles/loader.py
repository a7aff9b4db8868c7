"""Slow, obvious twins of the loader's draws."""

from __future__ import annotations

from tests.oracles.order import M64, G, hash_key, mix64


def weighted(weights, seed, sweep):
    """Return the items of a weighted sweep: for each place, the one whose share of the weights holds the hash."""
    k = hash_key([seed, sweep, 3])
    total = 0.0
    for weight in weights:
        total += weight
    items = []
    for place in range(len(weights)):
        number = (mix64(k + (place + 1) * G & M64) >> 11) * 2.0**-53 * total
        reached = 0.0
        chosen = None
        for item, weight in enumerate(weights):
            reached += weight
            if weight > 0:
                chosen = item
                if number < reached:
                    break
        items.append(chosen)
    return items
