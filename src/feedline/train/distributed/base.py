"""What all distributed strategies share: connections, atomic steps, and models that stay equal.

A rank that runs out of data keeps stepping with zero samples until every rank has. A step is made on all ranks or on
none: Ctrl-C waits for its end, and a rank that leaves one in the middle regardless (by a second Ctrl-C, or an error)
tells the others, and all have to be started again. Until ``distributed_after`` label samples every rank learns from the
same whole minibatches. From then on each learns from its part; parameters, buffers and learners' states are first
overwritten with rank 0's, so ranks need not begin equal.

Costs: one exchange of a few numbers each step, and what each strategy says.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT, Communicator
from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.errors import StateError, StoreError
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Decision, Strategy, Total


class DistributedStrategy(Strategy, ABC):
    """A `Strategy` of several ranks.

    Args:
        group: a torch.distributed group; None: all ranks.
        distributed_after: label samples until which all ranks learn from the same minibatches.
        timeout: seconds that a rank waits for others.

    Raises:
        ValueError: an argument out of its range.
    """

    #: Name of the strategy in states.
    way: ClassVar[str]

    def __init__(self, group: Any = None, distributed_after: int = 0, timeout: float = TIMEOUT) -> None:
        if distributed_after < 0:
            raise ValueError(f"expected distributed_after to be at least 0 samples, got {distributed_after}")
        if not timeout > 0:
            raise ValueError(f"expected a timeout above 0 s, got {timeout}")
        self._group, self._after, self._timeout = group, int(distributed_after), float(timeout)
        self._ranks: Communicator | None = None
        self._equal = False
        self._model: torch.nn.Module | None = None
        self._learners: list[Learner] = []
        self.parameters: list[torch.Tensor] = []

    @property
    def ranks(self) -> Communicator:
        """Connected at first use.

        Raises:
            RuntimeError: torch.distributed is not initialised.
            StoreError: a rank did not come.
        """
        if self._ranks is None:
            distributed = torch.distributed
            if not (distributed.is_available() and distributed.is_initialized()):
                # Sources find their part there too: without it every rank would read everything.
                raise RuntimeError(
                    "expected torch.distributed to be initialised: call init_process_group before training"
                )
            self._ranks = self._connected()
        return self._ranks

    def _connected(self) -> Communicator:
        return Communicator(self._group, timeout=self._timeout)

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        others = [learner.strategy for learner in learners]
        if any(not isinstance(other, DistributedStrategy) or other.settings() != self.settings() for other in others):
            raise ValueError("expected all learners of a trainer to learn together in one way, with equal settings")
        self._model, self._learners, self._equal = model, list(learners), False
        self.parameters = [p for learner in learners for p in learner.parameters.values()]

    def settings(self) -> dict[str, Any]:
        """What has to be equal for all learners of a trainer."""
        return {"way": self.way, "group": self._group, "after": self._after, "timeout": self._timeout}

    def apart(self, samples: int) -> bool:
        """Whether ranks learn from parts of a minibatch after so many label samples, or each from all of it."""
        return samples >= self._after

    def partition(self, samples: int) -> tuple[int, int] | None:
        """See `Strategy`."""
        return None if self.apart(samples) else (0, 1)

    def session_ranks(self) -> Ranks:
        """See `Strategy`."""
        return Ranks(lambda: self.ranks)

    def decide(self, minibatch: Minibatch) -> Decision:
        """See `Strategy`: a rank whose source has ended learns from the others' parts until all have."""
        return Decision.LEARN

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """See `Strategy`."""
        with self.ranks.step():
            yield

    def reduce(self, own: Contribution) -> Total:
        """See `Strategy`."""
        seen = self._learners[0].samples
        if self.apart(seen):
            if not self._equal:
                self._make_equal()
            return self._reduce(own)
        rows = self.ranks.gather([*own.numbers(), float(seen)], "learn from the same minibatches")
        if any((row[0], row[-1]) != (rows[0][0], rows[0][-1]) for row in rows):
            got = ", ".join(f"rank {r}: {row[0]:.0f} after {row[-1]:.0f}" for r, row in enumerate(rows))
            raise StoreError(
                f"expected all ranks to learn from the same minibatches until {self._after} label samples, got samples "
                f"{got}\n  let sources read as one worker until then: next_minibatch(size, partition=(0, 1))"
            )
        # All ranks have the same minibatch, so rank 0's samples are those of all.
        sums = len(("samples", "loss_sum", "metric_sum"))
        rows = [row[:-1] if r == 0 else [0.0] * sums + row[sums:-1] for r, row in enumerate(rows)]
        return Total.of(own, rows, learned=int(own.samples))

    @abstractmethod
    def _reduce(self, own: Contribution) -> Total:
        """Sum gradients of the ranks' parts; see `reduce`."""

    def settle(self, saving: bool = False) -> None:
        """See `Strategy`."""
        if self._learners and self._equal:
            assert self._model is not None
            # Running statistics of layers are each rank's own: rank 0's are the ones that count.
            with self.ranks.step():
                self.ranks.broadcast([buffer for buffer in self._model.buffers() if buffer.numel()])

    def _make_equal(self) -> None:
        """Let everybody have what rank 0 has."""
        assert self._model is not None
        tensors = {name: t for name, t in self._model.state_dict().items() if isinstance(t, torch.Tensor)}
        shapes = "; ".join(f"{name} {tuple(t.shape)} {_dtype(t)}" for name, t in tensors.items())
        self.ranks.agree(f"learn by {self.settings()} {shapes}")
        self.ranks.broadcast([t for t in tensors.values() if t.numel()])
        self._share_learners()
        self._equal = True

    def _share_learners(self) -> None:
        """Let everybody's learners have the states of rank 0's."""
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
        """See `Strategy`.

        Raises:
            StateError: it is of another way of learning together.
        """
        if state:
            raise StateError(
                "expected a state without one of learning together",
                saved={"workers": state.get("way") if isinstance(state, Mapping) else state},
                current={"workers": self.way},
            )
        return self._part

    def _part(self) -> None:
        """Before the next update everybody gets what rank 0 has."""
        self._equal = False


def check_dense(parameters: Sequence[torch.Tensor]) -> None:
    """Raises ValueError for a sparse gradient."""
    for i, parameter in enumerate(parameters):
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise ValueError(f"expected dense gradients, got a sparse one for parameter {i}: use sparse=False")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
