"""`audio.LogMel`: equal to its definition, and to the libraries', whatever else is in the minibatch."""

import pickle

import numpy as np
import pytest

import feedline as fl
from feedline import audio
from tests.audio.recordings import noise, run
from tests.oracles import mel

MONO = fl.Stream((), "float32")


def tone(samples, rate=16000):
    t = np.arange(samples) / rate
    return (np.sin(2 * np.pi * (300 + 2000 * t) * t) + noise(samples)).astype(np.float32)


@pytest.mark.parametrize("scale", ["slaney", "htk"])
@pytest.mark.parametrize(
    ("rate", "window", "hop", "mels"), [(16000, 64, 16, 10), (8000, 32, 20, 5), (16000, 40, 50, 7)]
)
def test_frames_are_those_of_the_definition(scale, rate, window, hop, mels):
    sounds = [tone(n, rate) for n in (0, 1, hop - 1, hop, 200, 333)]
    transform = audio.LogMel("x", rate=rate, window=window, hop=hop, mels=mels, scale=scale)
    frames = run(transform, MONO, sounds).values["x"].sequences()
    for sound, got in zip(sounds, frames, strict=True):
        assert got.dtype == np.float32
        assert got.shape == (1 + len(sound) // hop, mels)
        by_definition = mel.log_mel(sound.tolist(), rate, window, hop, mels, scale, 1e-10)
        np.testing.assert_allclose(got, by_definition, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("package", "scale"), [("librosa", "slaney"), ("librosa", "htk"), ("torchaudio", "htk")])
def test_frames_are_those_of_other_libraries(package, scale):
    library = pytest.importorskip(package, reason=f"{package} is not installed here", exc_type=ImportError)
    import torch

    sound = tone(16000)
    if package == "librosa":
        power = library.feature.melspectrogram(
            y=sound, sr=16000, n_fft=400, hop_length=160, n_mels=80, htk=scale == "htk", pad_mode="constant",
            norm="slaney" if scale == "slaney" else None,
        ).T  # fmt: skip
    else:
        spectrum = library.transforms.MelSpectrogram(16000, 400, hop_length=160, n_mels=80, pad_mode="constant")
        power = spectrum(torch.from_numpy(sound)).T.numpy()
    (got,) = run(audio.LogMel("x", scale=scale), MONO, [sound]).values["x"].sequences()
    np.testing.assert_allclose(got, np.log(np.maximum(power, 1e-10)), rtol=1e-4, atol=1e-4)


def test_the_rest_of_the_minibatch_changes_nothing():
    sounds = [tone(n) for n in (700, 16000, 3, 401, 5000)]
    together = run(audio.LogMel("x"), MONO, sounds).values["x"].sequences()
    for sound, got in zip(sounds, together, strict=True):
        (alone,) = run(audio.LogMel("x"), MONO, [sound]).values["x"].sequences()
        np.testing.assert_allclose(got, alone, rtol=1e-5, atol=1e-5)


def test_a_minibatch_without_sequences_has_no_frames():
    before = fl.Schema({"x": MONO})
    values = {"x": fl.Value.empty(MONO, ragged=True)}
    done = audio.LogMel("x", mels=12).run_all(before, values, None)
    assert done.values["x"].rows.shape == (0, 12)
    assert audio.LogMel("x", mels=12).schema(before)["x"] == fl.Stream(12, "float32")


def test_silence_has_the_floor():
    (got,) = run(audio.LogMel("x", floor=1e-5), MONO, [np.zeros(500, np.float32)]).values["x"].sequences()
    np.testing.assert_allclose(got, np.log(1e-5), rtol=1e-6)


def test_it_can_be_pickled():
    sounds = [tone(500)]
    transform = audio.LogMel("x")
    copied = pickle.loads(pickle.dumps(transform))
    assert repr(copied) == repr(transform)
    np.testing.assert_array_equal(
        run(copied, MONO, sounds).values["x"].rows, run(transform, MONO, sounds).values["x"].rows
    )


def test_tensors_stay_on_a_device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs torch with CUDA")
    sounds = [tone(n) for n in (700, 16000, 3)]
    on_device = run(audio.LogMel("x", device="cuda"), MONO, sounds).values["x"]
    here = run(audio.LogMel("x"), MONO, sounds).values["x"]
    assert on_device.torch().device.type == "cuda"
    np.testing.assert_allclose(on_device.torch().cpu(), here.torch(), rtol=1e-3, atol=1e-3)
    assert on_device.torch(layout="packed").shape == here.rows.shape


@pytest.mark.parametrize(
    "options", [{"scale": "bark"}, {"floor": 0}, {"window": 401}, {"hop": 0}, {"mels": 0}, {"rate": 0}]
)
def test_bad_arguments(options):
    with pytest.raises(ValueError, match="expected"):
        audio.LogMel("x", **options)


@pytest.mark.parametrize("stream", [fl.Stream(2, "float32"), fl.Stream((), "float64"), fl.Stream(dtype="bytes")])
def test_other_streams_are_refused(stream):
    with pytest.raises(fl.SchemaError, match=r"for audio\.LogMel"):
        audio.LogMel("x").schema(fl.Schema({"x": stream}))
