"""Lhotse's cuts, Lhotse Shar and NeMo's manifests: values, lengths before reading, damage of single rows."""

import gzip
import io
import json
import os
import pickle
import random
import tarfile

import numpy as np
import pytest

import feedline as fl
from feedline.testing import assert_resumes

N = 60


def cut(i, source=None, **changes):
    """Return a cut as Lhotse writes it."""
    source = {"type": "file", "channels": [0], "source": f"/data/talk.{i // 10}.flac"} if source is None else source
    said = {"id": f"s{i}", "recording_id": f"r{i}", "start": 0, "duration": 1.0, "channel": 0, "text": f"said {i}"}
    recording = {"id": f"r{i}", "sources": [source], "sampling_rate": 16000, "num_samples": 160000, "duration": 10.0}
    return {
        "id": f"utt.{i}-0",
        "start": i / 7,
        "duration": 0.5 + i / 100,
        "channel": 0,
        "supervisions": [said],
        "recording": {**recording, "channel_ids": [0]},
        "type": "MonoCut",
    } | changes


def shar_cut(i, **changes):
    source = {"type": "shar", "channels": [0], "source": ""}
    made = cut(i, source, start=0)
    return made | {"recording": made["recording"] | {"duration": made["duration"]}} | changes


def line(i, **changes):
    """Return a row of NeMo's manifests."""
    return {"audio_filepath": f"talk.{i // 10}.wav", "duration": 0.5 + i / 100, "text": f"said {i}"} | changes


def write_rows(path, rows):
    text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def content(i):
    return b"fLaC" + bytes([i]) * (50 + i)


