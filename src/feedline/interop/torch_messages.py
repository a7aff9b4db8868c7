"""Tensors as arrays in the messages of workers.

A dense CPU tensor becomes an array over its own memory and, on the other side, a tensor over the memory of the message:
the only copy is the message. Other tensors (sparse, quantised, nested, on a device) are pickled by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_NUMPY = {torch.from_numpy(np.empty(0, code)).dtype for code in "?bhilBHILefdFD"}
"""dtypes that NumPy has too, by its codes. Others (bfloat16, float8, ...) are sent as integers of the same size."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Reduce = Callable[[np.ndarray[Any, Any]], tuple[Any, tuple[Any, ...]]]


def reducers(reduce: Reduce) -> dict[Any, Callable[[Any], Any]]:
    """Return the entries of a pickler's dispatch table for tensors. ``reduce`` reduces an array."""

    def tensor(value: torch.Tensor) -> Any:
        odd = value.is_quantized or value.is_conj() or value.is_neg() or value.is_nested or value.__dict__
        plain = value.layout is torch.strided and value.is_cpu and not odd
        if not plain or (value.requires_grad and not value.is_leaf):
            return value.__reduce_ex__(5)
        dtype = value.dtype
        if dtype in _NUMPY:
            make, arguments = reduce(value.detach().numpy())
            return (_tensor, (make, *arguments)) if not value.requires_grad else (_leaf, (make, *arguments))
        integers = _INTEGERS.get(dtype.itemsize)
        if integers is None:
            return value.__reduce_ex__(5)
        make, arguments = reduce(value.detach().view(integers).numpy())
        return _other, (dtype, value.requires_grad, make, *arguments)

    return {torch.Tensor: tensor}


def _tensor(make: Any, *arguments: Any) -> torch.Tensor:
    return torch.from_numpy(make(*arguments))


def _leaf(make: Any, *arguments: Any) -> torch.Tensor:
    return torch.from_numpy(make(*arguments)).requires_grad_()


def _other(dtype: torch.dtype, requires_grad: bool, make: Any, *arguments: Any) -> torch.Tensor:
    return torch.from_numpy(make(*arguments)).view(dtype).requires_grad_(requires_grad)
