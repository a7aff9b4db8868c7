"""Parameters as learners see them: named, in groups that are updated together, and changed by fused operations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import StateError

#: Bytes of parameters updated together on the CPU: with gradients, state and temporaries within a core's cache.
PIECE = 1 << 20


Tensors = list[torch.Tensor]


@dataclass(slots=True)
class ParameterGroup:
    """Parameters that are updated together: same device, same dtype, same numbers.

    Attributes:
        parameters: to be changed in place.
        gradients: to be read only; times `Step.scale`. Of dtype ``dtype``.
        state: for each of the rule's `Learner.tensors` a list, to be changed in place. Of dtype ``dtype``.
        numbers: one for each of the rule's `Learner.numbers`: numbers that these parameters' states have in common.
        dtype: in which the rule computes: float64 for float64 parameters, otherwise float32.
    """

    parameters: Tensors
    gradients: Tensors
    state: list[Tensors]
    numbers: tuple[float, ...]
    dtype: torch.dtype


def copied(name: str, saved: torch.Tensor, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy a saved tensor to the device and memory format of ``like``.

    Raises:
        StateError: it has another shape than ``like``, or another dtype than ``dtype``.
    """
    if saved.shape != like.shape or saved.dtype != dtype:
        raise StateError(
            f"expected another tensor {name!r} in the state",
            saved={"shape": tuple(saved.shape), "dtype": str(saved.dtype)},
            current={"shape": tuple(like.shape), "dtype": str(dtype)},
        )
    with torch.no_grad():
        return torch.empty_like(like, dtype=dtype, requires_grad=False).copy_(saved)


def named(parameters: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Name parameters: (name, tensor) pairs, or tensors, which are named by their index.

    Raises:
        TypeError: something that is no floating-point tensor.
        ValueError: none, the same twice, or two of one name.
    """
    if isinstance(parameters, torch.Tensor):
        raise TypeError("expected an iterable of parameters, got one tensor; put it in a list")
    found: dict[str, torch.Tensor] = {}
    for place, item in enumerate(parameters):
        name, tensor = item if isinstance(item, tuple) and len(item) == 2 else (str(place), item)
        name = str(name).removeprefix("_orig_mod.")  # of a compiled model: it is the same parameter as before
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"expected parameter {name!r} to be a floating-point tensor, got {kind}")
        if name in found:
            raise ValueError(f"expected parameters of different names, got {name!r} twice")
        found[name] = tensor
    if not found:
        raise ValueError("expected at least one parameter, got none")
    if len({id(tensor) for tensor in found.values()}) < len(found):
        raise ValueError("expected each parameter once, got one of them twice; shared parameters are listed once")
    return found


def computing_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a rule computes and keeps its state."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def cut_into_pieces(parameters: Tensors, finely: bool) -> list[list[int]]:
    """Group indices of parameters by device and dtype; ``finely``: on the CPU into pieces of `PIECE` bytes."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, parameter in enumerate(parameters):
        groups.setdefault((parameter.device, parameter.dtype), []).append(i)
    pieces: list[list[int]] = []
    for (device, _), places in groups.items():
        limit = PIECE if finely and device.type == "cpu" else math.inf
        piece: list[int] = []
        held = 0
        for i in places:
            if piece and held + parameters[i].nbytes > limit:
                pieces.append(piece)
                piece, held = [], 0
            piece.append(i)
            held += parameters[i].nbytes
        pieces.append(piece)
    return pieces


def clipped(gradients: Tensors, limit: float, by_norm: bool) -> Tensors:
    """Limit gradients element by element, or parameter by parameter to a norm."""
    if by_norm:
        factors = torch._foreach_norm(gradients)
        torch._foreach_reciprocal_(factors)
        torch._foreach_mul_(factors, limit)
        torch._foreach_clamp_max_(factors, 1.0)
        clipped: Tensors = torch._foreach_mul(gradients, factors)
    else:
        clipped = torch._foreach_clamp_min(gradients, -limit)
        torch._foreach_clamp_max_(clipped, limit)
    return clipped


def add_noise(parameters: Tensors, std: float, generators: Mapping[torch.device, torch.Generator]) -> None:
    """Add Gaussian noise."""
    noise = [torch.empty_like(p).normal_(0.0, std, generator=generators[p.device]) for p in parameters]
    torch._foreach_add_(parameters, noise)


def shrink(parameters: Tensors, by: float) -> None:
    """Draw parameters towards 0 by at most ``by``: ``sign(w) * max(|w| - by, 0)``."""
    cut = torch._foreach_clamp_min(parameters, -by)
    torch._foreach_clamp_max_(cut, by)
    torch._foreach_sub_(parameters, cut)
