"""Scale pictures as OpenCV does: uint8 in native code, floats in NumPy.

OpenCV places output pixel ``x`` at ``(x + 0.5) * width / new_width - 0.5`` of the input and interpolates there between
2, 4 or 8 neighbours. Neighbours outside are the nearest pixels of the border. Unlike Pillow, it does not average the
pixels in between when a picture becomes smaller. Both versions differ from it by at most one level of 255.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.images.decoders import COLORS
from feedline.images.step import RESIZE

_BGR, _GREY = COLORS.index("BGR"), COLORS.index("grey")

FILTERS = {"nearest": 3, "linear": 2, "cubic": 4, "lanczos": 5}
"""Native filters equal to OpenCV's, by CNTK's names of interpolations."""

_CUBIC = -0.75  # the slope of OpenCV's cubic kernel at distance 1


def resize(picture: NDArray[Any], width: int, height: int, interpolation: str) -> NDArray[Any]:
    """Return a picture in another size, of the same dtype, uint8 or float32.

    Args:
        picture: (height, width, channels).
        width, height: size of the result, in pixels.
        interpolation: a key of `FILTERS`.
    """
    if picture.dtype != np.uint8:
        return _of_floats(picture, width, height, interpolation)
    channels = picture.shape[2]
    out = np.empty((1, height, width, channels), np.uint8)
    _native.PictureBatch(
        np.empty(0, np.uint8),
        np.zeros(2, np.int64),
        {0: np.ascontiguousarray(picture)},
        np.array([RESIZE], np.uint8),
        np.array([[width, height, FILTERS[interpolation]]], np.float64),
        out=out,
        color=_GREY if channels == 1 else _BGR,
        upright=False,
        threads=1,
        max_pixels=1 << 30,
    ).result()
    scaled: NDArray[Any] = out[0]
    return scaled


def _of_floats(picture: NDArray[Any], width: int, height: int, interpolation: str) -> NDArray[np.float32]:
    if interpolation == "nearest":
        # The inverse of a quotient, rounded like OpenCV's: two pixels of 98 are the first and the 49th, not the 50th.
        rows, columns = (
            np.minimum(np.arange(new) * (1 / (new / old)), old - 1).astype(np.intp)
            for old, new in zip(picture.shape, (height, width), strict=False)
        )
        nearest: NDArray[Any] = picture[rows[:, None], columns]
        return nearest.astype(np.float32, copy=False)
    work: NDArray[np.float32] = picture.astype(np.float32, copy=False)
    for axis, new in ((1, width), (0, height)):
        if picture.shape[axis] == new:
            continue
        places, weights = _taps(picture.shape[axis], new, interpolation)
        shape = [1, 1, 1]
        shape[axis] = new
        numbers = weights.astype(np.float32)
        parts = [work.take(places[:, k], axis) * numbers[:, k].reshape(shape) for k in range(places.shape[1])]
        work = functools.reduce(np.add, parts)
    return work


def _taps(old: int, new: int, interpolation: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return indices and weights of the pixels that compose each new pixel, both (new, taps)."""
    center = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(center)
    past = (center - first)[:, None]
    taps = {"linear": 2, "cubic": 4, "lanczos": 8}[interpolation]
    steps = np.arange(taps) - (taps // 2 - 1)
    distance = np.abs(past - steps)
    if interpolation == "linear":
        weights = 1 - distance
    elif interpolation == "cubic":
        inner = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
        outer = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
        weights = np.where(distance <= 1, inner, outer)
    else:
        weights = np.sinc(distance) * np.sinc(distance / 4)
        weights /= weights.sum(1, keepdims=True)
    return np.clip(first[:, None] + steps, 0, old - 1).astype(np.intp), weights
