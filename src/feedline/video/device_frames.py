"""Frames that a device decoded, as a value whose rows stay there."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from feedline.data.value import DenseValue
from feedline.images.picture_batch import torch_pictures


def device_value(frames: list[Any], shape: tuple[int, ...]) -> DenseValue:
    """Return a value of one sample a sequence, with zeros for frames that are None.

    Args:
        frames: tensors of one size on a device, or None.
        shape: shape of all samples together.
    """
    places = np.array([at for at, frame in enumerate(frames) if frame is not None], np.int64)
    if not len(places):
        return DenseValue(np.zeros(shape, np.uint8))
    rows = importlib.import_module("torch").stack([frames[at] for at in places.tolist()])
    if len(places) < len(frames):
        rows = torch_pictures().spread(rows, places, len(frames))
    value: DenseValue = torch_pictures().DeviceValue(rows.reshape(shape))
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
