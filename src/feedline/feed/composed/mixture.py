"""A mixture of corpora: item n is a pure function of weights, stages, seed and n."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from feedline import _native
from feedline.feed.composed.concat import Concat
from feedline.feed.composed.mixture_order import MixtureOrder, Rules
from feedline.feed.composed.mixture_stages import LAST_PLACE, Declared, check_place
from feedline.feed.composed.weights import by_name, quotas_of, ratio, shares_of
from feedline.feed.protocol import Deserializer, Ordered, verified, whole_number
from feedline.feed.timeline import ChunkTable, Timeline, Window

WHEN_EMPTY = ("repeat", "stop", "drop", "error")
BATCHES = ("mixed", "one source")

# Level of the key of a part's seed. docs/explanation/order.md lists all levels.
PART = 11

Weights = Mapping[str, Any]


class Mixture(Concat, Ordered):
    """Several corpora in proportions that hold at every place.

    Before any place that is a multiple of ``block``, a corpus of weight w (weights are divided by their sum) has
    delivered n * w of the n sequences, up to 1 - 1/(2K - 2) for K corpora: no rule does better. Within blocks the order
    is shuffled, by the source's seed. Each corpus is delivered in its usual order: none of its sequences is repeated
    before all were delivered. The sequence at a place, and the place of a sequence, are computed without reading.

    Weights count sequences. With ``by="samples"`` they count samples, on average over a corpus. Numbers have the value
    of their decimal text. Proportions without a common denominator of at most 65,536 are rounded to it.

    Args:
        corpora: corpora by name, of any formats, with the same streams. They may be mixtures.
        weights: weight by name, at least 0, and 0 for missing names. None: the number of samples of each corpus with
            ``by="samples"``, otherwise its number of sequences.
        stages: ``[(place, weights), ...]``: from that number of sequences of the mixture on, other weights hold.
        temperature: T > 0: weights are raised to the power 1 / T, so that small corpora are delivered more often.
        by: ``"sequences"`` or ``"samples"``.
        batches: ``"mixed"``: a minibatch of any size has every corpus in proportion. ``"one source"``: batches of
            ``batch_size`` sequences are of one corpus each, proportions hold over batches, and minibatches end at the
            ends of batches. Minibatches should have at least as many samples as a batch. The last sequences of a corpus
            that do not fill a batch are not delivered.
        batch_size: sequences of a batch of one source. Stages begin at multiples of it.
        block: sequences that are shuffled together, or batches of one source. 1: no shuffle, so that corpora take turns
            as evenly as possible.
        when_empty: action when a corpus has no more sequences. ``"repeat"``: it begins again, and the mixture has no
            end. ``"stop"``: the mixture ends. ``"drop"``: the mixture goes on without that corpus, until none remains.
            ``"error"``: a DataError.
        max_sweeps: number of sweeps after which a corpus has no more sequences: a number for all, or by name. None: no
            limit. By default 1, or without limit for ``when_empty="repeat"``.
        columns: names of the streams to keep. See `Concat`.

    Attributes:
        names: names of the corpora, in the order of the mapping. `Minibatch.source` holds their numbers.
        shares: share of each corpus in the first stage, after rounding.

    Raises:
        SchemaError: the streams of two corpora differ.
        TypeError, ValueError: an argument is of a wrong kind, or out of range.
    """

    def __init__(
        self,
        corpora: Mapping[str, Deserializer],
        weights: Weights | None = None,
        *,
        stages: Sequence[tuple[int, Weights]] = (),
        temperature: float | None = None,
        by: str = "sequences",
        batches: str = "mixed",
        batch_size: int | None = None,
        block: int = 256,
        when_empty: str = "repeat",
        max_sweeps: int | Mapping[str, int | None] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(corpora, Mapping):
            raise TypeError(f"expected a mapping from names to corpora for Mixture, got {type(corpora).__name__}")
        super().__init__(*corpora.values(), columns=columns)
        self.names = tuple(corpora)
        if bad := [name for name in self.names if not isinstance(name, str) or not name]:
            raise TypeError(f"expected names of corpora as strings, got {bad[0]!r}")
        if by not in ("sequences", "samples"):
            raise ValueError(f'expected by="sequences" or by="samples", got {by!r}')
        if when_empty not in WHEN_EMPTY:
            raise ValueError(f"expected when_empty to be one of {', '.join(map(repr, WHEN_EMPTY))}, got {when_empty!r}")
        if batches not in BATCHES:
            raise ValueError(f"expected batches to be one of {', '.join(map(repr, BATCHES))}, got {batches!r}")
        if (batches == "one source") != (batch_size is not None):
            raise ValueError(f'expected batch_size with batches="one source" only, got {batch_size} with {batches!r}')
        self.batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        self.batched = batch_size is not None
        self.block, self.when_empty = whole_number("block", block, 1), when_empty
        self.name = f"mixture of {', '.join(self.names)}"
        self._tables = [ChunkTable(part.chunks()) for part in self.parts]
        if empty := [name for name, table in zip(self.names, self._tables, strict=True) if not table.total_sequences]:
            raise ValueError(f"expected at least one sequence in every corpus of a mixture, got none in {empty[0]!r}")
        self._temperature = None if temperature is None else float(temperature)
        if self._temperature is not None and not 0 < self._temperature < float("inf"):
            raise ValueError(f"expected a temperature above 0, got {temperature!r}")
        self._by = by
        if weights is None:
            weights = {
                name: table.total_samples if by == "samples" else table.total_sequences
                for name, table in zip(self.names, self._tables, strict=True)
            }
        self.declared = [Declared(0, self._weights(weights))]
        for start, later in stages:
            start = whole_number("the place of a stage", start, 1)
            if not self.declared[-1].start < start <= LAST_PLACE:
                raise ValueError(
                    f"expected stages at ascending places above 0, up to 2**62, got {start} after "
                    f"{self.declared[-1].start}"
                )
            check_place(start, self.batch_size or 1)
            self.declared.append(Declared(start, self._weights(later)))
        self._sweeps = self._limits(max_sweeps)
        self._check_batches()
        self.shares = shares_of([Fraction(quota) for quota in quotas_of(self.declared[0].weights)])

    @staticmethod
    def ramp(
        begin: tuple[int, Weights], end: tuple[int, Weights], *, steps: int = 32
    ) -> list[tuple[int, dict[str, Fraction]]]:
        """Return stages that lead from one mixture to another, for ``stages``.

        Shares change in equal steps at equal distances, in exact arithmetic: after step i of n they are the shares of
        ``begin`` plus i / n of the difference. The last stage begins at the place of ``end`` and has its weights.

        Args:
            begin, end: a place, in sequences of the mixture, and the weights by name at that place.
            steps: number of stages.

        Raises:
            TypeError, ValueError: an argument is of a wrong kind, or out of range.
        """
        (first, before), (last, after) = begin, end
        first, last = whole_number("the beginning of a ramp", first, 0), whole_number("its end", last, 1)
        steps = whole_number("steps", steps, 1)
        if last - first < steps:
            raise ValueError(f"expected a ramp of at least {steps} places, one for each step, got {first} to {last}")
        names = list(dict.fromkeys([*before, *after]))
        a, b = (shares_of(by_name("weights", weights, names)) for weights in (before, after))
        return [
            (
                first + (last - first) * i // steps,
                {name: x + (y - x) * Fraction(i, steps) for name, x, y in zip(names, a, b, strict=True)},
            )
            for i in range(1, steps + 1)
        ]

    # ---- declarations -----------------------------------------------------------------------------

    def _weights(self, weights: Any) -> tuple[Fraction, ...]:
        """Return the weights of sequences for declared weights."""
        parsed = by_name("weights", weights, self.names)
        if self._temperature is not None:
            parsed = [ratio("a weight", f"{float(weight) ** (1 / self._temperature):.12g}") for weight in parsed]
        if self._by == "samples":
            for k, table in enumerate(self._tables):
                if parsed[k] and not table.total_samples:
                    raise ValueError(f'expected samples in {self.names[k]!r} for by="samples", got none')
            parsed = [
                weight * Fraction(table.total_sequences, max(table.total_samples, 1))
                for weight, table in zip(parsed, self._tables, strict=True)
            ]
        return tuple(shares_of(parsed))

    def _limits(self, max_sweeps: Any) -> list[int | None]:
        """Return the limit of sweeps of each corpus."""
        default = None if self.when_empty == "repeat" else 1
        if isinstance(max_sweeps, Mapping):
            if unknown := [name for name in max_sweeps if name not in self.names]:
                raise ValueError(f"expected max_sweeps for {', '.join(self.names)}, got one for {unknown[0]!r}")
            requested = [max_sweeps.get(name, default) for name in self.names]
        else:
            requested = [default if max_sweeps is None else max_sweeps] * len(self.names)
        limits = [None if limit is None else whole_number("max_sweeps", limit, 1) for limit in requested]
        if self.when_empty == "repeat" and any(limit is not None for limit in limits):
            raise ValueError('expected when_empty="stop", "drop" or "error" with max_sweeps, got the endless "repeat"')
        return limits

    def _check_batches(self) -> None:
        for name, table, sweeps in zip(self.names, self._tables, self._sweeps, strict=True):
            if sweeps is not None and self.batch_size and sweeps * table.total_sequences < self.batch_size:
                raise ValueError(
                    f"expected at least {self.batch_size} sequences, a batch, in {sweeps} sweeps of {name!r}, got "
                    f"{sweeps * table.total_sequences}"
                )

    def digest(self) -> str:
        """Return 32 hex digits over the parts and the declaration without stages, which are part of the state."""
        settings = [self.names, self.block, self.batch_size, self.when_empty, self._sweeps, super().digest()]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def verified(self) -> Deserializer:
        """Return this mixture over its parts with all checksums compared. See `Verifiable.verified`."""
        twin = copy.copy(self)
        twin.parts = tuple(verified(part) for part in self.parts)
        return twin

    # ---- order ------------------------------------------------------------------------------------

    def own_order(self, seed: int, shuffle: bool, window: Window | None, order_of: Callable[..., Timeline]) -> Timeline:
        """Return the order of this mixture. See `Ordered.own_order`."""
        shares = _window_shares(self.declared[0].weights)
        parts = [
            order_of(part, _native.hash_key([seed, k, PART]), _part_of(window, share))
            for k, (part, share) in enumerate(zip(self.parts, shares, strict=True))
        ]
        rules = Rules(
            names=self.names,
            max_sweeps=tuple(self._sweeps),
            when_empty=self.when_empty,
            block=self.block,
            batch=self.batch_size,
            shares=tuple(shares),
            parse=self._weights,
        )
        return MixtureOrder(parts, rules, self.declared, seed=seed, shuffle=shuffle, window=window)


def _window_shares(weights: Sequence[Fraction]) -> list[Fraction]:
    """Return each part's share of the window: its weight in the first stage. Later stages do not matter, so that they
    may be declared and changed in the run. Parts of weight 0 count with the smallest positive weight."""
    least = min(weight for weight in weights if weight)
    return shares_of([weight or least for weight in weights])


def _part_of(window: Window | None, share: Fraction) -> Window | None:
    """Return a part's share of a window."""
    if window is None:
        return None
    ((unit, budget),) = window.to_json().items()
    return Window(**{unit: max(1, int(budget * share))})
