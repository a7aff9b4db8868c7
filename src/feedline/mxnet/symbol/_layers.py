"""Operators of layers: with parameters, pooling, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Site, define, from_data, same
from feedline.mxnet.symbol._parameters import ElementType, Fraction, Positive, Shape
from feedline.networks.ops.convolution import AVERAGE, CONVOLVE, MAXIMUM, TRANSPOSED

# Some settings tuned MXNet's own libraries, and do not change results: workspace, cudnn_tune, cudnn_off, layout.
Layout = Literal["NCW", "NCHW", "NCDHW"] | None
_BIAS = {"bias": lambda p: not p.no_bias}

# ---- dense --------------------------------------------------------------------------------------------------


def _dense_shape(site: Site) -> None:
    x, p = site.ins[0], site.p
    if x is None:
        return
    features = x[1:] if p.flatten else x[-1:]
    site.put_in(1, (p.num_hidden, math.prod(features)))
    if len(site.ins) > 2:
        site.put_in(2, (p.num_hidden,))
    weight = site.ins[1]
    if weight is not None and weight[1] and features.count(0) == 1:
        length, remainder = divmod(weight[1], math.prod(n for n in features if n))
        if remainder:
            site.refuse(f"expected data whose features fit weights of shape {weight}, got {x}")
        site.put_in(0, (*x[: len(x) - len(features)], *[n or length for n in features]))


@define("FullyConnected", when=_BIAS, weights="weight bias", shape=_dense_shape)
def _dense(
    data: Any, weight: Any, bias: Any = None, *, num_hidden: Positive, no_bias: bool = False, flatten: bool = True
) -> Any:
    rows = data.reshape(len(data), -1) if flatten else data
    if rows.is_meta:  # `_dense_shape` has checked the weights, and torch's meta kernel would import its compiler
        return rows.new_empty((*rows.shape[:-1], num_hidden))
    return functional.linear(rows, weight, bias)


def _embedding_shape(site: Site) -> None:
    site.put_in(1, (site.p.input_dim, site.p.output_dim))


@define("Embedding", weights="weight", free="data", shape=_embedding_shape)
def _embedding(
    data: Any,
    weight: Any,
    *,
    input_dim: Positive,
    output_dim: Positive,
    dtype: ElementType = "float32",
    sparse_grad: bool = False,
) -> Any:
    # Indices out of range mean the first or last row.
    return functional.embedding(data.to(torch.int64).clamp(0, input_dim - 1), weight)


# ---- convolution --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Settings that convolutions and transposed convolutions share."""

    kernel: Shape
    stride: Shape = ()
    dilate: Shape = ()
    pad: Shape = ()
    num_filter: Positive
    num_group: Positive = 1
    layout: Layout = None
    workspace: int = 1024
    cudnn_tune: str | None = None
    cudnn_off: bool = False

    def steps(self) -> tuple[Shape, Shape, Shape]:
        """Return strides, padding and dilation of every axis."""
        ones = (1,) * len(self.kernel)
        return self.stride or ones, self.pad or (0,) * len(self.kernel), self.dilate or ones


def _check_rank(shape: Shape, kernel: Shape) -> None:
    if len(kernel) not in CONVOLVE or len(shape) != len(kernel) + 2:
        raise ValueError(f"expected data (batch, channels, *sizes) for the kernel {kernel}, got {tuple(shape)}")


