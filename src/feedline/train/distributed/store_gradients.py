"""Training through a key-value store: gradients are pushed to it, and their sums over all workers are pulled.

Every rank makes the same update from the same sums. Features of the store apply, such as compression
(``store.set_gradient_compression``) and the transports of third parties.

Checkpoints of a session contain the residuals of compression of all ranks, so that a killed run resumes as if it had
not been interrupted. With another number of ranks, each rank adopts residuals of one or more earlier ranks, so nothing
is lost.

Costs: through a ``dist_sync`` store, the same as `feedline.train.distributed.sum_gradients`, as gradients are in
buckets of the store and are exchanged while backward runs. Through a third-party store, a ``pushpull`` of all
gradients after backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

from feedline.collective.communicator import Communicator
from feedline.collective.flat_buffers import Bucket
from feedline.collective.sums import BucketSums
from feedline.data import Minibatch
from feedline.errors import StateError, shown
from feedline.kvstore import KVStore
from feedline.kvstore.bucket_sums import PushedSums
from feedline.kvstore.dist import DistStore
from feedline.train.distributed.sum_gradients import DataParallel
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Total

#: Residuals of ranks, by rank and index of the parameter.
Residuals = dict[tuple[int, int], torch.Tensor]
#: Number of trainers that have created keys in a store.
_trainers: WeakKeyDictionary[KVStore, int] = WeakKeyDictionary()


class ThroughStore(DataParallel):
    """Strategy of `through_store`."""

    strategy_name: ClassVar[str] = "through_store"

    def __init__(self, store: KVStore, distributed_after: int) -> None:
        super().__init__(distributed_after=distributed_after)
        self._store = store
        #: Residuals of the loaded checkpoint, until the next step. None if no checkpoint was loaded.
        self._loaded_residuals: Residuals | None = None
        self._loaded_code: Any = None
        #: Current residuals, gathered on rank 0 for a checkpoint.
        self._gathered_residuals: Residuals = {}

    def settings(self) -> dict[str, Any]:
        """See `DistributedStrategy`."""
        return {"way": self.strategy_name, "store": self._store.type, "after": self._after}

    def _connect(self) -> Communicator:
        store_ranks = getattr(self._store, "ranks", None)  # third-party stores may not have it
        ranks: Communicator = super()._connect() if store_ranks is None else store_ranks
        if (ranks.rank, ranks.count) != (self._store.rank, self._store.num_workers):
            raise ValueError(
                f"expected a store that all {ranks.count} ranks share, got worker {self._store.rank} of "
                f"{self._store.num_workers} of type {self._store.type!r} at rank {ranks.rank}; use a 'dist_sync' one"
            )
        return ranks

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        super().join(model, learners)
        strategies = [learner.strategy for learner in learners]
        if any(isinstance(s, ThroughStore) and s._store is not self._store for s in strategies):
            raise ValueError("expected one store for all learners of a trainer, got several stores")

    def _reduce(self, part: Contribution) -> Total:
        if not self._store.is_capable("sum"):
            raise ValueError(
                f"expected a store that sums the values that its workers push, got one of type {self._store.type!r}, "
                "which does not: set no updater and no optimizer, as the learner updates. With 'dist_async', push and "
                "pull yourself"
            )
        return super()._reduce(part)

    def _sums(self, buckets: Sequence[Bucket]) -> BucketSums:
        if isinstance(self._store, DistStore):
            sums = self._store.bucket_sums(buckets)
        else:
            sums = PushedSums(self._store, self._make_keys(), buckets)
        self._restore_residuals(sums)
        return sums

    def _make_keys(self) -> list[str]:
        # Trainers that share a store have separate keys, created in the same order on all ranks, as they step in order.
        number = _trainers[self._store] = _trainers.get(self._store, 0) + 1
        keys = [f"gradient {i} of trainer {number}" for i in range(len(self.parameters))]
        self._store.init(keys, [torch.zeros_like(parameter) for parameter in self.parameters])
        return keys

    # ---- residuals of compression -----------------------------------------------------------------------------

    def prepare(self, minibatch: Minibatch) -> bool:
        """See `Strategy`."""
        self._gathered_residuals = {}
        if self._gradients is not None and self._gradients.sums is not None:
            self._restore_residuals(self._gradients.sums)
        return super().prepare(minibatch)

    def _restore_residuals(self, sums: BucketSums) -> None:
        """Continue with the residuals of a checkpoint, if they have the same code."""
        loaded, self._loaded_residuals = self._loaded_residuals, None
        if loaded is None:
            return
        residuals: dict[int, torch.Tensor] = {}
        for (rank, i), residual in loaded.items() if sums.code == self._loaded_code else ():
            if rank % self.ranks.count == self.ranks.rank:
                residuals[i] = residuals[i] + residual if i in residuals else residual
        sums.set_residuals(residuals)

    def sync_models(self, saving: bool = False) -> None:
        """See `Strategy`."""
        super().sync_models(saving)
        if saving:
            self._gathered_residuals = self._gather_residuals()

    def _gather_residuals(self) -> Residuals:
        """Return the residuals of all ranks, on rank 0. A collective call."""
        if self._loaded_residuals is not None:
            return self._loaded_residuals
        sums = None if self._gradients is None else self._gradients.sums
        residuals = {} if sums is None else sums.residuals()
        if sums is None or not residuals:
            return {}
        self._loaded_code = sums.code
        ranks, nothing = self.ranks, torch.empty(0, dtype=torch.uint8)
        gathered: Residuals = {}
        with ranks.step():
            ranks.gather([float(len(residuals))], "save residuals of compression")
            for i, residual in sorted(residuals.items()):
                flat = residual.cpu().view(-1).view(torch.uint8)
                sizes = [0 if ranks.rank else flat.numel()] * ranks.count
                parts = ranks.distribute([flat] + [nothing] * (ranks.count - 1), sizes)
                if ranks.rank == 0:
                    gathered |= {(r, i): part.view(residual.dtype).view(residual.shape) for r, part in enumerate(parts)}
        return gathered

    def advice(self) -> dict[str, Any]:
        """See `Overlapping`. It contains residuals after `sync_models` with ``saving``."""
        if not self._gathered_residuals:
            return super().advice()
        description = {
            "code": self._loaded_code,
            "ranks": 1 + max(rank for rank, _ in self._gathered_residuals),
            "parameters": len(self.parameters),
        }
        tensors = {f"residual {rank} {i}": residual for (rank, i), residual in self._gathered_residuals.items()}
        return {**super().advice(), "residuals": description, "tensors": tensors}

    def take_advice(self, advice: Mapping[str, Any]) -> None:
        """See `Overlapping`."""
        super().take_advice(advice)
        description = advice.get("residuals") or {"code": None, "ranks": 0, "parameters": 0}
        tensors = advice.get("tensors", {})
        try:
            code, count, parameters = description["code"], description["ranks"], description["parameters"]
            if any(type(n) is not int or n < 0 for n in (count, parameters)):
                raise TypeError(f"{shown(count, 20)} ranks, {shown(parameters, 20)} parameters")
        except (KeyError, TypeError) as error:
            raise StateError(f"expected a description of residuals, got {shown(description, 80)}: {error!r}") from error
        loaded: Residuals = {}
        for r in range(count if parameters == len(self.parameters) else 0):  # otherwise they belong to other learners
            for i, p in enumerate(self.parameters):
                residual = tensors.get(name := f"residual {r} {i}")
                if residual is None or (residual.shape, residual.dtype) != (p.shape, p.dtype):
                    got = "nothing" if residual is None else f"{tuple(residual.shape)} {residual.dtype}"
                    raise StateError(f"expected {tuple(p.shape)} {p.dtype} under {name!r} in the state, got {got}")
                loaded[r, i] = residual
        self._loaded_residuals, self._loaded_code = loaded, code


def through_store(learner: Learner, store: KVStore, *, distributed_after: int = 0) -> Learner:
    """Let a learner, and its trainer, train on the minibatches of all workers of a store.

    ``fl.train.through_store(fl.train.Adam(model.parameters(), 0.01), fl.kvstore.create("dist_sync"))``. It
    works like `data_parallel`, but the store makes the sums. All learners of a trainer use one store, which several
    trainers may share. In third-party stores the keys are strs, created at the first step. The caller closes the store.

    Args:
        learner: any learner. Wrap a torch optimizer in `TorchLearner`.
        store: store that sums over its workers: ``dist_sync``, ``dist_device_sync``, or a third-party one that is
            capable of ``"sum"``, without updater and optimizer. Its workers must be the ranks of torch.distributed,
            from which sources get their partition. Its timeout applies to ranks.
        distributed_after: number of label samples until which all ranks train on the same whole minibatches.

    Returns:
        The learner itself. Its steps raise ValueError while the store does not sum, or if not all ranks share it.
    """
    learner.strategy = ThroughStore(store, distributed_after)
    return learner
