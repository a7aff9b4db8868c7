"""What the ways of learning together share: when ranks begin to, how they tell each other, and that they stay equal.

All ranks step equally often; a rank that has nothing, or whose source has ended, takes part with nothing. A step is
made on all ranks or on none: Ctrl-C waits for its end, and a rank that leaves one in the middle all the same (by a
second Ctrl-C, or an error of its own) has to be started again, with all others, who are told. Until
``distributed_after`` label samples every rank learns from the same whole minibatches. From there on each learns from
its part: parameters, buffers and learners' states are first made those of rank 0, so nobody has to begin equal.

Costs: one exchange of a few numbers each step, which also tells every rank what was learned in all, and what the ways
themselves say.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT, Communicator
from feedline.errors import StateError, StoreError
from feedline.train.learner import Learner

Update = Callable[[int, list[list[float]]], None]


class Together(ABC):
    """A `Workers`; see there.

    Args:
        group: a torch.distributed group; None: all ranks.
        distributed_after: label samples until which all ranks learn from the same minibatches.
        timeout: seconds that a rank waits for others.

    Raises:
        ValueError: an argument out of its range.
    """

    #: The way's name in states.
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
        """See `Workers`."""
        others = [learner.workers for learner in learners]
        if any(not isinstance(other, Together) or other.settings() != self.settings() for other in others):
            raise ValueError("expected all learners of a trainer to learn together in one way, with equal settings")
        self._model, self._learners, self._equal = model, list(learners), False
        self.parameters = [p for learner in learners for p in learner.parameters.values()]

    def settings(self) -> dict[str, Any]:
        """What has to be equal for all learners of a trainer."""
        return {"way": self.way, "group": self._group, "after": self._after, "timeout": self._timeout}

    def apart(self, samples: int) -> bool:
        """See `Workers`."""
        return samples >= self._after

    def scale(self, samples: int) -> int:
        """See `Workers`."""
        return 1

    def learn(self, own: Sequence[float], update: Update) -> list[list[float]]:
        """See `Workers`."""
        with self.ranks.step():
            return self._learn_in_step(own, update)

    def _learn_in_step(self, own: Sequence[float], update: Update) -> list[list[float]]:
        seen = self._learners[0].samples
        if self.apart(seen):
            if not self._equal:
                self._make_equal()
            return self._learn(own, update)
        rows = self.ranks.gather([*own, float(seen)], "learn from the same minibatches")
        if any((row[0], row[-1]) != (rows[0][0], rows[0][-1]) for row in rows):
            got = ", ".join(f"rank {r}: {row[0]:.0f} after {row[-1]:.0f}" for r, row in enumerate(rows))
            raise StoreError(
                f"expected all ranks to learn from the same minibatches until {self._after} label samples, got samples "
                f"{got}\n  let sources read as one worker until then: next_minibatch(size, partition=(0, 1))"
            )
        rows = [row[:-1] if r == 0 else [0.0] * 3 + row[3:-1] for r, row in enumerate(rows)]
        update(round(own[0]), rows)
        return rows

    @abstractmethod
    def _learn(self, own: Sequence[float], update: Update) -> list[list[float]]:
        """`learn`, from parts."""

    def settle(self, saving: bool = False) -> None:
        """See `Workers`."""
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

    def state_dict(self) -> dict[str, Any]:
        """See `Workers`; most ways have nothing to keep."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Workers`."""
        self.checked(state)()

    def checked(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """See `Workers`.

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
