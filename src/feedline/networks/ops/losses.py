"""Losses and metrics, by CNTK's formulas, which accept any targets, one-hot or not.

Most return one number, or one per class, for each sample: packed rows have no padding. Losses that CNTK sums over the
minibatch (`weighted_binary_cross_entropy`, the top-N error) have no dynamic axis here either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from feedline.networks.node import Node
from feedline.networks.ops import edges
from feedline.networks.ops.align import adapter, align_inputs, broadcasting, dense
from feedline.networks.packed_minibatch import PackedBatch, Run, SparseRows
from feedline.networks.registry import Shape, Site, declare, join_axes
from feedline.networks.shapes import axes_of, broadcast, broadcast_shapes, fits_lengths, scalar, times_transpose

# CNTK adds this to probabilities before taking logarithms, in single precision for any dtype of the operands.
_EPSILON, _ONE_AND_EPSILON = float(np.float32(1e-6)), float(np.float32(1 + 1e-6))

LAST = -1  # default axis of classes, the only one for which targets may be sparse


def _axis(node_or_site: Any) -> int | None:
    axis: int | None = node_or_site.attributes.get("axis", LAST)
    return axis


def _scored_shape(site: Site) -> Shape:
    """Shape of targets times scores. The last axis contracts two vectors, any other axis stays, with length 1."""
    if _axis(site) == LAST:
        return times_transpose(site)
    shape = broadcast_shapes(site, [site.shape(0), site.shape(1)])
    if _axis(site) is None:
        return ()
    gone = axes_of(_axis(site), len(shape), site)
    return tuple(1 if i - len(shape) in gone else n for i, n in enumerate(shape))


def _pair(node: Node, run: Callable[[Any, Any], Any]) -> Run:
    """Align scores and targets to the rows of the result. Targets may be sparse."""
    rank = max(len(child.shape) for child in node.inputs[:2]) if _axis(node) != LAST else None
    first, second = (adapter(child, node.axes, rank) for child in node.inputs[:2])

    def align_inputs(batch: PackedBatch, scores: Any, target: Any) -> Any:
        scores = dense(scores, node)
        scores = scores if first is None else first(batch, scores)
        target = target if second is None else second(batch, target)
        return run(scores, target)

    return align_inputs


def _as_vectors(node: Node, scores: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors of scores and of targets, (..., vectors, classes) each. Each score meets each target."""
    vectors = []
    for x, child in zip((scores, target), node.inputs, strict=False):
        lead = x.shape[: x.ndim - len(child.shape)]
        vectors.append(x.reshape(*lead, -1, x.shape[-1]))
    return vectors[0], vectors[1]


def _cross_entropy(node: Node) -> Run:
    """``logsumexp(scores) - target . scores``.

    Everything is computed relative to the largest score, as large scores would cancel.
    """
    if _axis(node) != LAST:
        return _cross_entropy_along(node)
    shape, plain = node.shape, [len(child.shape) for child in node.inputs] == [1, 1]

    def run(scores: torch.Tensor, target: Any) -> torch.Tensor:
        if isinstance(target, SparseRows):
            flat = scores if scores.ndim == 2 else scores.reshape(-1, scores.shape[-1])
            return _sparse_cross_entropy(flat, target.repeated(math.prod(shape))).reshape(-1, *shape)
        if plain:
            return _entropy(scores, target, (-1,), keep=True)
        vectors, targets = _as_vectors(node, scores, target)
        moved, top = _relative(vectors, (-1,))
        correction = top * (1 - targets.sum(-1)[..., None, :])
        y = torch.logsumexp(moved, -1, keepdim=True) - moved @ targets.transpose(-1, -2) + correction
        return y.reshape(*y.shape[:-2], *shape)

    return _pair(node, run)


def _cross_entropy_along(node: Node) -> Run:
    rank = max(len(child.shape) for child in node.inputs)
    dims, keep = axes_of(_axis(node), rank), _axis(node) is not None

    return _pair(node, lambda scores, target: _entropy(scores, dense(target, node), dims, keep))


def _entropy(scores: torch.Tensor, target: torch.Tensor, dims: tuple[int, ...], keep: bool) -> torch.Tensor:
    moved, top = _relative(scores, dims)
    correction = (top if keep else top.squeeze(dims)) * (1 - target.sum(dims, keepdim=keep))
    return torch.logsumexp(moved, dims, keepdim=keep) - (moved * target).sum(dims, keepdim=keep) + correction


