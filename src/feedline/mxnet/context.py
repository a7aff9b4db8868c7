"""`mxnet.context`: devices of arrays. Every ``cpu(i)`` is the same memory, as in MXNet."""

from __future__ import annotations

from typing import Any

import torch

from feedline.mxnet._names import names_of
from feedline.mxnet.base import MXNetError

__all__, __getattr__ = names_of(__name__)

_TYPES = ("cpu", "gpu", "cpu_pinned", "cpu_shared")


class Context:
    """A device: type and number. A ``with`` block makes it the default.

    Raises:
        ValueError: an unknown type, or a number below 0.
    """

    def __init__(self, device_type: str | Context, device_id: int = 0) -> None:
        source = device_type
        self.device_type: str = source.device_type if isinstance(source, Context) else source
        self.device_id: int = source.device_id if isinstance(source, Context) else int(device_id)
        if self.device_type not in _TYPES or self.device_id < 0:
            raise ValueError(f"expected a device of {', '.join(_TYPES)} and a number from 0, got {self}")

    @property
    def device(self) -> Any:
        """The ``torch.device``.

        Raises:
            MXNetError: this machine has no such GPU.
        """
        if self.device_type != "gpu":
            return torch.device("cpu")
        if self.device_id >= torch.cuda.device_count():
            raise MXNetError(f"expected a GPU below {torch.cuda.device_count()}, got {self}")
        return torch.device("cuda", self.device_id)

    # A dataclass would make instances of a script's subclass unequal to the same device.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Context):
            return NotImplemented
        return (self.device_type, self.device_id) == (other.device_type, other.device_id)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> Context:
        _defaults.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _defaults.pop()


def cpu(device_id: int = 0) -> Context:
    """Return the context of host memory, for any number."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """Return the context of host memory, which is not pinned here."""
    return Context("cpu_pinned", device_id)


def gpu(device_id: int = 0) -> Context:
    """Return the context of a CUDA device."""
    return Context("gpu", device_id)


def num_gpus() -> int:
    """Return the number of CUDA devices of torch."""
    return int(torch.cuda.device_count())


def current_context() -> Context:
    """Return the default context: the one of the innermost ``with``, or ``cpu(0)``."""
    return _defaults[-1]


_defaults = [Context("cpu", 0)]
