"""HTK features: scripts, byte order, compression, neighbours, ranges, and damaged files."""

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.feed.formats.corpora import everything
from tests.oracles.cntk_files import htk, mlf, windows

LENGTHS = [4, 1, 7, 3, 2, 9, 5]


def frames_of(total, dim=3):
    t = np.arange(total, dtype=np.float32)[:, None]
    return np.concatenate([t, t * 0.5 + np.arange(1, dim)], axis=1)


def write(folder, lengths=LENGTHS, dim=3, files=2, **how):
    """Write an archive for each part of the utterances u0, u1, ..., and the script. Returns the frames of each."""
    lines, utterances = [], []
    parts = np.array_split(np.arange(len(lengths)), files)
    for number, part in enumerate(parts):
        frames = frames_of(sum(lengths[i] for i in part), dim) + 100 * number
        (folder / f"{number}.chunk").write_bytes(htk(frames, **how))
        at = 0
        for i in part:
            lines.append(f"a/u{i}.mfc={folder}/{number}.chunk[{at},{at + lengths[i] - 1}]\n")
            utterances.append(frames[at : at + lengths[i]])
            at += lengths[i]
    (folder / "all.scp").write_text("".join(lines))
    return utterances


def assert_rows(value, utterances):
    assert [len(s) for s in value.sequences()] == [len(u) for u in utterances]
    for got, expected in zip(value.sequences(), utterances, strict=True):
        np.testing.assert_array_equal(got.reshape(len(got), -1), expected)


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("context", [(0, 0), (2, 2), (0, 1), (5, 3), (20, 0)])
def test_frames_and_their_neighbours(tmp_path, order, context):
    utterances = write(tmp_path, order=order)
    corpus = fl.HTKFeatureDeserializer(tmp_path / "all.scp", context=context)
    assert corpus.schema == fl.Schema({"features": fl.Stream(3 * (sum(context) + 1))})
    expected = [windows(u, *context) for u in utterances]
    assert_rows(everything(corpus)["features"], expected)
    some = np.array([5, 0, 2, 2])
    assert_rows(corpus.select(some)["features"], [expected[i] for i in some])
    assert corpus.lengths(some).tolist() == [LENGTHS[i] for i in some]


def test_the_declared_shape_matches_a_sample(tmp_path):
    utterances = write(tmp_path)
    scp = tmp_path / "all.scp"
    corpus = fl.HTKFeatureDeserializer(scp, x=fl.Stream((3, 3), "float64"), context=(1, 1))
    x = everything(corpus)["x"]
    assert x.rows.shape == (31, 3, 3)
    assert x.dtype == np.float64
    assert_rows(x, [windows(u, 1, 1) for u in utterances])
    # As many neighbours as make the shape.
    assert_rows(
        everything(fl.HTKFeatureDeserializer(scp, x=fl.Stream(15), context=None))["x"],
        [windows(u, 2, 2) for u in utterances],
    )
    for shape, context in ((6, None), (4, None), (9, (0, 0)), ((9,), (1, 0)), ((3, 2), (1, 0))):
        with pytest.raises(fl.SchemaError, match="values"):
            fl.HTKFeatureDeserializer(scp, x=fl.Stream(shape), context=context)
    with pytest.raises(fl.SchemaError, match="dense stream of floats"):
        fl.HTKFeatureDeserializer(scp, x=fl.Stream(3, "int32"))
    with pytest.raises(fl.SchemaError, match="each stream once, got x"):
        fl.HTKFeatureDeserializer(scp, {"x": fl.Stream(3)}, x=fl.Stream(3))
    with pytest.raises(fl.SchemaError, match="one stream"):
        fl.HTKFeatureDeserializer(scp, x=fl.Stream(3), y=fl.Stream(3))


@pytest.mark.parametrize("order", [">", "<"])
def test_compressed_features(tmp_path, order):
    rng = np.random.default_rng(1)
    scale, offset = rng.uniform(1, 50, 4).astype("f4"), rng.uniform(-9, 9, 4).astype("f4")
    stored = rng.integers(-(2**15), 2**15, (6, 4))
    (tmp_path / "c.mfc").write_bytes(htk(stored, 6, order, compressed=(scale, offset)))
    (tmp_path / "c.scp").write_text(f"u={tmp_path}/c.mfc[1,4]")
    corpus = fl.HTKFeatureDeserializer(tmp_path / "c.scp", context=(1, 0))
    values = (stored.astype("f4") + offset) / scale
    assert_rows(everything(corpus)["features"], [windows(values[1:5], 1, 0)])


