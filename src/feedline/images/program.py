"""Plans of the steps of one view: operations for the pictures of a minibatch, and the pictures that steps refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.errors import SchemaError
from feedline.images.step import ARITIES, JITTER, PAD, RESIZE, Draws, PictureOp, PictureStep, Sizes


class Program(NamedTuple):
    """Operations for the pictures of a minibatch.

    Attributes:
        ops: operations, in order.
        refused: by index, the reason why a step cannot be applied to a picture.
    """

    ops: list[PictureOp]
    refused: dict[int, str]

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """uint8 (ops,): kinds of the operations."""
        return np.array([op.kind for op in self.ops], np.uint8)

    def params(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the parameters of all operations for the pictures ``which``, float64 (pictures, numbers)."""
        if not self.ops:
            return np.empty((len(which), 0))
        return np.ascontiguousarray(np.concatenate([op.params for op in self.ops], axis=1)[which])

    def for_masks(self, fill: int) -> Program:
        """Return the operations for masks, without changes of colour or interpolation, and with borders of ``fill``."""
        ops = []
        for kind, params in self.ops:
            if kind == JITTER:
                continue
            numbers = params.copy()
            if kind == RESIZE:
                numbers[:, 2] = 0
            elif kind == PAD:
                numbers[:, 4:6] = 0, fill
            ops.append(PictureOp(kind, numbers))
        return Program(ops, self.refused)


def plan_view(
    steps: Sequence[tuple[int, PictureStep]], sizes: Sizes, draw: Callable[[int, int], Draws], to: tuple[int, int]
) -> Program:
    """Return the plan of the steps of a view.

    Args:
        steps: steps, each with the number that keys its draws.
        sizes: int64 (n, 2), width and height of each picture, at least 1.
        draw: function that returns the draws for the number of a step and the number of draws for each picture.
        to: width and height that pictures must have after the last step.

    Raises:
        SchemaError: a step returned invalid operations or sizes.
    """
    ops: list[PictureOp] = []
    refused: dict[int, str] = {}
    for number, step in steps:
        u = draw(number, step.draws) if step.draws else np.empty((len(sizes), 0))
        step_ops, after = step.plan(sizes, u)
        for kind, params in step_ops:
            expected = (len(sizes), ARITIES.get(kind, 0))
            if kind not in ARITIES or params.shape != expected:
                raise SchemaError(
                    f"expected operations of kinds {', '.join(map(str, ARITIES))} with params of shape {expected} from "
                    f"{step!r}, got kind {kind} with {params.shape}"
                )
        ops += step_ops
        unfit: NDArray[np.bool_] = np.logical_or.reduce(after < 1, axis=1)
        if unfit.any():
            for i in np.flatnonzero(unfit).tolist():
                refused.setdefault(i, step.refused(*sizes[i].tolist()))
            after = np.where(unfit[:, None], 1, after)
        sizes = after
    wrong: NDArray[np.bool_] = np.logical_or.reduce(sizes != np.array(to), axis=1)
    wrong[list(refused)] = False
    if wrong.any():
        width, height = sizes[wrong.argmax()].tolist()
        raise SchemaError(f"expected pictures of {to[0]} x {to[1]} after the steps, got {width} x {height}")
    return Program(ops, refused)
