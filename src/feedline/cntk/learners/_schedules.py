"""Schedules under CNTK's names: a `feedline.train.Schedule`, and whether its reference size was given."""

from __future__ import annotations

import enum
import math
import warnings
from typing import Any

from feedline.data import Unit
from feedline.train.schedules import Schedule

#: As a minibatch size: numbers are for a whole minibatch, whatever its size.
IGNORE = 0


class UnitType(enum.Enum):
    """What a number of an older schedule is for."""

    sample = "sample"
    minibatch = "minibatch"


class TrainingParameterSchedule:
    """Numbers over samples, or over sweeps without an epoch size; made by the functions of this module.

    ``schedule[n]`` is the number after n samples or sweeps.

    Attributes:
        modern: the `feedline.train.Schedule` beneath.
        is_minibatch_size_explicitly_specified: whether a learner's ``minibatch_size`` leaves it alone.
    """

    def __init__(self, modern: Schedule, explicit: bool) -> None:
        self.modern, self.is_minibatch_size_explicitly_specified = modern, explicit

    @property
    def minibatch_size(self) -> int:
        """The minibatch size in samples that the numbers are meant for; `IGNORE`: any."""
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
    """Numbers for minibatches of a size.

    Args:
        schedule: a number; or a list of numbers, one for each epoch, and of ``(count, number)`` pairs, for ``count``
            epochs each. The last number holds for ever. A schedule is returned unchanged.
        minibatch_size: the size in samples that the numbers are meant for; `IGNORE`: any; None: what the learner says,
            or any.
        epoch_size: samples in an epoch; None or 0: a sweep.

    Raises:
        ValueError: neither a number nor a list.
        RuntimeError: an empty list, or a count of 0 before the last place.
        NotImplementedError: something else than numbers in the list.
    """
    if isinstance(schedule, TrainingParameterSchedule):
        return schedule
    return TrainingParameterSchedule(_modern(schedule, minibatch_size, epoch_size), minibatch_size is not None)


def learning_parameter_schedule_per_sample(schedule: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Numbers per sample; see `learning_parameter_schedule`."""
    return learning_parameter_schedule(schedule, 1, epoch_size)


def training_parameter_schedule(
    schedule: Any, unit: UnitType = UnitType.minibatch, epoch_size: int | None = None
) -> TrainingParameterSchedule:
    """Numbers per sample or per minibatch; see `learning_parameter_schedule`."""
    return learning_parameter_schedule(schedule, 1 if UnitType(unit) is UnitType.sample else IGNORE, epoch_size)


def learning_rate_schedule(lr: Any, unit: UnitType, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """As `training_parameter_schedule`."""
    return training_parameter_schedule(lr, unit, epoch_size)


def momentum_schedule(
    momentum: Any, epoch_size: int | None = None, minibatch_size: int | None = None
) -> TrainingParameterSchedule:
    """Momentum for minibatches of a size; see `learning_parameter_schedule`."""
    return learning_parameter_schedule(momentum, minibatch_size, epoch_size)


def momentum_schedule_per_sample(momentum: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Momentum per sample; see `learning_parameter_schedule`."""
    return learning_parameter_schedule(momentum, 1, epoch_size)


def momentum_as_time_constant_schedule(momentum: Any, epoch_size: int | None = None) -> TrainingParameterSchedule:
    """Momentum as time constants: samples until a gradient has decayed to 1/e of its weight; 0: no momentum."""
    if isinstance(momentum, TrainingParameterSchedule):
        return momentum
    constants = _modern(momentum, 1, epoch_size)
    numbers = [(count, math.exp(-1.0 / samples) if samples else 0.0) for count, samples in constants.steps]
    return TrainingParameterSchedule(Schedule(numbers, epoch_size=constants.epoch_size, reference=1), True)


def minibatch_size_schedule(schedule: Any, epoch_size: int = 1) -> TrainingParameterSchedule:
    """Minibatch sizes in samples, over samples.

    Args:
        schedule: an int; or a list of ints and of ``(count, int)`` pairs, as `learning_parameter_schedule` takes it.
        epoch_size: samples in an epoch.

    Raises:
        ValueError: neither an int nor a list, or an epoch size for an int.
        RuntimeError: an empty list, or a count of 0 before the last place.
        NotImplementedError: something else than ints in the list.
    """
    if _is_number(schedule) and isinstance(schedule, int):
        if epoch_size != 1:
            raise ValueError(f"expected no epoch_size beside a single number, got {epoch_size}")
        return TrainingParameterSchedule(Schedule.sizes(schedule), False)
    if not isinstance(schedule, list):
        raise ValueError(f"expected an int or a list of ints, got {type(schedule).__name__}")
    return TrainingParameterSchedule(_list(Schedule.sizes, schedule, epoch_size=epoch_size), False)


def sizes_of(given: Any, what: str) -> TrainingParameterSchedule:
    """Minibatch sizes as sessions take them: an int, or what `minibatch_size_schedule` made.

    Raises:
        ValueError: anything else.
    """
    if isinstance(given, int):
        return minibatch_size_schedule(given)
    if not isinstance(given, TrainingParameterSchedule):
        raise ValueError(
            f"expected {what} to be an int or the output of minibatch_size_schedule(), got {type(given).__name__}"
        )
    return given


def taken_over(given: Any, minibatch_size: int | None, epoch_size: int | None) -> TrainingParameterSchedule:
    """What a learner makes of a number, list or schedule: its own reference size where none was given.

    Raises:
        ValueError: something else.
    """
    if not isinstance(given, TrainingParameterSchedule):
        return learning_parameter_schedule(given, minibatch_size, epoch_size)
    if given.is_minibatch_size_explicitly_specified or minibatch_size is None:
        return given
    return with_reference(given, minibatch_size)


def with_reference(given: TrainingParameterSchedule, minibatch_size: int) -> TrainingParameterSchedule:
    """The same numbers for minibatches of another size."""
    steps, epoch_size = given.modern.steps, given.modern.epoch_size
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
    """A schedule from a list, with CNTK's errors."""
    try:
        schedule: Schedule = make(values, **options)
    except TypeError as error:
        raise NotImplementedError(str(error)) from error
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    return schedule


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
