"""Sums of dense tensors, and copies of each sum, in as few passes over memory as possible.

All jobs of a call whose tensors are contiguous float32 or float64 on the CPU share one native pass, on as many threads
as torch uses. Torch does the other jobs. In both cases values are added from the first to the last. Only lists are
allocated. Where torch has DLPack's C exchange API (since 2.10), native code inspects tensors itself, at a tenth of the
cost of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from feedline import _native
from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key

#: Tensors to sum, and outputs for the sum. Outputs have the inputs' shape, and the store owns the first one.
Job = tuple[Sequence[Any], Sequence[Any]]

_NATIVE = {torch.float32: 4, torch.float64: 8}
_EXCHANGE = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def check_sum(key: Key, dtype: Any) -> None:
    """Raise RefusedError for a dtype that torch cannot add (8-bit floats, most unsigned integers)."""
    if dtype not in _NATIVE and not _adds(dtype):
        raise RefusedError(f"expected one value for key {key!r}, as torch cannot sum {dtype}, got several")


@cache
def _adds(dtype: Any) -> bool:
    try:
        torch.zeros(1, dtype=dtype).add_(torch.zeros(1, dtype=dtype))
    except RuntimeError:  # which includes NotImplementedError
        return False
    return True


def run(jobs: Iterable[Job]) -> None:
    """Run all jobs. Outputs may overlap inputs, except for each job's first output."""
    if _EXCHANGE:
        jobs = _native.merge_tensors(torch.Tensor, list(jobs), torch.get_num_threads())
    native: dict[int, list[tuple[int, list[int], list[int]]]] = {4: [], 8: []}
    for inputs, outputs in jobs:
        dtype = inputs[0].dtype
        if dtype in _NATIVE and all(
            [t.dtype is dtype and t.is_cpu and t.is_contiguous() for t in (*inputs, *outputs)]  # noqa: C419
        ):
            # Building a list is faster than running a generator.
            addresses = [t.data_ptr() for t in inputs], [t.data_ptr() for t in outputs]
            native[_NATIVE[dtype]].append((inputs[0].numel(), *addresses))
        else:
            _by_torch(inputs, outputs)
    for item_bytes, batch in native.items():
        if batch:
            _native.merge(batch, item_bytes, torch.get_num_threads())


def all_like(groups: Iterable[tuple[Any, Sequence[Any]]], dtypes: bool) -> bool:
    """Return whether all tensors are plain and of the expected shapes. False, too, if native code cannot inspect them.

    Args:
        groups: a tensor of the expected shape and dtype, and the tensors to compare.
        dtypes: whether dtypes are compared as well.
    """
    return _EXCHANGE and _native.all_like(torch.Tensor, list(groups), dtypes)


def _by_torch(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    total, copies = inputs[0], outputs
    if len(inputs) > 1:
        total, *copies = outputs
        memory = total.data_ptr()
        # A value may be the stored array itself, kept by an updater.
        terms = [t.clone() if t.data_ptr() == memory else t for t in inputs[1:]]
        total.copy_(inputs[0])
        for term in terms:
            total.add_(term.to(total.device, non_blocking=True))
    for copy in copies:
        copy.copy_(total)
