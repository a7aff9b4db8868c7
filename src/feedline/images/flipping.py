"""The step that mirrors pictures at random."""

from __future__ import annotations

from feedline.images.step import FLIP, Draws, FixedSize, PictureOp, PictureStep, Sizes, numbers, probability


class Flip(PictureStep):
    """A picture mirrored left to right, top to bottom, or both, independently.

    Args:
        p: probability of left to right.
        vertical_p: probability of top to bottom.

    Raises:
        ValueError: a probability outside 0 to 1.
    """

    draws = 2

    def __init__(self, p: float = 0.5, vertical_p: float = 0.0) -> None:
        self.p, self.vertical_p = probability("p of Flip", p), probability("vertical_p of Flip", vertical_p)

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """See `PictureStep.plan`."""
        return [PictureOp(FLIP, numbers(len(sizes), u[:, 0] < self.p, u[:, 1] < self.vertical_p))], sizes

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size before."""
        return before
