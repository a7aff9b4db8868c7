"""Tensors that native code can read and write in place, by address and type."""

from __future__ import annotations

from typing import Any

import torch

Tensors = list[torch.Tensor]
#: Types of native updates.
TYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}

#: Classes of tensors whose memory has no special layout.
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor is strided, in the memory of the processor, and of a known type and a plain class."""
    return (
        type(tensor) in PLAIN_TYPES and tensor.is_cpu and tensor.layout is torch.strided and tensor.dtype in TYPES
    ) and not tensor.is_neg()


def is_sharded(tensor: Any) -> bool:
    """Return whether ranks hold parts of a tensor."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def computing_dtype(weight: Any) -> torch.dtype:
    """Return the dtype in which a rule computes and keeps its state."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def dense_format(tensor: Any) -> Any:
    """Return the memory format in which a tensor has no gaps. None if there is none."""
    if tensor.is_contiguous():
        return torch.contiguous_format
    channels_last = _FORMATS.get(tensor.dim())
    return channels_last if channels_last is not None and tensor.is_contiguous(memory_format=channels_last) else None
