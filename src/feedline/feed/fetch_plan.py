"""Plan the fetches of a run from object stores, computed from its order without reading data.

The plan visits the chunks in the order in which a run reads them, and `cache_policy` makes the same decision about each
as in the run. So the planned bytes are the bytes that a process with a node and a cache to itself fetches. Where
several processes share a cache, their fetches depend on how far apart they are, and the plan assumes that they are in
step. Times are estimates from the bandwidth, the latency and the seconds of a step in `Cluster`.

Cost: some tens of microseconds for each chunk, sweep and node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feedline.data import Position
from feedline.errors import DataError
from feedline.feed.arguments import Arcs
from feedline.feed.assembly import ChunkSet
from feedline.feed.files.remote import object_at
from feedline.feed.formats.fetched_views import may_lack_parts
from feedline.feed.formats.remote_corpus import RemoteCorpus
from feedline.feed.protocol import Deserializer, RandomAccess, can, chunk_extents, is_sized
from feedline.feed.reading.block_corpus import BlockCorpus
from feedline.feed.reading.cache_policy import CachePolicy, Mask, runs
from feedline.feed.reading.next_uses import NextUses
from feedline.feed.reading.reader_factory import choose_reader, order_of
from feedline.feed.reading.stats import Stats
from feedline.feed.remote.object_cache import CachedObject, PageRange, coalesce_extents, parts_of
from feedline.feed.remote.pages import MIN_CACHE_BYTES, PAGE_BYTES
from feedline.feed.remote.requests import IN_FLIGHT
from feedline.feed.source import MinibatchSource
from feedline.feed.timeline import Timeline

SWEEPS = 3
"""Sweeps that are planned by default. Later ones find parts of earlier ones in the cache."""

_MIB = 1 << 20
_ORDER: dict[str, Any] = {"order": "feedline", "seed": 0, "shuffle": True}


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines and processes that read the data.

    Attributes:
        nodes: number of machines, each with a cache.
        ranks_per_node: number of processes on each that train.
        cache_bytes: maximum of bytes that a cache keeps.
        bandwidth: bytes per second from the store to each node. None if unknown.
        latency_s: seconds until the first byte of an answer.
        step_s: seconds of a training step. None if unknown.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    cache_bytes: int = 16 << 30
    bandwidth: float | None = None
    latency_s: float = 0.0
    step_s: float | None = None

    @property
    def ranks(self) -> int:
        """Number of all processes that train."""
        return self.nodes * self.ranks_per_node

    def seconds(self, traffic: PlannedTraffic) -> float | None:
        """Return about how many seconds a node takes to fetch ``traffic``, or None if unknown."""
        if not traffic.requests:
            return 0.0
        if self.bandwidth is None:
            return None
        link = traffic.bytes / self.bandwidth
        return self.latency_s + max(link, traffic.requests * self.latency_s / IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """Requests for bytes.

    Attributes:
        requests: number of requests.
        bytes: bytes that they fetch.
    """

    requests: int
    bytes: int

    def __add__(self, traffic: PlannedTraffic) -> PlannedTraffic:
        return PlannedTraffic(self.requests + traffic.requests, self.bytes + traffic.bytes)

    def times(self, nodes: int) -> PlannedTraffic:
        """Return the traffic of ``nodes`` nodes that fetch the same."""
        return PlannedTraffic(self.requests * nodes, self.bytes * nodes)


NOTHING = PlannedTraffic(0, 0)


class _Window(NamedTuple):
    """The traffic of a node for a window, the steps that it lasts, and its number of pages."""

    sweep: int
    steps: float
    traffic: PlannedTraffic
    pages: int


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The traffic under one partition.

    Attributes:
        arcs: number of arcs. None if ranks share by position.
        numbers: numbers of the sweeps, of which the first may be the rest of one.
        sweeps: requests and bytes of each sweep, of the node that fetches most.
        cluster: the same of all nodes together.
        first_window: traffic before the first minibatch.
        peak_bytes: maximum of bytes that a cache keeps.
        smallest_cache_bytes: size of a cache for the data that the processes of a node read at the same time.
        waits: share of the time that steps wait for data in each sweep, 0 to 1. None if unknown.
        hiding_step_s: the shortest step that hides the fetching in the last of the sweeps. None if unknown.
    """

    arcs: int | None
    numbers: list[int]
    sweeps: list[PlannedTraffic]
    cluster: list[PlannedTraffic]
    first_window: PlannedTraffic
    peak_bytes: int
    smallest_cache_bytes: int
    waits: list[float] | None
    hiding_step_s: float | None

    @property
    def fetched_bytes(self) -> int:
        """Bytes that all nodes fetch in all sweeps."""
        return sum(traffic.bytes for traffic in self.cluster)


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The traffic of a job.

    Attributes:
        cluster: machines and processes that read the data.
        data_bytes: size of all objects.
        opening: measured traffic of opening on each node, with the index if one had to be made.
        lookups: measured requests for names and sizes on each node.
        asked: the plan under the partition of the arguments.
        other: the plan under the other partition. None if there is none, see ``no_other``.
        no_other: reason why there is no other plan.
    """

    cluster: Cluster
    data_bytes: int
    opening: PlannedTraffic
    lookups: int
    asked: PartitionPlan
    other: PartitionPlan | None
    no_other: str | None

    @property
    def first_batch_s(self) -> float | None:
        """Approximate seconds until the first minibatch. None if unknown."""
        opening, window = self.cluster.seconds(self.opening), self.cluster.seconds(self.asked.first_window)
        return None if opening is None or window is None else self.lookups * self.cluster.latency_s + opening + window

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name, in JSON types."""
        figures = asdict(self)
        figures["opening"]["lookups"] = figures.pop("lookups")
        return figures | {"first_batch_s": self.first_batch_s}


