"""`audio.Decode` of formats that libsndfile does not know, by torchcodec."""

import io

import numpy as np
import pytest

import feedline as fl
from feedline import audio
from tests.audio.recordings import RATE, noise, run

pytestmark = pytest.mark.frameworks("soundfile", "soxr", "torchcodec", "av")

BYTES, TEXT = fl.Stream(dtype="bytes"), fl.Stream(dtype="str")


@pytest.fixture(scope="module")
def aac():
    """A recording of two seconds as AAC in MP4."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        sound = noise(2 * RATE)
        for at in range(0, len(sound), 1024):
            frame = av.AudioFrame.from_ndarray(sound[None, at : at + 1024], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = RATE, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def by_torchcodec(data, *span):
    from torchcodec.decoders import AudioDecoder

    decoder = AudioDecoder(data)
    samples = decoder.get_samples_played_in_range(*span) if span else decoder.get_all_samples()
    return samples.data.numpy()[0]


def test_samples_are_those_of_torchcodec(aac, tmp_path):
    path = tmp_path / "x.m4a"
    path.write_bytes(aac)
    (whole,) = run(audio.Decode("x"), BYTES, [aac]).values["x"].sequences()
    np.testing.assert_array_equal(whole, by_torchcodec(aac))
    done = run(audio.Decode("x"), TEXT, [str(path), f"{path}#t=0.5,1.25"])
    np.testing.assert_array_equal(done.values["x"].sequences()[0], whole)
    np.testing.assert_array_equal(done.values["x"].sequences()[1], by_torchcodec(aac, 0.5, 1.25))


def test_damage_costs_its_sequence(aac, tmp_path):
    path = tmp_path / "x.m4a"
    path.write_bytes(aac)
    done = run(audio.Decode("x"), BYTES, [aac[:400], aac])
    assert list(done.errors) == [0]
    assert ".cpp" not in str(done.errors[0])
    assert "expected a whole recording: " in str(done.errors[0])
    done = run(audio.Decode("x"), TEXT, [f"{path}#t=1.5,2.5", f"{path}#t=5.0,6.0", f"{path}#t=0.0,1.0"])
    assert sorted(done.errors) == [0, 1]
    assert done.errors[0].path == str(path)
    done = run(audio.Decode("x", max_seconds=1), BYTES, [aac])
    assert "at most 1 s" in str(done.errors[0])


def test_without_torchcodec_it_is_named(monkeypatch, aac):
    monkeypatch.setattr("feedline.audio.sound_files._torchcodec", lambda: ImportError("planted"))
    done = run(audio.Decode("x"), BYTES, [aac])
    assert "need torchcodec: pip install" in str(done.errors[0])
