"""Data-parallel learning: the ranks of torch.distributed sum their gradients and counts before each update.

Every rank makes the same update from the same sums, so parameters that begin equal stay equal. A rank whose part of
a minibatch is empty takes part with zeros; nobody waits for a rank that has nothing.

Costs: the bytes of the gradients through one all-reduce for each device and dtype, from a buffer that is laid out once;
and one small all-reduce of counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from feedline.train.learners.base import Learner


class DataParallel:
    """The sums over ranks.

    Args:
        group: a torch.distributed group; None: all ranks.

    Raises:
        RuntimeError: torch.distributed is not initialised when it is first used.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self._buckets: list[_Bucket] = []
        self._parameters: list[torch.Tensor] = []

    def sum(self, parameters: Sequence[torch.Tensor], counts: Sequence[torch.Tensor | float]) -> list[float]:
        """Make every parameter's ``.grad`` its sum over all ranks; the same ones, in the same order, on every rank.

        A gradient that no rank has stays None; one that some ranks have counts as zeros on the others. The
        gradients lie in buffers that the next call writes to.

        Args:
            parameters: dense gradients, or None, in ``.grad``.
            counts: numbers to be summed as well, in double precision.

        Returns:
            The sums of ``counts``.

        Raises:
            ValueError: a sparse gradient.
        """
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError("expected torch.distributed to be initialised: call init_process_group before training")
        for i, parameter in enumerate(parameters):
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise ValueError(f"expected dense gradients, got a sparse one for parameter {i}: use sparse=False")
        buckets = self._laid_out(parameters)
        with torch.no_grad():
            present = [float(parameter.grad is not None) for parameter in parameters]
            works = [distributed.all_reduce(bucket.filled(), group=self._group, async_op=True) for bucket in buckets]
            device = parameters[0].device if distributed.get_backend(self._group) == "nccl" else torch.device("cpu")
            numbers = [float(count) for count in counts]
            small = torch.tensor([*numbers, *present], dtype=torch.float64, device=device)
            works.append(distributed.all_reduce(small, group=self._group, async_op=True))
            for work in works:
                work.wait()
        totals: list[float] = small.tolist()
        kept = totals[len(numbers) :]
        for bucket in buckets:
            bucket.give_back(kept)
        return totals[: len(numbers)]

    def _laid_out(self, parameters: Sequence[torch.Tensor]) -> list[_Bucket]:
        if len(parameters) != len(self._parameters) or any(
            a is not b for a, b in zip(parameters, self._parameters, strict=True)
        ):
            alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
            for i, parameter in enumerate(parameters):
                alike.setdefault((parameter.device, parameter.dtype), []).append(i)
            self._parameters = list(parameters)
            self._buckets = [_Bucket(self._parameters, places) for places in alike.values()]
        return self._buckets


class _Bucket:
    """Gradients of one device and dtype, one behind the other in one buffer."""

    def __init__(self, parameters: list[torch.Tensor], places: list[int]) -> None:
        self._parameters, self._places = [parameters[i] for i in places], places
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]
        self._flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = self._flat.split(sizes)
        self._views = [piece.view(p.shape) for piece, p in zip(pieces, self._parameters, strict=True)]

    def filled(self) -> torch.Tensor:
        """The buffer, with this rank's gradients, zeros where it has none."""
        have = [(v, p.grad) for v, p in zip(self._views, self._parameters, strict=True) if p.grad is not None]
        lack = [v for v, p in zip(self._views, self._parameters, strict=True) if p.grad is None]
        if have:
            torch._foreach_copy_([view for view, _ in have], [gradient for _, gradient in have])
        if lack:
            torch._foreach_zero_(lack)
        return self._flat

    def give_back(self, kept: list[float]) -> None:
        """Let gradients be the buffer's."""
        for place, parameter, view in zip(self._places, self._parameters, self._views, strict=True):
            parameter.grad = view if kept[place] else None


def data_parallel(learner: Learner, group: Any = None) -> Learner:
    """Let a learner, and the trainer that it is given to, learn from the minibatches of all ranks together.

    ``fl.train.data_parallel(fl.train.SGD(model.parameters(), 0.1))``. Counts, losses and metrics are then those of
    the whole global minibatch on every rank; schedules and spans go by them. All learners of a trainer are made
    data-parallel, or none. Parameters have to begin equal on all ranks: seed torch alike, or load one checkpoint.

    Returns:
        The learner itself.
    """
    learner.workers = DataParallel(group)
    return learner
