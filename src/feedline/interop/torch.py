"""Values as torch tensors, sharing memory on the CPU if the layout allows.

A new tensor over NumPy memory costs about a microsecond. Only this module of the feed imports torch.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from typing import Any

import numpy as np

from feedline.data.value import BytesValue, DenseValue, SparseValue, Value
from feedline.errors import install_line

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"torch is not installed; run: {install_line('torch')}") from error

LAYOUTS = ("padded", "packed", "nested", "csr")
# Layouts in which dense sequences of one sample each are their rows.
_AS_ROWS = (None, "padded", "packed")


def export(value: Value, device: Any = None, layout: str | None = None, pin_memory: bool = False) -> Any:
    """See `Value.torch`."""
    if device is None and layout in _AS_ROWS and not pin_memory and type(value) is DenseValue and value.one_sample_each:
        return share(value.rows)  # the most frequent call for small minibatches
    if isinstance(value, BytesValue):
        return _strings(value, device, layout or "list", pin_memory)
    return _export(value, device, layout or ("csr" if value.is_sparse else "padded"), pin_memory)


def _strings(value: BytesValue, device: Any, layout: str, pin_memory: bool) -> Any:
    if layout == "list":
        joined = _export(Value.from_dense(value.data), device, "packed", pin_memory)
        samples = list(joined.split(value.sizes.tolist()))
        if value.one_sample_each:
            return samples
        return [samples[a:b] for a, b in itertools.pairwise(value.offsets.tolist())]
    if layout == "nested":
        if not value.one_sample_each:
            raise ValueError("expected one byte string per sequence in a nested tensor, got several; use layout='list'")
        return _export(DenseValue(value.data, value.bounds), device, layout, pin_memory)
    if layout == "csr":
        raise ValueError("expected numbers for layout='csr', got byte strings; use 'list', 'padded' or 'nested'")
    return _export(value, device, layout, pin_memory)


def _export(value: Value, device: Any, layout: str, pin_memory: bool) -> torch.Tensor:
    if layout == "padded":
        tensor = share(value.padded())
    elif layout == "packed":
        tensor = share(value.dense().rows)
    elif layout == "nested":
        tensor = torch.nested.nested_tensor_from_jagged(share(value.dense().rows), share(value.offsets))
    elif layout == "csr":
        tensor = _csr(value)
    else:
        hint = ", or 'list' for byte strings" if layout == "list" else ""
        raise ValueError(f"expected layout to be one of {', '.join(map(repr, LAYOUTS))}{hint}, got {layout!r}")
    if pin_memory:
        if not torch.accelerator.is_available():
            raise RuntimeError("expected an accelerator to pin memory for, but torch finds none; leave out pin_memory")
        tensor = tensor.pin_memory()
    return tensor if device is None else tensor.to(device, non_blocking=pin_memory)


def share(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor over the memory of an array, or over a copy if torch could not use it."""
    # torch warns about read-only memory, as it cannot mark tensors read-only. A mapped file must never be written
    # through a tensor. Nor does it support other byte orders or negative strides.
    flags = array.flags
    ascending = flags.c_contiguous or min(array.strides, default=0) >= 0
    if not flags.writeable or not array.dtype.isnative or not ascending:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


@functools.cache
def _silence_csr() -> None:
    """Provoke torch's warning that CSR tensors are in beta, which comes once per process, and suppress it. Users of
    sparse streams can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.eye(1).to_sparse_csr()


def _csr(value: Value) -> torch.Tensor:
    _silence_csr()
    if isinstance(value, SparseValue):
        # check_invariants off: torch would reject indices in the order of the data, although its kernels sum duplicates
        # and none needs sorted columns.
        return torch.sparse_csr_tensor(
            share(value.indptr),
            share(value.checked_indices().astype(np.int64)),
            share(value.values),
            size=(value.num_samples, value.classes),
            check_invariants=False,
        )
    assert isinstance(value, DenseValue)
    return share(value.rows.reshape(value.num_samples, math.prod(value.shape))).to_sparse_csr()
