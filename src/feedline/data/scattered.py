"""Byte strings with other bytes between them, such as the members of an archive. Only minibatches copy them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.data.value import BytesValue, DenseValue, Value

_MAX_HELD = 1.5  # bytes of memory that views may keep alive per byte that they show


class ScatteredBytes(BytesValue):
    """A value whose sample i, the only one of sequence i, is ``memory[spans[i, 0]:spans[i, 1]]``.

    The first access to ``bounds`` or ``data`` copies the samples into a `BytesValue`.

    Attributes:
        spans: int64 (num_samples, 2), C-contiguous: begin and end of each sample, in any order.
        memory: uint8, the bytes of the samples and others.
    """

    __slots__ = ("_pack", "memory", "spans")

    def __init__(self, spans: NDArray[np.int64], memory: NDArray[np.uint8], *, text: bool) -> None:
        # Trusted, like every value of a deserializer: the gather checks the spans.
        self.spans, self.memory, self.text = spans, memory, text
        self._offsets = None
        self._pack: BytesValue | None = None

    def packed(self) -> BytesValue:
        """Return a copy without gaps. The first call makes it.

        Raises:
            DataError: the memory is mapped from a file that was truncated.
        """
        if self._pack is None:
            self._pack = self.select(np.arange(len(self.spans)))
        return self._pack

    @property
    def bounds(self) -> NDArray[np.int64]:  # type: ignore[override]
        """As of `packed`."""
        return self.packed().bounds

    @property
    def data(self) -> NDArray[np.uint8]:  # type: ignore[override]
        """As of `packed`."""
        return self.packed().data

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of byte strings."""
        return len(self.spans)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int64 (num_samples,): bytes of each sample."""
        return np.diff(self.spans)[:, 0]

    @property
    def nbytes(self) -> int:
        """Bytes of the samples and of the spans, without the bytes between samples."""
        return self.spans.nbytes + int(self.sizes.sum())

    def _arrays(self) -> tuple[Any, ...]:
        return (self.spans.reshape(-1), self.memory)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold only the samples, as `packed` does."""
        return _pack, (self.bounds, self.data, self.text)

    def slice(self, start: int, stop: int) -> ScatteredBytes:
        """Return the sequences ``start:stop`` as a value over the same memory."""
        return ScatteredBytes(self.spans[start:stop], self.memory, text=self.text)

    def describe(self) -> str:
        """Describe the value in one line: kind, counts, bytes."""
        return f"{self.kind}, {self._counts()}, {int(self.sizes.sum())} bytes"


def even_views(
    begins: NDArray[np.int64], memory: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any] | None:
    """Return rows that begin equally far from one another as views of memory, (n, *shape). None if they do not."""
    steps = np.diff(begins)
    step = int(steps[0]) if len(steps) else 0
    if (steps != step).any():
        return None
    inner = np.empty((1, *shape), dtype).strides[1:]
    return np.ndarray((len(begins), *shape), dtype, memory, int(begins[0]) if len(begins) else 0, (step, *inner))


def without_gaps(values: dict[str, Value], memory: NDArray[np.uint8]) -> None:
    """Copy the ``values`` that are views of a private ``memory``, if they show less than two thirds of it.

    A few bytes of each sample would keep all of it alive, which no budget counts: see `Value.nbytes`.
    """
    views = {
        name: value
        for name, value in values.items()
        if isinstance(value, ScatteredBytes)
        or (isinstance(value, DenseValue) and np.may_share_memory(value.rows, memory))
    }
    if _MAX_HELD * sum(value.nbytes for value in views.values()) < len(memory):
        for name, value in views.items():
            values[name] = value.packed() if isinstance(value, ScatteredBytes) else DenseValue(value.rows.copy())


def _pack(bounds: NDArray[np.int64], data: NDArray[np.uint8], text: bool) -> BytesValue:
    return BytesValue(bounds, data, None, text=text)
