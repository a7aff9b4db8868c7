"""`audio.Decode`: the samples of the libraries, segments, damage, threads."""

import io
import os
import random
import threading

import numpy as np
import pytest

import feedline as fl
from feedline import audio
from tests.audio.recordings import RATE, encoded, expected, noise, run

pytestmark = pytest.mark.frameworks("soundfile", "soxr")

#: libmpg123 rounds the last bit by where its buffers are.
LAST_BIT = {"MP3": 1e-7}
BYTES, TEXT = fl.Stream(dtype="bytes"), fl.Stream(dtype="str")


def decoded(samples, stream=BYTES, rate=RATE, *arguments, **options):
    done = run(audio.Decode("x", rate, *arguments, **options), stream, samples)
    assert done.errors == {}
    return done.values["x"].sequences()


def error_of(sample, stream=BYTES, **options):
    done = run(audio.Decode("x", **options), stream, [sample, sample])
    assert sorted(done.errors) == [0, 1]
    return done.errors[1]


@pytest.fixture
def flac(tmp_path):
    path = tmp_path / "talk#1 100%.flac"
    path.write_bytes(encoded(noise(3 * RATE)))
    return path


def address(path, *times):
    text = str(path).replace("%", "%25").replace("#", "%23")
    return text + (f"#t={','.join(map(repr, times))}" if times else "")


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "CAF"])
def test_samples_are_those_of_soundfile(form):
    recordings = [encoded(noise(n), form=form) for n in (1, 5000, 16001)]
    for got, data in zip(decoded(recordings), recordings, strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected(data), rtol=0, atol=LAST_BIT.get(form, 0))


def test_channels_are_averaged_or_kept():
    stereo, mono = encoded(noise(900, 2), form="WAV"), encoded(noise(400), form="WAV")
    both = expected(stereo)
    np.testing.assert_array_equal(decoded([stereo])[0], both.mean(axis=1))
    np.testing.assert_array_equal(decoded([stereo], BYTES, RATE, False)[0], both)
    np.testing.assert_array_equal(decoded([mono], BYTES, RATE, False, channels=1)[0], expected(mono)[:, None])
    assert "expected 2 channels, got 1" in str(error_of(mono, mono=False))


@pytest.mark.parametrize(("rate", "to"), [(8000, 16000), (44100, 16000), (16000, 22050)])
def test_other_rates_are_resampled_by_soxr(rate, to):
    import soxr

    data = encoded(noise(5001, 2), rate, "WAV")
    got = decoded([data], rate=to)[0]
    np.testing.assert_array_equal(got, soxr.resample(expected(data).mean(axis=1), rate, to))
    assert len(got) == pytest.approx(5001 * to / rate, abs=1)
    resampled = run(audio.Resample("x", to, original_rate=rate), fl.Stream(2, "float32"), [expected(data)]).values["x"]
    np.testing.assert_allclose(resampled.sequences()[0].mean(axis=1), got, atol=1e-6)


def test_addresses_name_files_and_segments(flac):
    whole = expected(flac.read_bytes())
    texts = [address(flac), address(flac, 0.0, 1.0), address(flac, 1.50003, 2.25), address(flac, 2.5, 3.0)]
    got = decoded(texts, TEXT)
    bounds = [(0, 48000), (0, 16000), (24000, 24000 + 12000), (40000, 48000)]
    for sound, (begin, end) in zip(got, bounds, strict=True):
        np.testing.assert_array_equal(sound, whole[begin:end])


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_segment_has_the_samples_of_the_whole(tmp_path, form):
    path = tmp_path / "long"
    path.write_bytes(encoded(noise(60 * RATE), form=form))
    whole = expected(path.read_bytes())
    for begin in (0.0, 0.25, 17.3125, 58.75):
        (got,) = decoded([address(path, begin, begin + 1.25)], TEXT)
        start = int(begin * RATE)
        np.testing.assert_allclose(got, whole[start : start + 20000], rtol=0, atol=LAST_BIT.get(form, 0))


