"""Random operations. They use torch's generator of the device, or if the script set a seed, CNTK's numbers of it.

CNTK draws these on a CPU. They are the same for every device, which they are copied to.

Attributes: ``seed``, and ``fixed``, whether it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, lower_directly, rowwise
from feedline.networks.packed_minibatch import PackedBatch, SparseRows
from feedline.networks.random_numbers import SeededNumbers
from feedline.networks.registry import Site, declare, first_axes
from feedline.networks.shapes import same


def _numbers(node: Node, batch: PackedBatch) -> SeededNumbers | None:
    """Return the numbers of an operation with a seed, or None, which is torch's generator."""
    return batch.generator(node) if node.attributes.get("fixed") else None


def _uniform(like: torch.Tensor, numbers: SeededNumbers) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each element of a tensor."""
    return numbers.uniform(like.numel()).reshape(like.shape)


def _above(like: torch.Tensor, numbers: SeededNumbers, chance: float) -> torch.Tensor:
    """Return 1 where a number is above ``chance``, both rounded to the tensor's type, else 0."""
    u = torch.from_numpy(_uniform(like, numbers)).to(like.dtype)
    return (u > torch.tensor(chance, dtype=like.dtype)).to(like.device, like.dtype)


def _dropout(node: Node, batch: PackedBatch, x: Any) -> Any:
    rate, rows = node.attributes["rate"], dense(x, node)
    if not 0 <= rate < 1:
        raise ValueError(f"{node.label}: expected a dropout rate of at least 0 and below 1, got {rate}")
    numbers = _numbers(node, batch) if batch.training else None
    if numbers is None:
        return functional.dropout(rows, rate, batch.training)
    return rows * _above(rows, numbers, rate) / (1 - rate)


declare("dropout", same, lower_directly(_dropout))


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": lambda like, low, high: torch.empty_like(like).uniform_(low, high),
    "normal": lambda like, mean, scale: torch.empty_like(like).normal_(mean, scale),
    "gumbel": lambda like, loc, scale: loc - scale * torch.empty_like(like).exponential_().log(),
    "bernoulli": lambda like, mean: torch.empty_like(like).bernoulli_(mean),
}


def _normal(like: torch.Tensor, numbers: SeededNumbers) -> NDArray[np.float64]:
    """Return a normal number for each element of a tensor. CNTK draws an even number of them."""
    count = like.numel()
    return numbers.normal(count + count % 2)[:count].reshape(like.shape)


_SEEDED: dict[str, Callable[..., Any]] = {
    "uniform": lambda like, numbers, low, high: low + (high - low) * _uniform(like, numbers),
    "normal": lambda like, numbers, mean, scale: mean + scale * _normal(like, numbers),
    "gumbel": lambda like, numbers, loc, scale: loc - scale * np.log(-np.log1p(-_uniform(like, numbers))),
    "bernoulli": lambda like, numbers, mean: _above(like, numbers, 1 - mean),
}


def _draw(how: str) -> Callable[..., torch.Tensor]:
    def draw(node: Node, batch: PackedBatch, x: Any) -> torch.Tensor:
        like = dense(x, node).detach()
        numbers = _numbers(node, batch)
        if numbers is None:
            return DRAWS[how](like, *node.attributes["arguments"])
        values = _SEEDED[how](like, numbers, *node.attributes["arguments"])
        return torch.as_tensor(values).to(like.dtype).to(like.device)

    return draw


for _name in DRAWS:
    declare(f"random_{_name}", same, lower_directly(_draw(_name)))


def _check_weights(node: Node, weights: torch.Tensor) -> None:
    rank = len(node.inputs[0].shape)
    least, least_sum = float(weights.min()), float(weights.flatten(weights.ndim - rank).sum(-1).min())
    if not (least >= 0 and least_sum > 0):
        raise ValueError(
            f"{node.label}: expected weights of at least 0, with a sum above 0, got a least weight of {least:g} "
            f"and a least sum of {least_sum:g}"
        )


