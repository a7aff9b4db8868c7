"""The names of CNTK 2.7, translated onto feedline: one file for each of its modules, nothing new inside.

``feedline.cntk.install()``, or ``feedline run --as cntk SCRIPT``, makes ``import cntk`` mean this package, in that
process only. What is there, what is approximated and what is absent stands in docs/compat/cntk.md, made from `_names`.
Importing it needs NumPy alone; torch comes when a device is asked for.
"""

from __future__ import annotations

from typing import Any

from feedline import _facades
from feedline.cntk import axis, cntk_py, core, device, io, logging, train, variables
from feedline.cntk._names import explain
from feedline.cntk.axis import Axis
from feedline.cntk.core import NDArrayView, Value, asarray, asvalue
from feedline.cntk.device import (
    DeviceDescriptor,
    DeviceKind,
    all_devices,
    cpu,
    get_gpu_properties,
    gpu,
    set_default_device,
    set_excluded_devices,
    try_set_default_device,
    use_default_device,
)
from feedline.cntk.train import DataUnit

__version__ = "2.7"

__all__ = [
    "Axis",
    "DataUnit",
    "DeviceDescriptor",
    "DeviceKind",
    "NDArrayView",
    "Value",
    "all_devices",
    "asarray",
    "asvalue",
    "axis",
    "cntk_py",
    "core",
    "cpu",
    "device",
    "get_gpu_properties",
    "gpu",
    "install",
    "io",
    "logging",
    "set_default_device",
    "set_excluded_devices",
    "train",
    "try_set_default_device",
    "use_default_device",
    "variables",
]


def install() -> None:
    """Register the façade under the name ``cntk``, for this process; again is as once.

    Raises:
        CompatError: another package has been imported as ``cntk`` already.
    """
    _facades.install("cntk")


def __getattr__(name: str) -> Any:
    raise explain("cntk", name)
