"""Datasets of robots: frames of both versions, windows, exact resume, damage, and metadata that contradict."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import feedline as fl
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.feed.formats.robot_datasets import (
    CAMERA,
    FPS,
    PICTURE,
    SIZE,
    TASKS,
    pixels,
    statistics_of,
    write_robot,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
VERSIONS = ["v2.1", "v3.0"]
versions = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture(params=VERSIONS)
def robot(request, tmp_path):
    return write_robot(tmp_path / "robot", request.param, (7, 4, 9, 1, 5))


def with_videos(folder, version="v3.0", lengths=(7, 4, 9, 1, 5)):
    """A dataset with a camera, whose files are empty: addresses alone are read."""
    robot = write_robot(folder, version, lengths)
    change(folder / "meta/info.json", lambda info: info["features"].update(camera()))
    for episode in range(len(lengths)):
        path = folder / video_of(version, episode)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return robot


def camera():
    return {CAMERA: {"dtype": "video", "shape": [*SIZE, 3], "names": ["height", "width", "channels"]}}


def video_of(version, episode):
    if version == "v3.0":
        return f"videos/{CAMERA}/chunk-000/file-{episode // 3:03d}.mp4"
    return f"videos/chunk-{episode // 2:03d}/{CAMERA}/episode_{episode:06d}.mp4"


def change(path, edit):
    """Change a JSON file, or each object of a file of JSON Lines."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        edit(document)
        path.write_text(json.dumps(document))
        return
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edit(rows)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def change_table(path, edit):
    """Change the columns of a Parquet file, as lists by name."""
    table = pq.read_table(path)
    columns = table.to_pydict()
    edit(columns)
    kinds = {name: table.schema.field(name).type for name in columns}
    for name, column in columns.items():
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError):  # else of the type of its new values
            columns[name] = pa.array(column, kinds[name])
    pq.write_table(pa.table(columns), path)


def read_all(corpus):
    """Every stream of a corpus, as a list of samples, and the number of unreadable frames."""
    chunks = [corpus.read(number) for number in range(len(corpus.chunks()))]
    assert [chunk.num_sequences for chunk in chunks] == [info.sequences for info in corpus.chunks()]
    streams = {name: [sample for chunk in chunks for sample in chunk[name].tolist()] for name in corpus.schema}
    return streams, sum(len(chunk.errors) for chunk in chunks)


# ---- values -------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("group", [None, 3, 1000])
def test_frames_are_sequences_with_the_features_as_streams(tmp_path, version, group):
    robot = write_robot(tmp_path, version, (7, 4, 9, 1, 5), pictures=True, group=group)
    corpus = fl.open_corpus(tmp_path)
    assert isinstance(corpus, fl.LeRobotDeserializer)
    read, unreadable = read_all(corpus)
    assert (list(read), unreadable) == ([*robot.columns, "task"], 0)
    assert read.pop("task") == [TASKS[i] for i in robot.columns["task_index"]]
    for name, column in robot.columns.items():
        assert read[name] == (column if isinstance(column, list) else column.tolist())
        if name != PICTURE:
            stream = corpus.schema[name]
            assert (stream.shape, stream.dtype) == (column.shape[1:], column.dtype)
    assert corpus.schema[PICTURE].kind == "bytes"


@versions
def test_metadata_are_attributes(tmp_path, version):
    robot = write_robot(tmp_path, version)
    corpus = fl.LeRobotDeserializer(tmp_path)
    assert (corpus.fps, corpus.tasks) == (FPS, dict(enumerate(TASKS)))
    assert corpus.episode_lengths.tolist() == robot.lengths
    expected = statistics_of(robot.columns, 0, sum(robot.lengths))
    assert {name: list(of) for name, of in corpus.stats.items()} == {name: list(of) for name, of in expected.items()}
    for name, of in expected.items():
        for key, numbers in of.items():
            np.testing.assert_allclose(corpus.stats[name][key], numbers, rtol=1e-6)


def test_statistics_are_optional(tmp_path):
    write_robot(tmp_path)
    (tmp_path / "meta/stats.json").unlink()
    assert fl.LeRobotDeserializer(tmp_path).stats == {}


