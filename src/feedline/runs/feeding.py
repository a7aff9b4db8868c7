"""What a feed delivered over a span: sizes of minibatches, padding, lengths of sequences, how well it was mixed.

Sums of whole numbers, so that a run that was killed and went on ends with those of the run that never stopped. Counted
is what this rank got. Cost: about two microseconds a minibatch, as arrays are looked at many at a time; at most
`_AT_ONCE` minibatches' offsets and ids are held until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data import Minibatch

Ints = NDArray[np.int64]
_AT_ONCE, _SEQUENCES_AT_ONCE = 64, 1 << 16


@dataclass(slots=True)
class StreamLengths:
    """Lengths of the sequences of one stream.

    Attributes:
        samples: rows delivered.
        padded: rows that it takes to pad each minibatch to its longest sequence.
        lengths: sequences by length, in powers of two: entry 0 counts those without a sample, entry k those of
            2**(k - 1) to 2**k - 1 samples.
    """

    samples: int = 0
    padded: int = 0
    lengths: list[int] = field(default_factory=list)

    def add(self, samples: int, padded: int, lengths: list[int]) -> None:
        """Sums of another span."""
        self.samples += samples
        self.padded += padded
        self.lengths += [0] * (len(lengths) - len(self.lengths))
        for k, count in enumerate(lengths):
            self.lengths[k] += count


@dataclass(slots=True)
class Fed:
    """The sums.

    Attributes:
        minibatches, sequences, samples: delivered to this rank.
        smallest, largest: samples of the smallest and the largest minibatch; 0 without one.
        pairs: sequences that follow another one in a minibatch.
        neighbours: pairs that follow each other in the corpus, too.
        jumps: distances of pairs in the corpus, summed, in sequences.
        streams: by name.
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
        """In JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fed:
        """Of `to_json`."""
        streams = {
            name: StreamLengths(**{**sums, "lengths": list(sums["lengths"])}) for name, sums in data["streams"].items()
        }
        return cls(**{**data, "streams": streams})


class Feeding:
    """Adds up minibatches; see the module.

    Args:
        fed: sums to go on from; None: nothing.
    """

    __slots__ = ("_fed", "_held", "_ids", "_offsets", "_sizes")

    def __init__(self, fed: Fed | None = None) -> None:
        self._fed = Fed() if fed is None else fed
        self._sizes: list[int] = []
        self._ids: list[Ints] = []
        self._offsets: dict[str, list[Ints | int]] = {}
        self._held = 0

    def add(self, minibatch: Minibatch) -> None:
        """Count one in; an empty part counts as a minibatch of no samples."""
        self._sizes.append(minibatch.num_samples)
        sequences = minibatch.num_sequences
        if sequences:
            self._ids.append(minibatch.ids)
            for name, value in minibatch.values_by_name.items():
                seen = self._offsets.get(name)
                if seen is None:
                    seen = self._offsets[name] = []
                seen.append(sequences if value.one_sample_each else value.offsets)
            self._held += sequences
        if len(self._sizes) >= _AT_ONCE or self._held >= _SEQUENCES_AT_ONCE:
            self._settle()

    def fed(self) -> Fed:
        """The sums so far."""
        self._settle()
        return self._fed

    def _settle(self) -> None:
        if not self._sizes:
            return
        fed = self._fed
        fed.smallest = min(self._sizes) if fed.minibatches == 0 else min(fed.smallest, *self._sizes)
        fed.largest = max(fed.largest, *self._sizes)
        fed.minibatches += len(self._sizes)
        fed.samples += sum(self._sizes)
        fed.sequences += self._held
        if self._ids:
            self._mixing()
        for name, seen in self._offsets.items():
            self._lengths(fed.streams.setdefault(name, StreamLengths()), seen)
        self._sizes, self._ids, self._offsets, self._held = [], [], {}, 0

    def _mixing(self) -> None:
        """Pairs within a minibatch: those across its border would depend on how the run is cut."""
        ids = np.concatenate(self._ids)
        steps = np.diff(ids)
        borders = np.cumsum([len(part) for part in self._ids])[:-1] - 1
        steps[borders] = 0
        self._fed.pairs += len(ids) - len(self._ids)
        self._fed.neighbours += int(np.count_nonzero(steps == 1))
        self._fed.jumps += int(np.abs(steps).sum())

    @staticmethod
    def _lengths(into: StreamLengths, seen: list[Ints | int]) -> None:
        single = sum(part for part in seen if isinstance(part, int))
        if single:
            into.add(single, single, [0, single])
        offsets = [part for part in seen if not isinstance(part, int)]
        if not offsets:
            return
        # One difference over all of them; what it makes of the borders between two minibatches is set to 0.
        counts = np.array([len(part) for part in offsets])
        lengths = np.diff(np.concatenate(offsets))
        lengths[np.cumsum(counts)[:-1] - 1] = 0
        longest = np.maximum.reduceat(lengths, np.concatenate([[0], np.cumsum(counts)[:-1]]))
        histogram = np.bincount(np.frexp(lengths)[1])
        histogram[0] -= len(offsets) - 1
        into.add(int(lengths.sum()), int((longest * (counts - 1)).sum()), histogram.tolist())
