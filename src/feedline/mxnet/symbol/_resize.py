"""Operators that change the height and width of images: repeated, interpolated, cut out, padded, made channels."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Shape, Site, check_images, define, numbered
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dims, flag, integer, real, word


def _scales(p: Any) -> Shape:
    """Factors of height and width; one number is both."""
    given: Shape = p.scale
    if len(given) not in (1, 2) or min(given) < 1:
        raise ValueError(f"expected a scale of one number or two, from 1, got {given}")
    if p.sample_type == "bilinear" and given[0] != given[-1]:
        raise ValueError(f"expected one scale for both axes of a bilinear sampling, got {given}")
    return given * 2 if len(given) == 1 else given


def _interpolating(site: Site) -> None:
    shape = site.full()
    if shape is not None and site.p.sample_type == "bilinear":
        down, _ = _scales(site.p)
        kernel = 2 * down - down % 2
        site.put_in(1, (shape[1], 1, kernel, kernel))


def _sample(p: Any, training: bool, *tensors: Any) -> Any:
    first = tensors[0]
    down, across = _scales(p)
    check_images(first)
    if p.sample_type == "bilinear":
        # Each channel by itself; the weight holds the interpolation and may be trained.
        return functional.conv_transpose2d(first, tensors[1], None, down, down // 2, 0, first.shape[1])
    rows, columns = first.shape[2] * down, first.shape[3] * across
    for x in tensors[1:]:
        check_images(x)
        if rows % x.shape[2] or columns % x.shape[3] or len(x) != len(first):
            raise ValueError(
                f"expected images whose sizes divide {(rows, columns)}, {len(first)} of each, got {tuple(x.shape)}"
            )
        if p.multi_input_mode == "sum" and x.shape[1] != first.shape[1]:
            raise ValueError(f"expected as many channels in all images that are added, got {tuple(x.shape)}")
    large = [x.repeat_interleave(rows // x.shape[2], 2).repeat_interleave(columns // x.shape[3], 3) for x in tensors]
    return torch.stack(large).sum(0) if p.multi_input_mode == "sum" else torch.cat(large, 1)


def _sampled_inputs(p: Any) -> Names:
    return ("data", "weight") if p.sample_type == "bilinear" else numbered(p.num_args)


define(
    "UpSampling",
    _sampled_inputs,
    _sample,
    {
        "scale": Parameter(dims),
        "num_filter": Parameter(integer, 0),
        "sample_type": Parameter(word("bilinear", "nearest")),
        "multi_input_mode": Parameter(word("concat", "sum"), "concat"),
        "num_args": Parameter(COUNT),
        "workspace": Parameter(integer, 512),
    },
    weights="weight",
    first={"weight": '["bilinear", {}]'},
    shape=_interpolating,
)


def _place(p: Any, sizes: Shape, wanted: Shape) -> Shape:
    """Row and column where the part begins."""
    if p.center_crop:
        return tuple((n - w) // 2 for n, w in zip(sizes, wanted, strict=True))
    offset: Shape = p.offset
    return offset


def _crop(p: Any, training: bool, x: Any, like: Any = None) -> Any:
    check_images(x, *(() if like is None else (like,)))
    wanted, sizes = p.h_w if like is None else tuple(like.shape[2:]), tuple(x.shape[2:])
    row, column = begin = _place(p, sizes, wanted)
    if any(w < 1 or b < 0 or b + w > n for b, w, n in zip(begin, wanted, sizes, strict=True)):
        raise ValueError(f"expected a part within {sizes}, got {wanted} from {begin} on")
    return x[:, :, row : row + wanted[0], column : column + wanted[1]]


define(
    "Crop",
    "*",
    _crop,
    {
        "num_args": Parameter(COUNT),
        "offset": Parameter(dims, (0, 0)),
        "h_w": Parameter(dims, (0, 0)),
        "center_crop": Parameter(flag, False),
    },
)


def _into_channels(p: Any, training: bool, x: Any) -> Any:
    check_images(x)
    (n, c, h, w), b = x.shape, p.block_size
    if b < 1 or h % b or w % b:
        raise ValueError(f"expected sizes in blocks of {b}, got {tuple(x.shape)}")
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def _out_of_channels(p: Any, training: bool, x: Any) -> Any:
    check_images(x)
    (n, c, h, w), b = x.shape, p.block_size
    if b < 1 or c % b**2:
        raise ValueError(f"expected channels in blocks of {b} x {b}, got {tuple(x.shape)}")
    return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


_BLOCK = {"block_size": Parameter(integer)}

define("space_to_depth", "data", _into_channels, _BLOCK)
define("depth_to_space", "data", _out_of_channels, _BLOCK)


def _pad(p: Any, training: bool, x: Any) -> Any:
    if len(p.pad_width) != 2 * x.dim():
        raise ValueError(f"expected two widths for each axis of {tuple(x.shape)}, got {p.pad_width}")
    pairs = [p.pad_width[i : i + 2] for i in range(0, len(p.pad_width), 2)]
    if p.mode == "constant":
        return functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=p.constant_value)
    inner = [n for pair in reversed(pairs[2:]) for n in pair]  # the first two axes are never padded in these modes
    return functional.pad(x, inner, "replicate" if p.mode == "edge" else "reflect")


define(
    "Pad pad",
    "data",
    _pad,
    {
        "mode": Parameter(word("constant", "edge", "reflect")),
        "pad_width": Parameter(dims),
        "constant_value": Parameter(real, 0.0),
    },
)
