"""Operators with parameters, and those that go with them: layers, pooling, dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Shape, Site, define, same
from feedline.mxnet.symbol._parameters import Parameter, between, dims, dtype, flag, integer, optional, real, text, word
from feedline.networks.ops.convolution import AVERAGE, CONVOLVE, MAXIMUM, TRANSPOSED

# Settings that told MXNet's own libraries how to work, and change no result.
_IDLE = {
    "workspace": Parameter(integer, 1024),
    "cudnn_tune": Parameter(text, None),
    "cudnn_off": Parameter(flag, False),
}


def _with_bias(p: Any) -> Names:
    return ("data", "weight") if p.no_bias else ("data", "weight", "bias")


# ---- dense --------------------------------------------------------------------------------------------------


def _dense_shape(site: Site) -> None:
    x, p = site.ins[0], site.p
    if x is None:
        return
    width = math.prod(x[1:]) if p.flatten else x[-1]
    site.put_in(1, (p.num_hidden, width))
    if not p.no_bias:
        site.put_in(2, (p.num_hidden,))


def _dense(p: Any, training: bool, x: Any, w: Any, b: Any = None) -> Any:
    return functional.linear(x.reshape(len(x), -1) if p.flatten else x, w, b)


define(
    "FullyConnected",
    _with_bias,
    _dense,
    {"num_hidden": Parameter(between(integer, 1)), "no_bias": Parameter(flag, False), "flatten": Parameter(flag, True)},
    weights="weight bias",
    shape=_dense_shape,
)


def _embedding_shape(site: Site) -> None:
    site.put_in(1, (site.p.input_dim, site.p.output_dim))


def _embedding(p: Any, training: bool, x: Any, w: Any) -> Any:
    # Numbers out of range mean the first or last row.
    return functional.embedding(x.to(torch.int64).clamp(0, p.input_dim - 1), w)


define(
    "Embedding",
    "data weight",
    _embedding,
    {
        "input_dim": Parameter(between(integer, 1)),
        "output_dim": Parameter(between(integer, 1)),
        "dtype": Parameter(dtype, "float32"),
        "sparse_grad": Parameter(flag, False),
    },
    weights="weight",
    free="data",
    dtype=lambda p: str(p.dtype),
    shape=_embedding_shape,
)

# ---- convolution --------------------------------------------------------------------------------------------

_WINDOW = {
    "kernel": Parameter(dims),
    "stride": Parameter(dims, ()),
    "dilate": Parameter(dims, ()),
    "pad": Parameter(dims, ()),
    "num_filter": Parameter(between(integer, 1)),
    "num_group": Parameter(between(integer, 1), 1),
    "layout": Parameter(optional(word("NCW", "NCHW", "NCDHW")), None),
    **_IDLE,
}


def _steps(p: Any, rank: int) -> tuple[Shape, Shape, Shape]:
    """Strides, dilations and padding of a window."""
    return p.stride or (1,) * rank, p.dilate or (1,) * rank, p.pad or (0,) * rank


def _check_rank(shape: Shape, kernel: Shape) -> None:
    if len(kernel) not in CONVOLVE or len(shape) != len(kernel) + 2:
        raise ValueError(f"expected data (batch, channels, *sizes) for the kernel {kernel}, got {tuple(shape)}")


def _convolution_shape(site: Site) -> None:
    x, p = site.ins[0], site.p
    if x is None:
        return
    _check_rank(x, p.kernel)
    if x[1] % p.num_group or p.num_filter % p.num_group:
        site.refuse(f"expected channels and filters in {p.num_group} equal groups, got {x[1]} and {p.num_filter}")
    site.put_in(1, (p.num_filter, x[1] // p.num_group, *p.kernel))
    if not p.no_bias:
        site.put_in(2, (p.num_filter,))


def _convolution(p: Any, training: bool, x: Any, w: Any, b: Any = None) -> Any:
    rank = len(p.kernel)
    stride, dilate, pad = _steps(p, rank)
    return CONVOLVE[rank](x, w, b, stride, pad, dilate, p.num_group)


define(
    "Convolution",
    _with_bias,
    _convolution,
    {**_WINDOW, "no_bias": Parameter(flag, False)},
    weights="weight bias",
    shape=_convolution_shape,
)


def _padding_back(p: Any, sizes: Shape) -> tuple[Shape, Shape]:
    """Padding and what is added at the end of each axis of a deconvolution; a target shape decides both."""
    rank = len(p.kernel)
    stride, dilate, pad = _steps(p, rank)
    if not any(p.target_shape):
        return pad, p.adj or (0,) * rank
    over = [
        s * (n - 1) + d * (k - 1) + 1 - t
        for n, k, s, d, t in zip(sizes, p.kernel, stride, dilate, p.target_shape, strict=True)
    ]
    if min(over) < 0:
        raise ValueError(f"expected a target shape within reach of the kernel, got {p.target_shape} for {sizes}")
    return tuple((o + 1) // 2 for o in over), tuple(o % 2 for o in over)


def _deconvolution_shape(site: Site) -> None:
    x, p = site.ins[0], site.p
    if x is None:
        return
    _check_rank(x, p.kernel)
    site.put_in(1, (x[1], p.num_filter // p.num_group, *p.kernel))
    if not p.no_bias:
        site.put_in(2, (p.num_filter,))


def _deconvolution(p: Any, training: bool, x: Any, w: Any, b: Any = None) -> Any:
    rank = len(p.kernel)
    stride, dilate, _ = _steps(p, rank)
    pad, extra = _padding_back(p, tuple(x.shape[2:]))
    return TRANSPOSED[rank](x, w, b, stride, pad, extra, p.num_group, dilate)


define(
    "Deconvolution",
    _with_bias,
    _deconvolution,
    {**_WINDOW, "adj": Parameter(dims, ()), "target_shape": Parameter(dims, ()), "no_bias": Parameter(flag, True)},
    weights="weight bias",
    shape=_deconvolution_shape,
)

# ---- pooling ------------------------------------------------------------------------------------------------


def _windows(p: Any, sizes: Shape) -> tuple[Shape, Shape, Shape, Shape]:
    """Kernel, strides, and padding before and after."""
    rank = len(sizes)
    if p.global_pool:
        return sizes, (1,) * rank, (0,) * rank, (0,) * rank
    stride, pad = p.stride or (1,) * rank, p.pad or (0,) * rank
    after = []
    for n, k, s, a in zip(sizes, p.kernel, stride, pad, strict=True):
        room = n + 2 * a - k
        if p.pooling_convention == "same":
            count = -(-n // s)
        elif p.pooling_convention == "full":
            count = -(-room // s) + 1
        else:
            count = room // s + 1
        if count < 1:
            raise ValueError(f"expected a kernel that fits the input, got kernel {p.kernel} for {sizes}")
        after.append((count - 1) * s + k - n - a)
    return p.kernel, stride, pad, tuple(after)


def _pooling(p: Any, training: bool, x: Any) -> Any:
    rank = x.dim() - 2
    if rank not in AVERAGE or not p.global_pool:
        _check_rank(x.shape, p.kernel)
    kernel, stride, before, after = _windows(p, tuple(x.shape[2:]))
    # What no window reaches is cut off, hence negative numbers.
    edges = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
    if p.pool_type == "max":
        return MAXIMUM[rank](functional.pad(x, edges, value=-math.inf), kernel, stride)
    cells = math.prod(kernel)
    if p.pool_type == "lp":
        total = AVERAGE[rank](functional.pad(x.abs() ** p.p_value, edges), kernel, stride) * cells
        return total ** (1 / p.p_value)
    total = AVERAGE[rank](functional.pad(x, edges), kernel, stride) * cells
    if p.pool_type == "sum":
        return total
    counted = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype, device=x.device)
    if p.count_include_pad and not p.global_pool:
        # Cells of the padding count, those beyond it do not.
        counted = functional.pad(counted, [n for a in reversed(before) for n in (a, a)], value=1.0)
        edges = [n for a, b in reversed(list(zip(before, after, strict=True))) for n in (0, b - a)]
    return total / (AVERAGE[rank](functional.pad(counted, edges), kernel, stride) * cells)


define(
    "Pooling",
    "data",
    _pooling,
    {
        "kernel": Parameter(dims, ()),
        "pool_type": Parameter(word("avg", "lp", "max", "sum"), "max"),
        "global_pool": Parameter(flag, False),
        "pooling_convention": Parameter(word("full", "same", "valid"), "valid"),
        "stride": Parameter(dims, ()),
        "pad": Parameter(dims, ()),
        "p_value": Parameter(optional(integer), 2),
        "count_include_pad": Parameter(optional(flag), True),
        "layout": Parameter(optional(word("NCW", "NCHW", "NCDHW")), None),
        "cudnn_off": Parameter(flag, False),
    },
    # A workspace of the CPU library that MXNet 1.9 was built with.
    hidden=lambda p: int(p.pool_type == "max" and 1 <= len(p.kernel) <= 3),
    called="output workspace",
)

# ---- dropout ------------------------------------------------------------------------------------------------


def _dropout(p: Any, training: bool, x: Any) -> Any:
    if not (training or p.mode == "always") or p.p == 0:
        return x.clone()
    shape = [1 if i in p.axes else n for i, n in enumerate(x.shape)]
    kept = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p.p)
    return x * kept / (1 - p.p)


define(
    "Dropout",
    "data",
    _dropout,
    {
        "p": Parameter(between(real, 0, 1), 0.5),
        "mode": Parameter(word("always", "training"), "training"),
        "axes": Parameter(dims, ()),
        "cudnn_off": Parameter(optional(flag), False),
    },
    hidden=1,
    called="output mask",
    shape=same,
)
