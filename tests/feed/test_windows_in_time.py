"""Windows in time: seconds, byte strings, masks, damage, and what they refuse."""

from __future__ import annotations

import json
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
    readable = [i for i in range(COUNT) if i not in (9, 10, 12)]  # those see a late sample, or are late
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


def test_streams_of_several_rates():
    """Windows of a slow and a fast stream around each sample of the fast one."""
    rng = np.random.default_rng(5)
    counts = {"fast": [7, 4, 9], "slow": [3, 2, 4]}
    times, values = {}, {}
    for name, lengths in counts.items():
        # In milliseconds for one stream, in seconds for the other, from a time of today.
        stamps = [np.sort(rng.choice(900, length, replace=False)) + 1_700_000_000_000 for length in lengths]
        times[name] = [stamp / (1 if name == "fast" else 1000) for stamp in stamps]
        values[name] = [rng.normal(size=(length, 2)).astype(np.float32) for length in lengths]
    streams = {
        "fast": fl.Stream(2, defines_size=True),
        "fast_time": fl.Stream((), "int64", unit="timestamp[ms]"),
        "slow": fl.Stream(2),
        "slow_time": fl.Stream((), "float64"),
    }

    def joined(parts, dtype):
        offsets = np.cumsum([0, *map(len, parts)])
        return fl.Value.from_dense(np.concatenate(parts).astype(dtype), offsets)

    corpus = fl.ArrayDeserializer(
        {
            "fast": joined(values["fast"], np.float32),
            "fast_time": joined(times["fast"], np.int64),
            "slow": joined(values["slow"], np.float32),
            "slow_time": joined(times["slow"], np.float64),
        }
    )
    corpus.schema = fl.Schema(streams)
    offsets = (-0.3, 0.0, 0.25)
    windows = fl.TimeWindows(
        corpus,
        {"slow": offsets, "fast": (0.0,)},
        seconds={"fast": "fast_time", "slow": "slow_time"},
        tolerance=10.0,
    )
    assert list(windows.schema) == ["fast", "fast_time", "slow", "slow_present"]
    expected, present = [], []
    for fast, slow, rows in zip(times["fast"], times["slow"], values["slow"], strict=True):
        goals = fast[:, None] / 1000 + offsets
        expected.append(rows[np.abs(slow - goals[..., None]).argmin(-1)].tolist())
        present.append(np.ones(goals.shape, np.bool_).tolist())
    assert column(windows, "slow") == expected
    assert column(windows, "slow_present") == present
    assert column(fl.Frames(windows), "fast") == [[[row]] for rows in values["fast"] for row in rows.tolist()]
    exact = {"seconds": {"fast": "fast_time", "slow": "slow_time"}, "tolerance": 0.001}
    strict = fl.TimeWindows(corpus, {"slow": (0.0,)}, **exact)
    errors = strict.read(0).errors
    assert all("within 0.001 s" in str(error) and error.stream == "slow_time" for error in errors.values())
    with pytest.raises(ValueError, match="offsets of `slow`"):
        fl.TimeWindows(corpus, {"fast": (0.0,)}, **exact)
    with pytest.raises(fl.SchemaError, match="got `other`"):
        fl.TimeWindows(corpus, {"slow": (0.0,)}, seconds={"fast": "fast_time", "other": "slow_time"})


def test_before_the_first_sample_of_another_clock_there_is_its_first_sample():
    streams = {"x": np.arange(6), "t": np.arange(6) / 10, "y": np.arange(3) + 1, "u": np.arange(3) / 5}
    corpus = fl.ArrayDeserializer({name: fl.Value.from_dense(rows, [0, len(rows)]) for name, rows in streams.items()})
    options = {"seconds": {"x": "t", "y": "u"}, "tolerance": 0.11}
    windows = fl.TimeWindows(corpus, {"y": (-0.2,)}, **options)
    assert column(windows, "y") == [[[1], [1], [1], [1], [2], [2]]]
    assert column(windows, "y_present") == [[[False], *[[True]] * 5]]
    assert column(fl.TimeWindows(corpus, {"y": (-0.2,)}, pad="zeros", **options), "y")[0][0] == [0]


