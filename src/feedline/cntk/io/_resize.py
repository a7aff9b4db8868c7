"""Scaling of pictures as OpenCV does it: by OpenCV itself if it can be imported, else by the same rules in NumPy.

OpenCV places output pixel ``x`` at ``(x + 0.5) * width / new_width - 0.5`` of the input and interpolates there between
2, 4 or 8 neighbours, those outside being the nearest pixels of the border. It does not average what lies between when a
picture becomes smaller, as Pillow does. On uint8 it computes with weights of 11 bits. The
NumPy version differs from it by at most one level of 255.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

INTERPOLATIONS = {"nearest": "INTER_NEAREST", "linear": "INTER_LINEAR", "cubic": "INTER_CUBIC"} | {
    "lanczos": "INTER_LANCZOS4"
}
"""CNTK's names, and OpenCV's."""

_BITS = 11  # of the weights of uint8
_CUBIC = -0.75  # the slope of OpenCV's cubic kernel at distance 1


@functools.cache
def opencv() -> Any:
    """Return the module ``cv2``, or None if it cannot be imported."""
    try:
        return importlib.import_module("cv2")
    except ImportError:
        return None


def engine() -> str:
    """Return what scales pictures: ``"OpenCV 4.12.0"``, say, or ``"feedline"``."""
    return "feedline" if opencv() is None else f"OpenCV {opencv().__version__}"


def resized(picture: NDArray[Any], width: int, height: int, interpolation: str) -> NDArray[Any]:
    """Return a picture in another size.

    Args:
        picture: uint8 or float32 (height, width, channels).
        width, height: size of the result, in pixels.
        interpolation: a key of `INTERPOLATIONS`.
    """
    if picture.shape[:2] == (height, width):
        return picture
    cv = opencv()
    if cv is None:
        return by_numpy(picture, width, height, interpolation)
    found = cv.resize(picture, (width, height), interpolation=getattr(cv, INTERPOLATIONS[interpolation]))
    return np.asarray(found).reshape(height, width, picture.shape[2])  # OpenCV drops a single channel's axis


def by_numpy(picture: NDArray[Any], width: int, height: int, interpolation: str) -> NDArray[Any]:
    """Return what `resized` does, without OpenCV."""
    if interpolation == "nearest":
        rows, columns = (
            np.minimum(np.arange(new) * (old / new), old - 1).astype(np.intp)
            for old, new in zip(picture.shape, (height, width), strict=False)
        )
        nearest: NDArray[Any] = picture[rows[:, None], columns]
        return nearest
    fixed = picture.dtype == np.uint8
    work: NDArray[Any] = picture.astype(np.int64 if fixed else np.float32, copy=False)
    for axis, new in ((1, width), (0, height)):
        places, weights = _taps(picture.shape[axis], new, interpolation)
        numbers: NDArray[Any] = (
            np.rint(weights * (1 << _BITS)).astype(np.int64) if fixed else weights.astype(np.float32)
        )
        shape = [1, 1, 1]
        shape[axis] = new
        parts = [work.take(places[:, k], axis) * numbers[:, k].reshape(shape) for k in range(places.shape[1])]
        work = functools.reduce(np.add, parts)
    if not fixed:
        return work
    rounded: NDArray[Any] = np.clip((work + (1 << (2 * _BITS - 1))) >> (2 * _BITS), 0, 255).astype(np.uint8)
    return rounded


def _taps(old: int, new: int, interpolation: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return indexes and weights of the pixels that each new one is made of, both (new, taps)."""
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
