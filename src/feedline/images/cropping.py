"""Steps that cut a part out of pictures: from the centre, anywhere, or of any size and then resized."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.images.step import (
    CROP,
    FILTERS,
    PAD,
    PAD_MODES,
    RESIZE,
    Draws,
    FixedSize,
    PictureOp,
    PictureStep,
    Sizes,
    borders,
    choice,
    level,
    numbers,
    same_size,
    width_height,
)


class CenterCrop(PictureStep):
    """The middle of a picture. Smaller pictures are padded with black, as in torchvision.

    Args:
        size: side of a square, or (height, width), in pixels.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = size
        self._to = width_height("size of CenterCrop", size)

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`. Half of an odd number of pixels is rounded to even."""
        n, to = len(sizes), np.array(self._to, np.int64)
        part = np.minimum(sizes, to)
        at = np.rint((sizes - part) / 2)
        before, after = (to - part) // 2, (to - part + 1) // 2
        crop = numbers(n, at[:, 0], at[:, 1], part[:, 0], part[:, 1])
        pad = numbers(n, before[:, 0], before[:, 1], after[:, 0], after[:, 1], 0, 0)
        return [PictureOp(CROP, crop), PictureOp(PAD, pad)], same_size(n, self._to)

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size of the crop."""
        return self._to


class RandomCrop(PictureStep):
    """A part of a picture, of a fixed size, with all places equally likely.

    Args:
        size: side of a square, or (height, width), in pixels.
        padding: pixels added before on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        pad_if_needed: whether a picture that is still too small is padded to size, on both sides, as in torchvision.
            Otherwise it is unreadable.
        fill: level of constant padding, of all colours.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``, as in `Pad`. With the last two, the
            whole picture is decoded, as a border may show any part of it.

    Raises:
        ValueError: arguments out of range.
    """

    draws = 2

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size, self.padding, self.pad_if_needed = size, padding, bool(pad_if_needed)
        self.fill, self.padding_mode = level("fill of RandomCrop", fill), padding_mode
        self._to = width_height("size of RandomCrop", size)
        self._border = borders("padding of RandomCrop", 0 if padding is None else padding)
        self._mode = choice("padding_mode of RandomCrop", padding_mode, PAD_MODES)
        # If every border is narrower than the crop, the crop always overlaps the picture. Then only its part of the
        # picture is decoded, and only its other part is padded. Mirrored pixels may come from outside of the crop.
        bordered = self.padding is not None or self.pad_if_needed
        self._mirrored = bordered and padding_mode in ("reflect", "symmetric")
        self._meets = all(b < side for b, side in zip(self._border, self._to * 2, strict=True))

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        n, to = len(sizes), np.array(self._to, np.int64)
        before = np.tile(np.array(self._border[:2], np.int64), (n, 1))
        padded = sizes + before + np.array(self._border[2:], np.int64)
        lacking = np.maximum(to - padded, 0)
        fits: NDArray[np.bool_] = np.logical_and.reduce(lacking == 0, axis=1)
        if self.pad_if_needed:
            before += lacking
            padded += 2 * lacking
            fits[:] = True
        at = np.floor(u * np.maximum(padded - to + 1, 1)).astype(np.int64)  # u < 1: below the number of places
        after = np.where(fits[:, None], to, 0)
        crop = PictureOp(CROP, numbers(n, *at.T, *self._to))
        if not (self._meets or self.pad_if_needed or self.padding):
            return [crop], after
        if self._mirrored:  # the missing pixels mirror the border, too
            border = PictureOp(PAD, numbers(n, *self._border, self._mode, self.fill))
            missing = PictureOp(PAD, numbers(n, *lacking.T, *lacking.T, self._mode, self.fill))
            return [border, *([missing] if self.pad_if_needed else []), crop], after
        if not self._meets:
            behind = padded - sizes - before
            pad = numbers(n, *before.T, *behind.T, self._mode, self.fill)
            return [PictureOp(PAD, pad), crop], after
        first, last = np.maximum(at - before, 0), np.minimum(at - before + to, sizes)
        ahead = np.maximum(before - at, 0)
        crop = PictureOp(CROP, numbers(n, *first.T, *(last - first).T))
        if self.padding is None and not self.pad_if_needed:
            return [crop], after
        pad = numbers(n, *ahead.T, *(to - (last - first) - ahead).T, self._mode, self.fill)
        return [crop, PictureOp(PAD, pad)], after

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size of the crop."""
        return self._to

    def refused(self, width: int, height: int) -> str:
        """Return an error message with the size that is needed."""
        left, top, right, bottom = self._border
        return (
            f"expected a picture of at least {max(self._to[0] - left - right, 1)} x "
            f"{max(self._to[1] - top - bottom, 1)} for {self!r}, got {width} x {height}; pass pad_if_needed=True, or "
            f"put images.Resize before it"
        )


class RandomResizedCrop(PictureStep):
    """A part of a picture of random area and aspect ratio, resized. The distribution is torchvision's.

    Up to ten times, an area is drawn uniformly in the range ``scale``, as a fraction of the area of the picture, and
    the logarithm of a ratio uniformly between the logarithms of the limits in ``ratio``. The sides are sqrt(area *
    ratio) and sqrt(area / ratio), rounded half to even. The first such part that fits into the picture is taken, with
    all places equally likely. If none fits, the crop is the largest part in the middle whose ratio is in range.

    Args:
        size: side of a square, or (height, width), in pixels, to which the part is resized.
        scale: smallest and largest area of the part, as a fraction of the area of the picture.
        ratio: smallest and largest width / height of the part.
        filter: ``"triangle"``, antialiased, or ``"nearest"``.

    Raises:
        ValueError: a range that is empty or not above 0.
    """

    draws = 22

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        filter: str = "triangle",
    ) -> None:
        self.size, self.filter = size, filter
        self.scale, self.ratio = _range("scale", scale), _range("ratio", ratio)
        self._to = width_height("size of RandomResizedCrop", size)
        self._filter = choice("filter of RandomResizedCrop", filter, FILTERS)

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`: areas are u[:, 0:10], ratios u[:, 10:20], places u[:, 20:22]."""
        n = len(sizes)
        part = _largest_parts(sizes, self.ratio)
        at = (sizes - part) // 2
        fits, first = self._draw_parts(sizes, u[:, 0], u[:, 10])
        # The first part nearly always fits, so few pictures need more attempts.
        retries = np.flatnonzero(~fits)
        if len(retries):
            retry_fits, parts = self._draw_parts(sizes[retries, None], u[retries, 1:10], u[retries, 11:20])
            which = retry_fits.argmax(axis=1)
            fits[retries], first[retries] = retry_fits.any(axis=1), parts[np.arange(len(retries)), which]
        part[fits] = first[fits]
        at[fits] = np.floor(u[fits, 20:22] * (sizes[fits] - part[fits] + 1)).astype(np.int64)
        crop = numbers(n, *at.T, *part.T)
        return [PictureOp(CROP, crop), PictureOp(RESIZE, numbers(n, *self._to, self._filter))], same_size(n, self._to)

    def _draw_parts(self, sizes: Sizes, area: Draws, ratio: Draws) -> tuple[NDArray[np.bool_], Sizes]:
        """Return whether random parts fit into their pictures, and the sizes of the parts, (..., 2)."""
        low, high = self.scale
        picture_area = (sizes[..., 0] * sizes[..., 1]).astype(np.float64)
        areas = picture_area * (low + area * (high - low))
        bottom, top = math.log(self.ratio[0]), math.log(self.ratio[1])
        ratios = _exp(bottom + ratio * (top - bottom))
        part = np.rint(np.sqrt(np.stack([areas * ratios, areas / ratios], axis=-1)))
        fits: NDArray[np.bool_] = np.logical_and.reduce((part > 0) & (part <= sizes), axis=-1)
        return fits, part.astype(np.int64)

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size after resizing."""
        return self._to


