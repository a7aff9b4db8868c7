"""`cntk.io.transforms`: descriptions of image transforms, as dictionaries.

They configured CNTK's image reader, which feedline does not have: `cntk.io.ImageDeserializer` names a replacement.
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
    """Crop the image.

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
    """Scale the image to a size."""
    names = ("width", "height", "channels", "interpolations", "scaleMode", "padValue")
    values: tuple[Any, ...] = (width, height, channels, interpolations, scale_mode, pad_value)
    return Dictionary({"type": "Scale", **dict(zip(names, values, strict=True))})


def mean(filename: str) -> Dictionary:
    """Subtract a mean image, an OpenCV XML file."""
    return Dictionary({"type": "Mean", "meanFile": filename})


def color(brightness_radius: float = 0.0, contrast_radius: float = 0.0, saturation_radius: float = 0.0) -> Dictionary:
    """Change colours at random."""
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
