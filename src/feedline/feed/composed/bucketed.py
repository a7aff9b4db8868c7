"""A corpus whose minibatches hold sequences of like length."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from feedline.feed.composed.bucket_boundaries import count_lengths, least_padding
from feedline.feed.composed.bucketed_order import BucketedOrder, Buckets
from feedline.feed.composed.concat import check_part, lengths_of
from feedline.feed.protocol import Capability, Deserializer, Ints, Ordered, chunk_starts, whole_number
from feedline.feed.timeline import Timeline, Window
from feedline.feed.wrapper import Forwarding

_AT_A_TIME = 1 << 20  # sequences whose lengths are looked up together


class Bucketed(Forwarding, Ordered):
    """A corpus whose minibatches hold sequences of like length, so that little of them is padding.

    Within each window of the corpus's order, sequences are put into buckets by length, each bucket is cut into batches,
    and the batches are shuffled. A minibatch ends at the end of a batch. With minibatches of at least ``budget``
    samples, a source delivers one batch at a time, and every rank gets its part. With smaller minibatches, it delivers
    batches in pieces.

    The number of batches of a window depends only on its lengths. So steps, positions and resuming are as exact as for
    any corpus, and restoring reads at most a window. The last batch of a bucket in a window may be smaller, so windows
    should hold many batches.

    Args:
        corpus: corpus that knows lengths before reading, which may be a `Mixture`.
        boundaries: greatest length of each bucket, ascending. Longer sequences are in one more bucket. An int: a number
            of buckets, whose boundaries leave the least padding over the whole corpus.
        budget: samples of a batch whose sequences are padded to the boundary of their bucket. In the bucket above the
            last boundary they are padded to the longest in the window. A sequence longer than ``budget`` is a separate
            batch.
        most: limit of sequences in a batch. None: as many as the budget allows.

    Attributes:
        boundaries: greatest length of each bucket, as a tuple.

    Raises:
        TypeError, ValueError: an argument is of a wrong kind, or out of range.
    """

    batched = True

    def __init__(
        self, corpus: Deserializer, boundaries: Sequence[int] | int, *, budget: int, most: int | None = None
    ) -> None:
        check_part(corpus, type(self).__name__)
        super().__init__(corpus)
        budget = whole_number("budget", budget, 1)
        most = None if most is None else whole_number("most", most, 1)
        if isinstance(boundaries, (str, bytes)):
            raise TypeError(f"expected boundaries as ints, or a number of buckets, got {boundaries!r}")
        if isinstance(boundaries, Sequence):
            bounds = tuple(whole_number("a boundary", boundary, 1) for boundary in boundaries)
            if not bounds or any(a >= b for a, b in pairwise(bounds)) or bounds[-1] >= 2**62:
                raise ValueError(f"expected ascending boundaries below 2**62, got {list(boundaries)}")
        else:
            buckets = whole_number("the number of buckets", boundaries, 1)
            bounds = tuple(least_padding(*count_lengths(self._all_lengths()), buckets)) or (1,)
        self.boundaries: tuple[int, ...] = bounds
        self._buckets = Buckets(bounds, budget, most)

    def capability(self, kind: type[Capability]) -> Capability | None:
        """See `Deserializer.capability`. It has its own order, even if the corpus has none."""
        return self if kind is Ordered else super().capability(kind)  # type: ignore[return-value]

    def digest(self) -> str:
        """Return 32 hex digits over the corpus's digest, the boundaries and the size of batches."""
        settings = [*self._buckets, self._corpus.digest()]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def own_order(self, seed: int, shuffle: bool, window: Window | None, order_of: Callable[..., Timeline]) -> Timeline:
        """Return the corpus's order, in batches. See `Ordered.own_order`."""
        lengths = functools.partial(lengths_of, self._corpus)
        return BucketedOrder(order_of(self._corpus, seed, window), self._buckets, lengths)

    def _all_lengths(self) -> Iterator[Ints]:
        count = int(chunk_starts(self._corpus)[-1])
        for a in range(0, count, _AT_A_TIME):
            yield lengths_of(self._corpus, np.arange(a, min(a + _AT_A_TIME, count)))
