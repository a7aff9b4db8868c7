"""``feedline plan --mesh``: which ranks of a mesh read what, and how many bytes each machine reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.cli.console import UsageError, print_table, show_bytes, show_count, stdout
from feedline.feed.packing.unevenness import mean_of
from feedline.feed.protocol import ChunkInfo, Deserializer, Ints, RandomAccess, Sliceable, can, chunk_starts
from feedline.feed.source import MinibatchSource
from feedline.interop.meshes import MeshShare, roles_of, share_at


@dataclass(frozen=True)
class MeshDescription:
    """A mesh without its processes, whose last dimension varies fastest from rank to rank, as in torch.

    Attributes:
        names: names of the dimensions.
        sizes: number of ranks along each.
        roles: role of each.
        ranks_per_machine: number of ranks on each machine, which follow one another.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    roles: tuple[str, ...]
    ranks_per_machine: int

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(np.prod(self.sizes))

    def place(self, rank: int) -> tuple[int, ...]:
        """Return the place of a rank along each dimension."""
        return tuple(int(i) for i in np.unravel_index(rank, self.sizes))

    def share(self, rank: int) -> MeshShare:
        """Return the share of a rank."""
        return share_at(np.array([self.place(rank)]), self.sizes, self.roles)


class MeshGroup(NamedTuple):
    """Ranks that get the same.

    Attributes:
        share: their share.
        ranks: their numbers, ascending.
        sequences, samples: number in their share of the minibatches, before a cut.
        nbytes: stored bytes of that share.
    """

    share: MeshShare
    ranks: list[int]
    sequences: int
    samples: int
    nbytes: int


class MeshMachine(NamedTuple):
    """A machine: its ranks, the indices of the parts that they read, and the stored bytes of these."""

    ranks: list[int]
    parts: list[int]
    nbytes: int


@dataclass(frozen=True)
class MeshPlan:
    """What the ranks of a mesh read.

    Attributes:
        mesh: the mesh.
        groups: groups of ranks, by part and cut.
        machines: machines.
        steps: number of minibatches.
        nbytes: stored bytes of the global minibatches.
        unevenness: mean over the minibatches, see `PlannedMinibatch.unevenness`.
    """

    mesh: MeshDescription
    groups: list[MeshGroup]
    machines: list[MeshMachine]
    steps: int
    nbytes: int
    unevenness: dict[str, dict[str, float]]

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        mesh = self.mesh
        return {
            "mesh": dict(zip(mesh.names, mesh.sizes, strict=True)),
            "roles": dict(zip(mesh.names, mesh.roles, strict=True)),
            "steps": self.steps,
            "bytes": self.nbytes,
            "groups": [
                {
                    "share": [group.share.part, group.share.parts],
                    "cut": [group.share.cut, group.share.cuts],
                    "ranks": group.ranks,
                    "sequences": group.sequences,
                    "samples": group.samples,
                    "bytes": group.nbytes,
                }
                for group in self.groups
            ],
            "machines": [
                {"ranks": machine.ranks, "shares": machine.parts, "bytes": machine.nbytes} for machine in self.machines
            ],
            "unevenness": self.unevenness,
        }


def parse_mesh(text: str, roles: Sequence[str], ranks_per_machine: int | None) -> MeshDescription:
    """Parse ``dp=4,tp=2``, and roles such as ``ep=model``.

    Raises:
        UsageError: they are invalid.
        ValueError: a dimension has no known role.
    """
    pairs = [re.fullmatch(r"\s*([^=,\s]+)=([1-9]\d{0,5})\s*", part) for part in text.split(",")]
    known = [pair for pair in pairs if pair is not None]
    names, sizes = tuple(pair[1] for pair in known), tuple(int(pair[2]) for pair in known)
    if len(known) < len(pairs) or len(set(names)) < len(names):
        raise UsageError(f"expected --mesh NAME=SIZE,NAME=SIZE such as dp=4,tp=2, each name once, got {text!r}")
    by_name = {}
    for declared in roles:
        name, equals, role = declared.partition("=")
        if not equals:
            raise UsageError(f"expected --role NAME=ROLE such as ep=model, got {declared!r}")
        by_name[name] = role
    total = int(np.prod(sizes))
    if ranks_per_machine is not None and total % ranks_per_machine:
        raise UsageError(f"expected --ranks-per-node that divides the {total} ranks, got {ranks_per_machine}")
    return MeshDescription(names, sizes, tuple(roles_of(names, sizes, by_name)), ranks_per_machine or total)


