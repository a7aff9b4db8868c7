"""Random operations, which use torch's generator of the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import dense, rowwise, unprepared
from feedline.networks.packed import PackedBatch, Run
from feedline.networks.registry import Site, declare, first_axes
from feedline.networks.shapes import same


def _dropout(node: Node, batch: PackedBatch, x: Any) -> Any:
    return functional.dropout(dense(x, node), node.attributes["rate"], batch.training)


declare("dropout", same, unprepared(_dropout))


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


def _random_sample(node: Node) -> Callable[..., Any]:
    """Draw classes by their weights, over all axes together."""
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)

    def sample(weights: Any) -> Any:
        weights = weights.flatten(weights.ndim - rank)
        found = torch.multinomial(weights, many, again)
        return functional.one_hot(found, weights.shape[-1]).to(weights.dtype)

    return sample


def _sampled(site: Site) -> tuple[int, ...]:
    if not site.shape(0):
        site.refuse("a weight for each class")
    return (site.attributes["many"], math.prod(site.shape(0)))


declare("random_sample", _sampled, rowwise(_random_sample), axes=first_axes)
