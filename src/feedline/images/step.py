"""Steps turn the sizes of pictures, and random numbers, into operations on pixels. They do not decode.

Steps are planned for all pictures of a minibatch at once. Native code then decodes the part of each picture that its
first crop needs, and runs its operations on uint8 pixels, one after another.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Kinds of operations in native code, and the number of parameters of each.
CROP, RESIZE, FLIP, PAD, JITTER = 1, 2, 3, 4, 5
ARITIES = {CROP: 4, RESIZE: 3, FLIP: 2, PAD: 6, JITTER: 5}

FILTERS = {"nearest": 0, "triangle": 1}
PAD_MODES = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}

Sizes: TypeAlias = NDArray[np.int64]
Draws: TypeAlias = NDArray[np.float64]
#: Width and height if they are the same for all pictures, else None.
FixedSize: TypeAlias = tuple[int, int] | None


class PictureOp(NamedTuple):
    """One operation on the pixels of all pictures of a minibatch, with parameters for each.

    Coordinates refer to the picture after the previous operations.

    Attributes:
        kind: 1 crop: x, y, width, height. 2 resize: width, height, filter (0 nearest, 1 triangle). 3 flip:
            horizontally, vertically (0 or 1). 4 pad: left, top, right, bottom, mode (0 constant, 1 edge, 2 reflect, 3
            symmetric), value. 5 jitter: brightness, contrast and saturation factors, hue shift, order (0 to 23:
            lexicographic number of the permutation of these four).
        params: float64 (n, numbers of that kind).
    """

    kind: int
    params: NDArray[np.float64]


class PictureStep(ABC):
    """A change of pictures, planned from their sizes. Derive from this class to add a step.

    Attributes:
        draws: number of random numbers that `plan` needs for each picture.
    """

    draws: int = 0

    @abstractmethod
    def plan(self, sizes: Sizes, u: Draws) -> tuple[list[PictureOp], Sizes]:
        """Return the operations of this step, and the sizes that pictures have after it.

        The operations of a picture must not depend on the pictures that are planned with it.

        Args:
            sizes: int64 (n, 2), width and height of each picture before this step, at least 1.
            u: float64 (n, draws), independent and uniform in [0, 1).

        Returns:
            Operations, always of the same kinds in the same order, and sizes int64 (n, 2). A size of 0 marks a picture
            to which this step cannot be applied. The picture becomes unreadable.
        """

    @abstractmethod
    def fixed_size(self, before: FixedSize) -> FixedSize:
        """Return (width, height) after this step if they are the same for all pictures, else None.

        Args:
            before: (width, height) before this step if they are the same for all pictures, else None.
        """

    def refused(self, width: int, height: int) -> str:
        """Return the reason why this step cannot be applied to a picture of this size."""
        return f"expected a picture that {self!r} can be applied to, got {width} x {height}"

    def __repr__(self) -> str:
        params = inspect.signature(type(self)).parameters.values()
        shown = [f"{p.name}={getattr(self, p.name)!r}" for p in params if getattr(self, p.name, p.default) != p.default]
        return f"{type(self).__name__}({', '.join(shown)})"


def numbers(n: int, *columns: NDArray[np.generic] | float) -> NDArray[np.float64]:
    """Return columns, each an array (n,) or one number for all rows, stacked as float64 (n, columns)."""
    table = np.empty((n, len(columns)))
    for i, column in enumerate(columns):
        table[:, i] = column
    return table


def same_size(n: int, size: tuple[int, int]) -> Sizes:
    """Return the same (width, height) for n pictures, int64 (n, 2)."""
    return np.tile(np.array(size, np.int64), (n, 1))


def width_height(what: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return (width, height) of a size in torchvision's form: one side, or (height, width).

    Raises:
        ValueError: neither one nor two whole numbers of at least 1.
    """
    sides = list(size) if isinstance(size, Sequence) else [size]
    if len(sides) == 1:
        sides = sides * 2
    if len(sides) != 2 or not all(isinstance(side, (int, np.integer)) and side >= 1 for side in sides):
        raise ValueError(f"expected a side or (height, width) of at least 1 as {what}, got {size!r}")
    return int(sides[1]), int(sides[0])


def borders(what: str, padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a padding in torchvision's form.

    Raises:
        ValueError: other than one, two (left and right, top and bottom) or four whole numbers of at least 0.
    """
    widths = list(padding) if isinstance(padding, Sequence) else [padding]
    if len(widths) not in (1, 2, 4) or not all(isinstance(p, (int, np.integer)) and p >= 0 for p in widths):
        raise ValueError(
            f"expected a border, (left and right, top and bottom) or (left, top, right, bottom) of at least 0 as "
            f"{what}, got {padding!r}"
        )
    left, top, right, bottom = (int(p) for p in widths * (4 // len(widths)))
    return left, top, right, bottom


def level(what: str, value: int) -> int:
    """Return a checked level of uint8 pixels.

    Raises:
        ValueError: the level is not a whole number from 0 to 255.
    """
    if not isinstance(value, (int, np.integer)) or not 0 <= value <= 255:
        raise ValueError(f"expected a whole number from 0 to 255 as {what}, got {value!r}")
    return int(value)


def probability(what: str, value: float) -> float:
    """Return a checked probability.

    Raises:
        ValueError: the probability is not from 0 to 1.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"expected a probability from 0 to 1 as {what}, got {value!r}")
    return float(value)


def choice(what: str, name: str, choices: dict[str, int]) -> int:
    """Return the number of the choice ``name``.

    Raises:
        ValueError: there is no such choice.
    """
    if name not in choices:
        raise ValueError(f"expected {' or '.join(map(repr, choices))} as {what}, got {name!r}")
    return choices[name]
