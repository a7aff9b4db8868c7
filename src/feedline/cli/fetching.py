"""Say what a job fetches from object stores, and whether its steps hide that; the figures are of `feed.fetch_plan`."""

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
from feedline.feed.files.cache import own_folder, user_cache
from feedline.feed.formats.elsewhere import RemoteCorpus
from feedline.feed.remote.mirror import DEFAULT_BYTES
from feedline.feed.remote.requests import TRAFFIC, settled, wait_for

_HIDDEN = 0.01  # of the time; less waiting is not worth a word


class AskedCluster(NamedTuple):
    """Options for remote data, as typed; None: not given."""

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
            UsageError: one is given.
        """
        given = [name for name, value in self._asdict().items() if value is not None]
        if given:
            raise UsageError(
                f"expected an address, as s3://bucket/train-*.tar, for --{given[0].replace('_', '-')}, got the path "
                f"{path}: nothing of it is fetched; leave the option out"
            )

    def cluster(self) -> Cluster:
        """Return what they describe.

        Raises:
            UsageError: one is invalid.
        """
        if self.step is not None and self.bandwidth is None:
            raise UsageError(f"expected --bandwidth with --step {self.step}, got none: it says how long fetching takes")
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
    path: str, streams: list[str] | None, chunk_size: str, cluster: Cluster
) -> Iterator[tuple[RemoteCorpus, Callable[..., FetchPlan]]]:
    """A context in which an address is open as a run opens it on a node whose cache is empty.

    Yields:
        The corpus, and `fetch_plan` for it, which knows what opening it took, with the digest that states have.
    """
    own_folder(user_cache())
    with tempfile.TemporaryDirectory(prefix="plan-", dir=user_cache()) as folder:
        before = TRAFFIC.requests, TRAFFIC.fetched_bytes, TRAFFIC.lookups
        corpus = open_path(path, streams, chunk_size, remote=Remote(folder, cluster.cache_bytes)).corpus
        assert isinstance(corpus, RemoteCorpus)
        with contextlib.closing(corpus):
            corpus.digest()
            wait_for(settled())
            requests, fetched, lookups = before
            opening = PlannedTraffic(TRAFFIC.requests - requests, TRAFFIC.fetched_bytes - fetched)
            yield corpus, partial(fetch_plan, corpus, cluster, opening=opening, lookups=TRAFFIC.lookups - lookups)


def print_plan(plan: FetchPlan) -> None:
    """Print the figures, and what follows from them."""
    cluster, asked = plan.cluster, plan.asked
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    facts = {
        "data": show_bytes(plan.data_bytes),
        "opening": f"{_traffic(plan.opening)}, {show_count(plan.lookups)} for names; as measured, with an empty cache",
    }
    last = len(asked.numbers) - 1
    for i in sorted({0, min(1, last), last}):
        by_all = "" if cluster.nodes == 1 else f"; {_traffic(asked.cluster[i])} by all nodes"
        facts[f"sweep {asked.numbers[i]}"] = _traffic(asked.sweeps[i]) + by_all
    took = "" if plan.first_batch_s is None else f"{_seconds(plan.first_batch_s)}: "
    facts |= {
        "peak disk": f"{show_bytes(asked.peak_bytes)} of {show_bytes(cluster.cache_bytes)}",
        "first batch": f"after {took}opening and a window of {show_bytes(asked.first_window.bytes)}",
        "steps": _steps(plan),
        "smallest cache": f"{show_bytes(asked.smallest_cache_bytes)}, what is read at the same time",
    }
    if cluster.cache_bytes < asked.smallest_cache_bytes:
        facts["smallest cache"] += ", which is more than there is"
    print_facts(f"fetching, by {nodes} {_name(asked)}, each", facts)
    console = stdout()
    if plan.other is None:
        if plan.no_other is not None and cluster.nodes > 1:
            console.print(f"no other partition to compare with: {plan.no_other}")
        return
    rows = []
    for one in (asked, plan.other):
        shown = (one.cluster[0].bytes, one.cluster[-1].bytes, one.fetched_bytes)
        waiting = "-" if one.waits is None else f"{one.waits[0]:.0%}, {one.waits[-1]:.0%}"
        rows.append([_name(one), *map(show_bytes, shown), waiting])
    first, last_one = asked.numbers[0], asked.numbers[-1]
    print_table(["all nodes fetch", f"sweep {first}", f"sweep {last_one}", "in all", "waiting"], rows)
    less, more = sorted((asked, plan.other), key=lambda one: one.fetched_bytes)
    times = f"{more.fetched_bytes / max(1, less.fetched_bytes):.3g}"
    if less.fetched_bytes == more.fetched_bytes or times == "1":
        console.print("Both fetch the same.")
    else:
        console.print(f"{_name(less)} fetches less: {_name(more)} takes {times} times as much.")


def _traffic(one: PlannedTraffic) -> str:
    return f"{show_bytes(one.bytes)} in {show_count(one.requests)} requests"


def _name(one: PartitionPlan) -> str:
    return "by position" if one.arcs is None else f"arcs={one.arcs}"


def _steps(plan: FetchPlan) -> str:
    cluster, asked, other = plan.cluster, plan.asked, plan.other
    if asked.hiding_step_s is None:
        return "pass --bandwidth and --step to see whether they hide the fetching"
    shortest = f"steps of {_seconds(asked.hiding_step_s)} or more hide the fetching of the last of these sweeps"
    if asked.waits is None or cluster.step_s is None or cluster.bandwidth is None:
        return shortest
    if max(asked.waits) <= _HIDDEN:
        return f"of {_seconds(cluster.step_s)} hide the fetching; {shortest}"
    said = f"of {_seconds(cluster.step_s)} wait {asked.waits[0]:.0%} of the first of these sweeps"
    if len(asked.waits) > 1:
        said += f" and {asked.waits[-1]:.0%} of the last"
    helps = ["the last is hidden"]  # or what would let steps wait less, each with a figure
    if asked.waits[-1] > _HIDDEN:
        speed = show_bytes(cluster.bandwidth * asked.hiding_step_s / cluster.step_s)
        cache = f"a cache of all {show_bytes(plan.data_bytes)} leaves later ones nothing to fetch"
        helps = [f"{speed}/s would hide the last", cache]
    if other is not None and other.waits is not None and other.waits[-1] < asked.waits[-1] - _HIDDEN:
        helps.append(f"{_name(other)} waits {other.waits[0]:.0%} and {other.waits[-1]:.0%}")
    return f"{said}; {', or '.join(helps)}"


def _seconds(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
