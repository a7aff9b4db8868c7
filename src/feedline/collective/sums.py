"""Sums over all ranks of many tensors, bucket by bucket: a bucket is sent as soon as it is full.

Who sums puts each tensor into its place (`BucketSums.put`), or says that this rank has none (`BucketSums.lack`), and
sends each bucket when its places are filled, in the order of the buckets, which is the same on all ranks. The sums are
in the buckets' views when all works have ended and `BucketSums.finish` has returned.

Nothing here sends a frame: an exchange that did (`Exchanges.announce`) has to come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from feedline.collective.buckets import Bucket
from feedline.collective.exchanges import Exchanges


class BucketSums(Protocol):
    """See the module.

    Attributes:
        buckets: buckets in the order in which they are sent.
        in_place: whether a view represents its tensor once it was put, so that changes before it is sent take effect.
        code: encoding in which tensors are sent, in JSON types; None: unchanged.
    """

    buckets: Sequence[Bucket]

    @property
    def in_place(self) -> bool:
        """See the class."""
        ...

    @property
    def code(self) -> dict[str, Any] | None:
        """See the class."""
        ...

    def put(self, bucket: int, slot: int, tensor: Any) -> None:
        """Take over a tensor of this rank, for a slot of a bucket."""

    def lack(self, bucket: int, slot: int) -> None:
        """Take zeros for a slot of a bucket."""

    def send(self, bucket: int) -> list[Any]:
        """Begin to exchange a bucket; returns works in flight."""

    def finish(self, kept: Callable[[int], bool]) -> None:
        """Make sums of what has arrived.

        Args:
            kept: whether any rank has had a tensor of this index among those that were laid out.
        """

    def held_back(self) -> dict[int, Any]:
        """Return what this rank has put and not sent yet, by index among those that were laid out; not copied."""
        ...

    def hold_back(self, held: Mapping[int, Any]) -> None:
        """Let this be what `held_back` returns; nothing is held back of what is not in it."""


class InPlaceSums:
    """Tensors that stand in their buckets as they are.

    Args:
        buckets: in the order in which they are sent.
    """

    in_place = True
    code: dict[str, Any] | None = None

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets

    def put(self, bucket: int, slot: int, tensor: Any) -> None:
        """See `BucketSums`. Costs a copy, unless the tensor is in its place already."""
        view = self.buckets[bucket].views[slot]
        if tensor.data_ptr() != view.data_ptr():
            with torch.no_grad():
                view.copy_(tensor)

    def lack(self, bucket: int, slot: int) -> None:
        """See `BucketSums`."""
        self.buckets[bucket].views[slot].zero_()

    def held_back(self) -> dict[int, Any]:
        """See `BucketSums`."""
        return {}

    def hold_back(self, held: Mapping[int, Any]) -> None:
        """See `BucketSums`."""


class PlainSums(InPlaceSums):
    """Each bucket is added up in place by an all-reduce.

    Args:
        exchanges: of the ranks.
        buckets: see `InPlaceSums`.
    """

    def __init__(self, exchanges: Exchanges, buckets: Sequence[Bucket]) -> None:
        super().__init__(buckets)
        self._exchanges = exchanges

    def send(self, bucket: int) -> list[Any]:
        """See `BucketSums`."""
        return [self._exchanges.sum(self.buckets[bucket].flat)]

    def finish(self, kept: Callable[[int], bool]) -> None:
        """See `BucketSums`: the sums are there."""
