"""Twins: tensors without data, on the device ``meta`` of torch, in place of parameters, buffers and inputs of a module.

Twins compute shapes in native code. So a dry run takes a fraction of the time of a run on fake tensors of torch, which
also import the compiler of torch. Twins differ from real tensors in the device. If a module asks for it, `TrueDevice`
answers as in a real run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

_META = torch.device("meta")
# Functions whose results have another layout on `meta`, unless there is a rule for them.
DIFFER = frozenset({torch.nn.functional.scaled_dot_product_attention})
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class NoTwinError(RuntimeError):
    """A module has tensors that cannot have twins, as they are on several devices, or of another layout."""


def device_of(model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device of all tensors of a module and of its inputs.

    Raises:
        NoTwinError: tensors are on several devices, or of special kinds, such as sparse and quantized ones.
    """
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    tensors = [*model.parameters(), *model.buffers(), *inputs]
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise NoTwinError(f"expected tensors on one device, got them on {', '.join(sorted(map(str, devices)))}")
    if any(type(t) not in _PLAIN or t.layout is not torch.strided or t.is_quantized for t in tensors):
        raise NoTwinError("expected dense tensors of torch's own classes, got others")
    return devices.pop() if devices else torch.device("cpu")


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same shape, strides and type without data."""
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def twins(model: torch.nn.Module) -> Iterator[None]:
    """Open a block in which twins replace parameters and buffers. New tensors have no data, either."""
    replacements: dict[torch.Tensor, torch.Tensor] = {}
    replaced: list[tuple[torch.nn.Module, str, torch.Tensor]] = []
    try:
        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in list(table.items()):
                    if tensor is None:
                        continue
                    replaced.append((module, name, tensor))
                    if tensor not in replacements:
                        replacements[tensor] = twin(tensor)
                    setattr(module, name, replacements[tensor])  # recurrent layers keep a list of their weights, too
        with _META:
            yield
    finally:
        for module, name, tensor in replaced:
            setattr(module, name, tensor)


class TrueDevice:
    """Answers to questions about the device of twins, which also moves tensors to `meta` instead of to other devices.

    Args:
        device: device of the tensors that the twins replace.

    Attributes:
        answers: answers by torch function.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.answers: dict[Any, Any] = {
            torch.Tensor.device.__get__: device,
            torch.Tensor.is_meta.__get__: device.type == "meta",
            torch.Tensor.is_cpu.__get__: device.type == "cpu",
            torch.Tensor.is_cuda.__get__: device.type == "cuda",
            torch.Tensor.get_device: -1 if device.index is None else device.index,
        }

    @staticmethod
    def move(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return arguments with `meta` in place of every other device."""
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _META}
        if any(isinstance(arg, torch.device) for arg in args):
            args = tuple(_META if isinstance(arg, torch.device) else arg for arg in args)
        return args, kwargs