def test_whole_files_and_other_kinds(tmp_path):
    """Without a range, all frames of a file. With or without a name. IDX images. A GUID after the header."""
    frames = frames_of(5)
    (tmp_path / "a.mfc").write_bytes(htk(frames, kind=12))
    (tmp_path / "b.mfc").write_bytes(htk(frames + 1, kind=12))
    (tmp_path / "all.scp").write_text(f"{tmp_path}/a.mfc\r\nname.mfc={tmp_path}/b.mfc\n\n")
    corpus = fl.HTKFeatureDeserializer(tmp_path / "all.scp")
    assert_rows(everything(corpus)["features"], [frames, frames + 1])
    assert [corpus.utterance(i) for i in (0, 1)] == [f"{tmp_path}/a.mfc", "name.mfc"]
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    (tmp_path / "t-ubyte").write_bytes(struct.pack(">IIII", 2051, 4, 2, 3) + pixels.tobytes())
    (tmp_path / "idx.scp").write_text(f"i={tmp_path}/t-ubyte[1,2]\n")
    images = fl.HTKFeatureDeserializer(tmp_path / "idx.scp", context=(0, 1))
    assert_rows(everything(images)["features"], [windows(pixels.reshape(4, 6)[1:3].astype("f4"), 0, 1)])


def test_paths_of_a_script(tmp_path):
    (tmp_path / "a.mfc").write_bytes(htk(frames_of(3)))
    scp = tmp_path / "s.scp"
    scp.write_text("u=.../a.mfc[0,2]\n")
    assert fl.HTKFeatureDeserializer(scp).chunks()[0].samples == 3
    scp.write_text("u=a.mfc[0,2]\n")
    for prefix in (str(tmp_path), f"{tmp_path}/"):
        assert fl.HTKFeatureDeserializer(scp, prefix=prefix).chunks()[0].samples == 3


def test_names_that_are_not_unique_are_left_out(tmp_path, caplog):
    """Keys are names up to the last dot anywhere, as CNTK cuts them."""
    (tmp_path / "a.mfc").write_bytes(htk(frames_of(9)))
    names = ["u.mfc", "v.mfc", "u.plp", "a.b/c", "a.x", "w"]
    lines = [f"{name}={tmp_path}/a.mfc[{i},{i}]\n" for i, name in enumerate(names)]
    (tmp_path / "s.scp").write_text("".join(lines))
    corpus = fl.HTKFeatureDeserializer(tmp_path / "s.scp")
    assert [corpus.utterance(i) for i in range(2)] == ["v.mfc", "w"]
    assert corpus.duplicates == 4
    assert "4 utterances dropped" in caplog.text


def test_chunks_are_full_beyond_so_many_frames(tmp_path):
    """CNTK looks before it adds: a chunk that holds exactly as many takes one more utterance."""
    write(tmp_path)
    sizes = {
        limit: [i.sequences for i in fl.HTKFeatureDeserializer(tmp_path / "all.scp", chunk_frames=limit).chunks()]
        for limit in (1, 4, 5, 12, 90_000)
    }
    assert sizes == {1: [1, 2, 1, 1, 1, 1], 4: [2, 1, 2, 1, 1], 5: [3, 3, 1], 12: [4, 3], 90_000: [7]}


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.tuples(st.integers(0, 8), st.integers(0, 8)),
    st.sampled_from("<>"),
    st.integers(1, 20),
)
def test_any_script_is_read_as_by_its_twin(tmp_path_factory, lengths, dim, files, context, order, chunk_frames):
    folder = tmp_path_factory.mktemp("htk")
    utterances = write(folder, lengths, dim, min(files, len(lengths)), order=order)
    corpus = fl.HTKFeatureDeserializer(folder / "all.scp", context=context, chunk_frames=chunk_frames)
    read = [s for i in range(len(corpus.chunks())) for s in corpus.read(i)["features"].sequences()]
    for got, frames in zip(read, utterances, strict=True):
        np.testing.assert_array_equal(got, windows(frames, *context))


# ---- laws ---------------------------------------------------------------------------------------------


def joined(folder, **options):
    features = fl.HTKFeatureDeserializer(folder / "all.scp", context=(1, 1), chunk_frames=6)
    labels = fl.MLFDeserializer(folder / "all.mlf", y=fl.Stream(9, sparse=True), states=folder / "states", cache=False)
    corpus = fl.Join(features, labels, cache=False)
    return fl.MinibatchSource(corpus, **{"max_sweeps": 2, "seed": 7, **options})


