"""Base class of distributed strategies: connections, atomic steps, and models that stay equal.

A rank that runs out of data keeps stepping with zero samples until every rank has. A step is completed on all ranks or
on none: Ctrl-C is deferred to its end, and a rank that leaves a step regardless (by a second Ctrl-C, or an error)
notifies the other ranks, and all have to be restarted. Until ``distributed_after`` label samples every rank trains on
the same whole minibatches. After that each trains on its part. Parameters, buffers and learners' states are first
overwritten with rank 0's, so ranks need not start equal.

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
        group: torch.distributed group. None: all ranks.
        distributed_after: number of label samples until which all ranks train on the same minibatches.
        timeout_s: seconds to wait for other ranks.

    Raises:
        ValueError: an argument out of its range.
    """

    #: Name of the strategy in states.
    way: ClassVar[str]

    def __init__(self, group: Any = None, distributed_after: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        if distributed_after < 0:
            raise ValueError(f"expected distributed_after to be at least 0 samples, got {distributed_after}")
        if not timeout_s > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout_s}")
        self._group, self._after, self._timeout_s = group, int(distributed_after), float(timeout_s)
        self._ranks: Communicator | None = None
        self._equal = False
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
                # Sources get their partition from it, too: without it every rank would read everything.
                raise RuntimeError(
                    "expected torch.distributed to be initialised: call init_process_group before training"
                )
            self._ranks = self._connected()
        return self._ranks

    def _connected(self) -> Communicator:
        return Communicator(self._group, timeout_s=self._timeout_s)

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        strategies = [learner.strategy for learner in learners]
        if any(not isinstance(s, DistributedStrategy) or s.settings() != self.settings() for s in strategies):
            raise ValueError("expected one strategy with equal settings for all learners of a trainer, got several")
        self._model, self._learners, self._equal = model, list(learners), False
        self.parameters = [p for learner in learners for p in learner.parameters.values()]

    def settings(self) -> dict[str, Any]:
        """Return the settings that have to be equal for all learners of a trainer."""
        return {"way": self.way, "group": self._group, "after": self._after, "timeout": self._timeout_s}

    def trains_on_parts(self, samples: int) -> bool:
        """See `Strategy`."""
        return samples >= self._after

    def session_ranks(self) -> Ranks:
        """See `Strategy`."""
        return Ranks(lambda: self.ranks)

    def prepare(self, minibatch: Minibatch) -> bool:
        """See `Strategy`: gradients of parameters that differ from rank 0's would be useless."""
        if self._learners and not self._equal and self.trains_on_parts(self._learners[0].samples):
            with self.step():
                self._make_equal()
        return True

    def step(self) -> AbstractContextManager[None]:
        """See `Strategy`."""
        return self.ranks.step()

    def reduce(self, part: Contribution) -> Total:
        """See `Strategy`."""
        samples = self._learners[0].samples
        if self.trains_on_parts(samples):
            if not self._equal:
                self._make_equal()
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
        """Sum gradients of the ranks' parts. See `reduce`."""

    def sync_models(self, saving: bool = False) -> None:
        """See `Strategy`."""
        if self._learners and self._equal:
            # Running statistics of layers differ by rank. Rank 0's count.
            with self.ranks.step():
                self.ranks.broadcast([buffer for buffer in self._model.buffers() if buffer.numel()])

    def _make_equal(self) -> None:
        """Overwrite parameters, buffers and learners' states with rank 0's."""
        tensors = {name: t for name, t in self._model.state_dict().items() if isinstance(t, torch.Tensor)}
        shapes = "; ".join(f"{name} {tuple(t.shape)} {_dtype(t)}" for name, t in tensors.items())
        self.ranks.agree(f"learn by {self.settings()} {shapes}")
        self.ranks.broadcast([t for t in tensors.values() if t.numel()])
        self._share_learners()
        self._equal = True

    def _share_learners(self) -> None:
        """Overwrite learners' states with rank 0's."""
        for learner in self._learners:
            state = learner.state_dict()
            tensors = {name: t.cpu() for name, t in state.pop("tensors").items()}
            about = [state, [[name, list(t.shape), _dtype(t)] for name, t in tensors.items()]]
            state, kinds = json.loads(self.ranks.gather_bytes(json.dumps(about).encode())[0])
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
            raise StateError(
                "expected a state that no other strategy saved",
                saved={"workers": state.get("way") if isinstance(state, Mapping) else state},
                current={"workers": self.way},
            )
        return self._require_sync

    def _require_sync(self) -> None:
        """Make all ranks equal to rank 0 before the next update."""
        self._equal = False


def check_dense(parameters: Sequence[torch.Tensor]) -> None:
    """Raise ValueError for a sparse gradient."""
    for i, parameter in enumerate(parameters):
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise ValueError(f"expected dense gradients, got a sparse one for parameter {i}: use sparse=False")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
