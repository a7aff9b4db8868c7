"""Block momentum (BMUF): each rank trains alone on a block of samples, then all agree on a filtered mean.

Each rank updates its own copy of the parameters from full-size minibatches. When all ranks together have seen a block
of samples, with w the parameters after the last agreement, K the samples since, and D the sum over ranks of w minus
the rank's parameters:

    eta = exp(-K / tau)
    v = eta v + (1 - eta) block_learning_rate D
    w = w - v, and with Nesterov momentum w = w - eta v once more

eta is computed from the samples of all ranks. CNTK computes it on each rank from its own samples, so models differ
where ranks have seen different numbers of samples. With equal numbers both agree. D is a sum. With the default tau,
``(1 - eta) D`` is the mean.

Costs: an exchange of a few numbers in each step and of the parameters in each block, and memory for two copies of the
parameters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT_S
from feedline.collective.flat_buffers import Bucket, lay_out_buckets
from feedline.errors import StateError
from feedline.train.distributed.base import DistributedStrategy
from feedline.train.learner import Learner
from feedline.train.parameters import copy_saved
from feedline.train.strategy import Contribution, Total


class BlockMomentum(DistributedStrategy):
    """Strategy of `block_momentum`."""

    strategy_name: ClassVar[str] = "block_momentum"

    def __init__(
        self, block_size: int, time_constant: float | None, nesterov: bool, reset: bool, rate: float, **common: Any
    ) -> None:
        super().__init__(**common)
        if block_size < 1:
            raise ValueError(f"expected a block of at least 1 sample, got {block_size}")
        if time_constant is not None and not 0 <= time_constant < math.inf:
            raise ValueError(f"expected a time constant of at least 0 samples, got {time_constant}")
        if not 0 < rate < math.inf:
            raise ValueError(f"expected a block learning rate above 0, got {rate}")
        self._block, self._constant = int(block_size), time_constant
        self._nesterov, self._reset, self._rate = nesterov, reset, float(rate)
        self._since = 0
        self._agreed: list[torch.Tensor] = []
        self._velocity: list[torch.Tensor] = []
        self._buckets: list[Bucket] = []

    def settings(self) -> dict[str, Any]:
        """See `DistributedStrategy`."""
        block_settings = {"block": self._block, "constant": self._constant, "nesterov": self._nesterov}
        return {**super().settings(), **block_settings, "reset": self._reset, "rate": self._rate}

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        super().join(model, learners)
        self._velocity = [torch.zeros_like(parameter) for parameter in self.parameters]

    def scale(self, samples: int) -> int:
        """See `Strategy`. The part of each rank is a full-size minibatch."""
        return self.ranks.count if self.trains_on_parts(samples) else 1

    def momentum(self, samples: int) -> float:
        """Return eta after ``samples`` samples of all ranks."""
        constant = self._constant
        if constant is None:
            alone = self.ranks.count == 1
            constant = 0.0 if alone else -self._block / math.log(1 - 1 / self.ranks.count)
        return math.exp(-samples / constant) if constant > 0 else 0.0

    def _reduce(self, part: Contribution) -> Total:
        count = self.ranks.count
        if self._block // count == 0:
            raise ValueError(f"expected a block of at least one sample for each of {count} ranks, got {self._block}")
        rows = self.ranks.gather(part.numbers(), f"learn by {self.strategy_name}")
        total = Total.of(part, rows, learned=int(part.samples))
        self._since += total.counted
        return total

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """See `Strategy`. The step that completes a block ends with the agreement."""
        with super().step():
            yield
            count = self.ranks.count
            if self._since and self._since >= self._block // count * count:
                self._agree()

    def _agree(self) -> None:
        eta = self.momentum(self._since)
        with torch.no_grad():
            if not self._buckets:
                self._buckets = lay_out_buckets(self.parameters)
            changes = torch._foreach_sub(self._agreed, self.parameters)
            self.ranks.wait([self.ranks.sum(bucket.fill(changes)) for bucket in self._buckets])
            for bucket in self._buckets:
                bucket.read(changes)
            torch._foreach_mul_(self._velocity, eta)
            torch._foreach_add_(self._velocity, changes, alpha=(1 - eta) * self._rate)
            torch._foreach_sub_(self._agreed, self._velocity, alpha=1 + eta if self._nesterov else 1)
            torch._foreach_copy_(self.parameters, self._agreed)
        self._since = 0
        if self._reset:
            for learner in self._learners:
                learner.forget()

    def sync_models(self, saving: bool = False) -> None:
        """See `Strategy`. Ranks agree on an incomplete block."""
        if self._in_sync:
            with self.ranks.step():
                # The size of an incomplete block is the same on all ranks, which this verifies.
                self.ranks.agree(f"agree on {self._since} samples of a block{', to save' if saving else ''}")
                if self._since:
                    self._agree()
                if saving and not self._reset:
                    # A checkpoint has one state of each learner, from which all ranks continue.
                    self._copy_learners_of_rank_0()
        super().sync_models(saving)

    def _copy_rank_0(self) -> None:
        super()._copy_rank_0()
        with torch.no_grad():
            self._agreed = [parameter.detach().clone() for parameter in self.parameters]

    def state_dict(self) -> dict[str, Any]:
        """See `KeepsState`. After `sync_models`, the velocity is the whole state."""
        tensors = {f"velocity {i}": velocity for i, velocity in enumerate(self._velocity)}
        return {"way": self.strategy_name, "tensors": tensors}

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """See `KeepsState`."""
        tensors = state.get("tensors", {})
        names = [f"velocity {i}" for i in range(len(self._velocity))]
        if state.get("way") != self.strategy_name or sorted(tensors) != sorted(names):
            saved = {"workers": state.get("way"), "tensors": len(tensors)}
            current = {"workers": self.strategy_name, "tensors": len(names)}
            what = "expected the state of block momentum over the same number of parameters"
            raise StateError(what, saved=saved, current=current)
        velocity = [copy_saved(name, tensors[name], p, p.dtype) for name, p in zip(names, self.parameters, strict=True)]

        def load() -> None:
            self._require_sync()
            self._since, self._velocity = 0, velocity

        return load


def block_momentum(
    learner: Learner,
    block_size: int,
    group: Any = None,
    *,
    time_constant: float | None = None,
    nesterov: bool = True,
    reset: bool = True,
    learning_rate: float = 1.0,
    distributed_after: int = 0,
    timeout: float = TIMEOUT_S,
) -> Learner:
    """Let each rank train alone, and agree once a block. This needs few exchanges, for slow networks.

    A session's minibatch size is multiplied by the number of ranks, so that each trains on a full-size minibatch.
    Schedules and spans count the label samples of all ranks. Models are equal on all ranks after each block, checkpoint
    and validation, and at the end. Checkpoints, validations and the end agree on incomplete blocks.

    Args:
        learner: any learner. All learners of a trainer need the same settings.
        block_size: samples of all ranks between two agreements.
        group: torch.distributed group. None means all ranks.
        time_constant: time constant of the block momentum, in samples of all ranks. None means
            ``-block_size / ln(1 - 1 / ranks)``.
        nesterov: whether to use Nesterov momentum.
        reset: whether to reset the states of learners after each block. Otherwise a checkpoint contains the states of
            rank 0, from which all ranks continue.
        learning_rate: factor of the change that a block makes.
        distributed_after: number of label samples until which all ranks train on the same whole minibatches.
        timeout: seconds to wait for other ranks. Then a `StoreError` names the missing ones.

    Returns:
        The learner itself.

    Raises:
        ValueError: an argument out of its range, or, at the first step, a block of fewer samples than ranks.
    """
    common = {"group": group, "distributed_after": distributed_after, "timeout_s": timeout}
    learner.strategy = BlockMomentum(block_size, time_constant, nesterov, reset, learning_rate, **common)
    return learner