@pytest.fixture
def speech(tmp_path):
    write(tmp_path)
    (tmp_path / "states").write_text("\n".join(f"s{i}" for i in range(9)))
    # In another order than the script, and with an utterance that it does not have.
    runs = {f"a/u{i}": [(1, f"s{i}"), (n - 1, "s8")] if n > 1 else [(1, f"s{i}")] for i, n in enumerate(LENGTHS)}
    runs = {"a/stranger": [(3, "s0")], **dict(reversed(runs.items()))}
    (tmp_path / "all.mlf").write_text(mlf(runs))
    return tmp_path


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"shuffle": fl.Window(chunks=2)}])
def test_it_resumes_and_workers_share_one_order(speech, options):
    assert_resumes(lambda: joined(speech, **options), sizes=(3, 7, 64))
    whole = sequences_of(joined(speech, **options).minibatches(9))
    assert sorted(o for o, _ in whole) == sorted([*range(7)] * 2)
    for count in (2, 3):
        parts = [
            [sequences_of([m]) for m in joined(speech, partition=(i, count), **options).minibatches(9)]
            for i in range(count)
        ]
        assert sum((sum(batch, []) for batch in zip(*parts, strict=True)), []) == whole


def test_labels_match_the_utterance(speech):
    (minibatch,) = joined(speech, shuffle=False, max_sweeps=1).minibatches(999)
    for i, (x, y) in enumerate(zip(minibatch["features"].sequences(), minibatch["y"].dense().sequences(), strict=True)):
        assert len(x) == len(y) == LENGTHS[i]
        assert y.argmax(axis=1).tolist() == [i] + [8] * (LENGTHS[i] - 1)


def test_truncated_training_resumes_between_pieces(speech):
    make = lambda: joined(speech, truncation_length=3)  # noqa: E731
    whole = [sequences_of([m]) for m in make().minibatches(6)]
    for stop in range(len(whole)):
        first, then = make(), make()
        for _ in range(stop):
            first.next_minibatch(6)
        then.load_state_dict(first.state_dict())
        assert [sequences_of([m]) for m in then.minibatches(6)] == whole[stop:]


def test_truncated_pieces_make_up_every_utterance(speech):
    source = joined(speech, shuffle=False, max_sweeps=1, truncation_length=3)
    lanes, seen = {}, {}
    for m in source.minibatches(6):
        for lane, begins, ordinal, x, y in zip(
            m.lanes.tolist(),
            m.begins.tolist(),
            m.ids.tolist(),
            m["features"].sequences(),
            m["y"].dense().sequences(),
            strict=True,
        ):
            assert begins == (lanes.get(lane) != ordinal)
            lanes[lane] = ordinal
            assert len(x) == len(y) <= 3
            seen[ordinal] = seen.get(ordinal, 0) + len(x)
    assert [seen[i] for i in range(7)] == LENGTHS


def test_what_one_side_lacks_is_dropped(speech):
    text = (speech / "all.mlf").read_text().split('"*/a/u3')
    (speech / "all.mlf").write_text(text[0] + text[1].partition(".\n")[2])
    source = joined(speech, shuffle=False, max_sweeps=1)
    assert source.corpus.dropped == 1
    assert [len(s) for m in source.minibatches(99) for s in m["features"].sequences()] == [4, 1, 7, 2, 9, 5]


def test_a_speakers_vector_is_repeated_for_each_frame(speech):
    (speech / "one.mfc").write_bytes(htk(frames_of(9, 2)))
    lines = [f"a/u{i}={speech}/one.mfc[{i},{i + (1 if i == 4 else 0)}]\n" for i in range(7)]
    (speech / "one.scp").write_text("".join(lines))
    frames = fl.HTKFeatureDeserializer(speech / "all.scp")
    vectors = fl.HTKFeatureDeserializer(speech / "one.scp", v=fl.Stream(2), broadcast=True)
    corpus = fl.Join(frames, vectors, cache=False)
    assert corpus.lengths(np.arange(7)).tolist() == LENGTHS
    found = corpus.read(0)
    for i in (0, 1, 2, 3, 4, 5, 6):
        rows = found["v"].sequences()[i]
        assert len(rows) == LENGTHS[i]
        if i != 4:
            assert (rows == frames_of(9, 2)[i]).all()
    # Utterance 4 has two frames on both sides, so there is no vector to repeat, but it fits.
    np.testing.assert_array_equal(found["v"].sequences()[4], frames_of(9, 2)[4:6])
    assert not found.errors
    (speech / "one.scp").write_text("".join(lines).replace("[2,2]", "[2,3]"))
    wrong = fl.Join(frames, fl.HTKFeatureDeserializer(speech / "one.scp", v=fl.Stream(2), broadcast=True), cache=False)
    chunk = wrong.read(0)
    assert list(chunk.errors) == [2]
    assert "one sample to repeat 7 times, got 2" in chunk.errors[2].what
    with pytest.raises(ValueError, match="without broadcast"):
        fl.Join(vectors, frames)


def test_a_copy_for_another_process(speech):
    corpus = fl.HTKFeatureDeserializer(speech / "all.scp", x=fl.Stream(9), context=(1, 1), chunk_frames=6)
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.chunks(), again.schema) == (corpus.digest(), corpus.chunks(), corpus.schema)


