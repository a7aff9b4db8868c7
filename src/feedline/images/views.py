"""The step that makes several views of each picture."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.images.step import Draws, FixedSize, PictureOp, PictureStep, Sizes


class MultiView(PictureStep):
    """Several views of each picture, stacked: samples get the shape (views, ...).

    All views share the steps before it, and their random numbers. The steps after it run for each view with different
    random numbers. A picture is decoded once for each view.

    Args:
        views: number of views, or for each view a step or a list of steps that only this view has. They run before the
            following steps. ``MultiView([[], Flip(1.0)])`` is a picture and its mirror image.

    Raises:
        ValueError: no view.
        TypeError: views that are not made of steps.
    """

    def __init__(self, views: int | Sequence[PictureStep | Sequence[PictureStep]]) -> None:
        self.views = views
        if isinstance(views, int):
            self.own: list[list[PictureStep]] = [[] for _ in range(views)]
        else:
            self.own = [[view] if isinstance(view, PictureStep) else list(view) for view in views]
        if not self.own:
            raise ValueError(f"expected at least one view for MultiView, got {views!r}")
        for step in (step for view in self.own for step in view):
            if not isinstance(step, PictureStep):
                raise TypeError(f"expected steps such as images.Flip in the views of MultiView, got {step!r:.80}")

    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """Return no operation: `Decode` plans each view separately."""
        return [], sizes

    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return the size before."""
        return before
