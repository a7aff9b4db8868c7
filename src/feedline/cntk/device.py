"""`cntk.device`: descriptors of torch's devices.

A descriptor is a kind and a number. torch is imported only to look for GPUs, so the CPU works without it. The default
device is fixed by its first use, as in CNTK.
"""

from __future__ import annotations

import enum
import importlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from feedline.cntk._names import absent_members, names_of
from feedline.errors import CompatError

__all__, __getattr__ = names_of(__name__)


class DeviceKind(enum.IntEnum):
    """CPU or GPU."""

    CPU = 0
    GPU = 1


@absent_members("cntk.device")
@dataclass(frozen=True, repr=False)  # with slots, setting another attribute would be a TypeError about super()
class DeviceDescriptor:
    """A device, created by `cpu` and `gpu`. Equal descriptors are the same device."""

    _kind: DeviceKind
    _id: int

    def id(self) -> int:
        """Return the index of the GPU, 0 for the CPU."""
        return self._id

    def type(self) -> int:
        """Return 0 for the CPU, 1 for a GPU (`DeviceKind`)."""
        return int(self._kind)

    def is_locked(self) -> bool:
        """Return False, as feedline does not lock devices."""
        return False

    def torch(self) -> Any:
        """Return the corresponding `torch.device`."""
        name = "cpu" if self._kind is DeviceKind.CPU else f"cuda:{self._id}"
        return importlib.import_module("torch").device(name)

    def __str__(self) -> str:
        return self.label

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
    """Return the descriptor of the CPU."""
    return DeviceDescriptor(DeviceKind.CPU, 0)


def gpu(device_id: int) -> DeviceDescriptor:
    """Return the descriptor of GPU ``device_id``.

    Raises:
        ValueError: torch has no such GPU.
    """
    count = _gpu_count()
    if not 0 <= device_id < count:
        raise ValueError(f"expected a GPU from 0 to {count - 1}, got {device_id}" if count else _no_gpu(device_id))
    return DeviceDescriptor(DeviceKind.GPU, int(device_id))


def all_devices() -> list[DeviceDescriptor]:
    """Return all GPUs of torch, then the CPU."""
    return [*(DeviceDescriptor(DeviceKind.GPU, i) for i in range(_gpu_count())), cpu()]


def use_default_device() -> DeviceDescriptor:
    """Return the default device and fix it: the set device, else the first of `all_devices` that is not excluded.

    Raises:
        RuntimeError: all devices are excluded.
    """
    if _choice.device is None:
        _choice.device = next((d for d in all_devices() if d not in _choice.excluded), None)
        if _choice.device is None:
            raise RuntimeError("expected at least one device that is not excluded, got none")
    _choice.frozen = True
    return _choice.device


def intended_device() -> DeviceDescriptor:
    """Return the device of values without a device: the set default, else the CPU. It is not fixed."""
    return _choice.device or cpu()


def try_set_default_device(new_default_device: DeviceDescriptor, acquire_device_lock: bool = False) -> bool:
    """Set the default device.

    Returns:
        False if it is excluded, or if a lock on the CPU is requested.

    Raises:
        RuntimeError: another default is in use.
        CompatError: a lock on a GPU is requested.
    """
    if new_default_device in _choice.excluded:
        return False
    if acquire_device_lock:
        if new_default_device.type() == DeviceKind.CPU:
            return False
        raise CompatError(
            "expected acquire_device_lock=False, got True: feedline does not lock devices; assign one to each "
            "process with CUDA_VISIBLE_DEVICES"
        )
    if _choice.frozen and new_default_device != _choice.device:
        raise RuntimeError(
            f"expected the default device to stay {_choice.device}, which is in use, got {new_default_device}; set it "
            "before the first minibatch or value"
        )
    _choice.device = new_default_device
    return True


def set_default_device(new_default_device: DeviceDescriptor) -> bool:
    """Deprecated name of `try_set_default_device`."""
    warnings.warn("set_default_device is deprecated: use try_set_default_device", DeprecationWarning, stacklevel=2)
    return try_set_default_device(new_default_device)


def set_excluded_devices(excluded_devices: Iterable[DeviceDescriptor]) -> None:
    """Exclude devices from becoming the default, without effect once the default is fixed."""
    if not _choice.frozen:
        _choice.excluded = frozenset(excluded_devices)
        if _choice.device in _choice.excluded:
            _choice.device = None


def get_gpu_properties(device: DeviceDescriptor) -> SimpleNamespace:
    """Return properties of a GPU.

    They are ``device_id``, ``name``, ``version_major``, ``version_minor``, and memory in MB, ``total_memory`` and
    ``free_memory``.

    Raises:
        ValueError: not a GPU.
    """
    if device.type() != DeviceKind.GPU:
        raise ValueError(f"expected a GPU, got {device}")
    cuda = importlib.import_module("torch").cuda
    properties = cuda.get_device_properties(device.id())
    free, total = cuda.mem_get_info(device.id())
    return SimpleNamespace(
        device_id=device.id(),
        name=properties.name,
        version_major=properties.major,
        version_minor=properties.minor,
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
    return f"expected a GPU, got {device_id}, but torch has none; use cpu()"
