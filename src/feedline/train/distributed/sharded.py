"""Learning with a model that FSDP2 has sharded (`torch.distributed.fsdp.fully_shard`).

As with `DistributedDataParallel` the model exchanges its gradients itself; but its forward pass is an exchange, too, so
all ranks make equally many of them. A minibatch of which some rank's part is empty is skipped on all ranks. Ranks may
evaluate different numbers of minibatches, so parameters are gathered for evaluations, and each rank holds the whole
model meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.train.distributed.through_model import ThroughModel, in_parallel
from feedline.train.strategy import HoldsParts
from feedline.updates.arrays import is_sharded


def sharded(model: torch.nn.Module) -> bool:
    """Whether ranks hold parts of a model's parameters."""
    return any(is_sharded(parameter) for parameter in model.parameters())


def through(model: torch.nn.Module, ranks: Ranks) -> ThroughModel:
    """Return the strategy of learners that use only their own gradients while ``ranks`` run one session."""
    return (Sharded if sharded(model) else ThroughModel)(model, ranks)


def of_model(model: torch.nn.Module) -> ThroughModel | None:
    """Return the strategy of learners without one, if their model is known to exchange gradients itself."""
    ranks = Ranks()
    if sharded(model):  # on one rank, too: its tensors are written and read as shards
        return through(model, ranks)
    return through(model, ranks) if in_parallel(model) and not ranks.alone else None


class Sharded(ThroughModel, HoldsParts):
    """The strategy of several ranks whose model is sharded and exchanges gradients itself."""

    @property
    def _why_skip(self) -> str:
        return "every forward pass of a sharded model involves all ranks; choose a larger minibatch"

    def pieces(self, count: int) -> None:
        """See `HoldsParts`."""
        rows = [int(row[0]) for row in self._ranks.gather([float(count)])]
        if len(set(rows)) > 1:
            found = ", ".join(f"rank {r}: {number}" for r, number in enumerate(rows))
            raise ValueError(
                "expected all ranks to process a minibatch in equally many pieces, as every forward pass of a sharded "
                f"model involves all ranks, got {found}; choose a microbatch that gives no rank more than the others"
            )

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """See `ExchangesInBackward`: gradients are exchanged in the last pass."""
        parts = self._sharded_modules()
        for module in parts:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in parts:
                module.set_requires_gradient_sync(True, recurse=False)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `ExchangesInBackward`: parameters are gathered before, and stay so."""
        parts = self._sharded_modules()
        groups = [group for module in parts for group in module._get_fsdp_state()._fsdp_param_groups]
        before = [group.post_forward_mesh_info for group in groups]
        try:
            with torch.no_grad():
                for module in parts:
                    module.unshard()
            for group in groups:
                group.post_forward_mesh_info = None  # where to reshard to behind a forward pass: nowhere
            yield
        finally:
            for group, info in zip(groups, before, strict=True):
                group.post_forward_mesh_info = info
            for module in parts:
                module.reshard()

    def _sharded_modules(self) -> list[Any]:
        return [module for module in self._model.modules() if hasattr(module, "set_requires_gradient_sync")]
