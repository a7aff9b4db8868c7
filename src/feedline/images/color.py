"""Steps that change colours: at random, or into the numbers that a network expects."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feedline.images.step import JITTER, Draws, FixedSize, PictureOp, PictureStep, Sizes

#: Smallest and largest factor, or a number around which they lie.
Factor = float | tuple[float, float]


class ColorJitter(PictureStep):
    """Random changes of brightness, contrast, saturation and hue, in random order, with torchvision's arguments and
    ranges.

    Each factor is drawn uniformly between the ends of its range, and each of the 24 orders is equally likely. On grey
    pictures saturation and hue change nothing.

    Args:
        brightness, contrast, saturation: smallest and largest factor, or a number x for (max(0, 1 - x), 1 + x). 0: no
            change.
        hue: smallest and largest shift, as a fraction of the colour circle, from -0.5 to 0.5, or a number x for (-x,
            x).

    Raises:
        ValueError: a range that is empty or goes beyond these limits.
    """

    draws = 5

    def __init__(self, brightness: Factor = 0, contrast: Factor = 0, saturation: Factor = 0, hue: Factor = 0) -> None:
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue
        factors = [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)]
        ranges = [_factor_range(what, factor, 1.0, (0.0, math.inf)) for what, factor in factors]
        ranges.append(_factor_range("hue", hue, 0.0, (-0.5, 0.5)))
        self._low = np.array([low for low, _ in ranges])
        self._span = np.array([high - low for low, high in ranges])

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`: factors and shift are u[:, 0:4], the order u[:, 4]."""
        params = np.empty((len(sizes), 5))
        params[:, :4] = self._low + u[:, :4] * self._span
        params[:, 4] = np.floor(u[:, 4] * 24)
        return [PictureOp(JITTER, params)], sizes

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size before."""
        return before


def _factor_range(what: str, factor: Factor, neutral: float, limits: tuple[float, float]) -> tuple[float, float]:
    if isinstance(factor, (int, float, np.number)):
        low, high = neutral - float(factor), neutral + float(factor)
        if factor >= 0 and limits[0] == 0:
            low = max(low, 0.0)
    else:
        low, high = (float(end) for end in factor)
    if not limits[0] <= low <= high <= limits[1] or math.isinf(high):
        raise ValueError(
            f"expected {what} of ColorJitter from {limits[0]:g} to {limits[1]:g}, a number or (least, largest), got "
            f"{factor!r}"
        )
    return low, high


class Normalize(PictureStep):
    """Pixels as float32, shifted and scaled. It must be the last step.

    ``(x * scale - mean) / std``, computed as ``(float32(x) - m) * s`` with ``m = float32(mean / scale)`` and
    ``s = float32(scale / std)``, rounded to float32 after each of the two operations. With the default scale this is
    torchvision's ``ToTensor`` and ``Normalize`` up to the last bits of float32, which divide twice.

    Args:
        mean, std: one number for all channels, or one for each, in the order of the picture's colours.
        layout: ``"CHW"`` or ``"HWC"``, the order of channels, rows and columns.
        scale: factor of pixels before mean and std are applied. It is 1 if mean and std are levels from 0 to 255.

    Raises:
        ValueError: numbers that are not finite, a scale or std of 0, or another layout.
    """

    def __init__(self, mean: ArrayLike, std: ArrayLike, layout: str = "CHW", scale: float = 1 / 255) -> None:
        self.mean, self.std = _channels("mean", mean), _channels("std", std)
        self.layout, self.scale = layout, float(scale)
        if layout not in ("CHW", "HWC"):
            raise ValueError(f"expected 'CHW' or 'HWC' as layout of Normalize, got {layout!r}")
        if not math.isfinite(self.scale) or self.scale == 0 or 0 in self.std:
            raise ValueError(f"expected scale and std of Normalize other than 0, got scale={scale!r}, std={std!r}")

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """Return no operation: pixels are converted while they are written into the minibatch."""
        return [], sizes

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size before."""
        return before

    def numbers(self, channels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the numbers to subtract from pixels, and the factors to multiply by next, float32 (channels,) each.

        Raises:
            ValueError: mean or std of another number of channels.
        """
        mean, std = np.array(self.mean), np.array(self.std)
        for what, levels in (("mean", mean), ("std", std)):
            if len(levels) not in (1, channels):
                raise ValueError(f"expected {what} of Normalize for {channels} channels, got {levels.tolist()}")
        shift = np.broadcast_to(mean / self.scale, channels)
        factor = np.broadcast_to(self.scale / std, channels)
        return shift.astype(np.float32), factor.astype(np.float32)


def _channels(what: str, factors: ArrayLike) -> tuple[float, ...]:
    array = np.atleast_1d(np.asarray(factors, np.float64))
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError(f"expected one number or one for each channel as {what} of Normalize, got {factors!r}")
    return tuple(array.tolist())
