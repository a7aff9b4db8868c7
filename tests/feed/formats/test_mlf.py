"""Master label files: times, states, boundaries, and malformed lines."""

import contextlib
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from tests.effort import examples
from tests.feed.formats.corpora import everything
from tests.oracles.cntk_files import mlf

STATES = ["sil[2]", "sil[3]", "ah_s2_1", "x"]
RUNS = {
    "an4/one": [(1, "sil[2]"), (3, "ah_s2_1")],
    "an4/two.b": [(2, "x")],
    "three": [(2, "sil[3]"), (2, "sil[3]"), (1, "x")],
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "states").write_text("\n".join(STATES) + "\n\n")
    (tmp_path / "all.mlf").write_text(mlf(RUNS))
    return tmp_path


def open_labels(folder, stream=None, **options):
    options = {"states": folder / "states", "cache": False, **options}
    return fl.MLFDeserializer(folder / "all.mlf", y=stream or fl.Stream(4, sparse=True), **options)


def test_labels_are_one_hot_by_frame(files):
    corpus = open_labels(files)
    y = everything(corpus)["y"]
    assert y.indices.tolist() == [0, 2, 2, 2, 3, 3, 1, 1, 1, 1, 3]
    assert y.values.tolist() == [1] * 11
    assert y.lengths.tolist() == corpus.lengths(np.arange(3)).tolist() == [4, 2, 5]
    some = corpus.select(np.array([2, 0, 2]))["y"]
    assert some.lengths.tolist() == [5, 4, 5]
    assert some.indices.tolist() == [1, 1, 1, 1, 3, 0, 2, 2, 2, 1, 1, 1, 1, 3]


def test_boundaries_are_twos(files):
    y = everything(open_labels(files, boundaries=True))["y"]
    assert y.values.tolist() == [2, 2, 1, 1, 2, 1, 2, 1, 2, 1, 2]


def test_the_digest_covers_the_states(files):
    digest = open_labels(files).digest()
    assert open_labels(files).digest() == digest
    (files / "states").write_text("\n".join(reversed(STATES)))
    assert open_labels(files).digest() != digest


def test_classes_as_numbers(files):
    y = everything(open_labels(files, fl.Stream((), "int64")))["y"]
    assert y.rows.tolist() == [0, 2, 2, 2, 3, 3, 1, 1, 1, 1, 3]
    for stream, options in (
        (fl.Stream((), "int64"), {"boundaries": True}),
        (fl.Stream((), "float32"), {}),
        (fl.Stream(4), {}),
    ):
        with pytest.raises(fl.SchemaError, match=r"expected fl\.Stream"):
            open_labels(files, stream, **options)


def test_without_states_the_fourth_word_is_the_class(files):
    (files / "all.mlf").write_text('#!MLF!#\n"u.lab"\n0 2 sil 3\n2 5 ah 0\n.\n')
    y = everything(open_labels(files, states=None))["y"]
    assert y.indices.tolist() == [3, 3, 0, 0, 0]


def test_times_are_frames_or_units_of_100_ns(files):
    """On each line, an interval of at least 99,999 is in units, rounded to frames, and a shorter one in frames."""
    lines = ["0 100000 x", "1 3 x", "340000 549999 x", "5 6 x"]
    (files / "all.mlf").write_text("\n".join(["#!MLF!#", '"u"', *lines, ".", ""]))
    assert open_labels(files).lengths(np.arange(1)).tolist() == [6]
    assert everything(open_labels(files))["y"].num_samples == 6
    (files / "all.mlf").write_text('#!MLF!#\n"u"\n0 99998 x\n.\n')
    assert open_labels(files).lengths(np.arange(1)).tolist() == [99998]


def test_headers_blank_lines_and_returns(files):
    text = mlf(RUNS).replace('"*/three', '\n#!MLF!#\n\n"*/three')
    (files / "all.mlf").write_bytes(b"\r\n" + text.replace("\n", "\r\n").encode())
    assert everything(open_labels(files))["y"].indices.tolist() == [0, 2, 2, 2, 3, 3, 1, 1, 1, 1, 3]