def _classes(weights: NDArray[np.float64], many: int, again: bool, numbers: SeededNumbers) -> list[int]:
    """Draw classes by their weights, as CNTK does it. A class that must not be drawn again is left out."""
    ends = weights.cumsum()
    classes: list[int] = []
    while len(classes) < many:
        drawn = np.searchsorted(ends, numbers.uniform(many - len(classes)) * ends[-1]).tolist()
        classes = [*classes, *drawn] if again else list(dict.fromkeys([*classes, *drawn]))
    return classes


def _random_sample(node: Node, batch: PackedBatch, x: Any) -> Any:
    """Draw classes by their weights, over all axes together.

    Rows are sparse, unless each sample has weights.
    """
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)
    weights = dense(x, node)
    _check_weights(node, weights)
    weights = weights.flatten(weights.ndim - rank)
    if not again and (possible := int((weights > 0).sum(-1).min())) < many:
        raise ValueError(
            f"{node.label}: expected at least {many} classes with a weight above 0 to draw without duplicates, got "
            f"{possible}"
        )
    numbers = _numbers(node, batch)
    if numbers is None:
        classes = torch.multinomial(weights, many, again)
    else:
        rows = weights.detach().cpu().double().numpy().reshape(-1, weights.shape[-1])
        drawn = [_classes(row, many, again, numbers) for row in rows]
        classes = torch.tensor(drawn, device=weights.device).reshape(*weights.shape[:-1], many)
    if classes.ndim == 1:
        rows = SparseRows(torch.arange(many + 1, device=classes.device), classes, None, weights.shape[-1], True)
        rows.dense_dtype = weights.dtype
        return rows
    return functional.one_hot(classes, weights.shape[-1]).to(weights.dtype)


def _inclusion_frequency(node: Node) -> Callable[..., Any]:
    """Expected number of times that each class is drawn, by its weight."""
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)
    last: tuple[Any, int, Any] = (None, 0, None)

    def expected(weights: Any) -> Any:
        nonlocal last
        if last[0] is not weights or last[1] != weights._version:  # they seldom change
            last = (weights, weights._version, computed(weights))
        return last[2]

    def computed(weights: Any) -> Any:
        _check_weights(node, weights)
        flat = weights.detach().flatten(weights.ndim - rank).double()
        chances = flat / flat.sum(-1, keepdim=True)
        frequency = chances * many if again else _inclusion_chances(chances, many)
        return frequency.reshape(weights.shape).to(weights.dtype)

    return expected


def _inclusion_chances(chances: torch.Tensor, many: int) -> torch.Tensor:
    """Return the chance of each class to be among ``many`` different ones.

    T draws miss a class with the probability (1 - p)^T. T is the number of draws that find ``many`` classes on average,
    which CNTK estimates by the mean of ten experiments.
    """

    def included(draws: torch.Tensor) -> torch.Tensor:
        return -torch.expm1(draws[..., None] * torch.log1p(-chances.clamp(max=1 - 1e-12)))

    # Newton's method. The mean number of classes grows ever more slowly with T, so T is approached from below.
    draws = torch.full_like(chances[..., 0], float(many))
    for _ in range(50):
        now = included(draws)
        growth = (torch.log1p(-chances.clamp(max=1 - 1e-12)) * (now - 1)).sum(-1)
        step = (many - now.sum(-1)) / growth.clamp_min(1e-12)
        draws = draws + step.clamp(min=0)
        if bool((step < 1e-9 * draws).all()):
            break
    return included(draws)


def _weighted_classes(site: Site) -> tuple[int, ...]:
    classes, many = math.prod(site.shape(0)), site.attributes["many"]
    if many < 1:
        site.refuse(f"at least one sample to draw, not {many}")
    if not site.shape(0) or (not site.attributes["replacement"] and many > classes):
        site.refuse(f"a weight for each class, and at least {many} classes to draw without duplicates")
    return site.shape(0)


def _sampled_shape(site: Site) -> tuple[int, ...]:
    _weighted_classes(site)
    return (site.attributes["many"], math.prod(site.shape(0)))


declare("random_sample", _sampled_shape, lower_directly(_random_sample), axes=first_axes)
declare("random_sample_inclusion_frequency", _weighted_classes, rowwise(_inclusion_frequency), axes=first_axes)