# ---- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("u=a.mfc[0,2]x", r"`\[first,last\]`"),
        ("u=a.mfc[0,2", r"`\[first,last\]`"),
        ("u=a.mfc[,2]", r"`\[first,last\]`"),
        ("u=a.mfc[-1,2]", r"`\[first,last\]`"),
        ("u=a.mfc[3,2]", "ascending order"),
        ("u=a.mfc[0,4294967296]", "ascending order"),
        ("u=a.mfc[0," + "9" * 5000 + "]", r"`\[first,last\]`"),
        ("u=a\0.mfc[0,1]", "zero byte"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, what):
    write(tmp_path)
    scp = tmp_path / "all.scp"
    scp.write_text(scp.read_text() + line + "\n")
    with pytest.raises(fl.DataError, match=what) as caught:
        fl.HTKFeatureDeserializer(scp)
    assert (caught.value.path, caught.value.line) == (str(scp), 8)


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (0, struct.pack(">i", -5), "got -5"),
        (0, struct.pack(">i", 2**31 - 1), "as the header says, got a file of"),
        (8, struct.pack(">H", 0), "multiple of 4 bytes, got 0"),
        (8, struct.pack(">H", 13), "multiple of 4 bytes, got 13"),
        (8, struct.pack(">H", 0xFFFC), "as the header says"),
        (10, struct.pack(">h", 1), "features of kind"),
        (10, struct.pack(">h", 0o40000 + 9), "vector-quantised"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path, at, value, what):
    write(tmp_path)
    path = tmp_path / "0.chunk"
    text = bytearray(path.read_bytes())
    text[at : at + len(value)] = value
    path.write_bytes(text)
    with pytest.raises(fl.DataError, match=what) as caught:
        fl.HTKFeatureDeserializer(tmp_path / "all.scp")
    assert caught.value.path == str(path)


@pytest.mark.parametrize("damage", ["gone", "cut", "kind", "dim", "range"])
def test_the_utterances_of_a_damaged_file_are_unreadable(tmp_path, damage):
    """The second file is damaged, the first is good, and every utterance keeps its tick."""
    utterances = write(tmp_path)
    path, scp = tmp_path / "1.chunk", tmp_path / "all.scp"
    text = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(text[:-4])
    elif damage == "kind":
        path.write_bytes(text[:10] + struct.pack(">h", 6) + text[12:])
    elif damage == "dim":
        path.write_bytes(text[:8] + struct.pack(">H", 4) + text[10:])
    else:
        scp.write_text(scp.read_text().replace("[11,15]", "[12,16]"))
    bad = [6] if damage == "range" else [4, 5, 6]
    corpus = fl.HTKFeatureDeserializer(scp)
    chunk = corpus.read(0)
    assert sorted(chunk.errors) == bad
    error = chunk.errors[6]
    assert (error.path, error.sequence) == (str(path), 6)
    assert "a/u6.mfc" in error.what
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    (minibatch,) = source.minibatches(99)
    assert_rows(minibatch["features"], [u for i, u in enumerate(utterances) if i not in bad])


def test_a_file_without_frames_is_one_unreadable_utterance(tmp_path):
    frames = frames_of(4)
    for name, rows in (("a", frames), ("none", frames[:0]), ("b", frames + 1)):
        (tmp_path / f"{name}.mfc").write_bytes(htk(rows))
    scp = tmp_path / "all.scp"
    scp.write_text("".join(f"{tmp_path}/{name}.mfc\n" for name in ("a", "none", "b")))
    corpus = fl.HTKFeatureDeserializer(scp)
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1]
    assert "at least one frame" in chunk.errors[1].what
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip")
    (minibatch,) = source.minibatches(99)
    assert_rows(minibatch["features"], [frames, frames + 1])


def test_the_digest_covers_ranges_and_neighbours(tmp_path):
    write(tmp_path, files=1)
    scp = tmp_path / "all.scp"
    text = scp.read_text()

    def digest(lines=text, **options):
        scp.write_text(lines)
        return fl.HTKFeatureDeserializer(scp, **options).digest()

    assert digest() == digest()
    others = [digest(text.replace("[0,3]", "[1,4]")), digest(context=(1, 0)), digest(context=(0, 1))]
    assert len({digest(), *others}) == 4


def test_a_chunk_that_would_take_too_much_memory(tmp_path):
    write(tmp_path)
    corpus = fl.HTKFeatureDeserializer(tmp_path / "all.scp", context=(5, 5), memory=100)
    with pytest.raises(fl.DataError, match="at most 100 bytes"):
        corpus.read(0)


def test_nothing_to_read(tmp_path):
    with pytest.raises(fl.DataError, match="readable"):
        fl.HTKFeatureDeserializer(tmp_path / "none.scp")
    (tmp_path / "empty.scp").write_text("\n")
    with pytest.raises(fl.DataError, match="at least one utterance"):
        fl.HTKFeatureDeserializer(tmp_path / "empty.scp")
