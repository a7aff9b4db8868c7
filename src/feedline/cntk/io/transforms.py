"""`cntk.io.transforms`: descriptions of image transforms, as dictionaries, for `StreamDef(transforms=[...])`.

`_picture_steps` implements them. Channels are in the order blue, green, red. Values are 0 to 255. Pictures are
delivered as float32 (channels, height, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feedline.cntk.cntk_py import Dictionary

__all__ = ["color", "crop", "mean", "scale"]

Range = float | Sequence[float]


def crop(
    crop_type: str = "center",
    crop_size: int | Sequence[int] = 0,
    side_ratio: Range = 0.0,
    area_ratio: Range = 0.0,
    aspect_ratio: Range = 1.0,
    jitter_type: str = "none",
) -> Dictionary:
    """Cut out a part of the picture.

    Args:
        crop_type: place of the part: ``"center"``; ``"randomside"`` and ``"randomarea"`` for a random place, flipped
            with probability 0.5; or ``"multiview10"`` for the corners and the center, and their mirror images, in the
            copies of ``deserializer["multiViewCrop"] = True``.
        crop_size: width and height, in pixels, at most the picture's. If set, no ratio is used. 0: use ratios.
        side_ratio: side of the square to cut out as a share of the shorter side. 0: not used.
        area_ratio: its area as a share of the picture's. 0: not used. Only one of these two ratios may be set.
        aspect_ratio: ratio of the sides of a rectangle, upright or not, that replaces the square with the same area.
        jitter_type: ``"none"`` for the lower ends of the ranges, or ``"uniratio"`` for uniform numbers in them.

    Raises:
        ValueError: a range whose lower end is above its upper end.
    """
    return Dictionary(
        {
            "type": "Crop",
            "cropType": crop_type,
            "cropSize": _pair("crop_size", crop_size, ordered=False),
            "sideRatio": _pair("side_ratio", side_ratio),
            "areaRatio": _pair("area_ratio", area_ratio),
            "aspectRatio": _pair("aspect_ratio", aspect_ratio),
            "jitterType": jitter_type,
        }
    )


def scale(
    width: int,
    height: int,
    channels: int,
    interpolations: str = "linear",
    scale_mode: str = "fill",
    pad_value: int = -1,
) -> Dictionary:
    """Scale the picture to a size.

    Args:
        width, height: size in pixels.
        channels: number of channels: 3, or 1 with ``deserializer["grayscale"] = True``.
        interpolations: ``"nearest"``, ``"linear"``, ``"cubic"`` or ``"lanczos"``, as OpenCV's.
        scale_mode: ``"fill"`` to scale both sides, ``"crop"`` to keep proportions and cut off the rest, or ``"pad"`` to
            keep proportions and fill up the size.
        pad_value: value of the padding. -1: the pixels of the border.
    """
    names = ("width", "height", "channels", "interpolations", "scaleMode", "padValue")
    values: tuple[Any, ...] = (width, height, channels, interpolations, scale_mode, pad_value)
    return Dictionary({"type": "Scale", **dict(zip(names, values, strict=True))})


def mean(filename: str) -> Dictionary:
    """Subtract a mean picture, an OpenCV XML file with ``Row``, ``Col``, ``Channel`` and the matrix ``MeanImg``.

    Pictures of another size are left as they are, with a warning.
    """
    return Dictionary({"type": "Mean", "meanFile": filename})


def color(brightness_radius: float = 0.0, contrast_radius: float = 0.0, saturation_radius: float = 0.0) -> Dictionary:
    """Change colours at random.

    Args:
        brightness_radius: largest share of the picture's mean to add or subtract.
        contrast_radius: largest difference from 1 of the factor of values.
        saturation_radius: largest difference from 1 of the factor of the saturation, which is at most 1 after it.
    """
    return Dictionary(
        {
            "type": "Color",
            "brightnessRadius": brightness_radius,
            "contrastRadius": contrast_radius,
            "saturationRadius": saturation_radius,
        }
    )


def _pair(name: str, value: Any, ordered: bool = True) -> str:
    """Return ``a:b``, from a pair or a single number for both."""
    low, high = value if isinstance(value, (tuple, list)) else (value, value)
    if ordered and low > high:
        raise ValueError(f"expected {name} as a range from low to high, got {low} to {high}")
    return f"{low}:{high}"
