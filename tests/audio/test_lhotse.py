"""Cuts and Shar as Lhotse itself writes and reads them."""

import numpy as np
import pytest

import feedline as fl
from feedline import audio
from tests.audio.recordings import encoded, noise

pytestmark = [
    pytest.mark.frameworks("soundfile", "soxr", "lhotse"),
    pytest.mark.filterwarnings("ignore"),  # Lhotse's own
]


@pytest.fixture
def cuts(tmp_path):
    lhotse = pytest.importorskip("lhotse")
    made, rng = [], np.random.default_rng(2)
    for k in range(3):
        path = tmp_path / f"talk.{k}.flac"
        path.write_bytes(encoded(noise(16000 * 6, seed=k), form="FLAC"))
        recording = lhotse.Recording.from_file(path)
        for i in range(6):
            start, duration = rng.uniform(0, 3), rng.uniform(0.1, 2.9)
            said = lhotse.SupervisionSegment(f"s{k}-{i}", recording.id, 0, duration / 2, text=f"word {i}")
            made.append(
                lhotse.MonoCut(f"cut.{k}-{i}", start, duration, 0, recording=recording, supervisions=[said] * (i % 3))
            )
    return lhotse.CutSet.from_cuts(made)


def delivered(path):
    """Return samples, texts and ids of all cuts."""
    minibatch = decoded(fl.open_corpus(path), 16000)
    assert minibatch["audio"].lengths.tolist() == source_lengths(path)
    return minibatch["audio"].sequences(), minibatch["text"].tolist(), minibatch["id"].tolist()


def decoded(corpus, rate, **options):
    """Return all cuts as a minibatch."""
    decode = audio.Decode("audio", rate)
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=[decode], **options) as source:
        (minibatch,) = source.minibatches(1 << 30)
    return minibatch


def source_lengths(path):
    """Return the lengths that are known before decoding."""
    corpus = fl.open_corpus(path)
    return corpus.lengths(np.arange(sum(info.sequences for info in corpus.chunks()))).tolist()


def check(path, cuts):
    samples, texts, ids = delivered(path)
    assert ids == [cut.id for cut in cuts]
    assert texts == [" ".join(said.text for said in cut.supervisions) for cut in cuts]
    for got, cut in zip(samples, cuts, strict=True):
        np.testing.assert_array_equal(got, cut.load_audio()[0])
        assert len(got) == cut.num_samples


@pytest.mark.parametrize("name", ["cuts.jsonl", "cuts.jsonl.gz"])
def test_cuts(cuts, tmp_path, name):
    cuts.to_file(tmp_path / name)
    check(tmp_path / name, cuts)


def test_shar(cuts, tmp_path):
    import lhotse

    folder = tmp_path / "shar"
    folder.mkdir()
    cuts.to_shar(folder, fields={"recording": "flac"}, shard_size=7)
    check(folder, list(lhotse.CutSet.from_shar(in_dir=folder)))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Speed", lambda cuts: cuts.perturb_speed(1.1)),
        ("Volume", lambda cuts: cuts.perturb_volume(0.5)),
        ("ReverbWithImpulseResponse", lambda cuts: cuts.reverb_rir()),
        ("Tempo", lambda cuts: cuts.perturb_tempo(0.9)),
        ("Clipping", lambda cuts: cuts.map(lambda cut: cut.clip_amplitude(gain_db=6.0))),
        ("one Resample, to rate=16000", lambda cuts: cuts.resample(8000)),
        ("MixedCut", lambda cuts: cuts.pad(duration=9.0)),
    ],
)
def test_cuts_that_lhotse_would_transform_are_unreadable(cuts, tmp_path, name, change):
    path = tmp_path / "cuts.jsonl"
    changed = change(cuts)
    changed.to_file(path)
    errors = fl.open_corpus(path).read(0).errors
    assert list(errors) == list(range(len(cuts)))
    assert name in str(errors[3])
    assert errors[3].line == 4


def test_shar_has_transforms_applied(cuts, tmp_path):
    import lhotse

    folder = tmp_path / "shar"
    folder.mkdir()
    cuts.perturb_volume(0.5).to_shar(folder, fields={"recording": "flac"}, shard_size=7)
    check(folder, list(lhotse.CutSet.from_shar(in_dir=folder)))


def test_cuts_resampled_to_the_rate_of_lengths(cuts, tmp_path):
    path = tmp_path / "cuts.jsonl"
    cuts.resample(8000).to_file(path)
    minibatch = decoded(fl.LhotseDeserializer(path, rate=8000), 8000)
    assert minibatch.ids.tolist() == list(range(len(cuts)))
    cuts.to_file(tmp_path / "plain.jsonl")
    plain = decoded(fl.LhotseDeserializer(tmp_path / "plain.jsonl", rate=8000), 8000)
    for got, same in zip(minibatch["audio"].sequences(), plain["audio"].sequences(), strict=True):
        np.testing.assert_array_equal(got, same)