def write_archive(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def cuts(tmp_path):
    return write_rows(tmp_path / "cuts.jsonl.gz", [cut(i) for i in range(N)])


@pytest.fixture
def shar(tmp_path):
    folder = tmp_path / "shar"
    folder.mkdir()
    for k in range(3):
        which = range(20 * k, 20 * k + 20)
        write_rows(folder / f"cuts.00000{k}.jsonl.gz", [shar_cut(i) for i in which])
        pairs = [[(f"utt.{i}-0.flac", content(i)), (f"utt.{i}-0.json", b"{}")] for i in which]
        write_archive(folder / f"recording.00000{k}.tar", [member for pair in pairs for member in pair])
    return folder


@pytest.fixture
def nemo(tmp_path):
    return write_rows(tmp_path / "train.json", [line(i, offset=i / 7) if i % 2 else line(i) for i in range(N)])


@pytest.fixture
def tarred(tmp_path):
    folder = tmp_path / "tarred"
    folder.mkdir()
    rows = [line(i, audio_filepath=f"a_{i}.wav", shard_id=i // 20) for i in range(N)]
    write_rows(folder / "tarred_audio_manifest.json", rows)
    for k in range(3):
        write_archive(folder / f"audio_{k}.tar", [(f"a_{i}.wav", content(i)) for i in range(20 * k, 20 * k + 20)])
    return folder


@pytest.fixture(params=["cuts", "shar", "nemo", "tarred"])
def path(request):
    return request.getfixturevalue(request.param)


def rows_of(corpus):
    """Return all values by stream, with None for unreadable sequences, and the errors by ordinal."""
    chunks = [corpus.read(number) for number in range(len(corpus.chunks()))]
    assert [chunk.num_sequences for chunk in chunks] == [info.sequences for info in corpus.chunks()]
    values = {name: [] for name in corpus.schema}
    errors = {}
    for chunk in chunks:
        first = len(values["id"]) if "id" in values else 0
        errors |= {first + i: error for i, error in chunk.errors.items()}
        for name, column in values.items():
            column += [None if i in chunk.errors else row for i, row in enumerate(chunk[name].tolist())]
    return values, errors


def test_cuts_are_addresses_of_segments(cuts):
    corpus = fl.open_corpus(cuts)
    assert isinstance(corpus, fl.LhotseDeserializer)
    values, errors = rows_of(corpus)
    assert errors == {}
    made = [cut(i) for i in range(N)]
    assert values["audio"] == [
        f"/data/talk.{i // 10}.flac#t={c['start']!r},{c['start'] + c['duration']!r}".replace("t=0,", "t=0.0,")
        for i, c in enumerate(made)
    ]
    assert values["text"] == [f"said {i}" for i in range(N)]
    assert values["duration"] == [c["duration"] for c in made]
    assert values["id"] == [c["id"] for c in made]


def test_shar_has_the_recordings(shar):
    for named in (shar, str(shar / "cuts.*.jsonl.gz"), sorted(shar.glob("cuts.*"))):
        values, errors = rows_of(fl.open_corpus(named))
        assert errors == {}
        assert values["audio"] == [content(i) for i in range(N)]
        assert values["id"] == [f"utt.{i}-0" for i in range(N)]


def test_lines_of_nemo_are_files_and_segments(nemo, tmp_path):
    values, errors = rows_of(fl.open_corpus(nemo))
    assert errors == {}
    for i, address in enumerate(values["audio"]):
        begin = i / 7 if i % 2 else 0.0
        assert address == f"{tmp_path}/talk.{i // 10}.wav#t={begin!r},{begin + line(i)['duration']!r}"
    assert values["text"] == [f"said {i}" for i in range(N)]
    elsewhere, _ = rows_of(fl.NeMoDeserializer(nemo, root="/corpora"))
    assert elsewhere["audio"][0] == "/corpora/talk.0.wav#t=0.0,0.5"


def test_a_line_without_an_offset_begins_with_its_file(tmp_path):
    rows = [line(0, **changes) for changes in ({"offset": 0}, {"offset": None}, {})]
    values, errors = rows_of(fl.open_corpus(write_rows(tmp_path / "train.json", rows)))
    assert errors == {}
    assert values["audio"] == [f"{tmp_path}/talk.0.wav#t=0.0,0.5"] * 3


@pytest.mark.frameworks("soundfile", "soxr")
def test_a_line_without_an_offset_has_as_many_samples_as_its_length(tmp_path):
    import soundfile

    from feedline import audio

    sound = np.random.default_rng(5).integers(-(2**15), 2**15, 16000 * 3 + 7, np.int16)
    soundfile.write(tmp_path / "talk.0.wav", sound, 16000)
    whole = len(sound) / 16000
    rows = [line(0, duration=seconds) for seconds in (1.25, whole, 3.0)]
    rows += [line(0, duration=round(whole, 3)), line(0, duration=whole + 0.02), line(0, duration=whole + 0.1)]
    corpus = fl.open_corpus(write_rows(tmp_path / "train.json", rows))
    options = {"shuffle": False, "max_sweeps": 1, "on_error": "skip", "transforms": [audio.Decode("audio")]}
    with fl.MinibatchSource(corpus, **options) as source:
        (minibatch,) = source.minibatches(1 << 30)
    assert minibatch.ids.tolist() == [0, 1, 2, 3, 4]  # the last line ends 0.1 s after its file
    assert minibatch["audio"].lengths.tolist() == [20000, len(sound), 48000, 48000, len(sound)]
    assert minibatch["audio"].lengths.tolist()[:4] == corpus.lengths(np.arange(4)).tolist()
    for samples in minibatch["audio"].sequences():
        np.testing.assert_array_equal(samples, (sound[: len(samples)] / 2**15).astype(np.float32))


def test_a_tarred_dataset_has_the_recordings(tarred):
    for named in (tarred, tarred / "tarred_audio_manifest.json"):
        corpus = fl.open_corpus(named)
        assert isinstance(corpus, fl.NeMoDeserializer)
        values, errors = rows_of(corpus)
        assert errors == {}
        assert values["audio"] == [content(i) for i in range(N)]


def resampled(i, *transforms, rate=16000, **changes):
    """Return a cut whose recording Lhotse would transform."""
    made = cut(i, **changes)
    return made | {"recording": made["recording"] | {"sampling_rate": rate, "transforms": list(transforms)}}


def to_rate(rate, source=44100):
    return {"name": "Resample", "kwargs": {"source_sampling_rate": source, "target_sampling_rate": rate}}


def test_a_recording_at_the_rate_of_lengths_needs_no_transform(tmp_path):
    rows = [resampled(0, to_rate(16000)), resampled(1), cut(2)]
    rows[2]["recording"]["transforms"] = None
    path = write_rows(tmp_path / "cuts.jsonl", rows)
    values, errors = rows_of(fl.open_corpus(path))
    assert errors == {}
    assert (
        values["audio"] == rows_of(fl.open_corpus(write_rows(tmp_path / "plain.jsonl", map(cut, range(3)))))[0]["audio"]
    )
    _, errors = rows_of(fl.LhotseDeserializer(path, rate=8000))
    assert list(errors) == [0]
    assert "one Resample, to rate=8000" in str(errors[0])


# ---- laws ------------------------------------------------------------------------------------------------------


def test_lengths_are_known_before_reading(path, monkeypatch):
    corpus = fl.open_corpus(path)
    monkeypatch.setattr(type(corpus), "read", None)
    durations = np.array([0.5 + i / 100 for i in range(N)])
    assert corpus.lengths(np.arange(N)).tolist() == np.rint(durations * 16000).tolist()
    assert sum(info.samples for info in corpus.chunks()) == corpus.lengths(np.arange(N)).sum()
    bucketed = fl.Bucketed(corpus, 3, budget=16000 * 5)
    assert len(bucketed.boundaries) == 3
    slow = type(corpus)(path, rate=8000)
    assert slow.lengths(np.array([N - 1])).tolist() == [round((0.5 + (N - 1) / 100) * 8000)]


def test_minibatches_hold_what_their_budget_allows(path):
    corpus = fl.open_corpus(path)
    with fl.MinibatchSource(corpus, seed=2, max_sweeps=1) as source:
        minibatches = list(source.minibatches(16000 * 6))
    for minibatch in minibatches:
        assert minibatch.num_samples <= 16000 * 6
        assert minibatch.num_samples == corpus.lengths(minibatch.ids).sum()
    assert sorted(i for minibatch in minibatches for i in minibatch.ids.tolist()) == list(range(N))


@pytest.mark.parametrize("bucketed", [False, True])
def test_it_resumes(path, bucketed):
    def make_source():
        corpus = fl.open_corpus(path)
        corpus = fl.Bucketed(corpus, 2, budget=16000 * 5) if bucketed else corpus
        return fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), max_sweeps=2)

    assert_resumes(make_source, [8000, 48000, 80000], minibatches=6)


def test_it_can_be_pickled_and_selected_from(path):
    corpus = fl.open_corpus(path)
    copied = pickle.loads(pickle.dumps(corpus))
    assert copied.digest() == corpus.digest()
    values, _ = rows_of(corpus)
    selected = copied.select(np.array([41, 3, 3, 59]))
    for name, column in values.items():
        assert selected[name].tolist() == [column[i] for i in (41, 3, 3, 59)]


def test_the_digest_identifies_the_content(path):
    corpus = fl.open_corpus(path)
    assert fl.open_corpus(path).digest() == corpus.digest()
    assert type(corpus)(path, rate=8000).digest() != corpus.digest()
    if path.is_dir():
        archive = sorted(path.glob("*.tar"))[0]
        archive.write_bytes(archive.read_bytes() + bytes(10240))
        assert fl.open_corpus(path).digest() != corpus.digest()


def test_streams_are_chosen(path):
    corpus = fl.open_corpus(path, streams={"said": fl.Stream(dtype="str", field="text")})
    assert list(corpus.schema) == ["said"]
    assert corpus.read(0)["said"].tolist()[1] == "said 1"
    with pytest.raises(fl.SchemaError, match="one of audio, text, duration, id"):
        fl.open_corpus(path, streams={"label": fl.Stream((), "int64")})
    with pytest.raises(fl.SchemaError, match="for stream `text`"):
        fl.open_corpus(path, streams={"text": fl.Stream((), "int64")})


# ---- damage ----------------------------------------------------------------------------------------------------

FILE = {"type": "file", "channels": [0], "source": "/x.wav"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"id": "x"\n', "expected"),
        (cut(7, id=5), "expected a string"),
        (cut(7, duration=0), "a duration above 0"),
        (cut(7, duration=-1.0), "a duration above 0"),
        (cut(7, duration=1e300), "a duration above 0"),
        (json.dumps(cut(7)).replace('"duration": 0.57', '"duration": 1e999') + "\n", "a duration above 0|number"),
        (cut(7, start=-0.5), "a start from 0"),
        (cut(7, type="MixedCut"), "a MonoCut, got 'MixedCut'"),
        (cut(7, type="PaddingCut"), "a MonoCut, got 'PaddingCut'"),
        (resampled(7, {"name": "Speed", "kwargs": {"factor": 1.1}}), "without transforms, got one with 'Speed'"),
        (resampled(7, to_rate(16000), {"name": "Volume"}), "without transforms, got one with 'Volume'"),
        (resampled(7, to_rate(8000), to_rate(16000)), r"one Resample, to rate=16000, got targets \[8000, 16000\]"),
        (resampled(7, {"name": "Volume"}, to_rate(16000)), "without transforms, got one with 'Volume'"),
        (resampled(7, to_rate(8000), rate=8000), r"one Resample, to rate=16000, got targets \[8000\]"),
        (resampled(7, to_rate(16000), rate=8000), "one Resample"),
        (resampled(7, {"name": "Resample"}), "one Resample"),
        (resampled(7, 5), "without transforms, got one with 5"),
        (cut(7, recording=cut(7)["recording"] | {"transforms": {"name": "Speed"}}), "a list of transforms"),
        ({"id": "m", "tracks": [], "type": "MixedCut"}, "a MonoCut, got 'MixedCut'"),
        (cut(7, recording=None), "with a recording"),
        (cut(7, channel=3), "a source with channel 3"),
        (cut(7, FILE | {"channels": [0, 1]}), "alone, got channels"),
        (cut(7, FILE | {"type": "command"}), "in a file, got one of type 'command'"),
        (cut(7, {"type": "shar", "channels": [0], "source": ""}), "in a file, got one of type 'shar'"),
        (cut(7, FILE | {"source": ""}), "text as `source`"),
        (cut(7, supervisions={}), "a list of supervisions"),
        (cut(7, FILE | {"source": "/x\ud800.wav"}), "without half surrogates"),
        (cut(7, supervisions=[{"text": "\udfff"}]), "without half surrogates"),
        (json.dumps(cut(7)).replace('"said 7"', "[" * 400 + "]" * 400) + "\n", None),
        (cut(7, supervisions=[]), None),
    ],
)
def test_a_bad_cut_costs_itself(tmp_path, row, message):
    rows = [cut(i) for i in range(N)]
    path = write_rows(tmp_path / "cuts.jsonl", [*rows[:7], row, *rows[8:]])
    good, _ = rows_of(fl.open_corpus(write_rows(tmp_path / "good.jsonl", rows)))
    values, errors = rows_of(fl.open_corpus(path))
    assert list(errors) == ([] if message is None else [7])
    if message is not None:
        with pytest.raises(fl.DataError, match=message) as caught:
            raise errors[7]
        assert (caught.value.path, caught.value.line, caught.value.sequence) == (str(path), 8, 7)
        assert fl.validate(path).damaged == 1
    for name, column in values.items():
        assert column[:7] + column[8:] == good[name][:7] + good[name][8:]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (line(7, duration=None), "a duration above 0"),
        ({"audio_filepath": "x.wav"}, "a duration above 0"),
        ({"duration": 1.0, "text": ""}, "the key `audio_filepath`"),
        (line(7, audio_filepath=""), "a path as `audio_filepath`"),
        (line(7, offset=-2), "an offset from 0"),
        (line(7, text=5), "expected a string"),
        ({"audio_filepath": "x.wav", "duration": 2}, None),
    ],
)
def test_a_bad_line_costs_itself(tmp_path, row, message):
    rows = [line(i) for i in range(N)]
    path = write_rows(tmp_path / "train.json", [*rows[:7], row, *rows[8:]])
    values, errors = rows_of(fl.open_corpus(path))
    assert list(errors) == ([] if message is None else [7])
    if message is not None:
        with pytest.raises(fl.DataError, match=message):
            raise errors[7]
    else:
        assert values["text"][7] == ""


