"""Frames that a device decoded, as a value whose rows stay there."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from feedline.data.value import DenseValue
from feedline.feed.protocol import Ints
from feedline.images.picture_batch import torch_pictures


def device_value(frames: list[Any], shape: tuple[int, ...], offsets: Ints | None) -> DenseValue:
    """Return a value of decoded frames, with zeros for frames that are None.

    Args:
        frames: tensors of one size on a device, or None.
        shape: shape of all samples together.
        offsets: int64 (sequences + 1,), the samples of each sequence. None: one each.
    """
    places = np.array([at for at, frame in enumerate(frames) if frame is not None], np.int64)
    if not len(places):
        return DenseValue(np.zeros(shape, np.uint8), offsets)
    rows = importlib.import_module("torch").stack([frames[at] for at in places.tolist()])
    if len(places) < len(frames):
        rows = torch_pictures().spread(rows, places, len(frames))
    module = importlib.import_module("feedline.interop.device_value")
    value: DenseValue = module.DeviceValue(rows.reshape(shape), offsets)
    return value


def check_device(device: str) -> None:
    """Check that torch has a CUDA device.

    Raises:
        ValueError: it is no CUDA device.
        RuntimeError: torch finds no such device.
    """
    torch = importlib.import_module("torch")
    where = torch.device(device)
    if where.type != "cuda":
        raise ValueError(f"expected a CUDA device to decode video on, such as 'cuda', got {device!r}")
    if not torch.cuda.is_available() or (where.index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"expected {device!r} to decode video on, torch {torch.__version__} finds "
            f"{torch.cuda.device_count() if torch.cuda.is_available() else 'no'} CUDA devices; leave out device= to "
            "decode on the processor"
        )
