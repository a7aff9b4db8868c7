"""Sums of dense tensors and copies of each sum, as few passes over memory as there can be.

All jobs of a call whose tensors are contiguous float32 or float64 on the CPU go through one native pass, on as many
threads as torch has; what it leaves is done by torch. Either way values are added from the first to the last.
Nothing is allocated but lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from feedline import _native

#: Tensors to add up, and where the sum goes. Outputs have the inputs' shape; the first one is the store's own.
Job = tuple[Sequence[Any], Sequence[Any]]

_NATIVE = {torch.float32: 4, torch.float64: 8}


def run(jobs: Iterable[Job]) -> None:
    """Do all jobs. An output may be one of the job's inputs, but overlap none in another way (see `overlapping`)."""
    native: dict[int, list[tuple[int, list[int], list[int]]]] = {4: [], 8: []}
    for inputs, outputs in jobs:
        dtype = inputs[0].dtype
        if dtype in _NATIVE and all(
            [t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in (*inputs, *outputs)]  # noqa: C419
        ):
            # A list is built faster than a generator is run.
            addresses = [t.data_ptr() for t in inputs], [t.data_ptr() for t in outputs]
            native[_NATIVE[dtype]].append((inputs[0].numel(), *addresses))
        else:
            _by_torch(inputs, outputs)
    for item_bytes, batch in native.items():
        if batch:
            _native.merge(batch, item_bytes, torch.get_num_threads())


def overlapping(inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether an output shares a part of its memory with an input, without being it."""
    spans = [_span(tensor) for tensor in inputs]
    for output in outputs:
        start, end = _span(output)
        if any(start < last and first < end and (first, last) != (start, end) for first, last in spans):
            return True
    return False


def _span(tensor: Any) -> tuple[int, int]:
    """First address of a tensor's elements, and the one behind its last."""
    start = tensor.data_ptr()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return start, start + (reach if tensor.numel() else 0) * tensor.element_size()


def _by_torch(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    total, *others = outputs
    if len(inputs) > 1:
        own = total.data_ptr()
        # What is stored may have been pushed back by an updater that kept it.
        terms = [t.clone() if t.data_ptr() == own else t for t in inputs[1:]]
        total.copy_(inputs[0])
        for term in terms:
            total.add_(term.to(total.device, non_blocking=True))
    else:
        total.copy_(inputs[0])
    for other in others:
        other.copy_(total)
