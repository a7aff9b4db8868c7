"""A robot in a plane, and a dataset of its episodes in LeRobot's layout: data for examples, pages and benchmarks.

The robot is a point. A red and a blue disc lie somewhere, the task names one of them, and the expert moves there in
steps of at most `STEP`. A camera looks down. An episode of a seed is the same whatever else is made.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

FPS = 10
SIDE = 32
"""Height and width of pictures."""
STEP = 0.1
"""The longest way of an action in each direction."""
TASKS = ("reach the red disc", "reach the blue disc")
CAMERA = "observation.images.top"
EPISODES_PER_FILE = 50

_COLOURS = np.array([[230, 40, 40], [40, 60, 230], [240, 240, 240]], np.float64)  # discs, robot
_RADII = (0.2, 0.2, 0.12)

Floats = NDArray[np.float32]


class Plane:
    """An episode: two discs, a task, and the position of the robot.

    Args:
        seed, number: which episode.

    Attributes:
        task: 0 or 1, the disc to reach.
        position: of the robot, float64 (2,), from -1 to 1.
    """

    def __init__(self, seed: int, number: int) -> None:
        rng = np.random.default_rng([seed, number])
        self.task = int(rng.integers(2))
        self.discs, self.position = rng.uniform(-0.9, 0.9, (2, 2)), rng.uniform(-0.9, 0.9, 2)

    @property
    def distance(self) -> float:
        """Distance of the robot from the disc to reach."""
        return float(np.abs(self.discs[self.task] - self.position).max())

    def expert(self) -> NDArray[np.float64]:
        """Return the action of the expert: a step towards the disc."""
        action: NDArray[np.float64] = np.clip(self.discs[self.task] - self.position, -STEP, STEP)
        return action

    def move(self, action: Sequence[float] | NDArray[Any]) -> None:
        """Move the robot by an action (2,)."""
        self.position = np.clip(self.position + np.clip(action, -STEP, STEP), -1, 1)

    def picture(self) -> NDArray[np.uint8]:
        """Return what the camera sees: uint8 (SIDE, SIDE, 3)."""
        axis = np.linspace(-1, 1, SIDE)
        pixels = np.full((SIDE, SIDE, 3), 20.0)
        for place, radius, colour in zip([*self.discs, self.position], _RADII, _COLOURS, strict=True):
            away = np.hypot(axis[None, :] - place[0], axis[:, None] - place[1])
            cover = np.clip((radius - away) * SIDE / 2, 0, 1)[..., None]
            pixels = pixels * (1 - cover) + colour * cover
        return pixels.round().astype(np.uint8)


def write_episodes(folder: Path | str, episodes: int, *, seed: int = 0, camera: str = "image") -> None:
    """Write episodes of the expert as a dataset of version 3.0.

    Args:
        folder: folder to write.
        episodes: number of episodes.
        seed: seed of all of them.
        camera: ``"image"`` for pictures in tables (by Pillow), ``"video"`` for videos (by PyAV), or ``"none"``.
    """
    root = Path(folder)
    rows: list[dict[str, Any]] = []
    first = 0
    for begin in range(0, episodes, EPISODES_PER_FILE):
        numbers = range(begin, min(begin + EPISODES_PER_FILE, episodes))
        place = begin // EPISODES_PER_FILE
        tables: list[Any] = []
        pictures: list[NDArray[np.uint8]] = []
        for number in numbers:
            columns, seen = _episode(seed, number, first, pictures=camera != "none")
            length = len(columns["index"])
            video: dict[str, float] = {"chunk_index": 0, "file_index": place}
            video |= {"from_timestamp": len(pictures) / FPS, "to_timestamp": (len(pictures) + length) / FPS}
            rows.append(
                {
                    "episode_index": number,
                    "length": length,
                    "dataset_from_index": first,
                    "dataset_to_index": first + length,
                    "data/chunk_index": 0,
                    "data/file_index": place,
                    **{f"videos/{CAMERA}/{key}": value for key, value in video.items() if camera == "video"},
                }
            )
            tables.append(_table(columns, seen if camera == "image" else []))
            pictures += seen
            first += length
        _save(pa.concat_tables(tables), root / f"data/chunk-000/file-{place:03d}.parquet")
        if camera == "video":
            _write_video(root / f"videos/{CAMERA}/chunk-000/file-{place:03d}.mp4", pictures)
    _save(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    _save(pa.table({"task_index": [0, 1], "task": list(TASKS)}), root / "meta/tasks.parquet")
    (root / "meta/info.json").write_text(json.dumps(_info(episodes, first, camera), indent=4))


def _episode(
    seed: int, number: int, first: int, *, pictures: bool
) -> tuple[dict[str, NDArray[Any]], list[NDArray[np.uint8]]]:
    """Return the columns of an episode, and its pictures."""
    plane = Plane(seed, number)
    states: list[NDArray[Any]] = []
    actions: list[NDArray[Any]] = []
    seen: list[NDArray[np.uint8]] = []
    while not actions or plane.distance > STEP / 2:
        states.append(plane.position)
        actions.append(plane.expert())
        if pictures:
            seen.append(plane.picture())
        plane.move(actions[-1])
    count = len(actions)
    columns: dict[str, NDArray[Any]] = {
        "observation.state": np.array(states, np.float32),
        "action": np.array(actions, np.float32),
        "timestamp": (np.arange(count) / FPS).astype(np.float32),
        "frame_index": np.arange(count),
        "episode_index": np.full(count, number),
        "index": np.arange(first, first + count),
        "task_index": np.full(count, plane.task),
    }
    return columns, seen


def _table(columns: dict[str, NDArray[Any]], pictures: list[NDArray[np.uint8]]) -> pa.Table:
    arrays = {
        name: pa.array(column)
        if column.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])
        for name, column in columns.items()
    }
    if pictures:
        encoded = [pa.array([_png(pixels) for pixels in pictures]), pa.nulls(len(pictures), pa.string())]
        arrays[CAMERA] = pa.StructArray.from_arrays(encoded, ["bytes", "path"])
    return pa.table(arrays)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _write_video(path: Path, pictures: list[NDArray[np.uint8]]) -> None:
    import av  # type: ignore[import-not-found, unused-ignore]

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "10", "crf": "18"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for pixels in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _info(episodes: int, frames: int, camera: str) -> dict[str, Any]:
    inside = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    features: dict[str, Any] = {
        name: {"dtype": dtype, "shape": [size], "names": None}
        for name, dtype, size in (
            ("observation.state", "float32", 2),
            ("action", "float32", 2),
            ("timestamp", "float32", 1),
            ("frame_index", "int64", 1),
            ("episode_index", "int64", 1),
            ("index", "int64", 1),
            ("task_index", "int64", 1),
        )
    }
    if camera != "none":
        features[CAMERA] = {"dtype": camera, "shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": "v3.0",
        "robot_type": "point",
        "fps": FPS,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": len(TASKS),
        "data_path": f"data/{inside}.parquet",
        "video_path": f"videos/{{video_key}}/{inside}.mp4" if camera == "video" else None,
        "features": features,
    }


def _save(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
