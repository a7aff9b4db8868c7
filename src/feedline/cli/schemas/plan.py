"""The JSON documents of ``feedline plan``."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from feedline.cli.schemas.inspect import ReadingCost
from feedline.cli.window_page import WindowChoice
from feedline.feed.fetch_plan import Cluster, PartitionPlan
from feedline.feed.timeline.elements import Share


class AxisPlace(TypedDict):
    """A place on the axis.

    Attributes:
        sweep: number of the sweep, from 0.
        sequence: number of sequences before it in this sweep.
        samples: number of samples before it, in all sweeps.
    """

    sweep: int
    sequence: int
    samples: int


class PlannedStep(TypedDict):
    """A minibatch.

    Attributes:
        step: number of the minibatch, counted from the start, or from ``samples:N`` of ``--at``.
        position: its place on the axis.
        ids: ordinals of its sequences, in their order.
        num_sequences: number of its sequences.
        num_samples: number of its samples.
        global_samples: number of samples of the global minibatch.
        sweep_end: whether a sweep ends in it.
        sources: of a mixture, the corpus of each sequence.
        documents: of a packed corpus, the ordinals of the documents in each sequence.
    """

    step: int
    position: AxisPlace
    ids: list[int]
    num_sequences: int
    num_samples: int
    global_samples: int
    sweep_end: bool
    sources: NotRequired[list[str]]
    documents: NotRequired[list[list[int]]]


class OpeningTraffic(TypedDict):
    """Requests to open the data.

    Attributes:
        requests: number of requests for bytes.
        bytes: bytes that they fetch.
        lookups: number of requests for names and sizes.
    """

    requests: int
    bytes: int
    lookups: int


class PlannedFetches(TypedDict):
    """The fetches of a job from an object store.

    Attributes:
        cluster: machines and processes that read the data.
        data_bytes: bytes of all objects.
        opening: traffic of opening the data, on each node.
        asked: traffic under the partition that the options declare.
        other: traffic under the other partition. None if there is none.
        no_other: reason why there is no other partition. None if there is one.
        first_batch_s: seconds until the first minibatch, about. None if unknown.
    """

    cluster: Cluster
    data_bytes: int
    opening: OpeningTraffic
    asked: PartitionPlan
    other: PartitionPlan | None
    no_other: str | None
    first_batch_s: float | None


class PlanDocument(TypedDict):
    """Minibatches in the order.

    Attributes:
        path: path or address of the corpus.
        seed: seed of the order.
        size: size of a minibatch over all ranks, in samples.
        steps: minibatches.
        corpora: of a mixture, the share of each corpus before the last of these minibatches.
        cost: cost of reading. None for data that is not in files of this machine.
        unevenness: largest work of a rank over the mean, by balance and measure. Empty with one rank.
        fetching: fetches from an object store, for an address.
    """

    path: str
    seed: int
    size: int
    steps: list[PlannedStep]
    corpora: dict[str, Share]
    cost: ReadingCost | None
    unevenness: dict[str, dict[str, float]]
    fetching: NotRequired[PlannedFetches]


class GroupOfRanks(TypedDict):
    """Ranks that get the same.

    Attributes:
        share: index of their share, and number of shares.
        cut: index of their part of each sequence, and number of parts.
        ranks: their numbers.
        sequences: number of sequences in their share of the minibatches.
        samples: number of samples in their share.
        bytes: stored bytes of their share.
    """

    share: tuple[int, int]
    cut: tuple[int, int]
    ranks: list[int]
    sequences: int
    samples: int
    bytes: int


class MachineOfRanks(TypedDict):
    """A machine.

    Attributes:
        ranks: numbers of its ranks.
        shares: indices of the shares that they read.
        bytes: stored bytes of these shares.
    """

    ranks: list[int]
    shares: list[int]
    bytes: int


class MeshDocument(TypedDict):
    """The shares of the ranks of a mesh, with ``--mesh``.

    Attributes:
        path: path of the corpus.
        seed: seed of the order.
        size: size of a minibatch over all ranks, in samples.
        mesh: number of ranks along each dimension.
        roles: role of each dimension.
        steps: number of minibatches.
        bytes: stored bytes of these minibatches.
        groups: ranks that get the same.
        machines: machines.
        unevenness: largest work of a rank over the mean, by balance and measure. Empty if all have the same.
    """

    path: str
    seed: int
    size: int
    mesh: dict[str, int]
    roles: dict[str, str]
    steps: int
    bytes: int
    groups: list[GroupOfRanks]
    machines: list[MachineOfRanks]
    unevenness: dict[str, dict[str, float]]


class WindowsDocument(TypedDict):
    """The page with ``--html``.

    Attributes:
        page: path of the page.
        windows: windows that it compares.
    """

    page: str
    windows: list[WindowChoice]


Document = PlanDocument | MeshDocument | WindowsDocument
