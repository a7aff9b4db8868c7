"""`cntk.io.transforms`: descriptions of image transforms, as dictionaries, for `StreamDef(transforms=[...])`.

What they do is in `_picture_steps`. Channels are in the order blue, green, red; values are 0 to 255; pictures are
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
        crop_type: where: ``"center"``; ``"randomside"`` and ``"randomarea"``: anywhere, and flipped with probability
            0.5; ``"multiview10"``: the corners and the center, then those flipped, for the copies that
            ``deserializer["multiViewCrop"] = True`` makes.
        crop_size: width and height, in pixels, at most the picture's; if set, no ratio is used. 0: by ratios.
        side_ratio: side of the square cut out as a share of the shorter side; 0: not used.
        area_ratio: its area as a share of the picture's; 0: not used. Only one of the two may be set.
        aspect_ratio: the square becomes a rectangle of the same area and this ratio of its sides, upright or not.
        jitter_type: ``"none"``: lower ends of the ranges; ``"uniratio"``: uniform in them.

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
        scale_mode: ``"fill"``: both sides; ``"crop"``: keep proportions, and cut off what exceeds the size;
            ``"pad"``: keep them, and fill up what lacks.
        pad_value: what to fill up with; -1: the pixels of the border.
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
        brightness_radius: up to this share of the picture's mean is added or subtracted.
        contrast_radius: values are multiplied by 1 plus or minus this.
        saturation_radius: the saturation is, to at most 1.
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
    """Return ``a:b``; a single number is used for both."""
    low, high = value if isinstance(value, (tuple, list)) else (value, value)
    if ordered and low > high:
        raise ValueError(f"expected {name} as a range from low to high, got {low} to {high}")
    return f"{low}:{high}"