def test_many_bad_rows_are_errors_on_demand(tmp_path):
    path = write_rows(tmp_path / "cuts.jsonl", [cut(0), *["{}\n"] * 3000, cut(5, type="X"), cut(1)])
    corpus = fl.open_corpus(path)
    (chunk,) = [corpus.read(number) for number in range(len(corpus.chunks()))]
    assert len(chunk.errors) == 3001
    assert "got 'X'" in str(chunk.errors[3001])
    assert chunk.errors[3000].line == 3001
    assert 3002 not in chunk.errors
    assert corpus.lengths(np.array([0, 1, 3002])).tolist() == [8000, 1, 8160]


def test_damaged_archives_cost_their_recordings(shar, tarred):
    first = shar / "recording.000000.tar"
    kept = first.read_bytes()[: 512 + 512 + 512 + 512 + 512 + 20]  # two members, and the head of a third
    first.write_bytes(kept)
    (shar / "recording.000001.tar").write_bytes(b"no archive" * 1000)
    values, errors = rows_of(fl.open_corpus(shar))
    assert sorted(errors) == list(range(1, 40))
    assert values["audio"][0] == content(0)
    assert "truncated" in str(errors[1]) or "no such member" in str(errors[1])
    assert errors[1].path == str(first)
    assert "a tar archive" in str(errors[20])
    assert values["audio"][40:] == [content(i) for i in range(40, N)]
    (tarred / "audio_1.tar").unlink()
    _, errors = rows_of(fl.open_corpus(tarred))
    assert sorted(errors) == list(range(20, 40))


