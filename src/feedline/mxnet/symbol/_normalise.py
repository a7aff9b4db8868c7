"""Normalisation operators: over the batch, channels or groups of channels, neighbouring channels, or by norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, axis_of, check_images, define, from_data, same
from feedline.mxnet.symbol._parameters import Shape


def _by_channel(site: Site) -> None:
    shape = site.ins[0] if site.ins[0] is not None else site.outs[0]
    if shape is not None:
        site.put_in(0, shape)
        site.put_out(shape)
        for i in range(1, len(site.ins)):
            site.put_in(i, (shape[axis_of(site.p.axis, len(shape))],))


@define(
    "BatchNorm",
    states="moving_mean moving_var",
    weights="gamma beta",
    wide="gamma beta moving_mean moving_var",
    outputs=lambda p: 3 if p.output_mean_var else 1,
    hidden=lambda p: 0 if p.output_mean_var else 2,
    first={"moving_mean": '["zero", {}]', "moving_var": '["one", {}]'},
    called="output mean var",
    shape=_by_channel,
)
def _batch_norm(
    data: Any,
    gamma: Any,
    beta: Any,
    moving_mean: Any,
    moving_var: Any,
    *,
    training: bool,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    cudnn_off: bool = False,
) -> Any:
    axis = axis % data.dim()
    over = [i for i in range(data.dim()) if i != axis]
    wide = _along(axis, data)
    if training and not use_global_stats:
        mean, variance = data.mean(over), data.var(over, unbiased=False)
        with torch.no_grad():
            moving_mean.lerp_(mean.to(moving_mean.dtype), 1 - momentum)
            moving_var.lerp_(variance.to(moving_var.dtype), 1 - momentum)
    else:
        mean, variance = moving_mean.clone(), moving_var.clone()
    scale = torch.rsqrt(variance + eps)
    y = (data - mean.reshape(wide)) * scale.reshape(wide)
    if not fix_gamma:
        y = y * gamma.reshape(wide)
    y = (y + beta.reshape(wide)).to(data.dtype)
    return (y, mean, scale) if output_mean_var else y


def _along(axis: int, x: Any) -> list[int]:
    """Return the shape with which a vector broadcasts along an axis of ``x``."""
    return [-1 if i == axis else 1 for i in range(x.dim())]


def _moments(x: Any, over: Any, eps: float) -> tuple[Any, Any]:
    """Return the mean over some axes and the inverse standard deviation. The axes are kept, with length 1."""
    return x.mean(over, keepdim=True), torch.rsqrt(x.var(over, unbiased=False, keepdim=True) + eps)


@define("LayerNorm", weights="gamma beta", hidden=2, called="output mean std", shape=_by_channel)
def _layer_norm(data: Any, gamma: Any, beta: Any, *, axis: int = -1, eps: float = 1e-5) -> Any:
    axis = axis % data.dim()
    wide = _along(axis, data)
    mean, scale = _moments(data, axis, eps)
    return (data - mean) * scale * gamma.reshape(wide) + beta.reshape(wide)


@from_data
def _instance_shape(x: Shape, p: Any) -> Sequence[Shape]:
    if len(x) < 3:
        raise ValueError(f"expected data (batch, channels, *sizes), got {x}")
    return (x[1],), (x[1],)


@define("InstanceNorm", weights="gamma beta", hidden=2, called="output mean var", shape=_instance_shape)
def _instance_norm(data: Any, gamma: Any, beta: Any, *, eps: float = 1e-3) -> Any:
    wide = _along(1, data)[1:]
    mean, scale = _moments(data, tuple(range(2, data.dim())), eps)
    return (data - mean) * scale * gamma.reshape(wide) + beta.reshape(wide)


@from_data
def _group_shape(x: Shape, p: Any) -> Sequence[Shape]:
    if len(x) < 3 or x[1] % p.num_groups:
        raise ValueError(f"expected data (batch, channels, *sizes) with channels in {p.num_groups} groups, got {x}")
    # MXNet scales groups, whereas other libraries scale channels.
    return (p.num_groups,), (p.num_groups,)


@define(
    "GroupNorm",
    weights="gamma beta",
    outputs=lambda p: 3 if p.output_mean_var else 1,
    hidden=lambda p: 0 if p.output_mean_var else 2,
    called="output mean std",
    shape=_group_shape,
)
def _group_norm(
    data: Any, gamma: Any, beta: Any, *, num_groups: int = 1, eps: float = 1e-5, output_mean_var: bool = False
) -> Any:
    grouped = data.reshape(data.shape[0], num_groups, -1)
    mean, scale = _moments(grouped, 2, eps)
    y = ((grouped - mean) * scale * gamma.reshape(-1, 1) + beta.reshape(-1, 1)).reshape(data.shape)
    return (y, mean.squeeze(2), 1 / scale.squeeze(2)) if output_mean_var else y


@define("LRN", hidden=1, called="output tmp_norm")
def _local_response(data: Any, *, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0, nsize: int) -> Any:
    if nsize % 2 == 0:
        raise ValueError(f"expected an odd number of channels for nsize, got {nsize}")
    check_images(data)
    return functional.local_response_norm(data, nsize, alpha, beta, knorm)


@define("L2Normalization", hidden=1, called="output norm", shape=same)
def _l2(data: Any, *, eps: float = 1e-10, mode: Literal["channel", "instance", "spatial"] = "instance") -> Any:
    over = {"instance": range(1, data.dim()), "channel": (1,), "spatial": range(2, data.dim())}[mode]
    return data / torch.sqrt(torch.square(data).sum(tuple(over), keepdim=True) + eps)