def test_files_are_a_concatenation_and_indexed_once(files, tmp_path):
    (files / "more.mlf").write_text(mlf({"four": [(2, "x")]}))
    cache = tmp_path / "cache"
    paths = [files / "all.mlf", files / "more.mlf"]
    make = lambda: fl.MLFDeserializer(paths, y=fl.Stream(4, sparse=True), states=files / "states", cache=cache)  # noqa: E731
    corpus = make()
    assert corpus.lengths(np.array([3, 0])).tolist() == [2, 4]
    assert corpus.select(np.array([3, 0]))["y"].indices.tolist() == [3, 3, 0, 2, 2, 2]
    kept = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(kept) == 2
    again = pickle.loads(pickle.dumps(make()))
    assert (again.digest(), again.chunks()) == (corpus.digest(), corpus.chunks())
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == kept
    # The index records dropped utterances. CTF text has a different index.
    fl.MLFDeserializer(paths, y=fl.Stream(4, sparse=True), states=files / "states", cache=cache, invalid="drop")
    assert len(list(cache.iterdir())) == 4


def test_progress_matches_all_files_together(files, tmp_path):
    text = (files / "all.mlf").read_bytes()
    (tmp_path / "more.mlf").write_bytes(text.replace(b"an4/", b"an5/").replace(b"three", b"four"))
    told = []
    fl.MLFDeserializer(
        [files / "all.mlf", tmp_path / "more.mlf"],
        y=fl.Stream(4, sparse=True),
        states=files / "states",
        cache=False,
        progress=lambda done, total: told.append((done, total)),
    )
    assert {total for _, total in told} == {2 * len(text) - 1}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == 2 * len(text) - 1


@pytest.mark.parametrize("chunk_size", [1, 60, 64 << 20])
def test_chunks_are_cut_between_utterances(files, chunk_size):
    corpus = open_labels(files, chunk_size=chunk_size)
    assert [s for i in range(len(corpus.chunks())) for s in corpus.read(i)["y"].lengths.tolist()] == [4, 2, 5]
    assert sum(info.samples for info in corpus.chunks()) == 11


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(STATES)), min_size=1, max_size=6), min_size=1),
    st.integers(1, 300),
)
def test_any_labels_are_read_as_written(tmp_path_factory, runs, chunk_size):
    folder = tmp_path_factory.mktemp("mlf")
    (folder / "states").write_text("\n".join(STATES))
    (folder / "all.mlf").write_text(mlf({f"u{i}": utterance for i, utterance in enumerate(runs)}))
    corpus = open_labels(folder, chunk_size=chunk_size)
    found = [s for i in range(len(corpus.chunks())) for s in corpus.read(i)["y"].dense().sequences()]
    for got, utterance in zip(found, runs, strict=True):
        expected = [STATES.index(word) for frames, word in utterance for _ in range(frames)]
        assert got.argmax(axis=1).tolist() == expected


# ---- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "what", "line"),
    [
        ("100000 400000 ah_s2_1", "100000 400000 oh", "state of the state list", 4),
        ("100000 400000 ah_s2_1", "100000  400000 ah_s2_1", "numbers from 0", 4),
        ("100000 400000 ah_s2_1", "100000\t400000\tah_s2_1", "numbers from 0", 4),
        ("100000 400000 ah_s2_1 -1.5", "100000 400000", "start end state", 4),
        ("100000 400000", "200000 400000", "begins where the one before ends", 4),
        ("0 100000 sil[2]", "100000 200000 sil[2]", "the first at 0", 3),
        ("100000 400000", "400000 100000", "begins where", 4),
        ("100000 400000", "100000 1e300", "below 2\\*\\*31 frames", 4),
        ("100000 400000", "nan inf", "numbers from 0", 4),
        ("100000 400000", "-1 400000", "numbers from 0", 4),
    ],
)
def test_a_bad_line_is_one_unreadable_utterance(files, old, new, what, line):
    text = (files / "all.mlf").read_text()
    assert old in text
    (files / "all.mlf").write_text(text.replace(old, new, 1))
    corpus = open_labels(files)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [0]
    error = chunk.errors[0]
    assert (error.path, error.line, error.sequence) == (str(files / "all.mlf"), line, 0)
    assert re.search(what, error.what)
    assert chunk.take(np.array([1, 2]))["y"].indices.tolist() == [3, 3, 1, 1, 1, 1, 3]
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    assert [m.ids.tolist() for m in source.minibatches(99)] == [[1, 2]]


