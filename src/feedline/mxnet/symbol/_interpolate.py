"""Operators of `mxnet.symbol.contrib` that bring images to a size: interpolated, or averaged over areas."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Shape, check_images, define
from feedline.mxnet.symbol._parameters import Parameter, between, dims, flag, integer, optional, real, word

# To the next even or odd length, if it is not one: what is added.
_ROUNDED = {"to_even_down": (0, -1), "to_even_up": (0, 1), "to_odd_down": (1, -1), "to_odd_up": (1, 1)}


def _resized(p: Any, sizes: Shape, like: Shape) -> tuple[int, ...]:
    """Height and width of the result."""
    if p.mode == "like":
        return like
    if p.mode in _ROUNDED:
        odd, step = _ROUNDED[p.mode]
        return tuple(n if n % 2 == odd else n + step for n in sizes)
    if p.mode == "odd_scale" and None in (p.scale_height, p.scale_width):
        raise ValueError("expected scale_height and scale_width for the mode odd_scale")
    found = []
    for n, scale, told in zip(sizes, (p.scale_height, p.scale_width), (p.height, p.width), strict=True):
        if p.mode == "odd_scale":
            found.append(int(n * scale) if n % 2 == 0 else int((n - 1) * scale) + 1)
        else:
            found.append(told if scale is None else int(n * scale))
    return tuple(found)


def _resize(p: Any, training: bool, x: Any, like: Any = None) -> Any:
    check_images(x)
    out = _resized(p, tuple(x.shape[2:]), () if like is None else tuple(like.shape[2:]))
    return functional.interpolate(x, out, mode="bilinear", align_corners=p.align_corners)


def _resize_inputs(p: Any) -> Names:
    return ("data", "like") if p.mode == "like" else ("data",)


define(
    "_contrib_BilinearResize2D",
    _resize_inputs,
    _resize,
    {
        "height": Parameter(between(integer, 1, 10000), 1),
        "width": Parameter(between(integer, 1, 10000), 1),
        "scale_height": Parameter(optional(real), None),
        "scale_width": Parameter(optional(real), None),
        "mode": Parameter(word("like", "odd_scale", "size", *_ROUNDED), "size"),
        "align_corners": Parameter(flag, True),
    },
    free="like",
)


def _areas(p: Any) -> Shape:
    """Height and width of the result: one number is both, none is 1."""
    wanted: Shape = p.output_size or (1,)
    if len(wanted) > 2 or min(wanted) < 1:
        raise ValueError(f"expected a height and a width from 1 as output_size, got {p.output_size}")
    return wanted * 2 if len(wanted) == 1 else wanted


def _average(p: Any, training: bool, x: Any) -> Any:
    check_images(x)
    return functional.adaptive_avg_pool2d(x, _areas(p))


define(
    "_contrib_AdaptiveAvgPooling2D",
    "data",
    _average,
    {"output_size": Parameter(dims, ())},
)
