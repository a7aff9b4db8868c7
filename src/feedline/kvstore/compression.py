"""Gradient compression: 2 bits or 1 with error feedback, or half precision.

``{"type": "2bit", "threshold": 0.5}`` sends plus or minus the threshold for an element whose sum of values not yet sent
has reached it, otherwise zero. ``{"type": "1bit", "threshold": 0.0}`` always sends plus or minus 1. Both keep a
residual, so that the values sent and the residual add up to the values pushed. Both take only float32, and encode as
MXNet does, bit for bit (native/include/feedline/codes.h). ``{"type": "fp16"}`` and ``"bf16"`` round without a residual,
and take any floating point dtype.

A sender keeps one `Channel` for each array. Costs for float32 on the CPU: one native pass to encode, and one to
decode and sum the codes of all senders. Each channel has two residuals, as the new one takes effect when the push
succeeds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from feedline import _native
from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key

#: Largest threshold, as thresholds are stored in single precision.
LARGEST = float(np.finfo(np.float32).max)


#: A value, its residual, the remainder, which may share the memory of the residual, and codes. All are contiguous on
#: one device.
EncodeJob = tuple[Any, Any, Any, Any]
#: Codes of several senders, and the tensor for the sum of their values, contiguous on one device.
SumJob = tuple[Sequence[Any], Any]


class Compression(ABC):
    """Encoding of arrays. Equal parameters give equal codes.

    Args:
        name: ``type`` among the parameters.
        threshold: threshold of the encoding, 0 if it has none.
    """

    def __init__(self, name: str, threshold: float = 0.0) -> None:
        self.name, self.threshold = name, threshold

    def parameters(self) -> dict[str, Any]:
        """Return the parameters from which `compression` makes an equal instance: JSON types."""
        return {"type": self.name}

    @abstractmethod
    def check(self, key: Key, dtype: Any) -> None:
        """Raise RefusedError for a dtype that cannot be encoded."""

    @abstractmethod
    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """Return shape and dtype of a tensor's codes."""

    def encode(self, jobs: Sequence[EncodeJob]) -> None:
        """Write the codes and remainders of values, in one native pass where possible."""
        native = [job for job in jobs if _is_native(job[0])]
        for value, residual, remainder, codes in jobs if len(native) < len(jobs) else ():
            if not _is_native(value):
                self.encode_by_torch(value, residual, remainder, codes)
        if native:
            addresses = [(job[0].numel(), *(tensor.data_ptr() for tensor in job)) for job in native]
            _native.encode(self.name, self.threshold, addresses, torch.get_num_threads())

    def decode_sums(self, jobs: Sequence[SumJob]) -> None:
        """Write the sums of decoded values, added from the first to the last, in one native pass where possible."""
        native = [job for job in jobs if _is_native(job[1])]
        for codes, out in jobs if len(native) < len(jobs) else ():
            if not _is_native(out):
                self.decode_by_torch(codes[0], out)
                for addend in codes[1:]:
                    self.decode_by_torch(addend, decoded := torch.empty_like(out))
                    out.add_(decoded)
        if native:
            addresses = [(out.numel(), [part.data_ptr() for part in codes], out.data_ptr()) for codes, out in native]
            _native.decode_sums(self.name, self.threshold, addresses, torch.get_num_threads())

    @abstractmethod
    def encode_by_torch(self, value: Any, residual: Any, remainder: Any, codes: Any) -> None:
        """Encode ``value + residual`` into ``codes``, and write the rest to ``remainder``. All are contiguous on one
        device."""

    @abstractmethod
    def decode_by_torch(self, codes: Any, out: Any) -> None:
        """Decode codes into ``out``."""