@pytest.fixture(scope="module")
def quiet_mp3():
    """A recording of 20 seconds in an MP3 of few bits, whose frames use the data of frames before them."""
    av = pytest.importorskip("av")
    rate, rng = 44100, np.random.default_rng(4)
    times = np.arange(20 * rate) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(times)) * times)
    sound = (tone + 0.2 * rng.standard_normal(len(times)) * (np.sin(3 * times) > 0.5)).astype(np.float32)
    file = io.BytesIO()
    with av.open(file, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=rate, layout="mono")
        stream.bit_rate, stream.codec_context.format = 32000, "fltp"
        for at in range(0, len(sound), 1152):
            frame = av.AudioFrame.from_ndarray(sound[None, at : at + 1152], format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, at
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.frameworks("av")
def test_a_segment_of_an_mp3_of_few_bits_has_the_samples_of_the_whole(tmp_path, quiet_mp3):
    path = tmp_path / "x.mp3"
    path.write_bytes(quiet_mp3)
    whole, begins = expected(quiet_mp3), (0.0, 0.125, 0.5, 3.25, 7.0, 11.125, 18.5)
    segments = decoded([address(path, begin, begin + 1.0) for begin in begins], TEXT, rate=44100)
    for begin, segment in zip(begins, segments, strict=True):
        start = int(np.floor(begin * 44100 + 0.5))
        np.testing.assert_allclose(segment, whole[start : start + 44100], rtol=0, atol=1e-4)


@pytest.mark.frameworks("av")
def test_an_mp3_is_the_same_in_blocks(monkeypatch, quiet_mp3):
    monkeypatch.setattr("feedline.audio.sound_files._BLOCK_SAMPLES", 100_000)
    (sound,) = decoded([quiet_mp3], rate=44100)
    np.testing.assert_allclose(sound, expected(quiet_mp3), rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_a_recording_is_the_same_in_blocks(monkeypatch, tmp_path, form):
    data = encoded(noise(50_000, 2), form=form)
    path = tmp_path / "x"
    path.write_bytes(data)
    monkeypatch.setattr("feedline.audio.sound_files._BLOCK_SAMPLES", 9000)
    whole, segment = decoded([str(path), address(path, 0.5, 2.0)], TEXT, RATE, False)
    np.testing.assert_array_equal(whole, expected(data))
    np.testing.assert_array_equal(segment, whole[8000:32000])


def test_halves_of_samples_round_up_as_in_lhotse(tmp_path):
    path = tmp_path / "x.wav"
    path.write_bytes(encoded(noise(100), 10, "WAV"))
    whole = expected(path.read_bytes())
    got = decoded([address(path, 0.25, 1.1), address(path, 0.15, 0.4)], TEXT, rate=10)
    np.testing.assert_array_equal(got[0], whole[3:12])  # 2.5 and 8.5 samples
    np.testing.assert_array_equal(got[1], whole[2:5])  # 1.5 and 2.5


def test_a_segment_may_end_a_little_after_its_recording(flac):
    assert len(decoded([address(flac, 2.0, 3.02)], TEXT)[0]) == RATE
    error = error_of(address(flac, 2.0, 3.03), TEXT)
    assert error.path == str(flac)
    assert "up to 3.03 s, got one that ends at 3.000 s" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#t=1,2", "expected an address"),
        ("{flac}#t=2,1", "expected an address"),
        ("{flac}#t=1e400,2e400", "expected an address"),
        ("{flac}#t=1e300,2e300", "up to 2e\\+300 s"),
        ("{flac}#t=1.5", "a segment with an end"),
        ("{flac}.none", "No such file"),
        ("{folder}", "a folder"),
        ("{folder}/\0", "the path of a recording"),
        ("{fifo}", "a FIFO"),
    ],
)
def test_bad_addresses_cost_their_sequence(flac, tmp_path, text, message):
    os.mkfifo(tmp_path / "fifo")
    places = {"flac": address(flac), "folder": str(tmp_path), "fifo": str(tmp_path / "fifo")}
    with pytest.raises(fl.DataError, match=message):
        raise error_of(text.format(**places), TEXT)


