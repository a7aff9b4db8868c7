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
"""Limit of places in a period of a schedule. Shares without a common denominator up to this limit are rounded to it."""


def ratio(what: str, value: Any) -> Fraction:
    """Return a weight as the exact ratio of its decimal text: 0.1 is one tenth.

    Raises:
        TypeError: the weight is not a number.
        ValueError: the weight is negative, infinite or NaN.
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
    """Return the number of places of each source in a period. Their sum is the length of the period.

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
    exact = [share * LONGEST_PERIOD for share in shares]
    quotas = [max(int(places), int(places > 0)) for places in exact]
    missing = LONGEST_PERIOD - sum(quotas)
    most_missing = sorted(range(len(quotas)), key=lambda k: (quotas[k] - exact[k], k))
    while missing:  # once, unless many sources were lifted to one place
        if missing > 0:
            adjusted = [k for k in most_missing if shares[k] > 0][:missing]
        else:
            adjusted = [k for k in reversed(most_missing) if quotas[k] > 1][:-missing]
        for k in adjusted:
            quotas[k] += 1 if missing > 0 else -1
        missing = LONGEST_PERIOD - sum(quotas)
    return quotas


def by_name(what: str, weights: Any, names: Sequence[str]) -> list[Fraction]:
    """Return the weights of the sources ``names`` from a mapping, 0 for missing names.

    Raises:
        TypeError: the weights are not a mapping from names to numbers.
        ValueError: a name is unknown, a weight out of range, or all are 0.
    """
    if not isinstance(weights, Mapping):
        raise TypeError(f"expected {what} as a mapping from names to numbers, got {shown(weights, 80)}")
    if unknown := [name for name in weights if name not in names]:
        raise ValueError(f"expected {what} for {', '.join(names)}, got one for {unknown[0]!r}")
    ratios = [ratio(f"the weight of {name!r}", weights.get(name, 0)) for name in names]
    if not any(ratios):
        raise ValueError(f"expected {what} of which at least one is above 0, got {shown(dict(weights), 200)}")
    return ratios