@versions
def test_frames_of_video_are_addresses_in_the_middle_of_their_time(tmp_path, version):
    robot = with_videos(tmp_path / "a # 50%", version)
    corpus = fl.open_corpus(robot.folder, streams={CAMERA: fl.Stream(dtype="str")})
    addresses, unreadable = read_all(corpus)
    assert (list(addresses), unreadable) == ([CAMERA], 0)
    expected, at = [], 0
    for episode, length in enumerate(robot.lengths):
        begin = (at - sum(robot.lengths[: episode // 3 * 3])) / FPS if version == "v3.0" else 0.0
        path = f"{tmp_path}/a %23 50%25/{video_of(version, episode)}"
        times = robot.columns["timestamp"][at : at + length].astype(np.float64)
        expected += [f"{path}#t={begin + time + 0.05!r}" for time in times.tolist()]
        at += length
    assert addresses[CAMERA] == expected


def test_the_rate_of_a_video_may_be_another(tmp_path):
    with_videos(tmp_path)
    change(tmp_path / "meta/info.json", lambda info: info["features"][CAMERA].update(info={"video.fps": 20}))
    addresses, _ = read_all(fl.LeRobotDeserializer(tmp_path, [CAMERA]))
    assert [float(text.partition("#t=")[2]) for text in addresses[CAMERA][:2]] == [
        0.025,
        0.025 + float(np.float32(0.1)),
    ]


def test_streams_are_chosen_and_renamed(robot):
    corpus = fl.LeRobotDeserializer(robot.folder, ["action", "task"])
    assert list(read_all(corpus)[0]) == ["action", "task"]
    # Also to the names of what addresses and texts are looked up by.
    streams = {"timestamp": fl.Stream(6, field="observation.state"), "text": fl.Stream(dtype="str", field="task")}
    read, _ = read_all(fl.open_corpus(robot.folder, streams=streams))
    assert read["timestamp"] == robot.columns["observation.state"].tolist()
    assert read["text"] == [TASKS[i] for i in robot.columns["task_index"]]
    for name, message in {
        "velocity": "one of observation.state, action,",
        CAMERA: "got 'observation.images.cam'",
    }.items():
        with pytest.raises(fl.SchemaError, match=message):
            fl.LeRobotDeserializer(robot.folder, [name])
    with pytest.raises(fl.SchemaError, match=r"expected Stream\(shape=\(2,\), dtype='float32'\) for stream `action`"):
        fl.LeRobotDeserializer(robot.folder, {"action": fl.Stream(3)})
    with pytest.raises(TypeError, match=r"write \['action'\]"):
        fl.LeRobotDeserializer(robot.folder, "action")


def test_selected_frames_are_those_of_chunks(tmp_path):
    with_videos(tmp_path)
    corpus = fl.LeRobotDeserializer(tmp_path)
    read, _ = read_all(corpus)
    ordinals = np.array([25, 0, 7, 7, 12])
    chosen = corpus.select(ordinals)
    assert {name: value.tolist() for name, value in chosen.values.items()} == {
        name: [samples[i] for i in ordinals] for name, samples in read.items()
    }


def test_it_is_pickled_and_identified_by_content_not_by_place(tmp_path):
    with_videos(tmp_path / "a")
    corpus = fl.LeRobotDeserializer(tmp_path / "a", memory=1 << 20)
    again = pickle.loads(pickle.dumps(corpus))
    assert (read_all(again), again.digest()) == (read_all(corpus), corpus.digest())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert fl.LeRobotDeserializer(tmp_path / "b").digest() == corpus.digest()
    for path, edit in {
        "meta/tasks.parquet": lambda columns: columns["__index_level_0__"].reverse(),
        "meta/episodes/chunk-000/file-000.parquet": lambda c: c[f"videos/{CAMERA}/from_timestamp"].reverse(),
        "data/chunk-000/file-000.parquet": lambda columns: columns["next.reward"].reverse(),
    }.items():
        shutil.copytree(tmp_path / "a", tmp_path / "c")
        change_table(tmp_path / "c" / path, edit)
        assert fl.LeRobotDeserializer(tmp_path / "c").digest() != corpus.digest()
        shutil.rmtree(tmp_path / "c")
    (tmp_path / "b" / video_of("v3.0", 0)).write_bytes(b"another")
    assert fl.LeRobotDeserializer(tmp_path / "b").digest() != corpus.digest()


def test_a_dataset_of_the_hub_is_read_at_its_address(tmp_path):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    from tests.servers.hub import Hub

    robot = with_videos(tmp_path / "robot")
    (tmp_path / "robot" / video_of("v3.0", 0)).write_bytes(b"a video")
    (tmp_path / "robot" / video_of("v3.0", 3)).write_bytes(b"a video")
    files = {str(p.relative_to(robot.folder)): p.read_bytes() for p in robot.folder.rglob("*") if p.is_file()}
    with Hub("me/arm") as server:
        server.commits["1" * 40], server.branches["main"] = files, "1" * 40
        remote = fl.Remote(tmp_path / "cache", storage_options={"endpoint": server.url}, deadline_s=10)
        corpus = fl.open_corpus("hf://datasets/me/arm", remote=remote)
        read, unreadable = read_all(corpus)
        local, _ = read_all(fl.LeRobotDeserializer(robot.folder))
        paths = [text.partition("#")[0] for text in read.pop(CAMERA)]
        assert [
            path.endswith(text.partition("#")[0][-30:]) for path, text in zip(paths, local.pop(CAMERA), strict=True)
        ]
        assert all(os.path.isabs(path) and os.path.exists(path) for path in paths)
        assert (read, unreadable) == (local, 0)
        assert (corpus.fps, corpus.episode_lengths.tolist()) == (FPS, robot.lengths)
        with pytest.raises(AttributeError, match="velocity"):
            _ = corpus.velocity
        assert not any("mp4" in what and kind == "read" for kind, what in server.log)
        corpus.close()


# ---- windows and loaders ------------------------------------------------------------------------------


def plain_windows(robot, deltas):
    """What LeRobot delivers for times around a frame: the nearest frame of the episode, and what lies beyond it."""
    bounds = np.cumsum([0, *robot.lengths])
    episodes = robot.columns["episode_index"]
    items = []
    for frame in range(int(bounds[-1])):
        first, end = bounds[episodes[frame]], bounds[episodes[frame] + 1]
        item = {name: column[frame] for name, column in robot.columns.items()}
        for name, times in deltas.items():
            places = [frame + round(time * FPS) for time in times]
            item[name] = robot.columns[name][[min(max(at, first), end - 1) for at in places]]
            item[f"{name}_is_pad"] = [not first <= at < end for at in places]
        items.append({**item, "task": TASKS[robot.columns["task_index"][frame]]})
    return items


DELTAS = {"action": [k / FPS for k in range(5)], "observation.state": [-0.2, 0.0], "next.reward": [0.1]}


def windows_of(corpus, how):
    if how == "seconds":
        return fl.TimeWindows(corpus, DELTAS, within=corpus.episode_lengths, seconds="timestamp")
    offsets = {name: [round(time * corpus.fps) for time in times] for name, times in DELTAS.items()}
    within = "episode_index" if how == "stream" else corpus.episode_lengths
    return fl.TimeWindows(corpus, offsets, within=within)


@pytest.mark.parametrize("how", ["lengths", "stream", "seconds"])
def test_windows_are_those_of_delta_timestamps(robot, how):
    expected = plain_windows(robot, DELTAS)
    delivered = []
    for batch in fl.DataLoader(windows_of(fl.LeRobotDeserializer(robot.folder), how), batch_size=4, shuffle=False):
        delivered += [{name: column[i] for name, column in batch.items()} for i in range(len(batch["index"]))]
    assert len(delivered) == len(expected)
    for item, plain in zip(delivered, expected, strict=True):
        assert item.pop("task") == plain.pop("task")
        for name in DELTAS:
            assert item.pop(f"{name}_present").tolist() == [not padded for padded in plain.pop(f"{name}_is_pad")]
        assert item.keys() == plain.keys()
        for name, sample in plain.items():
            assert item[name].numpy().dtype == sample.dtype
            assert item[name].numpy().tobytes() == sample.tobytes(), name


@versions
def test_windows_resume_exactly(tmp_path, version):
    with_videos(tmp_path, version)

    def make_source():
        corpus = fl.open_corpus(tmp_path)
        windows = fl.TimeWindows(corpus, {"action": range(5), CAMERA: (-1, 0)}, within=corpus.episode_lengths)
        return fl.MinibatchSource(windows, shuffle=fl.Window(chunks=2), max_sweeps=2, seed=3)

    assert_resumes(make_source, sizes=(2, 7, 16), minibatches=2)


def test_a_run_goes_on_with_other_sizes_and_ranks(robot):
    def source(**options):
        windows = windows_of(fl.LeRobotDeserializer(robot.folder), "lengths")
        return fl.MinibatchSource(windows, shuffle=fl.Window(chunks=2), max_sweeps=2, seed=9, **options)

    whole = sequences_of(source().minibatches(6))
    for steps in range(0, 9, 2):
        first = source()
        before = sequences_of([first.next_minibatch(4) for _ in range(steps)])
        state = json.loads(json.dumps(first.state_dict()))
        ranks = [source(partition=(i, 3)) for i in range(3)]
        after = []
        for rank in ranks:
            rank.load_state_dict(state)
        for shares in zip(*(rank.minibatches(5) for rank in ranks), strict=True):
            after += [sequence for share in shares for sequence in sequences_of([share])]
        assert before + after == whole


def test_pictures_are_decoded_by_transforms_from_the_metadata(tmp_path):
    pytest.importorskip("PIL", reason="Pillow is not installed")
    robot = write_robot(tmp_path, pictures=True)
    streams = {"eye": fl.Stream(dtype="bytes", field=PICTURE), "task": fl.Stream(dtype="str")}
    corpus = fl.open_corpus(tmp_path, streams=streams)
    loader = fl.DataLoader(corpus, batch_size=8, shuffle=False, transforms=corpus.decoders())
    decoded = torch.cat([batch["eye"] for batch in loader])
    assert decoded.numpy().tolist() == [pixels(i).tolist() for i in range(sum(robot.lengths))]
    change(tmp_path / "meta/info.json", lambda info: info["features"][PICTURE].update(shape=[*SIZE]))
    with pytest.raises(fl.SchemaError, match=r"a shape \[height, width, channels\] of feature 'observation.image'"):
        fl.LeRobotDeserializer(tmp_path).decoders()


@pytest.mark.frameworks("av", "torchcodec")
@versions
def test_frames_of_video_are_decoded_where_they_belong(tmp_path, version):
    """Pixels are those of torchcodec for the whole file, and near to what was encoded for this frame."""
    from torchcodec.decoders import VideoDecoder

    robot = write_robot(tmp_path, version, (7, 4, 9, 1, 5), videos=True)
    files = sorted((tmp_path / "videos").rglob("*.mp4"))
    frames = torch.cat([VideoDecoder(str(file), dimension_order="NHWC")[:] for file in files])
    assert len(frames) == sum(robot.lengths)
    for number, frame in enumerate(frames):
        assert abs(frame.numpy().astype(int) - pixels(number)).mean() < 6
    firsts = np.repeat(np.cumsum([0, *robot.lengths])[:-1], robot.lengths)
    places = np.maximum(np.arange(len(frames))[:, None] + np.array([-1, 0]), firsts[:, None])
    corpus = fl.open_corpus(tmp_path)
    windows = fl.TimeWindows(corpus, {CAMERA: (-1, 0)}, within=corpus.episode_lengths)
    loader = fl.DataLoader(windows, batch_size=8, shuffle=True, seed=2, transforms=corpus.decoders())
    for _ in range(2):
        batches = list(loader)
        decoded, at = (torch.cat([batch[name] for batch in batches]) for name in (CAMERA, "index"))
        assert at.tolist() != sorted(at.tolist())
        assert sorted(at.tolist()) == list(range(len(frames)))
        assert torch.equal(decoded, frames[torch.from_numpy(places)[at]])


@pytest.mark.frameworks("av", "torchcodec")
def test_a_damaged_video_costs_its_frames(tmp_path):
    robot = write_robot(tmp_path, "v2.1", videos=True)
    path = tmp_path / f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
    path.write_bytes(b"no video" * 20)
    corpus = fl.LeRobotDeserializer(tmp_path)
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error="skip", transforms=corpus.decoders())
    delivered = [index for m in source.minibatches(5) for index in m["index"].rows.tolist()]
    assert delivered == [i for i in range(sum(robot.lengths)) if not 7 <= i < 11]
    with pytest.raises(fl.DataError, match=path.name):
        list(fl.DataLoader(corpus, batch_size=5, shuffle=False, transforms=corpus.decoders()))


# ---- damage -------------------------------------------------------------------------------------------


@versions
def test_damage_of_a_table_is_an_error_that_names_it(tmp_path, version):
    write_robot(tmp_path, version)
    path = sorted((tmp_path / "data").rglob("*.parquet"))[1]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(fl.DataError, match="footer") as caught:
        fl.LeRobotDeserializer(tmp_path)
    assert caught.value.path == str(path)
    damaged = bytearray(whole)
    damaged[8:200] = b"\xff" * 192
    path.write_bytes(damaged)
    corpus = fl.LeRobotDeserializer(tmp_path)
    with pytest.raises(fl.DataError) as caught:
        read_all(corpus)
    assert caught.value.path == str(path)


@versions
def test_missing_files_are_errors_when_opened(tmp_path, version):
    with_videos(tmp_path / "whole", version)
    names = [path.relative_to(tmp_path / "whole") for path in sorted((tmp_path / "whole").rglob("*")) if path.is_file()]
    for name in names:
        shutil.copytree(tmp_path / "whole", tmp_path / "part")
        (tmp_path / "part" / name).unlink()
        if "stats" in name.name:
            fl.LeRobotDeserializer(tmp_path / "part")
        else:
            with pytest.raises(fl.DataError) as caught:
                fl.LeRobotDeserializer(tmp_path / "part")
            assert name.parts[0] in str(caught.value.path), name
        shutil.rmtree(tmp_path / "part")


def test_a_folder_that_no_text_can_name_is_an_error(tmp_path):
    with_videos(tmp_path / "a")
    folder = (tmp_path / "a").rename(tmp_path / os.fsdecode(b"\xff"))
    with pytest.raises(fl.DataError, match="named in UTF-8"):
        fl.LeRobotDeserializer(folder)
    assert read_all(fl.LeRobotDeserializer(folder, ["action"]))[1] == 0


def test_streams_without_video_need_no_videos(tmp_path):
    with_videos(tmp_path)
    shutil.rmtree(tmp_path / "videos")
    with pytest.raises(fl.DataError, match=r"expected a video of 'observation.images.cam' from episode 0 on"):
        fl.LeRobotDeserializer(tmp_path)
    assert read_all(fl.LeRobotDeserializer(tmp_path, ["action", "task"]))[1] == 0


def test_frames_that_contradict_the_metadata_are_unreadable(tmp_path):
    with_videos(tmp_path)

    def edit(columns):
        columns["episode_index"][3] = 5
        columns["timestamp"][5] = float("nan")
        columns["task_index"][8] = 7

    change_table(tmp_path / "data/chunk-000/file-000.parquet", edit)
    errors = fl.LeRobotDeserializer(tmp_path).read(0).errors
    assert {i: error.stream for i, error in errors.items()} == {3: "episode_index", 5: "timestamp", 8: "task_index"}
    assert "the episode_index that the metadata have for this frame, got 5" in str(errors[3])
    loader = fl.DataLoader(fl.LeRobotDeserializer(tmp_path, ["index"]), batch_size=30, shuffle=False)
    with pytest.raises(fl.DataError, match="episode_index"):
        list(loader)


# ---- metadata -----------------------------------------------------------------------------------------

INFO = {
    "codebase_version='v1.6'": lambda info: info.update(codebase_version="v1.6"),
    "fps": lambda info: info.update(fps=0),
    "fps of bool": lambda info: info.update(fps=True),
    "features": lambda info: info.update(features=[]),
    "feature": lambda info: info["features"].update(action=3),
    "dtype": lambda info: info["features"]["action"].update(dtype="object"),
    "shape": lambda info: info["features"]["action"].update(shape=[-2]),
    "another shape": lambda info: info["features"]["action"].update(shape=[3]),
    "another dtype": lambda info: info["features"]["action"].update(dtype="float64"),
    "a column that is missing": lambda info: info["features"].update(gone=info["features"]["action"]),
    "a number as a vector": lambda info: info["features"]["next.reward"].update(shape=[2]),
    "a vector as a number": lambda info: info["features"]["action"].update(shape=[1]),
    "a time that is text": lambda info: info["features"]["timestamp"].update(dtype="string"),
    "no episodes": lambda info: info.update(total_episodes=0),
    "more episodes": lambda info: info.update(total_episodes=6),
    "more frames": lambda info: info.update(total_frames=27),
    "frames without end": lambda info: info.update(total_frames=10**40),
    "path": lambda info: info.update(data_path=7),
    "path with another field": lambda info: info.update(data_path="data/{robot}.parquet"),
    "path with an attribute": lambda info: info.update(data_path="data/{episode_index.__class__}.parquet"),
    "path of any width": lambda info: info.update(data_path="data/{episode_index:0999999999d}.parquet"),
    "path outside": lambda info: info.update(data_path="../{episode_index}.parquet"),
    "path of half a surrogate": lambda info: info.update(data_path="data/\ud800.parquet"),
    "absolute path": lambda info: info.update(video_path="/etc/passwd"),
    "no path of videos": lambda info: info.update(video_path=None),
    "rate of a video": lambda info: info["features"][CAMERA].update(info={"video.fps": -1}),
}


@versions
@pytest.mark.parametrize("what", INFO)
def test_info_that_is_wrong_is_an_error(tmp_path, version, what):
    with_videos(tmp_path, version)
    change(tmp_path / "meta/info.json", INFO[what])
    with pytest.raises((fl.DataError, fl.SchemaError)) as caught:
        fl.LeRobotDeserializer(tmp_path)
    assert str(tmp_path) in str(caught.value)


EPISODES_V2 = {
    "a length": lambda rows: rows[1].update(length=5),
    "a length of another kind": lambda rows: rows[1].update(length="4"),
    "an empty episode": lambda rows: rows[1].update(length=0),
    "one twice": lambda rows: rows[1].update(episode_index=0),
    "a negative one": lambda rows: rows[1].update(episode_index=-1),
    "none": lambda rows: rows.clear(),
    "one missing": lambda rows: rows.pop(),
    "a length without end": lambda rows: rows[1].update(length=10**30),
    "lengths exchanged": lambda rows: (rows[0].update(length=4), rows[1].update(length=7)),
}
EPISODES_V3 = {
    "a length": lambda c: c["length"].__setitem__(1, 5),
    "a negative length": lambda c: c["length"].__setitem__(1, -4),
    "a span": lambda c: c["dataset_to_index"].__setitem__(1, 2**62),
    "a place": lambda c: (c["dataset_from_index"].__setitem__(1, 8), c["dataset_to_index"].__setitem__(1, 12)),
    "one twice": lambda c: c["episode_index"].__setitem__(1, 0),
    "no number": lambda c: c.update(length=[str(n) for n in c["length"]]),
    "half a frame": lambda c: c.update(length=[n + 0.5 if n < 9 else 1e300 for n in c["length"]]),
    "a null": lambda c: c["length"].__setitem__(1, None),
    "a column missing": lambda c: c.pop("dataset_from_index"),
    "another file": lambda c: c["data/file_index"].__setitem__(1, 1),
    "a negative file": lambda c: c["data/file_index"].__setitem__(0, -1),
    "a video's file": lambda c: c[f"videos/{CAMERA}/file_index"].__setitem__(0, 9),
    "a time": lambda c: c[f"videos/{CAMERA}/from_timestamp"].__setitem__(0, float("nan")),
    "a negative time": lambda c: c[f"videos/{CAMERA}/from_timestamp"].__setitem__(0, -1.0),
    "a time that is text": lambda c: c.update({f"videos/{CAMERA}/from_timestamp": ["a"] * 5}),
}


@pytest.mark.parametrize(
    ("version", "what"), [*[("v2.1", w) for w in EPISODES_V2], *[("v3.0", w) for w in EPISODES_V3]]
)
def test_episodes_that_are_wrong_are_an_error(tmp_path, version, what):
    with_videos(tmp_path, version)
    if version == "v2.1":
        change(tmp_path / "meta/episodes.jsonl", EPISODES_V2[what])
    else:
        change_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet", EPISODES_V3[what])
    with pytest.raises((fl.DataError, fl.SchemaError)) as caught:
        fl.LeRobotDeserializer(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_episodes_of_a_file_follow_each_other(tmp_path):
    write_robot(tmp_path, lengths=(4, 4, 4), per_file=1)
    episodes = tmp_path / "meta/episodes/chunk-000/file-000.parquet"
    change_table(episodes, lambda columns: columns["data/file_index"].__setitem__(2, 0))
    with pytest.raises(fl.DataError, match="the episodes of a file one after the other"):
        fl.LeRobotDeserializer(tmp_path)


def test_files_outside_of_the_folder_are_not_read(tmp_path):
    write_robot(tmp_path / "robot")
    shutil.copytree(tmp_path / "robot" / "data", tmp_path / "others")
    inside = "chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    change(tmp_path / "robot/meta/info.json", lambda info: info.update(data_path=f"data/../../others/{inside}"))
    with pytest.raises(fl.DataError, match="a path within the folder as data_path"):
        fl.LeRobotDeserializer(tmp_path / "robot")


def test_lists_of_any_length_are_no_numbers(tmp_path):
    write_robot(tmp_path, lengths=(4, 3))
    path = tmp_path / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    lists = pa.array([[1.0] * (i % 3) for i in range(7)], pa.list_(pa.float32()))
    at = table.column_names.index("next.reward")
    pq.write_table(table.set_column(at, "next.reward", lists), path)
    with pytest.raises(fl.SchemaError, match="the shapes of the metadata"):
        fl.LeRobotDeserializer(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("meta/info.json", "[" * 100_000),
        ("meta/info.json", '"text"'),
        ("meta/episodes.jsonl", "{}\n" + "[" * 100_000),
        ("meta/episodes.jsonl", "7"),
        ("meta/tasks.jsonl", '{"task_index": 0, "task": 5}'),
        ("meta/tasks.jsonl", '{"task_index": 0, "task": "\\ud800"}'),
        ("meta/tasks.jsonl", '{"task_index": 0, "task": "a"}\n{"task_index": 0, "task": "b"}'),
        ("meta/episodes_stats.jsonl", '{"episode_index": 0, "stats": 3}'),
        ("meta/episodes_stats.jsonl", '{"episode_index": 0, "stats": {"action": {"mean": [1.5]}}}'),
        ("meta/stats.json", '{"action": {"mean": [[1], [2, 3]]}}'),
        ("meta/stats.json", '{"action": {"mean": ["a"]}}'),
        ("meta/stats.json", '{"action": 3}'),
    ],
)
def test_metadata_of_another_kind_are_an_error(tmp_path, name, text):
    write_robot(tmp_path, "v2.1")
    (tmp_path / name).write_text(text)
    with pytest.raises(fl.DataError) as caught:
        fl.LeRobotDeserializer(tmp_path)
    assert caught.value.path == str(tmp_path / name)


def test_no_change_of_metadata_crashes(tmp_path):
    """Each change is an error that says so, or the right number of frames."""
    rng = random.Random(4)
    outcomes = set()
    for version in VERSIONS:
        with_videos(tmp_path / version, version)
        names = (
            ["meta/info.json", "meta/stats.json"] if version == "v3.0" else ["meta/info.json", "meta/episodes.jsonl"]
        )
        whole = {name: (tmp_path / version / name).read_bytes() for name in names}
        for _ in range(examples(60)):
            name = rng.choice(names)
            (tmp_path / version / name).write_bytes(mutated(whole[name], rng))
            try:
                corpus = fl.LeRobotDeserializer(tmp_path / version)
                read, _ = read_all(corpus)
                assert {len(samples) for samples in read.values()} == {26}
                outcomes.add("read")
            except (fl.DataError, fl.SchemaError):
                outcomes.add("refused")
            (tmp_path / version / name).write_bytes(whole[name])
    assert outcomes == {"read", "refused"}


def mutated(content, rng):
    """A file of JSON with a value replaced, or with bytes that are damaged."""
    if rng.random() < 0.3:
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        return bytes(damaged)
    rows = [json.loads(line) for line in content.split(b"\n") if line]
    replace_one(rows, rng)
    return b"\n".join(json.dumps(row).encode() for row in rows)


def replace_one(document, rng):
    """Replace a value somewhere in lists and objects, in place."""
    while True:
        keys = list(document) if isinstance(document, dict) else range(len(document))
        key = rng.choice(list(keys))
        if isinstance(document[key], (dict, list)) and document[key] and rng.random() < 0.8:
            document = document[key]
            continue
        document[key] = copy.deepcopy(
            rng.choice([None, True, -1, 0, 3, 2**63, 1e300, "", "video", "../x", [], [1], {}])
        )
        return
