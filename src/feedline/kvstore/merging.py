"""Sums of dense tensors and copies of each sum, as few passes over memory as there can be.

All jobs of a call whose tensors are contiguous float32 or float64 on the CPU go through one native pass, on as many
threads as torch has; what it leaves is done by torch. Either way values are added from the first to the last.
Nothing is allocated but lists. Where torch gives DLPack's C functions (since 2.10), the native side looks at tensors
itself, at a tenth of what that costs from Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from feedline import _native
from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key

#: Tensors to add up, and where the sum goes. Outputs have the inputs' shape; the first one is the store's own.
Job = tuple[Sequence[Any], Sequence[Any]]

_NATIVE = {torch.float32: 4, torch.float64: 8}
_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def check_sum(key: Key, dtype: Any) -> None:
    """Raise RefusedError for a dtype of which torch adds up no values (8 bits of float, most unsigned integers)."""
    if dtype not in _NATIVE and not _adds(dtype):
        raise RefusedError(f"expected one value for key {key!r}, as torch cannot add up {dtype}, got several")


@cache
def _adds(dtype: Any) -> bool:
    try:
        torch.zeros(1, dtype=dtype).add_(torch.zeros(1, dtype=dtype))
    except RuntimeError:  # NotImplementedError is one
        return False
    return True


def run(jobs: Iterable[Job]) -> None:
    """Do all jobs. Outputs may lie across inputs, but for a job's first one."""
    if _EXCHANGE:
        jobs = _native.merge_tensors(torch.Tensor, list(jobs), torch.get_num_threads())
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


def all_like(groups: Iterable[tuple[Any, Sequence[Any]]], dtypes: bool) -> bool:
    """Whether all tensors are plain and fit, group by group; False also where that cannot be told cheaply.

    Args:
        groups: what tensors should be like, and they; their shapes count.
        dtypes: whether their dtypes count, too.
    """
    return _EXCHANGE and _native.all_like(torch.Tensor, list(groups), dtypes)


def _by_torch(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    total, others = inputs[0], outputs
    if len(inputs) > 1:
        total, *others = outputs
        own = total.data_ptr()
        # What is stored may have been pushed back by an updater that kept it.
        terms = [t.clone() if t.data_ptr() == own else t for t in inputs[1:]]
        total.copy_(inputs[0])
        for term in terms:
            total.add_(term.to(total.device, non_blocking=True))
    for other in others:
        other.copy_(total)
