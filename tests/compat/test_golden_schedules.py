"""The schedules of CNTK 2.7: each says the same numbers at the same places, or is refused."""

from __future__ import annotations

import json
import math

import pytest

from feedline.data import Unit
from feedline.train import Schedule
from tests.compat.golden import cases

# Where our counts of samples and sweeps stand is CNTK's; the file gives them beside its cases.
PLACES = [*range(12), 14, 15, 16, 19, 20, 21, 25, 29, 30, 31, 39, 40, 41, 49, 50, 59, 60, 61, 79, 80, 99, 100, 101]
PLACES += [150, 199, 200, 499, 500, 1000, 5000, 100000]


def translated(kind, schedule, minibatch_size=0, epoch_size=None, unit=None):
    """A call of a CNTK factory as a schedule."""
    if not isinstance(schedule, list):
        if kind == "minibatch_size_schedule" and epoch_size not in (None, 1):
            raise ValueError("a number has no epochs")
        epoch_size = None  # CNTK warns and takes the number
    elif kind == "minibatch_size_schedule" and epoch_size is None:
        epoch_size = 1
    if epoch_size == 0:
        epoch_size = None
    if kind == "minibatch_size_schedule":
        return Schedule.sizes(schedule, epoch_size=epoch_size)
    if kind == "momentum_as_time_constant_schedule":
        return Schedule.time_constant(schedule, epoch_size=epoch_size)
    if kind.endswith("_per_sample") or unit == "sample":
        return Schedule.per_sample(schedule, epoch_size=epoch_size)
    return Schedule(schedule, epoch_size=epoch_size, reference=minibatch_size or None)


@pytest.mark.parametrize("case", cases("schedules.json"))
def test_schedule_says_what_cntk_says(case):
    kind, options, expected = case["kind"], case["options"], case["expect"]
    if "error" in expected:
        with pytest.raises((ValueError, TypeError)):
            translated(kind, case["schedule"], **options)
        return
    if kind == "momentum_as_time_constant_schedule" and case["schedule"] == -5:
        # CNTK takes a negative time constant as momentum above 1; we refuse it, and can still say its number.
        with pytest.raises(ValueError, match="at least 0 samples"):
            translated(kind, case["schedule"], **options)
        schedule = Schedule.per_sample(math.exp(1 / 5))
    else:
        schedule = translated(kind, case["schedule"], **options)
    assert [schedule[place] for place in PLACES] == pytest.approx(expected["values"], rel=1e-15)
    assert (schedule.unit is Unit.SWEEP) == expected["is_sweep_based"]
    if "minibatch_size" in expected:
        assert (schedule.reference or 0) == expected["minibatch_size"]
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
