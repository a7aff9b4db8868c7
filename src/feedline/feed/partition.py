"""The part of each minibatch that a rank takes: (index, count), from an argument or the ranks of the program."""

from __future__ import annotations

import operator
import os
import sys

from feedline.errors import StateError
from feedline.interop.launchers import launcher_rank
from feedline.interop.meshes import check_meshes

IndexAndCount = tuple[int, int]


class Partition:
    """The partition of a feed, fixed at the first read.

    Args:
        partition: (index, count). None: the result of `ranks` at the first read.
        arcs: number of arcs of the order, and so the maximum of ``count``. None: no maximum.

    Raises:
        ValueError: ``partition`` is not a partition, or its count is larger than the number of arcs.
    """

    def __init__(self, partition: IndexAndCount | None = None, arcs: int | None = None) -> None:
        self._arcs = arcs
        self._partition = None if partition is None else self._check(partition)
        self._is_declared = partition is not None

    def resolve(self, override: IndexAndCount | None = None) -> IndexAndCount:
        """Return the partition for one call.

        Raises:
            StateError: torch.distributed reports other ranks than at the first read.
            ValueError: ``override`` is not a partition, there are more ranks than arcs, or no partition was passed
                although the program has made a mesh with ranks that read the same samples.
            RuntimeError: the variables of a launcher contradict each other.
        """
        if override is not None:
            return self._check(override)
        if self._is_declared and self._partition is not None:
            return self._partition
        partition = ranks()
        if self._partition is None:
            self._partition = self._of_ranks(partition)
        elif partition != self._partition:
            raise StateError(
                "expected the partition of the first read, but torch.distributed has changed since. Initialise it "
                "before the first minibatch, or pass partition=(index, count)",
                saved={"partition": list(self._partition)},
                current={"partition": list(partition)},
            )
        return self._partition

    def peek(self, override: IndexAndCount | None = None) -> IndexAndCount:
        """Return the partition as `resolve` would, without fixing it."""
        if override is not None:
            return self._check(override)
        return self._partition if self._partition is not None else self._of_ranks(ranks())

    def _of_ranks(self, partition: IndexAndCount) -> IndexAndCount:
        if partition[1] > 1:
            check_meshes()
        return self._check(partition)

    def _check(self, partition: IndexAndCount) -> IndexAndCount:
        partition = check_partition(partition)
        if self._arcs is not None and partition[1] > self._arcs:
            raise ValueError(
                f"expected at most {self._arcs} ranks, one for each of fl.Arcs({self._arcs}), got {partition[1]}; use "
                "fewer ranks, or as many arcs as the most ranks that you will use. That is another order, which no "
                "saved state fits"
            )
        return partition


def on_this_machine(count: int) -> int:
    """Return how many of ``count`` ranks run on this machine, according to torchrun, or all of them if unknown."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local_size), count) if local_size.isdecimal() else count


def check_partition(partition: IndexAndCount) -> IndexAndCount:
    """Return ``partition`` as two ints.

    Raises:
        ValueError: it is not two ints with 0 <= index < count.
    """
    try:
        index, count = map(operator.index, partition)
    except (TypeError, ValueError):
        raise ValueError(f"expected partition=(index, count), got {partition!r}") from None
    if not 0 <= index < count:
        raise ValueError(f"expected partition=(index, count) with 0 <= index < count, got {partition!r}")
    return index, count


def ranks() -> IndexAndCount:
    """Return rank and number of ranks: of torch.distributed if it is initialised, else of mpiexec or srun."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return launcher_rank() or (0, 1)
