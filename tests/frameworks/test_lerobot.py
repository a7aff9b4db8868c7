"""Batches of a robot's dataset equal those of `LeRobotDataset` in torch's loader, to the bit."""

from __future__ import annotations

import importlib

import pytest

import feedline as fl
from feedline import images, video
from tests.feed.formats.robot_datasets import CAMERA, FPS, PICTURE, SIZE, write_robot

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [
    pytest.mark.frameworks("lerobot", "av", "torchcodec", "torchvision"),
    pytest.mark.filterwarnings("ignore"),
]
DELTAS = {
    "action": [k / FPS for k in range(5)],
    "observation.state": [-0.2, 0.0],
    CAMERA: [-0.1, 0.0],
    PICTURE: [-0.1, 0.0],
}


def as_lerobot(pixels):
    """Pictures uint8 (..., height, width, 3) as float32 (..., 3, height, width), from 0 to 1."""
    return pixels.movedim(-1, -3).float() / 255


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    importlib.import_module("tests.frameworks.vision")  # before lerobot, which imports torchvision
    module = importlib.import_module("lerobot.datasets.lerobot_dataset")
    robot = write_robot(tmp_path / "robot", lengths=(7, 4, 9, 2, 5), videos=True, pictures=True)
    return lambda **options: module.LeRobotDataset("made/here", root=robot.folder, **options)


@pytest.mark.parametrize("windows", [False, True])
def test_batches_are_those_of_lerobot(dataset, tmp_path, windows):
    theirs = torch.utils.data.DataLoader(dataset(delta_timestamps=DELTAS if windows else None), batch_size=4)
    corpus = fl.open_corpus(tmp_path / "robot")
    decoders = corpus.decoders()
    assert [type(decoder) for decoder in decoders] == [images.Decode, video.Decode]
    if windows:
        corpus = fl.TimeWindows(corpus, DELTAS, within=corpus.episode_lengths, seconds="timestamp")
    ours = fl.DataLoader(corpus, batch_size=4, shuffle=False, transforms=decoders)
    assert len(theirs) == len(ours) == 7
    for expected, batch in zip(theirs, ours, strict=True):
        batch.pop("lengths", None)
        for name in (CAMERA, PICTURE):
            batch[name] = as_lerobot(batch[name])
        for name in [name for name in batch if name.endswith("_present")]:
            batch[name.replace("_present", "_is_pad")] = ~batch.pop(name)
        assert batch.keys() == expected.keys()
        assert batch.pop("task") == expected.pop("task")
        for name, tensor in expected.items():
            assert (batch[name].dtype, batch[name].shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(batch[name], tensor), name


def test_metadata_are_those_of_lerobot(dataset, tmp_path):
    meta, corpus = dataset().meta, fl.LeRobotDeserializer(tmp_path / "robot")
    assert (corpus.fps, corpus.episode_lengths.tolist()) == (meta.fps, meta.episodes["length"])
    assert corpus.tasks == {int(row.task_index): task for task, row in meta.tasks.iterrows()}
    assert corpus.stats.keys() == meta.stats.keys()
    for name, statistics in meta.stats.items():
        assert {key: array.tolist() for key, array in corpus.stats[name].items()} == {
            key: array.tolist() for key, array in statistics.items()
        }
    assert corpus.decoders()[1].shape == (*SIZE, 3)
