"""Statistics of a feed over a span: sizes of minibatches, padding, lengths of sequences, and how well they are mixed.

The statistics are sums of integers, so that a run that was killed and resumed ends with the sums of an uninterrupted
run. They count the minibatches of this rank. Cost: about two microseconds a minibatch, as arrays are processed in
batches. Offsets and ids of up to `_AT_ONCE` minibatches are kept until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Minibatch
from feedline.runs.fields import anything, several, table, whole

Ints = NDArray[np.int64]
_AT_ONCE, _SEQUENCES_AT_ONCE = 64, 1 << 16


@dataclass(slots=True)
class StreamLengths:
    """Lengths of the sequences of one stream.

    Attributes:
        samples: rows delivered.
        padded: rows after padding each minibatch to its longest sequence.
        lengths: sequences by length, in powers of two: entry 0 counts sequences without a sample, entry k sequences of
            2**(k - 1) to 2**k - 1 samples.
    """

    samples: int = 0
    padded: int = 0
    lengths: list[int] = field(default_factory=list)

    def add(self, samples: int, padded: int, lengths: list[int]) -> None:
        """Add the sums of another span."""
        self.samples += samples
        self.padded += padded
        self.lengths = [a + b for a, b in zip_longest(self.lengths, lengths, fillvalue=0)]


@dataclass(slots=True)
class Fed:
    """Sums over minibatches.

    Attributes:
        minibatches, sequences, samples: counts delivered to this rank.
        smallest, largest: samples of the smallest and the largest minibatch, 0 if there is none.
        pairs: number of pairs of consecutive sequences in a minibatch.
        neighbours: number of pairs that are also consecutive in the corpus.
        jumps: sum of the distances of pairs in the corpus, in sequences.
        streams: lengths by stream.
    """

    minibatches: int = 0
    sequences: int = 0
    samples: int = 0
    smallest: int = 0
    largest: int = 0
    pairs: int = 0
    neighbours: int = 0
    jumps: int = 0
    streams: dict[str, StreamLengths] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the sums in JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fed:
        """Restore the result of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: the data has another form.
        """
        fields = table(anything, data, "fed")
        streams = table(_lengths, fields.pop("streams"), "fed.streams")
        return cls(**table(whole, fields, "fed"), streams=streams)


def _lengths(data: Any, name: str) -> StreamLengths:
    fields = table(anything, data, name)
    lengths = several(whole, fields.pop("lengths"), f"{name}.lengths")
    if len(lengths) > 64:
        raise ValueError(f"{name}.lengths: expected at most 64 entries, got {len(lengths)}")
    return StreamLengths(**table(whole, fields, name), lengths=lengths)


class Feeding:
    """Sums up the minibatches of a feed. See the module.

    Args:
        fed: sums to start from. None means zeros.
    """

    __slots__ = ("_fed", "_ids", "_offsets", "_sizes", "pending_sequences")

    def __init__(self, fed: Fed | None = None) -> None:
        self._fed = Fed() if fed is None else fed
        self._sizes: list[int] = []
        self._ids: list[Ints] = []
        self._offsets: dict[str, list[Ints | int]] = {}
        self.pending_sequences = 0

    def add(self, minibatch: Minibatch) -> None:
        """Count a minibatch. An empty part counts as a minibatch without samples."""
        self._sizes.append(minibatch.num_samples)
        sequences = minibatch.num_sequences
        if sequences:
            self._ids.append(minibatch.ids)
            for name, value in minibatch.values_by_name.items():
                parts = self._offsets.get(name)
                if parts is None:
                    parts = self._offsets[name] = []
                parts.append(sequences if value.one_sample_each else value.offsets)
            self.pending_sequences += sequences
        if len(self._sizes) >= _AT_ONCE or self.pending_sequences >= _SEQUENCES_AT_ONCE:
            self._add_pending()

    def fed(self) -> Fed:
        """Return the sums so far."""
        self._add_pending()
        return self._fed

    def _add_pending(self) -> None:
        if not self._sizes:
            return
        fed = self._fed
        fed.smallest = min(self._sizes) if fed.minibatches == 0 else min(fed.smallest, *self._sizes)
        fed.largest = max(fed.largest, *self._sizes)
        fed.minibatches += len(self._sizes)
        fed.samples += sum(self._sizes)
        fed.sequences += self.pending_sequences
        if self._ids:
            self._count_pairs()
        for name, parts in self._offsets.items():
            self._lengths(fed.streams.setdefault(name, StreamLengths()), parts)
        self._sizes, self._ids, self._offsets, self.pending_sequences = [], [], {}, 0

    def _count_pairs(self) -> None:
        """Count pairs within minibatches. Pairs across their borders would depend on the places of interruptions."""
        ids = np.concatenate(self._ids)
        steps = np.diff(ids)
        borders = np.cumsum([len(part) for part in self._ids])[:-1] - 1
        steps[borders] = 0
        self._fed.pairs += len(ids) - len(self._ids)
        self._fed.neighbours += int(np.count_nonzero(steps == 1))
        self._fed.jumps += int(np.abs(steps).sum())

    @staticmethod
    def _lengths(into: StreamLengths, parts: list[Ints | int]) -> None:
        single = sum(part for part in parts if isinstance(part, int))
        if single:
            into.add(single, single, [0, single])
        offsets = [part for part in parts if not isinstance(part, int)]
        if not offsets:
            return
        # One difference over all offsets. Differences across minibatch borders are set to 0.
        counts = np.array([len(part) for part in offsets])
        lengths = np.diff(np.concatenate(offsets))
        lengths[np.cumsum(counts)[:-1] - 1] = 0
        longest = np.maximum.reduceat(lengths, np.concatenate([[0], np.cumsum(counts)[:-1]]))
        histogram = np.bincount(np.frexp(lengths)[1])
        histogram[0] -= len(offsets) - 1
        into.add(int(lengths.sum()), int((longest * (counts - 1)).sum()), histogram.tolist())
