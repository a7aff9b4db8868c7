"""Many tensors as few flat buffers, so that a collective is paid for once a buffer and not once a tensor.

Laid out once: tensors of one device and dtype lie one behind the other, in their order, in buffers of at most 25 MB (a
larger tensor has one of its own). Filling and reading back costs a copy each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

#: Bytes of a buffer: enough to pay for a collective, few enough that copies and transfers overlap.
BYTES = 25 << 20


class Bucket:
    """Several tensors in one flat buffer.

    Attributes:
        places: which of the tensors that were laid out.
        flat: the buffer.
        views: of the buffer, in the tensors' shapes.
    """

    def __init__(self, like: Sequence[Any], places: Sequence[int]) -> None:
        self.places = list(places)
        shapes = [like[i].shape for i in places]
        sizes = [shape.numel() for shape in shapes]
        first = like[places[0]]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [piece.view(shape) for piece, shape in zip(self.flat.split(sizes), shapes, strict=True)]

    def fill(self, tensors: Sequence[Any]) -> Any:
        """Copy ``tensors`` (all that were laid out; None: zeros) to the buffer, and return it."""
        given = [tensors[place] for place in self.places]
        have = [(view, tensor) for view, tensor in zip(self.views, given, strict=True) if tensor is not None]
        lack = [view for view, tensor in zip(self.views, given, strict=True) if tensor is None]
        with torch.no_grad():
            if have:
                torch._foreach_copy_([view for view, _ in have], [tensor for _, tensor in have])
            if lack:
                torch._foreach_zero_(lack)
        return self.flat

    def read(self, tensors: Sequence[Any]) -> None:
        """Copy back to ``tensors``, all that were laid out."""
        with torch.no_grad():
            torch._foreach_copy_([tensors[place] for place in self.places], self.views)


def laid_out(like: Sequence[Any], limit: int = BYTES) -> list[Bucket]:
    """Buckets for tensors of such shapes, dtypes and devices; the same on every rank for the same tensors."""
    open_now: dict[tuple[Any, Any], tuple[list[int], int]] = {}
    closed: list[list[int]] = []
    for place, tensor in enumerate(like):
        kind = (tensor.device, tensor.dtype)
        places, held = open_now.get(kind, ([], 0))
        if places and held + tensor.nbytes > limit:
            closed.append(places)
            places, held = [], 0
        places.append(place)
        open_now[kind] = places, held + tensor.nbytes
    closed += [places for places, _ in open_now.values()]
    return [Bucket(like, places) for places in sorted(closed)]