def _range(what: str, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not 0 < low <= high < math.inf:
        raise ValueError(f"expected {what} of RandomResizedCrop as (least, largest) above 0, got {bounds!r}")
    return float(low), float(high)


def _largest_parts(sizes: Sizes, ratio: tuple[float, float]) -> Sizes:
    """Return the size of the largest part of each picture whose ratio is in range."""
    low, high = ratio
    part = sizes.copy()
    ratios = sizes[:, 0] / sizes[:, 1]
    narrow, wide = ratios < low, ratios > high
    part[narrow, 1] = np.rint(sizes[narrow, 0] / low)
    part[wide, 0] = np.rint(sizes[wide, 1] * high)
    return np.maximum(part, 1)


_LOG2_E = 1.4426950408889634
_LN_2_HIGH, _LN_2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # the high part has trailing zeros: k * it is exact
_TERMS = [1 / math.factorial(k) for k in range(13, -1, -1)]


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the exponential of moderate numbers, to about an ulp.

    It uses only additions and multiplications, which every processor rounds alike. `numpy.exp` does not return the same
    bits on all processors, and the pixels of a minibatch must not depend on the machine.
    """
    k = np.rint(x * _LOG2_E)
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    total = np.full_like(r, _TERMS[0])
    for term in _TERMS[1:]:
        total *= r
        total += term
    return np.ldexp(total, k.astype(np.int32))
