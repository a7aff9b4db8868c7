"""Training of a model that exchanges gradients itself, as `DistributedDataParallel` does in its backward pass.

Sessions of several ranks use this module if their learners have no strategy. Ranks agree before each update whether all
of them train, and count the samples of all ranks.

If DDP looks for unused parameters, a parameter that no rank with data has used gets no gradient, as in a single
process.

A model that FSDP2 has sharded (`torch.distributed.fsdp.fully_shard`) exchanges in its forward pass, too, so all ranks
make equally many forward passes. If some rank's part of a minibatch is empty, all ranks skip it. Ranks may evaluate
different numbers of minibatches, so parameters are gathered for evaluations, and each rank holds the whole model during
them.

Costs: an exchange of a few numbers before each update, and another one in it.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.train.distributed.gradients import remove_hooks
from feedline.train.strategy import Contribution, Decision, ExchangesInBackward, HoldsParts, Strategy, Total
from feedline.train.summary import NOTHING, Summary, counted_ranks
from feedline.train.unwrap import unwrap_compiled
from feedline.updates.native_tensors import is_sharded

_log = logging.getLogger("feedline")


def is_in_ddp(model: torch.nn.Module) -> bool:
    """Return whether a model, compiled or not, is wrapped in `DistributedDataParallel`."""
    return isinstance(unwrap_compiled(model), torch.nn.parallel.DistributedDataParallel)


def has_shards(model: torch.nn.Module) -> bool:
    """Return whether ranks hold parts of a model's parameters."""
    return any(is_sharded(parameter) for parameter in model.parameters())


def strategy_for(model: torch.nn.Module, ranks: Ranks) -> ThroughModel:
    """Return the strategy for learners without one, while ``ranks`` run one session."""
    return (ThroughShards if has_shards(model) else ThroughModel)(model, ranks)


def strategy_of_model(model: torch.nn.Module) -> ThroughModel | None:
    """Return the strategy for learners without one if their model is known to exchange gradients itself, else None."""
    ranks = Ranks()
    if has_shards(model):  # on one rank, too, as its tensors are written and read as shards
        return strategy_for(model, ranks)
    return strategy_for(model, ranks) if is_in_ddp(model) and not ranks.alone else None


