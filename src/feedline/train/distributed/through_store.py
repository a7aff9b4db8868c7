"""Learning together through a key-value store: gradients are pushed to it, and their sums over all workers pulled.

Every rank makes the same update from the same sums. What the store can do, the learner gets: compression
(``store.set_gradient_compression``), a transport of a third party. What compression holds back is not in checkpoints.

Costs: one exchange of a few numbers and one ``pushpull`` of all gradients each step, back into their own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from feedline.collective.communicator import Communicator
from feedline.kvstore import KVStore
from feedline.train.distributed.base import DistributedStrategy, check_dense
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Total

#: How many trainers have made keys in a store.
_trainers: WeakKeyDictionary[KVStore, int] = WeakKeyDictionary()


class ThroughStore(DistributedStrategy):
    """The sums that a store makes; see `through_store`."""

    way: ClassVar[str] = "through_store"

    def __init__(self, store: KVStore, distributed_after: int) -> None:
        super().__init__(distributed_after=distributed_after)
        self._store = store
        self._keys: list[str] = []

    def settings(self) -> dict[str, Any]:
        """See `DistributedStrategy`."""
        return {"way": self.way, "store": self._store.type, "after": self._after}

    def _connected(self) -> Communicator:
        own = getattr(self._store, "ranks", None)  # a store of a third party need not know of ours
        ranks: Communicator = super()._connected() if own is None else own
        if (ranks.rank, ranks.count) != (self._store.rank, self._store.num_workers):
            raise ValueError(
                f"expected a store that all {ranks.count} ranks share, got worker {self._store.rank} of "
                f"{self._store.num_workers} of type {self._store.type!r} at rank {ranks.rank}; make a 'dist_sync'"
            )
        return ranks

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        super().join(model, learners)
        if any(isinstance(one.strategy, ThroughStore) and one.strategy._store is not self._store for one in learners):
            raise ValueError("expected all learners of a trainer to go through one store, got several stores")

    def _reduce(self, own: Contribution) -> Total:
        check_dense(self.parameters)
        if not self._store.is_capable("sum"):
            raise ValueError(
                f"expected a store that adds up what its workers push, got one of type {self._store.type!r} that does "
                "not: the rule is the learner's, so set no updater or optimizer; with 'dist_async' push and pull "
                "yourself"
            )
        present = [float(parameter.grad is not None) for parameter in self.parameters]
        rows = self.ranks.gather([*own.numbers(), *present], f"learn by {self.way}")
        # A gradient that no rank has stays None: nothing decays that nobody used.
        used = [i for i in range(len(present)) if any(row[len(own) + i] for row in rows)]
        if not self._keys:
            self._make_keys()
        with torch.no_grad():
            gradients = []
            for i in used:
                parameter = self.parameters[i]
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
            self._store.pushpull([self._keys[i] for i in used], gradients)
        return Total.of(own, [row[: len(own)] for row in rows])

    def _make_keys(self) -> None:
        # Trainers that share a store have keys of their own: ranks make them in one order, as they step in one order.
        number = _trainers[self._store] = _trainers.get(self._store, 0) + 1
        keys = [f"gradient {i} of trainer {number}" for i in range(len(self.parameters))]
        self._store.init(keys, [torch.zeros_like(parameter) for parameter in self.parameters])
        self._keys = keys


def through_store(learner: Learner, store: KVStore, *, distributed_after: int = 0) -> Learner:
    """Let a learner, and the trainer that it is given to, learn from the minibatches of all of a store's workers.

    ``fl.train.through_store(fl.train.Adam(model.parameters(), 0.01), fl.kvstore.create("dist_sync"))``. As
    `data_parallel`, with the store in between. All learners of a trainer go through one store, and several trainers may
    share it; its keys are made at the first step, and are strs. It stays the caller's to close.

    Args:
        learner: any; for a torch optimizer, a `TorchLearner` of it.
        store: that adds up over its workers: ``dist_sync``, ``dist_device_sync``, or a third party's that is capable
            of ``"sum"``. Without updater and optimizer. Its workers are the ranks of torch.distributed, which sources
            ask for their part; its timeout is how long a rank waits for others.
        distributed_after: until so many label samples, all ranks learn from the same whole minibatches.

    Returns:
        The learner itself. Its steps raise ValueError while the store does not add up, or if not all ranks share it.
    """
    learner.strategy = ThroughStore(store, distributed_after)
    return learner
