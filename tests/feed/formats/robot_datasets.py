"""Small datasets of robots in LeRobot's layouts, version 2.1 and 3.0, and what their frames should be."""

from __future__ import annotations

import io
import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

CAMERA, PICTURE = "observation.images.cam", "observation.image"
TASKS = ("pick", "räume auf")
FPS = 10
SIZE = (32, 48)


class Robot(NamedTuple):
    """A dataset: its folder, and the columns of all frames as arrays and lists."""

    folder: object
    columns: dict
    lengths: list


def columns_of(lengths, seed=0):
    """The columns of all frames, with a task that depends on the episode."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    within = np.concatenate([np.arange(n) for n in lengths])
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    return {
        "observation.state": rng.normal(size=(count, 6)).astype(np.float32),
        "action": rng.normal(size=(count, 2)).astype(np.float32),
        "next.reward": rng.normal(size=count).astype(np.float32),
        "next.done": within == np.repeat(lengths, lengths) - 1,
        "grid": rng.normal(size=(count, 3, 4)).astype(np.float32),
        "timestamp": (within / FPS).astype(np.float32),
        "frame_index": within,
        "episode_index": episodes,
        "index": np.arange(count),
        "task_index": episodes % len(TASKS),
    }


def picture(frame):
    """A PNG whose pixels depend on the frame."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels(frame)).save(file, "PNG")
    return file.getvalue()