class Quantized(Compression):
    """Quantization to 2 bits or 1, with a residual.

    Args:
        bits: 2 or 1.
        threshold: threshold, above 0 for 2 bits.

    Raises:
        RefusedError: a threshold out of its range.
    """

    def __init__(self, bits: int, threshold: float) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not abs(threshold) <= LARGEST:
            raise RefusedError(f"expected a finite number as threshold, got {threshold!r}")
        if bits == 2 and not np.float32(threshold) > 0:
            raise RefusedError(f"expected a threshold above 0 for 2bit, got {threshold}")
        super().__init__(f"{bits}bit", float(threshold))
        self.bits = bits

    def parameters(self) -> dict[str, Any]:
        """See `Compression`."""
        return {**super().parameters(), "threshold": self.threshold}

    def check(self, key: Key, dtype: Any) -> None:
        """See `Compression`."""
        if dtype is not torch.float32:
            raise RefusedError(f"expected float32 for {self.name} compression of key {key!r}, got {dtype}")

    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """See `Compression`."""
        return ((math.prod(shape) * self.bits + 31) // 32 * 4,), torch.uint8

    def encode_by_torch(self, value: Any, residual: Any, remainder: Any, codes: Any) -> None:
        """See `Compression`."""
        limit = torch.tensor(self.threshold, dtype=torch.float32, device=value.device)
        r = (residual + value).reshape(-1)
        if self.bits == 2:
            above, below = r >= limit, r <= -limit
            sent = torch.where(above, limit, torch.where(below, -limit, torch.zeros_like(limit)))
            code = torch.where(above, 3, torch.where(below, 2, 0))
        else:
            code = (r > limit).to(torch.int64)
            sent = 2.0 * code.to(torch.float32) - 1.0
        remainder.view(-1).copy_(r - sent)
        per_byte = 8 // self.bits
        padded = torch.zeros(codes.numel() * per_byte, dtype=torch.int64, device=value.device)
        padded[: code.numel()] = code
        codes.copy_((padded.view(-1, per_byte) << self._shifts(value.device)).sum(1))

    def decode_by_torch(self, codes: Any, out: Any) -> None:
        """See `Compression`."""
        values = [0.0, 0.0, -self.threshold, self.threshold] if self.bits == 2 else [-1.0, 1.0]
        table = torch.tensor(values, dtype=torch.float32, device=codes.device)
        code = (codes.to(torch.int64)[:, None] >> self._shifts(codes.device)) & (2**self.bits - 1)
        out.view(-1).copy_(table[code.reshape(-1)[: out.numel()]])

    def _shifts(self, device: Any) -> Any:
        return torch.arange(8 - self.bits, -1, -self.bits, device=device)


class Rounded(Compression):
    """Rounding to float16 or bfloat16, without a residual."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]

    def check(self, key: Key, dtype: Any) -> None:
        """See `Compression`."""
        if not dtype.is_floating_point:
            raise RefusedError(f"expected floating point for {self.name} compression of key {key!r}, got {dtype}")

    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """See `Compression`."""
        return tuple(shape), self.dtype

    def encode_by_torch(self, value: Any, residual: Any, remainder: Any, codes: Any) -> None:
        """See `Compression`."""
        codes.copy_(value)

    def decode_by_torch(self, codes: Any, out: Any) -> None:
        """See `Compression`."""
        out.copy_(codes)


def _is_native(tensor: Any) -> bool:
    return tensor.is_cpu and tensor.dtype is torch.float32


def compression(parameters: Mapping[str, Any]) -> Compression:
    """Return the compression that the parameters describe.

    Args:
        parameters: ``type`` and, for ``2bit`` (default 0.5) and ``1bit`` (default 0), ``threshold``.

    Raises:
        RefusedError: an unknown type or parameter, or a threshold out of its range.
        TypeError: the parameters are not a mapping.
    """
    if not isinstance(parameters, Mapping):
        raise TypeError(f"expected a mapping such as {{'type': '2bit'}}, got {type(parameters).__name__}")
    options = dict(parameters)
    name = options.pop("type", None)
    if name in ("2bit", "1bit"):
        bits = int(name[0])
        result: Compression = Quantized(bits, options.pop("threshold", 0.5 if bits == 2 else 0.0))
    elif name in ("fp16", "bf16"):
        result = Rounded(name)
    else:
        raise RefusedError(f"expected a compression of type '2bit', '1bit', 'fp16' or 'bf16', got {name!r}")
    if options:
        raise RefusedError(f"expected no further parameters for {name}, got {', '.join(map(repr, options))}")
    return result


class Channel:
    """A sender's codes and residual for one array.

    Args:
        compression: encoding.
        shape: shape of the arrays sent.
        dtype: dtype of the arrays sent.
        device: device on which they are encoded.
        codes: buffer for codes. None means a new one.

    Attributes:
        codes: codes of the last encoded value.
        residual: sum of the values pushed and not yet sent.
    """

    def __init__(self, compression: Compression, shape: Any, dtype: Any, device: Any, codes: Any = None) -> None:
        self._compression, self._like = compression, (shape, dtype, device)
        code_shape, code_dtype = compression.code_shape(shape)
        self.codes = torch.empty(code_shape, dtype=code_dtype, device=device) if codes is None else codes
        keeps = isinstance(compression, Quantized)
        self.residual = torch.zeros(shape if keeps else 0, dtype=dtype, device=device)
        self._remainder = torch.empty_like(self.residual)
        self._decoded: Any = None

    def job(self, value: Any) -> EncodeJob:
        """Return the job of `Compression.encode` for a value. The residual changes with `commit`."""
        return value.to(self.codes.device).contiguous(), self.residual, self._remainder, self.codes

    def send(self, value: Any) -> Any:
        """Encode a value, and return it as a receiver decodes it. The residual changes with `commit`."""
        self._compression.encode([self.job(value)])
        if self._decoded is None:
            shape, dtype, device = self._like
            self._decoded = torch.empty(shape, dtype=dtype, device=device)
        self._compression.decode_sums([((self.codes,), self._decoded)])
        return self._decoded

    def commit(self) -> None:
        """Update the residual after the last value sent has arrived."""
        self.residual, self._remainder = self._remainder, self.residual
