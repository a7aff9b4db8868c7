"""Flat buffers for many tensors, so that a collective costs one call per buffer instead of one per tensor.

Tensors of one device and dtype are laid out in buffers of at most 25 MB, in an order that the caller may choose. A
larger tensor gets a buffer for itself. Filling and reading back cost a copy each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

#: Size of a buffer in bytes: large enough to amortize a collective, small enough to overlap copies and transfers.
BUCKET_BYTES = 25 << 20


class Bucket:
    """Several tensors in one flat buffer.

    Attributes:
        places: indices of its tensors in the layout.
        flat: buffer.
        views: views of the buffer in the tensors' shapes.
    """

    def __init__(self, like: Sequence[Any], places: Sequence[int]) -> None:
        self.places = list(places)
        shapes = [like[i].shape for i in places]
        sizes = [shape.numel() for shape in shapes]
        first = like[places[0]]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [piece.view(shape) for piece, shape in zip(self.flat.split(sizes), shapes, strict=True)]

    def fill(self, tensors: Sequence[Any]) -> Any:
        """Copy the tensors of this bucket from ``tensors`` to the buffer, zeros for None, and return the buffer."""
        parts = [tensors[place] for place in self.places]
        present = [(view, tensor) for view, tensor in zip(self.views, parts, strict=True) if tensor is not None]
        absent = [view for view, tensor in zip(self.views, parts, strict=True) if tensor is None]
        with torch.no_grad():
            if present:
                torch._foreach_copy_([view for view, _ in present], [tensor for _, tensor in present])
            if absent:
                torch._foreach_zero_(absent)
        return self.flat

    def read(self, tensors: Sequence[Any]) -> None:
        """Copy the buffer back to the tensors of this bucket in ``tensors``, which are all tensors of the layout."""
        with torch.no_grad():
            torch._foreach_copy_([tensors[place] for place in self.places], self.views)


def lay_out_buckets(
    like: Sequence[Any],
    limit_bytes: int = BUCKET_BYTES,
    order: Sequence[int] | None = None,
    first_bytes: int | None = None,
) -> list[Bucket]:
    """Lay out buckets for tensors with these shapes, dtypes and devices. Deterministic, so equal on every rank.

    Args:
        like: tensors with these shapes, dtypes and devices.
        limit_bytes: largest number of bytes of a bucket.
        order: every index of ``like`` once, in the order of the layout. None means the order of ``like``.
        first_bytes: largest number of bytes of the first bucket, if it differs.
    """
    order = range(len(like)) if order is None else order
    open_buckets: dict[tuple[Any, Any], tuple[list[int], int]] = {}
    complete: list[list[int]] = []
    for place, index in enumerate(order):
        tensor = like[index]
        kind = (tensor.device, tensor.dtype)
        places, size = open_buckets.get(kind, ([], 0))
        if places and size + tensor.nbytes > (limit_bytes if complete or first_bytes is None else first_bytes):
            complete.append(places)
            places, size = [], 0
        places.append(place)
        open_buckets[kind] = places, size + tensor.nbytes
    complete += [places for places, _ in open_buckets.values()]
    # A bucket can be sent when its last tensor is ready.
    key = (lambda places: places[0]) if first_bytes is None else (lambda places: places[-1])
    return [Bucket(like, [order[place] for place in places]) for places in sorted(complete, key=key)]
