"""Operators that normalise: over a batch, over channels or groups of them, over neighbours, by length."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, axis_of, check_images, define, same
from feedline.mxnet.symbol._parameters import Parameter, flag, integer, real, word


def _by_channel(site: Site) -> None:
    shape = site.ins[0] if site.ins[0] is not None else site.outs[0]
    if shape is not None:
        site.put_in(0, shape)
        site.put_out(shape)
        for i in range(1, len(site.ins)):
            site.put_in(i, (shape[axis_of(site.p.axis, len(shape))],))


def _batch_norm(p: Any, training: bool, x: Any, gamma: Any, beta: Any, mean: Any, variance: Any) -> Any:
    axis = p.axis % x.dim()
    over = [i for i in range(x.dim()) if i != axis]
    wide = [-1 if i == axis else 1 for i in range(x.dim())]
    if training and not p.use_global_stats:
        now_mean, now_variance = x.mean(over), x.var(over, unbiased=False)
        with torch.no_grad():
            mean.lerp_(now_mean.to(mean.dtype), 1 - p.momentum)
            variance.lerp_(now_variance.to(variance.dtype), 1 - p.momentum)
    else:
        now_mean, now_variance = mean.clone(), variance.clone()
    scale = torch.rsqrt(now_variance + p.eps)
    y = (x - now_mean.reshape(wide)) * scale.reshape(wide)
    if not p.fix_gamma:
        y = y * gamma.reshape(wide)
    y = (y + beta.reshape(wide)).to(x.dtype)
    return (y, now_mean, scale) if p.output_mean_var else y


define(
    "BatchNorm",
    "data gamma beta moving_mean moving_var",
    _batch_norm,
    {
        "eps": Parameter(real, 1e-3),
        "momentum": Parameter(real, 0.9),
        "fix_gamma": Parameter(flag, True),
        "use_global_stats": Parameter(flag, False),
        "output_mean_var": Parameter(flag, False),
        "axis": Parameter(integer, 1),
        "cudnn_off": Parameter(flag, False),
    },
    states="moving_mean moving_var",
    weights="gamma beta",
    wide="gamma beta moving_mean moving_var",
    outputs=lambda p: 3 if p.output_mean_var else 1,
    hidden=lambda p: 0 if p.output_mean_var else 2,
    first={"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'},
    called="output mean var",
    shape=_by_channel,
)


def _moments(x: Any, over: Any, eps: float) -> tuple[Any, Any]:
    """Mean over some axes, and one over the deviation; the axes stay, of length 1."""
    return x.mean(over, keepdim=True), torch.rsqrt(x.var(over, unbiased=False, keepdim=True) + eps)


def _layer_norm(p: Any, training: bool, x: Any, gamma: Any, beta: Any) -> Any:
    axis = p.axis % x.dim()
    wide = [-1 if i == axis else 1 for i in range(x.dim())]
    mean, scale = _moments(x, axis, p.eps)
    return (x - mean) * scale * gamma.reshape(wide) + beta.reshape(wide)


define(
    "LayerNorm",
    "data gamma beta",
    _layer_norm,
    {"axis": Parameter(integer, -1), "eps": Parameter(real, 1e-5)},
    weights="gamma beta",
    hidden=2,
    called="output mean std",
    shape=_by_channel,
)


def _instance_shape(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None:
        if len(shape) < 3:
            site.refuse(f"expected data (batch, channels, *sizes), got {shape}")
        site.put_in(1, (shape[1],))
        site.put_in(2, (shape[1],))


def _instance_norm(p: Any, training: bool, x: Any, gamma: Any, beta: Any) -> Any:
    wide = (-1,) + (1,) * (x.dim() - 2)
    mean, scale = _moments(x, tuple(range(2, x.dim())), p.eps)
    return (x - mean) * scale * gamma.reshape(wide) + beta.reshape(wide)


define(
    "InstanceNorm",
    "data gamma beta",
    _instance_norm,
    {"eps": Parameter(real, 1e-3)},
    weights="gamma beta",
    hidden=2,
    called="output mean var",
    shape=_instance_shape,
)


def _group_shape(site: Site) -> None:
    shape, groups = site.ins[0], site.p.num_groups
    if shape is not None:
        if len(shape) < 3 or shape[1] % groups:
            site.refuse(f"expected data (batch, channels, *sizes) with channels in {groups} groups, got {shape}")
        # MXNet scales groups, where others scale channels.
        site.put_in(1, (groups,))
        site.put_in(2, (groups,))


def _group_norm(p: Any, training: bool, x: Any, gamma: Any, beta: Any) -> Any:
    grouped = x.reshape(x.shape[0], p.num_groups, -1)
    mean, scale = _moments(grouped, 2, p.eps)
    y = ((grouped - mean) * scale * gamma.reshape(-1, 1) + beta.reshape(-1, 1)).reshape(x.shape)
    return (y, mean.squeeze(2), 1 / scale.squeeze(2)) if p.output_mean_var else y


define(
    "GroupNorm",
    "data gamma beta",
    _group_norm,
    {"num_groups": Parameter(integer, 1), "eps": Parameter(real, 1e-5), "output_mean_var": Parameter(flag, False)},
    weights="gamma beta",
    outputs=lambda p: 3 if p.output_mean_var else 1,
    hidden=lambda p: 0 if p.output_mean_var else 2,
    called="output mean std",
    shape=_group_shape,
)


def _local_response(p: Any, training: bool, x: Any) -> Any:
    if p.nsize % 2 == 0:
        raise ValueError(f"expected an odd number of channels for nsize, got {p.nsize}")
    check_images(x)
    return functional.local_response_norm(x, p.nsize, p.alpha, p.beta, p.knorm)


define(
    "LRN",
    "data",
    _local_response,
    {
        "alpha": Parameter(real, 1e-4),
        "beta": Parameter(real, 0.75),
        "knorm": Parameter(real, 2.0),
        "nsize": Parameter(integer),
    },
    hidden=1,
    called="output tmp_norm",
)


def _l2(p: Any, training: bool, x: Any) -> Any:
    over = {"instance": range(1, x.dim()), "channel": (1,), "spatial": range(2, x.dim())}[p.mode]
    return x / torch.sqrt(torch.square(x).sum(tuple(over), keepdim=True) + p.eps)


define(
    "L2Normalization",
    "data",
    _l2,
    {"eps": Parameter(real, 1e-10), "mode": Parameter(word("channel", "instance", "spatial"), "instance")},
    hidden=1,
    called="output norm",
    shape=same,
)
