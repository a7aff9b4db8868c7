"""Data of one stream in a minibatch."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from feedline.cntk._names import absent_members
from feedline.cntk.core import Value


@absent_members("cntk.io")
class MinibatchData:
    """A `Value` and its counts.

    Args:
        value: data.
        num_sequences: number of sequences.
        num_samples: number of samples of this stream.
        sweep_end: whether the minibatch contains the end of a sweep.
    """

    def __init__(self, value: Value, num_sequences: int, num_samples: int, sweep_end: bool) -> None:
        self.data = value
        self.number_of_sequences, self.number_of_samples = num_sequences, num_samples
        self.sweep_end = sweep_end

    num_sequences = property(attrgetter("number_of_sequences"), doc="Number of sequences.")
    num_samples = property(attrgetter("number_of_samples"), doc="Number of samples of this stream.")
    end_of_sweep = property(attrgetter("sweep_end"), doc="Whether the minibatch contains the end of a sweep.")
    shape = property(attrgetter("data.shape"), doc="Shape: (sequences, samples of the longest, *sample).")
    mask = property(attrgetter("data.mask"), doc="See `Value.mask`.")
    is_sparse = property(attrgetter("data.is_sparse"), doc="Whether the data is sparse.")

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
        return int(self.num_sequences)  # of a subclass, too

    def __repr__(self) -> str:
        return f"MinibatchData(data={self.data!r}, samples={self.num_samples}, seqs={self.num_sequences})"
