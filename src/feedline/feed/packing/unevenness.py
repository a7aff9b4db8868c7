"""How uneven the work of ranks is under each balance, computed from the plan of a global minibatch without reading.

All ranks wait for the one with the most work, so the unevenness of a minibatch is the largest work of a rank over the
mean: 1 if all have the same. Cost: about 0.1 ms per 1,000 sequences, and nothing where nobody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.feed.equal_work import squares
from feedline.feed.packing.axis import Axis, Cursor, SegmentSlice
from feedline.feed.packing.balance import Balance
from feedline.feed.packing.whole import Whole
from feedline.feed.protocol import Deserializer, RowsOfDocuments, is_sized

SAMPLES, SQUARES, FUNCTION = BALANCES = ("samples", "squares", "function")

#: By balance, then by measure of work: the largest work of a rank over the mean.
ByBalance = dict[str, dict[str, float]]


class Unevenness:
    """Computes the unevenness of minibatches for each balance that a source could have.

    Args:
        packer: packer of the source.
        corpus: corpus of the source.
        balance: balance of the source, None for "samples".

    Attributes:
        name: name of the source's own balance, one of `BALANCES`.
        is_cheap: whether work follows from lengths that were looked up for the plan. The documents of rows are looked
            up for a balance alone, and lengths of corpora of unknown sizes would be read again.
    """

    def __init__(self, packer: Whole, corpus: Deserializer, balance: Balance | None) -> None:
        self._packer = packer
        is_function = balance is not None and balance.rule is not squares
        self._rules = {SQUARES: Balance(squares, corpus, same_number=False)}
        if balance is not None:
            self._rules[FUNCTION if is_function else SQUARES] = balance
        known = balance is not None or corpus.capability(RowsOfDocuments) is None
        self.is_cheap = known and is_sized(corpus)
        self.name = SAMPLES if balance is None else FUNCTION if is_function else SQUARES

    def of(self, axis: Axis, cursor: Cursor, size: int, count: int) -> ByBalance:
        """Return the figures of the minibatch of ``size`` samples at ``cursor`` for ``count`` ranks."""
        parts = self._packer.plan(axis, cursor, size, 0, 1).parts
        samples = np.concatenate([_samples(part) for part in parts])
        work: dict[str, NDArray[Any]] = {SAMPLES: samples}
        work |= {name: rule.work(parts) for name, rule in self._rules.items()}
        owners: dict[str, NDArray[Any]] = {SAMPLES: _by_place(samples, count)}
        owners |= {name: rule.owners(work[name], count) for name, rule in self._rules.items()}
        return {
            balance: {measure: _uneven(each, owner, count) for measure, each in work.items()}
            for balance, owner in owners.items()
        }


def mean_of(figures: Sequence[ByBalance]) -> ByBalance:
    """Return the mean of each figure over minibatches, which have the same ones. Empty without minibatches."""
    if not figures:
        return {}
    return {
        balance: {measure: float(np.mean([each[balance][measure] for each in figures])) for measure in measures}
        for balance, measures in figures[0].items()
    }


def _samples(part: SegmentSlice) -> NDArray[np.int64]:
    ends = part.segment.ends
    return np.ones(part.b - part.a, np.int64) if ends is None else np.diff(ends[part.a : part.b + 1])


def _by_place(samples: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return the rank of each sequence by its place in the minibatch, see `whole`."""
    ends = np.cumsum(samples)
    owners: NDArray[np.int64] = np.minimum((ends - samples) * count // max(1, int(ends[-1])), count - 1)
    return owners


def _uneven(work: NDArray[Any], owners: NDArray[Any], count: int) -> float:
    loads = np.bincount(owners, weights=work, minlength=count)
    total = float(loads.sum())
    return float(loads.max()) * count / total if total else 1.0
