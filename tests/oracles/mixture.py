"""Mixtures as plain Python: who stands at each place, written from the theorem's windows and not from the C++."""

from __future__ import annotations

from fractions import Fraction


def schedule(quotas):
    """Source and rank of each place of a period: of the items that may stand there, the one that is due first."""
    places, used = sum(quotas), sum(q > 0 for q in quotas)
    delta = Fraction(1, 2 * used - 2) if used > 1 else Fraction(0)
    weights = [Fraction(q, places) for q in quotas]
    given = [0] * len(quotas)
    found = []
    for n in range(places):
        due = []
        for k, weight in enumerate(weights):
            j = given[k]
            if j < quotas[k] and (n + 1) * weight - j >= delta:
                # The first place t with t * weight - j > 1 - delta.
                t = int((j + 1 - delta) / weight) + 1
                due.append((t, k))
        t, k = min(due)
        assert t > n, "a deadline is missed"
        found.append((k, given[k]))
        given[k] += 1
    return found
