"""Operators that look up, by number, and those that make arrays out of nothing or after another's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Site, axis_of, define
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


def _take(p: Any, training: bool, a: Any, indices: Any) -> Any:
    axis = axis_of(p.axis, a.dim())
    rows = indices.to(torch.int64)
    rows = rows % a.shape[axis] if p.mode == "wrap" else rows.clamp(0, a.shape[axis] - 1)
    found = a.index_select(axis, rows.reshape(-1))
    return found.reshape(*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])


define(
    "take",
    "a indices",
    _take,
    {"axis": Parameter(integer, 0), "mode": Parameter(word("clip", "wrap"), "clip")},
    free="indices",
)


def _picked(site: Site) -> None:
    shape = site.full()
    if shape is not None and site.ins[1] is None:
        axis = axis_of(site.p.axis, len(shape))
        site.put_in(1, (*shape[:axis], *shape[axis + 1 :]))


def _pick(p: Any, training: bool, x: Any, index: Any) -> Any:
    axis = axis_of(p.axis, x.dim())
    kept = [*x.shape[:axis], 1, *x.shape[axis + 1 :]]
    found = x.gather(axis, index.to(torch.int64).clamp(0, x.shape[axis] - 1).reshape(kept))
    return found if p.keepdims or x.dim() == 1 else found.squeeze(axis)


define(
    "pick",
    "data index",
    _pick,
    {"axis": Parameter(integer, -1), "keepdims": Parameter(flag, False)},
    free="index",
    shape=_picked,
)


def _picked_rows(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        if len(shape) != 2:
            site.refuse(f"expected data (rows, columns), got {shape}")
        site.put_in(1, shape[:1])


def _pick_of_rows(p: Any, training: bool, a: Any, indices: Any) -> Any:
    columns = indices.to(torch.int64).clamp(0, a.shape[1] - 1)
    return a.gather(1, columns[:, None]).squeeze(1)


define("batch_take", "a indices", _pick_of_rows, free="indices", shape=_picked_rows)


def _places(indices: Any, shape: Sequence[int]) -> tuple[Any, ...]:
    """Indices of each of the first axes of a shape, in a row."""
    if len(indices) > len(shape):
        raise ValueError(
            f"expected indices (axes, ...) of at most {len(shape)} axes, got {tuple(indices.shape)} for {tuple(shape)}"
        )
    return tuple(indices.to(torch.int64).reshape(len(indices), -1))


def _gather(p: Any, training: bool, data: Any, indices: Any) -> Any:
    shape = (*indices.shape[1:], *data.shape[len(indices) :])
    return data[_places(indices, data.shape)].reshape(shape or (1,))


define("gather_nd", "data indices", _gather, free="indices")


def _scatter(p: Any, training: bool, data: Any, indices: Any) -> Any:
    places, rest = _places(indices, p.shape), p.shape[len(indices) :]
    expected = (*indices.shape[1:], *rest)
    if data.shape != expected:
        raise ValueError(
            f"expected data of shape {expected} for indices {tuple(indices.shape)} into {p.shape}, "
            f"got {tuple(data.shape)}"
        )
    return data.new_zeros(p.shape).index_put(places, data.reshape(-1, *rest))


define(
    "scatter_nd",
    "data indices",
    _scatter,
    {"shape": Parameter(dims)},
    free="indices",
)


def _one_hot(p: Any, training: bool, indices: Any) -> Any:
    hot = indices.to(torch.int64)[..., None] == torch.arange(p.depth, device=indices.device)
    on = torch.full((), p.on_value, dtype=getattr(torch, p.dtype), device=indices.device)
    return torch.where(hot, on, torch.full_like(on, p.off_value))


define(
    "one_hot",
    "indices",
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


_KIND = {"dtype": Parameter(dtype, "float32"), "ctx": Parameter(text, "")}
_MADE = {"shape": Parameter(dims), **_KIND}

for _name, _number in (("_zeros", 0), ("_ones", 1)):
    define(
        _name,
        "",
        lambda p, training, n=_number: torch.full(p.shape, n, dtype=getattr(torch, p.dtype)),
        _MADE,
        dtype=lambda p: str(p.dtype),
    )

define(
    "_full",
    "",
    lambda p, training: torch.full(p.shape, p.value, dtype=torch.float64).to(getattr(torch, p.dtype)),
    {**_MADE, "value": Parameter(real)},
    dtype=lambda p: str(p.dtype),
)


def _bounds(p: Any) -> tuple[float, int]:
    """The first number of a range, and how many different ones there are."""
    if p.step == 0 or p.repeat < 1:
        raise ValueError(f"expected a step other than 0 and repeats from 1, got {p.step} and {p.repeat}")
    start, stop = (0.0, p.start) if p.stop is None else (p.start, p.stop)
    count = math.ceil((stop - start) / p.step)
    if count < 1:
        raise ValueError(f"expected numbers between start and stop, got {p.start} and {p.stop}")
    return start, count


def _steps(p: Any, training: bool) -> Any:
    start, count = _bounds(p)
    # Each is worked out from its number, so that no error adds up.
    numbers = start + p.step * torch.arange(count, dtype=torch.float64)
    return numbers.repeat_interleave(p.repeat).to(getattr(torch, p.dtype))


define(
    "_arange",
    "",
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
    _diagonal,
    {"N": Parameter(long_integer), "M": Parameter(long_integer, 0), "k": Parameter(long_integer, 0), **_KIND},
    dtype=lambda p: str(p.dtype),
)


define("broadcast_like", "lhs rhs", lambda p, training, x, like: x.expand(like.shape))
define("reshape_like", "lhs rhs", lambda p, training, x, like: x.reshape(like.shape))
