"""The schedules of CNTK 2.7 through the façade: each has the same numbers at the same places, or is refused alike."""

from __future__ import annotations

import builtins
import json
import warnings

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import feedline.cntk as C
from feedline.train import Schedule
from tests.compat.golden import cases

# Places, in samples or sweeps, whose numbers the file gives for each case.
PLACES = [*range(12), 14, 15, 16, 19, 20, 21, 25, 29, 30, 31, 39, 40, 41, 49, 50, 59, 60, 61, 79, 80, 99, 100, 101]
PLACES += [150, 199, 200, 499, 500, 1000, 5000, 100000]


def factory(kind):
    """Return the function of this name. Functions of sessions and of learners are both at the top."""
    return getattr(C, kind)


def made(kind, schedule, **options):
    """Return a call of the file, with [count, value] pairs as tuples, and units as names."""
    if isinstance(schedule, list):
        schedule = [tuple(item) if isinstance(item, list) else item for item in schedule]
    if "unit" in options:
        options["unit"] = C.UnitType(options["unit"])
    return factory(kind)(schedule, **options)


@pytest.mark.parametrize("case", cases("schedules.json"))
def test_schedule_matches_cntk(case):
    kind, options, expected = case["kind"], case["options"], case["expect"]
    # The file has texts unchanged, except one that the generator wrote as a number in quotes.
    given = (
        str(case["schedule"]) if "<class 'str'>" in expected.get("error", {}).get("message", "") else case["schedule"]
    )
    if "error" in expected:
        with pytest.raises(getattr(builtins, expected["error"]["type"])):
            made(kind, given, **options)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule = made(kind, given, **options)
    assert [f"{w.category.__name__}: {w.message}" for w in caught] == expected.get("warnings", [])
    assert [schedule[place] for place in PLACES] == pytest.approx(expected["values"], rel=1e-15)
    assert schedule.is_sweep_based == expected["is_sweep_based"]
    if "minibatch_size" in expected:
        assert schedule.minibatch_size == expected["minibatch_size"]
        explicit = expected["is_minibatch_size_explicitly_specified"]
        assert schedule.is_minibatch_size_explicitly_specified == explicit
    assert Schedule.from_json(json.loads(json.dumps(schedule.modern.to_json()))) == schedule.modern
