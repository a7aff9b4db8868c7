"""Arrays in one buffer, each aligned to 64 bytes, such as the arrays of a message, or codes that are sent together.

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
#: Shape and dtype of an array in a buffer.
Field = tuple[Sequence[int], Any]


class Layout:
    """Offsets of arrays within their buffer.

    Args:
        fields: shape and dtype of each array.

    Attributes:
        size: size of the buffer in bytes.
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

    def views(self, buffer: Any) -> list[Any]:
        """Return the arrays of a buffer (a tensor of uint8) as tensors that share its memory.

        Raises:
            StoreError: the buffer has another size. Also raised by the methods below.
        """
        self._check(buffer)
        return [self._view(buffer, i) for i in range(len(self._fields))]

    def write(self, buffer: Any, sources: Sequence[Sequence[Any]]) -> None:
        """Write the sum of each list of tensors to its array. The buffer is in the processor's memory."""
        self._move(buffer, sources, True)

    def read(self, buffer: Any, targets: Sequence[Sequence[Any]]) -> None:
        """Copy each array to all tensors of a list. The buffer is in the processor's memory."""
        self._move(buffer, targets, False)

    def _check(self, buffer: Any) -> None:
        """Raise StoreError unless the buffer has the size of the layout."""
        if buffer.numel() != self.size or buffer.dtype is not torch.uint8 or not buffer.is_contiguous():
            raise StoreError(f"expected a buffer of {self.size} bytes, got {buffer.numel()} elements of {buffer.dtype}")

    def _view(self, buffer: Any, i: int) -> Any:
        begin, (shape, dtype) = self.begins[i], self._fields[i]
        return buffer[begin : begin + self._counts[i] * dtype.itemsize].view(dtype).view(tuple(shape))

    def _move(self, buffer: Any, tensors: Sequence[Sequence[Any]], write: bool) -> None:
        self._check(buffer)
        if not buffer.is_cpu:
            raise StoreError(f"expected a buffer in the processor's memory, got one on {buffer.device}")
        # Like `merging.run`, but without a tensor for each array, which would be most of the cost of many small ones.
        base, by_torch = buffer.data_ptr(), []
        native: dict[Any, list[tuple[int, list[int], list[int]]]] = {torch.float32: [], torch.float64: []}
        for i, peers in enumerate(tensors):
            dtype = self._fields[i][1]
            if dtype in native and all([t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in peers]):  # noqa: C419
                addresses = [t.data_ptr() for t in peers], [base + self.begins[i]]
                native[dtype].append((self._counts[i], *(addresses if write else addresses[::-1])))
            else:
                view = [self._view(buffer, i)]
                by_torch.append((peers, view) if write else (view, peers))
        for dtype, batch in native.items():
            if batch:
                _native.merge(batch, dtype.itemsize, torch.get_num_threads())
        merging.run(by_torch)