def test_a_stored_recording_with_a_transform_costs_itself(shar):
    rows = [shar_cut(i) for i in range(20)]
    rows[3]["recording"]["transforms"] = [{"name": "Tempo", "kwargs": {"factor": 0.9}}]
    write_rows(shar / "cuts.000000.jsonl.gz", rows)
    _, errors = rows_of(fl.open_corpus(shar))
    assert list(errors) == [3]
    assert "got one with 'Tempo'" in str(errors[3])


def test_two_members_with_one_name_cost_their_recordings(shar, tarred):
    members = [(f"utt.{i}-0.flac", content(i)) for i in range(20)]
    archive = write_archive(shar / "recording.000000.tar", [*members, ("utt.4-0.wav", b"x"), ("utt.7-0.flac", b"x")])
    values, errors = rows_of(fl.open_corpus(shar))
    assert list(errors) == [4, 7]
    assert "one member `utt.4-0` in the archive, got 'utt.4-0.flac' and 'utt.4-0.wav'" in str(errors[4])
    assert errors[4].path == str(archive)
    assert "a unique name" in errors[4].hint
    assert values["audio"][:4] == [content(i) for i in range(4)]
    members = [(f"a_{i}.wav", content(i)) for i in range(20)]
    write_archive(tarred / "audio_0.tar", [*members, ("a_9.wav", b"x")])
    _, errors = rows_of(fl.open_corpus(tarred))
    assert list(errors) == [9]


