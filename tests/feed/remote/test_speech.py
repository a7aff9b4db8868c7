"""Manifests of speech in a store, and the recordings beside them."""

from __future__ import annotations

import io
import json
import pickle
import tarfile

import numpy as np
import pytest

import feedline as fl
from tests.feed.remote.conftest import delivered

COUNT = 12


def put_archives(store, lhotse):
    """Put two manifests, and two archives of recordings."""
    rows = []
    for k in range(2):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for i in range(6 * k, 6 * k + 6):
                member = tarfile.TarInfo(f"u{i}.flac")
                member.size = 20000 + i
                archive.addfile(member, io.BytesIO(bytes([i]) * member.size))
        store.put(f"b/a/{'recording.' if lhotse else 'audio_'}{k}.tar", file.getvalue())
        if lhotse:
            source = {"type": "shar", "channels": [0], "source": ""}
            recording = {"id": "r", "sources": [source], "duration": 1.0}
            cuts = [
                {"id": f"u{i}", "start": 0, "duration": 1.0, "recording": recording} for i in range(6 * k, 6 * k + 6)
            ]
            store.put(f"b/a/cuts.{k}.jsonl", "".join(json.dumps(cut) + "\n" for cut in cuts).encode())
        else:
            rows += [{"audio_filepath": f"u{i}.flac", "duration": 1.0, "shard_id": k} for i in range(6 * k, 6 * k + 6)]
    if not lhotse:
        store.put("b/a/tarred_audio_manifest.json", "".join(json.dumps(row) + "\n" for row in rows).encode())


@pytest.mark.parametrize("lhotse", [False, True])
def test_archives(store, opened, lhotse):
    put_archives(store, lhotse)
    corpus = opened("a")
    assert corpus.lengths(np.arange(COUNT)).tolist() == [16000] * COUNT
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1) as source:
        minibatches = list(source.minibatches(16000 * 5))
    for minibatch in minibatches:
        for i, audio in zip(minibatch.ids.tolist(), minibatch["audio"].tolist(), strict=True):
            assert audio == bytes([i]) * (20000 + i)
    again = pickle.loads(pickle.dumps(opened("a")))
    assert delivered(again) == delivered(opened("a"))
    again.close()


@pytest.mark.frameworks("soundfile", "soxr")
def test_files_that_a_manifest_names(store, opened, tmp_path):
    import soundfile

    from feedline import audio

    rng, sounds, rows = np.random.default_rng(0), [], []
    for i in range(COUNT):
        sounds.append(rng.integers(-(2**15), 2**15, 16000, np.int16))
        file = io.BytesIO()
        soundfile.write(file, sounds[i], 16000, format="FLAC")
        store.put(f"b/a/wavs/{i}.flac", file.getvalue())
        rows.append({"audio_filepath": f"wavs/{i}.flac", "duration": 0.5, "offset": 0.25})
    rows[3]["audio_filepath"] = "wavs/missing.flac"
    store.put("b/a/train.json", "".join(json.dumps(row) + "\n" for row in rows).encode())
    corpus = opened("a/train.json")
    options = {"on_error": fl.Quarantine(tmp_path / "bad.jsonl"), "transforms": [audio.Decode("audio")]}
    with fl.MinibatchSource(corpus, seed=1, max_sweeps=1, **options) as source:
        (minibatch,) = source.minibatches(1 << 20)
    assert sorted(minibatch.ids.tolist()) == [i for i in range(COUNT) if i != 3]
    for i, samples in zip(minibatch.ids.tolist(), minibatch["audio"].sequences(), strict=True):
        np.testing.assert_array_equal(samples, (sounds[i][4000:12000] / 2**15).astype(np.float32))


@pytest.mark.frameworks("soundfile", "soxr")
def test_later_segments_of_a_recording_whose_beginning_is_here(store, opened):
    """What was not fetched is not in the file of an object, where native code would read zeros."""
    import soundfile

    from feedline import audio

    sound, file = np.random.default_rng(0).integers(-(2**15), 2**15, 16000 * 90, np.int16), io.BytesIO()
    soundfile.write(file, sound, 16000, format="WAV", subtype="PCM_16")
    store.put("b/a/long.wav", file.getvalue())
    places = [0.0, 80.0, 0.5, 40.25]
    rows = [{"audio_filepath": "long.wav", "duration": 0.25, "offset": place} for place in places]
    store.put("b/a/train.json", "".join(json.dumps(row) + "\n" for row in rows).encode())
    with fl.MinibatchSource(
        opened("a/train.json"), shuffle=False, max_sweeps=1, transforms=[audio.Decode("audio")]
    ) as source:
        segments = [s for minibatch in source.minibatches(1) for s in minibatch["audio"].sequences()]
    for place, samples in zip(places, segments, strict=True):
        begin = int(16000 * place)
        np.testing.assert_array_equal(samples, (sound[begin : begin + 4000] / 2**15).astype(np.float32))
