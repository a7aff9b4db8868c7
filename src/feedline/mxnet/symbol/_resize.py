"""Operators that change the height and width of images: interpolate, average, repeat, crop, pad, move to channels."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch.nn import functional

from feedline.mxnet.symbol._operator import Names, Site, check_images, define, numbered_names
from feedline.mxnet.symbol._parameters import Shape, between, integer


def _scales(scale: Shape, sample_type: str) -> tuple[int, int]:
    """Return the factors of height and width. A single number means both."""
    if len(scale) not in (1, 2) or min(scale) < 1:
        raise ValueError(f"expected one or two numbers of at least 1 as scale, got {scale}")
    if sample_type == "bilinear" and scale[0] != scale[-1]:
        raise ValueError(f"expected the same scale for both axes of bilinear sampling, got {scale}")
    return scale[0], scale[-1]


def _interpolating(site: Site) -> None:
    shape = site.full()
    if shape is not None and site.p.sample_type == "bilinear":
        down, _ = _scales(site.p.scale, site.p.sample_type)
        kernel = 2 * down - down % 2
        site.put_in(1, (shape[1], 1, kernel, kernel))


def _sampled_inputs(p: Any) -> Names:
    return ("data", "weight") if p.sample_type == "bilinear" else numbered_names(p.num_args)


@define(
    "UpSampling",
    inputs=_sampled_inputs,
    weights="weight",
    first={"weight": '["bilinear", {}]'},
    shape=_interpolating,
)
def _sample(
    *images: Any,
    scale: Shape,
    num_filter: int = 0,
    sample_type: Literal["bilinear", "nearest"],
    multi_input_mode: Literal["concat", "sum"] = "concat",
    workspace: int = 512,
) -> Any:
    first = images[0]
    down, across = _scales(scale, sample_type)
    check_images(first)
    if sample_type == "bilinear":
        # Each channel separately. The weight contains the interpolation and may be trained.
        return functional.conv_transpose2d(first, images[1], None, down, down // 2, 0, first.shape[1])
    rows, columns = first.shape[2] * down, first.shape[3] * across
    for x in images[1:]:
        check_images(x)
        if rows % x.shape[2] or columns % x.shape[3] or len(x) != len(first):
            raise ValueError(
                f"expected {len(first)} images of a size that divides {(rows, columns)}, got {tuple(x.shape)}"
            )
        if multi_input_mode == "sum" and x.shape[1] != first.shape[1]:
            raise ValueError(f"expected equal numbers of channels in images to add, got {tuple(x.shape)}")
    large = [x.repeat_interleave(rows // x.shape[2], 2).repeat_interleave(columns // x.shape[3], 3) for x in images]
    return torch.stack(large).sum(0) if multi_input_mode == "sum" else torch.cat(large, 1)


@define("Crop")
def _crop(*images: Any, offset: Shape = (0, 0), h_w: Shape = (0, 0), center_crop: bool = False) -> Any:
    if len(images) > 2:
        raise ValueError(f"expected an image, and at most one more for the size, got {len(images)}")
    check_images(*images)
    x = images[0]
    size, sizes = tuple(images[1].shape[2:]) if len(images) > 1 else h_w, tuple(x.shape[2:])
    row, column = begin = tuple((n - w) // 2 for n, w in zip(sizes, size, strict=True)) if center_crop else offset
    if any(w < 1 or b < 0 or b + w > n for b, w, n in zip(begin, size, sizes, strict=True)):
        raise ValueError(f"expected a crop within {sizes}, got {size} from {begin}")
    return x[:, :, row : row + size[0], column : column + size[1]]


@define("space_to_depth")
def _into_channels(data: Any, *, block_size: int) -> Any:
    check_images(data)
    (n, c, h, w), b = data.shape, block_size
    if b < 1 or h % b or w % b:
        raise ValueError(f"expected a height and width that {b} divides, got {tuple(data.shape)}")
    return data.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)


@define("depth_to_space")
def _out_of_channels(data: Any, *, block_size: int) -> Any:
    check_images(data)
    (n, c, h, w), b = data.shape, block_size
    if b < 1 or c % b**2:
        raise ValueError(f"expected a multiple of {b} * {b} channels, got {tuple(data.shape)}")
    return data.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)


@define("Pad pad")
def _pad(
    data: Any, *, mode: Literal["constant", "edge", "reflect"], pad_width: Shape, constant_value: float = 0.0
) -> Any:
    if len(pad_width) != 2 * data.dim():
        raise ValueError(f"expected two widths for each axis of {tuple(data.shape)}, got {pad_width}")
    pairs = [pad_width[i : i + 2] for i in range(0, len(pad_width), 2)]
    if mode == "constant":
        return functional.pad(data, [n for pair in reversed(pairs) for n in pair], value=constant_value)
    inner = [n for pair in reversed(pairs[2:]) for n in pair]  # the first two axes are never padded in these modes
    return functional.pad(data, inner, "replicate" if mode == "edge" else "reflect")


# ---- to any size --------------------------------------------------------------------------------------------

# For each mode: the parity to produce, and the number to add to lengths of the other parity.
_ROUNDED = {"to_even_down": (0, -1), "to_even_up": (0, 1), "to_odd_down": (1, -1), "to_odd_up": (1, 1)}


Length = Annotated[int, between(integer, 1, 10000)]


@define("_contrib_BilinearResize2D", when={"like": lambda p: p.mode == "like"}, free="like")
def _resize(
    data: Any,
    like: Any = None,
    *,
    height: Length = 1,
    width: Length = 1,
    scale_height: float | None = None,
    scale_width: float | None = None,
    mode: Literal["like", "odd_scale", "size", "to_even_down", "to_even_up", "to_odd_down", "to_odd_up"] = "size",
    align_corners: bool = True,
) -> Any:
    check_images(data)
    axes = list(zip(data.shape[2:], (scale_height, scale_width), (height, width), strict=True))
    if mode == "like":
        out = tuple(like.shape[2:])
    elif mode in _ROUNDED:
        odd, step = _ROUNDED[mode]
        out = tuple(n if n % 2 == odd else n + step for n, _, _ in axes)
    elif mode == "odd_scale":
        if scale_height is None or scale_width is None:
            raise ValueError("expected scale_height and scale_width for the mode odd_scale")
        out = tuple(int((n - n % 2) * scale) + n % 2 for n, scale, _ in axes)
    else:
        out = tuple(length if scale is None else int(n * scale) for n, scale, length in axes)
    return functional.interpolate(data, out, mode="bilinear", align_corners=align_corners)


@define("_contrib_AdaptiveAvgPooling2D")
def _average(data: Any, *, output_size: Shape = ()) -> Any:
    check_images(data)
    size = output_size or (1,)  # a single number means both lengths
    if len(size) > 2 or min(size) < 1:
        raise ValueError(f"expected a height and a width of at least 1 as output_size, got {output_size}")
    return functional.adaptive_avg_pool2d(data, (size[0], size[-1]))