def test_samples_that_a_clock_does_not_have_are_an_error():
    fast = fl.Value.from_dense(np.arange(4, dtype=np.float32), [0, 4, 4])
    streams = {"x": fl.Value.from_dense(np.arange(5.0), [0, 3, 5]), "t": fl.Value.from_dense(np.arange(5.0), [0, 3, 5])}
    corpus = fl.ArrayDeserializer({**streams, "y": fast, "u": fl.Value.from_dense(np.arange(4.0), [0, 4, 4])})
    windows = fl.TimeWindows(corpus, {"y": (0,)}, seconds={"x": "t", "y": "u"})
    errors = windows.read(0).errors
    assert list(errors) == [1]
    assert "at least one sample" in str(errors[1])


def test_a_format_without_lengths_of_streams_needs_to_know_the_first(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"x": [0, 1], "t": [0, 1], "y": [0, 1, 2], "u": [0, 0.5, 1]}) + "\n")
    streams = {name: fl.Stream((), "float64", field=f"{name}[]") for name in "xtyu"}
    clocks = {"x": "t", "y": "u"}
    windows = fl.TimeWindows(fl.open_corpus(path, streams=streams), {"y": (0,)}, seconds=clocks)
    with pytest.raises(fl.DataError, match="defines_size=True"):
        fl.MinibatchSource(windows, max_sweeps=1).next_minibatch(8)
    streams["x"] = fl.Stream((), "float64", field="x[]", defines_size=True)
    assert column(fl.TimeWindows(fl.open_corpus(path, streams=streams), {"y": (0,)}, seconds=clocks), "y") == [
        [[0.0], [2.0]]
    ]


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


def readable_windows(steps, pad, damaged, *, in_seconds):
    """The windows that no damaged row is needed for, in which each row is its number."""
    bounds = np.cumsum([0, *LENGTHS])
    for row, episode in enumerate(EPISODES):
        first, end = bounds[episode : episode + 2]
        places = [row + step for step in steps]
        inside = [first <= place < end for place in places]
        near = [min(max(place, first), end - 1) for place in places]
        # Of rows without a time it is not known what is beyond them.
        needed = near if pad == "edge" or in_seconds else [place for place in places if first <= place < end]
        if not {row, *needed} & set(damaged) and (pad != "drop" or all(inside)):
            yield [float(at) if there or pad == "edge" else 0.0 for at, there in zip(near, inside, strict=True)]


@pytest.mark.parametrize("pad", ["edge", "zeros", "drop"])
@pytest.mark.parametrize("damaged", [[7], [0], [5], [13, 14], [6, 12, 17]])
def test_an_unreadable_row_costs_the_windows_that_need_it(tmp_path, damaged, pad):
    path = tmp_path / "a.jsonl"
    lines = [f'{{"t": {i / 10 + 50 - 9 * e}, "x": {i}}}\n' for i, e in enumerate(EPISODES)]
    for row in damaged:
        lines[row] = '{"t": 0.0, "x": "no number"}\n'
    path.write_text("".join(lines))
    corpus = fl.JSONLinesDeserializer(path, {"x": fl.Stream(()), "t": fl.Stream((), "float64")}, chunk_size=64)
    assert len(corpus.chunks()) > 2
    for steps in ((-1, 0), (2,), (-1, 2), (-1, 3)):
        cases = [({}, steps)]
        if pad != "drop":
            cases.append(({"seconds": "t", "tolerance": 0.01}, [step / 10 for step in steps]))
        for options, offsets in cases:
            windows = fl.TimeWindows(corpus, {"x": offsets}, within=LENGTHS, pad=pad, **options)
            source = fl.MinibatchSource(windows, max_sweeps=1, shuffle=False, on_error="skip")
            delivered = [row for m in source.minibatches(4) for row in m["x"].rows.tolist()]
            assert delivered == list(readable_windows(steps, pad, damaged, in_seconds=bool(options)))


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


