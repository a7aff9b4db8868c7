"""Parameters of learners: names, groups that are updated together, and fused operations on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import StateError
from feedline.train.shards import is_sharded
from feedline.train.wrapped import plain_names

#: Bytes of parameters updated at once on the CPU: with gradients, state and temporaries they fit a core's cache.
PIECE_BYTES = 1 << 20


Tensors = list[torch.Tensor]


@dataclass(slots=True)
class ParameterGroup:
    """Parameters that are updated together: same device, same dtype, same numbers.

    Attributes:
        parameters: parameters, changed in place.
        gradients: gradients of dtype ``dtype``, read-only, to be multiplied by `Step.scale`.
        state: a list of tensors of dtype ``dtype`` for each of the rule's `Learner.tensors`, changed in place.
        numbers: a number for each of the rule's `Learner.numbers`, common to these parameters.
        dtype: dtype in which the rule computes: float64 for float64 parameters, otherwise float32.
    """

    parameters: Tensors
    gradients: Tensors
    state: list[Tensors]
    numbers: tuple[float, ...]
    dtype: torch.dtype


def copied(name: str, saved: torch.Tensor, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy a saved tensor to the device and memory format of ``like``.

    Raises:
        StateError: its shape is not that of ``like``, or its dtype is not ``dtype``.
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
    """Return parameters by name, given (name, tensor) pairs, or tensors, which are named by their index.

    Raises:
        TypeError: an item is not a floating-point tensor.
        ValueError: no parameters, or a repeated parameter or name.
    """
    if isinstance(parameters, torch.Tensor):
        raise TypeError("expected an iterable of parameters, got one tensor; put it in a list")
    if isinstance(parameters, torch.nn.Module):
        kind = type(parameters).__name__
        raise TypeError(f"expected an iterable of parameters, got the module {kind}; pass its named_parameters()")
    given = [
        item if isinstance(item, tuple) and len(item) == 2 else (str(place), item)
        for place, item in enumerate(parameters)
    ]
    found: dict[str, torch.Tensor] = {}
    for name, (_, tensor) in zip(plain_names([str(name) for name, _ in given]), given, strict=True):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            got = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"expected parameter {name!r} to be a floating-point tensor, got {got}")
        if name in found:
            raise ValueError(f"expected parameters with distinct names, got {name!r} twice")
        found[name] = tensor
    if not found:
        raise ValueError("expected at least one parameter, got none")
    if len({id(tensor) for tensor in found.values()}) < len(found):
        raise ValueError("expected each parameter once, got one twice; list shared parameters once")
    return found


def computing_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a rule computes and keeps its state."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def cut_into_pieces(parameters: Tensors, finely: bool) -> list[list[int]]:
    """Group indices of parameters by device and dtype; with ``finely``, on the CPU in pieces of `PIECE_BYTES` bytes."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, parameter in enumerate(parameters):
        groups.setdefault((parameter.device, parameter.dtype), []).append(i)
    pieces: list[list[int]] = []
    for (device, _), places in groups.items():
        limit = PIECE_BYTES if finely and device.type == "cpu" else math.inf
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
    """Clip gradients by value, or each parameter's gradient by its norm."""
    if by_norm:
        factors = torch._foreach_reciprocal(_norms(gradients))
        torch._foreach_mul_(factors, limit)
        torch._foreach_clamp_max_(factors, 1.0)
        clipped: Tensors = torch._foreach_mul(gradients, factors)
    else:
        clipped = torch._foreach_clamp_min(gradients, -limit)
        torch._foreach_clamp_max_(clipped, limit)
    return clipped


def clipping_factor(gradients: Tensors, limit: float) -> torch.Tensor:
    """Return the factor, at most 1, that limits the norm of all gradients together; on the first one's device."""
    norms = [_whole(norm).float() for norm in _norms(gradients)]
    together = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return (limit / together).clamp_(max=1.0)


def _norms(gradients: Tensors) -> Tensors:
    """The norm of each gradient, over all ranks that hold a part of it."""
    norms = torch._foreach_norm(gradients)
    return [norm.redistribute(placements=_everywhere(norm)) if is_sharded(norm) else norm for norm in norms]


def _everywhere(norm: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return [Replicate()] * len(norm.placements)


def _whole(norm: Any) -> torch.Tensor:
    found: torch.Tensor = norm.to_local() if is_sharded(norm) else norm
    return found


def add_noise(parameters: Tensors, std: float, generators: Mapping[torch.device, torch.Generator]) -> None:
    """Add Gaussian noise."""
    noise = [torch.empty_like(p).normal_(0.0, std, generator=generators[p.device]) for p in parameters]
    torch._foreach_add_(parameters, noise)


def shrink(parameters: Tensors, by: float) -> None:
    """Shrink parameters towards 0 by at most ``by``: ``sign(w) * max(|w| - by, 0)``."""
    cut = torch._foreach_clamp_min(parameters, -by)
    torch._foreach_clamp_max_(cut, by)
    torch._foreach_sub_(parameters, cut)
