"""Windows in time: seconds, byte strings, masks, damage, and what they refuse."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import feedline as fl
from feedline.testing import sequences_of

LENGTHS = [5, 1, 9, 3]
COUNT = sum(LENGTHS)
EPISODES = np.repeat(np.arange(len(LENGTHS)), LENGTHS)


def rows(**streams):
    return fl.ArrayDeserializer({"x": np.arange(COUNT, dtype=np.float32), "episode": EPISODES, **streams})


def column(corpus, name):
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False)
    return [sequence.tolist() for m in source.minibatches(4) for sequence in m[name].sequences()]


def in_samples(corpus, **options):
    return fl.TimeWindows(corpus, {"x": (-2, 0, 1)}, within="episode", **options)


# ---- seconds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stamps", ["float", "float32", "ms", "unsigned ms", "uneven"])
def test_seconds_choose_the_samples_of_these_times(stamps):
    times = np.arange(COUNT) * 0.1 + (5 - EPISODES) * 100
    unit = None
    if stamps == "uneven":
        times = times + np.where(np.arange(COUNT) % 2, 2e-5, 0)
        times[10] += 0.03  # too late for a window
    if stamps == "float32":
        times = times.astype(np.float32)
    if "ms" in stamps:
        kind = np.uint64 if "unsigned" in stamps else np.int64
        times, unit = np.rint(times * 1000).astype(kind), "timestamp[ms]"
    corpus = rows(time=times)
    corpus.schema = fl.Schema({**corpus.schema, "time": fl.Stream((), times.dtype, unit=unit)})
    windows = fl.TimeWindows(corpus, {"x": (-0.2, 0, 0.1)}, within="episode", seconds="time")
    if stamps != "uneven":
        assert column(windows, "x") == column(in_samples(corpus), "x")
        assert column(windows, "x_present") == column(in_samples(corpus), "x_present")
        return
    with pytest.raises(fl.DataError, match=r"a sample within 0.0001 s of each time in a window") as caught:
        column(windows, "x")
    assert caught.value.stream == "time"
    source = fl.MinibatchSource(windows, max_sweeps=1, shuffle=False, on_error="skip")
    delivered = [row for m in source.minibatches(4) for row in m["x"].rows.tolist()]
    readable = np.flatnonzero(np.repeat(np.arange(4) != 2, LENGTHS))
    assert delivered == [column(in_samples(corpus), "x")[i][0] for i in readable]


def test_timestamps_of_another_step_than_samples():
    """Every second sample is missing in one sequence: windows in seconds differ from windows in samples."""
    times = np.array([0, 1, 2, 3, 0, 2, 4, 6.0])
    corpus = fl.ArrayDeserializer({"x": np.arange(8), "time": times})
    windows = fl.TimeWindows(corpus, {"x": (-2, 0)}, within=[4, 4], seconds="time")
    assert column(windows, "x") == [
        [[a, b]] for a, b in [(0, 0), (0, 1), (0, 2), (1, 3), (4, 4), (4, 5), (5, 6), (6, 7)]
    ]
    present = [[False, True], [False, True], [True, True], [True, True]]
    assert column(windows, "x_present") == [[mask] for mask in present + [[False, True]] + [[True, True]] * 3]


def test_timestamps_that_do_not_ascend_are_an_error():
    corpus = fl.ArrayDeserializer({"x": np.arange(6), "time": np.array([0, 1, 1, 0, 1, 2.0])})
    windows = fl.TimeWindows(corpus, {"x": (-1, 0)}, within=[3, 3], seconds="time")
    chunk = windows.read(0)
    assert sorted(chunk.errors) == [0, 1, 2]
    assert "ascend" in str(chunk.errors[0])


# ---- byte strings and masks ---------------------------------------------------------------------------


@pytest.mark.parametrize("pad", ["edge", "zeros"])
@pytest.mark.parametrize("kind", ["bytes", "str"])
def test_byte_strings_become_several_samples(pad, kind):
    names = [f"{i:x}" * (i % 3 + 1) for i in range(COUNT)]
    texts = names if kind == "str" else [name.encode() for name in names]
    corpus = rows(text=fl.Value.from_bytes(texts))
    windows = fl.TimeWindows(corpus, {"text": (-1, 0, 1), "x": (0,)}, within="episode", pad=pad)
    numbers = fl.TimeWindows(rows(at=np.arange(COUNT) + 1), {"at": (-1, 0, 1)}, within="episode", pad=pad)
    expected = [[texts[at - 1] if at else texts[0][:0] for at in window] for (window,) in column(numbers, "at")]
    source = fl.MinibatchSource(windows, max_sweeps=1, shuffle=False)
    minibatches = list(source.minibatches(4))
    assert [len(m["x"].rows) for m in minibatches] == [4] * (COUNT // 4) + [COUNT % 4]  # a window counts as one
    assert [text for m in minibatches for text in m["text"].tolist()] == expected
    assert column(windows, "text_present") == [mask for (mask,) in column(numbers, "at_present")]


def test_missing_samples_are_missing_in_windows(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join('{"e": 0, "x": %s}\n' % ("null" if i == 2 else i) for i in range(4)))
    corpus = fl.JSONLinesDeserializer(path, {"e": fl.Stream((), "int64"), "x": fl.Stream((), missing=-1, mask=True)})
    windows = fl.TimeWindows(corpus, {"x": (0, 1)}, within="e")
    assert column(windows, "x") == [[[0, 1]], [[1, -1]], [[-1, 3]], [[3, 3]]]
    assert column(windows, "x_present") == [[[True, True]], [[True, False]], [[False, True]], [[True, False]]]
    dropped = fl.TimeWindows(corpus, {"x": (0, 1)}, within="e", pad="drop")
    assert column(dropped, "x_present") == [[[True, True]], [[True, False]], [[False, True]]]


# ---- damage, copies -----------------------------------------------------------------------------------


def test_an_unreadable_row_costs_its_episode_only(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [f'{{"e": {e}, "x": {i}}}\n' for i, e in enumerate(EPISODES)]
    lines[7] = '{"e": 2, "x": "no number"}\n'
    path.write_text("".join(lines))
    corpus = fl.JSONLinesDeserializer(path, {"x": fl.Stream(())}, chunk_size=64)
    assert len(corpus.chunks()) > 2
    windows = fl.TimeWindows(corpus, {"x": (-1, 0)}, within=LENGTHS)
    source = fl.MinibatchSource(windows, max_sweeps=1, shuffle=False, on_error="skip")
    delivered = [int(row[1]) for m in source.minibatches(4) for row in m["x"].rows]
    assert delivered == [i for i in range(COUNT) if EPISODES[i] != 2]


def test_a_truncated_file_is_an_error_and_no_crash(tmp_path):
    array = np.zeros((4096, 64), np.float32)
    fl.convert(fl.ArrayDeserializer({"x": array}), tmp_path / "store")
    corpus = fl.TimeWindows(fl.open_corpus(tmp_path / "store"), {"x": range(4)}, within=[4096])
    source = fl.MinibatchSource(corpus, max_sweeps=1, shuffle=False)
    source.next_minibatch(8)
    (part,) = [path for path in (tmp_path / "store").iterdir() if path.stat().st_size > array.nbytes // 2]
    with open(part, "r+b") as file:
        file.truncate(8192)
    with pytest.raises(fl.DataError):
        for _ in range(600):
            source.next_minibatch(8)


def test_pickles_and_slices_hold_the_windows():
    chunk = in_samples(rows()).read(0)
    value = chunk["x"]
    assert pickle.loads(pickle.dumps(value)) == value
    assert value.slice(3, 9).rows.tolist() == value.rows[3:9].tolist()
    kept = fl.TimeWindows(fl.ArrayDeserializer({"x": fl.Value.from_dense(np.arange(6), [0, 2, 6])}), {"x": (0, 1)})
    assert kept.read(0)["x"].slice(1, 2).rows.tolist() == [[2, 3], [3, 4], [4, 5], [5, 5]]


def test_stored_windows_are_the_same(tmp_path):
    windows = in_samples(rows())
    fl.convert(windows, tmp_path / "store")
    stored = fl.open_corpus(tmp_path / "store")
    options = {"max_sweeps": 1, "shuffle": False}
    assert sequences_of(fl.MinibatchSource(stored, **options).minibatches(4)) == sequences_of(
        fl.MinibatchSource(windows, **options).minibatches(4)
    )


def test_every_setting_is_part_of_the_digest():
    corpus = rows(time=np.arange(COUNT) / 10)
    settings = [
        {"windows": {"x": (0, 1)}},
        {"windows": {"x": (0, 2)}},
        {"windows": {"episode": (0, 1)}},
        {"windows": {"x": (0, 1)}, "every": 2},
        {"windows": {"x": (0, 1)}, "pad": "zeros"},
        {"windows": {"x": (0, 1)}, "pad": "drop"},
        {"windows": {"x": (0, 1)}, "within": [5, 13]},
        {"windows": {"x": (0, 1)}, "seconds": "time"},
        {"windows": {"x": (0, 1)}, "seconds": "time", "tolerance": 0.01},
    ]
    digests = [fl.TimeWindows(corpus, **{"within": LENGTHS, **options}).digest() for options in settings]
    assert len(set(digests)) == len(digests)


# ---- refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"windows": {}}, TypeError, "offsets by stream"),
        ({"windows": {"y": (0,)}}, fl.SchemaError, "expected streams x, episode"),
        ({"windows": {"x": (0.5,)}}, TypeError, "list of integers"),
        ({"windows": {"x": ()}}, TypeError, "list of integers"),
        ({"windows": {"x": 3}}, TypeError, "list of integers"),
        ({"windows": {"x": (0,)}, "pad": "mirror"}, ValueError, "'edge', 'zeros' or 'drop'"),
        ({"windows": {"x": (0,)}, "every": 0}, ValueError, "every of at least 1"),
        ({"windows": {"x": (0,)}, "within": "y"}, fl.SchemaError, "`y`"),
        ({"windows": {"x": (0,)}, "within": [5, 5]}, ValueError, "a sum of 18"),
        ({"windows": {"x": (0,)}, "within": [0, 18]}, ValueError, "at least 1"),
        ({"windows": {"x": (9,)}, "within": "episode", "pad": "drop"}, fl.DataError, "at least one window"),
        ({"windows": {"x": (0,)}, "seconds": "y"}, fl.SchemaError, "stream of timestamps"),
        ({"windows": {"x": (0,)}, "seconds": "x", "tolerance": -1}, ValueError, "tolerance"),
        ({"windows": {"x": (0,)}, "seconds": "x", "pad": "drop"}, ValueError, "timestamps decide"),
        ({"windows": {"x": (np.inf,)}, "seconds": "x"}, ValueError, "finite"),
    ],
)
def test_what_it_refuses(options, kind, message):
    with pytest.raises(kind, match=message):
        fl.TimeWindows(rows(), **options)


def test_byte_strings_of_sequences_are_refused_with_a_way_out():
    corpus = fl.ArrayDeserializer({"x": fl.Value.from_bytes([[b"a", b"b"], [b"c"]]), "n": np.arange(2)})
    with pytest.raises(fl.SchemaError, match="Frames"):
        fl.TimeWindows(corpus, {"x": (0, 1)})


def test_a_mask_needs_its_name():
    with pytest.raises(fl.SchemaError, match="another name"):
        in_samples(rows(x_present=np.arange(COUNT)))