def plan_mesh(mesh: MeshDescription, source: MinibatchSource, size: int, first: int, steps: int) -> MeshPlan:
    """Plan some minibatches for all ranks.

    Args:
        mesh: the mesh.
        source: source to plan, which stays where it is.
        size: size of a global minibatch.
        first, steps: number of the first minibatch from there, and number of minibatches.
    """
    by_share: dict[MeshShare, list[int]] = {}
    for rank in range(mesh.ranks):
        by_share.setdefault(mesh.share(rank), []).append(rank)
    parts = {share.part: share.parts for share in by_share}
    planned = {
        part: list(itertools.islice(source.plan(size, partition=(part, parts[part])), first, first + steps))
        for part in sorted(parts)
    }
    stored = StoredBytes(source.corpus)
    ids = {part: [m.ids for m in minibatches] for part, minibatches in planned.items()}
    groups = [
        MeshGroup(
            share,
            ranks,
            sum(m.num_sequences for m in planned[share.part]),
            sum(m.num_samples for m in planned[share.part]),
            stored.of(ids[share.part]),
        )
        for share, ranks in sorted(by_share.items())
    ]
    machines = []
    for start in range(0, mesh.ranks, mesh.ranks_per_machine):
        ranks = list(range(start, start + mesh.ranks_per_machine))
        read = sorted({mesh.share(rank).part for rank in ranks})
        machines.append(MeshMachine(ranks, read, stored.of([each for part in read for each in ids[part]])))
    minibatches = planned[min(planned)]
    uneven = mean_of([m.unevenness() for m in minibatches])
    nbytes = stored.of([each for part in ids.values() for each in part])
    return MeshPlan(mesh, groups, machines, len(minibatches), nbytes, uneven)


class StoredBytes:
    """Counts the stored bytes that are read for sequences: their own, or those of whole chunks where the format cannot
    read less. A chunk's bytes are divided by samples.

    Args:
        corpus: the corpus, which knows its sizes.
    """

    def __init__(self, corpus: Deserializer) -> None:
        self._corpus = corpus
        self._infos: Sequence[ChunkInfo] = corpus.chunks()
        self._starts = chunk_starts(corpus)
        self._in_parts = can(corpus, RandomAccess) or can(corpus, Sliceable)

    def of(self, ids: Iterable[NDArray[np.int64]]) -> int:
        """Return the bytes of the sequences with these ordinals, each once."""
        ordinals: Ints = np.unique(np.concatenate([np.empty(0, np.int64), *ids]))
        chunks = np.searchsorted(self._starts, ordinals, side="right") - 1
        stored = np.array([info.bytes for info in self._infos], np.float64)
        if not self._in_parts:
            return int(stored[np.unique(chunks)].sum())
        samples = self._corpus.lengths(ordinals)
        total = np.array([info.samples for info in self._infos], np.float64)
        each = (stored / np.maximum(total, 1))[chunks]
        return round(float((each if samples is None else each * samples).sum()))


def print_mesh_plan(plan: MeshPlan) -> None:
    """Print a line for each group, and one for each machine."""
    mesh, console = plan.mesh, stdout()
    described = ", ".join(f"{n}={k} ({role})" for n, k, role in zip(mesh.names, mesh.sizes, mesh.roles, strict=True))
    console.print(f"mesh {described}: {count_of(mesh.ranks, 'rank')} on {count_of(len(plan.machines), 'machine')}")
    cuts = any(group.share.cuts > 1 for group in plan.groups)
    rows = [
        [
            show_ranks(group.ranks),
            f"{group.share.part} of {group.share.parts}",
            *([f"cut {group.share.cut} of {group.share.cuts} of the same sequences"] if cuts else []),
            show_count(group.sequences),
            show_count(group.samples),
            show_bytes(group.nbytes),
        ]
        for group in plan.groups
    ]
    heads = ["ranks", "share", *(["cut"] if cuts else []), "sequences", "samples", "bytes"]
    print_table(heads, rows, left=2 + cuts)
    print_table(
        ["machine", "ranks", "shares", "reads"],
        [
            [str(k), show_ranks(machine.ranks), show_ranks(machine.parts), show_bytes(machine.nbytes)]
            for k, machine in enumerate(plan.machines)
        ],
        left=3,
    )
    console.print(f"of {show_bytes(plan.nbytes)} in {count_of(plan.steps, 'minibatch', 'minibatches')}")
    print_unevenness(plan.unevenness)


def print_unevenness(unevenness: dict[str, dict[str, float]]) -> None:
    """Print the largest work of a rank over the mean, by balance and measure."""
    if unevenness:
        rows = [[balance, *(f"{figure:.3f}" for figure in by.values())] for balance, by in unevenness.items()]
        print_table(["largest/mean work: balance=", *next(iter(unevenness.values()))], rows)


def count_of(number: int, name: str, plural: str = "") -> str:
    """Format a count: ``1 rank``, ``8 ranks``."""
    return f"{number:,} {name if number == 1 else plural or name + 's'}"


def show_ranks(numbers: Sequence[int]) -> str:
    """Format ascending numbers: ``0-3 8``."""
    array = np.asarray(numbers)
    runs = np.split(array, np.flatnonzero(np.diff(array) != 1) + 1)
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
