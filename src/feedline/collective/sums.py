"""Sums over all ranks of many tensors, bucket by bucket: a bucket is sent as soon as it is full.

The caller puts each tensor into its place (`BucketSums.put`), or fills the place with zeros (`BucketSums.put_zeros`),
and sends each bucket when its places are filled, in the order of the buckets, which is the same on all ranks. The sums
are in the buckets' views when all works have ended and `BucketSums.finish` has returned.

This module sends no frame: an exchange with one (`Exchanges.announce`) has to come first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.exchanges import Exchanges
from feedline.collective.flat_buffers import Bucket


class BucketSums(ABC):
    """Sums of tensors in buckets. See the module. By default buckets contain the tensors unchanged.

    Args:
        buckets: buckets in the order in which they are sent.

    Attributes:
        buckets: buckets in the order in which they are sent.
    """

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets

    @property
    def in_place(self) -> bool:
        """Whether a view represents its tensor once it was put, so that changes before sending take effect."""
        return True

    @property
    def code(self) -> dict[str, Any] | None:
        """Encoding in which tensors are sent, in JSON types. None means that they are sent unchanged."""
        return None

    def put(self, bucket: int, slot: int, tensor: Any) -> None:
        """Put a tensor of this rank into a slot of a bucket. Costs a copy, unless it is in the slot already."""
        view = self.buckets[bucket].views[slot]
        if tensor.data_ptr() != view.data_ptr():
            with torch.no_grad():
                view.copy_(tensor)

    def put_zeros(self, bucket: int, slot: int) -> None:
        """Put zeros into a slot of a bucket."""
        self.put(bucket, slot, self.buckets[bucket].views[slot].zero_())

    @abstractmethod
    def send(self, bucket: int) -> list[Any]:
        """Begin to exchange a bucket. Return works in flight."""

    def finish(self, present: Callable[[int], bool]) -> None:  # noqa: B027  # sums in place are complete
        """Compute the sums from the data that has arrived.

        Args:
            present: function that returns whether any rank has put the tensor with this index in the layout.
        """

    def residuals(self) -> dict[int, Any]:
        """Return the parts of tensors put but not sent yet, by index in the layout, not copied."""
        return {}

    def set_residuals(self, residuals: Mapping[int, Any]) -> None:  # noqa: B027  # sums in place have no residuals
        """Restore the result of `residuals`. Tensors that it lacks have no residual."""


class PlainSums(BucketSums):
    """Sums that an all-reduce of each bucket makes in place.

    Args:
        exchanges: exchanges of the ranks.
        buckets: see `BucketSums`.
    """

    def __init__(self, exchanges: Exchanges, buckets: Sequence[Bucket]) -> None:
        super().__init__(buckets)
        self._exchanges = exchanges

    def send(self, bucket: int) -> list[Any]:
        """See `BucketSums`."""
        return [self._exchanges.sum(self.buckets[bucket].flat)]
