"""``feedline bench``: measure the speed of a feed, where the time goes, and this machine's copy speed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from feedline.cli import bench_loader
from feedline.cli.arguments import DEFAULT_CHUNK_SIZE, ChunkSize, SchemaOption, Streams, WindowOption, parse_window
from feedline.cli.bench_log import BenchLog
from feedline.cli.console import (
    Debug,
    Json,
    UsageError,
    print_facts,
    print_result,
    print_table,
    progress,
    show_bytes,
    show_count,
    stdout,
)
from feedline.cli.corpus import Opened, open_path
from feedline.cli.memory import ResidentMemory, memory
from feedline.feed.files.disk import evict, resident, survey
from feedline.feed.protocol import Deserializer, RandomAccess, can
from feedline.feed.remote.address_text import is_address
from feedline.feed.source import DEFAULT_MINIBATCH_SIZE, MinibatchSource

_COPY_BYTES, _COPY_SECONDS = 64 << 20, 0.5
PARTS = {
    "waiting": "waiting for chunks",
    "mapping": "mapping and checking chunks",
    "planning": "planning (order, packing)",
    "gathering": "gathering (the copy)",
    "python": "Python and the rest",
}
_LOOK_EVERY_S = 0.05  # seconds between updates of the memory peak and the progress bar


def bench(
    path: Annotated[str | None, typer.Argument(help="File, folder, quoted pattern or address, in any format.")] = None,
    loader: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FACTORY",
            help="Instead of a path: a function that returns a DataLoader, or (loader, function of a batch).",
        ),
    ] = None,
    size: Annotated[int, typer.Option(min=1, help="Minibatch size in samples.")] = DEFAULT_MINIBATCH_SIZE,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to feed.")] = 10.0,
    window: WindowOption = None,
    threads: Annotated[int, typer.Option(min=1, help="Number of chunks read at a time.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order.")] = 0,
    cold: Annotated[
        bool, typer.Option("--cold", help="Evict the data from the page cache first, and feed at most one sweep.")
    ] = False,
    stream: Streams = None,
    schema: SchemaOption = "strict",
    chunk_size: ChunkSize = DEFAULT_CHUNK_SIZE,
    log: Annotated[
        Path | None, typer.Option(help="Write a log in JSON lines for `feedline report FILE`; overwrites.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Feed as fast as possible and show where the time goes, compared with this machine's copy speed."""
    if (path is None) == (loader is None):
        raise UsageError(f"expected either a path or --loader, got {'neither' if path is None else 'both'}")
    if loader is not None:
        if log is not None:
            raise UsageError("expected a path with --log, got --loader: only a source's minibatches can be logged")
        if cold:
            raise UsageError("expected a path with --cold, got --loader: the files it reads are unknown")
        result = {"loader": loader, **bench_loader.measure(*bench_loader.make_loader(loader), seconds)}
        print_result(result, json, bench_loader.show)
        return
    assert path is not None
    if cold and is_address(path):
        raise UsageError("expected a path with --cold, got an address: set XDG_CACHE_HOME to an empty folder instead")
    before = memory()
    opened = open_path(path, stream, chunk_size, schema)
    with contextlib.closing(opened.corpus):
        shuffle = parse_window(window, opened.corpus)
        began_cold = _evict(opened.corpus) if cold else None
        with MinibatchSource(
            opened.corpus, seed=seed, shuffle=shuffle, threads=threads, partition=(0, 1), max_sweeps=1 if cold else None
        ) as source:
            result = measure(opened, source, size, seconds, before, log)
        if cold:
            result["cold"] = _compared_with_disk(opened.corpus, began_cold, result)
    result["threads"] = threads
    print_result(result, json, _print)


def _evict(corpus: Deserializer) -> float | None:
    """Evict the corpus from the page cache. Return the share that is still resident, None if it is unknown."""
    files = corpus.paths()
    if not files:
        raise ValueError(f"expected data in files with --cold, got {corpus.name}, which is in memory")
    evict(files)
    return resident(files)


