"""Types of values in CNTK's dictionaries that Python does not have. This module needs no package."""

from __future__ import annotations

from dataclasses import dataclass

DATA_TYPES = {1: "float32", 2: "float64", 4: "float16", 5: "int8", 6: "int16"}

# Indices that do not number a static axis.
DYNAMIC, ALL_STATIC, UNKNOWN_AXES, END, ALL = (2**31 - 1 - i for i in range(5))


class Shape(tuple[int, ...]):
    """A row-major shape. -1, -2 and -3 are CNTK's inferred, unknown and free dimensions."""

    __slots__ = ()


class Signed(int):
    """An integer that the file stores as signed, 32 bits. A plain `int` is unsigned, 64 bits."""


class Single(float):
    """A number that the file stores in single precision. A plain `float` is double."""


@dataclass(frozen=True, slots=True)
class FileAxis:
    """An axis in a file's numbering.

    Attributes:
        index: 0 for the last axis of a sample, 1 for the axis before it, and so on; -1 for the first axis; or one of
            `DYNAMIC`, `ALL_STATIC`, `UNKNOWN_AXES`, `END`, `ALL`.
        name: name of a dynamic axis.
        ordered: whether steps along a dynamic axis are ordered.
    """

    index: int
    name: str = ""
    ordered: bool = False
