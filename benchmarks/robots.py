"""How fast are windows of a robot's episodes?

Measured: a dataset in LeRobot's layout, version 3.0: 10,000 episodes of 100 frames, with 14 states and actions a frame
and two cameras. A window has 50 actions and the last two frames of each camera. Unit: windows a second, by CPU time of
all threads, in minibatches of 256.

- Without decoding, from the second sweep on, when tables are in memory. Peer: NumPy's indexing of the same arrays by
  places that are known, from memory: actions, addresses of one length, and masks.
- Without decoding, the first sweep included. Peer: `LeRobotDataset` in torch's loader, without cameras, which it cannot
  leave undecoded.
- With two cameras, 256 × 256, H.264, in a smaller dataset. Peer: the same, with torchcodec.

The peers run where the packages lerobot and torchcodec are installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import feedline as fl
from benchmarks.harness import Answer, Stage, Target, compare, race

FRAMES, WIDTH, FPS, SIDE = 100, 14, 50, 256
CAMERAS = ("observation.images.left", "observation.images.right")
PER_FILE, BATCH, ACTIONS = 1_000, 256, 50


def run(stage: Stage) -> list[Answer]:
    """Windows without decoding, and with it."""
    answers = [in_memory(stage), first_sweep(stage)]
    if importlib.util.find_spec("av") is not None and importlib.util.find_spec("torchcodec") is not None:
        answers.append(decoded(stage))
    return answers


def windows_of(folder: Path, *, cameras: bool) -> fl.TimeWindows:
    corpus = fl.LeRobotDeserializer(folder, ["action", *(CAMERAS if cameras else ())])
    offsets = {"action": range(ACTIONS), **{name: (-1, 0) for name in CAMERAS if cameras}}
    return fl.TimeWindows(corpus, offsets, within=corpus.episode_lengths)


def in_memory(stage: Stage) -> Answer:
    """Windows whose tables are in memory."""
    episodes = stage.size(10_000, 100)
    folder = write_dataset(stage.data / "robots", episodes)
    windows = windows_of(folder, cameras=True)
    source = fl.MinibatchSource(windows, seed=1)
    steps = episodes * FRAMES // BATCH
    frames = np.arange(episodes * FRAMES)
    first = (frames // FRAMES * FRAMES)[:, None]
    ahead, behind = frames[:, None] + np.arange(ACTIONS), frames[:, None] + np.array([-1, 0])
    masks = [ahead < first + FRAMES, behind >= first, behind >= first]
    places, past = np.minimum(ahead, first + FRAMES - 1), np.maximum(behind, first)
    chunks = [windows.corpus.corpus.read(number) for number in range(len(windows.corpus.corpus.chunks()))]
    actions = np.concatenate([chunk["action"].rows for chunk in chunks])
    addresses = [np.array([text for chunk in chunks for text in chunk[name].samples()], "S") for name in CAMERAS]
    order = np.random.default_rng(2).permutation(len(frames))

    def fed() -> float:
        return sum(m.num_sequences for m in source.minibatches(BATCH, until=fl.minibatches(steps)))

    def indexed() -> float:
        for k in range(steps):
            rows = order[k * BATCH : (k + 1) * BATCH]
            _ = actions[places[rows]], [column[past[rows]] for column in addresses], [mask[rows] for mask in masks]
        return steps * BATCH

    ran = race({"feedline": fed, "indexing": indexed}, stage.rounds(5), "process", warm_up=2)
    source.close()
    question = f"windows of {ACTIONS} actions and 2 frames of 2 cameras, undecoded, {episodes:,} episodes"
    return compare(ran, "feedline", "indexing", question, "windows/s", at_least=0.8)


def first_sweep(stage: Stage) -> Answer:
    """Windows of a first sweep, tables decoded."""
    folder = write_dataset(stage.data / "robots-alone", stage.size(2_000, 50), cameras=())
    peer = _lerobot(folder, {"action": [k / FPS for k in range(ACTIONS)]}, 20 if stage.quick else 100)

    def fed() -> float:
        corpus = fl.LeRobotDeserializer(folder)
        windows = fl.TimeWindows(corpus, {"action": range(ACTIONS)}, within=corpus.episode_lengths)
        return sum(len(batch["action"]) for batch in fl.DataLoader(windows, batch_size=BATCH, shuffle=True, seed=1))

    return _beside(stage, fed, peer, f"a first sweep in windows of {ACTIONS} actions, opened", 20)


def decoded(stage: Stage) -> Answer:
    """Windows with frames of video."""
    folder = write_dataset(stage.data / "robots-seen", 4 if stage.quick else 20, videos=True)
    deltas = {"action": [k / FPS for k in range(ACTIONS)], **{name: [-1 / FPS, 0] for name in CAMERAS}}
    peer = _lerobot(folder, deltas, 2 if stage.quick else 6)
    corpus = fl.LeRobotDeserializer(folder)
    offsets = {"action": range(ACTIONS), **dict.fromkeys(CAMERAS, (-1, 0))}
    windows = fl.TimeWindows(corpus, offsets, within=corpus.episode_lengths)
    loader = fl.DataLoader(windows, batch_size=32, shuffle=True, seed=1, transforms=corpus.decoders())

    def fed() -> float:
        return sum(len(batch["action"]) for batch in itertools.islice(loader, 2 if stage.quick else 20))

    return _beside(stage, fed, peer, f"the same with frames decoded, 2 cameras of {SIDE} × {SIDE}", 3)


def _beside(
    stage: Stage, fed: Callable[[], float], peer: Callable[[], float] | None, question: str, at_least: float
) -> Answer:
    contenders = {"feedline": fed} if peer is None else {"feedline": fed, "LeRobotDataset": peer}
    ran = race(contenders, stage.rounds(3), "process", warm_up=1)
    if peer is not None:
        return compare(ran, "feedline", "LeRobotDataset", question, "windows/s", at_least=at_least)
    target = Target("ratio", ">=", at_least)
    note = "lerobot is not installed"
    return Answer(question, "windows/s", ran.rate("feedline"), target=target, spread=ran.spread("feedline"), note=note)


def _lerobot(folder: Path, deltas: dict[str, list[float]], batches: int) -> Callable[[], float] | None:
    """Batches of 32 windows from `LeRobotDataset` in torch's loader, or None where it is not installed."""
    if importlib.util.find_spec("lerobot") is None:
        return None
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("made/here", root=folder, delta_timestamps=deltas)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
    return lambda: sum(len(batch["action"]) for batch in itertools.islice(loader, batches))


