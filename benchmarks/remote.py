"""How fast is data in an object store delivered, and how many of its bytes are fetched how often?

The store is a server on loopback, a process of its own, with 5 ms before each answer and 200 MB/s for all of them
together. Each turn is a fresh process with an empty cache, timed by the wall clock from the moment at which everything
is imported. Unit: MB of samples a second. Limit: the link, and obstore alone, 16 ranges of 8 MiB at a time. Peers:
MosaicML Streaming over the same MDS shards, through its loader with a worker per core, and LitData over chunks of its
own with the same samples of 20 KB, through its loader and its own thread. All shards are of 64 MiB. Measured:

- a first sweep in windows of 256 MiB: of tar shards, which have to be read once to be indexed, of MDS shards, and of a
  store that is not compressed, which would be mapped on a disk;
- a second sweep over Parquet with room for half of it, as a share of the data, vs caches that drop the least recently
  used chunk, over the same chunks in the same order; the least possible is 0.5;
- sweeps from a full cache vs the same files on this disk, in one process, CPU time of all threads;
- the bytes fetched until the first minibatch after a restore at 90 %, as a share of the windows in the plan;
  and requests a shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.servers.object_store import ObjectStoreProcess

import feedline as fl
from benchmarks import litdata, mds
from benchmarks.harness import Answer, Stage, Target, race, spread
from benchmarks.pictures import torchvision
from benchmarks.tar import BYTES, SIZE, WINDOW, shards
from feedline.feed.fetch_plan import Cluster, fetch_plan

LATENCY_S, LINK = 0.005, 200e6
MINIBATCH = 64
PART, AT_ONCE = 8 << 20, 16  # of obstore alone
PATIENCE_S = 120.0  # for a turn, with its imports
#: Peers by contender: their packages.
PEERS = {"MosaicML Streaming": "streaming", "LitData": "litdata"}
#: Formats that are swept: the stream with the samples, by format, whose lower case is the folder.
FIELDS = {"tar": "jpg", "MDS": "jpeg", "store": "jpeg"}
GROUP, GROUP_BYTES = 64, 1 << 20  # rows and bytes of a Parquet row group
READ_WINDOW = 32 << 20


def run(stage: Stage) -> list[Answer]:
    """Measure first sweeps, the cache, and the requests."""
    if importlib.util.find_spec("obstore") is None:
        return [Answer("data in an object store", "MB/s", 0, "obstore: not installed", note="pip install obstore")]
    root = stage.data / "bench-remote"
    bucket = root / "bench"
    count = stage.size(8, 2)
    members = (64 << 20) // (SIZE + 512) if not stage.quick else 200
    shards(bucket / "tar", count, members, SIZE)
    rng = np.random.default_rng(1)
    total = count * members
    mds.write(
        bucket / "mds",
        {"jpeg": "bytes", "label": "int"},
        (SIZE.to_bytes(4, "little") + rng.bytes(SIZE) + bytes(8) for _ in range(total)),
        None,
    )
    fl.convert(bucket / "mds", bucket / "store")
    litdata.write(
        bucket / "litdata", {"jpeg": "bytes", "label": "int"}, ((rng.bytes(SIZE), 0) for _ in range(total)), None
    )
    try:
        with ObjectStoreProcess(root, latency_s=LATENCY_S, bytes_per_second=LINK) as server:
            answers = first_sweeps(stage, server, count)
            answers += restored(stage, server, bucket / "mds")
            server.set(latency_s=0.0, bytes_per_second=None)
            answers += from_full_cache(stage, server, bucket)
            for name in ("tar", "mds", "store", "litdata"):
                shutil.rmtree(bucket / name)
            answers += second_sweep(stage, server, bucket / "parquet")
    finally:
        shutil.rmtree(root)
    return answers


# ---- first sweeps -------------------------------------------------------------------------------------------


def first_sweeps(stage: Stage, server: ObjectStoreProcess, count: int) -> list[Answer]:
    """Compare tar and MDS with the link, and with the peers."""
    names = [
        *FIELDS,
        "obstore alone",
        *(peer for peer, package in PEERS.items() if importlib.util.find_spec(package)),
    ]
    told: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for number in range(stage.rounds(2)):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if name in failed:
                continue
            with tempfile.TemporaryDirectory(dir=stage.data) as folder:
                try:
                    told[name].append(apart(name, server, folder))
                except RuntimeError as error:
                    failed[name] = str(error)
    answers = []
    for ours in FIELDS:
        rates = _rates(told[ours])
        shown = "tar of 20 KB members" if ours == "tar" else f"{ours} of the same samples"
        about = told[ours][0]
        seconds = {key: statistics.median(one[key] for one in told[ours]) for key in ("opening", "sweep", "cpu")}
        note = (
            f"{seconds['opening']:.2f} s to open, {seconds['sweep']:.2f} s for the sweep, {seconds['cpu']:.2f} s of "
            f"processor time for {about['samples'] / 1e6:.0f} MB; {about['GET'] / count:.1f} GET a shard, "
            f"{about['LIST']:.0f} LIST, {about['HEAD']:.0f} HEAD in all; fetched {about['fetched'] / 1e6:.0f} MB"
        )
        question = f"object store, first sweep, {shown}, in windows of 256 MiB"
        limits = {"the link": [LINK] * len(rates), "obstore alone": _rates(told["obstore alone"])}
        limits |= {peer: _rates(told[peer]) for peer in PEERS if peer in told and peer not in failed}
        for peer, theirs in limits.items():
            ratios = [a / b for a, b in zip(rates, theirs, strict=True)]
            bound = {"the link": 0.9, "obstore alone": None}.get(peer, 3)
            answers.append(
                Answer(
                    question=question,
                    unit="MB/s",
                    ours=statistics.median(rates) / 1e6,
                    peer=peer,
                    peer_value=statistics.median(theirs) / 1e6,
                    ratio=statistics.median(ratios),
                    target=None if bound is None else Target("ratio", ">=", bound),
                    spread=spread(rates),
                    note=note if peer == "the link" else _of_peer(told.get(peer, [])),
                    detail={"turns": told[ours], "theirs": told.get(peer, [])},
                )
            )
        for peer, package in PEERS.items():
            if peer not in told or peer in failed:
                why = failed.get(peer, f"{package} is not installed")
                answers.append(Answer(question, "MB/s", statistics.median(rates) / 1e6, f"{peer}: no figure", note=why))
        if ours == "tar":
            got = about["GET"] + about["HEAD"] + about["LIST"]
            named = about["HEAD"] + about["LIST"]
            answers.append(
                Answer(
                    "object store, requests for names and sizes, of a folder",
                    "requests",
                    named,
                    target=Target("ours", "<=", count),
                    note=f"{count} shards; with those for bytes {got:.0f}",
                )
            )
    return answers


def _rates(turns: Sequence[dict[str, float]]) -> list[float]:
    return [turn["samples"] / (turn["opening"] + turn["sweep"]) for turn in turns]


def _of_peer(turns: Sequence[dict[str, float]]) -> str:
    if not turns or "GET" not in turns[0]:
        return ""
    return f"theirs: {turns[0]['GET']:.0f} GET, {turns[0]['fetched'] / 1e6:.0f} MB fetched"


def apart(name: str, server: ObjectStoreProcess, folder: str) -> dict[str, float]:
    """Run a turn in a fresh process. Return its figures and the server's.

    Raises:
        RuntimeError: it failed.
    """
    environment = os.environ | {
        "XDG_CACHE_HOME": f"{folder}/cache",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "S3_ENDPOINT_URL": server.url,
        "AWS_ENDPOINT_URL": server.url,
    }
    command = [sys.executable, "-m", "benchmarks.remote", name, json.dumps(server.s3()), folder]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def line(beginning: str) -> str:
            assert process.stdout is not None
            for found in process.stdout:  # libraries print
                if found.startswith(beginning):
                    return found.removeprefix(beginning)
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["nothing"]
            limit.cancel()
            raise RuntimeError(f"{name} ended, or was ended after {PATIENCE_S:g} s; it said {last[0][:200]}")

        limit = threading.Timer(PATIENCE_S, process.kill)
        limit.start()
        line("ready")
        server.reset()
        process.stdin.write("go\n")
        process.stdin.flush()
        figures: dict[str, float] = json.loads(line("figures"))
        limit.cancel()
        process.kill()
    counters = server.counters()
    asked = {kind: counters.requests.get(kind, 0) for kind in ("GET", "HEAD", "LIST")}
    return figures | asked | {"fetched": counters.sent_bytes.get("GET", 0)}


def turn_of(name: str, options: dict[str, Any], folder: str) -> None:
    """Import, wait, sweep and report in the fresh process."""
    make = {
        "tar": lambda: feedline_of("tar", options, folder),
        "MDS": lambda: feedline_of("MDS", options, folder),
        "store": lambda: feedline_of("store", options, folder),
        "obstore alone": lambda: ranges(options),
        "MosaicML Streaming": lambda: mosaic(folder),
        "LitData": lambda: litdata_of(folder),
    }[name]()
    print("\nready", flush=True)
    sys.stdin.readline()
    began, processor_s = time.perf_counter(), time.process_time()
    sweep = make()
    opened = time.perf_counter()
    samples = sweep()
    ended = time.perf_counter()
    processor_s = time.process_time() - processor_s
    figures = {"opening": opened - began, "sweep": ended - opened, "samples": samples, "cpu": processor_s}
    print("\nfigures" + json.dumps(figures), flush=True)


#: What opens a corpus, and returns what delivers a sweep and counts the bytes of its samples.
Made = Callable[[], Callable[[], float]]


def feedline_of(kind: str, options: dict[str, Any], folder: str) -> Made:
    """Return feedline over a folder of the bucket, with a cache that holds everything."""
    import obstore.store  # noqa: F401  # imported before the clock starts, as the peers' libraries are

    def opened() -> Callable[[], float]:
        streams = {"jpg": BYTES} if kind == "tar" else {}
        corpus = fl.open_corpus(
            f"s3://bench/{kind.lower()}",
            streams=streams,
            remote=fl.Remote(cache=f"{folder}/c", storage_options=options),
        )
        return sweeping(fl.MinibatchSource(corpus, shuffle=WINDOW, seed=1, partition=(0, 1)), FIELDS[kind])

    return opened


def sweeping(source: fl.MinibatchSource, field: str) -> Callable[[], float]:
    """Return what delivers a sweep, and counts the bytes of a stream."""

    def sweep() -> float:
        return float(sum(one[field].nbytes for one in source.minibatches(MINIBATCH, until=fl.sweeps(1))))

    return sweep


def ranges(options: dict[str, Any]) -> Made:
    """Return obstore alone, over the objects of the tar shards."""
    import obstore
    import obstore.store

    async def fetched() -> float:
        store = obstore.store.S3Store("bench", **options)
        metas = [one async for batch in obstore.list(store, "tar") for one in batch]
        parts = [(one["path"], at, min(at + PART, one["size"])) for one in metas for at in range(0, one["size"], PART)]
        room = asyncio.Semaphore(AT_ONCE)

        async def get(path: str, begin: int, end: int) -> int:
            async with room:
                return len(await obstore.get_range_async(store, path, start=begin, end=end))

        return float(sum(await asyncio.gather(*(get(*part) for part in parts))))

    return lambda: lambda: asyncio.run(fetched())


def mosaic(folder: str) -> Made:
    """Return MosaicML Streaming over the MDS shards."""
    torchvision()  # it imports that
    import streaming  # type: ignore[import-not-found,unused-ignore]

    def opened() -> Callable[[], float]:
        dataset = streaming.StreamingDataset(
            remote="s3://bench/mds", local=f"{folder}/mds", shuffle=True, batch_size=MINIBATCH
        )
        loader = streaming.StreamingDataLoader(dataset, batch_size=MINIBATCH, num_workers=os.cpu_count() or 1)
        return lambda: float(sum(len(one) for batch in loader for one in batch["jpeg"]))

    return opened


def litdata_of(folder: str) -> Made:
    """Return LitData over its chunks."""
    torchvision()
    import litdata as lit  # type: ignore[import-not-found,unused-ignore]
    from litdata.streaming import downloader  # type: ignore[import-not-found,unused-ignore]

    # It has no option for servers without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}

    def opened() -> Callable[[], float]:
        dataset = lit.StreamingDataset(
            "s3://bench/litdata",
            cache_dir=f"{folder}/litdata",
            shuffle=True,
            drop_last=False,
            storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        )
        # Without workers, as its own thread fetches. With two, they and their reader waited for each other forever.
        loader = lit.StreamingDataLoader(dataset, batch_size=MINIBATCH, num_workers=0)
        return lambda: float(sum(len(one) for batch in loader for one in batch["jpeg"]))

    return opened


# ---- the cache ----------------------------------------------------------------------------------------------


def from_full_cache(stage: Stage, server: ObjectStoreProcess, bucket: Path) -> list[Answer]:
    """Race sweeps from a full cache against the same files."""
    answers = []
    for kind, field in FIELDS.items():
        with tempfile.TemporaryDirectory(dir=stage.data) as folder, contextlib.ExitStack() as stack:
            streams = {"jpg": BYTES} if kind == "tar" else {}
            local = stage.data / "bench-remote-local"
            shutil.copytree(bucket / kind.lower(), local)
            stack.callback(shutil.rmtree, local)
            opened = {
                "cache": fl.open_corpus(
                    f"s3://bench/{kind.lower()}",
                    streams=streams,
                    remote=fl.Remote(cache=f"{folder}/c", storage_options=server.s3()),
                ),
                "files": fl.open_corpus(local, streams=streams),
            }
            feeds = {
                name: stack.enter_context(fl.MinibatchSource(corpus, shuffle=WINDOW, seed=1, partition=(0, 1)))
                for name, corpus in opened.items()
            }
            ran = race({name: sweeping(feed, field) for name, feed in feeds.items()}, stage.rounds(5), "process", 2)
            server.reset()
            sweeping(feeds["cache"], field)()
            asked = server.counters().requests.get("GET", 0)
        ratios = [a / b for a, b in zip(ran.rates("cache", "wall"), ran.rates("files", "wall"), strict=True)]
        answers.append(
            Answer(
                question=f"object store, {kind}, from a full cache",
                unit="MB/s",
                ours=ran.rate("cache") / 1e6,
                peer="the same files",
                peer_value=ran.rate("files") / 1e6,
                ratio=ran.ratio("cache", "files"),
                target=Target("ratio", ">=", 0.95),
                spread=ran.spread("cache"),
                note=f"by CPU time; by the wall clock {statistics.median(ratios):.2f}; {asked} requests",
            )
        )
    return answers


def second_sweep(stage: Stage, server: ObjectStoreProcess, folder: Path) -> list[Answer]:
    """Count what sweeps fetch once the cache is full."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, groups = stage.size(4, 2), stage.size(128, 16)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(files):
        with pq.ParquetWriter(
            folder / f"{number}.parquet", pa.schema([("x", pa.binary())]), compression="none"
        ) as file:
            for _ in range(groups):
                rows = [rng.bytes(GROUP_BYTES // GROUP) for _ in range(GROUP)]
                file.write_table(pa.table({"x": rows}), row_group_size=GROUP)
    total = sum(path.stat().st_size for path in folder.iterdir())
    shares, order = [], []
    with tempfile.TemporaryDirectory(dir=stage.data) as cache:
        if stage.quick:
            from feedline.feed.remote import object_cache as caches

            caches.MIN_BYTES = 1 << 20
        corpus = fl.open_corpus(
            "s3://bench/parquet", remote=fl.Remote(cache=cache, cache_bytes=total // 2, storage_options=server.s3())
        )
        window = fl.Window(bytes=total // 32)
        with fl.MinibatchSource(
            corpus, shuffle=window, seed=1, max_sweeps=4, partition=(0, 1), read_ahead=total // 32
        ) as source:
            for _ in range(4):
                server.reset()
                for minibatch in source.minibatches(GROUP, until=fl.sweeps(1)):
                    order += (minibatch.ids // GROUP).tolist()
                shares.append(server.counters().sent_bytes["GET"] / total)
    uses = [chunk for k in range(4) for chunk in dict.fromkeys(order[k * len(order) // 4 : (k + 1) * len(order) // 4])]
    lru = least_recently(uses, files * groups // 2, files * groups)
    return [
        Answer(
            question="object store, Parquet, a cache of half of it: fetched in later sweeps",
            unit="of the data",
            ours=statistics.mean(shares[1:]),
            peer="dropping the least recently used",
            peer_value=lru,
            ratio=lru / statistics.mean(shares[1:]),
            target=Target("ours", "<=", 0.52),
            note=f"{files * groups} row groups of 1 MiB; first sweep {shares[0]:.2f}, then "
            + ", ".join(f"{share:.3f}" for share in shares[1:])
            + "; the least possible is 0.5, and pages at the ends of row groups are fetched with both",
            detail={"shares": shares},
        )
    ]


def least_recently(uses: Sequence[int], room: int, total: int) -> float:
    """Return the share of uses after the first sweep that a cache of ``room`` chunks lacks, if it drops by recency."""
    kept: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for number, chunk in enumerate(uses):
        if chunk in kept:
            kept.move_to_end(chunk)
            continue
        missed += number >= total
        kept[chunk] = None
        if len(kept) > room:
            kept.popitem(last=False)
    return missed / (len(uses) - total)


def restored(stage: Stage, server: ObjectStoreProcess, folder: Path) -> list[Answer]:
    """Count the bytes fetched until the first minibatch after a restore at 90 %, and time it."""
    size = stage.size(READ_WINDOW, 1 << 20)
    window = fl.Window(bytes=size)
    order = {"shuffle": window, "seed": 1}

    def source(cache: str, **more: Any) -> tuple[Any, fl.MinibatchSource]:
        corpus = fl.open_corpus("s3://bench/mds", remote=fl.Remote(cache=cache, storage_options=server.s3()))
        return corpus, fl.MinibatchSource(corpus, shuffle=window, seed=1, partition=(0, 1), max_sweeps=1, **more)

    with fl.MinibatchSource(fl.open_corpus(folder), shuffle=window, seed=1, partition=(0, 1), max_sweeps=1) as local:
        count = sum(info.sequences for info in fl.open_corpus(folder).chunks())
        done = 0
        while done < 0.9 * count:
            minibatch = local.next_minibatch(MINIBATCH)
            assert minibatch is not None
            done += minibatch.num_sequences
        state = local.state_dict()
    found = []
    for ahead in ({"read_ahead": 0}, {}):
        fetched, seconds = [], []
        for _ in range(stage.rounds(3)):
            with tempfile.TemporaryDirectory(dir=stage.data) as cache:
                server.reset()
                began = time.perf_counter()
                corpus, feed = source(cache, **ahead)
                with feed:
                    feed.load_state_dict(state)
                    opened = server.counters().sent_bytes["GET"]
                    opening_s = time.perf_counter() - began
                    kept = corpus.placeholders.cache.kept_pages()
                    cluster = Cluster(cache_bytes=corpus.placeholders.cache.budget_bytes)
                    plan = fetch_plan(
                        corpus, cluster, size=MINIBATCH, kept=kept, start=feed.position, max_sweeps=1, **order
                    )
                    began = time.perf_counter()
                    feed.next_minibatch(MINIBATCH)
                    seconds.append(opening_s + time.perf_counter() - began)
                    planned = plan.asked.first_window.bytes
                    fetched.append((server.counters().sent_bytes["GET"] - opened) / planned)
                corpus.close()
        found.append((statistics.median(fetched), statistics.median(seconds), opened))
    (alone, seconds_alone, opened), (beside, seconds_beside, _) = found
    return [
        Answer(
            question="object store, MDS, first minibatch after a restore at 90 %",
            unit="of the plan",
            ours=alone,
            target=Target("ours", "<=", 1.0),
            note=f"windows of {size >> 20} MiB, {planned / 1e6:.1f} MB by the plan, without reading ahead; "
            f"{seconds_alone * 1e3:.0f} ms with opening, where these take {planned / LINK * 1e3:.0f} on the link; "
            f"reading ahead {beside:.2f} and {seconds_beside * 1e3:.0f} ms; {opened / 1e6:.1f} MB to open it and load "
            "the state",
        )
    ]


if __name__ == "__main__":
    turn_of(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