def fetch_plan(
    corpus: Deserializer,
    cluster: Cluster,
    *,
    size: int,
    other_arcs: int = 64,
    opening: PlannedTraffic = NOTHING,
    lookups: int = 0,
    kept: Mapping[str, Mask] | None = None,
    start: Position | None = None,
    max_sweeps: int | None = None,
    sweeps: int = SWEEPS,
    **options: Any,
) -> FetchPlan:
    """Plan the fetches from object stores.

    Args:
        corpus: corpus that was opened by its address.
        cluster: machines and processes that read it.
        size: minibatch size, in samples.
        other_arcs: number of arcs to compare with, where the order is not an `Arcs`.
        opening, lookups: traffic of opening it.
        kept: pages that each cache has at the beginning, by key of their object, as `Cache.tables` returns them.
        start: position to begin at. None: the start.
        max_sweeps: see `MinibatchSource`. Nothing is kept for later sweeps.
        sweeps: number of sweeps to plan, where there is no end.
        options: ``seed``, ``shuffle`` and ``order`` of `MinibatchSource`.

    Raises:
        ValueError: there are more ranks than arcs, or the order cannot be planned.
        DataError: the corpus is not read by ranges from objects.
    """
    if not isinstance(corpus, RemoteCorpus):
        raise DataError(
            "expected a corpus that was opened from an address, got one on a disk",
            path=corpus.name,
            hint="pass s3://...",
        )
    options = {**_ORDER, **options}
    order = options["order"]

    def under(order: str | Arcs) -> PartitionPlan:
        return _PlannedRun(
            corpus,
            cluster,
            size,
            kept=kept or {},
            start=start,
            max_sweeps=max_sweeps,
            sweeps=sweeps,
            options={**options, "order": order},
        ).plan()

    at_once = is_sized(corpus) and order_of(corpus, **options)[1]
    planned, alternative, why = _plan_whole(corpus, cluster, order, kept or {}) if at_once else under(order), None, None
    if at_once:
        why = "data that is shuffled as a whole is fetched whole, by every node, before the first minibatch"
    elif cluster.nodes == 1:
        why = "one node reads all data under any partition"
    elif isinstance(order, str) and order != "feedline":
        why = f"order={order!r} has no arcs"
    else:
        try:
            alternative = under("feedline" if isinstance(order, Arcs) else Arcs(max(other_arcs, cluster.ranks)))
        except ValueError as error:
            why = str(error)
    total = corpus.placeholders.total_bytes
    return FetchPlan(cluster, total, opening, lookups, asked=planned, other=alternative, no_other=why)


