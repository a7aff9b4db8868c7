"""A schedule is a pure function of the clock, survives JSON and copies, and refuses invalid arguments."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.data import Position, Unit
from feedline.train import Schedule

finite = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9)
items = st.lists(finite | st.tuples(st.integers(1, 5), finite), min_size=1, max_size=6)
sizes = st.none() | st.integers(1, 50)


@given(items, sizes, st.integers(0, 600))
def test_a_number_holds_for_its_epochs_and_the_last_for_ever(values, epoch_size, place):
    written_out = []
    for item in values:
        count, number = item if isinstance(item, tuple) else (1, item)
        written_out += [number] * (count * (epoch_size or 1))
    last = values[-1][1] if isinstance(values[-1], tuple) else values[-1]
    schedule = Schedule(values, epoch_size=epoch_size)
    assert schedule[place] == (written_out[place] if place < len(written_out) else last)
    if epoch_size is None:
        assert schedule[Position(sweep=place, samples=7, label_samples=9)] == schedule[place]
    else:
        assert schedule[Position(sweep=7, samples=9, label_samples=place)] == schedule[place]


@given(items, sizes, sizes)
def test_json_repr_pickle_and_copies_keep_everything(values, epoch_size, reference):
    schedule = Schedule(values, epoch_size=epoch_size, reference=reference)
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    copies = [again, eval(repr(schedule)), pickle.loads(pickle.dumps(schedule)), copy.deepcopy(schedule)]
    for copied in copies:
        assert copied == schedule
        assert hash(copied) == hash(schedule)
        assert [type(number) for number in copied.numbers] == [type(number) for number in schedule.numbers]
        assert copied[10**6] == schedule[10**6]


@given(st.floats(0.01, 1), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_rates_add_up_and_momenta_multiply_over_parts_of_a_minibatch(number, reference, first, second):
    schedule = Schedule(number, reference=reference)
    assert schedule.rate(0, first) + schedule.rate(0, second) == pytest.approx(schedule.rate(0, first + second))
    product = schedule.momentum(0, first) * schedule.momentum(0, second)
    assert product == pytest.approx(schedule.momentum(0, first + second))
    assert schedule.rate(0, reference) == pytest.approx(number)
    assert schedule.momentum(0, reference) == pytest.approx(number)
    assert (Schedule(number).rate(0, first), Schedule(number).momentum(0, first)) == (number, number)


def test_a_time_constant_is_when_a_gradient_weighs_one_eth():
    schedule = Schedule.time_constant([(2, 100), 0], epoch_size=10)
    assert schedule.momentum(0, 100) == pytest.approx(1 / math.e)
    assert schedule[19] == math.exp(-0.01)
    assert schedule[20] == 0
    assert (schedule.reference, schedule.unit) == (1, Unit.SAMPLE)


def test_minibatch_sizes_are_integers_by_sweep_or_epoch():
    by_sweep = Schedule.sizes([(2, 128), 1024])
    assert [by_sweep[Position(sweep=k)] for k in range(4)] == [128, 128, 1024, 1024]
    by_epoch = Schedule.sizes([(2, np.int64(128)), 1024], epoch_size=1000)
    assert [by_epoch[Position(label_samples=n)] for n in (0, 1999, 2000)] == [128, 128, 1024]
    assert all(type(number) is int for number in by_epoch.numbers)
    for wrong, error in ((1.5, TypeError), ([True], TypeError), (-1, ValueError)):
        with pytest.raises(error, match=r"minibatch size|expected a number"):
            Schedule.sizes(wrong)


def test_it_reads_as_it_is_written():
    assert repr(Schedule(0.5)) == "Schedule(0.5)"
    assert repr(Schedule([(2, 0.5), (7, 1)], epoch_size=9, reference=4)) == (
        "Schedule([(2, 0.5), 1], epoch_size=9, reference=4)"
    )


def test_it_cannot_be_changed():
    schedule = Schedule(0.5)
    with pytest.raises(AttributeError):
        schedule.reference = 3


def test_a_count_of_zero_comes_last():
    assert Schedule([(2, 0.1), (0, 0.2)]) == Schedule([(2, 0.1), 0.2])
    with pytest.raises(ValueError, match=r"before the last item, got \(0, 0.1\) at index 0"):
        Schedule([(0, 0.1), 0.2])


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Schedule([]), ValueError, "at least one number"),
        (lambda: Schedule("0.1"), TypeError, "'0.1'"),
        (lambda: Schedule(["0.1"]), TypeError, "'0.1'"),
        (lambda: Schedule([None]), TypeError, "None"),
        (lambda: Schedule(True), TypeError, "True"),
        (lambda: Schedule([(1, 2, 3)]), TypeError, r"\(1, 2, 3\) at index 0"),
        (lambda: Schedule([(1.5, 2), 1]), TypeError, "a count to be an integer, got 1.5"),
        (lambda: Schedule([(-1, 2)]), ValueError, "counts above 0"),
        (lambda: Schedule(math.nan), ValueError, "finite numbers, got nan"),
        (lambda: Schedule([math.inf]), ValueError, "finite numbers, got inf"),
        (lambda: Schedule([1], epoch_size=0), ValueError, "epoch_size to be at least 1 sample, got 0"),
        (lambda: Schedule([1], epoch_size=2.5), TypeError, "epoch_size to be an integer, got 2.5"),
        (lambda: Schedule(1, reference=0), ValueError, "reference to be at least 1 sample, got 0"),
        (lambda: Schedule(1, epoch_size=10), ValueError, "no epoch_size with a single number"),
        (lambda: Schedule.time_constant(-5), ValueError, "at least 0 samples, got -5"),
        (lambda: Schedule(1)[-1], ValueError, "sweeps of at least 0, got -1"),
        (lambda: Schedule(1)["a"], TypeError, "'a'"),
        (lambda: Schedule.from_json({"values": [1]}), ValueError, "values, epoch_size and reference"),
    ],
)
def test_nonsense_is_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()
