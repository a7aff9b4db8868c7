"""Data-parallel learning: the ranks of torch.distributed sum their gradients and counts before each update.

Every rank makes the same update from the same sums, so parameters stay equal, bit for bit.

Costs: the gradients' bytes through all-reduces of buckets that are laid out once, and a copy into them; while one is
sent the next is filled.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from feedline.collective.buckets import Bucket, laid_out
from feedline.collective.communicator import TIMEOUT
from feedline.train.distributed.base import DistributedStrategy, check_dense
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Total


class DataParallel(DistributedStrategy):
    """The sums over ranks; see `data_parallel`."""

    way: ClassVar[str] = "data_parallel"
    _buckets: list[Bucket] | None = None

    def _reduce(self, own: Contribution) -> Total:
        check_dense(self.parameters)
        if self._buckets is None:
            self._buckets = laid_out(self.parameters)
        gradients = [parameter.grad for parameter in self.parameters]
        rows = self.ranks.gather(own.numbers(), f"learn by {self.way}")
        with torch.no_grad():
            works = [self.ranks.sum(bucket.fill(gradients)) for bucket in self._buckets]
            # A gradient that no rank has stays None: nothing decays that nobody used.
            present = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.int32)
            works.append(self.ranks.sum(present))
            self.ranks.wait(works)
        kept = present.tolist()
        for bucket in self._buckets:
            for place, view in zip(bucket.places, bucket.views, strict=True):
                self.parameters[place].grad = view if kept[place] else None
        return Total.of(own, rows)


def data_parallel(
    learner: Learner, group: Any = None, *, distributed_after: int = 0, timeout: float = TIMEOUT
) -> Learner:
    """Let a learner, and the trainer that it is given to, learn from the minibatches of all ranks together.

    ``fl.train.data_parallel(fl.train.SGD(model.parameters(), 0.1))``. Counts, losses and metrics are then those of
    the whole global minibatch on every rank; schedules and spans go by them. All learners of a trainer learn together
    in one way, or none does. All ranks begin with rank 0's parameters.

    Args:
        learner: any.
        group: a torch.distributed group; None: all ranks.
        distributed_after: until so many label samples, all ranks learn from the same whole minibatches.
        timeout: seconds that a rank waits for others; then a `StoreError` names who is missing.

    Returns:
        The learner itself.
    """
    learner.strategy = DataParallel(group, distributed_after, timeout)
    return learner