def pixels(frame):
    """The pixels of a frame: uint8 (32, 48, 3), smooth, as videos are."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    channels = [rows * 4 + frame * 7, columns * 3 + frame * 11, rows + columns + frame * 5]
    return np.stack([128 + 100 * np.sin(channel / 40) for channel in channels], axis=-1).astype(np.uint8)


def write_robot(folder, version="v3.0", lengths=(7, 4, 9), *, videos=False, pictures=False, per_file=2, group=None):
    """Write a dataset.

    Args:
        folder: its folder.
        version: of the layout.
        lengths: frames of each episode.
        videos, pictures: whether there is a camera of each kind.
        per_file: episodes in a file, of version 3.
        group: rows in a row group. None: each episode is one.
    """
    lengths, columns = list(lengths), columns_of(lengths)
    if pictures:
        columns[PICTURE] = [picture(i) for i in range(sum(lengths))]
    _write_json(folder / "meta" / "info.json", _info(version, columns, lengths, videos=videos))
    bounds = np.cumsum([0, *lengths])
    (_write_v3 if version == "v3.0" else _write_v2)(folder, columns, bounds, videos, per_file, group)
    return Robot(folder, columns, lengths)


def _info(version, columns, lengths, *, videos):
    features = {}
    for name, column in columns.items():
        if name == PICTURE:
            features[name] = {"dtype": "image", "shape": [*SIZE, 3], "names": ["height", "width", "channels"]}
        else:
            features[name] = {"dtype": column.dtype.name, "shape": list(column.shape[1:]) or [1], "names": None}
    if videos:
        features[CAMERA] = {"dtype": "video", "shape": [3, *SIZE], "names": ["channels", "height", "width"]}
    inside = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    paths = {"data_path": f"data/{inside}.parquet", "video_path": f"videos/{{video_key}}/{inside}.mp4"}
    if version != "v3.0":
        inside = "chunk-{episode_chunk:03d}"
        paths = {
            "data_path": f"data/{inside}/episode_{{episode_index:06d}}.parquet",
            "video_path": f"videos/{inside}/{{video_key}}/episode_{{episode_index:06d}}.mp4",
        }
    counts = {"total_episodes": len(lengths), "total_frames": sum(lengths), "total_tasks": 2, "chunks_size": 2}
    return {"codebase_version": version, "robot_type": "arm", "fps": FPS, **counts, **paths, "features": features}


def _write_v2(folder, columns, bounds, videos, per_file, group):
    episodes, statistics = [], []
    for number, (first, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        path = folder / f"data/chunk-{number // 2:03d}/episode_{number:06d}.parquet"
        _write_table(path, columns, [(first, end)], group)
        tasks = sorted({TASKS[i] for i in columns["task_index"][first:end]})
        episodes.append({"episode_index": number, "tasks": tasks, "length": end - first})
        statistics.append({"episode_index": number, "stats": statistics_of(columns, first, end)})
        if videos:
            write_video(folder / f"videos/chunk-{number // 2:03d}/{CAMERA}/episode_{number:06d}.mp4", range(first, end))
    _write_lines(folder / "meta" / "episodes.jsonl", episodes)
    _write_lines(folder / "meta" / "episodes_stats.jsonl", statistics)
    _write_lines(folder / "meta" / "tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(TASKS)])


def _write_v3(folder, columns, bounds, videos, per_file, group):
    spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    rows = []
    for number in range(0, len(spans), per_file):
        inside = spans[number : number + per_file]
        _write_table(folder / f"data/chunk-000/file-{number // per_file:03d}.parquet", columns, inside, group)
    for number, (first, end) in enumerate(spans):
        place = number // 3  # other files than those of the tables
        begin = first - spans[place * 3][0]
        rows.append(
            {
                "episode_index": number,
                "tasks": [TASKS[number % 2]],
                "length": end - first,
                "dataset_from_index": first,
                "dataset_to_index": end,
                "data/chunk_index": 0,
                "data/file_index": number // per_file,
                f"videos/{CAMERA}/chunk_index": 0,
                f"videos/{CAMERA}/file_index": place,
                f"videos/{CAMERA}/from_timestamp": begin / FPS,
                f"videos/{CAMERA}/to_timestamp": (begin + end - first) / FPS,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
    for place in range(0, len(spans), 3) if videos else ():
        frames = range(spans[place][0], spans[min(place + 3, len(spans)) - 1][1])
        write_video(folder / f"videos/{CAMERA}/chunk-000/file-{place // 3:03d}.mp4", frames)
    _save(pa.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": np.arange(len(TASKS)), "__index_level_0__": pa.array(TASKS, pa.large_string())})
    index = {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {"index_columns": ["__index_level_0__"], "columns": [index], "column_indexes": [], "pandas_version": "2"}
    _save(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), folder / "meta/tasks.parquet")
    _write_json(folder / "meta/stats.json", statistics_of(columns, 0, int(bounds[-1])))


def statistics_of(columns, first, end):
    """The statistics of some frames, as they are written."""
    statistics = {}
    for name in ("action", "observation.state", "next.reward"):
        rows = columns[name][first:end].astype(np.float64).reshape(end - first, -1)
        statistics[name] = {key: getattr(rows, key)(axis=0).tolist() for key in ("min", "max", "mean", "std")}
        statistics[name]["count"] = [end - first]
    return statistics


def write_video(path, frames):
    """Write frames as H.264, one keyframe in four."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "4", "crf": "18"})
        stream.height, stream.width, stream.pix_fmt = *SIZE, "yuv420p"
        for frame in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels(frame), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def arrow_table(columns, first, end):
    """Some frames as LeRobot writes them: vectors of a fixed size, matrices as lists of lists."""
    arrays = {}
    for name, column in columns.items():
        rows = column[first:end]
        if name == PICTURE:
            fields = [pa.array(rows, pa.binary()), pa.array([f"frame-{i}.png" for i in range(first, end)])]
            arrays[name] = pa.StructArray.from_arrays(fields, ["bytes", "path"])
        elif rows.ndim == 2:
            arrays[name] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        elif rows.ndim == 3:
            arrays[name] = pa.array(rows.tolist(), pa.list_(pa.list_(pa.float32())))
        else:
            arrays[name] = pa.array(rows)
    return pa.table(arrays)


def _write_table(path, columns, spans, group):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = arrow_table(columns, spans[0][0], spans[-1][1])
    with pq.ParquetWriter(path, table.schema) as writer:
        for first, end in spans if group is None else [(spans[0][0], spans[-1][1])]:
            piece = table.slice(first - spans[0][0], end - first)
            writer.write_table(piece, row_group_size=group)


def _save(table, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _write_json(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def _write_lines(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
