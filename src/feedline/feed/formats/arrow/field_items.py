"""Values of a column, of Arrow's arrays or of the buffers of a mapped file."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.feed.formats.missing import Flags
from feedline.feed.protocol import Ints


class FieldItems(Protocol):
    """Items of a field: numbers, strings, lists or structs.

    Attributes:
        mapped: whether they are in a mapped file, parts of which may be lost at any time.
        has_fields: whether they are structs.
    """

    @property
    def mapped(self) -> bool: ...  # noqa: D102  # see the class
    @property
    def has_fields(self) -> bool: ...  # noqa: D102
    def __len__(self) -> int: ...

    def nulls(self) -> Flags | None:
        """Return the mask of the null items, or None if no item is null."""

    def lists(self) -> tuple[Ints, FieldItems]:
        """Return the bounds of lists, from 0, and the items in these lists."""

    def fixed_size_lists(self) -> tuple[int, FieldItems] | None:
        """Return the size of lists of fixed size and the items in them, or None if the items are no such lists."""

    def field(self, which: int | str) -> FieldItems:
        """Return a field of structs."""

    def strings(self) -> tuple[Ints, NDArray[np.uint8]]:
        """Return the bounds of strings, from 0, and their bytes."""

    def numbers(self, dtype: np.dtype[Any] | None) -> NDArray[Any]:
        """Return numbers of a dtype, or as they are stored. Those in the place of a null are undefined."""

    def too_large(self, dtype: np.dtype[Any]) -> Flags | None:
        """Return the mask of the numbers that a dtype cannot hold, or None if it can hold all."""

    def changeable(self, numbers: NDArray[Any]) -> bool:
        """Return whether numbers of these items are contiguous, and in memory that nothing else refers to."""

    def to_memory(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return numbers of these items in memory: a copy if they are mapped."""