def cut(data):
    return data[: len(data) * 2 // 3]


def broken(data):
    middle = len(data) // 2
    return data[:middle] + b"\xff" * 40 + data[middle + 40 :]


DAMAGE = {"WAV": [cut], "FLAC": [cut, broken], "AIFF": [cut], "CAF": [cut], "W64": [cut], "MP3": [cut, broken]}
DAMAGE["OGG"] = [broken]


@pytest.mark.parametrize(("form", "damage"), [(form, damage) for form, kinds in DAMAGE.items() for damage in kinds])
def test_damage_is_found(form, damage):
    error = error_of(damage(encoded(noise(3 * RATE), form=form)))
    assert str(error).startswith("expected")
    assert "skip such recordings" in str(error)


def test_a_segment_with_a_hole_is_damaged(tmp_path):
    path = tmp_path / "x.ogg"
    path.write_bytes(broken(encoded(noise(9 * RATE), form="OGG")))
    done = run(audio.Decode("x"), TEXT, [address(path, 0.0, 1.0), address(path, 0.5, 6.0)])
    assert list(done.errors) == [1]
    assert "without holes" in str(done.errors[1])


def test_a_wav_file_of_a_pipe_has_no_size():
    data = bytearray(encoded(noise(500), form="WAV"))
    data[4:8] = data[40:44] = b"\xff" * 4
    np.testing.assert_array_equal(decoded([bytes(data)])[0], expected(encoded(noise(500), form="WAV")))


def test_long_recordings_are_refused_before_they_are_decoded():
    assert "at most 2 s, got one of 3.000 s" in str(error_of(encoded(noise(3 * RATE)), max_seconds=2))
    header = bytearray(encoded(noise(RATE)))
    header[21], header[22:26] = header[21] | 0x0F, b"\xff" * 4  # 2**36 - 1 samples
    assert "expected" in str(error_of(bytes(header)))
    assert "expected" in str(error_of(bytes(header), max_seconds=1e9))


@pytest.mark.parametrize("sample", [b"", b"RIFF", b"fLaC" + bytes(99), bytes(range(256)) * 9, b"ID3" + b"\xff" * 999])
def test_other_bytes_cost_their_sequence(sample):
    assert str(error_of(sample)).startswith("expected")


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "CAF", "W64"])
def test_mutated_recordings_are_read_or_refused(form):
    data, chooser = encoded(noise(2000), form=form), random.Random(3)
    mutated = []
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(chooser.choice((1, 3, 30))):
            at = chooser.randrange(min(len(changed), chooser.choice((80, len(changed)))))
            kind = chooser.randrange(3)
            if kind == 0:
                changed[at] = chooser.randrange(256)
            elif kind == 1:
                changed[at : at + 4] = chooser.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            else:
                del changed[at : at + chooser.randrange(1, 50)]
        mutated.append(bytes(changed))
    done = run(audio.Decode("x", max_seconds=10), BYTES, [*mutated, data])
    assert len(mutated) not in done.errors
    assert len(done.errors) > 5
    assert max(done.values["x"].lengths) <= 10 * RATE


def test_a_rate_that_nobody_has_is_refused():
    assert "within a factor of 1000" in str(error_of(encoded(noise(50), 5, "WAV")))


def test_only_the_damaged_recordings_are_lost():
    good = [encoded(noise(n)) for n in (300, 400, 500)]
    done = run(audio.Decode("x"), BYTES, [good[0], cut(good[1]), good[1], b"", good[2]])
    assert sorted(done.errors) == [1, 3]
    sequences = done.values["x"].sequences()
    for i, data in ((0, good[0]), (2, good[1]), (4, good[2])):
        np.testing.assert_array_equal(sequences[i], expected(data))


