"""Values as torch tensors: shared memory on the CPU where the layout allows, no copy hidden.

A fresh tensor over fresh NumPy memory costs about a microsecond. torch is imported here and nowhere else in
the feed.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from feedline.data.value import DenseValue, SparseValue, Value

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("torch is not installed; run: pip install 'feedline[torch]'") from error

LAYOUTS = ("padded", "packed", "nested", "csr")

# torch says once a process that CSR tensors are in beta. Whoever reads sparse streams cannot act on that, so it is
# said here, to nobody.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.eye(1).to_sparse_csr()


def export(value: Value, device: Any = None, layout: str | None = None, pin_memory: bool = False) -> torch.Tensor:
    """See `Value.torch`."""
    if layout is None:
        layout = "csr" if value.is_sparse else "padded"
    if layout == "padded":
        tensor = _share(value.padded())
    elif layout == "packed":
        tensor = _share(value.dense().rows)
    elif layout == "nested":
        tensor = torch.nested.nested_tensor_from_jagged(_share(value.dense().rows), _share(value.offsets))
    elif layout == "csr":
        tensor = _csr(value)
    else:
        raise ValueError(f"expected layout to be one of {', '.join(map(repr, LAYOUTS))}, got {layout!r}")
    if pin_memory:
        if not torch.accelerator.is_available():
            raise RuntimeError("expected an accelerator to pin memory for, but torch finds none; leave out pin_memory")
        tensor = tensor.pin_memory()
    return tensor if device is None else tensor.to(device, non_blocking=pin_memory)


def _share(array: np.ndarray[Any, Any]) -> torch.Tensor:
    # torch cannot mark memory read-only and warns about it; a mapped file must never be written through. Nor does it
    # know other byte orders or steps backwards.
    if not array.flags.writeable or not array.dtype.isnative or min(array.strides, default=0) < 0:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


def _csr(value: Value) -> torch.Tensor:
    if isinstance(value, SparseValue):
        # check_invariants off: indices come in the order of the data, which torch would reject although all
        # its kernels add duplicates up and none needs sorted columns.
        return torch.sparse_csr_tensor(
            _share(value.indptr),
            _share(value.checked_indices().astype(np.int64)),
            _share(value.values),
            size=(value.num_samples, value.classes),
            check_invariants=False,
        )
    assert isinstance(value, DenseValue)
    return _share(value.rows.reshape(value.num_samples, math.prod(value.shape))).to_sparse_csr()
