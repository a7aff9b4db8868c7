"""Readers of remote data over a bounded cache, killed at random moments and between any two lines of its code.

The files of the cache are compared with the objects by code of this module: what `feedline.feed.remote` believes of
them does not count. Requests are read off the server's log.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import io
import json
import random
import signal
import tarfile
import urllib.parse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import feedline as fl
from feedline import _native
from tests.servers.object_store import ObjectStoreProcess
from tests.torture import data
from tests.torture.case import Case
from tests.torture.restarts import commit, committed
from tests.torture.scenario import Scenario
from tests.torture.scenarios.killed_feeds import delivered
from tests.torture.victims import Instant, Victim, run

KINDS = ("parquet", "tar", "jsonl", "store", "arrow")
PAGE = 16 << 10
LEAST = 3 << 20
"""The smallest cache: two regions of a megabyte that an index is made of, and what is on its way."""

FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "status", "status": 503, "times": 2},
    {"kind": "status", "status": 503, "retry_after": 1, "times": 1},
    {"kind": "status", "status": 500, "times": 3},
    {"kind": "reset", "times": 3},
    {"kind": "drop", "times": 2},
    {"kind": "short", "at": 3000, "times": 3},
    {"kind": "narrow", "at": 20_000, "times": 3},
    {"kind": "slow", "seconds": 0.3, "times": 3},
    {"kind": "stall", "at": 100, "seconds": 0.3, "times": 3},
)
STREAMS = {"text": fl.Stream(dtype="bytes"), "y": fl.Stream((), "int64")}


class World(NamedTuple):
    """The shared setting of all starts of a case.

    Attributes:
        kind: of the corpus.
        what: its address, or its objects' addresses.
        options: of the server.
        cache: folder of the cache.
        budget: bytes that it may keep.
        order: settings of the source.
    """

    kind: str
    what: str | list[str]
    options: dict[str, Any]
    cache: Path
    budget: int
    order: dict[str, Any]


class KilledFetchers(Scenario):
    """Complete pages of a cache are right, within the budget, and not fetched again. The feed is complete."""

    name = "killed-fetchers"
    asks = "is a cache of remote data right after kills, and is nothing whole fetched twice?"
    seconds = 240.0
    kinds = KINDS

    def missing(self) -> str | None:
        return None if importlib.util.find_spec("obstore") else "the package obstore"

    def run(self, case: Case) -> None:
        rng = case.rng
        kind = self.kinds[case.number % len(self.kinds)]
        what, objects = self.write(case, kind)
        total = sum(map(len, objects.values()))
        order: dict[str, Any] = {"seed": rng.randrange(1 << 64), "max_sweeps": 2}
        order["shuffle"] = rng.choice([True, False, fl.Window(chunks=rng.randint(1, 5)), fl.Window(bytes=1 << 20)])
        budget = rng.choice([LEAST, LEAST, total // 2, total * 9 // 10, 2 * total, 2 * total, 2 * total])
        if kind in ("store", "arrow") and order["shuffle"] is True and budget < 2 * total:
            order["shuffle"] = fl.Window(bytes=1 << 20)  # all data that is shuffled as a whole has to be there
        with ObjectStoreProcess(
            case.folder / "objects", latency_s=rng.choice([0, 0.002]), bytes_per_second=rng.choice([20e6, 60e6, None])
        ) as server:
            world = World(kind, what, server.s3(), case.folder / "cache", max(budget, LEAST), order)
            readers = [case.folder / f"record-{k}" for k in range(rng.choice([1, 1, 2]))]
            self._killed(case, world, server, objects, readers)
            server.heal()
            server.set(bytes_per_second=None, latency_s=0.0)
            server.reset()
            before = Kept(world.cache, objects)
            for path in readers:
                run(case, f"going on with {kind}", deliver, world, path, rng.random(), None, seconds=100)
            fetched_twice(case, "going on", server, before, world)
        kept = Kept(world.cache, objects)
        kept.check(case, world, "at the end")
        if left := [path.name for path in world.cache.glob("holders/*")]:
            case.fail("left over", f"holders of a cache that nobody uses: {left[:4]}")
        expected, state = locally(case.folder / "local", world)
        for path in readers:
            case.compare(f"{kind} with {order}, {world.budget} of {total} bytes", expected, delivered(path))
            if committed(path)[0] != state:
                case.fail("silent", f"{kind} with {order}: the last state is {committed(path)[0]}, locally {state}")

    def write(self, case: Case, kind: str) -> tuple[str | list[str], dict[str, bytes]]:
        """Write objects for the server, and the same files locally. Return the paths, and the objects by address."""
        rng = np.random.default_rng(case.rng.randrange(1 << 32))
        if kind == "store":
            return "s3://bucket", store_of(case.folder, rng, case.rng.randint(200, 400))
        numbers = range(case.rng.randint(2, 3))
        return f"s3://bucket/*.{kind}", files_of(case, kind, rng, [f"bucket/{number}.{kind}" for number in numbers])

    def _killed(
        self, case: Case, world: World, server: ObjectStoreProcess, objects: dict[str, bytes], readers: list[Path]
    ) -> None:
        rng = case.rng
        for _ in range(rng.randint(10, 20)):
            server.heal()
            for fault in rng.sample(FAULTS, rng.choice([0, 0, 1, 2])):
                server.fail(**fault, request="GET", key="bucket/*", skip=rng.randint(0, 5))
            server.reset()
            before = Kept(world.cache, objects)
            victims = []
            for path in readers:
                instant = draw(rng)
                victims.append(Victim(case, deliver, world, path, rng.random(), instant, instant=instant))
            ends = [victim.wait() for victim in victims]
            told = " and ".join(victim.told() for victim in victims)
            for ended in ends:
                case.tally("kills", int(ended.hit))
                if ended.error is not None and ended.kind != "KeyboardInterrupt":
                    case.fail("lost" if ended.promised else "foreign", f"{world.kind}, {told}: {ended.error}")
            kept = Kept(world.cache, objects)
            kept.check(case, world, told)
            fetched_twice(case, told, server, before, world)
            if not any(ended.hit for ended in ends):
                break


def draw(rng: random.Random) -> Instant:
    """A random moment, mostly early, or a line of the cache's code."""
    signum = rng.choice([signal.SIGKILL] * 5 + [signal.SIGINT])
    if rng.random() < 0.5:
        return Instant(signum, operation=int(10 ** rng.uniform(1.5, 4.3)), lines_of="/feedline/feed/remote/")
    return Instant(signum, 0.02 + rng.random() * rng.choice([0.1, 0.4, 0.4]))


