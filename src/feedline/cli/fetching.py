"""Show the traffic of a job with object stores, and whether its steps hide it. The figures are of `feed.fetch_plan`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from feedline.cli.arguments import parse_count, parse_rate, parse_seconds
from feedline.cli.console import UsageError, print_facts, print_table, show_bytes, show_count, stdout
from feedline.cli.corpus import open_path
from feedline.feed.arguments import Remote
from feedline.feed.fetch_plan import Cluster, FetchPlan, PartitionPlan, PlannedTraffic, fetch_plan
from feedline.feed.files.cache_files import own_folder, user_cache
from feedline.feed.formats.remote_corpus import RemoteCorpus
from feedline.feed.remote.placeholders import DEFAULT_BYTES
from feedline.feed.remote.requests import TRAFFIC, wait_for, wait_until_idle

_HIDDEN = 0.01  # share of the time below which waiting is not mentioned


class ClusterOptions(NamedTuple):
    """Options for remote data, as typed. None if not set."""

    cache: str | None
    nodes: int | None
    ranks_per_node: int | None
    bandwidth: str | None
    latency: str | None
    step: str | None
    sweeps: int | None

    def refuse(self, path: str) -> None:
        """Refuse them for a local path.

        Raises:
            UsageError: one is set.
        """
        names = [name for name, value in self._asdict().items() if value is not None]
        if names:
            raise UsageError(
                f"expected an address, such as s3://bucket/train-*.tar, for --{names[0].replace('_', '-')}, got the "
                f"path {path}, of which nothing is fetched; leave the option out"
            )

    def cluster(self) -> Cluster:
        """Return the cluster that they describe.

        Raises:
            UsageError: one is invalid.
        """
        if self.step is not None and self.bandwidth is None:
            raise UsageError(
                f"expected --bandwidth with --step {self.step}, got none: without it, the time of fetching is unknown"
            )
        return Cluster(
            self.nodes or 1,
            self.ranks_per_node or 1,
            DEFAULT_BYTES if self.cache is None else parse_count(self.cache),
            None if self.bandwidth is None else parse_rate(self.bandwidth),
            0.0 if self.latency is None else parse_seconds(self.latency),
            None if self.step is None else parse_seconds(self.step),
        )


@contextlib.contextmanager
def opened_cold(
    path: str, streams: list[str] | None, chunk_size: str, schema: str, cluster: Cluster
) -> Iterator[tuple[RemoteCorpus, Callable[..., FetchPlan]]]:
    """Open an address as a run does on a node whose cache is empty, within a block.

    Yields:
        The corpus, and `fetch_plan` for it, with the traffic of opening it, including the digest of states.
    """
    own_folder(user_cache())
    with tempfile.TemporaryDirectory(prefix="plan-", dir=user_cache()) as folder:
        before = TRAFFIC.requests, TRAFFIC.fetched_bytes, TRAFFIC.lookups
        corpus = open_path(path, streams, chunk_size, schema, remote=Remote(folder, cluster.cache_bytes)).corpus
        assert isinstance(corpus, RemoteCorpus)
        with contextlib.closing(corpus):
            corpus.digest()
            wait_for(wait_until_idle())
            requests, fetched, lookups = before
            opening = PlannedTraffic(TRAFFIC.requests - requests, TRAFFIC.fetched_bytes - fetched)
            yield corpus, partial(fetch_plan, corpus, cluster, opening=opening, lookups=TRAFFIC.lookups - lookups)


def print_plan(plan: FetchPlan) -> None:
    """Print the figures, and their comparison."""
    cluster, requested = plan.cluster, plan.asked
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    facts = {
        "data": show_bytes(plan.data_bytes),
        "opening": f"{_traffic(plan.opening)}, {show_count(plan.lookups)} to look up names; with an empty cache",
    }
    last = len(requested.numbers) - 1
    for i in sorted({0, min(1, last), last}):
        by_all = "" if cluster.nodes == 1 else f"; {_traffic(requested.cluster[i])} by all nodes"
        facts[f"sweep {requested.numbers[i]}"] = _traffic(requested.sweeps[i]) + by_all
    took = "" if plan.first_batch_s is None else f"{_seconds(plan.first_batch_s)}: "
    facts |= {
        "peak disk": f"{show_bytes(requested.peak_bytes)} of {show_bytes(cluster.cache_bytes)}",
        "first batch": f"after {took}opening and a window of {show_bytes(requested.first_window.bytes)}",
        "steps": _steps(plan),
        "smallest cache": f"{show_bytes(requested.smallest_cache_bytes)}, for the data that is read at the same time",
    }
    if cluster.cache_bytes < requested.smallest_cache_bytes:
        facts["smallest cache"] += ", more than the cache has"
    print_facts(f"fetching per node, {nodes}, {_name(requested)}", facts)
    console = stdout()
    if plan.other is None:
        if plan.no_other is not None and cluster.nodes > 1:
            console.print(f"no other partition to compare with: {plan.no_other}")
        return
    rows = []
    for variant in (requested, plan.other):
        shown = (variant.cluster[0].bytes, variant.cluster[-1].bytes, variant.fetched_bytes)
        waiting = "-" if variant.waits is None else f"{variant.waits[0]:.0%}, {variant.waits[-1]:.0%}"
        rows.append([_name(variant), *map(show_bytes, shown), waiting])
    first, last_one = requested.numbers[0], requested.numbers[-1]
    print_table(["all nodes fetch", f"sweep {first}", f"sweep {last_one}", "in all", "waiting"], rows)
    less, dearer = sorted((requested, plan.other), key=lambda one: one.fetched_bytes)
    times = f"{dearer.fetched_bytes / max(1, less.fetched_bytes):.3g}"
    if less.fetched_bytes == dearer.fetched_bytes or times == "1":
        console.print("Both fetch the same.")
    else:
        console.print(f"{_name(less)} fetches less: {_name(dearer)} takes {times} times as much.")


def _traffic(traffic: PlannedTraffic) -> str:
    return f"{show_bytes(traffic.bytes)} in {show_count(traffic.requests)} requests"


def _name(partition: PartitionPlan) -> str:
    return "by position" if partition.arcs is None else f"arcs={partition.arcs}"


def _steps(plan: FetchPlan) -> str:
    cluster, requested, other = plan.cluster, plan.asked, plan.other
    if requested.hiding_step_s is None:
        return "pass --bandwidth and --step to see whether they hide the fetching"
    shortest = f"steps of {_seconds(requested.hiding_step_s)} or more hide the fetching of the last of these sweeps"
    if requested.waits is None or cluster.step_s is None or cluster.bandwidth is None:
        return shortest
    if max(requested.waits) <= _HIDDEN:
        return f"of {_seconds(cluster.step_s)} hide the fetching; {shortest}"
    text = f"of {_seconds(cluster.step_s)} wait {requested.waits[0]:.0%} of the first of these sweeps"
    if len(requested.waits) > 1:
        text += f" and {requested.waits[-1]:.0%} of the last"
    helps = ["the last is hidden"]  # or remedies against waiting, each with a figure
    if requested.waits[-1] > _HIDDEN:
        speed = show_bytes(cluster.bandwidth * requested.hiding_step_s / cluster.step_s)
        cache = f"a cache of all {show_bytes(plan.data_bytes)} leaves later ones nothing to fetch"
        helps = [f"{speed}/s would hide the last", cache]
    if other is not None and other.waits is not None and other.waits[-1] < requested.waits[-1] - _HIDDEN:
        helps.append(f"{_name(other)} waits {other.waits[0]:.0%} and {other.waits[-1]:.0%}")
    return f"{text}; {', or '.join(helps)}"


def _seconds(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
