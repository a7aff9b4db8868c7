"""Operators that look up, by number, and those that make arrays out of nothing or after another's shape."""

from __future__ import annotations

import math
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Site, define
from feedline.mxnet.symbol._parameters import (
    Parameter,
    dims,
    dtype,
    flag,
    integer,
    long_integer,
    optional,
    real,
    text,
    word,
)


def _taken(site: Site) -> None:
    a, indices = site.full(0), site.full(1)
    if a is not None and indices is not None:
        axis = site.axis(site.p.axis, len(a))
        site.put_out((*a[:axis], *indices, *a[axis + 1 :]))


def _take(p: Any, training: bool, a: Any, indices: Any) -> Any:
    axis = p.axis % a.dim()
    rows = indices.to(torch.int64)
    rows = rows % a.shape[axis] if p.mode == "wrap" else rows.clamp(0, a.shape[axis] - 1)
    found = a.index_select(axis, rows.reshape(-1))
    return found.reshape(*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])


define(
    "take",
    "a indices",
    _taken,
    _take,
    {"axis": Parameter(integer, 0), "mode": Parameter(word("clip", "wrap"), "clip")},
    free="indices",
)


def _picked(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        axis = site.axis(site.p.axis, len(shape))
        rest = (*shape[:axis], *shape[axis + 1 :])
        if site.ins[1] is None:
            site.put_in(1, rest)
        site.put_out((*shape[:axis], 1, *shape[axis + 1 :]) if site.p.keepdims else rest or (1,))


def _pick(p: Any, training: bool, x: Any, index: Any) -> Any:
    axis = p.axis % x.dim()
    kept = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    found = x.gather(axis, index.to(torch.int64).clamp(0, x.shape[axis] - 1).reshape(kept))
    return found if p.keepdims or x.dim() == 1 else found.squeeze(axis)


define(
    "pick",
    "data index",
    _picked,
    _pick,
    {"axis": Parameter(integer, -1), "keepdims": Parameter(flag, False)},
    free="index",
)


def _picked_rows(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        if len(shape) != 2:
            site.refuse(f"expected data (rows, columns), got {shape}")
        site.put_in(1, shape[:1])
        site.put_out(shape[:1])


def _pick_of_rows(p: Any, training: bool, a: Any, indices: Any) -> Any:
    columns = indices.to(torch.int64).clamp(0, a.shape[1] - 1)
    return a.gather(1, columns[:, None]).squeeze(1)


define("batch_take", "a indices", _picked_rows, _pick_of_rows, free="indices")


def _gathered(site: Site) -> None:
    data, indices = site.full(0), site.full(1)
    if data is not None and indices is not None:
        if indices[0] > len(data):
            site.refuse(f"expected indices (axes, ...) of at most {len(data)} axes, got {indices} for {data}")
        site.put_out((*indices[1:], *data[indices[0] :]) or (1,))


def _gather(p: Any, training: bool, data: Any, indices: Any) -> Any:
    found = data[tuple(indices.to(torch.int64))]
    return found if found.dim() else found.reshape(1)


define("gather_nd", "data indices", _gathered, _gather, free="indices")


def _scattered(site: Site) -> None:
    data, indices, shape = site.full(0), site.full(1), site.p.shape
    if data is not None and indices is not None and data != (*indices[1:], *shape[indices[0] :]):
        site.refuse(
            f"expected data of shape {(*indices[1:], *shape[indices[0] :])} for indices {indices} into {shape}, "
            f"got {data}"
        )
    site.put_out(shape)


define(
    "scatter_nd",
    "data indices",
    _scattered,
    lambda p, training, data, indices: data.new_zeros(p.shape).index_put(tuple(indices.to(torch.int64)), data),
    {"shape": Parameter(dims)},
    free="indices",
)


def _one_hot_shape(site: Site) -> None:
    if site.ins[0] is not None:
        site.put_out((*site.ins[0], site.p.depth))


def _one_hot(p: Any, training: bool, indices: Any) -> Any:
    hot = indices.to(torch.int64)[..., None] == torch.arange(p.depth, device=indices.device)
    on = torch.full((), p.on_value, dtype=getattr(torch, p.dtype), device=indices.device)
    return torch.where(hot, on, torch.full_like(on, p.off_value))


define(
    "one_hot",
    "indices",
    _one_hot_shape,
    _one_hot,
    {
        "depth": Parameter(integer),
        "on_value": Parameter(real, 1.0),
        "off_value": Parameter(real, 0.0),
        "dtype": Parameter(dtype, "float32"),
    },
    free="indices",
    dtype=lambda p: str(p.dtype),
)

# ---- out of nothing -----------------------------------------------------------------------------------------


def _given(site: Site) -> None:
    site.put_out(site.p.shape)


_KIND = {"dtype": Parameter(dtype, "float32"), "ctx": Parameter(text, "")}
_MADE = {"shape": Parameter(dims), **_KIND}

for _name, _number in (("_zeros", 0), ("_ones", 1)):
    define(
        _name,
        "",
        _given,
        lambda p, training, n=_number: torch.full(p.shape, n, dtype=getattr(torch, p.dtype)),
        _MADE,
        dtype=lambda p: str(p.dtype),
    )

define(
    "_full",
    "",
    _given,
    lambda p, training: torch.full(p.shape, p.value, dtype=torch.float64).to(getattr(torch, p.dtype)),
    {**_MADE, "value": Parameter(real)},
    dtype=lambda p: str(p.dtype),
)


def _bounds(p: Any) -> tuple[float, int]:
    """The first number of a range, and how many different ones there are."""
    start, stop = (0.0, p.start) if p.stop is None else (p.start, p.stop)
    return start, max(0, math.ceil((stop - start) / p.step))


def _steps(p: Any, training: bool) -> Any:
    start, count = _bounds(p)
    # Each is worked out from its number, so that no error adds up.
    numbers = start + p.step * torch.arange(count, dtype=torch.float64)
    return numbers.repeat_interleave(p.repeat).to(getattr(torch, p.dtype))


def _counted(site: Site) -> None:
    if site.p.step == 0 or site.p.repeat < 1:
        site.refuse(f"expected a step other than 0 and repeats from 1, got {site.p.step} and {site.p.repeat}")
    length = _bounds(site.p)[1] * site.p.repeat
    if length == 0:
        site.refuse(f"expected numbers between start and stop, got {site.p.start} and {site.p.stop}")
    site.put_out((length,))


define(
    "_arange",
    "",
    _counted,
    _steps,
    {
        "start": Parameter(real),
        "stop": Parameter(optional(real), None),
        "step": Parameter(real, 1.0),
        "repeat": Parameter(integer, 1),
        "infer_range": Parameter(word("False"), "False"),
        **_KIND,
    },
    dtype=lambda p: str(p.dtype),
)


def _diagonal(p: Any, training: bool) -> Any:
    ones = torch.ones(p.N, p.M or p.N, dtype=getattr(torch, p.dtype))
    return ones.triu(p.k).tril(p.k)


define(
    "_eye",
    "",
    lambda site: site.put_out((site.p.N, site.p.M or site.p.N)),
    _diagonal,
    {"N": Parameter(long_integer), "M": Parameter(long_integer, 0), "k": Parameter(long_integer, 0), **_KIND},
    dtype=lambda p: str(p.dtype),
)


def _as_the_other(site: Site) -> None:
    if site.ins[1] is not None:
        site.put_out(site.ins[1])


define("broadcast_like", "lhs rhs", _as_the_other, lambda p, training, x, like: x.expand(like.shape))
define("reshape_like", "lhs rhs", _as_the_other, lambda p, training, x, like: x.reshape(like.shape))