def test_a_sequence_has_one_recording():
    data = encoded(noise(100))
    done = run(audio.Decode("x"), BYTES, [[data], [], [data, data]])
    assert sorted(done.errors) == [1, 2]
    assert "got 2" in str(done.errors[2])


def test_the_stream_is_declared():
    before = fl.data.Schema({"x": fl.Stream(dtype="str", defines_size=True), "y": fl.Stream((), "float32")})
    after = audio.Decode("x", mono=False, channels=6).schema(before)
    assert after["x"] == fl.Stream(6, "float32", defines_size=True)
    assert after["y"] == before["y"]
    for name, message in (("z", "one of the streams x, y"), ("y", "encoded recordings")):
        with pytest.raises(fl.SchemaError, match=message):
            audio.Decode(name).schema(before)


@pytest.mark.parametrize("options", [{"rate": 0}, {"threads": 0}, {"max_seconds": 0}, {"channels": 0, "mono": False}])
def test_bad_arguments(options):
    with pytest.raises(ValueError, match="expected"):
        audio.Decode("x", **options)


@pytest.mark.parametrize("threads", [1, 3])
def test_it_decodes_ahead_and_skips_damage(tmp_path, threads, leaves_nothing):
    recordings = [encoded(noise(200 + n, seed=n)) for n in range(40)]
    whole = [expected(data) for data in recordings]
    recordings[7] = cut(recordings[7])
    corpus = fl.ArrayDeserializer(x=recordings, number=np.arange(40))
    decode = audio.Decode("x", threads=threads)
    listed = tmp_path / "bad.jsonl"
    options = {"transforms": [decode], "max_sweeps": 2, "on_error": fl.Quarantine(listed)}
    with fl.MinibatchSource(corpus, seed=3, **options) as source:
        seen = []
        for minibatch in source.minibatches(6):
            numbers = minibatch["number"].rows.tolist()
            seen += numbers
            for number, samples in zip(numbers, minibatch["x"].sequences(), strict=True):
                np.testing.assert_array_equal(samples, whole[number])
    assert sorted(seen) == sorted([n for n in range(40) if n != 7] * 2)
    with fl.MinibatchSource(corpus, seed=3, transforms=[decode]) as source, pytest.raises(fl.DataError, match="whole"):
        list(source.minibatches(40))


def test_dropped_work_ends(monkeypatch):
    entered, may_go, began = threading.Event(), threading.Event(), []

    def slow(*arguments):
        began.append(arguments)
        entered.set()
        may_go.wait(60)
        raise fl.DataError("expected")

    monkeypatch.setattr("feedline.audio.decode_audio.read_recording", slow)
    before = fl.data.Schema({"x": BYTES})
    value = fl.Value.from_bytes([b"x"] * 9, "bytes")
    begun = audio.Decode("x", threads=1).start(before, {"x": value}, None)
    entered.wait(60)
    del begun
    may_go.set()
    while any(thread.name == "feedline-sound" for thread in threading.enumerate()):
        pass
    assert len(began) == 1


def test_a_failure_is_raised(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("planted")

    monkeypatch.setattr("feedline.audio.decode_audio.read_recording", fail)
    with pytest.raises(RuntimeError, match="planted"):
        run(audio.Decode("x"), BYTES, [b"x"] * 9)


def test_the_loader_gives_samples():
    recordings = [encoded(noise(100 + n)) for n in range(6)]
    loader = fl.DataLoader(fl.ArrayDeserializer(x=recordings), batch_size=6, transforms=[audio.Decode("x")])
    (batch,) = loader
    assert batch["x"].shape == (6, 105)
    np.testing.assert_array_equal(batch["x"][2, :102].numpy(), expected(recordings[2]))
