"""What documents cost of a row: their samples in each stream, times the cost of a sample.

Costs are whole numbers of a unit, the largest that divides all of them, so that no sum is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from feedline.data import Schema
from feedline.errors import SchemaError
from feedline.feed.composed.weights import ratio
from feedline.feed.protocol import Ints

LONGEST_ROW = 1 << 24
"""Limit of a row, in tokens and in units."""


class DocumentCosts:
    """The costs of the samples of some streams.

    Args:
        row: cost of the documents of a row, at most.
        tokens: name of the stream of tokens.
        cost: cost of a sample by stream, the tokens among them. None: a token costs 1, and there are no other streams.
        schema: streams of the documents.

    Attributes:
        names: the streams, the tokens first.
        row: the same cost of a row in units.
        places: largest number of tokens of a row.

    Raises:
        SchemaError: there is no such stream, or no cost of the tokens.
        TypeError, ValueError: a cost is not a number of at least 0, tokens cost nothing or more than a row, or no unit
            is large enough.
    """

    def __init__(self, row: int, tokens: str, cost: Mapping[str, Any] | None, schema: Schema) -> None:
        if cost is None:
            cost = {tokens: 1}
        if not isinstance(cost, Mapping):
            raise TypeError(f"expected cost of Packed as a mapping from streams to numbers, got {cost!r:.60}")
        for name in (tokens, *cost):
            if name not in schema or name not in cost:
                raise SchemaError(
                    f"expected cost of Packed for `{tokens}` and others of the streams {', '.join(schema)}, got it for "
                    f"{', '.join(cost) or 'none'}"
                )
        self.names = (tokens, *(name for name in schema if name in cost and name != tokens))
        self._costs = {name: ratio(f"the cost of a sample of `{name}`", cost[name]) for name in self.names}
        if not 0 < self._costs[tokens] <= row:
            raise ValueError(f"expected the cost of a token of Packed above 0 and up to row, {row}, got {cost[tokens]}")
        self._scale = math.lcm(*(each.denominator for each in self._costs.values()))
        self.row = row * self._scale
        if self.row > LONGEST_ROW:
            raise ValueError(
                f"expected costs of Packed of which the unit 1/{self._scale} is at least row / {LONGEST_ROW}, got "
                f"{', '.join(map(str, self._costs.values()))} for row={row}; choose fractions with a smaller common "
                "denominator"
            )
        self.places = int(row / self._costs[tokens])
        # More than a row is too much, whatever it is. So no product overflows.
        self._units = {name: min(int(each * self._scale), self.row + 1) for name, each in self._costs.items()}

    def of(self, lengths: Mapping[str, Ints]) -> Ints:
        """Return the cost of documents in units, int64 (n,), by their lengths in each stream. Above that of a row it is
        a lower bound."""
        cost = np.zeros(1, np.int64)
        for name, units in self._units.items():
            cost = cost + units * np.minimum(lengths[name], self.row + 1)
        return cost

    def exact(self, lengths: Mapping[str, Ints], at: int) -> str:
        """Return the cost of document ``at`` as text."""
        cost = sum((each * int(lengths[name][at]) for name, each in self._costs.items()), Fraction(0))
        return f"{float(cost):.12g}"

    def __str__(self) -> str:
        return ", ".join(f"{name}: {each}" for name, each in self._costs.items())
