"""`audio.Crop`: parts by position, whatever the minibatches."""

import numpy as np
import pytest

import feedline as fl
from feedline import audio
from tests.audio.recordings import keys, run

MONO = fl.Stream((), "float32")


def counting(*lengths):
    """Return recordings whose samples are their places."""
    return [np.arange(n, dtype=np.float32) for n in lengths]


def test_parts_are_whole_and_short_recordings_stay():
    sounds = counting(3, 10, 11, 500, 0)
    parts = run(audio.Crop("x", samples=10), MONO, sounds).values["x"].sequences()
    assert [len(part) for part in parts] == [3, 10, 10, 10, 0]
    for part in parts:
        np.testing.assert_array_equal(np.diff(part), 1)
    middle = run(audio.Crop("x", samples=10, random=False), MONO, sounds).values["x"].sequences()
    assert [part[0] for part in middle[:4]] == [0, 0, 0, 245]


def test_every_begin_is_drawn():
    parts = run(audio.Crop("x", samples=97), MONO, counting(*[100] * 400)).values["x"].sequences()
    begins = np.bincount([int(part[0]) for part in parts])
    assert len(begins) == 4
    assert begins.min() > 60


def test_seconds_are_samples_of_the_rate():
    for crop in (audio.Crop("x", 0.5, rate=8000), audio.Crop("x", duration_s=0.25), audio.Crop("x", samples=4000)):
        (part,) = run(crop, MONO, counting(9000)).values["x"].sequences()
        assert len(part) == 4000


def test_draws_depend_on_the_place_alone():
    crop, sounds = audio.Crop("x", samples=5), counting(*range(50, 90))
    together = run(crop, MONO, sounds).values["x"].sequences()
    for i in (0, 7, 39):
        (alone,) = run(crop, MONO, sounds[i : i + 1], first=i).values["x"].sequences()
        np.testing.assert_array_equal(alone, together[i])
    again = run(crop, MONO, sounds, sweep=1).values["x"].sequences()
    assert any(a[0] != b[0] for a, b in zip(together, again, strict=True))


def test_channels_stay_together():
    sound = np.stack([np.arange(50), np.arange(50) + 100], axis=1).astype(np.float32)
    (part,) = run(audio.Crop("x", samples=7), fl.Stream(2, "float32"), [sound]).values["x"].sequences()
    np.testing.assert_array_equal(part[:, 1] - part[:, 0], 100)
    assert part.shape == (7, 2)


def test_a_minibatch_without_sequences_is_cut():
    values = {"x": fl.Value.empty(MONO, ragged=True)}
    done = audio.Crop("x", samples=5).run_all(fl.Schema({"x": MONO}), values, keys(0))
    assert done.values["x"].num_sequences == 0


@pytest.mark.parametrize(
    "options", [{}, {"duration_s": 1, "samples": 1}, {"duration_s": 0}, {"samples": 0}, {"duration_s": 1.0, "rate": 0}]
)
def test_bad_arguments(options):
    with pytest.raises(ValueError, match="expected"):
        audio.Crop("x", **options)


def test_addresses_are_refused():
    with pytest.raises(fl.SchemaError, match=r"decode it first, with audio\.Decode"):
        audio.Crop("x", samples=1).schema(fl.Schema({"x": fl.Stream(dtype="str")}))