# ---- objects --------------------------------------------------------------------------------------------


def files_of(case: Case, kind: str, rng: np.random.Generator, names: list[str]) -> dict[str, bytes]:
    """Write objects of these names for the server, and the same files to be read locally. Return them by address."""
    make = {"parquet": groups, "tar": archive, "jsonl": lines, "arrow": batches}[kind]
    made = {}
    (case.folder / "local").mkdir()
    for number, name in enumerate(names):
        made[f"s3://{name}"] = make(rng, case.rng.randint(80, 140))
        place = case.folder / "objects" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        for path in (place, case.folder / "local" / f"{number}.{kind}"):
            path.write_bytes(made[f"s3://{name}"])
    return made


def store_of(folder: Path, rng: np.random.Generator, rows: int) -> dict[str, bytes]:
    """Write a store that is not compressed, so that it is mapped on a disk, in both places, return its files."""
    texts = [rng.bytes(int(n)) for n in rng.integers(0, 40_000, rows)]
    (folder / "objects" / "bucket").mkdir(parents=True)
    fl.convert(
        fl.ArrayDeserializer(text=texts, y=np.arange(rows)), folder / "local", chunk_bytes=200_000, part_bytes=2 << 20
    )
    made = {}
    for file in sorted((folder / "local").iterdir()):
        made[f"s3://bucket/{file.name}"] = file.read_bytes()
        (folder / "objects" / "bucket" / file.name).write_bytes(file.read_bytes())
    return made


