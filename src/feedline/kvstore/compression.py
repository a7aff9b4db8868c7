"""Gradients in fewer bits: 2 or 1 with what was not sent kept for the next time, or half precision.

``{"type": "2bit", "threshold": 0.5}``: an element is sent as plus or minus the threshold, or not at all, once what was
pushed and not yet sent has come that far. ``{"type": "1bit", "threshold": 0.0}``: plus or minus 1, always. Both keep
the rest in a residual, so that what was sent and the residual add up to what was pushed; both take float32 alone, and
code as MXNet does, bit for bit (native/include/feedline/quantize.h). ``{"type": "fp16"}`` and ``"bf16"`` round, keep
nothing, and take floating point of any kind.

A sender keeps one `Channel` for each array that it sends. Costs: one pass to encode, one to decode; two residuals a
channel, of which one becomes valid when the push has succeeded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from feedline import _native
from feedline.collective.refusal import RefusedError
from feedline.kvstore.base import Key

#: Most that a threshold may be: it is kept in single precision.
LARGEST = float(np.finfo(np.float32).max)


class Compression(ABC):
    """How arrays are coded; equal parameters make equal codes.

    Attributes:
        name: the ``type`` among the parameters.
    """

    name: ClassVar[str]

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """What `compression` makes an equal one of: JSON types."""

    @abstractmethod
    def check(self, key: Key, dtype: Any) -> None:
        """Raise RefusedError for a dtype that cannot be coded."""

    @abstractmethod
    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of the codes of a tensor."""

    @abstractmethod
    def encode(self, value: Any, residual: Any, left: Any, codes: Any) -> None:
        """Write codes of ``value + residual``, and what they leave to ``left``; contiguous, on one device."""

    @abstractmethod
    def decode(self, codes: Any, out: Any) -> None:
        """Write the values that codes stand for."""


