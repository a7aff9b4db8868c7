"""The search of `feedline tune` with made-up speeds and a made-up clock: what it measures, in turn, and chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from feedline.cli.tune.paired_search import LAST_PAIRS, MARGIN, PAIRS, UnavailableError, search

AXES = {"threads": [1, 2, 4, 8], "format": ["as it is", "store"], "window": [64, 256]}
PRESENT = {"threads": 2, "format": "as it is", "window": 256}


class MadeUp:
    """Settings with a fixed speed, on a machine whose speed changes as the test wants."""

    present, axes = PRESENT, AXES

    def __init__(self, speed, *, drift=lambda now: 1.0, predicted=None, refused=(), broken=(), start_s=0.0):
        self.speed, self.drift, self.predicted = speed, drift, predicted or (lambda **setting: 1.0)
        self.refused, self.broken, self.start_s = refused, broken, start_s
        self.now, self.turns = 0.0, []

    def clock(self):
        return self.now

    def normal(self, setting):
        return {**setting, "threads": 2} if setting["format"] == "store" else setting

    def predict(self, setting):
        return self.predicted(**setting)

    def measure(self, setting, seconds):
        self.turns.append(dict(setting))
        self.now += self.start_s + seconds
        if any(setting[name] == value for name, value in self.broken):
            raise UnavailableError("broken")
        return self.speed(**setting) * self.drift(self.now)

    def refusal(self, setting):
        return "mixes less" if any(setting[name] == value for name, value in self.refused) else ""

    def search(self, seconds=60.0):
        return search(self, seconds, clock=self.clock)


def by_threads(threads, format, window):
    return 100.0 * min(threads, 4) - threads


def test_the_fastest_setting_is_chosen():
    outcome = MadeUp(by_threads).search()
    assert outcome.best.setting == {**PRESENT, "threads": 4}
    assert outcome.best.ratio == pytest.approx(396 / 198)
    assert outcome.present.setting == PRESENT
    assert outcome.present.ratio == 1.0


def test_values_that_help_only_together_are_found_step_by_step():
    def speed(threads, format, window):
        return (1 + math.log2(threads)) * (3 if window == 64 and threads == 8 else 1)

    assert MadeUp(speed).search().best.setting == {"threads": 8, "format": "as it is", "window": 64}


def test_a_machine_that_slows_down_changes_no_choice():
    """Compared with the first turn, every candidate would be slower."""
    outcome = MadeUp(by_threads, drift=lambda now: math.exp(-now / 100)).search()
    assert outcome.best.setting["threads"] == 4
    assert outcome.best.ratios == pytest.approx([2.0] * len(outcome.best.ratios), rel=0.02)
    assert min(outcome.present.rates) < 0.8 * max(outcome.present.rates)


def test_each_turn_of_a_candidate_is_next_to_one_of_the_best_so_far():
    made_up = MadeUp(lambda threads, format, window: float(threads + window / 100 + len(format)))
    outcome = made_up.search()
    candidates = made_up.turns[2:]
    for first, second in zip(candidates[::2], candidates[1::2], strict=True):
        assert first != second
        assert any(len({name for name in setting if first[name] != second[name]}) == 1 for setting in (first, second))
    assert outcome.best.setting == {"threads": 8, "format": "as it is", "window": 256}


def test_the_budget_limits_the_turns():
    """A turn may take longer than asked, as a feed has to start."""
    for seconds, start_s in ((0.5, 0), (60, 0), (60, 2), (60, 10), (1, 7)):
        made_up = MadeUp(by_threads, start_s=start_s)
        outcome = made_up.search(seconds)
        assert outcome.turns == len(made_up.turns)
        assert outcome.seconds == pytest.approx(made_up.now)
        turn_s = start_s + seconds / 60
        assert made_up.now <= max(2 * turn_s, seconds + 1e-6)  # the present setting is measured twice in any case


def test_a_search_without_candidates_left_ends_early():
    made_up = MadeUp(lambda **setting: 1.0)
    outcome = made_up.search(6000)
    assert outcome.best is outcome.present
    measured = {tuple(turn.items()) for turn in made_up.turns}
    assert measured == {tuple({**PRESENT, name: v}.items()) for name in AXES for v in AXES[name]}
    assert outcome.seconds < 6000


def test_noise_changes_nothing():
    """Equal settings on a noisy machine: the present one is kept nearly always."""
    rng = np.random.default_rng(0)
    changed = 0
    for _ in range(40):
        outcome = MadeUp(lambda **setting: 1.0, drift=lambda now: rng.lognormal(0, 0.05)).search()
        changed += outcome.best is not outcome.present
    assert changed <= 6


def test_little_is_no_reason_to_change():
    gain = 1 + (MARGIN - 1) / 2
    outcome = MadeUp(lambda threads, format, window: gain if threads == 4 else 1.0).search()
    assert outcome.best is outcome.present


def test_of_equals_the_one_with_fewer_threads_is_chosen():
    outcome = MadeUp(lambda threads, format, window: 2.0 if threads >= 4 else 1.0).search()
    assert outcome.best.setting["threads"] == 4


def test_predictions_decide_what_is_measured_first():
    made_up = MadeUp(by_threads, predicted=lambda threads, format, window: 1.0 / threads)
    made_up.search(60)
    new = [turn for turn in made_up.turns if turn != PRESENT]
    assert new[0]["threads"] == 1
    made_up = MadeUp(by_threads, predicted=lambda threads, format, window: 9.0 if format == "store" else 1.0)
    outcome = made_up.search(60)
    assert next(turn for turn in made_up.turns if turn != PRESENT)["format"] == "store"
    (store,) = [t for t in outcome.trials if t.setting == {**PRESENT, "format": "store"}]
    assert store.predicted == 9.0


def test_what_mixes_less_is_measured_but_not_chosen():
    outcome = MadeUp(
        lambda threads, format, window: threads * (10.0 if window == 64 else 1.0), refused=[("window", 64)]
    ).search()
    assert outcome.best.setting == {**PRESENT, "threads": 8}
    refused = [trial for trial in outcome.trials if trial.remark]
    assert [trial.setting for trial in refused] == [{**PRESENT, "window": 64}]
    assert refused[0].ratio == pytest.approx(10.0)
    assert refused[0].remark == "mixes less"


def test_what_cannot_be_measured_is_listed_and_not_tried_again():
    made_up = MadeUp(by_threads, broken=[("format", "store")])
    outcome = made_up.search()
    assert outcome.best.setting["threads"] == 4
    (broken,) = [trial for trial in outcome.trials if trial.remark]
    assert (broken.setting["format"], broken.remark, broken.rate) == ("store", "broken", None)
    assert sum(turn["format"] == "store" for turn in made_up.turns) == 1


def test_a_present_setting_that_cannot_be_measured_is_an_error():
    with pytest.raises(UnavailableError, match="broken"):
        MadeUp(by_threads, broken=[("threads", 2)]).search()


def test_arguments_without_effect_are_not_varied():
    made_up = MadeUp(lambda threads, format, window: 5.0 if format == "store" else 1.0)
    outcome = made_up.search()
    assert outcome.best.setting == {**PRESENT, "format": "store"}
    assert {turn["threads"] for turn in made_up.turns if turn["format"] == "store"} == {2}


def test_a_gain_that_does_not_last_is_not_chosen():
    """A candidate that was fast while it was searched, and slow when it is compared with the present setting."""
    made_up = MadeUp(by_threads)

    def speed(threads, format, window):
        return 2.0 if threads == 4 and [turn["threads"] for turn in made_up.turns].count(4) <= PAIRS else 1.0

    made_up.speed = speed
    outcome = made_up.search()
    assert outcome.best is outcome.present
    (fast,) = [t for t in outcome.trials if t.setting == {**PRESENT, "threads": 4}]
    assert len(fast.ratios) == LAST_PAIRS
    assert fast.ratio == pytest.approx(1.0)


def test_a_later_step_that_goes_wrong_costs_only_its_own_gain():
    """A window that seems to help four threads, and does not when the result is compared."""
    made_up = MadeUp(by_threads)

    def speed(threads, format, window):
        if window == 256:
            return by_threads(threads, format, window)
        turns = sum(turn["window"] == 64 and turn["threads"] == 4 for turn in made_up.turns)
        return 600.0 if threads == 4 and turns <= PAIRS else 20.0

    made_up.speed = speed
    outcome = made_up.search()
    assert outcome.best.setting == {**PRESENT, "threads": 4}
    assert outcome.best.ratio == pytest.approx(2.0)


def test_of_several_much_faster_settings_the_fastest_is_chosen():
    """Next to a slow setting they look alike, so they are compared with each other."""
    formats = {"as it is": 1.0, "lz4": 7.6, "zstd": 8.6, "none": 7.2}
    expected = {"lz4": 2.9, "zstd": 2.5, "none": 3.0}

    def chosen(seed):
        noise = np.random.default_rng(seed)
        made_up = MadeUp(
            lambda format, **_: formats[format] * noise.lognormal(0, 0.08),
            predicted=lambda format, **_: expected.get(format, 1.0),
            start_s=0.02,
        )
        made_up.axes = {
            "format": list(formats),
            "threads": [1, 2],
            "window": [32, 64, 128, 256],
            "read_ahead": [0, 1, 2],
        }
        made_up.present, made_up.normal = {**PRESENT, "read_ahead": 1}, dict
        return made_up.search(20.0).best.setting["format"]

    assert [chosen(seed) for seed in range(40)].count("zstd") >= 38


def test_a_first_pair_that_goes_wrong_is_repeated_in_the_time_that_is_left():
    made_up = MadeUp(by_threads)

    def speed(threads, format, window):
        unlucky = threads == 4 and [turn["threads"] for turn in made_up.turns].count(4) == 1
        return 100.0 if unlucky else by_threads(min(threads, 4), format, window) * (0.4 if threads == 8 else 1)

    made_up.speed = speed
    assert made_up.search().best.setting == {**PRESENT, "threads": 4}