def _plan_whole(corpus: RemoteCorpus, cluster: Cluster, order: str | Arcs, kept: Mapping[str, Mask]) -> PartitionPlan:
    """Return the plan of objects that are fetched as a whole before the first minibatch, and never again."""
    objects = corpus.placeholders.objects.values()
    missing: list[PageRange] = []
    for cached in objects:
        table = kept.get(cached.key, np.zeros(cached.pages, np.bool_))
        missing += [(cached, first, end) for first, end in runs(~table)]
    fetched = _traffic(missing)
    kept_bytes = sum(cached.pages for cached in objects) * PAGE_BYTES
    return PartitionPlan(
        order.count if isinstance(order, Arcs) else None,
        [0],
        sweeps=[fetched],
        cluster=[fetched.times(cluster.nodes)],
        first_window=fetched,
        peak_bytes=kept_bytes,
        smallest_cache_bytes=max(MIN_CACHE_BYTES, kept_bytes),
        waits=_waits([], cluster, [0]),
        hiding_step_s=None if cluster.bandwidth is None else 0.0,
    )


class _PlannedRun:
    """The nodes of a cluster under one partition. See `fetch_plan`."""

    def __init__(
        self,
        corpus: RemoteCorpus,
        cluster: Cluster,
        size: int,
        *,
        kept: Mapping[str, Mask],
        start: Position | None,
        max_sweeps: int | None,
        sweeps: int,
        options: Mapping[str, Any],
    ) -> None:
        self._corpus, self._cluster, self._size, self._kept = corpus, cluster, size, kept
        self._arcs = options["order"].count if isinstance(options["order"], Arcs) else None
        self._held = corpus.placeholders.cache.held_pages()
        part = (0, cluster.ranks)
        source = MinibatchSource(corpus, partition=part, max_sweeps=max_sweeps, on_error="skip", **options)
        self._timeline: Timeline = choose_reader(
            corpus, ChunkSet(corpus.schema), Stats(), threads=1, read_ahead=0, **options
        ).timeline
        steps = source.plan(size, start)
        first, second = next(steps, None), next(steps, None)
        if first is None:
            raise ValueError("expected a place before the end of the source, got its end")
        blocks = self._timeline.blocks
        self._read_from: Deserializer = corpus if blocks is None else BlockCorpus(corpus, blocks)
        length = self._timeline.sweep_length
        if length is None or (can(corpus, RandomAccess) and not may_lack_parts(corpus)):
            raise ValueError(f"expected a corpus whose chunks are read by ranges, got {corpus.name}")
        self._sweeps = first.position.sweep + sweeps if max_sweeps is None else max_sweeps
        self._max_sweeps = max_sweeps
        self._start = first.position[:2]
        end = math.inf if second is None else second.position.sweep * length + second.position.sequence
        self._read_first = min(end, self._sweeps * length) - 1  # last place of the first minibatch
        samples = self._timeline.sweep_samples
        self._length, self._samples = length, 1.0 if samples is None else samples / length
        self._ranges: dict[int, list[PageRange]] = {}

    def _ranges_of(self, chunk: int) -> list[PageRange]:
        ranges = self._ranges.get(chunk)
        if ranges is None:
            extents = chunk_extents(self._read_from, chunk)
            if any(not isinstance(object_at(extent.path), CachedObject) for extent in extents) or not extents:
                raise ValueError(f"expected a corpus whose chunks are known bytes of objects, got {self._corpus.name}")
            ranges = self._ranges[chunk] = coalesce_extents(extents)
        return ranges

    def plan(self) -> PartitionPlan:
        """Return the plan of the sweeps on every node."""
        cluster = self._cluster
        nodes = range(cluster.nodes) if self._arcs is not None else range(1)
        windows: list[_Window] = []  # of the node that fetches most
        total: dict[int, PlannedTraffic] = {}
        peak = smallest = 0
        for node in nodes:
            policy = CachePolicy(
                cluster.cache_bytes // PAGE_BYTES,
                self._ranges_of,
                {key: table.copy() for key, table in self._kept.items()},
                self._held,
            )
            fetched = self._node(node, policy)
            for window in fetched:
                total[window.sweep] = total.get(window.sweep, NOTHING) + window.traffic
            if not windows or _sum(fetched).bytes > _sum(windows).bytes:
                windows = fetched
            pairs = pairwise([0, *(window.pages for window in fetched)])  # fetched while the one before is used
            peak, smallest = max(peak, policy.peak), max(smallest, *map(sum, pairs))
        if self._arcs is None:
            total = {sweep: traffic.times(cluster.nodes) for sweep, traffic in total.items()}
        numbers = sorted(total)
        sweeps = [_sum(window for window in windows if window.sweep == number) for number in numbers]
        last = [window for window in windows if window.sweep == numbers[-1]]
        return PartitionPlan(
            self._arcs,
            numbers,
            sweeps=sweeps,
            cluster=[total[number] for number in numbers],
            first_window=windows[0].traffic,
            peak_bytes=peak * PAGE_BYTES,
            smallest_cache_bytes=max(MIN_CACHE_BYTES, -(-smallest * PAGE_BYTES // _MIB) * _MIB),
            waits=_waits(windows, cluster, numbers),
            hiding_step_s=_hiding_step(last, cluster),
        )

    def _node(self, node: int, policy: CachePolicy) -> list[_Window]:
        """Return the traffic of a node for each window."""
        cluster = self._cluster
        ranks = range(node * cluster.ranks_per_node, (node + 1) * cluster.ranks_per_node)
        must = self._arcs is None and cluster.ranks_per_node > 1
        readers = [self._reader(rank, policy, must=must) for rank in (ranks if self._arcs is not None else ranks[:1])]
        return [
            windows[0]._replace(traffic=_sum(windows), pages=sum(window.pages for window in windows))
            for windows in zip(*readers, strict=True)
        ]

    def _reader(self, rank: int, policy: CachePolicy, *, must: bool) -> Iterator[_Window]:
        """Yield the windows that one process reads."""
        uses = NextUses(len(self._timeline.table))
        previous: set[int] = set()
        plan = self._timeline.window_at(*self._start)
        while plan.sweep < self._sweeps:
            part = plan.part(rank, self._cluster.ranks)
            chunks = dict.fromkeys(part.chunks.tolist())
            traffic = NOTHING
            for chunk in chunks:
                if chunk not in previous:
                    traffic += _traffic(policy.decide(chunk, uses, must=must).missing)
            previous = set(chunks)
            if plan.sweep * self._length + plan.first + plan.count > self._read_first:
                uses.start(partial(self._timeline.chunks_after, part, self._max_sweeps))
            pages = sum(end - first for chunk in chunks for _, first, end in self._ranges_of(chunk))
            yield _Window(plan.sweep, plan.count * self._samples / self._size, traffic, pages)
            plan = self._timeline.window_after(plan)


def _traffic(runs: Sequence[PageRange]) -> PlannedTraffic:
    requests = fetched = 0
    for cached, first, end in runs:
        requests += len(parts_of(first, end))
        fetched += min(end * PAGE_BYTES, cached.size) - first * PAGE_BYTES
    return PlannedTraffic(requests, fetched)


def _sum(windows: Iterable[_Window]) -> PlannedTraffic:
    return sum((window.traffic for window in windows), NOTHING)


def _waits(windows: Sequence[_Window], cluster: Cluster, sweeps: Sequence[int]) -> list[float] | None:
    """Return the share of each sweep that steps wait, where each window is fetched while the one before is used."""
    if cluster.step_s is None or cluster.bandwidth is None:
        return None
    waited, worked = dict.fromkeys(sweeps, 0.0), dict.fromkeys(sweeps, 0.0)
    ready = now = began = 0.0
    for i, window in enumerate(windows):
        seconds = cluster.seconds(window.traffic)
        assert seconds is not None
        ready = max(ready, began) + seconds
        if i:  # before the first window has arrived, no step has begun
            waited[window.sweep] += max(0.0, ready - now)
        began = max(now, ready)
        now = began + window.steps * cluster.step_s
        worked[window.sweep] += window.steps * cluster.step_s
    return [waited[n] / (waited[n] + worked[n]) if worked[n] else 0.0 for n in sweeps]


def _hiding_step(windows: Sequence[_Window], cluster: Cluster) -> float | None:
    """Return the shortest step at which a sweep like this one does not wait, once it has begun."""
    if cluster.bandwidth is None:
        return None
    seconds = np.array([cluster.seconds(window.traffic) for window in windows], np.float64)
    steps: NDArray[np.float64] = np.array([window.steps for window in windows], np.float64)
    # Each window has the steps of the one before, which is of the sweep before for the first.
    return float((seconds / np.maximum(np.roll(steps, 1), 1e-9)).max())
