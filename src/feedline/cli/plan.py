"""``feedline plan``: show the sequences of step N from the index, and the traffic of a job, without reading data."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from feedline.cli import mesh_picture, window_page
from feedline.cli.arguments import (
    DEFAULT_CHUNK_SIZE,
    ChunkSize,
    CorpusPath,
    PartitionOption,
    SchemaOption,
    Streams,
    WindowOption,
    parse_order,
    parse_partition,
    parse_window,
)
from feedline.cli.console import Debug, Json, UsageError, print_json, print_result, print_table, stdout
from feedline.cli.corpus import open_path
from feedline.cli.cost import cost, say_cost
from feedline.cli.fetching import ClusterOptions, opened_cold, print_plan
from feedline.cli.mesh_plan import parse_mesh, plan_mesh, print_mesh_plan, print_unevenness
from feedline.feed.arguments import Arcs
from feedline.feed.fetch_plan import SWEEPS
from feedline.feed.packed_documents import PackedDocuments
from feedline.feed.packing.unevenness import mean_of
from feedline.feed.plan import PlannedMinibatch
from feedline.feed.protocol import Deserializer, sources_of
from feedline.feed.remote.address_text import is_address
from feedline.feed.source import DEFAULT_MINIBATCH_SIZE, MinibatchSource

_SHOWN_IDS = 12
_WORTH_SAYING_BYTES = 16 << 20  # bytes of data below which the cost is not shown


def plan(
    path: CorpusPath,
    at: Annotated[
        str, typer.Option(metavar="N|samples:N", help="Step N from the start, or the first one at or after N samples.")
    ] = "0",
    size: Annotated[
        int, typer.Option("--size", "--batch", min=1, help="Minibatch size in samples, over all ranks.")
    ] = DEFAULT_MINIBATCH_SIZE,
    steps: Annotated[int, typer.Option(min=1, help="Number of minibatches to show.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order.")] = 0,
    window: WindowOption = None,
    partition: PartitionOption = "0/1",
    order: Annotated[str, typer.Option(help="feedline, or cntk for CNTK 2.7's.")] = "feedline",
    arcs: Annotated[int | None, typer.Option(min=1, help="Arcs of the order, instead of --order; see fl.Arcs.")] = None,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    cache: Annotated[
        str | None, typer.Option(metavar="BYTES", help="For an address: bytes in the cache of a node. Default: 16G.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="For an address: machines that read it. Default: 1.")] = None,
    ranks_per_node: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For an address, or with --mesh: training processes on each machine. Default: 1, and with --mesh all.",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="For an address: from the store to a node, 200MB/s or 10Gbit/s.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="For an address: until the first byte of an answer, 5ms.")
    ] = None,
    step: Annotated[
        str | None, typer.Option(metavar="TIME", help="For an address: how long a training step takes, 0.25s.")
    ] = None,
    sweeps: Annotated[
        int | None, typer.Option(min=1, help="For an address: number of sweeps to plan. Default: 3.")
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=SIZE,...", help="Instead, show what the ranks of a mesh read, such as dp=4,tp=2. See --role."
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=ROLE", help="With --mesh: role of a dimension: data, model or context. Repeatable."),
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="With --mesh: also write a picture of the mesh.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Instead, write a page that compares shuffle windows.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="With --html: stream of classes, whose mixture is shown. Reads the data."),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which sequences are in a minibatch, without reading them, and the cost of the default order on this
    machine. For an address, show what a job will fetch from there on."""
    unit, colon, number = at.rpartition(":")
    if not number.isdigit() or (colon and unit != "samples"):
        raise UsageError(f"expected --at N or --at samples:N, got {at!r}")
    if label is not None and html is None:
        raise UsageError("expected --html with --label, got none")
    if mesh is None and (role or svg is not None):
        raise UsageError(f"expected --mesh with --{'role' if role else 'svg'}, got none")
    if mesh is not None and (html is not None or partition != "0/1" or is_address(path)):
        got = "--html" if html is not None else f"--partition {partition}" if partition != "0/1" else path
        raise UsageError(f"expected a path of this machine, and neither --partition nor --html, with --mesh, got {got}")
    described = None if mesh is None else parse_mesh(mesh, role or [], ranks_per_node)
    if html is not None:
        _compare_windows(path, html, size, seed, label, stream=stream, schema=schema, chunk_size=chunk_size, json=json)
        return
    part = parse_partition(partition)
    if arcs is not None and order != "feedline":
        raise UsageError(f"expected either --order or --arcs, got --order {order} and --arcs {arcs}")
    ordered = parse_order(order) if arcs is None else Arcs(arcs)
    ranks_of_cluster = None if described is not None else ranks_per_node
    cluster, fetching = ClusterOptions(cache, nodes, ranks_of_cluster, bandwidth, latency, step, sweeps), None
    with contextlib.ExitStack() as opened:
        corpus: Deserializer
        if is_address(path):
            remote, fetch_plan = opened.enter_context(opened_cold(path, stream, chunk_size, schema, cluster.cluster()))
            corpus = remote
        else:
            cluster.refuse(path)
            corpus = opened.enter_context(contextlib.closing(open_path(path, stream, chunk_size, schema).corpus))
        options: dict[str, Any] = {"seed": seed, "shuffle": parse_window(window, corpus), "order": ordered}
        source = MinibatchSource(corpus, partition=part, on_error="skip", **options)
        first = int(number)
        if unit == "samples":
            source.seek(samples=first)
            first = 0
        if described is not None:
            shown = plan_mesh(described, source, size, first, steps)
            if svg is not None:
                svg.write_text(mesh_picture.svg(shown), encoding="utf-8")
            about = {"path": corpus.name, "seed": seed, "size": size}
            print_result(about | shown.to_json(), json, lambda _: print_mesh_plan(shown))
            return
        minibatches = list(itertools.islice(source.plan(size), first, first + steps))
        if is_address(path) and minibatches:
            options |= {"sweeps": sweeps or SWEEPS, "kept": remote.placeholders.cache.kept_pages()}
            fetching = fetch_plan(size=size, start=minibatches[0].position, **options)
        costs = cost(corpus, 0.2)
        names: Any = getattr(corpus, "names", None)
        documents = PackedDocuments(corpus)
        packed = [documents.of(m.ids, m.chunks) for m in minibatches]
        sources = [sources_of(corpus, m.ids) if names else None for m in minibatches]
        if minibatches:
            source.seek(minibatches[-1].position)
        shares = source.stats().corpora if minibatches else {}
        uneven = mean_of([m.unevenness() for m in minibatches]) if part[1] > 1 else {}
    if json:
        print_json(
            {
                "path": corpus.name,
                "seed": seed,
                "size": size,
                "steps": [
                    m.to_json()
                    | ({} if of is None else {"sources": [names[k] for k in of.tolist()]})
                    | ({} if held_rows is None else {"documents": held_rows.by_row()})
                    for m, of, held_rows in zip(minibatches, sources, packed, strict=True)
                ],
                "corpora": {name: share._asdict() for name, share in shares.items()},
                "cost": costs,
                "unevenness": uneven,
            }
            | ({} if fetching is None else {"fetching": fetching.to_json()})
        )
        return
    console = stdout()
    for minibatch, of, held_rows in zip(minibatches, sources, packed, strict=True):
        console.print(_line(minibatch, counted=unit != "samples"))
        if of is not None:
            counts = np.bincount(of, minlength=len(names)).tolist()
            console.print("  " + ", ".join(f"{n} of {name}" for name, n in zip(names, counts, strict=True)))
        console.print("  sequences " + _ids(minibatch.ids.tolist()))
        if held_rows is not None:
            console.print("  documents " + _ids(held_rows.ordinals.tolist()))
    if shares and minibatches[-1].position.sequence:
        rows = [[n, f"{s.sequences:,}", f"{s.delivered:.4%}", f"{s.declared:.4%}"] for n, s in shares.items()]
        print_table([f"before step {minibatches[-1].step}", "sequences", "delivered", "declared"], rows)
    print_unevenness(uneven)
    if costs is not None and costs["bytes"] >= _WORTH_SAYING_BYTES:
        console.print(say_cost(costs))
    if fetching is not None:
        print_plan(fetching)


