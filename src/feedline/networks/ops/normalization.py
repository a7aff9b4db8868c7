"""Batch normalisation, with running statistics that are constants of the network.

A minibatch is normalised by its own variance, and the running variance moves towards an unbiased estimate, which is
larger by n / (n - 1), where n is the number of values in a statistic. With a single value the running variance is
unchanged.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from feedline.networks.node import UNKNOWN, Node
from feedline.networks.ops.align import dense
from feedline.networks.packed_minibatch import PackedBatch, Run
from feedline.networks.registry import Shape, Site, declare
from feedline.networks.shapes import fits_lengths

# Inputs: operand, scale, bias, running mean, running variance, number of samples in the statistics.


def _normalized_shape(site: Site) -> Shape:
    shape = site.shape(0)
    expected = shape[:1] if site.attributes["spatial"] else shape
    for i in range(1, 5):
        statistic = site.shape(i)
        if UNKNOWN in statistic:
            site.fix_shape(i, expected)
        elif not fits_lengths(statistic, expected) and statistic != (math.prod(expected),):
            site.refuse(f"scale, bias and statistics of shape {expected}, or flat ones")
    return shape


def _axes(site: Site) -> tuple[str, ...] | None:
    if site.types[0].axes == ():
        site.refuse("an operand with a batch axis")
    return site.types[0].axes


def _batch_normalization(node: Node) -> Run:
    get = node.attributes
    rank = len(node.shape)
    dims = [0, *range(2, rank + 1)] if get["spatial"] else [0]
    fit = (-1, *(1,) * (rank - 1)) if get["spatial"] and rank else node.shape
    normalize, blend, epsilon = get["normalization_time_constant"], get["blend_time_constant"], get["epsilon"]

    # torch's kernel takes channels second and one element type. It normalises by the minibatch or by the running
    # statistics, and updates these by the same rule, which needs two values.
    has_kernel = get["spatial"] or rank == 1

    def run(batch: PackedBatch, x: Any, scale: Any, bias: Any, mean: Any, variance: Any, count: Any) -> Any:
        x = dense(x, node)
        training, numbers = batch.training and len(x) > 0, math.prod(x.shape[dim] for dim in dims)
        same_type = all(t.dtype == x.dtype for t in (scale, bias, mean, variance))
        if has_kernel and same_type and len(x) and not (training and (blend != 0 or numbers == 1)):
            share = _share(x.shape[0], count) if training else 0.0
            return torch.batch_norm(x, scale, bias, mean, variance, training, share, epsilon, False)
        used_mean, used_variance = mean, variance
        if training:
            used_variance, used_mean = torch.var_mean(x, dims, correction=0)
            used_mean, used_variance = _update(x, used_mean, used_variance, mean, variance, count)
        std = (used_variance + epsilon).rsqrt()
        return (x - used_mean.reshape(fit)) * (scale * std.reshape(scale.shape)).reshape(fit) + bias.reshape(fit)

    def _share(samples: int, count: Any) -> float:
        """Add samples to their number, and return the share of this minibatch in the running statistics."""
        previous = float(count)
        with torch.no_grad():
            count.add_(samples)
        if previous == 0:
            return 1.0
        if normalize < 0:
            return samples / (samples + previous)
        return -math.expm1(-samples / normalize) if normalize > 0 else 1.0

    def _update(x: Any, now: Any, now_variance: Any, mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
        """Update the running statistics, and return the mean and variance to normalise by."""
        samples = x.shape[0]
        numbers, share = math.prod(x.shape[dim] for dim in dims), _share(samples, count)
        with torch.no_grad():
            mean.lerp_(now.reshape(mean.shape), share)
            if numbers > 1:
                variance.lerp_(now_variance.reshape(variance.shape) * (numbers / (numbers - 1)), share)
        if blend == 0:
            return now, now_variance
        old = 1.0 if math.isinf(blend) else blend / (blend + samples)
        olds = mean.reshape(now.shape), variance.reshape(now.shape)
        return now * (1 - old) + olds[0] * old, now_variance * (1 - old) + olds[1] * old

    return run


declare("batch_normalization", _normalized_shape, _batch_normalization, axes=_axes, stepwise=False)