def batches(rng: np.random.Generator, rows: int) -> bytes:
    """An Arrow stream of batches of a few pages each, which are mapped on a disk."""
    import pyarrow as pa

    file = io.BytesIO()
    table = pa.table({"text": [rng.bytes(int(n)) for n in rng.integers(0, 40_000, rows)], "y": range(rows)})
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    return file.getvalue()


def groups(rng: np.random.Generator, rows: int) -> bytes:
    """A Parquet file of row groups of a few pages each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    table = pa.table({"text": [rng.bytes(int(n)) for n in rng.integers(0, 40_000, rows)], "y": range(rows)})
    pq.write_table(table, file, row_group_size=5, compression=None, use_dictionary=False)
    return file.getvalue()


def archive(rng: np.random.Generator, samples: int) -> bytes:
    """A tar archive of samples with random bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for i, size in enumerate(rng.integers(0, 40_000, samples).tolist()):
            member = tarfile.TarInfo(f"{i:05}.bin")
            member.size = size
            tar.addfile(member, io.BytesIO(rng.bytes(size)))
    return file.getvalue()


def lines(rng: np.random.Generator, rows: int) -> bytes:
    """JSON Lines with long texts."""
    texts = [rng.bytes(int(n)).hex() for n in rng.integers(0, 20_000, rows)]
    return "".join(json.dumps({"text": text, "y": i}) + "\n" for i, text in enumerate(texts)).encode()


# ---- victims -------------------------------------------------------------------------------------


def opened(kind: str, what: Any, remote: fl.Remote | None = None) -> Any:
    """Open a corpus, cut into small chunks where its format has none."""
    streams = {} if kind == "tar" else STREAMS
    return fl.open_corpus(what, streams=streams, remote=remote)


def small_chunks() -> None:
    """Allow small caches, and let text and archives have chunks of few pages, before anything is opened."""
    from feedline.feed.remote import object_cache

    object_cache.MIN_CACHE_BYTES = LEAST
    for kind in (fl.TarDeserializer, fl.JSONLinesDeserializer):
        kind.__init__.__kwdefaults__["chunk_size"] = 150_000  # type: ignore[misc]


def deliver(world: World, path: Path, luck: float, instant: Instant | None) -> None:
    """The loop of a start: from the position in ``path`` to the end. Every minibatch is committed with its state."""
    small_chunks()
    rng = random.Random(luck)
    corpus = opened(
        world.kind,
        world.what,
        fl.Remote(world.cache, world.budget, storage_options=world.options, deadline_s=20.0),
    )
    within_budget(world)
    source = fl.MinibatchSource(corpus, **world.order, **data.speed(rng))
    state, length = committed(path)
    if state is not None:
        source.load_state_dict(state)
    with open(path, "ab") as file:
        file.truncate(length)
        while minibatch := source.next_minibatch(rng.choice([1, 7, 40, 100])):
            for item in items(minibatch):
                file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            commit(path, source.state_dict(), file.tell())
            within_budget(world)
    source.close()
    corpus.close()


def within_budget(world: World) -> None:
    """Raise unless the cache is within the budget, from its opening on."""
    kept = sum(int(np.count_nonzero(np.fromfile(table, np.uint32))) for table in world.cache.glob("objects/*/pages"))
    if kept * PAGE > world.budget:
        raise AssertionError(f"{kept} pages are kept, more than {world.budget} bytes")


def items(minibatch: Any) -> list[data.Item]:
    """Return the sequences of a minibatch."""
    columns = [minibatch[name].sequences() for name in minibatch.schema]
    digests = [hashlib.blake2b(repr([plain(one) for one in row]).encode()) for row in zip(*columns, strict=True)]
    return [(number, digest.hexdigest()[:12]) for number, digest in zip(minibatch.ids.tolist(), digests, strict=True)]


