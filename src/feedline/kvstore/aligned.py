"""Arrays in one run of bytes, each aligned to 64 bytes, such as the arrays of a message, or codes sent together.

Order, shapes and dtypes determine the offset of each array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from feedline import _native
from feedline.errors import StoreError
from feedline.kvstore import merging

ALIGNMENT = 64
#: Shape and dtype of an array in a run.
Field = tuple[Sequence[int], Any]


class Layout:
    """Offsets of arrays within their run.

    Args:
        fields: shape and dtype of each array.

    Attributes:
        size: size of the run in bytes.
        begins: offset of each array in bytes.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self.begins: list[int] = []
        self._fields = fields
        self._counts = [math.prod(shape) for shape, _ in fields]
        end = 0
        for count, (_, dtype) in zip(self._counts, fields, strict=True):
            self.begins.append(end)
            end += -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.size = end

    def views(self, run: Any) -> list[Any]:
        """Return the arrays of a run (a tensor of uint8) as tensors that share its memory.

        Raises:
            StoreError: the run has another size. Also raised by the methods below.
        """
        self._check(run)
        return [self._view(run, i) for i in range(len(self._fields))]

    def write(self, run: Any, sources: Sequence[Sequence[Any]]) -> None:
        """Write the sum of each list of tensors to its array. The run is in the processor's memory."""
        self._move(run, sources, True)

    def read(self, run: Any, targets: Sequence[Sequence[Any]]) -> None:
        """Copy each array to all tensors of a list. The run is in the processor's memory."""
        self._move(run, targets, False)

    def _check(self, run: Any) -> None:
        """Raise StoreError unless the run has the size of the layout."""
        if run.numel() != self.size or run.dtype is not torch.uint8 or not run.is_contiguous():
            raise StoreError(f"expected a run of {self.size} bytes, got {run.numel()} elements of {run.dtype}")

    def _view(self, run: Any, i: int) -> Any:
        begin, (shape, dtype) = self.begins[i], self._fields[i]
        return run[begin : begin + self._counts[i] * dtype.itemsize].view(dtype).view(tuple(shape))

    def _move(self, run: Any, tensors: Sequence[Sequence[Any]], write: bool) -> None:
        self._check(run)
        if not run.is_cpu:
            raise StoreError(f"expected a run in the processor's memory, got one on {run.device}")
        # As `merging.run`, but without a tensor for each array, which would be most of the cost of many small ones.
        base, by_torch = run.data_ptr(), []
        native: dict[Any, list[tuple[int, list[int], list[int]]]] = {torch.float32: [], torch.float64: []}
        for i, peers in enumerate(tensors):
            dtype = self._fields[i][1]
            if dtype in native and all([t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in peers]):  # noqa: C419
                theirs, ours = [t.data_ptr() for t in peers], [base + self.begins[i]]
                native[dtype].append((self._counts[i], theirs, ours) if write else (self._counts[i], ours, theirs))
            else:
                place = [self._view(run, i)]
                by_torch.append((peers, place) if write else (place, peers))
        for dtype, batch in native.items():
            if batch:
                _native.merge(batch, dtype.itemsize, torch.get_num_threads())
        merging.run(by_torch)
