"""Sums of gradients by a store, bucket by bucket and without keys. See `feedline.collective.sums`.

A ``dist_sync`` store sums buckets in place. Under compression a tensor is encoded directly into the send buffer, with a
separate residual, and received codes are decoded into the bucket. With any other store,
all tensors are pushed and pulled by key at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from feedline.collective.exchanges import Exchanges
from feedline.collective.flat_buffers import Bucket
from feedline.collective.sums import BucketSums, PlainSums
from feedline.kvstore.aligned import Layout
from feedline.kvstore.base import Key, KVStore
from feedline.kvstore.compression import Channel, Compression
from feedline.kvstore.key_table import Table


class StoreSums(PlainSums):
    """Sums over the workers of a `DistStore`, with the store's compression.

    Without compression, buckets are added up in place. With compression, all workers exchange their codes, and each
    worker decodes and adds them in the order of ranks.

    Args:
        exchanges: exchanges of the workers.
        table: table whose compression is looked up at each use.
        buckets: buckets in the order in which they are sent.

    Raises:
        RefusedError: the compression does not support a tensor's dtype. Also raised later, if the compression is
            changed.
    """

    def __init__(self, exchanges: Exchanges, table: Table, buckets: Sequence[Bucket]) -> None:
        super().__init__(exchanges, buckets)
        self._table = table
        self._compression: Compression | None = None
        self._coded_buckets: list[_CodedBucket] = []
        self._current_compression()

    def _current_compression(self) -> Compression | None:
        """Return the store's compression, and allocate buffers when it has changed."""
        compression = self._table.compression
        if compression is not self._compression:
            self._coded_buckets = [] if compression is None else [_CodedBucket(compression, b) for b in self.buckets]
            self._compression = compression
        return compression

    @property
    def code(self) -> dict[str, Any] | None:
        """See `BucketSums`."""
        compression = self._current_compression()
        return None if compression is None else compression.parameters()

    @property
    def in_place(self) -> bool:
        """See `BucketSums`."""
        return self._current_compression() is None

    def put(self, bucket: int, slot: int, tensor: Any) -> None:
        """See `BucketSums`. Costs a copy, or a pass over the tensor and its residual."""
        compression = self._current_compression()
        if compression is None:
            super().put(bucket, slot, tensor)
        else:
            compression.encode([self._coded_buckets[bucket].channels[slot].job(tensor.detach())])

    def send(self, bucket: int) -> list[Any]:
        """See `BucketSums`."""
        if self._current_compression() is None:
            return super().send(bucket)
        coded = self._coded_buckets[bucket]
        if coded.rows is None:
            coded.rows = [torch.empty_like(coded.codes) for _ in range(self._exchanges.count)]
        return self._exchanges.begin_sharing(coded.codes, coded.rows)

    def finish(self, present: Callable[[int], bool]) -> None:
        """See `BucketSums`. The residual of a tensor that no worker has is unchanged."""
        compression = self._current_compression()
        if compression is None:
            return
        jobs, used = [], []
        for bucket, coded in zip(self.buckets, self._coded_buckets, strict=True):
            assert coded.rows is not None
            arrived = zip(*[coded.layout.views(row) for row in coded.rows], strict=True)
            for i, view, channel, codes in zip(bucket.places, bucket.views, coded.channels, arrived, strict=True):
                if present(i):
                    jobs.append((codes, view))
                    used.append(channel)
        compression.decode_sums(jobs)
        for channel in used:
            channel.commit()

    def residuals(self) -> dict[int, Any]:
        """See `BucketSums`."""
        return {i: channel.residual for i, channel in self._channels() if channel.residual.numel()}

    def set_residuals(self, residuals: Mapping[int, Any]) -> None:
        """See `BucketSums`."""
        for i, channel in self._channels():
            if i in residuals:
                channel.residual.copy_(residuals[i])
            else:
                channel.residual.zero_()

    def _channels(self) -> Iterator[tuple[int, Channel]]:
        if self._current_compression() is not None:
            for bucket, coded in zip(self.buckets, self._coded_buckets, strict=True):
                yield from zip(bucket.places, coded.channels, strict=True)


class _CodedBucket:
    """The codes of a bucket: one buffer, in which each tensor has a slice.

    Attributes:
        codes: buffer of all codes (uint8).
        channels: a `Channel` for each tensor, which encodes into its slice.
        layout: offset of each tensor's codes in such a buffer.
        rows: buffers of all ranks. None before the first `send`.
    """

    def __init__(self, compression: Compression, bucket: Bucket) -> None:
        for i, view in zip(bucket.places, bucket.views, strict=True):
            compression.check(f"tensor {i}", view.dtype)
        self.rows: list[Any] | None = None
        self.layout = Layout([compression.code_shape(view.shape) for view in bucket.views])
        self.codes = torch.zeros(self.layout.size, dtype=torch.uint8, device=bucket.flat.device)
        self.channels = [
            Channel(compression, view.shape, view.dtype, view.device, codes)
            for view, codes in zip(bucket.views, self.layout.views(self.codes), strict=True)
        ]


class PushedSums(BucketSums):
    """Sums by a store that has only keys: one ``pushpull`` of all tensors at the end of the step.

    Args:
        store: store that sums over its workers.
        keys: key of each tensor, by its index in the layout.
        buckets: buckets from which tensors are pushed, and into which sums are pulled.
    """

    def __init__(self, store: KVStore, keys: Sequence[Key], buckets: Sequence[Bucket]) -> None:
        super().__init__(buckets)
        self._store, self._keys = store, list(keys)

    def send(self, bucket: int) -> list[Any]:
        """See `BucketSums`. Nothing is sent before the end."""
        return []

    def finish(self, present: Callable[[int], bool]) -> None:
        """See `BucketSums`."""
        views = {i: view for bucket in self.buckets for i, view in zip(bucket.places, bucket.views, strict=True)}
        used = [i for i in sorted(views) if present(i)]
        self._store.pushpull([self._keys[i] for i in used], [views[i] for i in used])