def test_a_class_too_large_is_one_unreadable_utterance(files):
    chunk = open_labels(files, fl.Stream(3, sparse=True)).read(0)
    assert sorted(chunk.errors) == [1, 2]
    assert "class below 3" in chunk.errors[1].what
    (files / "all.mlf").write_text('#!MLF!#\n"u"\n0 2 x 4294967296\n.\n"v"\n0 2 x 1 2\n.\n')
    assert sorted(open_labels(files, states=None).read(0).errors) == [0, 1]


def test_invalid_utterances_can_be_left_out(files):
    """As in CNTK. Lines that it cannot parse stay errors."""
    text = (files / "all.mlf").read_text()
    text = text.replace("100000 400000 ah_s2_1", "200000 400000 ah_s2_1").replace("0 200000 x", "0 zwei x")
    (files / "all.mlf").write_text(text)
    corpus = open_labels(files, invalid="drop")
    assert corpus.dropped == 1
    assert list(corpus.read(0).errors) == [0]  # an4/two.b
    assert open_labels(files).dropped == 0
    with pytest.raises(ValueError, match="invalid="):
        open_labels(files, invalid="skip")


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("", "#!MLF!#", 1),
        ("0 1 x\n", "#!MLF!#", 1),
        ("#!MLF!#\nu.lab\n0 1 x\n.\n", "name of an utterance in quotes, got 'u.lab'", 2),
        ('#!MLF!#\n"u"\n0 1 x\n', "line with `.`", 2),
        ('#!MLF!#\n"u"\n0 1 x\n.\n0 1 x\n', "name of an utterance", 5),
    ],
)
def test_what_is_no_mlf_is_refused(files, text, what, line):
    (files / "all.mlf").write_text(text)
    with pytest.raises(fl.DataError, match=what) as caught:
        open_labels(files)
    assert caught.value.line == line


def test_states_that_are_no_list(files):
    (files / "states").write_text("a\nb\na\n")
    with pytest.raises(fl.DataError, match="first on line 1") as caught:
        open_labels(files)
    assert caught.value.line == 3
    (files / "states").write_text("\n")
    with pytest.raises(fl.DataError, match="at least one state"):
        open_labels(files)
    with pytest.raises(fl.DataError, match="readable"):
        open_labels(files, states=files / "none")


def test_a_file_that_changes_while_open(files):
    corpus = open_labels(files)
    (files / "all.mlf").write_text(mlf({"u": [(30, "x")]}) * 20)
    with pytest.raises(fl.DataError, match="changed since"):
        corpus.read(0)


def test_an_utterance_without_a_frame_and_one_of_too_many(files):
    (files / "all.mlf").write_text('#!MLF!#\n"u"\n.\n"v"\n0 1 x\n.\n')
    corpus = open_labels(files)
    assert corpus.lengths(np.arange(2)).tolist() == [0, 1]
    assert list(corpus.read(0).errors) == [0]
    (files / "all.mlf").write_text('#!MLF!#\n"v"\n0 200000000000000 x\n.\n')
    with pytest.raises(fl.DataError, match=r"at most .* bytes decoded"):
        open_labels(files).read(0)


def test_any_changed_byte_reads_or_refuses(files):
    sound = (files / "all.mlf").read_bytes()
    for at in range(len(sound)):
        for flip in (0x01, 0x10, 0x80):
            text = bytearray(sound)
            text[at] ^= flip
            (files / "all.mlf").write_bytes(text)
            with contextlib.suppress(fl.DataError):
                corpus = open_labels(files)
                corpus.read(0).take(np.arange(corpus.chunks()[0].sequences))
