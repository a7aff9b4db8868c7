"""Losses and metrics: one number for each sample, the valid ones only, as packed rows have no padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from feedline.graph.node import Node
from feedline.graph.ops.align import adapter, broadcasting, dense
from feedline.graph.packed import Batch, Run, SparseRows
from feedline.graph.registry import Shape, Site, declare
from feedline.graph.shapes import broadcast_shapes, from_end, scalar


def _along_axis(site: Site) -> Shape:
    """One number for samples of one axis; otherwise the axis becomes 1 wide."""
    shape = broadcast_shapes(site, [site.shape(0), site.shape(1)])
    axis = from_end(site.attributes.get("axis", -1), len(shape), site) if shape else -1
    if not shape:
        site.refuse("a vector of scores")
    return () if len(shape) == 1 else (*shape[:axis], 1, *shape[len(shape) + axis + 1 :])


def _pair(node: Node, run: Callable[[Any, Any], Any]) -> Run:
    """Brings scores and targets to the rows of the result; targets may be sparse."""
    rank = max(len(child.shape) for child in node.inputs[:2])
    first, second = (adapter(child, node.axes, rank) for child in node.inputs[:2])

    def aligned(batch: Batch, scores: Any, target: Any) -> Any:
        scores = dense(scores, node)
        scores = scores if first is None else first(batch, scores)
        target = target if second is None else second(batch, target)
        return run(scores, target)

    return aligned


def _cross_entropy(node: Node) -> Run:
    dim, single = from_end(node.attributes.get("axis", -1), len(node.inputs[0].shape)), len(node.shape) == 0

    def run(scores: torch.Tensor, target: Any) -> torch.Tensor:
        if isinstance(target, SparseRows):
            if target.one_hot:
                return functional.cross_entropy(scores, target.indices, reduction="none")
            return -target.weighted(torch.log_softmax(scores, 1))
        return -(target * torch.log_softmax(scores, dim)).sum(dim, keepdim=not single)

    return _pair(node, run)


def _classification_error(node: Node) -> Run:
    dim, single = from_end(node.attributes.get("axis", -1), len(node.inputs[0].shape)), len(node.shape) == 0
    top = node.attributes.get("top", 1)

    def run(scores: torch.Tensor, target: Any) -> torch.Tensor:
        if isinstance(target, SparseRows):
            if not target.one_hot:
                raise TypeError(f"{node.label}: expected one-hot sparse labels, got rows of several or no entries")
            label = target.indices[:, None]
        else:
            label = target.argmax(dim, keepdim=True)
        found = scores.argmax(dim, keepdim=True) if top == 1 else scores.topk(top, dim).indices
        wrong = (found != label).all(dim, keepdim=not single)
        return wrong.to(scores.dtype)

    return _pair(node, run)


def _sum_of(function: Callable[..., torch.Tensor]) -> Callable[[Node], Run]:
    """A function of elements, summed over the sample."""

    def lower(node: Node) -> Run:
        rank = max(len(child.shape) for child in node.inputs)
        elements = broadcasting(function)(node)
        dims = tuple(range(-rank, 0))

        def run(batch: Batch, *tensors: Any) -> Any:
            y = elements(batch, *tensors)
            return y.sum(dims) if dims else y

        return run

    return lower


def _checked(site: Site) -> Shape:
    broadcast_shapes(site, [site.shape(i) for i in range(len(site.inputs))])
    return ()


def _binary(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    output, target = torch.broadcast_tensors(output, target)
    return functional.binary_cross_entropy(output, target, reduction="none")


def _weighted_binary(output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * _binary(output, target)


declare("cross_entropy_with_softmax", _along_axis, _cross_entropy)
declare("classification_error", _along_axis, _classification_error)
declare("squared_error", _checked, _sum_of(lambda a, b: torch.square(a - b)))
declare("binary_cross_entropy", _checked, _sum_of(_binary))
declare("weighted_binary_cross_entropy", _checked, _sum_of(_weighted_binary))


def _cosine(node: Node) -> Run:
    def run(a: torch.Tensor, b: Any) -> torch.Tensor:
        b = dense(b, node)
        small = 1e-8
        return (a * b).sum(-1) / (a.norm(dim=-1).clamp_min(small) * b.norm(dim=-1).clamp_min(small))

    return _pair(node, run)


def _same_shapes(site: Site) -> Shape:
    if site.shape(0) != site.shape(1) or len(site.shape(0)) != 1:
        site.refuse("two vectors of one shape")
    return scalar(site)


declare("cosine_distance", _same_shapes, _cosine)
