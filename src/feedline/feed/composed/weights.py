"""Weights as exact ratios, and as whole numbers of places in a period."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from feedline.errors import shown

LONGEST_PERIOD = 1 << 16
"""Places in a period of a schedule, at most. Shares that have no common denominator up to here are rounded to it."""


def ratio(what: str, value: Any) -> Fraction:
    """Return a weight as the ratio that its decimal text says: 0.1 is one tenth.

    Raises:
        TypeError: it is not a number.
        ValueError: it is negative, infinite or not a number at all.
    """
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, Decimal, str)):
        raise TypeError(f"expected {what} as a number, got {shown(value, 80)}")
    try:
        exact = Fraction(value) if isinstance(value, (str, numbers.Rational, Decimal)) else Fraction(repr(float(value)))
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(f"expected {what} as a finite number of at least 0, got {shown(value, 80)}") from None
    if exact < 0:
        raise ValueError(f"expected {what} of at least 0, got {shown(value, 80)}")
    return exact


def shares_of(weights: Sequence[Fraction]) -> list[Fraction]:
    """Return weights divided by their sum, which must be positive."""
    total = sum(weights, Fraction(0))
    return [weight / total for weight in weights]


def quotas_of(weights: Sequence[Fraction]) -> list[int]:
    """Return how many places each source gets in a period, the sum of all of them.

    They are exactly in proportion if a period of at most `LONGEST_PERIOD` allows it. Otherwise they are rounded by
    largest remainder, ties to the first, with at least one place for every positive weight.

    Raises:
        ValueError: more sources than places.
    """
    shares = shares_of(weights)
    common = math.lcm(*(share.denominator for share in shares))
    if common <= LONGEST_PERIOD:
        return [int(share * common) for share in shares]
    if sum(share > 0 for share in shares) > LONGEST_PERIOD:
        raise ValueError(f"expected at most {LONGEST_PERIOD} sources in a mixture, got {len(shares)}")
    wanted = [share * LONGEST_PERIOD for share in shares]
    quotas = [max(int(want), int(want > 0)) for want in wanted]
    rest = LONGEST_PERIOD - sum(quotas)
    most_missing = sorted(range(len(quotas)), key=lambda k: (quotas[k] - wanted[k], k))
    while rest:  # once, unless many sources were lifted to one place
        if rest > 0:
            chosen = [k for k in most_missing if shares[k] > 0][:rest]
        else:
            chosen = [k for k in reversed(most_missing) if quotas[k] > 1][:-rest]
        for k in chosen:
            quotas[k] += 1 if rest > 0 else -1
        rest = LONGEST_PERIOD - sum(quotas)
    return quotas


def named(what: str, weights: Any, names: Sequence[str]) -> list[Fraction]:
    """Return the weights of the sources ``names``, given as a mapping; 0 for those left out.

    Raises:
        TypeError: it is not a mapping from names to numbers.
        ValueError: a name is unknown, a weight out of range, or all are 0.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"expected {what} as a mapping from names to numbers, got {shown(weights, 80)}")
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(f"expected {what} for {', '.join(names)}, got one for {unknown[0]!r}")
    found = [ratio(f"the weight of {name!r}", weights.get(name, 0)) for name in names]
    if not any(found):
        raise ValueError(f"expected {what} of which at least one is above 0, got {shown(dict(weights), 200)}")
    return found
