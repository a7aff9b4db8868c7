"""Learning with a model that exchanges gradients by itself, as `DistributedDataParallel` does during its backward pass.

A session of several ranks whose learners know nothing of each other runs so. Ranks agree before each update whether
all of them learn, and count the samples of all.

Costs: an exchange of a few numbers before each update, and another one in it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from feedline.collective.ranks import Ranks
from feedline.data import Minibatch
from feedline.train.strategy import Contribution, Decision, Strategy, Total
from feedline.train.summary import NOTHING, Summary, summed

_log = logging.getLogger("feedline")


class ThroughModel(Strategy):
    """The strategy of a session of several ranks whose learners learn alone.

    Args:
        model: what is trained, compiled or not.
        ranks: that run the session.
    """

    exchanges_in_backward = True
    splits_sums = True

    def __init__(self, model: torch.nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = model, ranks

    def session_ranks(self) -> Ranks:
        """See `Strategy`."""
        return self._ranks

    @property
    def _joins(self) -> bool:
        """Whether a rank without data can take part in the exchange of the model's gradients all the same."""
        return isinstance(_uncompiled(self._model), torch.nn.parallel.DistributedDataParallel)

    def decide(self, minibatch: Minibatch) -> Decision:
        """See `Strategy`: all ranks have to make equally many backward passes.

        Where a rank without data cannot take part, the run ends with the data of the first rank that has none left,
        and nobody learns from a minibatch of which some rank's part is empty.
        """
        rows = self._ranks.gather([float(not minibatch), float(minibatch.num_sequences), float(minibatch.num_samples)])
        ended = [r for r, row in enumerate(rows) if row[0]]
        empty = [r for r, row in enumerate(rows) if not row[1]]
        if len(ended) == len(rows):
            return Decision.END
        if len(empty) == len(rows):
            return Decision.PASS
        if self._joins or not empty:
            return Decision.LEARN
        if self._ranks.rank == 0:
            _log.warning(
                "nobody learns from %d samples: ranks %s have %s at %s, and what exchanges gradients is not known; "
                "wrap the model in DistributedDataParallel, or let learners learn together: data_parallel(learner)",
                sum(row[2] for row in rows),
                ended or empty,
                "no more data" if ended else "no part in the minibatch",
                minibatch.position,
            )
        return Decision.END if ended else Decision.PASS

    def reduce(self, own: Contribution) -> Total:
        """See `Strategy`: the model has taken the mean of sums over each rank's part."""
        rows = self._ranks.gather([own.samples, own.shared, own.sweeps])
        counts, wholes, sweeps = zip(*rows, strict=True)
        shared = all(wholes)  # then only rank 0's samples count
        counted = round(counts[0] if shared else sum(counts))
        if counted:
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, len(rows) / sum(counts))
        reports = own.samples and not (shared and self._ranks.rank)
        summary = Summary(own.loss_sum, own.metric_sum, int(own.samples)) if reports else NOTHING
        return Total(counted, counted, True, min(sweeps), False, summary)

    def summed(self, summary: Summary) -> Summary:
        """See `Strategy`."""
        return summed(self._ranks, summary)

    def accumulating(self) -> AbstractContextManager[None]:
        """See `Strategy`: gradients are exchanged in the last pass, as ranks may make different numbers of them."""
        postponed: Any = getattr(self._model, "no_sync", contextlib.nullcontext)
        context: AbstractContextManager[None] = postponed()
        return context

    def backward_of_nothing(self) -> None:
        """See `Strategy`."""
        if self._joins:
            model: Any = _uncompiled(self._model)
            module = model.module
            model.module = _ZeroLoss(module)
            try:
                model(None).backward()
            finally:
                model.module = module

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """See `Strategy`: ranks may evaluate different numbers of minibatches, all with rank 0's buffers."""
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


class _ZeroLoss(torch.nn.Module):
    """Stands in for a model, with its parameters and buffers: zero, and every parameter's gradient of it is zero."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, _: None) -> Any:
        # Over no elements: zero times a parameter that has become infinite would not be zero.
        return sum(parameter.reshape(-1)[:0].sum() for parameter in self.parameters() if parameter.requires_grad)


def _uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    module: torch.nn.Module = getattr(model, "_orig_mod", model)
    return module
