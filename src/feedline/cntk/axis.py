"""`cntk.axis`: axes of variables.

Static axes are numbers, as in CNTK's Python API: 0 is a sample's first axis, and negative numbers count from the last.
Dynamic axes are names: the batch axis, and one or more sequence axes.
"""

from __future__ import annotations

import itertools
import warnings
from operator import attrgetter

from feedline.cntk._names import absent_members
from feedline.cntk._settings import plain

__all__ = ["Axis"]

_DYNAMIC, _BATCH = "defaultDynamicAxis", "defaultBatchAxis"
_ALL_STATIC, _ALL, _UNKNOWN = "AllStaticAxes", "AllAxes", "UnknownAxes"
_LEADING = "newLeadingAxis"
_unique = itertools.count()


@absent_members("cntk.axis")
class Axis:
    """An axis of a variable.

    Args:
        axis: number of a static axis, or name of a dynamic axis. Axes of the same name are equal.
        is_ordered: whether steps along a dynamic axis are ordered.
    """

    __slots__ = ("_is_ordered", "_label")

    def __init__(self, axis: int | str, is_ordered: bool = True) -> None:
        axis = plain(axis)
        if isinstance(axis, bool) or not isinstance(axis, (int, str)):
            raise TypeError(f"expected a number or a name of an axis, got {axis!r}")
        self._label, self._is_ordered = axis, is_ordered

    is_ordered = property(attrgetter("_is_ordered"), doc="Whether steps along it are ordered, False for the batch.")

    @property
    def is_static_axis(self) -> bool:
        """Whether it is an axis of the sample's shape."""
        return isinstance(self._label, int) or self._label in (_ALL_STATIC, _LEADING)

    @property
    def is_batch_axis(self) -> bool:
        """Whether it is the batch axis."""
        return self._label == _BATCH

    @property
    def is_sequence_axis(self) -> bool:
        """Whether it is a sequence axis."""
        return not self.is_static_axis and self._label not in (_BATCH, _ALL, _UNKNOWN)

    def is_dynamic_axis(self) -> bool:
        """Return whether it is the batch axis or a sequence axis."""
        return not self.is_static_axis

    def as_string(self) -> str:
        """Return the same text as `repr`."""
        return repr(self)

    @property
    def name(self) -> str:
        """Name of the axis, ``staticAxisIdx=n`` for a static axis."""
        return f"staticAxisIdx={self._label}" if isinstance(self._label, int) else self._label

    def static_axis_index(self, checked: bool = True) -> int:
        """Return the number of a static axis, or without ``checked`` the largest 32-bit int for any other axis.

        Raises:
            ValueError: not a static axis, and ``checked``.
        """
        if isinstance(self._label, int):
            return self._label
        if checked:
            raise ValueError(f"expected a static axis, got {self!r}")
        return 2**31 - 1

    @staticmethod
    def default_dynamic_axis() -> Axis:
        """Return the default sequence axis."""
        return Axis(_DYNAMIC)

    @staticmethod
    def default_batch_axis() -> Axis:
        """Return the batch axis."""
        return Axis(_BATCH, is_ordered=False)

    @staticmethod
    def all_static_axes() -> Axis:
        """Return the axis that represents all axes of the sample's shape."""
        return Axis(_ALL_STATIC)

    @staticmethod
    def all_axes() -> Axis:
        """Return the axis that represents all static and dynamic axes."""
        return Axis(_ALL)

    @staticmethod
    def default_input_variable_dynamic_axes() -> tuple[Axis, Axis]:
        """Return the dynamic axes of a sequence variable: batch, sequence."""
        return Axis.default_batch_axis(), Axis.default_dynamic_axis()

    @staticmethod
    def unknown_dynamic_axes() -> tuple[Axis]:
        """Return the axis that represents dynamic axes to be inferred."""
        return (Axis(_UNKNOWN),)

    @staticmethod
    def new_unique_dynamic_axis(name: str) -> Axis:
        """Return a new sequence axis, unequal to all others."""
        return Axis(f"{name}_{next(_unique)}")

    @staticmethod
    def new_leading_axis() -> Axis:
        """Return the axis that represents a new static axis before all other axes."""
        return Axis(_LEADING)

    @staticmethod
    def end_static_axis() -> Axis:
        """Deprecated name of `new_leading_axis`."""
        warnings.warn("end_static_axis is deprecated: use Axis.new_leading_axis()", DeprecationWarning, stacklevel=2)
        return Axis.new_leading_axis()

    def __eq__(self, other: object) -> bool:
        return self._label == other._label if isinstance(other, Axis) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._label)

    def __repr__(self) -> str:
        return f"Axis('{self.name}')"