def _compare_windows(
    path: str,
    page: Path,
    size: int,
    seed: int,
    label: str | None,
    *,
    stream: Any,
    schema: str,
    chunk_size: str,
    json: bool,
) -> None:
    if is_address(path):
        raise UsageError(f"expected a path of this machine with --html, got {path}")
    with contextlib.closing(open_path(path, stream, chunk_size, schema).corpus) as corpus:
        windows = window_page.choices(corpus, size, seed, label)
        page.write_text(window_page.html(corpus, windows, size), encoding="utf-8", errors="backslashreplace")
    document = {"page": str(page), "windows": [asdict(choice) for choice in windows]}
    print_result(document, json, lambda _: print(page))


def _line(m: PlannedMinibatch, counted: bool) -> str:
    where = f"sweep {m.position.sweep}, sequence {m.position.sequence}, {m.position.samples} samples before"
    share = f" of {m.global_samples}" if m.num_samples != m.global_samples else ""
    name = f"step {m.step}" if counted else f"+{m.step}"
    end = ", sweep end" if m.sweep_end else ""
    return f"{name} ({where}): {m.num_sequences} sequences, {m.num_samples}{share} samples{end}"


def _ids(ids: list[Any]) -> str:
    shown = " ".join(map(str, ids[:_SHOWN_IDS]))
    return shown + (f" ... ({len(ids)}; --json lists all)" if len(ids) > _SHOWN_IDS else "")