@from_data
def _kernel_shape(x: Shape, p: Any) -> Sequence[Shape]:
    _check_rank(x, p.kernel)
    if x[1] % p.num_group or p.num_filter % p.num_group:
        raise ValueError(f"expected channels and filters in {p.num_group} equal groups, got {x[1]} and {p.num_filter}")
    return (p.num_filter, x[1] // p.num_group, *p.kernel), (p.num_filter,)


@from_data
def _transposed_shape(x: Shape, p: Any) -> Sequence[Shape]:
    _check_rank(x, p.kernel)
    return (x[1], p.num_filter // p.num_group, *p.kernel), (p.num_filter,)


@define("Convolution", when=_BIAS, weights="weight bias", shape=_kernel_shape)
def _convolution(data: Any, weight: Any, bias: Any = None, *, window: Window, no_bias: bool = False) -> Any:
    return CONVOLVE[len(window.kernel)](data, weight, bias, *window.steps(), window.num_group)


@define("Deconvolution", when=_BIAS, weights="weight bias", shape=_transposed_shape)
def _deconvolution(
    data: Any,
    weight: Any,
    bias: Any = None,
    *,
    window: Window,
    adj: Shape = (),
    target_shape: Shape = (),
    no_bias: bool = True,
) -> Any:
    (stride, pad, dilate), extra, sizes = window.steps(), adj or (0,) * len(window.kernel), tuple(data.shape[2:])
    if any(target_shape):  # it determines the padding and the cells added at the end of each axis
        over = [
            s * (n - 1) + d * (k - 1) + 1 - t
            for n, k, s, d, t in zip(sizes, window.kernel, stride, dilate, target_shape, strict=True)
        ]
        if min(over) < 0:
            raise ValueError(f"expected a target shape within reach of the kernel, got {target_shape} for {sizes}")
        pad, extra = tuple((o + 1) // 2 for o in over), tuple(o % 2 for o in over)
    return TRANSPOSED[len(window.kernel)](data, weight, bias, stride, pad, extra, window.num_group, dilate)


# ---- pooling ------------------------------------------------------------------------------------------------


def _after(size: int, kernel: int, stride: int, pad: int, convention: str) -> int:
    """Return the padding at the end of an axis by which the last window fits. Negative: cells outside all windows."""
    room = size + 2 * pad - kernel
    if convention == "same":
        count = -(-size // stride)
    else:
        count = (-(-room // stride) if convention == "full" else room // stride) + 1
    if count < 1:
        raise ValueError(f"expected a kernel that fits the input, got length {kernel} for {size}")
    return (count - 1) * stride + kernel - size - pad


@define(
    "Pooling",
    # A workspace of the CPU library that MXNet 1.9 was built with.
    hidden=lambda p: int(p.pool_type == "max" and 1 <= len(p.kernel) <= 3),
    called="output workspace",
)
def _pooling(
    data: Any,
    *,
    kernel: Shape = (),
    pool_type: Literal["avg", "lp", "max", "sum"] = "max",
    global_pool: bool = False,
    pooling_convention: Literal["full", "same", "valid"] = "valid",
    stride: Shape = (),
    pad: Shape = (),
    p_value: int | None = 2,
    count_include_pad: bool | None = True,
    layout: Layout = None,
    cudnn_off: bool = False,
) -> Any:
    sizes = tuple(data.shape[2:])
    rank = len(sizes)
    if rank not in AVERAGE or not global_pool:
        _check_rank(data.shape, kernel)
    stride, before = stride or (1,) * rank, pad or (0,) * rank
    if global_pool:
        kernel, stride, before = sizes, (1,) * rank, (0,) * rank
    lengths = zip(sizes, kernel, stride, before, strict=True)
    after = [_after(n, k, s, a, "valid" if global_pool else pooling_convention) for n, k, s, a in lengths]
    # Negative padding crops cells that no window covers.
    edges = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    if pool_type == "max":
        return MAXIMUM[rank](functional.pad(data, edges, value=-math.inf), kernel, stride)
    cells = math.prod(kernel)
    if pool_type == "lp":
        if p_value is None:
            raise ValueError("expected p_value for pool_type lp, got None")
        total = AVERAGE[rank](functional.pad(data.abs() ** p_value, edges), kernel, stride) * cells
        return total ** (1 / p_value)
    total = AVERAGE[rank](functional.pad(data, edges), kernel, stride) * cells
    if pool_type == "sum":
        return total
    counted = torch.ones((1, 1, *sizes), dtype=data.dtype, device=data.device)
    if count_include_pad and not global_pool:
        # Cells of the padding count towards the average, cells beyond it do not.
        counted = functional.pad(counted, [n for a in reversed(before) for n in (a, a)], value=1.0)
        edges = [n for a, b in reversed(list(zip(before, after, strict=True))) for n in (0, b - a)]
    return total / (AVERAGE[rank](functional.pad(counted, edges), kernel, stride) * cells)


# ---- dropout ------------------------------------------------------------------------------------------------


@define("Dropout", hidden=1, called="output mask", shape=same)
def _dropout(
    data: Any,
    *,
    training: bool,
    p: Fraction = 0.5,
    mode: Literal["always", "training"] = "training",
    axes: Shape = (),
    cudnn_off: bool | None = False,
) -> Any:
    if not (training or mode == "always") or p == 0:
        return data.clone()
    shape = [1 if i in axes else n for i, n in enumerate(data.shape)]
    mask = torch.empty(shape, dtype=data.dtype, device=data.device).bernoulli_(1 - p)
    return data * mask / (1 - p)
