"""Values whose rows are tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from feedline.data.value import DenseValue

Tensor: TypeAlias = Any  # torch.Tensor: torch's types are not checked


class DeviceValue(DenseValue):
    """A value whose rows are a tensor on a device. `rows` copies them to the processor on demand.

    Args:
        tensor: (num_samples, *shape).
        offsets: int64 (num_sequences + 1,), on the processor. None: one sample for each sequence.

    Attributes:
        tensor: see above.
    """

    __slots__ = ("_host", "tensor")

    def __init__(self, tensor: Tensor, offsets: NDArray[np.int64] | None = None) -> None:
        self.tensor, self._offsets = tensor, offsets
        self._host: NDArray[Any] | None = None

    @property
    def rows(self) -> NDArray[Any]:  # type: ignore[override]
        """A copy of the rows on the processor."""
        if self._host is None:
            self._host = self.tensor.cpu().numpy()
        return self._host

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of one sample."""
        return tuple(self.tensor.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Element type."""
        return np.dtype(str(self.tensor.dtype).removeprefix("torch."))

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Number of rows."""
        return int(self.tensor.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(self.tensor.nbytes)

    def slice(self, start: int, stop: int) -> DeviceValue:
        """Return the sequences ``start:stop`` as a value over the same rows."""
        if self._offsets is None:
            return DeviceValue(self.tensor[start:stop])
        offsets = self._offsets[start : stop + 1]
        return DeviceValue(self.tensor[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def select(self, which: ArrayLike) -> DeviceValue:
        """Copy sequences, in the order of ``which``, into a new value."""
        which = np.asarray(which)
        if which.dtype == np.bool_:
            which = np.flatnonzero(which)
        if self._offsets is None:
            return DeviceValue(self._take(which))
        counts = self.lengths[which]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return DeviceValue(
            self._take(np.arange(offsets[-1]) + np.repeat(self._offsets[which] - offsets[:-1], counts)), offsets
        )

    def _take(self, rows: NDArray[np.int64]) -> Tensor:
        return self.tensor[torch.as_tensor(rows, device=self.tensor.device)]

    def joined_with(self, others: Sequence[DenseValue], offsets: NDArray[np.int64] | None) -> DenseValue:
        """Return a value of the sequences of this value and of ``others``."""
        tensors = [value.tensor for value in (self, *others) if isinstance(value, DeviceValue)]
        if len(tensors) <= len(others):
            return super().joined_with(others, offsets)
        return DeviceValue(torch.cat(tensors), offsets)

    def torch(self, device: Any = None, layout: str | None = None, pin_memory: bool = False) -> Tensor:
        """Return the tensor on its device or on another one. See `Value.torch`."""
        if layout not in (None, "padded", "packed"):
            return super().torch(device, layout, pin_memory)
        tensor = self.tensor if layout == "packed" or self._offsets is None else self._padded()
        tensor = tensor.pin_memory() if pin_memory and tensor.device.type == "cpu" else tensor
        return tensor if device is None else tensor.to(device, non_blocking=pin_memory)

    def _padded(self) -> Tensor:
        mask = torch.as_tensor(self.mask, device=self.tensor.device)
        padded = self.tensor.new_zeros((*mask.shape, *self.tensor.shape[1:]))
        padded[mask] = self.tensor
        return padded

    def __reduce__(self) -> Any:
        return DenseValue, (self.rows, self._offsets)
