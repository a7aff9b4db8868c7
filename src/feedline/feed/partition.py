"""The share of each minibatch that a reader takes: (index, count), from an argument or the ranks of the program."""

from __future__ import annotations

import operator
import os
import sys

from feedline.errors import StateError
from feedline.interop.launchers import launched
from feedline.interop.meshes import check_meshes

Share = tuple[int, int]


class Partition:
    """The share of a feed, fixed at the first read.

    Args:
        share: (index, count). None: the result of `ranks` at the first read.
        arcs: number of arcs of the order, and so the maximum of shares. None: any number.

    Raises:
        ValueError: ``share`` is not a share, or there are more shares than arcs.
    """

    def __init__(self, share: Share | None = None, arcs: int | None = None) -> None:
        self._arcs = arcs
        self._settled = None if share is None else self._checked(share)
        self._declared = share is not None

    def resolve(self, override: Share | None = None) -> Share:
        """Return the share for one call.

        Raises:
            StateError: the share found in torch.distributed has changed since the first read.
            ValueError: ``override`` is not a share, there are more shares than arcs, or there is none though the
                program has made a mesh with ranks that read the same samples.
            RuntimeError: the variables of a launcher contradict each other.
        """
        if override is not None:
            return self._checked(override)
        if self._declared and self._settled is not None:
            return self._settled
        share = ranks()
        if self._settled is None:
            self._settled = self._of_ranks(share)
        elif share != self._settled:
            raise StateError(
                "expected the partition of the first read, but torch.distributed has changed since. Initialise it "
                "before the first minibatch, or pass partition=(index, count)",
                saved={"partition": list(self._settled)},
                current={"partition": list(share)},
            )
        return self._settled

    def peek(self, override: Share | None = None) -> Share:
        """Return the share as `resolve` would, without fixing it."""
        if override is not None:
            return self._checked(override)
        return self._settled if self._settled is not None else self._of_ranks(ranks())

    def _of_ranks(self, share: Share) -> Share:
        if share[1] > 1:
            check_meshes()
        return self._checked(share)

    def _checked(self, share: Share) -> Share:
        share = checked(share)
        if self._arcs is not None and share[1] > self._arcs:
            raise ValueError(
                f"expected at most {self._arcs} ranks, one for each of fl.Arcs({self._arcs}), got {share[1]}; use "
                "fewer ranks, or as many arcs as the most ranks that you will use. That is another order, which no "
                "saved state fits"
            )
        return share


def on_this_machine(count: int) -> int:
    """Return how many of ``count`` workers run here, according to torchrun, or all of them if unknown."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local_size), count) if local_size.isdecimal() else count


def checked(share: Share) -> Share:
    """Return ``share`` as two ints.

    Raises:
        ValueError: it is not two ints with 0 <= index < count.
    """
    try:
        index, count = map(operator.index, share)
    except (TypeError, ValueError):
        raise ValueError(f"expected partition=(index, count), got {share!r}") from None
    if not 0 <= index < count:
        raise ValueError(f"expected partition=(index, count) with 0 <= index < count, got {share!r}")
    return index, count


def ranks() -> Share:
    """Return rank and number of ranks: of torch.distributed if it is initialised, else of mpiexec or srun."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return launched() or (0, 1)
