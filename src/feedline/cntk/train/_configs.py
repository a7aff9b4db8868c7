"""Settings of a training session: checkpoints, cross validation and tests."""

from __future__ import annotations

import enum
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from feedline.cntk.io._source import MinibatchSource
from feedline.cntk.io._streams import StreamInformation
from feedline.cntk.io._user import UserMinibatchSource
from feedline.cntk.learners._schedules import TrainingParameterSchedule, sizes_of

Source = MinibatchSource | UserMinibatchSource
Streams = Mapping[Hashable, StreamInformation]
Arrays = tuple[Any, ...]


class DataUnit(enum.IntEnum):
    """Unit of a frequency such as ``(2, DataUnit.sweep)``."""

    sweep = 0
    sample = 1
    minibatch = 2


Frequency = int | tuple[int, DataUnit] | None


class CheckpointConfig:
    """Settings of checkpoints.

    Args:
        filename: path of the model. The checkpoint is ``<filename>.ckp``. None means no checkpoints.
        frequency: number of samples, or ``(count, DataUnit)``. None means at the end only. 0: never.
        restore: whether to continue from the newest checkpoint of that name.
        preserve_all: whether to keep all, as ``<filename>0``, ``<filename>1``, …. The last is also ``<filename>``.

    Raises:
        ValueError: a frequency without a filename.
    """

    def __init__(
        self,
        filename: str | None,
        frequency: Frequency = None,
        restore: bool = True,
        preserve_all: bool = False,
    ) -> None:
        if filename is None and frequency not in (None, 0):
            raise ValueError(f"expected a filename for checkpoints every {frequency}, got none")
        self.filename, self.restore, self.preserve_all = filename, restore, preserve_all
        self.frequency = every(0 if filename is None else frequency)


class CrossValidationConfig:
    """Settings of cross validation.

    Args:
        minibatch_source: finite source, any source with ``max_samples``, or a tuple of arrays, one per argument of the
            criterion. Each validation uses the same data. None means that only the callback is called.
        frequency: number of samples, or ``(count, DataUnit)``. None means at the end only. 0: never.
        minibatch_size: int, or a `minibatch_size_schedule` over the samples of one validation.
        callback: function ``callback(index, average_error, samples, minibatches)``. Returning False ends the training.
        max_samples: number of samples of one validation. None means all.
        model_inputs_to_streams: streams by key. None means as in training.
        criterion: function to whose arguments, in order, the arrays belong. None means the trainer's loss. As in CNTK,
            the trainer's metric is evaluated, and not this function.
        source, mb_size: deprecated names of ``minibatch_source`` and ``minibatch_size``.

    Raises:
        ValueError: a frequency without a source or callback, or another minibatch size.
    """

    def __init__(
        self,
        minibatch_source: Source | Arrays | None = None,
        frequency: Frequency = None,
        minibatch_size: int | TrainingParameterSchedule = 32,
        callback: Callable[[int, float, int, int], Any] | None = None,
        max_samples: int | None = None,
        model_inputs_to_streams: Streams | None = None,
        criterion: Any = None,
        source: Source | None = None,
        mb_size: int | TrainingParameterSchedule | None = None,
    ) -> None:
        self.source, self.size = _tested(minibatch_source, minibatch_size, source, mb_size)
        self.criterion = criterion
        unused = self.source is None and callback is None
        if unused and frequency not in (None, 0):
            raise ValueError(f"expected a source or a callback for cross validation every {frequency}, got neither")
        self.frequency = every(0 if unused else frequency)
        self.callback, self.max_samples, self.streams = callback, max_samples, model_inputs_to_streams


class TestConfig:
    """Settings of the final test.

    Args:
        minibatch_source: finite source, or a tuple of arrays, one per argument of the criterion. None means no test.
        minibatch_size: int, or a `minibatch_size_schedule` over the samples of the test.
        model_inputs_to_streams: streams by key. None means as in training.
        criterion: function to whose arguments, in order, the arrays belong. None means the trainer's loss. As in CNTK,
            the trainer's metric is evaluated, and not this function.
        source, mb_size: deprecated names of ``minibatch_source`` and ``minibatch_size``.

    Raises:
        ValueError: another minibatch size.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self,
        minibatch_source: Source | Arrays | None = None,
        minibatch_size: int | TrainingParameterSchedule = 32,
        model_inputs_to_streams: Streams | None = None,
        criterion: Any = None,
        source: Source | None = None,
        mb_size: int | TrainingParameterSchedule | None = None,
    ) -> None:
        self.source, self.size = _tested(minibatch_source, minibatch_size, source, mb_size)
        self.criterion = criterion
        self.streams = model_inputs_to_streams


def every(value: Frequency) -> tuple[int, DataUnit]:
    """Return a frequency as count and unit. A count of 0 means never.

    Raises:
        ValueError: the count is negative.
    """
    count, unit = value if isinstance(value, tuple) else (sys.maxsize if value is None else value, DataUnit.sample)
    if count < 0:
        raise ValueError(f"expected a frequency of at least 0, got {value}")
    return int(count), DataUnit(unit)


def _tested(source: Any, size: Any, older_source: Any, older_size: Any) -> tuple[Any, TrainingParameterSchedule]:
    """Return source and sizes of a test, under either name."""
    for old, new, value in (("source", "minibatch_source", older_source), ("mb_size", "minibatch_size", older_size)):
        if value is not None:
            warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
    source = older_source if older_source is not None else source
    return source, sizes_of(older_size if older_size is not None else size, "minibatch_size")
