"""`cntk.tests.test_utils`: functions that notebooks call in their first cell, and constants of CNTK's tests."""

from __future__ import annotations

import os

import numpy as np

from feedline.cntk._names import names_of
from feedline.cntk.device import DeviceDescriptor, cpu, gpu, try_set_default_device

__all__, __getattr__ = names_of(__name__)

TOLERANCE_ABSOLUTE = 1e-6
PRECISION_TO_TYPE = {"float": np.float32, "double": np.float64}
AA = np.asarray


def cntk_device(device_id: int) -> DeviceDescriptor:
    """Return the GPU of a number, or the CPU for -1.

    Raises:
        ValueError: torch has no such GPU.
    """
    return cpu() if device_id == -1 else gpu(device_id)


def set_device_from_pytest_env() -> None:
    """Set the default device from the environment variable ``TEST_DEVICE``: ``cpu``, or else the first GPU.

    Without the variable nothing changes.

    Raises:
        ValueError: a GPU is named, and torch has none.
    """
    named = os.environ.get("TEST_DEVICE")
    if named:
        try_set_default_device(cpu() if named == "cpu" else gpu(0))
