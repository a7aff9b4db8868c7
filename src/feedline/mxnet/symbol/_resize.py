"""Operators that change the height and width of images: repeated, interpolated, cut out, padded, made channels."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Shape, Site, define, numbered
from feedline.mxnet.symbol._parameters import COUNT, Parameter, dims, flag, integer, real, word


def _scales(p: Any) -> Shape:
    """Factors of height and width; one number is both."""
    given: Shape = p.scale
    return given * 2 if len(given) == 1 else given


def _images(site: Site) -> list[Shape] | None:
    """Shapes of all inputs, once all are known."""
    shapes = [shape for i in range(len(site.ins)) if (shape := site.full(i)) is not None]
    for shape in shapes:
        if len(shape) != 4:
            site.refuse(f"expected data (batch, channels, height, width), got {shape}")
    return shapes if len(shapes) == len(site.ins) else None


def _sampled_shape(site: Site) -> None:
    p = site.p
    if len(p.scale) not in (1, 2) or min(p.scale) < 1:
        site.refuse(f"expected a scale of one number or two, from 1, got {p.scale}")
    down, across = _scales(p)
    if p.sample_type == "bilinear":
        _interpolated_shape(site, down, across)
        return
    shapes = _images(site)
    if shapes is None:
        return
    batch, _, rows, columns = shapes[0]
    out = (rows * down, columns * across)
    channels = {shape[1] for shape in shapes}
    for shape in shapes:
        if out[0] % shape[2] or out[1] % shape[3] or shape[0] != batch:
            site.refuse(f"expected images whose sizes divide {out}, {batch} of each, got {shape}")
    if p.multi_input_mode == "sum" and len(channels) > 1:
        site.refuse(f"expected as many channels in all images that are added, got {shapes}")
    site.put_out((batch, shapes[0][1] if p.multi_input_mode == "sum" else sum(s[1] for s in shapes), *out))


def _interpolated_shape(site: Site, down: int, across: int) -> None:
    if down != across:
        site.refuse(f"expected one scale for both axes of a bilinear sampling, got {(down, across)}")
    shape = site.full()
    if shape is None:
        return
    if len(shape) != 4:
        site.refuse(f"expected data (batch, channels, height, width), got {shape}")
    kernel = 2 * down - down % 2
    site.put_in(1, (shape[1], 1, kernel, kernel))
    site.put_out((*shape[:2], shape[2] * down, shape[3] * down))


def _sample(p: Any, training: bool, *tensors: Any) -> Any:
    first = tensors[0]
    down, across = _scales(p)
    if p.sample_type == "bilinear":
        # Each channel by itself; the weight holds the interpolation and may be trained.
        return functional.conv_transpose2d(first, tensors[1], None, down, down // 2, 0, first.shape[1])
    rows, columns = first.shape[2] * down, first.shape[3] * across
    large = [x.repeat_interleave(rows // x.shape[2], 2).repeat_interleave(columns // x.shape[3], 3) for x in tensors]
    return torch.stack(large).sum(0) if p.multi_input_mode == "sum" else torch.cat(large, 1)


def _sampled_inputs(p: Any) -> Names:
    return ("data", "weight") if p.sample_type == "bilinear" else numbered(p.num_args)


define(
    "UpSampling",
    _sampled_inputs,
    _sampled_shape,
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
)


def _place(p: Any, sizes: Shape, wanted: Shape) -> Shape:
    """Row and column where the part begins."""
    if p.center_crop:
        return tuple((n - w) // 2 for n, w in zip(sizes, wanted, strict=True))
    offset: Shape = p.offset
    return offset


def _cropped(site: Site) -> None:
    shapes, p = _images(site), site.p
    if shapes is None:
        return
    if len(shapes) not in (1, 2):
        site.refuse(f"expected data, and perhaps an image as large as is wanted, got {len(shapes)} inputs")
    sizes = shapes[0][2:]
    wanted = shapes[1][2:] if len(shapes) == 2 else p.h_w
    begin = _place(p, sizes, wanted)
    if any(w < 1 or b < 0 or b + w > n for b, w, n in zip(begin, wanted, sizes, strict=True)):
        site.refuse(f"expected a part within {sizes}, got {wanted} from {begin} on")
    site.put_out((*shapes[0][:2], *wanted))


def _crop(p: Any, training: bool, x: Any, like: Any = None) -> Any:
    wanted = tuple(like.shape[2:]) if like is not None else p.h_w
    row, column = _place(p, tuple(x.shape[2:]), wanted)
    return x[:, :, row : row + wanted[0], column : column + wanted[1]]


define(
    "Crop",
    "*",
    _cropped,
    _crop,
    {
        "num_args": Parameter(COUNT),
        "offset": Parameter(dims, (0, 0)),
        "h_w": Parameter(dims, (0, 0)),
        "center_crop": Parameter(flag, False),
    },
)


def _fewer(site: Site) -> None:
    shapes, block = _images(site), site.p.block_size
    if shapes is not None:
        batch, channels, rows, columns = shapes[0]
        if block < 1 or rows % block or columns % block:
            site.refuse(f"expected sizes in blocks of {block}, got {shapes[0]}")
        site.put_out((batch, channels * block**2, rows // block, columns // block))


def _more(site: Site) -> None:
    shapes, block = _images(site), site.p.block_size
    if shapes is not None:
        batch, channels, rows, columns = shapes[0]
        if block < 1 or channels % block**2:
            site.refuse(f"expected channels in blocks of {block} x {block}, got {shapes[0]}")
        site.put_out((batch, channels // block**2, rows * block, columns * block))


def _into_channels(p: Any, training: bool, x: Any) -> Any:
    n, c, h, w = x.shape
    b = p.block_size
    return x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


def _out_of_channels(p: Any, training: bool, x: Any) -> Any:
    n, c, h, w = x.shape
    b = p.block_size
    return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


_BLOCK = {"block_size": Parameter(integer)}

define("space_to_depth", "data", _fewer, _into_channels, _BLOCK)
define("depth_to_space", "data", _more, _out_of_channels, _BLOCK)


def _padded(site: Site) -> None:
    shape, width = site.full(), site.p.pad_width
    if shape is not None:
        if len(width) != 2 * len(shape):
            site.refuse(f"expected two widths for each axis of {shape}, got {width}")
        site.put_out(tuple(n + width[2 * i] + width[2 * i + 1] for i, n in enumerate(shape)))


def _pad(p: Any, training: bool, x: Any) -> Any:
    pairs = [p.pad_width[i : i + 2] for i in range(0, len(p.pad_width), 2)]
    if p.mode == "constant":
        return functional.pad(x, [n for pair in reversed(pairs) for n in pair], value=p.constant_value)
    inner = [n for pair in reversed(pairs[2:]) for n in pair]  # the first two axes are never padded in these modes
    return functional.pad(x, inner, "replicate" if p.mode == "edge" else "reflect")


define(
    "Pad pad",
    "data",
    _padded,
    _pad,
    {
        "mode": Parameter(word("constant", "edge", "reflect")),
        "pad_width": Parameter(dims),
        "constant_value": Parameter(real, 0.0),
    },
)
