"""Operators over axes: sums and their like, softmax, products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.mxnet.symbol._operator import axis_of, define, same
from feedline.mxnet.symbol._parameters import Parameter, dims, flag, integer, optional, real, word
from feedline.networks.ops.edges import largest, smallest

_OVER = {
    "axis": Parameter(optional(dims), None),
    "keepdims": Parameter(flag, False),
    "exclude": Parameter(flag, False),
}


def _axes(p: Any, rank: int) -> tuple[int, ...]:
    """The axes to go; without any named, all."""
    if not p.axis:
        return tuple(range(rank))
    named = tuple(axis_of(a, rank) for a in p.axis)
    return tuple(a for a in range(rank) if a not in named) if p.exclude else named


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(p: Any, training: bool, x: Any) -> Any:
        y = function(x, _axes(p, x.dim()), p.keepdims)
        return y if y.dim() else y.reshape(1)

    return run


def _product(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


_SUMS: dict[str, Callable[..., Any]] = {
    "sum sum_axis": lambda x, axes, keep: x.sum(axes, keepdim=keep, dtype=x.dtype),
    "mean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "prod": _product,
    "max max_axis": largest,
    "min min_axis": smallest,
    "nanprod": lambda x, axes, keep: _product(torch.where(x.isnan(), 1.0, x), axes, keep),
    "nansum": lambda x, axes, keep: x.nansum(axes, keepdim=keep),
}

for _names, _function in _SUMS.items():
    define(_names, "data", _reduce(_function), _OVER)


def _length(p: Any, training: bool, x: Any) -> Any:
    def measure(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        if p.ord == "1":
            return x.abs().sum(axes, keepdim=keep)
        return torch.square(x).sum(axes, keepdim=keep).sqrt()

    return _reduce(measure)(p, training, x)


define("norm", "data", _length, {**_OVER, "ord": Parameter(word("1", "2"), "2")})


def _best(name: str) -> Callable[..., Any]:
    def run(p: Any, training: bool, x: Any) -> Any:
        where = getattr(x.flatten() if p.axis is None else x, name)(0 if p.axis is None else p.axis)
        if p.axis is not None and p.keepdims:
            where = where.unsqueeze(p.axis)
        # Places are floating point numbers, as everything was.
        return (where if where.dim() else where.reshape(1)).to(torch.float32)

    return run


for _name in ("argmax", "argmin"):
    define(
        _name,
        "data",
        _best(_name),
        {"axis": Parameter(optional(integer), None), "keepdims": Parameter(flag, False)},
        free="data",
        dtype=lambda p: "float32",
    )


def _best_of_rows(p: Any, training: bool, x: Any) -> Any:
    if x.dim() != 2:
        raise ValueError(f"expected data (rows, classes), got {tuple(x.shape)}")
    return x.argmax(1).to(torch.float32)


define(
    "argmax_channel",
    "data",
    _best_of_rows,
    free="data",
    dtype=lambda p: "float32",
)


def _softmax(function: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
    return lambda p, training, x: function(sign * x / (p.temperature or 1.0), p.axis)


for _name, _of, _sign in (
    ("softmax", torch.softmax, 1),
    ("softmin", torch.softmax, -1),
    ("log_softmax", torch.log_softmax, 1),
):
    define(
        _name,
        "data",
        _softmax(_of, _sign),
        {"axis": Parameter(integer, -1), "temperature": Parameter(optional(real), None)},
        shape=same,
    )


def _softmax_activation(p: Any, training: bool, x: Any) -> Any:
    if p.mode == "channel":
        return torch.softmax(x, 1)
    return torch.softmax(x.reshape(len(x), -1), 1).reshape(x.shape)


define(
    "SoftmaxActivation",
    "data",
    _softmax_activation,
    {"mode": Parameter(word("channel", "instance"), "instance")},
    shape=same,
)

_TURNED = {"transpose_a": Parameter(flag, False), "transpose_b": Parameter(flag, False)}


def _dot(p: Any, training: bool, a: Any, b: Any) -> Any:
    a = a.t() if p.transpose_a else a
    b = b.t() if p.transpose_b else b
    if a.shape[-1] != b.shape[0]:
        raise ValueError(
            f"expected the last axis of the left to be as long as the first of the right, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    y = torch.tensordot(a, b, 1)
    return y if y.dim() else y.reshape(1)


define("dot", "lhs rhs", _dot, _TURNED)


def _batch_dot(p: Any, training: bool, a: Any, b: Any) -> Any:
    if a.dim() < 3 or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(f"expected two batches of as many matrices, got {tuple(a.shape)} and {tuple(b.shape)}")
    a = a.transpose(-1, -2) if p.transpose_a else a
    b = b.transpose(-1, -2) if p.transpose_b else b
    return torch.matmul(a, b)


define("batch_dot", "lhs rhs", _batch_dot, _TURNED)
