"""The share of each minibatch that a rank takes, from an argument, a mesh, or the ranks of the program."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from feedline.errors import StateError
from feedline.feed.equal_work import WorkRule, squares
from feedline.interop.launchers import launcher_rank
from feedline.interop.meshes import Mesh, MeshShare, is_mesh, share_of, share_of_program

IndexAndCount = tuple[int, int]
CONTIGUOUS, ZIGZAG = PIECES = ("contiguous", "zigzag")
UNEVEN = ("pad", "error")


@dataclass(frozen=True)
class Cut:
    """How the ranks of a context dimension share each document: a ``cut`` of `Partition`.

    Every rank gets as many samples of each document as the others. A document whose length does not divide is padded at
    its end. In rows of `Packed` the documents of a row are cut one by one, and so is the row's own padding. The last
    document of a row gets more padding, so that all rows of a rank's minibatch have one length.

    Minibatches have these streams besides their own, all int32:

    - ``positions``: place in the document, from 0, unless there is such a stream.
    - ``cu_seqlens``, of whole documents: their beginnings in the concatenated sequences of the minibatch, and the end.
    - ``cu_seqlens_padded``: the same with their padding. Divided by the number of ranks, those of this rank.

    Args:
        pieces: ``"contiguous"``: of n ranks, rank i gets the i-th of n pieces. ``"zigzag"``: pieces i and 2n - 1 - i of
            2n, as causal attention needs for equal work.
        streams: streams to cut, which have one sample for each token, with the value of their padding. All dense, and
            of the same length in each sequence. For rows of `Packed` only further ones, such as a mask that a transform
            makes. None instead of a value leaves a stream of that length whole.
        uneven: ``"pad"``, or ``"error"``: a document whose length does not divide is a DataError.

    Raises:
        ValueError: other ``pieces`` or ``uneven``.
    """

    pieces: str = CONTIGUOUS
    streams: Mapping[str, float | None] = field(default_factory=dict)
    uneven: str = "pad"

    def __post_init__(self) -> None:
        if self.pieces not in PIECES:
            raise ValueError(f'expected a cut "contiguous" or "zigzag", got {self.pieces!r}')
        if self.uneven not in UNEVEN:
            raise ValueError(f'expected uneven of Cut to be "pad" or "error", got {self.uneven!r}')


@dataclass(frozen=True)
class Partition:
    """The share of each minibatch that a rank takes: a ``partition`` of sources and loaders.

    A dimension of a mesh has a role. ``"data"`` divides minibatches, ``"model"`` gets the same samples. The usual names
    are known: ``dp``, ``dp_replicate``, ``dp_shard``, ``fsdp``, ``hsdp``, ``data``, ``batch``, ``replica`` divide.
    ``tp``, ``pp``, ``mp``, ``model``, ``tensor``, ``pipe`` do not. ``"context"`` gets the same sequences, each cut
    along its length: ``cp``, ``sp``, ``context``, ``sequence``. See docs/how-to/several-workers.md.

    Ranks get about the same number of samples by default. For models whose work does not grow with samples alone,
    ``balance`` assigns the sequences of each minibatch by their work: the longest first, each to the rank with the
    least work so far. A rank's sequences keep their order. Minibatches, states and the order stay the same.

    A ``partition`` of None is ``"auto"`` in sources, and (0, 1) in a `DataLoader`, as in torch.

    Args:
        ranks: (index, count), a torch ``DeviceMesh`` or a slice of one, or a JAX ``Mesh``. ``"auto"``: the mesh that
            the program has made with torch, else the rank and world size of torch.distributed if it is initialised at
            the first read, else of Ray Train, mpiexec or srun, else (0, 1).
        roles: role by name of a dimension of the mesh, for other names.
        balance: ``"samples"``: sequence after sequence, by position. ``"squares"``: by the squares of their lengths in
            samples, as attention costs, of each document in a row of `Packed`. Or a function that returns the work of
            sequences, (n,), for their lengths, int64 (n,), the same on every rank: ``lambda lengths: lengths**1.5`` in
            samples, or ``lambda text, patches: text**2 + patches`` in the streams of the corpus that the parameters
            name. Stores and arrays know the lengths of each stream, other files those of their only one. In a
            `DataLoader` ranks get equal numbers of sequences, as far as a batch divides, and a balance only decides
            which ones. Batches of `BatchByLength` have equal samples instead by default: ``"squares"`` makes the
            numbers equal.
        cut: ``"contiguous"``, ``"zigzag"``, or a `Cut`: how ranks along a context dimension share each document. None:
            ``"contiguous"`` if the mesh has such a dimension. With ``ranks="auto"`` it has to be given.

    Raises:
        TypeError: ``ranks``, ``balance`` or ``cut`` is something else, or there are ``roles`` or a ``cut`` without a
            mesh.
        ValueError: not 0 <= index < count, or a dimension of the mesh has no known role.
    """

    ranks: IndexAndCount | MeshShare | Mesh | str = "auto"
    roles: Mapping[str, str] | None = None
    balance: str | WorkRule = "samples"
    cut: str | Cut | None = None

    def __post_init__(self) -> None:
        if self.balance not in ("samples", "squares") and not callable(self.balance):
            raise TypeError(f'expected balance to be "samples", "squares" or a function, got {self.balance!r}')
        if not isinstance(self.roles, (Mapping, type(None))):
            raise TypeError(f'expected roles by the names of dimensions, such as {{"ep": "data"}}, got {self.roles!r}')
        if self.roles is not None and not is_mesh(self.ranks):
            raise TypeError(f"expected roles with a mesh, got {self.ranks!r}")
        if self.cut is not None:
            if not isinstance(self.cut, (str, Cut)):
                raise TypeError(f'expected cut to be "contiguous", "zigzag" or a fl.Cut, got {self.cut!r}')
            if not (is_mesh(self.ranks) or self.is_auto or isinstance(self.ranks, MeshShare)):
                raise TypeError(f"expected a cut with a mesh, got {self.ranks!r}")
            object.__setattr__(self, "cut", Cut(self.cut) if isinstance(self.cut, str) else self.cut)
        if not self.is_auto:
            if not (is_mesh(self.ranks) or isinstance(self.ranks, MeshShare)):
                object.__setattr__(self, "ranks", check_partition(self.ranks))
            self.mesh_share()

    @property
    def is_auto(self) -> bool:
        """Whether the share is found at the first read."""
        return isinstance(self.ranks, str) and self.ranks == "auto"

    def share(self) -> IndexAndCount:
        """Return (index, count).

        Raises:
            ValueError: the program has made several meshes, or one with an unknown dimension, or one that cuts
                sequences without a ``cut``.
            RuntimeError: the variables of a launcher contradict each other.
        """
        return self.mesh_share()[:2]

    def mesh_share(self) -> MeshShare:
        """Return the share with its cut. Raises the errors of `share`."""
        if isinstance(self.ranks, MeshShare):
            return self.ranks
        if is_mesh(self.ranks):
            return share_of(self.ranks, self.roles)
        if not self.is_auto:
            return MeshShare(*check_partition(self.ranks))
        share = ranks()
        mesh = share_of_program(share[1]) if share[1] > 1 else None
        if mesh is not None and mesh.cuts > 1 and self.cut is None:
            raise ValueError(
                f"expected a cut, as the mesh of this program cuts sequences in {mesh.cuts}, which adds streams to "
                'minibatches: pass partition=fl.Partition(cut="contiguous") or "zigzag", or give the dimension the '
                'role "model", so that its ranks get whole sequences'
            )
        return MeshShare(*share) if mesh is None else mesh

    def cutting(self) -> Cut | None:
        """Return how sequences are cut, or None if they stay whole."""
        if self.cut is not None:
            return self.cut if isinstance(self.cut, Cut) else Cut(self.cut)
        return None if self.is_auto or self.mesh_share().cuts == 1 else Cut()

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
        self._share: IndexAndCount | None = None
        self._is_cut, self._cut = partition.cutting() is not None, (0, 1)
        self._group: tuple[int, ...] | None = None
        if self._is_declared:
            self._fix()

    def resolve(self, override: PartitionLike | None = None) -> IndexAndCount:
        """Return the share for one call.

        Raises:
            StateError: the share that was found at the first read has changed since.
            ValueError: ``override`` is not a share, there are more shares than arcs, or the program has made several
                meshes, or one with an unknown dimension.
            RuntimeError: the variables of a launcher contradict each other.
        """
        if override is not None:
            return self._override(override)[:2]
        if self._is_declared and self._share is not None:
            return self._share
        if self._share is None:
            # Reading the variables of launchers takes longer than a small minibatch, and none appears later.
            self._find = ranks if launcher_rank() else _ranks_of_group
            self._ranks = self._find()
            return self._fix()
        if (share := self._find()) != self._ranks:
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
            return self._override(override)[:2]
        return self._share if self._share is not None else self._check(self.partition.mesh_share())[:2]

    def cut(self, override: PartitionLike | None = None) -> IndexAndCount:
        """Return the cut of each sequence, (index, count), for one call, without fixing it."""
        if override is not None:
            return self._override(override)[2:4]
        return self._cut if self._share is not None else self.partition.mesh_share()[2:4]

    @property
    def group(self) -> tuple[int, ...] | None:
        """Ranks of this machine that get the same sequences, as far as is known. None before the share is fixed."""
        return self._group

    def renewed(self, partition: PartitionLike) -> FixedShare:
        """Return another share of the same feed.

        Raises:
            ValueError: it has another balance or cut, there are more shares than arcs, or it is not a share.
        """
        return FixedShare(self._of_feed(partition), self._arcs)

    def _fix(self) -> IndexAndCount:
        share = self._check(self.partition.mesh_share())
        self._cut, self._group = share[2:4], _on_this_machine(share.group)
        self._share = share[:2]  # last: after an interrupt before it, the share is looked for again
        return self._share

    def _override(self, override: PartitionLike) -> MeshShare:
        if type(override) is tuple:  # of every batch of a loader over a corpus
            return self._check(MeshShare(*check_partition(override), *(self.cut() if self._is_cut else (0, 1))))
        return self._check(self._of_feed(override).mesh_share())

    def _of_feed(self, value: PartitionLike) -> Partition:
        """Return another partition of the same feed, with its balance and cut."""
        partition, current = partition_of(value), self.partition
        if partition.balance not in ("samples", current.balance):
            raise ValueError(
                f"expected the balance of the feed, {current.balance!r}, got {partition.balance!r}: pass it where the "
                "feed is made"
            )
        cut = current.cutting()
        if partition.cut not in (None, cut) or (cut is None and partition.cutting() is not None):
            raise ValueError(
                f"expected the cut of the feed, {cut!r}, got {partition.cutting()!r}, which would change the streams "
                "of minibatches: pass it where the feed is made"
            )
        if cut is not None and not (partition.is_auto or is_mesh(partition.ranks)):  # a pair leaves the cut as it is
            partition = Partition(MeshShare(*partition.share(), *self.cut(), partition.mesh_share().group))
        if partition.balance is current.balance and partition.cut == cut:
            return partition
        return replace(partition, balance=current.balance, cut=cut)

    def _check(self, share: MeshShare) -> MeshShare:
        if self._arcs is not None and share.parts > self._arcs:
            raise ValueError(
                f"expected at most {self._arcs} ranks, one for each of fl.Arcs({self._arcs}), got {share.parts}; use "
                "fewer ranks, or as many arcs as the most ranks that you will use. That is another order, which no "
                "saved state fits"
            )
        return share


def refuse_cut(partition: Partition, feed: str, remedy: str) -> None:
    """Refuse a partition that cuts sequences.

    Args:
        partition: the partition.
        feed: description of the feed, which cannot cut.
        remedy: what to do instead.

    Raises:
        ValueError: it cuts sequences.
    """
    if partition.cutting() is not None:
        raise ValueError(
            f'expected a partition without a cut for {feed}: {remedy}, or give the dimension the role "model", so that '
            "its ranks get whole sequences"
        )


def on_this_machine(count: int) -> int:
    """Return how many of ``count`` ranks run on this machine, according to torchrun, or all of them if unknown."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local_size), count) if local_size.isdecimal() else count


def _on_this_machine(group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks of a group that run on this machine, according to torchrun, or all of them if unknown."""
    variables = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    if not all(text.isdecimal() for text in variables):
        return group
    rank, local_rank, local_size = map(int, variables)
    return tuple(member for member in group if 0 <= member - (rank - local_rank) < local_size)


def check_partition(partition: Any) -> IndexAndCount:
    """Return ``partition`` as two ints.

    Raises:
        ValueError: it is not two ints with 0 <= index < count.
    """
    try:
        index, count = map(operator.index, partition)
    except (TypeError, ValueError):
        raise ValueError(
            f'expected partition=(index, count), a mesh, "auto" or an fl.Partition of one of these, got {partition!r}'
        ) from None
    if not 0 <= index < count:
        raise ValueError(f"expected partition=(index, count) with 0 <= index < count, got {partition!r}")
    return index, count


def ranks() -> IndexAndCount:
    """Return rank and number of ranks: of torch.distributed if it is initialised, else of Ray Train, mpiexec or
    srun."""
    return _group() or launcher_rank() or (0, 1)


def _ranks_of_group() -> IndexAndCount:
    return _group() or (0, 1)


def _group() -> IndexAndCount | None:
    """Return rank and number of ranks of torch.distributed, or None if it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None