def test_members_are_read_by_their_path_before_their_name(tmp_path):
    names = ["a.wav", "x/a.wav", "./y/a.wav", "x/b.wav", "x/c.wav", "y/c.wav"]
    write_archive(tmp_path / "audio_0.tar", [(name, content(i)) for i, name in enumerate(names)])
    asked = ["a.wav", "x/a.wav", "y/a.wav", "./x/a.wav", "/data/b.wav", "b.wav", "x/c.wav", "c.wav", "/data/a.wav"]
    rows = [line(i, audio_filepath=name, shard_id=0) for i, name in enumerate(asked)]
    write_rows(tmp_path / "tarred_audio_manifest.json", rows)
    values, errors = rows_of(fl.open_corpus(tmp_path))
    assert values["audio"] == [*(content(i) for i in (0, 1, 2, 1, 3, 3, 4)), None, None]
    assert list(errors) == [7, 8]
    assert "one member `c.wav` in the archive, got 'x/c.wav' and 'y/c.wav'" in str(errors[7])


@pytest.mark.parametrize("scanned", [False, True])
def test_an_archive_that_was_replaced_is_refused(tarred, scanned):
    corpus = fl.open_corpus(tarred)
    archive = tarred / "audio_1.tar"
    if scanned:
        rows_of(corpus)
    before = archive.stat()
    swapped = [(f"a_{i}.wav", content(39 - i + 20)) for i in range(20, 40)]
    write_archive(tarred / "new.tar", swapped)
    os.truncate(tarred / "new.tar", before.st_size)
    os.utime(tarred / "new.tar", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tarred / "new.tar", archive)
    assert (archive.stat().st_size, archive.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(fl.DataError, match="one that has changed since") as caught:
        rows_of(corpus)
    assert caught.value.path == str(archive)
    assert "open it again" in caught.value.hint
    again = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    with again as source, pytest.raises(fl.DataError, match="changed since"):
        list(source.minibatches(1 << 30))
    _, errors = rows_of(fl.open_corpus(tarred))
    assert errors == {}


def test_an_archive_that_is_written_over_is_refused(shar):
    corpus = fl.open_corpus(shar)
    rows_of(corpus)
    archive = shar / "recording.000002.tar"
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"fLaC", b"FLAC"))
    os.utime(archive, (1, 1))
    corpus.read(0)
    with pytest.raises(fl.DataError, match="changed since"):
        rows_of(corpus)


