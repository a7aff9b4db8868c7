"""Flat buffers for many tensors, so that a collective costs one call per buffer instead of one per tensor.

Tensors of one device and dtype are laid out in a given order, in buffers of at most 25 MB (a larger tensor has a buffer
to itself). Filling and reading back cost a copy each way.
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
        """Copy the bucket's part of ``tensors`` (None: zeros) to the buffer, and return it."""
        parts = [tensors[place] for place in self.places]
        have = [(view, tensor) for view, tensor in zip(self.views, parts, strict=True) if tensor is not None]
        lack = [view for view, tensor in zip(self.views, parts, strict=True) if tensor is None]
        with torch.no_grad():
            if have:
                torch._foreach_copy_([view for view, _ in have], [tensor for _, tensor in have])
            if lack:
                torch._foreach_zero_(lack)
        return self.flat

    def read(self, tensors: Sequence[Any]) -> None:
        """Copy the buffer back to its part of ``tensors`` (all tensors of the layout)."""
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
        like: the tensors.
        limit_bytes: largest number of bytes of a bucket.
        order: every index of ``like`` once, in the order of the layout. None: as they come.
        first_bytes: largest number of bytes of the first bucket, if it differs.
    """
    order = range(len(like)) if order is None else order
    open_now: dict[tuple[Any, Any], tuple[list[int], int]] = {}
    closed: list[list[int]] = []
    for place, index in enumerate(order):
        tensor = like[index]
        kind = (tensor.device, tensor.dtype)
        places, size = open_now.get(kind, ([], 0))
        if places and size + tensor.nbytes > (limit_bytes if closed or first_bytes is None else first_bytes):
            closed.append(places)
            places, size = [], 0
        places.append(place)
        open_now[kind] = places, size + tensor.nbytes
    closed += [places for places, _ in open_now.values()]
    # A bucket can be sent when its last tensor is ready.
    by = (lambda places: places[0]) if first_bytes is None else (lambda places: places[-1])
    return [Bucket(like, [order[place] for place in places]) for places in sorted(closed, key=by)]