def _compared_with_disk(corpus: Deserializer, began: float | None, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the disk's speed, and the feed's share of it. None if the file system does not support direct I/O."""
    infos = corpus.chunks()
    piece = sum(info.bytes for info in infos) // max(1, sum(info.sequences for info in infos))
    disk = survey(corpus.paths(), piece)
    assert disk is not None
    sequential, random = disk.sequential, disk.random
    return {
        "resident_before": began,
        "sequential_bytes_per_second": sequential,
        "random_sequences_per_second": random,
        "share_of_sequential": None if sequential is None else figures["stored_bytes_per_second"] / sequential,
        "share_of_random": None if random is None else figures["sequences"] / figures["seconds"] / random,
    }


def copy_speed() -> float:
    """Return the bytes per second that one thread copies between two arrays larger than the caches, at best."""
    a, b = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    np.copyto(b, a)  # allocate the pages
    times: list[float] = []
    while len(times) < 5 or sum(times) < _COPY_SECONDS:
        began = time.perf_counter()
        np.copyto(b, a)
        times.append(time.perf_counter() - began)
    return _COPY_BYTES / min(times)


class Stopwatch:
    """Adds up the seconds spent in some methods of an object, by replacing them."""

    def __init__(self, part: Any, *methods: str) -> None:
        self.seconds = 0.0
        for method in methods:
            setattr(part, method, self._timed(getattr(part, method)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def measure(
    opened: Opened, source: MinibatchSource, size: int, seconds: float, before: ResidentMemory, log: Path | None
) -> dict[str, Any]:
    """Feed for ``seconds``, and return figures in JSON types, times in seconds, speeds in units per second."""
    if log is None:
        return _measure(opened, source, size, seconds, before, None)
    about = {"path": opened.corpus.name, "format": opened.format, "size": size}
    with contextlib.closing(BenchLog(log, source, seconds, about)) as lines:
        result = _measure(opened, source, size, seconds, before, lines)
        figures = {name: value for name, value in result.items() if name not in ("time", *about)}
        lines.end({PARTS[name]: spent for name, spent in result["time"].items() if spent}, figures)
    return result


def _measure(
    opened: Opened, source: MinibatchSource, size: int, seconds: float, before: ResidentMemory, log: BenchLog | None
) -> dict[str, Any]:
    # Everything between the order and the arrays passes through these, copies made ahead included.
    planned = Stopwatch(source._ahead, "take", "refill")
    copied = Stopwatch(source._chunks, "gather", "gather_parts", "finish", "unstage")
    began, cpu = time.perf_counter(), time.process_time()
    minibatch = source.next_minibatch(size)
    first_seconds = time.perf_counter() - began
    peak, looked, delivered = memory(), 0.0, 0
    with progress("feeding", "s") as show:
        while minibatch:
            delivered += sum(value.nbytes for value in minibatch.values())
            if log is not None:
                log.count(minibatch)
            now = time.perf_counter() - began
            if now >= seconds:
                break
            if now - looked > _LOOK_EVERY_S:
                looked, peak = now, peak.peak(memory())
                show(round(now), round(seconds))
            minibatch = source.next_minibatch(size)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    if log is not None:
        log.rest()
    stats = source.stats()
    # A mapped corpus is "read" (mapped, checked) in the caller, any other in threads that the caller may wait for.
    mapped = stats.read_seconds if can(opened.corpus, RandomAccess) else 0.0
    parts = {"waiting": stats.wait_seconds, "mapping": mapped, "planning": planned.seconds, "gathering": copied.seconds}
    parts["python"] = max(0.0, wall - sum(parts.values()))
    stored = sum(info.bytes for info in opened.corpus.chunks()) * stats.samples / max(1, source.num_samples)
    copy = copy_speed()
    return {
        "path": opened.corpus.name,
        "format": opened.format,
        "size": size,
        "seed": source.state_dict()["seed"],
        "shuffle": source.state_dict()["shuffle"],
        "open_seconds": opened.seconds,
        "indexed": opened.indexed,
        "first_minibatch_seconds": first_seconds,
        "seconds": wall,
        "cpu_seconds": cpu,
        "minibatches": stats.minibatches,
        "sequences": stats.sequences,
        "samples": stats.samples,
        "sweeps": stats.samples / max(1, source.num_samples),
        "samples_per_second": stats.samples / wall,
        "microseconds_per_minibatch": 1e6 * wall / stats.minibatches,
        "delivered_bytes": delivered,
        "delivered_bytes_per_second": delivered / wall,
        "stored_bytes_per_second": stored / wall,
        "copy_bytes_per_second": copy,
        "share_of_copy": delivered / wall / copy,
        "time": parts,
        "read_thread_seconds": stats.read_seconds,
        "chunks_read": stats.chunks_read,
        "held_bytes": stats.held_bytes,
        "peak_held_bytes": stats.peak_bytes,
        "private_bytes_growth": peak.growth(before),
        "private_bytes_peak": peak.private,
        "file_backed_bytes_peak": peak.file_backed,
        "cores": os.cpu_count(),
    }


def _print_cold(cold: dict[str, Any]) -> None:
    console = stdout()
    console.print("\nfrom the disk", style="bold")
    if cold["resident_before"] is not None:
        console.print(f"  {100 * cold['resident_before']:.0f} % of the data was in the page cache before")
    if cold["sequential_bytes_per_second"] is None:
        console.print("  there is no direct I/O on this file system to compare with")
        return
    console.print(
        f"  bare reads give {show_bytes(cold['sequential_bytes_per_second'])}/s in order, of which this feed took "
        f"{cold['share_of_sequential']:.2f}"
    )
    console.print(
        f"  and {show_count(cold['random_sequences_per_second'])} sequences/s at random places, of which it took "
        f"{cold['share_of_random']:.2f}"
    )


def _shuffling(shuffle: Any) -> str:
    if isinstance(shuffle, dict):
        ((unit, count),) = shuffle.items()
        return f"shuffled in windows of {count} {unit}"
    return "shuffled as a whole" if shuffle else "in corpus order"


def _print(stats: dict[str, Any]) -> None:
    how = "indexed" if stats["indexed"] else "opened"
    print_facts(
        f"{stats['path']} ({stats['format']}), {_shuffling(stats['shuffle'])}",
        {
            how: f"in {stats['open_seconds']:.3g} s; first minibatch after {stats['first_minibatch_seconds']:.3g} s",
            "fed": f"{show_count(stats['minibatches'])} minibatches of at most {stats['size']} samples in "
            f"{stats['seconds']:.3g} s, {stats['sweeps']:.3g} sweeps",
            "speed": f"{show_count(stats['samples_per_second'])} samples/s, "
            f"{show_bytes(stats['delivered_bytes_per_second'])}/s delivered, "
            f"{show_bytes(stats['stored_bytes_per_second'])}/s of stored data, "
            f"{stats['microseconds_per_minibatch']:.3g} us per minibatch",
            "copy": f"this machine copies {show_bytes(stats['copy_bytes_per_second'])}/s on one core; the feed "
            f"delivers {stats['share_of_copy']:.2f} of that",
            "memory": f"{show_bytes(stats['peak_held_bytes'])} of chunks held at peak; private memory grew by "
            f"{show_bytes(stats['private_bytes_growth'])}, file-backed {show_bytes(stats['file_backed_bytes_peak'])}",
            "cpu": f"{stats['cpu_seconds']:.3g} s of {stats['cores']} cores; reading and decoding took "
            f"{stats['read_thread_seconds']:.3g} s on {stats['threads']} threads, {stats['chunks_read']} chunks",
        },
    )
    if "cold" in stats:
        _print_cold(stats["cold"])
    stdout().print("\nwhere the caller's time goes", style="bold")
    rows = []
    for key, name in PARTS.items():
        spent = stats["time"][key]
        if spent or key != "mapping":
            per = 1e6 * spent / stats["minibatches"]
            rows.append([name, f"{spent:.3f} s", f"{100 * spent / stats['seconds']:.1f} %", f"{per:.2f} us"])
    print_table(["", "seconds", "share", "per minibatch"], rows)
