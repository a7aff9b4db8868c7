"""CNTK's schedules: a `feedline.train.Schedule`, and whether its reference size was set explicitly."""

from __future__ import annotations

import enum
import math
import warnings
from typing import Any

from feedline.cntk._settings import plain, take_plain_settings
from feedline.data import Unit
from feedline.train.schedules import Schedule

#: Minibatch size for numbers that are meant for a whole minibatch of any size.
IGNORE = 0


class UnitType(enum.Enum):
    """Unit of an older schedule's numbers."""

    sample = "sample"
    minibatch = "minibatch"


class TrainingParameterSchedule:
    """Numbers over samples, or over sweeps without an epoch size. The functions of this module create schedules.

    ``schedule[n]`` is the number after n samples or sweeps.

    Attributes:
        modern: underlying `feedline.train.Schedule`.
        is_minibatch_size_explicitly_specified: whether its reference size overrides a learner's ``minibatch_size``.
    """

    def __init__(self, modern: Schedule, explicit: bool) -> None:
        self.modern, self.is_minibatch_size_explicitly_specified = modern, explicit

    @property
    def minibatch_size(self) -> int:
        """Reference minibatch size in samples, or `IGNORE` for any size."""
        return self.modern.reference or IGNORE

    @property
    def is_sweep_based(self) -> bool:
        """Whether it counts sweeps."""
        return self.modern.unit is Unit.SWEEP

    def __getitem__(self, count: int) -> float:
        return self.modern[count]

    def __repr__(self) -> str:
        return f"TrainingParameterSchedule({self.modern!r})"


def learning_parameter_schedule(
    schedule: Any, minibatch_size: int | None = None, epoch_size: int | None = None
) -> TrainingParameterSchedule:
    """Return a schedule of numbers for minibatches of a size.

    Args:
        schedule: number, or list of numbers, one for each epoch, and of ``(count, number)`` pairs, for ``count`` epochs
            each. The last number has no end. A schedule is returned unchanged.
        minibatch_size: reference minibatch size in samples, or `IGNORE` for any size. None means the size of the
            learner, or any.
        epoch_size: number of samples in an epoch. None or 0: a sweep.

    Raises:
        ValueError: neither a number nor a list.
        RuntimeError: an empty list, or a count of 0 before the last item.
        NotImplementedError: the list contains other than numbers.
    """
    if isinstance(schedule, TrainingParameterSchedule):
        return schedule
    return TrainingParameterSchedule(_modern(schedule, minibatch_size, epoch_size), minibatch_size is not None)


def learning_parameter_schedule_per_sample(schedule: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Return a schedule of numbers per sample. See `learning_parameter_schedule`."""
    return learning_parameter_schedule(schedule, 1, epoch_size)


def training_parameter_schedule(
    schedule: Any, unit: UnitType = UnitType.minibatch, epoch_size: int | None = None
) -> TrainingParameterSchedule:
    """Return a schedule of numbers per sample or per minibatch. See `learning_parameter_schedule`."""
    return learning_parameter_schedule(schedule, 1 if UnitType(unit) is UnitType.sample else IGNORE, epoch_size)


def learning_rate_schedule(lr: Any, unit: UnitType, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Former name of `training_parameter_schedule`."""
    return training_parameter_schedule(lr, unit, epoch_size)


def momentum_schedule(
    momentum: Any, epoch_size: int | None = None, minibatch_size: int | None = None
) -> TrainingParameterSchedule:
    """Return a schedule of momentum for minibatches of a size. See `learning_parameter_schedule`."""
    return learning_parameter_schedule(momentum, minibatch_size, epoch_size)


def momentum_schedule_per_sample(momentum: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Return a schedule of momentum per sample. See `learning_parameter_schedule`."""
    return learning_parameter_schedule(momentum, 1, epoch_size)


def momentum_as_time_constant_schedule(momentum: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Return a schedule of momentum as time constants: samples until a gradient's weight decays to 1/e, or 0."""
    if isinstance(momentum, TrainingParameterSchedule):
        return momentum
    constants = _modern(momentum, 1, epoch_size)
    numbers = [(count, math.exp(-1.0 / samples) if samples else 0.0) for count, samples in constants.steps]
    return TrainingParameterSchedule(Schedule(numbers, epoch_size=constants.epoch_size, reference=1), True)


def minibatch_size_schedule(schedule: Any, epoch_size: int = 1) -> TrainingParameterSchedule:
    """Return a schedule of minibatch sizes in samples, over samples.

    Args:
        schedule: int, or list of ints and of ``(count, int)`` pairs as in `learning_parameter_schedule`.
        epoch_size: number of samples in an epoch.

    Raises:
        ValueError: neither an int nor a list, or an epoch size for an int.
        RuntimeError: an empty list, or a count of 0 before the last item.
        NotImplementedError: the list contains other than ints.
    """
    if _is_number(schedule) and isinstance(schedule, int):
        if epoch_size != 1:
            raise ValueError(f"expected no epoch_size with a single number, got {epoch_size}")
        return TrainingParameterSchedule(Schedule.sizes(schedule), False)
    if not isinstance(schedule, list):
        raise ValueError(f"expected an int or a list of ints, got {type(schedule).__name__}")
    return TrainingParameterSchedule(_list(Schedule.sizes, schedule, epoch_size=epoch_size), False)


def sizes_of(size: Any, label: str) -> TrainingParameterSchedule:
    """Return the schedule of a session's minibatch size: an int, or a `minibatch_size_schedule`.

    Raises:
        ValueError: another type.
    """
    size = plain(size)
    if isinstance(size, int):
        return minibatch_size_schedule(size)
    if not isinstance(size, TrainingParameterSchedule):
        raise ValueError(
            f"expected {label} to be an int or the output of minibatch_size_schedule(), got {type(size).__name__}"
        )
    return size


def as_schedule(value: Any, minibatch_size: int | None, epoch_size: int | None) -> TrainingParameterSchedule:
    """Convert a learner's number, list or schedule. Without a reference size it gets the learner's.

    Raises:
        ValueError: another type.
    """
    if not isinstance(value, TrainingParameterSchedule):
        return learning_parameter_schedule(value, minibatch_size, epoch_size)
    if value.is_minibatch_size_explicitly_specified or minibatch_size is None:
        return value
    return with_reference(value, minibatch_size)


def with_reference(schedule: TrainingParameterSchedule, minibatch_size: int) -> TrainingParameterSchedule:
    """Return the same numbers for minibatches of another size."""
    steps, epoch_size = schedule.modern.steps, schedule.modern.epoch_size
    return TrainingParameterSchedule(Schedule(steps, epoch_size=epoch_size, reference=minibatch_size or None), True)


def _modern(schedule: Any, minibatch_size: int | None, epoch_size: int | None) -> Schedule:
    reference = minibatch_size or None
    if _is_number(schedule):
        if epoch_size is not None:
            warnings.warn(
                "When providing the schedule as a number, epoch_size is ignored", RuntimeWarning, stacklevel=4
            )
        return Schedule(schedule, reference=reference)
    if not isinstance(schedule, list):
        raise ValueError(f"expected a number or a list as schedule, got {type(schedule).__name__}")
    return _list(Schedule, schedule, epoch_size=epoch_size or None, reference=reference)


def _list(make: Any, values: list[Any], **options: Any) -> Schedule:
    """Create a schedule from a list, and raise CNTK's errors."""
    try:
        schedule: Schedule = make(values, **options)
    except TypeError as error:
        raise NotImplementedError(str(error)) from error
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    return schedule


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


take_plain_settings(globals())
