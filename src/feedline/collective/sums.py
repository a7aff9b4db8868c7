"""Sums over all ranks of many tensors, bucket by bucket: a bucket is sent as soon as it is full.

Who sums puts each tensor into its place (`BucketSums.put`), or says that this rank has none (`BucketSums.lack`), and
sends each bucket when its places are filled, in the order of the buckets, which is the same on all ranks. The sums are
in the buckets' views when all works have ended and `BucketSums.finish` has returned.

Nothing here sends a frame: an exchange that did (`Exchanges.announce`) has to come first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.buckets import Bucket
from feedline.collective.exchanges import Exchanges


class BucketSums(ABC):
    """See the module. By default tensors stand in their buckets as they are.

    Args:
        buckets: buckets in the order in which they are sent.

    Attributes:
        buckets: see above.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets

    @property
    def in_place(self) -> bool:
        """Whether a view represents its tensor once it was put, so that changes before it is sent take effect."""
        return True

    @property
    def code(self) -> dict[str, Any] | None:
        """Encoding in which tensors are sent, in JSON types; None: unchanged."""
        return None

    def put(self, bucket: int, slot: int, tensor: Any) -> None:
        """Take over a tensor of this rank, for a slot of a bucket. Costs a copy, unless it is in its place already."""
        view = self.buckets[bucket].views[slot]
        if tensor.data_ptr() != view.data_ptr():
            with torch.no_grad():
                view.copy_(tensor)

    def lack(self, bucket: int, slot: int) -> None:
        """Take zeros for a slot of a bucket."""
        self.put(bucket, slot, self.buckets[bucket].views[slot].zero_())

    @abstractmethod
    def send(self, bucket: int) -> list[Any]:
        """Begin to exchange a bucket; returns works in flight."""

    def finish(self, kept: Callable[[int], bool]) -> None:  # noqa: B027  # sums that arrive in place are there
        """Make sums of what has arrived.

        Args:
            kept: whether any rank has had a tensor of this index among those that were laid out.
        """

    def held_back(self) -> dict[int, Any]:
        """Return what this rank has put and not sent yet, by index among those that were laid out; not copied."""
        return {}

    def hold_back(self, held: Mapping[int, Any]) -> None:  # noqa: B027  # nothing is held back in place
        """Let this be what `held_back` returns; nothing is held back of what is not in it."""


class PlainSums(BucketSums):
    """Each bucket is added up in place by an all-reduce.

    Args:
        exchanges: of the ranks.
        buckets: see `BucketSums`.
    """

    def __init__(self, exchanges: Exchanges, buckets: Sequence[Bucket]) -> None:
        super().__init__(buckets)
        self._exchanges = exchanges

    def send(self, bucket: int) -> list[Any]:
        """See `BucketSums`."""
        return [self._exchanges.sum(self.buckets[bucket].flat)]
