"""Operators that sort. Equal numbers keep their order. Indices have the type ``dtype``."""

from __future__ import annotations

from typing import Any, Literal

import torch

from feedline.mxnet.symbol._operator import axis_of, define
from feedline.mxnet.symbol._parameters import ElementType


def _order(x: Any, axis: int | None, is_ascend: bool) -> tuple[Any, Any, int]:
    """Return the data (flattened without an axis), the indices that sort it, and the axis."""
    lines, along = (x.reshape(-1), 0) if axis is None else (x, axis_of(axis, x.dim()))
    return lines, torch.sort(lines, dim=along, descending=not is_ascend, stable=True).indices, along


@define("sort", hidden=1)
def _sort(data: Any, *, axis: int | None = -1, is_ascend: bool = True) -> Any:
    lines, order, along = _order(data, axis, is_ascend)
    return lines.gather(along, order)


@define("argsort", free="data")
def _argsort(data: Any, *, axis: int | None = -1, is_ascend: bool = True, dtype: ElementType = "float32") -> Any:
    return _order(data, axis, is_ascend)[1].to(getattr(torch, dtype))


@define(
    "topk",
    free=lambda p: ("data",) if p.ret_typ == "indices" else (),
    dtype=lambda p: str(p.dtype) if p.ret_typ == "indices" else None,
    outputs=lambda p: 2 if p.ret_typ == "both" else 1,
    hidden=lambda p: int(p.ret_typ == "value"),
)
def _top(
    data: Any,
    *,
    axis: int | None = -1,
    k: int = 1,
    ret_typ: Literal["both", "indices", "mask", "value"] = "indices",
    is_ascend: bool = False,
    dtype: ElementType = "float32",
) -> Any:
    lines, order, along = _order(data, axis, is_ascend)
    length = lines.shape[along]
    if k > length:
        raise ValueError(f"expected k up to {length}, the length of axis {axis}, got {k}")
    order = order.narrow(along, 0, length if k < 1 else k)
    if ret_typ == "indices":
        return order.to(getattr(torch, dtype))
    if ret_typ == "mask":
        return torch.zeros_like(lines).scatter(along, order, 1).reshape(data.shape)
    values = lines.gather(along, order)
    return (values, order.to(data.dtype)) if ret_typ == "both" else values
