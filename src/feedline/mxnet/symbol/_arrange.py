"""Operators that rearrange elements: shapes, slices, joins, repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Site, alike, axis_of, define
from feedline.mxnet.symbol._parameters import Count, Ends, Shape


@define("Flatten flatten")
def _flatten(data: Any) -> Any:
    return data.reshape(len(data), -1)


def reshaped(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """Apply MXNet's shape codes: 0 copies a length, -1 is inferred, -2 copies the rest, -3 merges two, -4 splits one.

    Raises:
        ValueError: codes that do not fit.
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
        known_size = math.prod(n for n in out if n != -1)
        out = [size // known_size if n == -1 and known_size else n for n in out]
    if math.prod(out) != size or min(out, default=1) < 0:
        raise ValueError(f"{old} into {tuple(out)}")
    return tuple(out[::-1] if reverse else out)


@define("shape_array", free="data", dtype=lambda p: "int64")
def _shape_array(data: Any) -> Any:
    return torch.tensor(data.shape, dtype=torch.int64, device=data.device)


@define("size_array", free="data", dtype=lambda p: "int64")
def _size_array(data: Any) -> Any:
    return torch.tensor([data.numel()], dtype=torch.int64, device=data.device)


@define("Reshape reshape")
def _reshape(data: Any, *, shape: Shape, reverse: bool = False) -> Any:
    return data.reshape(reshaped(tuple(data.shape), shape, reverse))


@define("transpose")
def _transpose(data: Any, *, axes: Shape = ()) -> Any:
    rank = data.dim()
    return data.permute(tuple(a % rank for a in axes) or tuple(reversed(range(rank))))


@define("SwapAxis swapaxes")
def _swap(data: Any, *, dim1: int = 0, dim2: int = 0) -> Any:
    return data.transpose(dim1, dim2)


@define("expand_dims")
def _expand_dims(data: Any, *, axis: int) -> Any:
    return data.unsqueeze(axis)


@define("squeeze")
def _squeeze(data: Any, *, axis: Shape | None = None) -> Any:
    if axis is not None and any(data.shape[i] != 1 for i in axis):
        raise ValueError(f"expected axes of length 1, got {axis} of {tuple(data.shape)}")
    y = data.squeeze() if axis is None else data.squeeze(axis)
    return y if y.dim() else y.reshape(1)


# ---- slices -------------------------------------------------------------------------------------------------


def _slice_parts(x: Any, parts: Sequence[slice]) -> Any:
    y = x[tuple(parts)]
    if 0 in y.shape:
        raise ValueError(f"expected a non-empty slice of {tuple(x.shape)}, got length 0 along axis {y.shape.index(0)}")
    return y


@define("slice_axis")
def _slice_axis(data: Any, *, axis: int, begin: int, end: int | None) -> Any:
    return _slice_parts(data, (*[slice(None)] * axis_of(axis, data.dim()), slice(begin, end)))


@define("slice crop")
def _slice(data: Any, *, begin: Ends, end: Ends, step: Ends = ()) -> Any:
    return _slice_parts(data, [slice(*part) for part in zip(begin, end, step or (None,) * len(begin), strict=True)])


@define("slice_like", free="shape_like")
def _slice_like(data: Any, shape_like: Any, *, axes: Shape = ()) -> Any:
    old, new = tuple(data.shape), tuple(shape_like.shape)
    within = [axis_of(a, len(old)) for a in axes] or range(len(old))
    if any(i >= len(new) or new[i] > old[i] for i in within):
        raise ValueError(f"expected a shape that fits into {old} along axes {tuple(within)}, got {new}")
    return _slice_parts(data, [slice(new[i]) if i in within else slice(None) for i in range(len(old))])


@define("reverse flip")
def _reverse(data: Any, *, axis: Shape) -> Any:
    return data.flip([axis_of(i, data.dim()) for i in axis])


@define("SliceChannel split", outputs=lambda p: int(p.num_outputs), called="output{}".format)
def _split(data: Any, *, num_outputs: Count, axis: int = 1, squeeze_axis: bool = False) -> Any:
    if data.shape[axis] % num_outputs:
        raise ValueError(f"expected axis {axis} in {num_outputs} equal parts, got {tuple(data.shape)}")
    parts = data.chunk(num_outputs, axis)
    if squeeze_axis and parts[0].shape[axis] > 1:
        raise ValueError(f"expected parts of length 1 where squeeze_axis is set, got {parts[0].shape[axis]}")
    parts = tuple(part.squeeze(axis) if squeeze_axis else part for part in parts)
    return parts if len(parts) > 1 else parts[0]


# ---- joins --------------------------------------------------------------------------------------------------


def _infer_join(site: Site) -> None:
    """Require equal lengths along all axes but the joined one."""
    shapes = [shape for shape in (*site.ins, site.outs[0]) if shape is not None]
    if len({len(shape) for shape in shapes}) > 1:
        site.refuse(f"expected arrays with equal numbers of axes, got {shapes}")
    if shapes:
        axis = axis_of(site.p.dim, len(shapes[0]))
        around = tuple(0 if i == axis else max(lengths) for i, lengths in enumerate(zip(*shapes, strict=True)))
        for i in range(len(site.ins)):
            site.put_in(i, around)


@define("Concat concat", shape=_infer_join)
def _concat(*tensors: Any, dim: int = 1) -> Any:
    return torch.cat(tensors, dim)


@define("stack", shape=alike)
def _stack(*tensors: Any, axis: int = 0) -> Any:
    return torch.stack(tensors, axis)


@define("tile")
def _tile(data: Any, *, reps: Shape) -> Any:
    return data.tile(reps)


@define("repeat")
def _repeat(data: Any, *, repeats: int, axis: int | None = None) -> Any:
    return data.repeat_interleave(repeats, axis)


@define("broadcast_to")
def _broadcast_to(data: Any, *, shape: Shape) -> Any:
    return data.expand([w or n for n, w in zip(data.shape, shape, strict=True)])


@define("broadcast_axis broadcast_axes")
def _broadcast_axis(data: Any, *, axis: Shape = (), size: Shape = ()) -> Any:
    old = tuple(data.shape)
    axes = [axis_of(i, len(old)) for i in axis]
    if len(axes) != len(size) or any(old[i] != 1 for i in axes):
        raise ValueError(f"expected a size for each axis of length 1, got axes {axis} and sizes {size} for {old}")
    lengths = dict(zip(axes, size, strict=True))
    return data.expand([lengths.get(i, n) for i, n in enumerate(old)])
