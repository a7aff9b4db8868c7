"""Operators that arrange: shapes, slices, joins, repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Shape, Site, alike, axis_of, define
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dims, ends, flag, integer, optional

define("Flatten flatten", "data", lambda p, training, x: x.reshape(len(x), -1))


def reshaped(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """A shape by MXNet's codes: 0 copies a length, -1 is inferred, -2 copies the rest, -3 joins two, -4 splits one.

    Raises:
        ValueError: they do not fit.
    """
    if reverse:
        old, codes = old[::-1], codes[::-1]
    out: list[int] = []
    at, i = 0, 0
    while i < len(codes):
        code = codes[i]
        if code == -2:
            out += old[at:]
            at = len(old)
        elif code == -3:
            out.append(old[at] * old[at + 1])
            at += 2
        elif code == -4:
            a, b = codes[i + 1 : i + 3]
            a = old[at] // b if a == -1 else a
            b = old[at] // a if b == -1 else b
            if a * b != old[at]:
                raise ValueError(f"{old[at]} into {a} and {b}")
            out += [a, b]
            at, i = at + 1, i + 2
        else:
            out.append(old[at] if code == 0 else code)
            at += 1
        i += 1
    size = math.prod(old)
    if -1 in out:
        rest = math.prod(n for n in out if n != -1)
        out = [size // rest if n == -1 and rest else n for n in out]
    if math.prod(out) != size or min(out, default=1) < 0:
        raise ValueError(f"{old} into {tuple(out)}")
    return tuple(out[::-1] if reverse else out)


define(
    "Reshape reshape",
    "data",
    lambda p, training, x: x.reshape(reshaped(tuple(x.shape), p.shape, p.reverse)),
    {"shape": Parameter(dims), "reverse": Parameter(flag, False)},
)


def _order(p: Any, rank: int) -> tuple[int, ...]:
    return tuple(a % rank for a in p.axes) or tuple(reversed(range(rank)))


define(
    "transpose",
    "data",
    lambda p, training, x: x.permute(_order(p, x.dim())),
    {"axes": Parameter(dims, ())},
)


define(
    "SwapAxis swapaxes",
    "data",
    lambda p, training, x: x.transpose(p.dim1, p.dim2),
    {"dim1": Parameter(integer, 0), "dim2": Parameter(integer, 0)},
)


define("expand_dims", "data", lambda p, training, x: x.unsqueeze(p.axis), {"axis": Parameter(integer)})


def _squeeze(p: Any, training: bool, x: Any) -> Any:
    if p.axis is not None and any(x.shape[axis] != 1 for axis in p.axis):
        raise ValueError(f"expected axes of length 1, got {p.axis} of {tuple(x.shape)}")
    y = x.squeeze() if p.axis is None else x.squeeze(p.axis)
    return y if y.dim() else y.reshape(1)


define("squeeze", "data", _squeeze, {"axis": Parameter(optional(dims), None)})

# ---- slices -------------------------------------------------------------------------------------------------


def _sliced(x: Any, parts: Sequence[slice]) -> Any:
    y = x[tuple(parts)]
    if 0 in y.shape:
        raise ValueError(f"expected something left of {tuple(x.shape)}, got nothing along axis {y.shape.index(0)}")
    return y


def _steps(p: Any) -> tuple[int | None, ...]:
    return p.step or (None,) * len(p.begin)


define(
    "slice_axis",
    "data",
    lambda p, training, x: _sliced(x, (*[slice(None)] * axis_of(p.axis, x.dim()), slice(p.begin, p.end))),
    {"axis": Parameter(integer), "begin": Parameter(integer), "end": Parameter(optional(integer))},
)
define(
    "slice crop",
    "data",
    lambda p, training, x: _sliced(x, [slice(*part) for part in zip(p.begin, p.end, _steps(p), strict=True)]),
    {"begin": Parameter(ends), "end": Parameter(ends), "step": Parameter(ends, ())},
)


def _slice_like(p: Any, training: bool, x: Any, like: Any) -> Any:
    axes = [axis_of(a, x.dim()) for a in p.axes] or range(x.dim())
    if any(i >= like.dim() or like.shape[i] > x.shape[i] for i in axes):
        raise ValueError(
            f"expected a shape that fits into {tuple(x.shape)} along axes {tuple(axes)}, got {tuple(like.shape)}"
        )
    return _sliced(x, [slice(like.shape[i]) if i in axes else slice(None) for i in range(x.dim())])


define(
    "slice_like",
    "data shape_like",
    _slice_like,
    {"axes": Parameter(dims, ())},
    free="shape_like",
)


define(
    "reverse flip",
    "data",
    lambda p, training, x: x.flip([axis_of(axis, x.dim()) for axis in p.axis]),
    {"axis": Parameter(dims)},
)


def _split(p: Any, training: bool, x: Any) -> Any:
    if x.shape[p.axis] % p.num_outputs:
        raise ValueError(f"expected axis {p.axis} in {p.num_outputs} equal parts, got {tuple(x.shape)}")
    parts = x.chunk(p.num_outputs, p.axis)
    if p.squeeze_axis and parts[0].shape[p.axis] > 1:
        raise ValueError(f"expected parts of length 1 where squeeze_axis is set, got {parts[0].shape[p.axis]}")
    parts = tuple(part.squeeze(p.axis) if p.squeeze_axis else part for part in parts)
    return parts if len(parts) > 1 else parts[0]


define(
    "SliceChannel split",
    "data",
    _split,
    {"num_outputs": Parameter(COUNT), "axis": Parameter(integer, 1), "squeeze_axis": Parameter(flag, False)},
    outputs=lambda p: int(p.num_outputs),
    called="output{}".format,
)

# ---- joins --------------------------------------------------------------------------------------------------


def _joined(site: Site) -> None:
    """All lengths are alike but the one along the axis of the join."""
    shapes = [shape for shape in site.ins if shape is not None]
    if len({len(shape) for shape in shapes}) > 1:
        site.refuse(f"expected arrays of as many axes, got {shapes}")
    if shapes:
        axis = axis_of(site.p.dim, len(shapes[0]))
        around = tuple(0 if i == axis else max(lengths) for i, lengths in enumerate(zip(*shapes, strict=True)))
        for i in range(len(site.ins)):
            site.put_in(i, around)


define(
    "Concat concat",
    "*",
    lambda p, training, *tensors: torch.cat(tensors, p.dim),
    {"num_args": Parameter(COUNT), "dim": Parameter(integer, 1)},
    shape=_joined,
)


define(
    "stack",
    "*",
    lambda p, training, *tensors: torch.stack(tensors, p.axis),
    {"num_args": Parameter(COUNT), "axis": Parameter(integer, 0)},
    shape=alike,
)


define("tile", "data", lambda p, training, x: x.tile(p.reps), {"reps": Parameter(dims)})


define(
    "repeat",
    "data",
    lambda p, training, x: x.repeat_interleave(p.repeats, p.axis),
    {"repeats": Parameter(integer), "axis": Parameter(optional(integer), None)},
)


define(
    "broadcast_to",
    "data",
    lambda p, training, x: x.expand([w or n for n, w in zip(x.shape, p.shape, strict=True)]),
    {"shape": Parameter(dims)},
)


def _lengthened(p: Any, shape: Shape) -> Shape:
    axes = [axis_of(axis, len(shape)) for axis in p.axis]
    if len(axes) != len(p.size) or any(shape[axis] != 1 for axis in axes):
        raise ValueError(f"expected a size for each axis of length 1, got axes {p.axis} and sizes {p.size} for {shape}")
    wanted = dict(zip(axes, p.size, strict=True))
    return tuple(wanted.get(i, n) for i, n in enumerate(shape))


define(
    "broadcast_axis broadcast_axes",
    "data",
    lambda p, training, x: x.expand(_lengthened(p, tuple(x.shape))),
    {"axis": Parameter(dims, ()), "size": Parameter(dims, ())},
)
