"""Rows that are windows of other rows: each sample with its neighbours in time. Only minibatches copy them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data.value import DenseValue

Ints = NDArray[np.int64]


class WindowPlaces(NamedTuple):
    """The rows of windows.

    Attributes:
        middles: int64 (n,). Without steps (n, k): the rows themselves.
        firsts, ends: bounds of the rows of the sequence that each window is in, int64 (n,), first < end.
        steps: of each row from the middle, int64 (k,). None: `middles` has the rows.
    """

    middles: Ints
    firsts: Ints
    ends: Ints
    steps: Ints | None

    def slice(self, start: int, stop: int) -> WindowPlaces:
        """Return the windows ``start:stop``."""
        middles, firsts, ends, steps = self
        return WindowPlaces(middles[start:stop], firsts[start:stop], ends[start:stop], steps)


class WindowedRows(DenseValue):
    """A value whose samples are windows of the rows of an array. Beyond a sequence a window has its nearest row or, if
    ``zeros``, zeros.

    The first access to ``rows`` copies all samples.

    Args:
        array: (n, *shape), C-contiguous, maybe of a mapped file.
        places: rows of each window, within the array.
        shape: of a sample, (k, *shape) or another one of as many numbers.
        zeros: whether there are zeros beyond a sequence.
        offsets: of sequences, as in any value.
    """

    __slots__ = ("_array", "_copy", "_places", "_shape", "_zeros")

    def __init__(
        self,
        array: NDArray[Any],
        places: WindowPlaces,
        shape: tuple[int, ...],
        *,
        zeros: bool,
        offsets: Ints | None = None,
    ) -> None:
        # Trusted, like every value of a deserializer: the gather checks the rows.
        self._array, self._places, self._shape, self._zeros, self._offsets = array, places, shape, zeros, offsets
        self._copy: NDArray[Any] | None = None

    @property
    def rows(self) -> NDArray[Any]:  # type: ignore[override]
        """All samples, (num_samples, *shape), copied at the first access."""
        if self._copy is None:
            self._copy = self.select(np.arange(self.num_sequences)).rows
        return self._copy

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one sample."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Element type."""
        return self._array.dtype

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of samples."""
        return len(self._places.firsts)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples, as a minibatch would hold them."""
        return self.num_samples * self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def _arrays(self) -> tuple[Any, ...]:
        middles, firsts, ends, steps = self._places
        return (self._array, self._offsets, middles.reshape(-1), firsts, ends, steps, self._zeros, self._shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold only the samples."""
        return DenseValue, (self.rows, self._offsets)

    def slice(self, start: int, stop: int) -> WindowedRows:
        """Return the sequences ``start:stop`` as a value over the same rows."""
        offsets = None
        if self._offsets is not None:
            bounds = self._offsets[start : stop + 1]
            start, stop, offsets = int(bounds[0]), int(bounds[-1]), bounds - bounds[0]
        places = self._places.slice(start, stop)
        return WindowedRows(self._array, places, self._shape, zeros=self._zeros, offsets=offsets)

    def in_sequences(self, offsets: Ints | None) -> WindowedRows:
        """Return a value over the same rows with other offsets of sequences. None if each sample is one sequence."""
        return WindowedRows(self._array, self._places, self._shape, zeros=self._zeros, offsets=offsets)
