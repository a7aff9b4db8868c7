"""Operators over axes: sums and their like, softmax, products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Shape, Site, define, same
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
    named = tuple(a % rank for a in p.axis)
    return tuple(a for a in range(rank) if a not in named) if p.exclude else named


def _reduced(site: Site) -> None:
    shape = site.full()
    if shape is None:
        return
    for axis in site.p.axis or ():
        site.axis(axis, len(shape))
    gone = _axes(site.p, len(shape))
    if site.p.keepdims:
        site.put_out(tuple(1 if i in gone else n for i, n in enumerate(shape)))
    else:
        # There are no scalars: the sum of all is an array of one.
        site.put_out(tuple(n for i, n in enumerate(shape) if i not in gone) or (1,))


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
    define(_names, "data", _reduced, _reduce(_function), _OVER)


def _length(p: Any, training: bool, x: Any) -> Any:
    def measure(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
        if p.ord == "1":
            return x.abs().sum(axes, keepdim=keep)
        return torch.square(x).sum(axes, keepdim=keep).sqrt()

    return _reduce(measure)(p, training, x)


define("norm", "data", _reduced, _length, {**_OVER, "ord": Parameter(word("1", "2"), "2")})


def _argument(site: Site) -> None:
    shape = site.full()
    if shape is None:
        return
    if site.p.axis is None:
        site.put_out((1,))
        return
    axis = site.axis(site.p.axis, len(shape))
    kept = (1,) if site.p.keepdims else ()
    site.put_out((shape[:axis] + kept + shape[axis + 1 :]) or (1,))


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
        _argument,
        _best(_name),
        {"axis": Parameter(optional(integer), None), "keepdims": Parameter(flag, False)},
        free="data",
        dtype=lambda p: "float32",
    )


def _by_rows(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        if len(shape) != 2:
            site.refuse(f"expected data (rows, classes), got {shape}")
        site.put_out(shape[:1])


define(
    "argmax_channel",
    "data",
    _by_rows,
    lambda p, training, x: x.argmax(1).to(torch.float32),
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
        same,
        _softmax(_of, _sign),
        {"axis": Parameter(integer, -1), "temperature": Parameter(optional(real), None)},
    )


def _softmax_activation(p: Any, training: bool, x: Any) -> Any:
    if p.mode == "channel":
        return torch.softmax(x, 1)
    return torch.softmax(x.reshape(len(x), -1), 1).reshape(x.shape)


define(
    "SoftmaxActivation",
    "data",
    same,
    _softmax_activation,
    {"mode": Parameter(word("channel", "instance"), "instance")},
)

_TURNED = {"transpose_a": Parameter(flag, False), "transpose_b": Parameter(flag, False)}


def _swapped(shape: Shape, turned: bool) -> Shape:
    """Shape of a product's operand after it was transposed, if it was."""
    return shape[::-1] if turned else shape


def _dot_shape(site: Site) -> None:
    a, b = site.full(0), site.full(1)
    if a is None or b is None:
        return
    if (site.p.transpose_a and len(a) > 2) or (site.p.transpose_b and len(b) > 2):
        site.refuse(f"expected matrices where one is transposed, got {a} and {b}")
    a, b = _swapped(a, site.p.transpose_a), _swapped(b, site.p.transpose_b)
    if a[-1] != b[0]:
        site.refuse(f"expected the last axis of the left to be as long as the first of the right, got {a} and {b}")
    site.put_out((*a[:-1], *b[1:]) or (1,))


def _dot(p: Any, training: bool, a: Any, b: Any) -> Any:
    a = a.t() if p.transpose_a else a
    b = b.t() if p.transpose_b else b
    y = torch.tensordot(a, b, 1)
    return y if y.dim() else y.reshape(1)


define("dot", "lhs rhs", _dot_shape, _dot, _TURNED)


def _batch_dot_shape(site: Site) -> None:
    a, b = site.full(0), site.full(1)
    if a is None or b is None:
        return
    if len(a) < 3 or len(a) != len(b) or a[:-2] != b[:-2]:
        site.refuse(f"expected two batches of as many matrices, got {a} and {b}")
    rows, inner = a[:-3:-1] if site.p.transpose_a else a[-2:]
    other, columns = b[:-3:-1] if site.p.transpose_b else b[-2:]
    if inner != other:
        site.refuse(f"expected matrices that multiply, got {a} and {b}")
    site.put_out((*a[:-2], rows, columns))


def _batch_dot(p: Any, training: bool, a: Any, b: Any) -> Any:
    a = a.transpose(-1, -2) if p.transpose_a else a
    b = b.transpose(-1, -2) if p.transpose_b else b
    return torch.matmul(a, b)


define("batch_dot", "lhs rhs", _batch_dot_shape, _batch_dot, _TURNED)