def test_a_cut_of_a_part_is_no_whole_recording(tmp_path, shar):
    rows = [shar_cut(i) for i in range(20)]
    rows[3]["start"] = 0.1
    rows[4]["recording"]["duration"] = 99.0
    del rows[5]["recording"]["duration"]
    rows[6]["recording"]["duration"] = 10**400
    write_rows(shar / "cuts.000000.jsonl.gz", rows)
    _, errors = rows_of(fl.open_corpus(shar))
    assert sorted(errors) == [3, 4, 5, 6]
    assert "a cut of its whole recording" in str(errors[3])


def test_recordings_are_limited_by_memory(shar):
    pairs = [[(f"utt.{i}-0.flac", bytes(5000)), (f"utt.{i}-0.json", b"{}")] for i in range(20)]
    write_archive(shar / "recording.000000.tar", [member for pair in pairs for member in pair])
    _, errors = rows_of(fl.LhotseDeserializer(shar, memory=20000))
    assert list(errors) == list(range(4, 20))
    assert "at most 0 bytes more in a chunk (memory), got one of 5000" in str(errors[4])


def test_long_names_are_found(tmp_path):
    name = "deep/" + "x" * 150
    write_rows(tmp_path / "cuts.0.jsonl", [shar_cut(1, id=name)])
    write_archive(tmp_path / "recording.0.tar", [(f"{name}.flac", content(1)), (f"{name}.json", b"{}")])
    values, errors = rows_of(fl.open_corpus(tmp_path))
    assert errors == {}
    assert values["audio"] == [content(1)]


