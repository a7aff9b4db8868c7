"""Operators over axes: reductions, softmax, products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from feedline.mxnet.symbol._operator import axis_of, define, same
from feedline.mxnet.symbol._parameters import Shape
from feedline.networks.ops.edges import largest, smallest


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Settings that reductions share."""

    axis: Shape | None = None
    keepdims: bool = False
    exclude: bool = False

    def reduce(self, function: Callable[..., Any], x: Any) -> Any:
        """Return ``function(x, axes, keepdims)`` for the axes to reduce, by default all."""
        axes = tuple(range(x.dim()))
        if self.axis:
            named = tuple(axis_of(a, x.dim()) for a in self.axis)
            axes = tuple(a for a in axes if a not in named) if self.exclude else named
        y = function(x, axes, self.keepdims)
        return y if y.dim() else y.reshape(1)


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(data: Any, *, over: Axes) -> Any:
        return over.reduce(function, data)

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
    define(_names)(_reduce(_function))


@define("norm")
def _norm(data: Any, *, over: Axes, ord: Literal["1", "2"] = "2") -> Any:
    def measure(x: Any, axes: Shape, keep: bool) -> Any:
        if ord == "1":
            return x.abs().sum(axes, keepdim=keep)
        return torch.square(x).sum(axes, keepdim=keep).sqrt()

    return over.reduce(measure, data)


def _best(find: Callable[..., Any]) -> Callable[..., Any]:
    def run(data: Any, *, axis: int | None = None, keepdims: bool = False) -> Any:
        where = find(data.flatten(), 0) if axis is None else find(data, axis, keepdims)
        # As in MXNet, indices are floating-point numbers.
        return (where if where.dim() else where.reshape(1)).to(torch.float32)

    return run


for _name, _find in (("argmax", torch.argmax), ("argmin", torch.argmin)):
    define(_name, free="data", dtype=lambda p: "float32")(_best(_find))


@define("argmax_channel", free="data", dtype=lambda p: "float32")
def _best_of_rows(data: Any) -> Any:
    if data.dim() < 2:
        raise ValueError(f"expected data (rows, classes, ...), got {tuple(data.shape)}")
    return data.argmax(1).to(torch.float32)


def _softmax(function: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
    def run(data: Any, *, axis: int = -1, temperature: float | None = None) -> Any:
        return function(sign * data / (temperature or 1.0), axis)

    return run


for _name, _of, _sign in (
    ("softmax", torch.softmax, 1),
    ("softmin", torch.softmax, -1),
    ("log_softmax", torch.log_softmax, 1),
):
    define(_name, shape=same)(_softmax(_of, _sign))


@define("SoftmaxActivation", shape=same)
def _softmax_activation(data: Any, *, mode: Literal["channel", "instance"] = "instance") -> Any:
    if mode == "channel":
        return torch.softmax(data, 1)
    return torch.softmax(data.reshape(len(data), -1), 1).reshape(data.shape)


@define("dot")
def _dot(lhs: Any, rhs: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    a = lhs.t() if transpose_a else lhs
    b = rhs.t() if transpose_b else rhs
    if a.shape[-1] != b.shape[0]:
        raise ValueError(
            f"expected the last axis of lhs to be as long as the first of rhs, got {tuple(a.shape)} and "
            f"{tuple(b.shape)}"
        )
    y = torch.tensordot(a, b, 1)
    return y if y.dim() else y.reshape(1)


@define("batch_dot")
def _batch_dot(lhs: Any, rhs: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    if lhs.dim() < 3 or lhs.shape[:-2] != rhs.shape[:-2]:
        raise ValueError(f"expected two batches of the same size, got {tuple(lhs.shape)} and {tuple(rhs.shape)}")
    return torch.matmul(lhs.mT if transpose_a else lhs, rhs.mT if transpose_b else rhs)
