"""The base class of distributed strategies: connections, atomic steps, and models that stay equal.

A rank that runs out of data keeps stepping with zero samples until every rank has. A step is completed on all ranks or
on none. Ctrl-C is deferred to its end. A rank that nevertheless leaves a step (by a second Ctrl-C, or an error)
notifies the other ranks, and all have to be restarted. Until ``distributed_after`` label samples every rank trains on
the same whole minibatches. After that each trains on its part. Parameters, buffers and states of learners are first
overwritten with the values of rank 0, so ranks need not start equal.

Costs: one exchange of a few numbers each step, and the costs of the strategy.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT_S, Communicator
from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.errors import StateError, StoreError
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, KeepsState, Strategy, Total


class DistributedStrategy(Strategy, KeepsState, ABC):
    """A `Strategy` of several ranks.

    Args:
        group: torch.distributed group. None means all ranks.
        distributed_after: number of label samples until which all ranks train on the same minibatches.
        timeout_s: seconds to wait for other ranks.

    Raises:
        ValueError: an argument out of its range.
    """

    #: Name of the strategy in states.
    strategy_name: ClassVar[str]

    def __init__(self, group: Any = None, distributed_after: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        if distributed_after < 0:
            raise ValueError(f"expected distributed_after to be at least 0 samples, got {distributed_after}")
        if not timeout_s > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout_s}")
        self._group, self._after, self._timeout_s = group, int(distributed_after), float(timeout_s)
        self._ranks: Communicator | None = None
        self._in_sync = False
        self._model: Any = None
        self._learners: list[Learner] = []
        self.parameters: list[torch.Tensor] = []

    @property
    def ranks(self) -> Communicator:
        """Communicator of the ranks, connected at first use.

        Raises:
            RuntimeError: torch.distributed is not initialised.
            StoreError: a rank did not arrive in time.
        """
        if self._ranks is None:
            distributed = torch.distributed
            if not (distributed.is_available() and distributed.is_initialized()):
                # Sources get their partition from it, too. Without it every rank would read all data.
                raise RuntimeError("expected an initialised torch.distributed: call init_process_group before training")
            self._ranks = self._connect()
        return self._ranks

    def _connect(self) -> Communicator:
        return Communicator(self._group, timeout_s=self._timeout_s)

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        strategies = [learner.strategy for learner in learners]
        if any(not isinstance(s, DistributedStrategy) or s.settings() != self.settings() for s in strategies):
            raise ValueError("expected one strategy with equal settings for all learners of a trainer, got several")
        self._model, self._learners, self._in_sync = model, list(learners), False
        self.parameters = [p for learner in learners for p in learner.parameters.values()]

    def settings(self) -> dict[str, Any]:
        """Return the settings that have to be equal for all learners of a trainer."""
        return {"way": self.strategy_name, "group": self._group, "after": self._after, "timeout": self._timeout_s}

    def trains_on_parts(self, samples: int) -> bool:
        """See `Strategy`."""
        return samples >= self._after

    def session_ranks(self) -> Ranks:
        """See `Strategy`."""
        return Ranks(lambda: self.ranks)

    def prepare(self, minibatch: Minibatch) -> bool:
        """See `Strategy`. Gradients of parameters that differ from the ones of rank 0 would be useless."""
        if self._learners and not self._in_sync and self.trains_on_parts(self._learners[0].samples):
            with self.step():
                self._copy_rank_0()
        return True

    def step(self) -> AbstractContextManager[None]:
        """See `Strategy`."""
        return self.ranks.step()

    def reduce(self, part: Contribution) -> Total:
        """See `Strategy`."""
        samples = self._learners[0].samples
        if self.trains_on_parts(samples):
            if not self._in_sync:
                self._copy_rank_0()
            return self._reduce(part)
        rows = self.ranks.gather([*part.numbers(), float(samples)], "learn from the same minibatches")
        if any((row[0], row[-1]) != (rows[0][0], rows[0][-1]) for row in rows):
            got = ", ".join(f"rank {r}: {row[0]:.0f} after {row[-1]:.0f}" for r, row in enumerate(rows))
            raise StoreError(
                f"expected all ranks to train on the same minibatches until {self._after} label samples, got samples "
                f"{got}\n  read whole minibatches until then: next_minibatch(size, partition=(0, 1))"
            )
        # All ranks have the same minibatch, so rank 0's samples count for all.
        sums = len(("samples", "loss_sum", "metric_sum"))
        rows = [row[:-1] if r == 0 else [0.0] * sums + row[sums:-1] for r, row in enumerate(rows)]
        return Total.of(part, rows, learned=int(part.samples))

    @abstractmethod
    def _reduce(self, part: Contribution) -> Total:
        """Sum the gradients of all parts. See `reduce`."""

    def sync_models(self, saving: bool = False) -> None:
        """See `Strategy`."""
        if self._learners and self._in_sync:
            # Running statistics of layers differ between ranks. The values of rank 0 are used.
            with self.ranks.step():
                self.ranks.broadcast([buffer for buffer in self._model.buffers() if buffer.numel()])

    def _copy_rank_0(self) -> None:
        """Overwrite parameters, buffers and states of learners with the values of rank 0."""
        tensors = {name: t for name, t in self._model.state_dict().items() if isinstance(t, torch.Tensor)}
        shapes = "; ".join(f"{name} {tuple(t.shape)} {_dtype(t)}" for name, t in tensors.items())
        # Each rank has a group object of its own, which no other rank knows.
        settings = {name: value for name, value in self.settings().items() if name != "group"}
        self.ranks.agree(f"learn by {settings} {shapes}")
        self.ranks.broadcast([t for t in tensors.values() if t.numel()])
        self._copy_learners_of_rank_0()
        self._in_sync = True

    def _copy_learners_of_rank_0(self) -> None:
        """Overwrite the states of learners with the states of rank 0."""
        for learner in self._learners:
            state = learner.state_dict()
            tensors = {name: t.cpu() for name, t in state.pop("tensors").items()}
            description = [state, [[name, list(t.shape), _dtype(t)] for name, t in tensors.items()]]
            state, kinds = json.loads(self.ranks.gather_bytes(json.dumps(description).encode())[0])
            if self.ranks.rank:
                tensors = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, shape, dtype in kinds}
            self.ranks.broadcast([t for t in tensors.values() if t.numel()])
            if self.ranks.rank:
                learner.load_state_dict({**state, "tensors": tensors})

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """See `KeepsState`.

        Raises:
            StateError: the state is of another strategy.
        """
        if state:
            way = state.get("way") if isinstance(state, Mapping) else state
            saved, current = {"workers": way}, {"workers": self.strategy_name}
            raise StateError("expected a state that no other strategy saved", saved=saved, current=current)
        return self._require_sync

    def _require_sync(self) -> None:
        """Overwrite the models of all ranks with the model of rank 0 before the next update."""
        self._in_sync = False


def check_dense(parameters: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for a sparse gradient."""
    for i, parameter in enumerate(parameters):
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise ValueError(f"expected dense gradients, got a sparse one for parameter {i}: use sparse=False")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