def test_missing_and_empty_manifests(tmp_path):
    with pytest.raises(fl.DataError):
        fl.LhotseDeserializer(tmp_path / "none.jsonl")
    with pytest.raises(fl.DataError, match="with cuts"):
        fl.LhotseDeserializer(tmp_path)
    with pytest.raises(fl.DataError):
        fl.NeMoDeserializer(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(fl.DataError, match="at least one"):
        fl.LhotseDeserializer(tmp_path / "empty.jsonl")


def mutated(row, chooser):
    """Return a row with some bytes changed, cut out or doubled, on one line still."""
    data = bytearray(row)
    for _ in range(chooser.choice((1, 1, 2, 8))):
        at = chooser.randrange(len(data))
        kind = chooser.randrange(4)
        if kind == 0:
            data[at] = chooser.randrange(256)
        elif kind == 1:
            del data[at : at + chooser.randrange(1, 40)]
        elif kind == 2:
            data[at:at] = data[at : at + chooser.randrange(1, 40)]
        else:
            data[at:at] = chooser.choice((b'"', b"{", b"]", b"\\u0000", b"-", b"1e308", b"null", b"\xff", b"\0"))
        if not data:
            break
    return bytes(data).replace(b"\n", b" ").replace(b"\r", b" ")


@pytest.mark.parametrize("kind", ["cuts", "shar", "nemo", "tarred"])
def test_mutated_rows_cost_themselves(tmp_path, request, kind):
    path = request.getfixturevalue(kind)
    good, _ = rows_of(fl.open_corpus(path))
    manifest = {"cuts": path, "nemo": path, "tarred": path / "tarred_audio_manifest.json"}.get(kind)
    manifest = path / "cuts.000001.jsonl.gz" if manifest is None else manifest
    text = gzip.decompress(manifest.read_bytes()) if manifest.suffix == ".gz" else manifest.read_bytes()
    lines, chooser = text.splitlines(), random.Random(17)
    first = 20 if kind == "shar" else 0
    damaged = 0
    for _ in range(150):
        k = chooser.randrange(1, len(lines))  # the first one shows the format
        changed = [*lines[:k], mutated(lines[k], chooser), *lines[k + 1 :]]
        text = b"\n".join(changed) + b"\n"
        manifest.write_bytes(gzip.compress(text, 1) if manifest.suffix == ".gz" else text)
        corpus = type(fl.open_corpus(path))(path)
        values, errors = rows_of(corpus)
        blank = not changed[k].strip()
        assert set(errors) <= {first + k}
        damaged += len(errors)
        for name, column in values.items():
            if not blank:
                assert (
                    column[: first + k] + column[first + k + 1 :]
                    == good[name][: first + k] + good[name][first + k + 1 :]
                )
        assert corpus.lengths(np.arange(len(values["id"]))).min() >= 1
    assert damaged > 50


def test_mutated_archives_cost_recordings(tarred):
    archive, chooser = tarred / "audio_1.tar", random.Random(5)
    data = archive.read_bytes()
    for _ in range(100):
        changed = bytearray(data)
        for _ in range(chooser.choice((1, 3, 30))):
            changed[chooser.randrange(len(changed))] = chooser.randrange(256)
        archive.write_bytes(changed[: chooser.choice((len(changed), chooser.randrange(len(changed))))])
        values, errors = rows_of(fl.open_corpus(tarred))
        assert set(errors) <= set(range(20, 40))
        assert values["audio"][:20] == [content(i) for i in range(20)]
        assert values["audio"][40:] == [content(i) for i in range(40, N)]