# ---- data -------------------------------------------------------------------------------------------------


def write_dataset(folder: Path, episodes: int, *, cameras: tuple[str, ...] = CAMERAS, videos: bool = False) -> Path:
    """A dataset of version 3.0, with empty files as videos unless there are ``videos``."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for first in range(0, episodes, PER_FILE):
        numbers = range(first, min(first + PER_FILE, episodes))
        path = folder / f"data/chunk-000/file-{first // PER_FILE:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = [_episode(rng, number) for number in numbers]
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        rows += [_described(number, first, cameras) for number in numbers]
        for name in cameras:
            path = folder / f"videos/{name}/chunk-000/file-{first // PER_FILE:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if videos:
                _write_video(path, len(numbers) * FRAMES)
    (folder / "meta/episodes/chunk-000").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": [0], "task": ["pick"]})
    # As pandas writes a table with texts as its index.
    columns = [{"name": name, "field_name": name, "metadata": None} for name in tasks.column_names]
    columns = [{**column, "pandas_type": "unicode", "numpy_type": "object"} for column in columns]
    pandas = {"index_columns": ["task"], "columns": columns, "column_indexes": [], "pandas_version": "2.0.0"}
    pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), folder / "meta/tasks.parquet")
    (folder / "meta/info.json").write_text(json.dumps(_info(episodes, cameras)))
    return folder


def _episode(rng: np.random.Generator, number: int) -> pa.Table:
    vectors = [rng.standard_normal(FRAMES * WIDTH, np.float32) for _ in range(2)]
    states, actions = (pa.FixedSizeListArray.from_arrays(pa.array(vector), WIDTH) for vector in vectors)
    within = np.arange(FRAMES)
    return pa.table(
        {
            "observation.state": states,
            "action": actions,
            "timestamp": (within / FPS).astype(np.float32),
            "frame_index": within,
            "episode_index": np.full(FRAMES, number),
            "index": number * FRAMES + within,
            "task_index": np.zeros(FRAMES, np.int64),
        }
    )


def _described(number: int, first: int, cameras: tuple[str, ...]) -> dict[str, Any]:
    file = {"chunk_index": 0, "file_index": first // PER_FILE}
    begin = (number - first) * FRAMES / FPS
    video = {**file, "from_timestamp": begin, "to_timestamp": begin + FRAMES / FPS}
    return {
        "episode_index": number,
        "length": FRAMES,
        "dataset_from_index": number * FRAMES,
        "dataset_to_index": (number + 1) * FRAMES,
        **{f"data/{key}": value for key, value in file.items()},
        **{f"videos/{name}/{key}": value for name in cameras for key, value in video.items()},
    }


def _info(episodes: int, cameras: tuple[str, ...]) -> dict[str, Any]:
    inside = "chunk-{chunk_index:03d}/file-{file_index:03d}"
    vectors = {name: ("float32", [WIDTH]) for name in ("observation.state", "action")}
    numbers = {name: ("int64", [1]) for name in ("frame_index", "episode_index", "index", "task_index")}
    features: dict[str, Any] = {
        name: {"dtype": dtype, "shape": shape, "names": None}
        for name, (dtype, shape) in {**vectors, "timestamp": ("float32", [1]), **numbers}.items()
    }
    for name in cameras:
        features[name] = {"dtype": "video", "shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"]}
    return {
        "codebase_version": "v3.0",
        "fps": FPS,
        "total_episodes": episodes,
        "total_frames": episodes * FRAMES,
        "data_path": f"data/{inside}.parquet",
        "video_path": f"videos/{{video_key}}/{inside}.mp4",
        "features": features,
    }


def _write_video(path: Path, frames: int) -> None:
    """Discs that move over a gradient, with a key frame in every ten."""
    import av

    rows, columns = np.mgrid[:SIDE, :SIDE]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "10", "crf": "23", "preset": "veryfast"})
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for k in range(frames):
            disc = np.hypot(rows - 128 - 90 * np.sin(k / 30), columns - 128 - 90 * np.cos(k / 17)) < 40
            pixels = np.stack([rows, columns, np.where(disc, 255, 60)], axis=-1).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
