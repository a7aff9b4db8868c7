"""Random operations. They use torch's generator of the device, or if the script set a seed, one of their own.

Attributes: ``seed``, and ``fixed``, whether it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, lower_directly, rowwise
from feedline.networks.packed_minibatch import PackedBatch, SparseRows
from feedline.networks.registry import Site, declare, first_axes
from feedline.networks.shapes import same


def _generator(node: Node, batch: PackedBatch, device: torch.device) -> torch.Generator | None:
    """Return the generator of an operation with a seed, or None, which is torch's."""
    return batch.generator(node, device) if node.attributes.get("fixed") else None


def _uniform(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return numbers from 0 to 1 in double precision, in the shape of a tensor.

    On the CPU, two draws have the numbers of one draw of both sizes, which torch's other distributions do not have.
    """
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float64)


def _dropout(node: Node, batch: PackedBatch, x: Any) -> Any:
    rate, rows = node.attributes["rate"], dense(x, node)
    if not 0 <= rate < 1:
        raise ValueError(f"{node.label}: expected a dropout rate of at least 0 and below 1, got {rate}")
    generator = _generator(node, batch, rows.device) if batch.training else None
    if generator is None:
        return functional.dropout(rows, rate, batch.training)
    return rows * (_uniform(rows, generator) >= rate) / (1 - rate)


declare("dropout", same, lower_directly(_dropout))


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": lambda like, low, high: torch.empty_like(like).uniform_(low, high),
    "normal": lambda like, mean, scale: torch.empty_like(like).normal_(mean, scale),
    "gumbel": lambda like, loc, scale: loc - scale * torch.empty_like(like).exponential_().log(),
    "bernoulli": lambda like, mean: torch.empty_like(like).bernoulli_(mean),
}
_LEAST = 2.0**-54  # half the distance of uniform numbers: 0 would be infinite
_SEEDED: dict[str, Callable[..., torch.Tensor]] = {  # of uniform numbers
    "uniform": lambda u, low, high: low + (high - low) * u,
    "normal": lambda u, mean, scale: mean + scale * torch.special.ndtri(u.clamp_min(_LEAST)),
    "gumbel": lambda u, loc, scale: loc - scale * (-u.clamp_min(_LEAST).log()).log(),
    "bernoulli": lambda u, mean: u < mean,
}


def _draw(how: str) -> Callable[..., torch.Tensor]:
    def draw(node: Node, batch: PackedBatch, x: Any) -> torch.Tensor:
        like = dense(x, node).detach()
        generator = _generator(node, batch, like.device)
        if generator is None:
            return DRAWS[how](like, *node.attributes["arguments"])
        return _SEEDED[how](_uniform(like, generator), *node.attributes["arguments"]).to(like.dtype)

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


def _random_sample(node: Node, batch: PackedBatch, x: Any) -> Any:
    """Draw classes by their weights, over all axes together.

    Rows are sparse, unless each sample has weights.
    """
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)
    weights = dense(x, node)
    _check_weights(node, weights)
    weights = weights.flatten(weights.ndim - rank)
    classes = torch.multinomial(weights, many, again, generator=_generator(node, batch, weights.device))
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
