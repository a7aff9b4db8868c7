"""Data-parallel training: the ranks of torch.distributed sum their gradients and counts before each update.

Every rank makes the same update from the same sums, so parameters stay equal, bit for bit. Gradients are exchanged
while backward still runs, see `feedline.train.distributed.overlapping`, which says the costs, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from feedline.collective.buckets import Bucket
from feedline.collective.communicator import TIMEOUT_S
from feedline.collective.sums import BucketSums, PlainSums
from feedline.train.distributed.overlapping import OverlappingStrategy
from feedline.train.learner import Learner


class DataParallel(OverlappingStrategy):
    """Strategy of `data_parallel`."""

    way: ClassVar[str] = "data_parallel"

    def _sums(self, buckets: Sequence[Bucket]) -> BucketSums:
        return PlainSums(self.ranks.exchanges, buckets)


def data_parallel(
    learner: Learner, group: Any = None, *, distributed_after: int = 0, timeout: float = TIMEOUT_S
) -> Learner:
    """Let a learner, and its trainer, train on the minibatches of all ranks together.

    ``fl.train.data_parallel(fl.train.SGD(model.parameters(), 0.1))``. Counts, losses and metrics are then those of the
    global minibatch on every rank, and so are the counts of schedules and spans. All learners of a trainer need the
    same strategy. All ranks start with rank 0's parameters.

    Args:
        learner: any learner.
        group: torch.distributed group; None: all ranks.
        distributed_after: number of label samples until which all ranks train on the same whole minibatches.
        timeout: seconds to wait for other ranks; then a `StoreError` names the missing ones.

    Returns:
        The learner itself.
    """
    learner.strategy = DataParallel(group, distributed_after, timeout)
    return learner
