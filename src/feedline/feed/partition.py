"""The share of each minibatch that a rank takes, from an argument, a mesh, or the ranks of the program."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import StateError
from feedline.feed.equal_work import WorkRule, squares
from feedline.interop.launchers import launcher_rank
from feedline.interop.meshes import Mesh, MeshShare, is_mesh, share_of, share_of_program

IndexAndCount = tuple[int, int]


@dataclass(frozen=True)
class Partition:
    """The share of each minibatch that a rank takes: a ``partition`` of sources and loaders.

    A dimension of a mesh has a role. ``"data"`` divides minibatches, ``"model"`` gets the same samples. The usual names
    are known: ``dp``, ``dp_replicate``, ``dp_shard``, ``fsdp``, ``hsdp``, ``data``, ``batch``, ``replica`` divide;
    ``tp``, ``pp``, ``mp``, ``model``, ``tensor``, ``pipe`` do not. See docs/how-to/several-workers.md.

    Ranks get about the same number of samples by default. For models whose work does not grow with samples alone,
    ``balance`` assigns the sequences of each minibatch by their work: the longest first, each to the rank with the
    least work so far. A rank's sequences keep their order. Minibatches, states and the order stay the same.

    A ``partition`` of None is ``"auto"`` in sources, and (0, 1) in a `DataLoader`, as in torch.

    Args:
        ranks: (index, count), a torch ``DeviceMesh`` or a slice of one, or a JAX ``Mesh``. ``"auto"``: the mesh that
            the program has made with torch, else the rank and world size of torch.distributed if it is initialised at
            the first read, else of mpiexec or srun, else (0, 1).
        roles: role by name of a dimension of the mesh, for other names.
        balance: ``"samples"``: sequence after sequence, by position. ``"squares"``: by the squares of their lengths in
            samples, as attention costs, of each document in a row of `Packed`. Or a function that returns the work of
            sequences, (n,), for their lengths, int64 (n,), the same on every rank. In a `DataLoader` each rank gets
            as many sequences as without a balance, which only decides which ones.

    Raises:
        TypeError: ``ranks`` or ``balance`` is something else, or there are ``roles`` without a mesh.
        ValueError: not 0 <= index < count, or a dimension of the mesh has no known role.
    """

    ranks: IndexAndCount | Mesh | str = "auto"
    roles: Mapping[str, str] | None = None
    balance: str | WorkRule = "samples"

    def __post_init__(self) -> None:
        if self.balance not in ("samples", "squares") and not callable(self.balance):
            raise TypeError(f'expected balance to be "samples", "squares" or a function, got {self.balance!r}')
        if self.roles is not None and not is_mesh(self.ranks):
            raise TypeError(f"expected roles with a mesh, got {self.ranks!r}")
        if not self.is_auto:
            object.__setattr__(self, "ranks", self.ranks if is_mesh(self.ranks) else check_partition(self.ranks))
            self.share()

    @property
    def is_auto(self) -> bool:
        """Whether the share is found at the first read."""
        return isinstance(self.ranks, str) and self.ranks == "auto"

    def share(self) -> IndexAndCount:
        """Return (index, count).

        Raises:
            ValueError: the program has made several meshes, or one with an unknown dimension.
            RuntimeError: the variables of a launcher contradict each other.
        """
        if self.is_auto:
            share = ranks()
            mesh = share_of_program(share[1]) if share[1] > 1 else None
            return share if mesh is None else _uncut(mesh)
        if is_mesh(self.ranks):
            return _uncut(share_of(self.ranks, self.roles))
        return check_partition(self.ranks)

    @property
    def rule(self) -> WorkRule | None:
        """The work of sequences by their lengths, or None for equal numbers of samples."""
        if callable(self.balance):
            return self.balance
        return squares if self.balance == "squares" else None


#: What a ``partition=`` takes.
PartitionLike = Partition | IndexAndCount | Mesh | str


def partition_of(value: PartitionLike) -> Partition:
    """Return an argument as a `Partition`.

    Raises:
        TypeError, ValueError: it is something else.
    """
    return value if isinstance(value, Partition) else Partition(value)


class FixedShare:
    """The share of a feed, fixed at the first read.

    Args:
        partition: the argument of the feed.
        arcs: number of arcs of the order, and so the maximum of shares. None: any number.

    Attributes:
        partition: the argument.

    Raises:
        ValueError: there are more shares than arcs.
    """

    def __init__(self, partition: Partition, arcs: int | None = None) -> None:
        self.partition, self._arcs, self._is_declared = partition, arcs, not partition.is_auto
        self._share = self._check(partition.share()) if self._is_declared else None

    def resolve(self, override: PartitionLike | None = None) -> IndexAndCount:
        """Return the share for one call.

        Raises:
            StateError: the share that was found at the first read has changed since.
            ValueError: ``override`` is not a share, there are more shares than arcs, or the program has made several
                meshes, or one with an unknown dimension.
            RuntimeError: the variables of a launcher contradict each other.
        """
        if override is not None:
            return self._override(override)
        if self._is_declared and self._share is not None:
            return self._share
        if self._share is None:
            # Reading the variables of launchers takes longer than a small minibatch, and none appears later.
            self._find = ranks if launcher_rank() else _ranks_of_group
            self._share, self._ranks = self._check(self.partition.share()), self._find()
        elif (share := self._find()) != self._ranks:
            raise StateError(
                "expected the partition of the first read, but torch.distributed has changed since. Initialise it "
                "before the first minibatch, or pass partition=(index, count)",
                saved={"partition": list(self._ranks)},
                current={"partition": list(share)},
            )
        return self._share

    def peek(self, override: PartitionLike | None = None) -> IndexAndCount:
        """Return the share as `resolve` would, without fixing it."""
        if override is not None:
            return self._override(override)
        return self._share if self._share is not None else self._check(self.partition.share())

    def renewed(self, partition: PartitionLike) -> FixedShare:
        """Return another share of the same feed.

        Raises:
            ValueError: it has another balance, there are more shares than arcs, or it is not a share.
        """
        return FixedShare(self._of_feed(partition), self._arcs)

    def _override(self, override: PartitionLike) -> IndexAndCount:
        if type(override) is tuple:  # of every batch of a loader over a corpus
            return self._check(check_partition(override))
        return self._check(self._of_feed(override).share())

    def _of_feed(self, value: PartitionLike) -> Partition:
        """Return another partition of the same feed, with its balance."""
        partition, balance = partition_of(value), self.partition.balance
        if partition.balance not in ("samples", balance):
            raise ValueError(
                f"expected the balance of the feed, {balance!r}, got {partition.balance!r}: pass it where the feed is "
                "made"
            )
        return partition if partition.balance is balance else replace(partition, balance=balance)

    def _check(self, share: IndexAndCount) -> IndexAndCount:
        if self._arcs is not None and share[1] > self._arcs:
            raise ValueError(
                f"expected at most {self._arcs} ranks, one for each of fl.Arcs({self._arcs}), got {share[1]}; use "
                "fewer ranks, or as many arcs as the most ranks that you will use. That is another order, which no "
                "saved state fits"
            )
        return share


def _uncut(share: MeshShare) -> IndexAndCount:
    if share.cuts > 1:
        raise ValueError(
            f"expected a mesh without cuts of sequences, got one that cuts them in {share.cuts}: give its dimension "
            'the role "model", so that its ranks get whole sequences, which the model cuts'
        )
    return share.part, share.parts


def on_this_machine(count: int) -> int:
    """Return how many of ``count`` ranks run on this machine, according to torchrun, or all of them if unknown."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local_size), count) if local_size.isdecimal() else count


def check_partition(partition: Any) -> IndexAndCount:
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
    return _group() or launcher_rank() or (0, 1)


def _ranks_of_group() -> IndexAndCount:
    return _group() or (0, 1)


def _group() -> IndexAndCount | None:
    """Return rank and number of ranks of torch.distributed, or None if it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
