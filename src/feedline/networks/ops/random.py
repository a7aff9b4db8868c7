"""Operations that draw numbers, from torch's generator of the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops.align import dense
from feedline.networks.packed import PackedBatch, Run
from feedline.networks.registry import Site, declare, first_axes
from feedline.networks.shapes import same


def _dropout(node: Node) -> Run:
    rate = node.attributes["rate"]
    return lambda batch, x: functional.dropout(dense(x, node), rate, batch.training)


declare("dropout", same, _dropout)


def _uniform(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return torch.empty_like(x).uniform_(low, high)


def _normal(x: torch.Tensor, mean: float, scale: float) -> torch.Tensor:
    return torch.empty_like(x).normal_(mean, scale)


def _gumbel(x: torch.Tensor, loc: float, scale: float) -> torch.Tensor:
    return loc - scale * torch.empty_like(x).exponential_().log()


def _bernoulli(x: torch.Tensor, mean: float) -> torch.Tensor:
    return torch.empty_like(x).bernoulli_(mean)


DRAWS: dict[str, Callable[..., torch.Tensor]] = {
    "uniform": _uniform,
    "normal": _normal,
    "gumbel": _gumbel,
    "bernoulli": _bernoulli,
}


def _draw(function: Callable[..., torch.Tensor]) -> Callable[[Node], Run]:
    def lower(node: Node) -> Run:
        arguments = node.attributes["arguments"]

        def run(batch: PackedBatch, x: Any) -> Any:
            return function(dense(x, node).detach(), *arguments)

        return run

    return lower


for _name, _function in DRAWS.items():
    declare(f"random_{_name}", same, _draw(_function))


def _random_sample(node: Node) -> Run:
    """Classes by their weights, which are those of all axes together."""
    many, again, rank = node.attributes["many"], node.attributes["replacement"], len(node.inputs[0].shape)

    def run(batch: PackedBatch, weights: Any) -> Any:
        weights = dense(weights, node)
        weights = weights.flatten(weights.ndim - rank)
        found = torch.multinomial(weights, many, again)
        return functional.one_hot(found, weights.shape[-1]).to(weights.dtype)

    return run


def _sampled(site: Site) -> tuple[int, ...]:
    if not site.shape(0):
        site.refuse("a weight for each class")
    return (site.attributes["many"], math.prod(site.shape(0)))


declare("random_sample", _sampled, _random_sample, axes=first_axes)
