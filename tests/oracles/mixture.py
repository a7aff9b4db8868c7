"""Mixtures in plain Python: the source at each place, written from the theorem's windows and not from the C++."""

from __future__ import annotations

from fractions import Fraction

from tests.oracles import order as slow


def schedule(quotas):
    """Return source and rank of each place of a period: among the possible items, the one that is due first."""
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


def places(seed, stages, limits, *, dropping, block, most):
    """Return (source, item) of the first ``most`` places of a mixture.

    Args:
        stages: (start, quotas), ascending, the first at 0. In a stage with dropped sources, the quotas are the other
            sources', which a test chooses so that they need no rounding.
        limits: number of items of each source. None: no limit.
        dropping: whether the mixture goes on without a source that has no more.
        block: places that are shuffled together. 1: none.
    """
    given = [0] * len(limits)
    out = []
    waiting = list(stages)
    quotas, start = None, 0
    while len(out) < most:
        if waiting and waiting[0][0] == len(out):
            quotas = waiting.pop(0)[1]
        gone = [dropping and limit is not None and n >= limit for n, limit in zip(given, limits, strict=True)]
        left = [0 if without else q for q, without in zip(quotas, gone, strict=True)]
        if not any(left):
            break
        start, row = len(out), schedule(left)
        planned, ended, had = [], False, list(given)
        while start + len(planned) < most + block and not (waiting and waiting[0][0] == start + len(planned)):
            k = row[len(planned) % len(row)][0]
            if limits[k] is not None and had[k] >= limits[k]:
                ended = True
                break
            had[k] += 1
            planned.append(k)
        for low in range(0, len(planned), block):
            some = planned[low : low + block]
            order = range(len(some))
            if block > 1:
                key = slow.hash_key([seed, start, 10, low // block])
                order = slow.fisher_yates(key, len(some))
            for i in order:
                out.append((some[i], given[some[i]]))
                given[some[i]] += 1
        if ended and not dropping:
            break
    return out[:most]