def plain(value: Any) -> Any:
    """Return a sequence as Python's own values."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def locally(folder: Path, world: World) -> tuple[list[data.Item], Any]:
    """Return what files deliver, and the last state."""
    small_chunks()
    source = fl.MinibatchSource(opened(world.kind, folder), **world.order)
    found = [item for minibatch in source.minibatches(50) for item in items(minibatch)]
    # As a committed state is, which went through JSON.
    return found, json.loads(json.dumps(source.state_dict()))


# ---- remains ---------------------------------------------------------------------------------------


class Kept:
    """The complete pages of a cache, read without the cache's code.

    Args:
        cache: its folder.
        objects: the objects by their addresses.

    Attributes:
        pages: numbers of the pages by address.
        wrong: descriptions of faults.
    """

    def __init__(self, cache: Path, objects: dict[str, bytes]) -> None:
        self.pages: dict[str, set[int]] = collections.defaultdict(set)
        self.wrong: list[str] = []
        for place in cache.glob("objects/*"):
            if not (place / "pages").exists():
                continue  # killed before anything was fetched
            sums = np.fromfile(place / "pages", np.uint32)
            if not sums.any():
                continue
            try:
                url = json.loads((place / "object.json").read_text())["url"]
            except (OSError, ValueError) as error:
                self.wrong.append(f"object.json of {place.name}: {error}")
                continue
            content, kept = objects[url], (place / "data").read_bytes()
            if len(kept) != len(content):
                self.wrong.append(f"{url}: {len(kept)} bytes, rather than {len(content)}")
            for page in np.flatnonzero(sums).tolist():
                begin = page * PAGE
                if kept[begin : begin + PAGE] != content[begin : begin + PAGE]:
                    self.wrong.append(f"{url}: page {page} has other bytes than the object")
                elif (_native.crc32c(content[begin : begin + PAGE]) or 1) != sums[page]:
                    self.wrong.append(f"{url}: page {page} has another checksum than its bytes")
                self.pages[url].add(page)

    @property
    def count(self) -> int:
        """Number of pages."""
        return sum(map(len, self.pages.values()))

    def check(self, case: Case, world: World, told: str) -> None:
        """Count the faults."""
        case.tally("pages compared", self.count)
        if self.wrong:
            case.fail("silent", f"{world.kind}, {told}: {len(self.wrong)} times, such as {self.wrong[:3]}")
        if self.count * PAGE > world.budget:
            case.fail("left over", f"{world.kind}, {told}: {self.count} pages are kept, more than {world.budget} bytes")


def fetched_twice(case: Case, told: str, server: ObjectStoreProcess, before: Kept, world: World) -> None:
    """Count requests for pages that were whole before, unless pages had to be dropped for others."""
    asked: dict[str, set[int]] = collections.defaultdict(set)
    for entry in server.log():
        # A range of one byte asks a store that refused how long it wants to be left alone.
        if entry.kind == "GET" and entry.span is not None and entry.span[1] - entry.span[0] > 1:
            begin, end = entry.span
            asked["s3://" + urllib.parse.unquote(entry.name)] |= set(range(begin // PAGE, -(-end // PAGE)))
    case.tally("pages requested", sum(map(len, asked.values())))
    # Two processes, or a chunk and the read-ahead, that want the same bytes at the same time both reserve them.
    if (before.count + 2 * sum(map(len, asked.values()))) * PAGE > world.budget:
        return
    case.tally("times that nothing had to be dropped")
    again = {url: sorted(pages & before.pages[url]) for url, pages in asked.items() if pages & before.pages[url]}
    if again:
        case.fail("twice", f"{world.kind}, {told}: whole pages were fetched again: {str(again)[:300]}")
