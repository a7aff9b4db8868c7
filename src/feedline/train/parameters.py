"""Parameters of learners: names, and groups that are updated together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from feedline.errors import StateError
from feedline.train.unwrap import plain_names
from feedline.updates.adjustments import NO_ADJUSTMENTS, Adjustments

Tensors = list[torch.Tensor]


@dataclass(slots=True)
class ParameterGroup:
    """Parameters that are updated together: they have the same device, dtype and numbers.

    Attributes:
        parameters: parameters, changed in place.
        gradients: gradients, read-only. The rule multiplies them by `Step.scale`, unless it is `Learner.whole`, which
            receives scaled gradients.
        state: a list of tensors of dtype ``dtype`` for each of the rule's `Learner.tensors`, changed in place.
        numbers: a number for each of the rule's `Learner.numbers`, common to these parameters.
        dtype: dtype in which the rule computes: float64 for float64 parameters, otherwise float32.
        adjustments: clipping and penalties that the rule still has to apply. None remain for a rule that is
            `Learner.whole`.
        factors: factors of the gradients before all adjustments. None means 1.
        noise: noise to add to each parameter, if any.
    """

    parameters: Tensors
    gradients: Tensors
    state: list[Tensors]
    numbers: tuple[float, ...]
    dtype: torch.dtype
    adjustments: Adjustments = NO_ADJUSTMENTS
    factors: list[Any] | None = None
    noise: Tensors | None = None


def copy_saved(name: str, saved: torch.Tensor, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Copy a saved tensor to the device and memory format of ``like``.

    Raises:
        StateError: its shape differs from ``like``, or its dtype is not ``dtype``.
    """
    if saved.shape != like.shape or saved.dtype != dtype:
        old = {"shape": tuple(saved.shape), "dtype": str(saved.dtype)}
        current = {"shape": tuple(like.shape), "dtype": str(dtype)}
        raise StateError(f"expected another tensor {name!r} in the state", saved=old, current=current)
    with torch.no_grad():
        return torch.empty_like(like, dtype=dtype, requires_grad=False).copy_(saved)


def parameters_by_name(parameters: Iterable[Any]) -> dict[str, torch.Tensor]:
    """Return parameters by name. Tensors without a name are named by their index.

    Raises:
        TypeError: an item is not a floating-point tensor.
        ValueError: no parameters, or a repeated parameter or name.
    """
    if isinstance(parameters, torch.Tensor):
        raise TypeError("expected an iterable of parameters, got one tensor; put it in a list")
    if isinstance(parameters, torch.nn.Module):
        kind = type(parameters).__name__
        raise TypeError(f"expected an iterable of parameters, got the module {kind}; pass its named_parameters()")
    pairs = [p if isinstance(p, tuple) and len(p) == 2 else (str(i), p) for i, p in enumerate(parameters)]
    by_name: dict[str, torch.Tensor] = {}
    for name, (_, tensor) in zip(plain_names([str(name) for name, _ in pairs]), pairs, strict=True):
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            got = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise TypeError(f"expected parameter {name!r} to be a floating-point tensor, got {got}")
        if name in by_name:
            raise ValueError(f"expected parameters with distinct names, got {name!r} twice")
        by_name[name] = tensor
    if not by_name:
        raise ValueError("expected at least one parameter, got none")
    if len({id(tensor) for tensor in by_name.values()}) < len(by_name):
        raise ValueError("expected each parameter once, got one twice; list shared parameters once")
    return by_name


def group_indices(parameters: Tensors) -> list[list[int]]:
    """Group indices of parameters by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, parameter in enumerate(parameters):
        groups.setdefault((parameter.device, parameter.dtype), []).append(i)
    return list(groups.values())