def _relative(scores: torch.Tensor, dims: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores minus the largest one, and the largest one."""
    top = scores.detach().amax(dims, keepdim=True)
    return scores - top, top


def _sparse_cross_entropy(scores: torch.Tensor, target: SparseRows) -> torch.Tensor:
    if target.one_hot:
        return functional.cross_entropy(scores, target.indices, reduction="none")
    moved, top = _relative(scores, (-1,))
    correction = top[:, 0] * (1 - target.weighted(torch.ones_like(scores[:1]).expand_as(scores)))
    return torch.logsumexp(moved, -1) - target.weighted(moved) + correction


def _classification_error(node: Node) -> Run:
    """1 minus the target at the largest score. Along an axis: whether any largest score differs from its target."""
    top = node.attributes.get("top", 1)
    if top > 1:
        return _pair(node, lambda scores, target: _is_missed(node, scores, target, top))
    if _axis(node) != LAST:
        return _classification_error_along(node)
    shape, rank = node.shape, len(node.inputs[0].shape)

    def run(scores: torch.Tensor, target: Any) -> torch.Tensor:
        scores = scores.detach()
        if isinstance(target, SparseRows):
            if scores.ndim == 2:
                return _sparse_error(scores, target)
            best = _one_hot_best(scores, rank)
            return 1 - target.repeated(math.prod(shape)).weighted(best.flatten(0, -2)).reshape(-1, *shape)
        vectors, targets = _as_vectors(node, _one_hot_best(scores, rank), target)
        y = 1 - vectors @ targets.transpose(-1, -2)
        return y.reshape(*y.shape[:-2], *shape)

    return _pair(node, run)


def _classification_error_along(node: Node) -> Run:
    rank = max(len(child.shape) for child in node.inputs)
    dims = axes_of(_axis(node), rank)

    def run(scores: torch.Tensor, target: Any) -> torch.Tensor:
        best = (scores == scores.amax(dims, keepdim=True)).to(scores.dtype)
        wrong = best != dense(target, node)
        wrong = wrong.any(dims, keepdim=True)
        return wrong.to(scores.dtype).mean(tuple(range(-rank, 0)))

    return _pair(node, run)


def _one_hot_best(scores: torch.Tensor, rank: int) -> torch.Tensor:
    """1 at the first of the largest elements of each sample, over all axes."""
    flat = scores.flatten(scores.ndim - rank)
    return torch.zeros_like(flat).scatter_(-1, flat.argmax(-1, keepdim=True), 1.0).reshape(scores.shape)


def _sparse_error(scores: torch.Tensor, target: SparseRows) -> torch.Tensor:
    if target.one_hot:
        return (scores.argmax(-1, keepdim=True) != target.indices[:, None]).to(scores.dtype)
    return 1 - target.weighted(_one_hot_best(scores, 1))[:, None]


def _is_missed(node: Node, scores: torch.Tensor, target: Any, top: int) -> torch.Tensor:
    """Number of samples of the minibatch whose largest target is not among the ``top`` largest scores."""
    if isinstance(target, SparseRows) and target.dense_dtype is not None:
        target = target.dense()
    if isinstance(target, SparseRows):
        if not target.one_hot:
            raise TypeError(f"{node.label}: expected one-hot sparse labels, got rows of several or no entries")
        label = target.indices[:, None]
    else:
        label = target.flatten(1).argmax(-1, keepdim=True)
    # Of equal scores the first ones count as larger.
    best = scores.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, :top]
    return (best != label).all(-1).sum().to(scores.dtype)


def _error_shape(site: Site) -> Shape:
    top, shape = site.attributes.get("top", 1), site.shape(0)
    if top == 1:
        scored = _scored_shape(site)
        return scored if _axis(site) == LAST else ()
    if _axis(site) != LAST:
        site.refuse(f"no axis with topN={top}")
    if not fits_lengths(shape, site.shape(1)) or not shape or top > np.prod(shape):
        site.refuse(f"scores and targets of one shape, of at least {top} classes")
    return ()


def _error_axes(site: Site) -> tuple[str, ...] | None:
    """Return the dynamic axes. A top-N error is a count over the whole minibatch and has none."""
    return join_axes(site) if site.attributes.get("top", 1) == 1 else _of_minibatch(site)


def _sum_of(function: Callable[..., torch.Tensor]) -> Callable[[Node], Run]:
    """Lowering of a function of elements, summed over the sample."""

    def lower(node: Node) -> Run:
        rank = max(len(child.shape) for child in node.inputs)
        elements = broadcasting(function)(node)
        dims = tuple(range(-rank, 0))

        def run(batch: PackedBatch, *tensors: Any) -> Any:
            y = elements(batch, *tensors)
            return y.sum(dims) if dims else y

        return run

    return lower


def _check_shape(site: Site) -> Shape:
    broadcast_shapes(site, [site.shape(i) for i in range(len(site.inputs))])
    return ()


def _binary(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of each element, for any target, with an epsilon added inside the logarithms."""
    hit, miss = edges.logarithm(output + _EPSILON), edges.logarithm(_ONE_AND_EPSILON - output)
    return -(target * hit + (1 - target) * miss)


class _WeightedBinary(torch.autograd.Function):
    """Sum over the minibatch, with weights scaled to a mean of 1. The gradient uses unscaled weights."""

    @staticmethod
    def forward(context: Any, output: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(output, target, weight)
        each = -torch.log(target * output + (1 - target) * (1 - output))
        return (weight * each).sum() * (len(output) / weight.sum())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        output, target, weight = context.saved_tensors
        return gradient * weight * (output - target) / (output * (1 - output)), None, None


def _weighted_binary(node: Node) -> Run:
    axes = max((child.axes for child in node.inputs), key=len)
    adapt = [adapter(child, axes, None) for child in node.inputs]

    def run(batch: PackedBatch, *tensors: Any) -> Any:
        rows = [x.reshape(-1) for x in align_inputs(adapt, node, batch, tensors)]
        return _WeightedBinary.apply(*torch.broadcast_tensors(*rows))

    return run


def _single(site: Site) -> Shape:
    if any(site.shape(i) not in ((), (1,)) for i in range(3)):
        site.refuse("one probability, one target and one weight per sample")
    return ()


def _of_minibatch(site: Site) -> tuple[str, ...]:
    if not join_axes(site):
        site.refuse("operands with a batch axis")
    return ()


def _cosine(node: Node) -> Run:
    rank, small = len(node.inputs[0].shape), 1e-8

    def run(a: torch.Tensor, b: Any) -> torch.Tensor:
        a, b = a.flatten(-rank), dense(b, node).flatten(-rank)
        return (a * b).sum(-1) / (a.norm(dim=-1).clamp_min(small) * b.norm(dim=-1).clamp_min(small))

    return _pair(node, run)


def _cosines_of_others(node: Node) -> Run:
    """Cosines of a sample with its partner, and with later partners in the minibatch, continued from its start."""
    shift, negatives, small = node.attributes["shift"], node.attributes["others"], 1e-8

    def run(a: torch.Tensor, b: Any) -> torch.Tensor:
        a, b = (functional.normalize(x.flatten(1), dim=-1, eps=small) for x in (a, dense(b, node)))
        cosines = [(a * b).sum(-1)]
        cosines += [(a * b.roll(-(shift + i), 0)).sum(-1) for i in range(negatives)]
        return torch.stack(cosines, -1)

    return _pair(node, run)


def _with_others(site: Site) -> Shape:
    _same_shapes(site)
    if not join_axes(site):
        site.refuse("samples with a batch axis")
    return (1 + site.attributes["others"],)


def _same_shapes(site: Site) -> Shape:
    if not fits_lengths(site.shape(0), site.shape(1)) or not site.shape(0):
        site.refuse("two samples of one shape")
    return scalar(site)


declare("cross_entropy_with_softmax", _scored_shape, _cross_entropy, labels=lambda node: _axis(node) == LAST)
declare(
    "classification_error",
    _error_shape,
    _classification_error,
    axes=_error_axes,
    labels=lambda node: _axis(node) == LAST and node.attributes.get("top", 1) == 1,
)
declare("squared_error", _check_shape, _sum_of(lambda a, b: torch.square(a - b)))
declare("binary_cross_entropy", broadcast, broadcasting(_binary))
declare("weighted_binary_cross_entropy", _single, _weighted_binary, axes=_of_minibatch, stepwise=False)
declare("cosine_distance", _same_shapes, _cosine)
declare("cosine_distance_with_negative_samples", _with_others, _cosines_of_others, stepwise=False)
