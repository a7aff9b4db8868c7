"""The step that adds borders to pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feedline.images.step import (
    PAD,
    PAD_MODES,
    Draws,
    FixedSize,
    PictureOp,
    PictureStep,
    Sizes,
    borders,
    choice,
    level,
    numbers,
)


class Pad(PictureStep):
    """A picture with borders.

    Args:
        padding: pixels on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: level of constant borders, of all colours.
        padding_mode: ``"constant"``, ``"edge"`` to repeat the outermost pixels, ``"reflect"`` to mirror the picture
            without them, or ``"symmetric"`` to mirror it with them. Borders may be wider than the picture, as
            `numpy.pad` allows.

    Raises:
        ValueError: arguments out of range.
    """

    def __init__(self, padding: int | Sequence[int], fill: int = 0, padding_mode: str = "constant") -> None:
        self.padding, self.fill, self.padding_mode = padding, level("fill of Pad", fill), padding_mode
        self._border = borders("padding of Pad", padding)
        self._mode = choice("padding_mode of Pad", padding_mode, PAD_MODES)

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        left, top, right, bottom = self._border
        after = sizes + np.array([left + right, top + bottom], np.int64)
        return [PictureOp(PAD, numbers(len(sizes), *self._border, self._mode, self.fill))], after

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size with borders."""
        left, top, right, bottom = self._border
        return None if before is None else (before[0] + left + right, before[1] + top + bottom)
