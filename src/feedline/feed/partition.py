"""Which share of each minibatch is this reader's: (index, count), given or from torch.distributed."""

from __future__ import annotations

import operator
import os
import sys

from feedline.errors import StateError

Share = tuple[int, int]


class Partition:
    """The share of a feed, fixed at the first read.

    Args:
        given: (index, count); None: rank and world size of torch.distributed if it is imported and initialised by
            the first read, else (0, 1).
    """

    def __init__(self, given: Share | None = None) -> None:
        self._settled = None if given is None else checked(given)
        self._given = given is not None

    def resolve(self, override: Share | None = None) -> Share:
        """Return the share for one call.

        Raises:
            StateError: the share found in torch.distributed has changed since the first read.
            ValueError: ``override`` is not a share.
        """
        if override is not None:
            return checked(override)
        if self._given and self._settled is not None:
            return self._settled
        found = _distributed()
        if self._settled is None:
            self._settled = found
        elif found != self._settled:
            raise StateError(
                "expected the partition found at the first read, but torch.distributed has changed since. "
                "Initialise it before the first minibatch, or pass partition=(index, count)",
                saved={"partition": list(self._settled)},
                current={"partition": list(found)},
            )
        return self._settled

    def peek(self, override: Share | None = None) -> Share:
        """Return the share as `resolve` would, without fixing it."""
        if override is not None:
            return checked(override)
        return self._settled if self._settled is not None else _distributed()


def on_this_machine(count: int) -> int:
    """Return how many of ``count`` workers run here, according to torchrun; all of them if unknown."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(said), count) if said.isdecimal() else count


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


def _distributed() -> Share:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
