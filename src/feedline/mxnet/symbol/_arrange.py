"""Operators that arrange: shapes, slices, joins, repetitions."""

from __future__ import annotations

import math
from typing import Any

import torch

from feedline.mxnet.symbol._operator import Shape, Site, define, same
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dims, ends, flag, integer, optional


def _flat(site: Site) -> None:
    shape = site.ins[0]
    if shape is not None:
        site.put_out((shape[0], math.prod(shape[1:])))


define("Flatten flatten", "data", _flat, lambda p, training, x: x.reshape(len(x), -1))


def reshaped(old: Shape, codes: Shape, reverse: bool = False) -> Shape:
    """MXNet's codes: 0 copies a length, -1 is worked out, -2 copies all that are left, -3 joins two, -4 splits one.

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


def _reshape_shape(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        try:
            site.put_out(reshaped(shape, site.p.shape, site.p.reverse))
        except (IndexError, ValueError) as error:
            site.refuse(f"expected a shape that reshapes to {site.p.shape}, got {shape} ({error})")


define(
    "Reshape reshape",
    "data",
    _reshape_shape,
    lambda p, training, x: x.reshape(reshaped(tuple(x.shape), p.shape, p.reverse)),
    {"shape": Parameter(dims), "reverse": Parameter(flag, False)},
)


def _order(p: Any, rank: int) -> tuple[int, ...]:
    return tuple(a % rank for a in p.axes) or tuple(reversed(range(rank)))


def _transposed(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        if sorted(_order(site.p, len(shape))) != list(range(len(shape))):
            site.refuse(f"expected a permutation of the axes of {shape}, got {site.p.axes}")
        site.put_out(tuple(shape[a] for a in _order(site.p, len(shape))))


define(
    "transpose",
    "data",
    _transposed,
    lambda p, training, x: x.permute(_order(p, x.dim())),
    {"axes": Parameter(dims, ())},
)


def _swap(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        a, b = (site.axis(axis, len(shape)) for axis in (site.p.dim1, site.p.dim2))
        lengths = list(shape)
        lengths[a], lengths[b] = lengths[b], lengths[a]
        site.put_out(tuple(lengths))


define(
    "SwapAxis swapaxes",
    "data",
    _swap,
    lambda p, training, x: x.transpose(p.dim1, p.dim2),
    {"dim1": Parameter(integer, 0), "dim2": Parameter(integer, 0)},
)


def _expanded(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        at = site.axis(site.p.axis, len(shape) + 1)
        site.put_out((*shape[:at], 1, *shape[at:]))


define("expand_dims", "data", _expanded, lambda p, training, x: x.unsqueeze(p.axis), {"axis": Parameter(integer)})


def _squeezed(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        gone = [i for i, n in enumerate(shape) if n == 1]
        if site.p.axis is not None:
            gone = [site.axis(axis, len(shape)) for axis in site.p.axis]
            if any(shape[i] != 1 for i in gone):
                site.refuse(f"expected axes of length 1, got {site.p.axis} of {shape}")
        site.put_out(tuple(n for i, n in enumerate(shape) if i not in gone) or (1,))


def _squeeze(p: Any, training: bool, x: Any) -> Any:
    y = x.squeeze() if p.axis is None else x.squeeze(p.axis)
    return y if y.dim() else y.reshape(1)


define("squeeze", "data", _squeezed, _squeeze, {"axis": Parameter(optional(dims), None)})

# ---- slices -------------------------------------------------------------------------------------------------


def _axis_slice(p: Any, shape: Shape) -> tuple[slice, ...]:
    axis = p.axis % len(shape)
    return (*[slice(None)] * axis, slice(p.begin, p.end))


def _slices(p: Any, shape: Shape) -> tuple[slice, ...]:
    steps = p.step or (None,) * len(p.begin)
    return tuple(slice(a, b, s) for a, b, s in zip(p.begin, p.end, steps, strict=True))


def _lengths(site: Site, shape: Shape, parts: tuple[slice, ...]) -> None:
    out = [len(range(*part.indices(n))) for part, n in zip(parts, shape, strict=False)] + list(shape[len(parts) :])
    if 0 in out:
        site.refuse(f"expected something left of {shape}, got nothing along axis {out.index(0)}")
    site.put_out(tuple(out))


def _axis_sliced(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        site.axis(site.p.axis, len(shape))
        _lengths(site, shape, _axis_slice(site.p, shape))


def _sliced(site: Site) -> None:
    shape, p = site.full(), site.p
    if shape is not None:
        if len(p.begin) != len(p.end) or len(p.begin) > len(shape) or (p.step and len(p.step) != len(p.begin)):
            site.refuse(f"expected as many begins, ends and steps, at most {len(shape)}, got {p.begin}, {p.end}")
        if any(step is not None and step <= 0 for step in p.step):
            site.refuse(f"expected steps above 0, got {p.step}")
        _lengths(site, shape, _slices(p, shape))


define(
    "slice_axis",
    "data",
    _axis_sliced,
    lambda p, training, x: x[_axis_slice(p, tuple(x.shape))],
    {"axis": Parameter(integer), "begin": Parameter(integer), "end": Parameter(optional(integer))},
)
define(
    "slice crop",
    "data",
    _sliced,
    lambda p, training, x: x[_slices(p, tuple(x.shape))],
    {"begin": Parameter(ends), "end": Parameter(ends), "step": Parameter(ends, ())},
)


def _parts_like(p: Any, shape: Shape, like: Shape) -> tuple[slice, ...]:
    axes = [a % len(shape) for a in p.axes] or range(len(shape))
    return tuple(slice(like[i]) if i in axes else slice(None) for i in range(len(shape)))


def _sliced_like(site: Site) -> None:
    shape, like = site.full(0), site.full(1)
    if shape is None or like is None:
        return
    axes = [site.axis(a, len(shape)) for a in site.p.axes] or range(len(shape))
    if any(i >= len(like) or like[i] > shape[i] for i in axes):
        site.refuse(f"expected a shape that fits into {shape} along axes {tuple(axes)}, got {like}")
    _lengths(site, shape, _parts_like(site.p, shape, like))


define(
    "slice_like",
    "data shape_like",
    _sliced_like,
    lambda p, training, x, like: x[_parts_like(p, tuple(x.shape), tuple(like.shape))],
    {"axes": Parameter(dims, ())},
    free="shape_like",
)


def _turned(site: Site) -> None:
    if site.ins[0] is not None:
        for axis in site.p.axis:
            site.axis(axis, len(site.ins[0]))
    same(site)


define("reverse flip", "data", _turned, lambda p, training, x: x.flip(p.axis), {"axis": Parameter(dims)})


def _split_shape(site: Site) -> None:
    shape, p = site.ins[0], site.p
    if shape is None:
        return
    axis = site.axis(p.axis, len(shape))
    if shape[axis] % p.num_outputs:
        site.refuse(f"expected axis {axis} in {p.num_outputs} equal parts, got {shape}")
    part = shape[axis] // p.num_outputs
    if p.squeeze_axis:
        if part > 1:
            site.refuse(f"expected parts of length 1 where squeeze_axis is set, got {part}")
        out: Shape = (*shape[:axis], *shape[axis + 1 :])
    else:
        out = (*shape[:axis], part, *shape[axis + 1 :])
    for i in range(p.num_outputs):
        site.put_out(out, i)


def _split(p: Any, training: bool, x: Any) -> Any:
    parts = x.chunk(p.num_outputs, p.axis)
    parts = tuple(part.squeeze(p.axis) if p.squeeze_axis else part for part in parts)
    return parts if len(parts) > 1 else parts[0]


define(
    "SliceChannel split",
    "data",
    _split_shape,
    _split,
    {"num_outputs": Parameter(COUNT), "axis": Parameter(integer, 1), "squeeze_axis": Parameter(flag, False)},
    outputs=lambda p: int(p.num_outputs),
    called="output{}".format,
)

# ---- joins --------------------------------------------------------------------------------------------------


def _joined(site: Site) -> None:
    shapes = [s for s in site.ins if s is not None]
    if not shapes:
        return
    if len({len(s) for s in shapes}) > 1:
        site.refuse(f"expected arrays of as many axes, got {shapes}")
    axis = site.axis(site.p.dim, len(shapes[0]))
    around = [0 if i == axis else max(lengths) for i, lengths in enumerate(zip(*shapes, strict=True))]
    for i in range(len(site.ins)):
        site.put_in(i, tuple(around))
    parts = [s[axis] for s in site.ins if s is not None]
    around[axis] = sum(parts) if all(parts) else 0
    site.put_out(tuple(around))


define(
    "Concat concat",
    "*",
    _joined,
    lambda p, training, *tensors: torch.cat(tensors, p.dim),
    {"num_args": Parameter(COUNT), "dim": Parameter(integer, 1)},
)


def _stacked(site: Site) -> None:
    for shape in site.ins:
        if shape is not None:
            for i in range(len(site.ins)):
                site.put_in(i, shape)
            at = site.axis(site.p.axis, len(shape) + 1)
            site.put_out((*shape[:at], len(site.ins), *shape[at:]))


define(
    "stack",
    "*",
    _stacked,
    lambda p, training, *tensors: torch.stack(tensors, p.axis),
    {"num_args": Parameter(COUNT), "axis": Parameter(integer, 0)},
)


def _tiled(site: Site) -> None:
    shape, reps = site.full(), site.p.reps
    if shape is not None:
        rank = max(len(shape), len(reps))
        long = (1,) * (rank - len(shape)) + shape
        site.put_out(tuple(n * r for n, r in zip(long, (1,) * (rank - len(reps)) + reps, strict=True)))


define("tile", "data", _tiled, lambda p, training, x: x.tile(p.reps), {"reps": Parameter(dims)})


def _repeated(site: Site) -> None:
    shape = site.full()
    if shape is not None:
        if site.p.axis is None:
            site.put_out((math.prod(shape) * site.p.repeats,))
        else:
            axis = site.axis(site.p.axis, len(shape))
            site.put_out((*shape[:axis], shape[axis] * site.p.repeats, *shape[axis + 1 :]))


define(
    "repeat",
    "data",
    _repeated,
    lambda p, training, x: x.repeat_interleave(p.repeats, p.axis),
    {"repeats": Parameter(integer), "axis": Parameter(optional(integer), None)},
)


def _spread(site: Site) -> None:
    shape, wanted = site.full(), site.p.shape
    if shape is not None:
        if len(wanted) != len(shape) or any(n not in (1, w or n) for n, w in zip(shape, wanted, strict=True)):
            site.refuse(f"expected a shape that broadcasts to {wanted}, got {shape}")
        site.put_out(tuple(w or n for n, w in zip(shape, wanted, strict=True)))


define(
    "broadcast_to",
    "data",
    _spread,
    lambda p, training, x: x.expand([w or n for n, w in zip(x.shape, p.shape, strict=True)]),
    {"shape": Parameter(dims)},
)


def _lengthened(p: Any, shape: Shape) -> Shape:
    wanted = {axis % len(shape): size for axis, size in zip(p.axis, p.size, strict=True)}
    return tuple(wanted.get(i, n) for i, n in enumerate(shape))


def _spread_along(site: Site) -> None:
    shape, p = site.full(), site.p
    if shape is not None:
        axes = [site.axis(axis, len(shape)) for axis in p.axis]
        if len(axes) != len(p.size) or any(shape[axis] != 1 for axis in axes):
            site.refuse(f"expected a size for each axis of length 1, got axes {p.axis} and sizes {p.size} for {shape}")
        site.put_out(_lengthened(p, shape))


define(
    "broadcast_axis broadcast_axes",
    "data",
    _spread_along,
    lambda p, training, x: x.expand(_lengthened(p, tuple(x.shape))),
    {"axis": Parameter(dims, ()), "size": Parameter(dims, ())},
)
