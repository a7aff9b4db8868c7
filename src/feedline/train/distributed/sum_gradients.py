"""Data-parallel training: the ranks of torch.distributed sum their gradients and counts before each update.

Every rank makes the same update from the same sums, so parameters stay equal, bit for bit. Gradients are exchanged
while backward still runs. A step begins with its last backward pass. From then on Ctrl-C waits for the end of the step.
An error in that pass ends the connections once something has been sent. See `feedline.train.distributed.gradients`.

Costs: a copy of each gradient into its bucket, an all-reduce of each bucket, and two exchanges of a few numbers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from feedline.collective.communicator import TIMEOUT_S
from feedline.collective.flat_buffers import Bucket
from feedline.collective.sums import BucketSums, PlainSums
from feedline.errors import StateError, shown
from feedline.train.distributed.base import DistributedStrategy, check_dense
from feedline.train.distributed.gradients import Gradients
from feedline.train.learner import Learner
from feedline.train.strategy import Contribution, Overlapping, Total


class DataParallel(DistributedStrategy, Overlapping):
    """Strategy of `data_parallel`. See the module."""

    strategy_name: ClassVar[str] = "data_parallel"

    _gradients: Gradients | None = None
    #: Order of gradients from a loaded checkpoint.
    _loaded_order: list[int] | None = None

    def join(self, model: torch.nn.Module, learners: Sequence[Learner]) -> None:
        """See `Strategy`."""
        super().join(model, learners)
        self._gradients = Gradients(self.parameters)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """See `Strategy`."""
        with super().step():
            gradients = self._gradients
            if gradients is None or gradients.armed or not self.trains_on_parts(self._learners[0].samples):
                yield
                return
            gradients.arm(self._announce if self._in_sync else None)
            try:
                yield
            finally:
                gradients.armed = False

    def _announce(self) -> Any:
        return self.ranks.exchanges.announce(f"learn by {self.strategy_name}")

    def _sums(self, buckets: Sequence[Bucket]) -> BucketSums:
        """Return sums of buckets over ranks."""
        return PlainSums(self.ranks.exchanges, buckets)

    def _reduce(self, part: Contribution) -> Total:
        check_dense(self.parameters)
        gradients, ranks = self._gradients, self.ranks
        assert gradients is not None
        if gradients.sums is None:
            gradients.lay_out(*self._agree_on_layout(gradients), self._sums)
        ranks.run(ranks.exchanges.finish_meeting(gradients.announced or self._announce()))
        works = gradients.send_rest()
        numbers = torch.tensor([*part.numbers(), *map(float, gradients.put)], dtype=torch.float64)
        gathered, work = ranks.exchanges.begin_gathering(numbers)
        ranks.wait([*works, work])
        rows = [row.tolist() for row in gathered]
        gradients.finish([any(row[i] for row in rows) for i in range(len(part), len(rows[0]))])
        return Total.of(part, [row[: len(part)] for row in rows])

    def _agree_on_layout(self, gradients: Gradients) -> tuple[list[int], list[int]]:
        """Return the order of gradients in buckets, and how often backward adds to each.

        The order comes from a checkpoint, from an earlier layout, or from the first rank with the most gradients.
        """
        order = self._loaded_order or gradients.order or gradients.ready
        layouts = self.ranks.gather_bytes(
            json.dumps([order, gradients.added]).encode(),
            f"lay out gradients of {', '.join(f'{tuple(p.shape)} {p.dtype}' for p in self.parameters)}",
        )
        orders, added = zip(*map(json.loads, layouts), strict=True)
        # A rank without data has seen no backward pass.
        return max(orders, key=len), [max(counts) for counts in zip(*added, strict=True)]

    def advice(self) -> dict[str, Any]:
        """See `Overlapping`: the order of gradients in buckets."""
        order = self._loaded_order if self._gradients is None else self._gradients.order or self._loaded_order
        return {} if order is None else {"order": order}

    def take_advice(self, advice: Mapping[str, Any]) -> None:
        """See `Overlapping`."""
        order = advice.get("order")
        if order is None:
            return
        if not isinstance(order, list) or any(type(i) is not int for i in order):
            raise StateError(f"expected the order of gradients as a list of ints, got {shown(order, 80)}")
        if sorted(order) == list(range(len(self.parameters))):  # otherwise it belongs to other learners
            self._loaded_order = order


def data_parallel(
    learner: Learner, group: Any = None, *, distributed_after: int = 0, timeout: float = TIMEOUT_S
) -> Learner:
    """Let a learner, and its trainer, train on the minibatches of all ranks together.

    ``fl.train.data_parallel(fl.train.SGD(model.parameters(), 0.1))``. Counts, losses and metrics on every rank, and the
    counts of schedules and spans, then refer to the global minibatch. All learners of a trainer need the same strategy.
    All ranks start with rank 0's parameters.

    Args:
        learner: any learner.
        group: torch.distributed group. None means all ranks.
        distributed_after: number of label samples until which all ranks train on the same whole minibatches.
        timeout: seconds to wait for other ranks. Then a `StoreError` names the missing ones.

    Returns:
        The learner itself.
    """
    learner.strategy = DataParallel(group, distributed_after, timeout)
    return learner