# ---- other rates, chunks and times ----------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
def test_windows_are_around_the_samples_of_the_first_clock_slow_or_fast(tmp_path, stored):
    fast, slow = [np.arange(9.0), np.arange(2.0)], [np.arange(3.0), np.arange(4.0)]
    corpus = fl.ArrayDeserializer(
        {"a": fast, "at": [rows / 9 for rows in fast], "b": slow, "bt": [rows / 3 for rows in slow]}
    )
    if stored:
        fl.convert(corpus, tmp_path / "store")
        corpus = fl.open_corpus(tmp_path / "store")
    windows = fl.TimeWindows(corpus, {"b": (0,), "a": (0,)}, seconds={"b": "bt", "a": "at"}, tolerance=0.06)
    assert sum(info.samples for info in windows.chunks()) == 7
    assert column(windows, "b") == [[[0.0], [1.0], [2.0]], [[0.0], [1.0], [2.0], [3.0]]]
    assert column(windows, "a") == [[[0.0], [3.0], [6.0]], [[0.0], [1.0], [1.0], [1.0]]]
    assert column(windows, "a_present") == [[[True]] * 3, [[True], [False], [False], [False]]]


def test_a_row_that_is_unreadable_within_an_episode_does_not_hide_it(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [f'{{"e": {e}, "x": {i}}}\n' for i, e in enumerate(EPISODES)]
    lines[7] = '{"e": 2, "x": "no number"}\n'
    path.write_text("".join(lines))
    streams = {"e": fl.Stream((), "int64"), "x": fl.Stream(())}
    corpus = fl.JSONLinesDeserializer(path, streams, chunk_size=64)
    by_name, by_lengths = (fl.TimeWindows(corpus, {"x": (-1, 0)}, within=within) for within in ("e", LENGTHS))
    options = {"max_sweeps": 1, "shuffle": False, "on_error": "skip"}
    once, again = (sequences_of(fl.MinibatchSource(each, **options).minibatches(4)) for each in (by_name, by_lengths))
    assert once == again
    lines[6] = '{"e": 2, "x": "no number"}\n'  # the first row of an episode
    path.write_text("".join(lines))
    with pytest.raises(fl.DataError, match="readable rows where `e` changes") as caught:
        fl.TimeWindows(fl.JSONLinesDeserializer(path, streams), {"x": (0,)}, within="e")
    assert "lengths of the sequences" in str(caught.value)


@pytest.mark.parametrize("tolerance", [0.012, 0.03])
def test_windows_in_seconds_do_not_depend_on_other_episodes_of_the_chunk(tolerance):
    rng = np.random.default_rng(7)
    episode = np.arange(60) / 30 + rng.uniform(-0.012, 0.012, 60)
    gap = np.array([0.0, 1.0, 1.4, 2.0, 3.0])

    def windows_of(*times):
        count = sum(map(len, times))
        corpus = fl.ArrayDeserializer({"x": np.arange(count), "t": np.concatenate(times)})
        return fl.TimeWindows(
            corpus, {"x": (0, 0.5)}, within=[len(each) for each in times], seconds="t", tolerance=tolerance
        ).read(0)

    alone, beside = windows_of(episode), windows_of(episode, gap)
    readable = [i for i in range(60) if i not in alone.errors]
    assert readable == [i for i in range(60) if i not in beside.errors]
    assert alone["x"].rows[readable].tolist() == beside["x"].rows[readable].tolist()
    nearest = np.abs(episode - (episode[:, None] + 0.5)).argmin(1)
    assert all(alone["x"].rows[i, 1] == nearest[i] for i in readable)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(6))
def test_a_timestamp_that_is_not_finite_costs_its_sequence(wrong, place):
    times = np.array([0, 1, 0, 1, 5, 0.0])
    times[place] = wrong
    corpus = fl.ArrayDeserializer(
        {"x": fl.Value.from_dense(np.arange(6), [0, 2, 4, 5, 6]), "t": fl.Value.from_dense(times, [0, 2, 4, 5, 6])}
    )
    windows = fl.TimeWindows(corpus, {"x": (0, 1)}, seconds="t")
    errors = windows.read(0).errors
    assert list(errors) == [[0, 0, 1, 1, 2, 3][place]]
    assert "finite timestamps" in str(next(iter(errors.values())))
