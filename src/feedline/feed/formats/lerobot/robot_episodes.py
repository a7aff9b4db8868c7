"""The episodes and tasks of a robot dataset: how long they are, and in which files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data.schema import encodable
from feedline.errors import DataError
from feedline.feed.formats.lerobot.robot_info import HINT, RobotInfo
from feedline.feed.formats.lerobot.robot_tables import (
    TableColumns,
    integer,
    json_lines,
    parquet_files,
    text_column,
)
from feedline.feed.protocol import Ints

_V3_NUMBERS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")


class EpisodeVideos(NamedTuple):
    """The videos of one camera.

    Attributes:
        files: the file that each episode is in.
        begins_s: where in its file each episode begins, in seconds, float64 (episodes,).
    """

    files: list[Path]
    begins_s: NDArray[np.float64]


class RobotEpisodes(NamedTuple):
    """The episodes of a dataset, in order.

    Attributes:
        numbers: their ``episode_index``, int64 (episodes,), ascending.
        lengths: their frames, int64 (episodes,).
        files: the Parquet files, in the order of their episodes.
        counts: episodes in each of these files.
        videos: videos by the name of their feature.
    """

    numbers: Ints
    lengths: Ints
    files: list[Path]
    counts: list[int]
    videos: dict[str, EpisodeVideos]


def read_episodes(info: RobotInfo, cameras: Iterable[str]) -> RobotEpisodes:
    """Return the episodes of a dataset. Looks at no file outside of its folder meta.

    Args:
        info: the dataset.
        cameras: names of the features of video that are read.

    Raises:
        DataError: metadata are missing, damaged, or contradict each other.
        SchemaError: a column of metadata is missing.
    """
    episodes = (_v3_episodes if info.is_v3 else _v2_episodes)(info, list(cameras))
    frames = sum(episodes.lengths.tolist())
    if (len(episodes.numbers), frames) != (info.episodes, info.frames):
        raise info.error(
            f"total_episodes {len(episodes.numbers)} and total_frames {frames}, as the metadata of episodes say",
            f"{info.episodes} and {info.frames}",
        )
    return episodes


def read_tasks(info: RobotInfo) -> dict[int, str]:
    """Return the texts of tasks by ``task_index``.

    Raises:
        DataError: the metadata are missing or damaged.
        SchemaError: a column of them is missing.
    """
    meta = info.folder / "meta"
    tasks: dict[int, str] = {}
    if info.is_v3:
        path = meta / "tasks.parquet"
        name = text_column(path)
        columns = TableColumns([path], ["task_index", name])
        numbers = columns.integers("task_index").tolist()
        tasks.update(zip(numbers, columns.texts(name), strict=True))
    else:
        path, numbers = meta / "tasks.jsonl", []
        for row, error in json_lines(path):
            numbers.append(integer(row, "task_index", error))
            text = row.get("task")
            if not isinstance(text, str) or not encodable(text):
                raise error("a text as task", text)
            tasks[numbers[-1]] = text
    if len(tasks) != len(numbers):
        raise DataError("expected each task_index once, got one twice", path=str(path), hint=HINT)
    return tasks


# ---- version 2: a file for each episode -----------------------------------------------------------------


def _v2_episodes(info: RobotInfo, cameras: list[str]) -> RobotEpisodes:
    path = info.folder / "meta" / "episodes.jsonl"
    lengths: dict[int, int] = {}
    for row, error in json_lines(path):
        number = integer(row, "episode_index", error)
        if number in lengths:
            raise error("each episode_index once", number)
        lengths[number] = integer(row, "length", error)
        if not lengths[number]:
            raise error("a length of at least 1", 0)
    numbers = sorted(lengths)

    def fields(number: int) -> dict[str, int]:
        return {"episode_chunk": number // info.chunks_size, "episode_index": number}

    files = [info.file("data_path", fields(number)) for number in numbers]
    videos = {
        name: EpisodeVideos(
            [info.file("video_path", {**fields(number), "video_key": name}) for number in numbers],
            np.zeros(len(numbers)),
        )
        for name in cameras
    }
    return RobotEpisodes(
        np.array(numbers, np.int64), np.array([lengths[n] for n in numbers], np.int64), files, [1] * len(files), videos
    )


# ---- version 3: files with several episodes -------------------------------------------------------------


def _v3_episodes(info: RobotInfo, cameras: list[str]) -> RobotEpisodes:
    folder = info.folder / "meta" / "episodes"
    numbered = ["data", *(f"videos/{name}" for name in cameras)]
    names = [*_V3_NUMBERS, *(f"{key}/{what}_index" for key in numbered for what in ("chunk", "file"))]
    columns = TableColumns(parquet_files(folder), [*names, *(f"videos/{name}/from_timestamp" for name in cameras)])
    integers = {name: columns.integers(name) for name in names}
    in_order = np.argsort(integers["episode_index"], kind="stable")
    integers = {name: column[in_order] for name, column in integers.items()}
    numbers, lengths = integers["episode_index"], integers["length"]

    def error(what: str, bad: NDArray[np.bool_]) -> DataError:
        number = int(numbers[int(np.flatnonzero(bad)[0])])
        return DataError(f"expected {what}, got another for episode {number}", path=str(folder), hint=HINT)

    for what, bad in (
        ("each episode_index once, from 0 on", np.diff(numbers, prepend=-1) < 1),
        ("a length of at least 1", (lengths < 1) | (lengths > info.frames)),
        ("dataset_to_index - dataset_from_index as length", _spans(integers) != lengths),
        ("a dataset_from_index at the end of the episode before", _before(lengths) != integers["dataset_from_index"]),
        *((f"{name} from 0 on", integers[name] < 0) for name in names[len(_V3_NUMBERS) :]),
    ):
        if bad.any():
            raise error(what, bad)
    files, counts = _runs(_file_paths(info, "data_path", integers, "data"))
    if len(set(files)) < len(files):
        raise DataError("expected the episodes of a file one after the other, got others between", path=str(folder))
    videos = {
        name: EpisodeVideos(
            _file_paths(info, "video_path", integers, f"videos/{name}", video_key=name),
            columns.times(f"videos/{name}/from_timestamp")[in_order],
        )
        for name in cameras
    }
    return RobotEpisodes(numbers, lengths, files, counts, videos)


def _spans(integers: dict[str, Ints]) -> Ints:
    return integers["dataset_to_index"] - integers["dataset_from_index"]


def _before(lengths: Ints) -> Ints:
    return np.cumsum(lengths) - lengths


def _file_paths(info: RobotInfo, key: str, integers: dict[str, Ints], of: str, **fields: str) -> list[Path]:
    pairs = list(zip(integers[f"{of}/chunk_index"].tolist(), integers[f"{of}/file_index"].tolist(), strict=True))
    paths = {pair: info.file(key, {"chunk_index": pair[0], "file_index": pair[1], **fields}) for pair in set(pairs)}
    return [paths[pair] for pair in pairs]


def _runs(files: list[Path]) -> tuple[list[Path], list[int]]:
    """Return the files without repetitions that follow each other, and how often each is repeated."""
    runs: list[Path] = []
    counts: list[int] = []
    for file in files:
        if runs and runs[-1] == file:
            counts[-1] += 1
        else:
            runs.append(file)
            counts.append(1)
    return runs, counts
