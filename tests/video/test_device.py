"""Frames that a GPU decodes."""

import numpy as np
import pytest

import feedline as fl
from feedline import images, video
from tests.video.clips import SIDE, decode_all

pytestmark = pytest.mark.frameworks("av", "torchcodec")


def has_cuda():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return torch.cuda.is_available()


def test_frames_of_a_device_are_near_those_of_the_processor(videos):
    if not has_cuda():
        pytest.skip("torch finds no CUDA device here")
    path = videos("h264")
    texts = [f"{path}#t={time!r}" for time in decode_all(path).times]
    corpus = fl.ArrayDeserializer({"frame": texts})
    decode = video.Decode("frame", size=(SIDE, SIDE), device="cuda")
    (batch,) = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, transforms=[decode]).minibatches(40)
    rows = batch["frame"].torch()
    assert rows.device.type == "cuda"
    difference = np.abs(rows.cpu().numpy().astype(int) - decode_all(path).frames)
    assert difference.mean() < 3


@pytest.fixture
def any_device(monkeypatch):
    """Takes the processor for a device: everything but its pixels is as on a GPU."""
    monkeypatch.setattr("feedline.video.frame_decode.check_device", lambda device: None)


def test_frames_stay_on_the_device(videos, any_device):
    path = videos("h264")
    texts = [f"{path}#t={time!r}" for time in decode_all(path).times]
    corpus = fl.ArrayDeserializer({"frame": texts, "number": np.arange(40)})
    decode = video.Decode("frame", size=(SIDE, SIDE), device="cpu")
    source = fl.MinibatchSource(corpus, seed=1, max_sweeps=1, transforms=[decode])
    for batch in source.minibatches(7):
        rows = batch["frame"].torch()
        assert type(batch["frame"]).__name__ == "DeviceValue"
        np.testing.assert_array_equal(rows.numpy(), decode_all(path).frames[batch["number"].rows])


def test_windows_of_a_device(videos, any_device):
    path = videos("h264")
    windows = fl.TimeWindows(video.VideoDeserializer(path), {"frame": range(4)}, within="video", every=4)
    decode = video.Decode("frame", size=(SIDE, SIDE), device="cpu")
    (batch,) = fl.MinibatchSource(windows, shuffle=False, max_sweeps=1, transforms=[decode]).minibatches(10)
    np.testing.assert_array_equal(batch["frame"].torch().numpy().reshape(-1, SIDE, SIDE, 3), decode_all(path).frames)


def test_unreadable_frames_of_a_device(videos, any_device, tmp_path):
    path = videos("h264")
    texts = [f"{path}#t={time!r}" for time in (decode_all(path).times[3], 99.0, decode_all(path).times[5])]
    corpus = fl.ArrayDeserializer({"frame": texts})
    decode = video.Decode("frame", size=(SIDE, SIDE), device="cpu")
    skipping = {"max_sweeps": 1, "on_error": fl.Quarantine(tmp_path / "skipped")}
    (batch,) = fl.MinibatchSource(corpus, shuffle=False, transforms=[decode], **skipping).minibatches(3)
    np.testing.assert_array_equal(batch["frame"].torch().numpy(), decode_all(path).frames[[3, 5]])


def test_a_device_that_is_missing_is_an_error_at_once():
    if has_cuda():
        pytest.skip("torch finds a CUDA device here")
    with pytest.raises(RuntimeError, match=r"expected 'cuda' to decode video on, torch .* finds no CUDA devices"):
        video.Decode("frame", size=(SIDE, SIDE), device="cuda")


def test_other_devices_and_steps_are_refused():
    with pytest.raises(ValueError, match="expected a CUDA device"):
        video.Decode("frame", size=(SIDE, SIDE), device="cpu")
    with pytest.raises(ValueError, match="expected no steps"):
        video.Decode("frame", images.CenterCrop(8), size=(SIDE, SIDE), device="cuda")
