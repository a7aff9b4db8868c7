"""The data of one stream in one minibatch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.cntk.core import Value


class MinibatchData:
    """A `Value`, and what was counted.

    Args:
        value: the data.
        num_sequences: number of sequences.
        num_samples: samples of this stream.
        sweep_end: the minibatch touches or crosses the end of a sweep.
    """

    def __init__(self, value: Value, num_sequences: int, num_samples: int, sweep_end: bool) -> None:
        self.data = value
        self.number_of_sequences, self.number_of_samples = num_sequences, num_samples
        self.sweep_end = sweep_end

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return self.number_of_sequences

    @property
    def num_samples(self) -> int:
        """Samples of this stream."""
        return self.number_of_samples

    @property
    def end_of_sweep(self) -> bool:
        """Whether the minibatch touches or crosses the end of a sweep."""
        return self.sweep_end

    @property
    def shape(self) -> tuple[int, ...]:
        """(sequences, samples of the longest, *sample)."""
        return self.data.shape

    @property
    def mask(self) -> NDArray[np.uint8]:
        """See `Value.mask`."""
        return self.data.mask

    @property
    def is_sparse(self) -> bool:
        """Whether the data is sparse."""
        return self.data.is_sparse

    @property
    def value(self) -> Any:
        """As `asarray`."""
        return self.asarray()

    def asarray(self) -> Any:
        """See `Value.asarray`."""
        return self.data.asarray()

    def as_sequences(self, variable: Any = None) -> list[Any]:
        """See `Value.as_sequences`."""
        return self.data.as_sequences(variable)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.data.__array__(dtype, copy)

    def __len__(self) -> int:
        return self.num_sequences

    def __repr__(self) -> str:
        return f"MinibatchData(data={self.data!r}, samples={self.num_samples}, seqs={self.num_sequences})"
