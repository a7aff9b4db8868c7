"""`cntk.device`: names for the devices that torch has.

A descriptor is a kind and a number; torch is imported when a GPU is asked about, and everything works on the CPU
without it. The default device is fixed by its first use, as CNTK's is.
"""

from __future__ import annotations

import enum
import importlib
import warnings
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from feedline.errors import CompatError

__all__ = [
    "DeviceDescriptor",
    "DeviceKind",
    "all_devices",
    "cpu",
    "get_gpu_properties",
    "gpu",
    "intended_device",
    "set_default_device",
    "set_excluded_devices",
    "try_set_default_device",
    "use_default_device",
]


class DeviceKind(enum.IntEnum):
    """CPU or GPU."""

    CPU = 0
    GPU = 1


class DeviceDescriptor:
    """A device; made by `cpu` and `gpu`. Equal ones are the same device."""

    __slots__ = ("_id", "_kind")

    def __init__(self, kind: DeviceKind, number: int) -> None:
        self._kind, self._id = DeviceKind(kind), int(number)

    def id(self) -> int:
        """Number of the GPU; 0 for the CPU."""
        return self._id

    def type(self) -> int:
        """0 for the CPU, 1 for a GPU (`DeviceKind`)."""
        return int(self._kind)

    def is_locked(self) -> bool:
        """False: feedline locks no device."""
        return False

    def torch(self) -> Any:
        """The `torch.device` that it stands for."""
        name = "cpu" if self._kind is DeviceKind.CPU else f"cuda:{self._id}"
        return importlib.import_module("torch").device(name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceDescriptor):
            return NotImplemented
        return (self._kind, self._id) == (other._kind, other._id)

    def __hash__(self) -> int:
        return hash((self._kind, self._id))

    def __str__(self) -> str:
        return f"Device {self.label}"

    __repr__ = __str__

    @property
    def label(self) -> str:
        """``CPU`` or ``GPU[n]``."""
        return "CPU" if self._kind is DeviceKind.CPU else f"GPU[{self._id}]"


class _Choice:
    """The default device of this process."""

    def __init__(self) -> None:
        self.device: DeviceDescriptor | None = None
        self.frozen = False
        self.excluded: frozenset[DeviceDescriptor] = frozenset()


_choice = _Choice()


def cpu() -> DeviceDescriptor:
    """The CPU."""
    return DeviceDescriptor(DeviceKind.CPU, 0)


def gpu(device_id: int) -> DeviceDescriptor:
    """GPU number ``device_id``.

    Raises:
        ValueError: torch sees no such GPU.
    """
    count = _gpu_count()
    if not 0 <= device_id < count:
        raise ValueError(f"expected a GPU from 0 to {count - 1}, got {device_id}" if count else _no_gpu(device_id))
    return DeviceDescriptor(DeviceKind.GPU, device_id)


def all_devices() -> list[DeviceDescriptor]:
    """All GPUs that torch sees, then the CPU."""
    return [*(DeviceDescriptor(DeviceKind.GPU, i) for i in range(_gpu_count())), cpu()]


def use_default_device() -> DeviceDescriptor:
    """The default device, which cannot be changed from now on: the one that was set, else the first not excluded of
    `all_devices`.

    Raises:
        RuntimeError: all devices are excluded.
    """
    if _choice.device is None:
        _choice.device = next((d for d in all_devices() if d not in _choice.excluded), None)
        if _choice.device is None:
            raise RuntimeError("expected a device that is not excluded, got none")
    _choice.frozen = True
    return _choice.device


def intended_device() -> DeviceDescriptor:
    """Where values are wanted if nobody says: the default that was set, else the CPU. Fixes and imports nothing."""
    return _choice.device or cpu()


def try_set_default_device(new_default_device: DeviceDescriptor, acquire_device_lock: bool = False) -> bool:
    """Make a device the default.

    Returns:
        False if it is excluded, or if a lock on the CPU is asked for.

    Raises:
        RuntimeError: another one is in use already.
        CompatError: a lock on a GPU is asked for.
    """
    if new_default_device in _choice.excluded:
        return False
    if acquire_device_lock:
        if new_default_device.type() == DeviceKind.CPU:
            return False
        raise CompatError(
            "expected acquire_device_lock=False, got True: feedline locks no device between processes; give each "
            "process its own with CUDA_VISIBLE_DEVICES"
        )
    if _choice.frozen and new_default_device != _choice.device:
        raise RuntimeError(
            f"expected the default device to stay {_choice.device}, which is in use, got {new_default_device}; set it "
            "before the first minibatch or value"
        )
    _choice.device = new_default_device
    return True


def set_default_device(new_default_device: DeviceDescriptor) -> bool:
    """Former name of `try_set_default_device`; warns."""
    warnings.warn("set_default_device is deprecated: use try_set_default_device", DeprecationWarning, stacklevel=2)
    return try_set_default_device(new_default_device)


def set_excluded_devices(excluded_devices: Iterable[DeviceDescriptor]) -> None:
    """Devices that never become the default; without effect once the default is in use."""
    if not _choice.frozen:
        _choice.excluded = frozenset(excluded_devices)
        if _choice.device in _choice.excluded:
            _choice.device = None


def get_gpu_properties(device: DeviceDescriptor) -> SimpleNamespace:
    """What torch knows of a GPU: ``device_id``, ``name``, ``version_major``, ``version_minor``, and memory in MB as
    ``total_memory`` and ``free_memory``.

    Raises:
        ValueError: not a GPU.
    """
    if device.type() != DeviceKind.GPU:
        raise ValueError(f"expected a GPU, got {device}")
    cuda = importlib.import_module("torch").cuda
    found = cuda.get_device_properties(device.id())
    free, total = cuda.mem_get_info(device.id())
    return SimpleNamespace(
        device_id=device.id(),
        name=found.name,
        version_major=found.major,
        version_minor=found.minor,
        total_memory=total >> 20,
        free_memory=free >> 20,
    )


def _gpu_count() -> int:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return 0
    return int(torch.cuda.device_count())


def _no_gpu(device_id: int) -> str:
    return f"expected a GPU that torch sees, got {device_id} where there is none; use cpu()"
