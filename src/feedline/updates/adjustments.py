"""Adjustments around a rule: clipping and penalties of gradients before it, noise, shrinking and bounds after it.

A native update makes all adjustments in one pass. This module makes them by torch, for other devices and for rules
that are user functions. It also computes norms, which an update needs in advance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feedline import _native
from feedline.updates.native_tensors import TYPES, Tensors, dense_format, is_plain, is_sharded

#: A number, or a tensor with one number on the device of the gradient.
Factor = Any


@dataclass(slots=True, eq=False)
class Adjustments:
    """Numbers of an update besides the numbers of its rule. See native/include/feedline/update.h. Do not change it.

    Attributes:
        early_decay: factor of the weight that is added to the gradient before it is clipped.
        limit: largest absolute value of a gradient's elements.
        late_decay: factor of the weight that is added to the gradient after it is clipped.
        noise_factor: factor of the noise that is added to weights.
        shrink: largest distance by which weights move towards 0.
        bound: largest absolute value of a weight's elements.
    """

    early_decay: float = 0.0
    limit: float = math.inf
    late_decay: float = 0.0
    noise_factor: float = 1.0
    shrink: float = 0.0
    bound: float = math.inf

    def numbers(self) -> tuple[float, ...]:
        """Return the numbers in the native order."""
        return self.early_decay, self.limit, self.late_decay, self.noise_factor, self.shrink, self.bound


NO_ADJUSTMENTS = Adjustments()


def adjust(weights: Tensors, gradients: Tensors, adjustments: Adjustments, factors: Sequence[Factor] | None) -> Tensors:
    """Return gradients times their factors, clipped, with weight decay added. The arguments are not changed."""
    if factors is not None and any(isinstance(factor, torch.Tensor) or factor != 1 for factor in factors):
        gradients = [g * _like_gradient(factor, g) for g, factor in zip(gradients, factors, strict=True)]
    if adjustments.early_decay:
        gradients = torch._foreach_add(gradients, weights, alpha=adjustments.early_decay)
    if adjustments.limit < math.inf:
        gradients = torch._foreach_clamp_min(gradients, -adjustments.limit)
        torch._foreach_clamp_max_(gradients, adjustments.limit)
    if adjustments.late_decay:
        gradients = torch._foreach_add(gradients, weights, alpha=adjustments.late_decay)
    return gradients


def finish(weights: Tensors, adjustments: Adjustments, noise: Tensors | None) -> None:
    """Add noise, shrink weights towards 0 (``sign(w) * max(|w| - shrink, 0)``), and bound them."""
    if noise is not None:
        torch._foreach_add_(weights, noise, alpha=adjustments.noise_factor)
    if adjustments.shrink > 0:
        steps = torch._foreach_clamp_min(weights, -adjustments.shrink)
        torch._foreach_clamp_max_(steps, adjustments.shrink)
        torch._foreach_sub_(weights, steps)
    if adjustments.bound < math.inf:
        torch._foreach_clamp_min_(weights, -adjustments.bound)
        torch._foreach_clamp_max_(weights, adjustments.bound)


def clipping_factors(gradients: Tensors, limit: float) -> list[Factor]:
    """Return a factor for each gradient, at most 1, that limits its norm. It is a tensor for a gradient on a device."""
    squares = _square_sums(gradients)
    norms = iter(_norms([g for g, square in zip(gradients, squares, strict=True) if square is None]))
    return [
        (limit / next(norms)).clamp_(max=1.0) if square is None else _factor(limit, math.sqrt(square))
        for square in squares
    ]


def global_factor(gradients: Tensors, limit: float) -> Factor:
    """Return the factor, at most 1, that limits the norm of all gradients together. A tensor if one is on a device."""
    squares = _square_sums(gradients)
    native_norm = math.sqrt(sum(square for square in squares if square is not None))
    other_norms = _norms([g for g, square in zip(gradients, squares, strict=True) if square is None])
    if not other_norms:
        return _factor(limit, native_norm)
    norms = [(norm.to_local() if is_sharded(norm) else norm).float() for norm in other_norms]
    norms.append(torch.tensor(native_norm, dtype=torch.float32))
    common_norm = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return (limit / common_norm).clamp_(max=1.0)


def _like_gradient(factor: Factor, gradient: Any) -> Factor:
    return factor.to(gradient.device, gradient.dtype) if isinstance(factor, torch.Tensor) else factor


def _factor(limit: float, norm: float) -> float:
    # NaN stays NaN.
    return 1.0 if norm <= limit else limit / norm


def _square_sums(gradients: Tensors) -> list[float | None]:
    """Return the sum of squares of each gradient, or None where native code cannot compute it."""
    sums: list[float | None] = [None] * len(gradients)
    places = [i for i, gradient in enumerate(gradients) if is_plain(gradient) and dense_format(gradient) is not None]
    jobs = [(gradients[i].numel(), gradients[i].data_ptr(), TYPES[gradients[i].dtype]) for i in places]
    for i, square in zip(places, _native.square_sums(jobs, torch.get_num_threads()), strict=True):
        sums[i] = square
    return sums


def _norms(gradients: Tensors) -> Tensors:
    """Return the norm of each gradient, over all ranks that hold a part of it."""
    if not gradients:
        return []
    wide = [gradient if gradient.dtype.itemsize >= 4 else gradient.float() for gradient in gradients]
    norms = torch._foreach_norm(wide)
    return [norm.redistribute(placements=_replicated(norm)) if is_sharded(norm) else norm for norm in norms]


def _replicated(norm: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return [Replicate()] * len(norm.placements)
