"""How fast do the frames of two cameras become minibatches, beside torchcodec in a dataset of torch?

Measured: samples of two frames each (the last one and the present one) of two cameras, 256 x 256, H.264, from episodes
of 100 frames, shuffled, as uint8. Peer: a dataset of torch that keeps a decoder of each file, as robot datasets do, and
asks it for the frames at two times, batched by torch's DataLoader in this process. Unit: samples a second of processor
time, all threads counted. Two distances of key frames: 2, as robot datasets are written for random access, and 30.
Windows of 4 episodes, and a whole shuffle, where no more can be done than to decode each frame from its key frame.

Needs PyAV and torchcodec with FFmpeg's shared libraries: the extra `video`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import feedline as fl
from benchmarks.harness import Answer, Contender, Stage, compare, race
from feedline import video

SIDE, FRAMES, BATCH, RATE = 256, 100, 64, 30
CAMERAS = ("left", "right")
EPISODES_OF_WINDOW = 4


def run(stage: Stage) -> list[Answer]:
    """Windows and a whole shuffle, for two distances of key frames."""
    torch.set_num_threads(1)
    episodes, samples = stage.size(60, 4), stage.size(768, 128)
    answers = []
    for distance, target in ((2, 1.2), (30, 2.0)):
        folder = stage.data / f"bench-video-{distance}-{episodes}"
        write(folder, episodes, distance)
        contenders: dict[str, Contender] = {
            "windows": feeding(folder, samples, fl.Window(chunks=EPISODES_OF_WINDOW)),
            "whole shuffle": feeding(folder, samples, True),
            "torchcodec in a torch dataset": dataset(folder, episodes, samples),
        }
        ran = race(contenders, stage.rounds(3), "process")
        for name, bound in (("windows", target), ("whole shuffle", None)):
            question = f"two frames of two cameras, a key frame in {distance}, {name}"
            answers.append(compare(ran, name, "torchcodec in a torch dataset", question, "samples/s", 1, bound))
    return answers


def feeding(folder: Path, samples: int, shuffle: Any) -> Contender:
    """Return a contender that goes on through a shuffled source of windows."""
    left, right = (
        video.folder(folder / camera, **{camera: fl.Stream(dtype="str", field="frame"), **episode})
        for camera, episode in zip(CAMERAS, ({"video": fl.Stream((), "int64")}, {}), strict=True)
    )
    windows = fl.TimeWindows(fl.Join(left, right), dict.fromkeys(CAMERAS, (-1, 0)), within="video")
    decodes = [video.Decode(camera, size=(SIDE, SIDE)) for camera in CAMERAS]
    source = fl.MinibatchSource(windows, seed=1, shuffle=shuffle, transforms=decodes)
    minibatches = source.minibatches(BATCH)
    return going_on(((batch[camera].rows for camera in CAMERAS) for batch in minibatches), samples)


def dataset(folder: Path, episodes: int, samples: int) -> Contender:
    """Return a contender that goes on through a DataLoader of torch."""
    decoders = importlib.import_module("torchcodec.decoders")

    class Frames(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self._open: dict[Path, Any] = {}

        def __len__(self) -> int:
            return episodes * FRAMES

        def __getitem__(self, index: int) -> list[Any]:
            episode, frame = divmod(index, FRAMES)
            times = [max(0, frame - 1) / RATE, frame / RATE]
            paths = [folder / camera / f"{episode:05}.mp4" for camera in CAMERAS]
            for path in paths:
                if path not in self._open:
                    self._open[path] = decoders.VideoDecoder(str(path), seek_mode="approximate")
            return [self._open[path].get_frames_played_at(times).data for path in paths]

    loader = torch.utils.data.DataLoader(Frames(), batch_size=BATCH, shuffle=True)
    return going_on((batch for _ in range(1000) for batch in loader), samples)


def going_on(batches: Iterator[Any], samples: int) -> Contender:
    """Return a contender that takes the next batches, with all their streams."""

    def take() -> float:
        for _ in range(samples // BATCH):
            for _ in next(batches):
                pass
        return samples // BATCH * BATCH

    return take


def write(folder: Path, episodes: int, distance: int) -> None:
    """Encode episodes in which a picture of blocks moves."""
    av = importlib.import_module("av")
    rng = np.random.default_rng(0)
    for camera in CAMERAS:
        os.makedirs(folder / camera, exist_ok=True)
        for episode in range(episodes):
            path = folder / camera / f"{episode:05}.mp4"
            blocks = rng.integers(0, 256, (32, 32, 3), np.uint8).repeat(SIDE // 32, 0).repeat(SIDE // 32, 1)
            if path.exists():
                continue
            with av.open(str(path), "w") as file:
                stream = file.add_stream(
                    "libx264", rate=RATE, options={"g": str(distance), "preset": "veryfast", "bf": "0"}
                )
                stream.width = stream.height = SIDE
                stream.pix_fmt = "yuv420p"
                for number in range(FRAMES):
                    picture = np.ascontiguousarray(np.roll(blocks, 2 * number, 0))
                    file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
                file.mux(stream.encode())
