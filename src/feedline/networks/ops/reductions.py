"""Reductions over axes of a sample, or over everything in the minibatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.networks.node import BATCH, Node
from feedline.networks.ops import edges
from feedline.networks.ops.align import rowwise
from feedline.networks.packed_minibatch import Run
from feedline.networks.registry import Shape, Site, declare, no_axes
from feedline.networks.shapes import axes_of, from_end, reduced_shape, scalar


def _prod(x: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    for dim in sorted(dims):  # negative, first to last: axes that stay do not renumber later ones
        x = x.prod(dim, keepdim=True)
    return x if keepdim else x.squeeze(dims)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_max": edges.largest,
    "reduce_min": edges.smallest,
    "reduce_prod": _prod,
    "reduce_log_sum_exp": torch.logsumexp,
    "reduce_l1": lambda x, dims, keep: x.abs().sum(dims, keepdim=keep),
    "reduce_l2": lambda x, dims, keep: x.square().sum(dims, keepdim=keep).sqrt(),
    "reduce_sum_square": lambda x, dims, keep: x.square().sum(dims, keepdim=keep),
}


def _over(function: Callable[..., Any]) -> Callable[[Node], Run]:
    def make(node: Node) -> Callable[..., Any]:
        rank, axis = len(node.inputs[0].shape), node.attributes.get("axis")
        keep = node.attributes.get("keepdims", axis is not None)
        dims = axes_of(axis, rank)
        if not dims:
            # torch would reduce over all axes if there are none to reduce over.
            return lambda x: function(x[..., None], (-1,), False)
        return lambda x: function(x, dims, keep)

    return rowwise(make)


def _index(find: Callable[..., Any]) -> Callable[[Node], Run]:
    def make(node: Node) -> Callable[..., Any]:
        rank, axis = len(node.inputs[0].shape), node.attributes.get("axis")
        if axis is None:
            return lambda x: _arg(x.flatten(x.ndim - rank) if rank else x[..., None], -1, find).squeeze(-1)
        (dim,) = axes_of(axis, rank)
        return lambda x: _arg(x, dim, find)

    return rowwise(make)


def _arg(x: torch.Tensor, dim: int, find: Callable[..., Any]) -> torch.Tensor:
    return find(x, dim, True).to(x.dtype)


for _name, _function in REDUCTIONS.items():
    declare(_name, reduced_shape, _over(_function))
declare("argmax", reduced_shape, _index(torch.argmax))
declare("argmin", reduced_shape, _index(torch.argmin))


def _rows(node: Node) -> Callable[..., Any]:
    how, rank = REDUCTIONS[f"reduce_{node.attributes['how']}"], len(node.inputs[0].shape)
    dims = axes_of(node.attributes.get("axis", ()), rank)
    # The batch is the axis before the static ones.
    gone = (0, *dims) if not node.attributes.get("keepdims", True) else (0,)
    return lambda x: how(x, (-rank - 1, *dims), True).squeeze(gone)


def _reduced_rows(site: Site) -> Shape:
    """Attributes ``axis``, static axes that are reduced, too, and ``keepdims``, whether they stay, with length 1."""
    shape = site.shape(0)
    gone = axes_of(site.attributes.get("axis", ()), len(shape), site)
    if not site.attributes.get("keepdims", True):
        return tuple(n for i, n in enumerate(shape) if i - len(shape) not in gone)
    return tuple(1 if i - len(shape) in gone else n for i, n in enumerate(shape))


def _numbers(node: Node) -> Callable[..., Any]:
    how = REDUCTIONS[f"reduce_{node.attributes['how']}"]
    return lambda x: how(x.reshape(-1), (0,), False)


def _batch_only(site: Site) -> tuple[str, ...]:
    if site.types[0].axes != (BATCH,):
        site.refuse("an input with only a batch axis; reduce sequences first")
    return ()


def _channels(site: Site) -> Shape:
    shape = site.shape(0)
    if len(shape) < 2:
        site.refuse("channels of at least one more axis")
    return (*shape[:1], *(1,) * (len(shape) - 1))


def _per_channel(function: Callable[..., Any]) -> Callable[[Node], Run]:
    def make(node: Node) -> Callable[..., Any]:
        dims = tuple(range(1 - len(node.shape), 0))
        return lambda x: function(x, dims)

    return rowwise(make)


declare("global_max_pooling", _channels, _per_channel(edges.first_largest))
declare("global_average_pooling", _channels, _per_channel(lambda x, dims: x.mean(dims, keepdim=True)))
declare("reduce_everything", scalar, rowwise(_numbers), axes=no_axes, stepwise=False)
declare("reduce_batch", _reduced_rows, rowwise(_rows), axes=_batch_only, stepwise=False)


def _largest(site: Site) -> Shape:
    shape = list(site.shape(0))
    axis = from_end(site.attributes["axis"], len(shape), site)
    if not 1 <= site.attributes["k"] <= shape[axis]:
        site.refuse(f"at least {site.attributes['k']} elements along axis {axis}")
    shape[axis] = site.attributes["k"]
    return tuple(shape)


def _top_k(node: Node) -> Any:
    k, axis = node.attributes["k"], from_end(node.attributes["axis"], len(node.shape))

    def top(x: Any) -> Any:
        largest = x.topk(k, axis)
        return largest.indices.to(x.dtype) if node.attributes["indices"] else largest.values

    return top


declare("top_k", _largest, rowwise(_top_k))
