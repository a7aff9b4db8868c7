"""Schedules: numbers as functions of training progress, for learning rates, momentum and minibatch sizes.

A schedule is a value: immutable, comparable, converted to JSON and back without loss. Its number at a position depends
on that position alone (label samples seen, or sweeps done), so it has no state to resume. A look-up costs one binary
search.
"""

from __future__ import annotations

import math
import numbers
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from feedline.data import Position, Unit
from feedline.errors import shown

_LARGEST = 2**63 - 1
#: One number, or a list of numbers (one epoch each) and of (count, number) pairs (``count`` epochs each).
Values: TypeAlias = "float | Sequence[float | Sequence[float]]"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Schedule:
    """A schedule: a number for every position. The last number holds from there on.

    ``Schedule([(2, 0.1), 0.05], epoch_size=60_000)`` is 0.1 for the first 120,000 label samples, then 0.05. Without
    ``epoch_size`` an epoch is a sweep. ``schedule[position]`` is the number at a position, ``schedule[count]`` the
    number after ``count`` label samples or sweeps, depending on `unit`.

    Args:
        values: one number, or a list of numbers (one epoch each) and of (count, number) pairs (``count`` epochs each).
            The last count is ignored, and may be 0. Integers stay integers.
        epoch_size: number of label samples in an epoch. None means that an epoch is a sweep. A single number has no
            epochs.
        reference: reference minibatch size in samples, for which the numbers are meant. `rate` and `momentum` convert
            them to other sizes. 1 means that the numbers are per sample. None means that they are for a whole
            minibatch of any size.

    Attributes:
        steps: (count, number) pairs, the last count 1.
        epoch_size: number of label samples in an epoch, or None.
        reference: reference minibatch size in samples, or None.

    Raises:
        TypeError: a value that is not a number.
        ValueError: an empty list, a count below 1 before the last item, a number that is not finite, an epoch or
            reference size below 1, or an epoch size for a single number.
    """

    steps: tuple[tuple[int, float], ...]
    epoch_size: int | None
    reference: int | None
    _ends: tuple[int, ...] = field(compare=False)

    def __init__(self, values: Values, *, epoch_size: int | None = None, reference: int | None = None) -> None:
        for what, size in (("epoch_size", epoch_size), ("reference", reference)):
            if size is not None and (_integer(size, what) < 1):
                raise ValueError(f"expected {what} to be at least 1 sample, got {size}; omit it to have none")
        if _is_number(values):
            if epoch_size is not None:
                raise ValueError(
                    f"expected no epoch_size with a single number, got {epoch_size}: the number never changes; "
                    "pass a list for values that change"
                )
            values = [values]  # type: ignore[list-item]
        steps = _steps(values)
        lengths = (count * (epoch_size or 1) for count, _ in steps[:-1])
        set_field = object.__setattr__
        set_field(self, "steps", steps)
        set_field(self, "epoch_size", None if epoch_size is None else int(epoch_size))
        set_field(self, "reference", None if reference is None else int(reference))
        set_field(self, "_ends", tuple(accumulate(lengths)))

    @classmethod
    def of(cls, values: Schedule | Values) -> Schedule:
        """Return a schedule unchanged, and numbers as ``Schedule(numbers)``."""
        return values if isinstance(values, Schedule) else cls(values)

    @classmethod
    def per_sample(cls, values: Values, *, epoch_size: int | None = None) -> Schedule:
        """Return a schedule of numbers per sample: reference size 1."""
        return cls(values, epoch_size=epoch_size, reference=1)

    @classmethod
    def time_constant(cls, values: Values, *, epoch_size: int | None = None) -> Schedule:
        """Return a schedule of momentum from time constants: the samples after which the weight of a gradient has
        decayed to 1/e.

        Args:
            values: time constants in samples, at least 0. 0 is no momentum.
            epoch_size: see `Schedule`.

        Raises:
            ValueError: a negative time constant, or an error of `Schedule`.
        """

        def momentum(samples: float) -> float:
            if samples < 0:
                raise ValueError(f"expected time constants of at least 0 samples, got {samples}")
            return math.exp(-1.0 / samples) if samples else 0.0

        return cls(values, epoch_size=epoch_size, reference=1)._map(momentum)

    @classmethod
    def sizes(cls, values: Values, *, epoch_size: int | None = None) -> Schedule:
        """Return a schedule of minibatch sizes in samples: integers of at least 0, where 0 ends the training.

        Raises:
            TypeError: a size that is not an integer.
            ValueError: a negative size, or an error of `Schedule`.
        """

        def size(value: float) -> int:
            if _integer(value, "a minibatch size") < 0:
                raise ValueError(f"expected minibatch sizes of at least 0 samples, got {value}")
            return int(value)

        return cls(values, epoch_size=epoch_size)._map(size)

    @property
    def unit(self) -> Unit:
        """Unit of counts: `Unit.SAMPLE` (label samples) with an epoch size, otherwise `Unit.SWEEP`."""
        return Unit.SWEEP if self.epoch_size is None else Unit.SAMPLE

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers of the schedule, in order."""
        return tuple(number for _, number in self.steps)

    def __getitem__(self, at: Position | int) -> float:
        """Return the number at a position, or after a count of label samples or sweeps (`unit`).

        Raises:
            ValueError: a negative count.
        """
        if isinstance(at, Position):
            count = at.sweep if self.epoch_size is None else at.label_samples
        else:
            count = _integer(at, f"an index of a schedule (a Position, or a count of {self.unit.value}s)")
        if count < 0:
            raise ValueError(f"expected a count of {self.unit.value}s of at least 0, got {count}")
        return self.steps[bisect_right(self._ends, count)][1]

    def rate(self, at: Position | int, samples: int) -> float:
        """Return the learning rate for the mean gradient over ``samples``: number x samples / reference."""
        return self[at] if self.reference is None else self[at] * samples / self.reference

    def momentum(self, at: Position | int, samples: int) -> float:
        """Return the momentum over a minibatch of ``samples``: number ** (samples / reference)."""
        return self[at] if self.reference is None else self[at] ** (samples / self.reference)

    def to_json(self) -> dict[str, Any]:
        """Return JSON types from which `from_json` makes an equal schedule."""
        values = [list(step) for step in self.steps]
        return {"values": values, "epoch_size": self.epoch_size, "reference": self.reference}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        """Return the schedule that `to_json` described.

        Raises:
            ValueError: a missing or unknown key, or an error of `Schedule`.
        """
        if not isinstance(data, Mapping) or set(data) != {"values", "epoch_size", "reference"}:
            raise ValueError(f"expected a mapping of values, epoch_size and reference, got {shown(data, 80)}")
        return cls(data["values"], epoch_size=data["epoch_size"], reference=data["reference"])

    def __repr__(self) -> str:
        shown = [repr(number if count == 1 else (count, number)) for count, number in self.steps]
        only = len(shown) == 1 and self.epoch_size is None
        parts = [shown[0] if only else f"[{', '.join(shown)}]"]
        parts += [f"epoch_size={self.epoch_size}"] if self.epoch_size is not None else []
        parts += [f"reference={self.reference}"] if self.reference is not None else []
        return f"Schedule({', '.join(parts)})"

    def _map(self, function: Callable[[float], float]) -> Schedule:
        values = [(count, function(number)) for count, number in self.steps]
        return type(self)(values, epoch_size=self.epoch_size, reference=self.reference)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _number(value: Any) -> float:
    if not _is_number(value):
        raise TypeError(f"expected a number or a (count, number) pair, got {shown(value, 80)}")
    if isinstance(value, numbers.Integral) and abs(int(value)) > _LARGEST:
        raise ValueError(f"expected integers up to 2**63 - 1, got {shown(value, 40)}")
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {shown(value, 80)}")
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"expected {what} to be an integer, got {shown(value, 80)}")
    if abs(int(value)) > _LARGEST:
        raise ValueError(f"expected {what} up to 2**63 - 1, got {shown(value, 40)}")
    return int(value)


def _steps(values: Any) -> tuple[tuple[int, float], ...]:
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise TypeError(f"expected a number, or a list of numbers and (count, number) pairs, got {shown(values, 80)}")
    if not values:
        raise ValueError("expected at least one number, got an empty list")
    steps = []
    for place, item in enumerate(values):
        pair = item if isinstance(item, Sequence) and not isinstance(item, (str, bytes)) else (1, item)
        if len(pair) != 2:
            raise TypeError(f"expected a number or a (count, number) pair, got {shown(item, 80)} at index {place}")
        count, last = _integer(pair[0], "a count"), place == len(values) - 1
        if count < 0 or (count == 0 and not last):
            raise ValueError(f"expected counts above 0 before the last item, got {shown(item, 80)} at index {place}")
        steps.append((1 if last else count, _number(pair[1])))
    return tuple(steps)


def one_of(what: str, value: object, allowed: Sequence[str]) -> None:
    """Check an option.

    Raises:
        ValueError: the value is not in ``allowed``.
    """
    if value not in allowed:
        raise ValueError(f"expected {what} to be one of {', '.join(map(repr, allowed))}, got {value!r}")


def at_least_zero(what: str, value: float) -> None:
    """Check a number.

    Raises:
        ValueError: the value is negative, infinite or NaN.
    """
    if not 0 <= value < math.inf:
        raise ValueError(f"expected {what} to be at least 0, got {value}")


def momentum_schedule(what: str, values: Schedule | Values, below_one: bool = False) -> Schedule:
    """Return a schedule of momentum.

    Raises:
        ValueError: a number outside 0 to 1, or 1 with ``below_one``.
    """
    schedule = Schedule.of(values)
    if not all(0 <= number <= 1 for number in schedule.numbers):
        raise ValueError(f"expected {what} to be between 0 and 1, got {schedule}")
    if below_one and max(schedule.numbers) == 1:
        raise ValueError(f"expected {what} to be below 1, got {schedule}")
    return schedule


def rates_schedule(lr: Schedule | Values) -> Schedule:
    """Return a schedule of learning rates. Raises ValueError for a negative one."""
    schedule = Schedule.of(lr)
    at_least_zero("lr", min(schedule.numbers))
    return schedule
