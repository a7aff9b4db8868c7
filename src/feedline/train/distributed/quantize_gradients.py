"""Data-parallel training with quantized gradients and error feedback, as in CNTK.

A gradient is treated as a matrix with a row for each index of its first axis (one row if it has one axis). The residual
of its last quantization is added to each row. Then the row is sent:

- With 1 bit: the sign of each element, and two numbers, the means of the negative and of the other elements.
- With b bits: one of 2^b levels of equal width between -4 and 4 root mean squares of the row, decoded to its centre.

Ranks own equal stripes of rows. The owner of a row sums the ranks' values, quantizes the sum with another residual, and
sends it to all ranks. So all ranks update with the same numbers, and the values sent and the residuals add up to the
gradients.

Residuals are not in checkpoints: they are dropped when one is written, as in CNTK, so that a resumed run equals an
uninterrupted one. With one rank nothing is quantized.

Costs: two exchanges of b bits for each element and 4 or 8 bytes for each row, and about a dozen passes over the
gradients. It pays if exchanging the whole gradients takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT_S
from feedline.train.distributed.base import DistributedStrategy, check_dense
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Total


class QuantizedGradients(DistributedStrategy):
    """Strategy of `quantized`."""

    strategy_name: ClassVar[str] = "quantized"

    def __init__(self, group: Any, bits: int, distributed_after: int, timeout_s: float) -> None:
        super().__init__(group, distributed_after, timeout_s)
        if not 1 <= bits <= 16:
            raise ValueError(f"expected 1 to 16 bits, got {bits}; use data_parallel for exact gradients")
        self.code = Code(bits)
        self._residuals: list[torch.Tensor] = []
        self._sum_residuals: list[torch.Tensor] = []

    def settings(self) -> dict[str, Any]:
        """See `DistributedStrategy`."""
        return {**super().settings(), "bits": self.code.bits}

    def _reduce(self, part: Contribution) -> Total:
        check_dense(self.parameters)
        rows = self.ranks.gather(part.numbers(), f"learn by {self.strategy_name}")
        present = torch.tensor([p.grad is not None for p in self.parameters], dtype=torch.int32)
        self.ranks.wait([self.ranks.sum(present)])
        used = [i for i, users in enumerate(present.tolist()) if users]
        if self.ranks.count > 1 and used:
            with torch.no_grad():
                self._sum(used)
        return Total.of(part, rows)

    def _sum(self, used: Sequence[int]) -> None:
        if not self._residuals:
            self._residuals = [torch.zeros(_matrix(p).shape) for p in self.parameters]
            self._sum_residuals = [torch.zeros_like(r[self._stripe(len(r))]) for r in self._residuals]
        ranks, this_rank, code = range(self.ranks.count), self.ranks.rank, self.code
        sent: list[list[torch.Tensor]] = [[] for _ in ranks]
        for i in used:
            parameter, residual = self.parameters[i], self._residuals[i]
            value = residual if parameter.grad is None else residual + _matrix(parameter.grad)
            codes = code.encode(value)
            self._residuals[i] = value - code.decode(codes, value.shape[1])
            for r in ranks:
                sent[r].append(codes[self._stripe(len(codes), r)])
        # Each rank receives all ranks' codes of its stripes, then the codes of all sums.
        size = sum(part.numel() for part in sent[this_rank])
        received = self.ranks.distribute([_join(parts) for parts in sent], [size] * len(ranks))
        summed = []
        for i, *pieces in zip(used, *[_split_like(codes, sent[this_rank]) for codes in received], strict=True):
            width = self._residuals[i].shape[1]
            value = self._sum_residuals[i].clone()
            for piece in pieces:
                value += code.decode(piece, width)
            codes = code.encode(value)
            self._sum_residuals[i] = value - code.decode(codes, width)
            summed.append(codes)
        sizes = [sum(part.numel() for part in parts) for parts in sent]
        gathered = self.ranks.distribute([_join(summed)] * len(ranks), sizes)
        stripes = [_split_like(codes, parts) for codes, parts in zip(gathered, sent, strict=True)]
        for i, *pieces in zip(used, *stripes, strict=True):
            parameter = self.parameters[i]
            value = code.decode(torch.cat(pieces), self._residuals[i].shape[1])
            parameter.grad = value.view(parameter.shape).to(parameter)

    def _stripe(self, rows: int, rank: int | None = None) -> slice:
        """Return the rows of a matrix that a rank owns, by default this one."""
        r = self.ranks.rank if rank is None else rank
        share, extra = divmod(rows, self.ranks.count)
        begin = r * share + min(r, extra)
        return slice(begin, begin + share + (r < extra))

    def sync_models(self, saving: bool = False) -> None:
        """See `Strategy`."""
        if saving:
            self._residuals, self._sum_residuals = [], []
        super().sync_models(saving)


class Code:
    """Encoding of rows as bytes: numbers (float32), then the elements' codes.

    Args:
        bits: bits of an element. It is packed into 1, 2, 4, 8 or 16 bits, the smallest that suffices.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._packed_bits = next(n for n in (1, 2, 4, 8, 16) if n >= bits)

    def encode(self, value: torch.Tensor) -> torch.Tensor:
        """Encode each row of ``value`` (float32) as a row of bytes (uint8)."""
        if self.bits == 1:
            negative = value < 0
            numbers = torch.stack([_mean(value, negative), _mean(value, ~negative)], 1)
            code = (~negative).to(torch.int32)
        else:
            numbers = 4 * value.square().mean(1, keepdim=True).sqrt()
            cells = 2**self.bits
            scale = torch.where(numbers > 0, cells / (2 * numbers), 0)
            code = ((value + numbers) * scale).to(torch.int32).clamp_(0, cells - 1)
        return torch.cat([_view_as(torch.uint8, numbers), self._pack(code)], 1)

    def decode(self, codes: torch.Tensor, width: int) -> torch.Tensor:
        """Decode rows of ``width`` elements (float32)."""
        number_bytes = 8 if self.bits == 1 else 4
        numbers = _view_as(torch.float32, codes[:, :number_bytes])
        code = self._unpack(codes[:, number_bytes:], width)
        if self.bits == 1:
            return torch.where(code > 0, numbers[:, 1:], numbers[:, :1])
        return (code.to(torch.float32) + 0.5) * (2 * numbers / 2**self.bits) - numbers

    def _pack(self, code: torch.Tensor) -> torch.Tensor:
        if self._packed_bits == 16:
            return _view_as(torch.uint8, code.to(torch.uint16))
        per_byte = 8 // self._packed_bits
        padded = torch.nn.functional.pad(code.to(torch.uint8), (0, -code.shape[1] % per_byte))
        packed = torch.zeros(len(code), padded.shape[1] // per_byte, dtype=torch.uint8)
        for k in range(per_byte):
            packed |= padded[:, k::per_byte] << (self._packed_bits * k)
        return packed

    def _unpack(self, packed: torch.Tensor, width: int) -> torch.Tensor:
        if self._packed_bits == 16:
            return _view_as(torch.uint16, packed).to(torch.int32)
        per_byte = 8 // self._packed_bits
        code = torch.empty(len(packed), packed.shape[1] * per_byte, dtype=torch.uint8)
        for k in range(per_byte):
            code[:, k::per_byte] = (packed >> (self._packed_bits * k)) & (2**self._packed_bits - 1)
        return code[:, :width]


def _view_as(dtype: torch.dtype, rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of rows as another dtype."""
    fresh = torch.empty(rows.shape, dtype=rows.dtype)  # the strides of a single row may not allow a view
    return fresh.copy_(rows).view(dtype)


def _mean(value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the elements of each row that ``mask`` selects, 0 if it selects none."""
    return (value * mask).sum(1) / mask.sum(1).clamp(min=1)


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as float32 on the CPU, with a row for each index of the first axis."""
    flat = tensor.detach().to("cpu", torch.float32)
    return flat.reshape(len(flat), -1) if flat.dim() > 1 else flat.reshape(1, -1)


def _join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _split_like(joined: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split the result of `_join` into parts of the shapes of ``like``."""
    pieces = joined.split([part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def quantized(
    learner: Learner, bits: int = 1, group: Any = None, *, distributed_after: int = 0, timeout: float = TIMEOUT_S
) -> Learner:
    """Let a learner train as `data_parallel` does, but with quantized gradients, for slow networks.

    Args:
        learner: any learner. All learners of a trainer need the same settings.
        bits: bits of an element, 1 to 16.
        group: torch.distributed group. None means all ranks.
        distributed_after: number of label samples until which all ranks train on the same whole minibatches.
        timeout: seconds to wait for other ranks. Then a `StoreError` names the missing ones.

    Returns:
        The learner itself.

    Raises:
        ValueError: ``bits`` out of range.
    """
    learner.strategy = QuantizedGradients(group, bits, distributed_after, timeout)
    return learner
