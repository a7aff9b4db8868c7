"""Boxes that move with the pixels of their pictures.

Coordinates are between pixels: (0, 0) is the upper left corner of a picture, (width, height) the lower right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.images.step import CROP, FLIP, PAD, RESIZE, PictureOp, Sizes


def move_boxes(
    boxes: NDArray[np.floating], lengths: NDArray[np.int64], sizes: Sizes, ops: Sequence[PictureOp]
) -> NDArray[np.floating]:
    """Return boxes after the operations on their pictures. After each operation they are clipped to the picture.

    A box that is cut off entirely becomes zeros, so that boxes keep their number and their place.

    Args:
        boxes: float (boxes, 4): x1, y1, x2, y2 in pixels.
        lengths: int64 (n,), boxes of each picture.
        sizes: int64 (n, 2), width and height of each picture.
        ops: the operations.
    """
    picture = np.repeat(np.arange(len(lengths)), lengths)
    at = boxes.astype(np.float64)  # a copy
    size = sizes.astype(np.float64)
    _clip(at, size[picture])
    for kind, params in ops:
        p = params[picture]
        if kind == CROP:
            at -= p[:, [0, 1, 0, 1]]
            size = params[:, 2:4]
        elif kind == RESIZE:
            to = params[:, 0:2]
            at *= np.tile(to / size, 2)[picture]
            size = to
        elif kind == FLIP:
            extent = size[picture]
            for axis in (0, 1):
                ends = [axis, axis + 2]
                mirrored = extent[:, axis, None] - at[:, ends[::-1]]
                at[:, ends] = np.where(p[:, axis, None] != 0, mirrored, at[:, ends])
        elif kind == PAD:
            at += p[:, [0, 1, 0, 1]]
            size = size + params[:, 0:2] + params[:, 2:4]
        else:
            continue
        _clip(at, size[picture])  # a box that is cut off has no area, even if padding follows
    nonempty = (at[:, 2] > at[:, 0]) & (at[:, 3] > at[:, 1])
    return np.where(nonempty[:, None], at, 0.0).astype(boxes.dtype)


def _clip(boxes: NDArray[np.float64], size: NDArray[np.float64]) -> None:
    np.clip(boxes, 0.0, np.tile(size, 2), out=boxes)
