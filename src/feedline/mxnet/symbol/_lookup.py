"""Operators that look up elements by index, and operators that create arrays, some with the shape of another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from feedline.mxnet.symbol._operator import Site, axis_of, define, from_data
from feedline.mxnet.symbol._parameters import ElementType, Long, Shape


@define("take", free="indices")
def _take(a: Any, indices: Any, *, axis: int = 0, mode: Literal["clip", "wrap"] = "clip") -> Any:
    axis = axis_of(axis, a.dim())
    rows = indices.to(torch.int64)
    rows = rows % a.shape[axis] if mode == "wrap" else rows.clamp(0, a.shape[axis] - 1)
    elements = a.index_select(axis, rows.reshape(-1))
    return elements.reshape(*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])


def _infer_pick(site: Site) -> None:
    shape = site.full()
    if shape is not None and site.ins[1] is None:
        axis = axis_of(site.p.axis, len(shape))
        site.put_in(1, (*shape[:axis], *shape[axis + 1 :]))


@define("pick", free="index", shape=_infer_pick)
def _pick(data: Any, index: Any, *, axis: int = -1, keepdims: bool = False) -> Any:
    axis = axis_of(axis, data.dim())
    shape = [*data.shape[:axis], 1, *data.shape[axis + 1 :]]
    picked = data.gather(axis, index.to(torch.int64).clamp(0, data.shape[axis] - 1).reshape(shape))
    return picked if keepdims or data.dim() == 1 else picked.squeeze(axis)


def _picked_rows(x: Shape, p: Any) -> Sequence[Shape]:
    if len(x) != 2:
        raise ValueError(f"expected data (rows, columns), got {x}")
    return [x[:1]]


@define("batch_take", free="indices", shape=from_data(_picked_rows, complete=True))
def _batch_take(a: Any, indices: Any) -> Any:
    columns = indices.to(torch.int64).clamp(0, a.shape[1] - 1)
    return a.gather(1, columns[:, None]).squeeze(1)


def _places(indices: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """Return the indices along each of the leading axes of a shape."""
    if len(indices) > len(shape):
        raise ValueError(
            f"expected indices (axes, ...) of at most {len(shape)} axes, got {tuple(indices.shape)} for {tuple(shape)}"
        )
    return tuple(indices.to(torch.int64).reshape(len(indices), -1))


@define("gather_nd", free="indices")
def _gather(data: Any, indices: Any) -> Any:
    shape = (*indices.shape[1:], *data.shape[len(indices) :])
    return data[_places(indices, data.shape)].reshape(shape or (1,))


def _infer_scatter(site: Site) -> None:
    """Record the shape in the settings as the output's, even while an input's is unknown."""
    if site.full(0) is None or site.full(1) is None:
        site.put_out(site.p.shape)


@define("scatter_nd", free="indices", shape=_infer_scatter)
def _scatter(data: Any, indices: Any, *, shape: Shape) -> Any:
    places, tail = _places(indices, shape), shape[len(indices) :]
    expected = (*indices.shape[1:], *tail)
    if data.shape != expected:
        raise ValueError(
            f"expected data of shape {expected} for indices {tuple(indices.shape)} into {shape}, "
            f"got {tuple(data.shape)}"
        )
    return data.new_zeros(shape).index_put(places, data.reshape(-1, *tail))


@define("one_hot", free="indices")
def _one_hot(
    indices: Any, *, depth: int, on_value: float = 1.0, off_value: float = 0.0, dtype: ElementType = "float32"
) -> Any:
    hot = indices.to(torch.int64)[..., None] == torch.arange(depth, device=indices.device)
    on = torch.full((), on_value, dtype=getattr(torch, dtype), device=indices.device)
    return torch.where(hot, on, torch.full_like(on, off_value))


# ---- creation -----------------------------------------------------------------------------------------------


@define("_zeros")
def _zeros(*, shape: Shape, dtype: ElementType = "float32", ctx: str = "") -> Any:
    return torch.zeros(shape, dtype=getattr(torch, dtype))


@define("_ones")
def _ones(*, shape: Shape, dtype: ElementType = "float32", ctx: str = "") -> Any:
    return torch.ones(shape, dtype=getattr(torch, dtype))


@define("_full")
def _full(*, shape: Shape, dtype: ElementType = "float32", ctx: str = "", value: float) -> Any:
    return torch.full(shape, value, dtype=torch.float64).to(getattr(torch, dtype))


@define("_arange")
def _arange(
    *,
    start: float,
    stop: float | None = None,
    step: float = 1.0,
    repeat: int = 1,
    infer_range: Literal["False"] = "False",
    dtype: ElementType = "float32",
    ctx: str = "",
) -> Any:
    if step == 0 or repeat < 1:
        raise ValueError(f"expected a step other than 0 and repeats from 1, got {step} and {repeat}")
    first, end = (0.0, start) if stop is None else (start, stop)
    count = math.ceil((end - first) / step)
    if count < 1:
        raise ValueError(f"expected numbers between start and stop, got {start} and {stop}")
    # Each number is computed from its index, so that errors do not accumulate.
    numbers = first + step * torch.arange(count, dtype=torch.float64)
    return numbers.repeat_interleave(repeat).to(getattr(torch, dtype))


@define("_eye")
def _eye(*, N: Long, M: Long = 0, k: Long = 0, dtype: ElementType = "float32", ctx: str = "") -> Any:  # noqa: N803
    ones = torch.ones(N, M or N, dtype=getattr(torch, dtype))
    return ones.triu(k).tril(k)


def _as_the_other(site: Site) -> None:
    """Record the shape of the second input as the output's, even while the first is unknown."""
    if site.full(0) is None and site.ins[1] is not None and not getattr(site.p, "lhs_axes", None):
        site.put_out(site.ins[1])


@define("broadcast_like", shape=_as_the_other)
def _broadcast_like(lhs: Any, rhs: Any, *, lhs_axes: Shape | None = None, rhs_axes: Shape | None = None) -> Any:
    if lhs_axes is None and rhs_axes is None:
        return lhs.expand(rhs.shape)
    if not lhs_axes or not rhs_axes or len(lhs_axes) != len(rhs_axes):
        raise ValueError(f"expected equally many lhs_axes and rhs_axes, got {lhs_axes} and {rhs_axes}")
    sizes = list(lhs.shape)
    for to, source in zip(lhs_axes, rhs_axes, strict=True):
        sizes[axis_of(to, lhs.dim())] = rhs.shape[axis_of(source, rhs.dim())]
    return lhs.expand(sizes)


@define("reshape_like", shape=_as_the_other)
def _reshape_like(lhs: Any, rhs: Any) -> Any:
    return lhs.reshape(rhs.shape)
