"""The step that resizes pictures to a size, or by their shorter side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedline.images.step import (
    FILTERS,
    RESIZE,
    Draws,
    FixedSize,
    PictureOp,
    PictureStep,
    Sizes,
    choice,
    numbers,
    same_size,
    width_height,
)


class Resize(PictureStep):
    """A picture resized, antialiased, to the sizes of torchvision.

    Args:
        size: length of the shorter side in pixels, the other in proportion and rounded down, or (height, width).
        max_size: maximum pixels of the longer side, if ``size`` is the shorter one. A picture that would become longer
            is resized to this length.
        filter: ``"triangle"`` (within one level of Pillow's ``BILINEAR``), or ``"nearest"``.

    Raises:
        ValueError: sizes below 1, or a ``max_size`` that is not above ``size``.
    """

    def __init__(self, size: int | Sequence[int], max_size: int | None = None, filter: str = "triangle") -> None:
        self.size, self.max_size, self.filter = size, max_size, filter
        self._filter = choice("filter of Resize", filter, FILTERS)
        width, height = width_height("size of Resize", size)
        self._shorter = width if isinstance(size, (int, np.integer)) or len(size) == 1 else None
        self._to = None if self._shorter else (width, height)
        if max_size is not None and (self._shorter is None or max_size <= self._shorter):
            raise ValueError(f"expected max_size of Resize above one number as size, got {size=}, {max_size=}")

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        n = len(sizes)
        to = self._proportional_sizes(sizes) if self._to is None else same_size(n, self._to)
        return [PictureOp(RESIZE, numbers(n, *to.T, self._filter))], to

    def _proportional_sizes(self, sizes: Sizes) -> Sizes:
        # Sides are far below 2**26, so products are exact, and quotients are rounded as in Python.
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        new_short = np.full(len(sizes), self._shorter, np.int64)
        new_long = (new_short * long / short).astype(np.int64)
        if self.max_size is not None:
            over = new_long > self.max_size
            new_short[over] = np.maximum((self.max_size * new_short[over] / new_long[over]).astype(np.int64), 1)
            new_long[over] = self.max_size
        upright = sizes[:, 0] <= sizes[:, 1]
        return np.stack([np.where(upright, new_short, new_long), np.where(upright, new_long, new_short)], axis=1)

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size after resizing, or None if only the shorter side is set and pictures differ."""
        if self._to is not None or before is None:
            return self._to
        width, height = self._proportional_sizes(np.array([before], np.int64))[0].tolist()
        return width, height