class ThroughModel(Strategy, ExchangesInBackward):
    """Strategy of a session of several ranks whose learners have none.

    Args:
        model: trained model, compiled or not.
        ranks: ranks of the session.
    """

    def __init__(self, model: torch.nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks
        self._joined_without_data = self._decided = False
        #: Parameters that may be unused, and indices of the used ones, by this rank's backward passes since `prepare`.
        self._optional, self._used = list[torch.Tensor](), set[int]()
        wrapper: Any = unwrap_compiled(model)
        if self._can_join_without_data and wrapper.find_unused_parameters:
            self._optional = [parameter for parameter in model.parameters() if parameter.requires_grad]
            weakref.finalize(self, remove_hooks, _watch(self._optional, self._used))

    def session_ranks(self) -> Ranks:
        """See `Strategy`."""
        return self._ranks

    @property
    def _can_join_without_data(self) -> bool:
        """Whether a rank without data can take part in the model's exchange of gradients."""
        model: Any = unwrap_compiled(self._model)
        # With a static graph every backward pass has to use the same parameters, equally often.
        return is_in_ddp(model) and not model.static_graph

    @property
    def _why_skip(self) -> str:
        """Reason why all ranks skip a minibatch of which some have no part, and the remedy."""
        if is_in_ddp(self._model):
            return "every backward pass of a static graph is the same; wrap the model without static_graph=True"
        return (
            "how the model exchanges gradients is unknown; wrap the model in DistributedDataParallel, or the learners: "
            "data_parallel(learner)"
        )

    def decide(self, minibatch: Minibatch) -> Decision:
        """See `Strategy`. All ranks have to make equally many backward passes.

        If a rank without data cannot take part, the run ends when the first rank runs out of data, and a minibatch
        with an empty part is skipped on all ranks.
        """
        decision = self._decision(minibatch)
        self._decided = decision is Decision.LEARN  # until `reduce`
        return decision

    def _decision(self, minibatch: Minibatch) -> Decision:
        rows = self._ranks.gather(
            [float(not minibatch), float(minibatch.num_sequences), float(minibatch.global_samples)]
        )
        ended = [r for r, row in enumerate(rows) if row[0]]
        empty = [r for r, row in enumerate(rows) if not row[1]]
        if len(ended) == len(rows):
            return Decision.END
        if len(empty) == len(rows):
            return Decision.PASS
        if self._can_join_without_data or not empty:
            return Decision.LEARN
        if self._ranks.rank == 0:
            _log.warning(
                "all ranks skip %d samples: ranks %s have %s at %s, and %s",
                max(row[2] for row in rows),
                ended or empty,
                "no more data" if ended else "no part in the minibatch",
                minibatch.position,
                self._why_skip,
            )
        return Decision.END if ended else Decision.SKIP

    def prepare(self, minibatch: Minibatch) -> bool:
        """See `Strategy`. If a rank without data cannot take part, all ranks decide, unless a session has decided."""
        self._joined_without_data = False
        self._used.clear()
        return self._decided or self._can_join_without_data or self.decide(minibatch) is Decision.LEARN

    def reduce(self, part: Contribution) -> Total:
        """See `Strategy`. The model has computed the mean over ranks of the sums of their parts."""
        self._decided = False
        rows = self._ranks.gather(
            [part.share, part.shares, part.samples, part.sweeps, part.ended, self._joined_without_data]
        )
        _, _, samples, sweeps, ended, joined = zip(*rows, strict=True)
        if self._optional and any(joined):
            self._drop_unused()
        counting = counted_ranks([(row[0], row[1], row[2]) for row in rows])
        counted = round(sum(samples[r] for r in counting))
        if counted:
            # The model may exchange among ranks with different shares alone, of which there are equally many copies.
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, len(rows) / sum(samples))
        reports = part.samples and self._ranks.rank in counting
        summary = Summary(part.loss_sum, part.metric_sum, int(part.samples)) if reports else NOTHING
        return Total(counted, counted, True, min(sweeps), all(ended), summary)

    def _drop_unused(self) -> None:
        """Drop gradients that exist only because a rank without data took part with zeros for all parameters."""
        used = set() if self._joined_without_data else self._used
        rows = self._ranks.gather([float(i in used) for i in range(len(self._optional))])
        for parameter, users in zip(self._optional, zip(*rows, strict=True), strict=True):
            if not any(users):
                parameter.grad = None

    def accumulating(self) -> AbstractContextManager[None]:
        """See `ExchangesInBackward`. Gradients are sent in the last pass, as numbers of passes may differ."""
        no_sync: Any = getattr(self._model, "no_sync", contextlib.nullcontext)
        context: AbstractContextManager[None] = no_sync()
        return context

    def backward_without_data(self) -> None:
        """See `ExchangesInBackward`."""
        self._joined_without_data = True
        if self._can_join_without_data:
            model: Any = unwrap_compiled(self._model)
            module = model.module
            model.module = _ZeroLoss(module)
            try:
                model(None).backward()
            finally:
                model.module = module

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `ExchangesInBackward`. Ranks may evaluate different numbers of minibatches, with the buffers of rank
        0."""
        wrapped = [m for m in self._model.modules() if isinstance(m, torch.nn.parallel.DistributedDataParallel)]
        shared = [module for module in wrapped if module.broadcast_buffers]
        self._ranks.broadcast([buffer for module in shared for buffer in module.buffers() if buffer.numel()])
        before = [module.require_forward_param_sync for module in wrapped]
        try:
            for module in wrapped:
                module.require_forward_param_sync = False
            yield
        finally:
            for module, synced in zip(wrapped, before, strict=True):
                module.require_forward_param_sync = synced


class ThroughShards(ThroughModel, HoldsParts):
    """Strategy of several ranks whose model is sharded and exchanges gradients itself."""

    @property
    def _why_skip(self) -> str:
        return "every forward pass of a sharded model involves all ranks; choose a larger minibatch"

    def announce_pieces(self, count: int) -> None:
        """See `HoldsParts`."""
        rows = [int(row[0]) for row in self._ranks.gather([float(count)])]
        if len(set(rows)) > 1:
            listing = ", ".join(f"rank {r}: {number}" for r, number in enumerate(rows))
            raise ValueError(
                "expected all ranks to process a minibatch in equally many pieces, as every forward pass of a sharded "
                f"model involves all ranks, got {listing}; choose a microbatch that gives no rank more than the others"
            )

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """See `ExchangesInBackward`. Gradients are exchanged in the last pass."""
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
        """See `ExchangesInBackward`. Parameters are gathered before the block, and stay gathered in it."""
        parts = self._sharded_modules()
        groups = [group for module in parts for group in module._get_fsdp_state()._fsdp_param_groups]
        before = [group.post_forward_mesh_info for group in groups]
        try:
            with torch.no_grad():
                for module in parts:
                    module.unshard()
            for group in groups:
                group.post_forward_mesh_info = None  # no resharding after a forward pass
            yield
        finally:
            for group, info in zip(groups, before, strict=True):
                group.post_forward_mesh_info = info
            for module in parts:
                module.reshard()

    def _sharded_modules(self) -> list[Any]:
        return [module for module in self._model.modules() if hasattr(module, "set_requires_gradient_sync")]


def _watch(parameters: Sequence[torch.Tensor], used: set[int]) -> list[Any]:
    """Let backward collect in ``used`` the index of each parameter that gets a gradient. Return handles of the
    hooks."""
    return [p.register_post_accumulate_grad_hook(lambda _, i=i: used.add(i)) for i, p in enumerate(parameters)]


class _ZeroLoss(torch.nn.Module):
    """Substitute for a model, with its parameters and buffers, whose output and gradients are zero."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, _: None) -> Any:
        # A sum over no elements, since zero times an infinite parameter is NaN.
        return sum(parameter.reshape(-1)[:0].sum() for parameter in self.parameters() if parameter.requires_grad)
