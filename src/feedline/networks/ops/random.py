"""Random operations, which use torch's generator of the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, lower_directly, rowwise
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows
from feedline.networks.registry import Site, declare, first_axes
from feedline.networks.shapes import same


def _dropout(node: Node, batch: PackedBatch, x: Any) -> Any:
    return functional.dropout(dense(x, node), node.attributes["rate"], batch.training)


declare("dropout", same, lower_directly(_dropout))


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": lambda like, low, high: torch.empty_like(like).uniform_(low, high),
    "normal": lambda like, mean, scale: torch.empty_like(like).normal_(mean, scale),
    "gumbel": lambda like, loc, scale: loc - scale * torch.empty_like(like).exponential_().log(),
    "bernoulli": lambda like, mean: torch.empty_like(like).bernoulli_(mean),
}


def _draw(function: Callable[..., torch.Tensor]) -> Callable[[Node], Run]:
    return rowwise(lambda node: lambda x: function(x.detach(), *node.attributes["arguments"]))


for _name, _function in DRAWS.items():
    declare(f"random_{_name}", same, _draw(_function))


def _check_weights(node: Node) -> Callable[[torch.Tensor], None]:
    """Return a function that raises ValueError for weights of classes that are negative, or all 0."""
    rank = len(node.inputs[0].shape)
    last: tuple[Any, int] = (None, 0)

    def check(weights: torch.Tensor) -> None:
        nonlocal last
        if last[0] is weights and last[1] == weights._version:  # they seldom change
            return
        least, least_sum = float(weights.min()), float(weights.flatten(weights.ndim - rank).sum(-1).min())
        if not (least >= 0 and least_sum > 0):
            raise ValueError(
                f"{node.label}: expected weights of at least 0, with a sum above 0, got a least weight of {least:g} "
                f"and a least sum of {least_sum:g}"
            )
        last = (weights, weights._version)

    return check


def _random_sample(node: Node) -> Callable[..., Any]:
    """Draw classes by their weights, over all axes together.

    Rows are sparse, unless each sample has weights.
    """
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)

    check = _check_weights(node)

    def sample(weights: Any) -> Any:
        check(weights)
        weights = weights.flatten(weights.ndim - rank)
        classes = torch.multinomial(weights, many, again)
        if classes.ndim == 1:
            rows = SparseRows(torch.arange(many + 1, device=classes.device), classes, None, weights.shape[-1], True)
            rows.dense_dtype = weights.dtype
            return rows
        return functional.one_hot(classes, weights.shape[-1]).to(weights.dtype)

    return sample


def _inclusion_frequency(node: Node) -> Callable[..., Any]:
    """Expected number of times that each class is drawn, by its weight."""
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)
    last: tuple[Any, int, Any] = (None, 0, None)
    check = _check_weights(node)

    def expected(weights: Any) -> Any:
        nonlocal last
        if last[0] is not weights or last[1] != weights._version:  # they seldom change
            last = (weights, weights._version, computed(weights))
        return last[2]

    def computed(weights: Any) -> Any:
        check(weights)
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
    if not site.shape(0) or many < 1 or (not site.attributes["replacement"] and many > classes):
        site.refuse(f"a weight for each class, one sample or more, and at least {many} classes without duplicates")
    return site.shape(0)


def _sampled_shape(site: Site) -> tuple[int, ...]:
    return (site.attributes["many"], math.prod(_weighted_classes(site)))


declare("random_sample", _sampled_shape, rowwise(_random_sample), axes=first_axes)
declare("random_sample_inclusion_frequency", _weighted_classes, rowwise(_inclusion_frequency), axes=first_axes)
