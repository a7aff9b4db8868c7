"""Picture steps for the frames of a video: native code applies them to decoded pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.errors import SchemaError
from feedline.feed.protocol import Ints
from feedline.feed.transforms import DrawKeys
from feedline.images.decode import one_size, views_of
from feedline.images.program import plan_view
from feedline.images.step import FixedSize, PictureStep


class FrameSteps:
    """The steps between decoded frames and the samples of a stream.

    Args:
        steps: steps of `feedline.images`.
        size: (width, height) of decoded frames, or None if it may be any.

    Attributes:
        shape: shape of a sample.
        dtype: its element type.

    Raises:
        SchemaError: the steps are in a wrong order, or do not lead to one size.
    """

    def __init__(self, steps: Sequence[PictureStep], size: FixedSize) -> None:
        self._views, self._stacked, normalize = views_of(steps)
        self._size = one_size(self._views, size)
        self._numbers: Any = (None, None) if normalize is None else normalize.numbers(3)
        self._chw = normalize is not None and normalize.layout == "CHW"
        self._are_none = not steps
        width, height = self._size
        self._view_shape = (3, height, width) if self._chw else (height, width, 3)
        self.shape: tuple[int, ...] = (len(self._views), *self._view_shape) if self._stacked else self._view_shape
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if normalize is None else np.float32)

    def apply(
        self, frames: Sequence[NDArray[np.uint8]], which: Ints, keys: DrawKeys, rows: NDArray[Any], places: Ints
    ) -> dict[int, str]:
        """Fill rows with frames.

        Args:
            frames: uint8 (height, width, 3) each, pixels of one size.
            which: int64 (n,), the frame for each row.
            keys: keys of the draws, one for each of the n rows.
            rows: rows of `shape`.
            places: int64 (n,), the rows to fill.

        Returns:
            By index, why a step cannot be applied.
        """
        if self._are_none:
            for place, frame in zip(places.tolist(), which.tolist(), strict=True):
                rows[place] = frames[frame]
            return {}
        refused: dict[int, str] = {}
        sizes = np.tile(np.array([frames[0].shape[1], frames[0].shape[0]], np.int64), (len(which), 1))
        pixels = {i: frames[frame] for i, frame in enumerate(which.tolist())}
        mean, scale = self._numbers
        for number, view in enumerate(self._views):
            program = plan_view(view, sizes, keys.uniforms, self._size)
            refused |= program.refused
            good = np.array([i for i in range(len(which)) if i not in program.refused], np.int64)
            out = np.empty((len(good), *self._view_shape), self.dtype)
            batch = _native.PictureBatch(
                np.empty(0, np.uint8),
                np.zeros(len(good) + 1, np.int64),
                {place: pixels[i] for place, i in enumerate(good.tolist())},
                program.kinds,
                program.params(good),
                out=out,
                color=0,
                upright=False,
                threads=1,
                mean=mean,
                scale=scale,
                chw=self._chw,
            )
            if failed := batch.result():
                raise SchemaError(f"expected steps that can be applied to a frame, got: {failed[0][1]}")
            if self._stacked:
                rows[places[good], number] = out
            else:
                rows[places[good]] = out
        return refused
