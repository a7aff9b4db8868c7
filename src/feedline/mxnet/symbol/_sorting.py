"""Operators that sort. Equal numbers keep their order; places are numbers of the type that ``dtype`` tells."""

from __future__ import annotations

from typing import Any

import torch

from feedline.mxnet.symbol._operator import Names, Shape, axis_of, define
from feedline.mxnet.symbol._parameters import Parameter, dtype, flag, integer, optional, word


def _lines(p: Any, shape: Shape) -> tuple[Shape, int]:
    """Shape of what is sorted, and along which axis; without one all numbers are in one line."""
    if p.axis is None:
        return (torch.Size(shape).numel(),), 0
    return shape, axis_of(p.axis, len(shape))


def _order(p: Any, x: Any) -> tuple[Any, Any, int]:
    """The lines, the places of their numbers in order, and the axis."""
    shape, axis = _lines(p, tuple(x.shape))
    lines = x.reshape(shape)
    return lines, torch.sort(lines, dim=axis, descending=not p.is_ascend, stable=True).indices, axis


def _sort(p: Any, training: bool, x: Any) -> Any:
    lines, order, axis = _order(p, x)
    return lines.gather(axis, order)


_ALONG = {"axis": Parameter(optional(integer), -1), "is_ascend": Parameter(flag, True)}

define("sort", "data", _sort, _ALONG, hidden=1)
define(
    "argsort",
    "data",
    lambda p, training, x: _order(p, x)[1].to(getattr(torch, p.dtype)),
    {**_ALONG, "dtype": Parameter(dtype, "float32")},
    free="data",
    dtype=lambda p: str(p.dtype),
)


def _count(p: Any, length: int) -> int:
    """How many are taken of a line; below 1 means all."""
    if p.k > length:
        raise ValueError(f"expected k up to {length}, the length of axis {p.axis}, got {p.k}")
    return length if p.k < 1 else int(p.k)


def _best(p: Any, training: bool, x: Any) -> Any:
    lines, order, axis = _order(p, x)
    order = order.narrow(axis, 0, _count(p, lines.shape[axis]))
    if p.ret_typ == "indices":
        return order.to(getattr(torch, p.dtype))
    if p.ret_typ == "mask":
        return torch.zeros_like(lines).scatter(axis, order, 1).reshape(x.shape)
    values = lines.gather(axis, order)
    return (values, order.to(x.dtype)) if p.ret_typ == "both" else values


def _free(p: Any) -> Names:
    return ("data",) if p.ret_typ == "indices" else ()


define(
    "topk",
    "data",
    _best,
    {
        "axis": Parameter(optional(integer), -1),
        "k": Parameter(integer, 1),
        "ret_typ": Parameter(word("both", "indices", "mask", "value"), "indices"),
        "is_ascend": Parameter(flag, False),
        "dtype": Parameter(dtype, "float32"),
    },
    free=_free,
    dtype=lambda p: str(p.dtype) if p.ret_typ == "indices" else None,
    outputs=lambda p: 2 if p.ret_typ == "both" else 1,
    hidden=lambda p: int(p.ret_typ == "value"),
)
