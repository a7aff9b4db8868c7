"""The interface between a source and a transform.

A transform gets the sequences of a whole minibatch at once, each with its place on the axis: (sweep, ordinal in the
corpus). Its random numbers are keyed by the source's seed, that place and the stage, so that a sequence gets the same
numbers for any minibatch size, number of workers or restart, and other numbers in the next sweep.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline import _native
from feedline.data import Schema, Value
from feedline.errors import DataError

# Level of the key for the random numbers of transforms, after the levels of the orders.
TRANSFORM = 2


class DrawKeys(NamedTuple):
    """The keys of the random numbers of a minibatch's sequences in one stage.

    Attributes:
        seed: seed of the source.
        sweeps, ordinals: int64 (n,), sweep and ordinal of each sequence.
        stage: number of the transform in the source.
    """

    seed: int
    sweeps: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    stage: int

    def generator(self, i: int) -> np.random.Generator:
        """Return the generator of sequence ``i`` of the minibatch."""
        key = _native.hash_key([self.seed, int(self.sweeps[i]), TRANSFORM, int(self.ordinals[i]), self.stage])
        return np.random.Generator(np.random.Philox(key=key))

    def uniforms(self, step: int, count: int) -> NDArray[np.float64]:
        """Return float64 (n, count) in [0, 1): the numbers of one step of a transform that has several."""
        return _native.uniforms(self.seed, self.sweeps, self.ordinals, stage=self.stage, step=step, count=count)


class Transformed(NamedTuple):
    """The result of a transform for a minibatch.

    Attributes:
        values: one value per stream of the schema after the transform, of all sequences. The values of unreadable ones
            are ignored.
        errors: by index in the minibatch, why a sequence cannot be read. It keeps its place in the order, and raises
            or is skipped like one that the corpus could not read.
        seconds: time spent, summed over threads.
        slowest: (seconds, index in the minibatch) of the slowest sequence. None if they are not timed one by one.
    """

    values: dict[str, Value]
    errors: Mapping[int, DataError] = {}  # never changed
    seconds: float = 0.0
    slowest: tuple[float, int] | None = None


class Begun(Protocol):
    """A transform that is running in other threads. Dropping this object ends the work."""

    def result(self) -> Transformed:
        """Wait for the work, and return the result of `Transform.run_all`."""


class Transform(ABC):
    """A change of the streams of minibatches."""

    #: Whether `start` works in other threads, so that planned minibatches should be begun ahead.
    works_ahead = False
    #: Streams that it makes of all sequences of a minibatch one after the other: `DataLoader` pads none of them.
    flat: tuple[str, ...] = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in errors."""

    @abstractmethod
    def schema(self, before: Schema) -> Schema:
        """Return the streams after this transform.

        Raises:
            SchemaError: it cannot be applied to these streams.
        """

    @abstractmethod
    def run_all(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Transformed:
        """Transform the sequences of a minibatch, possibly none.

        Args:
            before: streams before this transform.
            values: one value per stream.
            keys: keys of the random numbers of each sequence.

        Raises:
            SchemaError: a result does not fit its declaration.
        """

    def start(self, before: Schema, values: dict[str, Value], keys: DrawKeys) -> Begun:
        """Begin `run_all` in other threads, if `works_ahead`."""
        raise NotImplementedError

    def result_bytes(self, before: Schema, sequences: int) -> int:
        """Return about how many bytes the results of ``sequences`` sequences take, if `works_ahead`."""
        raise NotImplementedError