class Quantized(Compression):
    """2 bits or 1, with residual.

    Args:
        bits: 2 or 1.
        threshold: above 0 for 2 bits.

    Raises:
        RefusedError: a threshold out of its range.
    """

    def __init__(self, bits: int, threshold: float) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not abs(threshold) <= LARGEST:
            raise RefusedError(f"expected a finite number as threshold, got {threshold!r}")
        if bits == 2 and not np.float32(threshold) > 0:
            raise RefusedError(f"expected a threshold above 0 for 2bit, got {threshold}")
        self.bits, self.threshold = bits, float(threshold)
        self.name = f"{bits}bit"  # type: ignore[misc]

    def parameters(self) -> dict[str, Any]:
        """See `Compression`."""
        return {"type": self.name, "threshold": self.threshold}

    def check(self, key: Key, dtype: Any) -> None:
        """See `Compression`."""
        if dtype is not torch.float32:
            raise RefusedError(f"expected float32 for {self.name} compression of key {key!r}, got {dtype}")

    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """See `Compression`."""
        return ((math.prod(shape) * self.bits + 31) // 32 * 4,), torch.uint8

    def encode(self, value: Any, residual: Any, left: Any, codes: Any) -> None:
        """See `Compression`."""
        if value.is_cpu:
            flat = [tensor.view(-1).numpy() for tensor in (value, residual, left, codes)]
            _native.quantize(self.bits, self.threshold, *flat)
        else:
            encode_by_torch(self.bits, self.threshold, value, residual, left, codes)

    def decode(self, codes: Any, out: Any) -> None:
        """See `Compression`."""
        if out.is_cpu:
            _native.dequantize(self.bits, self.threshold, codes.numpy(), out.view(-1).numpy())
        else:
            decode_by_torch(self.bits, self.threshold, codes, out)


class Rounded(Compression):
    """Half precision: float16 or bfloat16, without residual."""

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, {"fp16": torch.float16, "bf16": torch.bfloat16}[name]  # type: ignore[misc]

    def parameters(self) -> dict[str, Any]:
        """See `Compression`."""
        return {"type": self.name}

    def check(self, key: Key, dtype: Any) -> None:
        """See `Compression`."""
        if not dtype.is_floating_point:
            raise RefusedError(f"expected floating point for {self.name} compression of key {key!r}, got {dtype}")

    def code_shape(self, shape: Any) -> tuple[tuple[int, ...], Any]:
        """See `Compression`."""
        return tuple(shape), self.dtype

    def encode(self, value: Any, residual: Any, left: Any, codes: Any) -> None:
        """See `Compression`."""
        codes.copy_(value)

    def decode(self, codes: Any, out: Any) -> None:
        """See `Compression`."""
        out.copy_(codes)


def compression(parameters: Mapping[str, Any]) -> Compression:
    """The compression of such parameters.

    Args:
        parameters: ``type`` and, for ``2bit`` (default 0.5) and ``1bit`` (default 0), ``threshold``.

    Raises:
        RefusedError: an unknown type or parameter, or a threshold out of its range.
        TypeError: no mapping.
    """
    if not isinstance(parameters, Mapping):
        raise TypeError(f"expected a mapping such as {{'type': '2bit'}}, got {type(parameters).__name__}")
    given = dict(parameters)
    name = given.pop("type", None)
    if name in ("2bit", "1bit"):
        bits = int(name[0])
        made: Compression = Quantized(bits, given.pop("threshold", 0.5 if bits == 2 else 0.0))
    elif name in ("fp16", "bf16"):
        made = Rounded(name)
    else:
        raise RefusedError(f"expected a compression of type '2bit', '1bit', 'fp16' or 'bf16', got {name!r}")
    if given:
        raise RefusedError(f"expected no more parameters for {name}, got {', '.join(map(repr, given))}")
    return made


class Channel:
    """What a sender keeps for one array: codes, and the residual that they left.

    Args:
        compression: how it is coded.
        shape: of the arrays sent.
        dtype: of the arrays sent.
        device: where they are coded.

    Attributes:
        codes: of the last `send`.
        residual: pushed and not yet sent.
    """

    def __init__(self, compression: Compression, shape: Any, dtype: Any, device: Any) -> None:
        self._compression = compression
        code_shape, code_dtype = compression.code_shape(shape)
        self.codes = torch.empty(code_shape, dtype=code_dtype, device=device)
        keeps = isinstance(compression, Quantized)
        self.residual = torch.zeros(shape if keeps else 0, dtype=dtype, device=device)
        self._left = torch.empty_like(self.residual)
        self.decoded = torch.empty(shape, dtype=dtype, device=device)

    def send(self, value: Any) -> Any:
        """The value as a receiver gets it; the residual changes with `commit`."""
        value = value.to(self.decoded.device).contiguous()
        self._compression.encode(value, self.residual, self._left, self.codes)
        self._compression.decode(self.codes, self.decoded)
        return self.decoded

    def commit(self) -> None:
        """What was sent last has arrived."""
        self.residual, self._left = self._left, self.residual


# ---- where native kernels do not reach ------------------------------------------------------------------------


def encode_by_torch(bits: int, threshold: float, value: Any, residual: Any, left: Any, codes: Any) -> None:
    """As the native kernel, in torch operations, for tensors on other devices."""
    limit = torch.tensor(threshold, dtype=torch.float32, device=value.device)
    r = (residual + value).reshape(-1)
    if bits == 2:
        above, below = r >= limit, r <= -limit
        sent = torch.where(above, limit, torch.where(below, -limit, torch.zeros_like(limit)))
        code = torch.where(above, 3, torch.where(below, 2, 0))
    else:
        code = (r > limit).to(torch.int64)
        sent = 2.0 * code.to(torch.float32) - 1.0
    left.view(-1).copy_(r - sent)
    per_byte = 8 // bits
    padded = torch.zeros(codes.numel() * per_byte, dtype=torch.int64, device=value.device)
    padded[: code.numel()] = code
    codes.copy_((padded.view(-1, per_byte) << _shifts(bits, value.device)).sum(1))


def decode_by_torch(bits: int, threshold: float, codes: Any, out: Any) -> None:
    """As the native kernel, in torch operations, for tensors on other devices."""
    values = [0.0, 0.0, -threshold, threshold] if bits == 2 else [-1.0, 1.0]
    table = torch.tensor(values, dtype=torch.float32, device=codes.device)
    code = (codes.to(torch.int64)[:, None] >> _shifts(bits, codes.device)) & (2**bits - 1)
    out.view(-1).copy_(table[code.reshape(-1)[: out.numel()]])


def _shifts(bits: int, device: Any) -> Any:
    return torch.arange(8 - bits, -1, -bits, device=device)
