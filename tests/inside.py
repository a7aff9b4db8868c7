"""Private parts of the product that tests use, each in one place.

Tests use public names. A few need a private part, to force a path that little data would not take, to plant a fault
in a running object, or to wait for a private event. Each such part has one function here, which gives the reason. When
a private part moves, this file changes and no test does. Tests use the public names of the returned objects.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import pytest
    import torch

    import feedline as fl
    from feedline import _native
    from feedline.collective.heartbeat import Heartbeat
    from feedline.feed.reading.copy_ahead import CopyAhead
    from feedline.feed.reading.copy_together import CopyTogether
    from feedline.feed.timeline import Timeline
    from feedline.feed.workers.pool import Pool
    from feedline.kvstore.parameter_server.connection import ServerConnection

# ---- sources --------------------------------------------------------------------------------------------------


def reader_of(source: fl.MinibatchSource) -> Any:
    """Return the reader of a source. Its `forced` and `backend` make it fetch everything, cached pages included."""
    return source._reader


def wait_for_groups() -> None:
    """Have followers of this process wait a minute for the leader of their group, as a busy machine may stop it for
    seconds. Tests count minibatches that came from it."""
    from feedline.feed.sharing import group

    group.PATIENCE_S = 60.0


def copy_ahead_of(source: fl.MinibatchSource) -> CopyAhead:
    """Return the object that copies minibatches of at least `threshold` ahead. `used` counts them."""
    return source._ahead


def copies_waiting(source: fl.MinibatchSource) -> list[Any]:
    """Return the copies of the minibatches planned ahead: no one can see from outside how many wait, or are done."""
    return [planned.begun for planned in copy_ahead_of(source)._waiting]


def copy_together_of(source: fl.MinibatchSource) -> CopyTogether | None:
    """Return the object that copies small minibatches together, None without one. Tests read `used` and `cursor`."""
    return source._copy_together


def never_together(source: fl.MinibatchSource) -> None:
    """Have each minibatch made by itself: results are the same, so that no setting asks for it."""
    source._copy_together = None


def interrupt_taking(source: fl.MinibatchSource, iterator: Any) -> None:
    """Have minibatches copied together pass through ``iterator(those left)``, which raises where a signal would."""
    together = copy_together_of(source)
    together._queued = iterator(together._queued)


def next_finished(source: fl.MinibatchSource, size: int, finish: Any) -> fl.Minibatch:
    """Return the next minibatch as a loader takes it: ``finish`` is called before it counts as delivered."""
    return source._next(size, None, finish)


def timeline_of(source: fl.MinibatchSource) -> Timeline:
    """Return the order of a source: its windows, which oracles are compared with, are not told by a plan."""
    return source._timeline


def sweeps_kept(order: Timeline) -> int:
    """Return how many sweeps an order keeps the layout of, which only their memory shows."""
    return len(order._sweeps._kept)


def lay_out(source: fl.MinibatchSource, step: int) -> None:
    """Lay out ``step`` sequences at a time, so that small corpora have ends of segments, too."""
    source._axis.step = step


# ---- fetching -------------------------------------------------------------------------------------------------


def map_chunks(source: fl.MinibatchSource, count: int | None = None) -> None:
    """Map the first chunks, None: all of them: faults are planted in files that are known, before anything is read."""
    chunks = len(source.corpus.chunks()) if count is None else count
    reader_of(source)._slots_of(np.arange(chunks))


def disk_of(source: fl.MinibatchSource) -> _native.Fetcher:
    """Return the fetcher of mapped files: reads that fail are planted there, and it knows its memory."""
    return reader_of(source)._disk()


def fetcher_memory(source: fl.MinibatchSource) -> int:
    """Return the bytes that a fetcher holds: of the memory of a process, no other part is as exact."""
    reader = reader_of(source)
    fetcher = getattr(reader, "ranges", reader)._fetcher
    return 0 if fetcher is None else fetcher.memory


def look_at_once(source: fl.MinibatchSource) -> None:
    """Have the next minibatch check whether the page cache holds the data, whenever that was checked before."""
    reader_of(source)._look_at_s = 0.0


def room_to_fetch(source: fl.MinibatchSource, room: int) -> None:
    """Allow a number of bytes of ranges in flight, as little data would never fill the usual room."""
    reader_of(source).ranges._room = room


def blocks_fetched(patch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return a list to which all readers of mapped files add ``("begin", blocks)`` and ``("take", block)``.

    The order of reads is not visible from outside, where only the time they take depends on it.
    """
    from feedline.feed.reading.fetching_reader import FetchingReader

    begin, slot = FetchingReader._fetch_group, FetchingReader._slot_of
    calls: list[tuple[str, Any]] = []

    def beginning(reader: FetchingReader, units: list[int], nbytes: int) -> None:
        calls.append(("begin", tuple(units)))
        begin(reader, units, nbytes)

    def taking(reader: FetchingReader, unit: int) -> int:
        calls.append(("take", unit))
        return slot(reader, unit)

    patch.setattr(FetchingReader, "_fetch_group", beginning)
    patch.setattr(FetchingReader, "_slot_of", taking)
    return calls


def lookups_in_views(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which readers add the entries of a plan whose slots they look up: a cost, not a result."""
    from feedline.feed.reading.fetching_reader import FetchingReader

    looked, locate = [], FetchingReader._locate

    def counted(reader: FetchingReader, entries: Any, index: Any) -> Any:
        looked.append(entries)
        return locate(reader, entries, index)

    patch.setattr(FetchingReader, "_locate", counted)
    return looked


def fetch_mapped_files(
    patch: pytest.MonkeyPatch,
    backend: str = "any",
    forced: bool = True,
    fail: tuple[str, int, int, int] | None = None,
) -> None:
    """Make new readers fetch everything. ``fail``: (name of a file, begin, end, errno) of failing reads.

    For loaders, which make their readers themselves, and for faults that must be there before the first read.
    """
    from feedline.feed.reading.fetching_reader import FetchingReader

    init, know = FetchingReader.__init__, FetchingReader._register_file

    def made(reader: FetchingReader, *arguments: Any, **options: Any) -> None:
        init(reader, *arguments, **options)
        reader.backend, reader.forced = backend, forced

    def known(reader: FetchingReader, file: Any) -> None:
        files = reader._files
        known_before = file.address in files
        know(reader, file)
        if fail is not None and not known_before and os.path.basename(file.path) == fail[0]:
            reader._disk().fail(files[file.address][1], *fail[1:])

    patch.setattr(FetchingReader, "__init__", made)
    patch.setattr(FetchingReader, "_register_file", known)


def chunks_decided(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which fetchers of ranges add each chunk whose keeping they decide on: threads hide the order."""
    from feedline.feed.reading.ranges import RangeFetcher

    decided, decide = [], RangeFetcher._decide

    def noted(fetcher: RangeFetcher, job: Any, cache: Any) -> Any:
        decided.append(job.chunk)
        return decide(fetcher, job, cache)

    patch.setattr(RangeFetcher, "_decide", noted)
    return decided


# ---- chunks read ahead ----------------------------------------------------------------------------------------


def chunks_held(source: fl.MinibatchSource) -> list[Any]:
    """Return the chunks in memory or on their way, each with its `job` and its `slot`, -1 until it is in use.

    Only a test waits for threads that read ahead of need.
    """
    return list(reader_of(source)._entries.values())


def reading_locks(source: fl.MinibatchSource, whose: str) -> list[Any]:
    """Return the locks that a reading thread may hold at a fork: of ``"jobs"`` in flight, or of the ``"reader"``."""
    held = [reader_of(source)] if whose == "reader" else [entry.job for entry in chunks_held(source) if entry.slot < 0]
    return [each._lock for each in held]


# ---- loaders and their workers ---------------------------------------------------------------------------------


def pool_of(loader: fl.DataLoader) -> Pool:
    """Return the pool that a loader started last, which it shows to nobody."""
    return loader._crew._newest()


def executor_of(iterator: Any) -> Any:
    """Return the executor of an iterator, as the batches are the same with each."""
    return iterator._executor


def shared_of(pool: Pool) -> Any:
    """Return the shared state of a pool's threads. Tests hold its `lock`, or wait until nothing is under way."""
    return pool.backend


def has_backlog(pool: Pool) -> bool:
    """Return whether units wait because the queue to the workers is full."""
    return bool(pool.backend._backlog)


def abandoned_units(pool: Pool) -> list[int]:
    """Return the tickets that finalisers gave up, which the next call cancels."""
    return list(pool._orphans)


def end_as_collected(pool: Pool) -> None:
    """End a pool as its finaliser does, at a moment that the garbage collector would not choose."""
    pool._end()


def listens(pool: Pool, there: Callable[[], bool]) -> bool:
    """Return whether a pool goes on at once when ``there`` reports a result, a moment that no test hits."""
    return pool._listen(0.0, there)


def is_listened_to(pool: Pool) -> bool:
    """Return whether a thread waits for the workers, on behalf of all."""
    return pool._leader is not None


def members_of(pool: Pool) -> list[Any]:
    """Return a pool's worker processes, each with the unit that is `running`."""
    return pool.backend._members


def segment_sizes(pool: Pool) -> list[int]:
    """Return the sizes of the segments of shared memory that a pool has mapped."""
    return [segment.mapping.size for worker in members_of(pool) for segment in worker._segments.values()]


def segments_in_use(pool: Pool) -> int:
    """Return how many segments are not free for the next result."""
    return sum(flag != 0 for worker in members_of(pool) for flag in worker._control.flags)


def segments_of(arena: Any) -> list[Any]:
    """Return the segments that the current unit has written to."""
    return arena._unit


def result_memory(value: Any) -> tuple[int, list[int]]:
    """Encode a result in a worker, and return the address of its first array, and the bytes used of each segment."""
    from feedline.feed.workers import message

    arena = message._arena
    pieces, *_ = message.Encoder(arena).encode(value)
    segments = segments_of(arena)
    return segments[-1].mapping.address + pieces[0][1], [segment.used for segment in segments]


def private_ray() -> Any:
    """Return the Ray that this process has started for itself, None if none: it may be joined, or be found dead."""
    from feedline.interop import ray_session

    return ray_session._private


# ---- formats --------------------------------------------------------------------------------------------------


def files_of(corpus: fl.Deserializer) -> list[Any]:
    """Return the opened files of a corpus, which know where its parts begin: damage is planted there."""
    return corpus._files


def index_builds(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with each index of a text file that is built, instead of read from its file."""
    from feedline.feed.formats.indexed import file_index

    calls, build = [], file_index._build
    patch.setattr(file_index, "_build", lambda *a, **k: calls.append(a[1]) or build(*a, **k))
    return calls


def kept_bytes(join: fl.Join) -> int:
    """Return the bytes of secondary chunks that a join keeps."""
    return join._kept.used


def trust_the_size(corpus: fl.StoreDeserializer, part: int) -> None:
    """Have the size of a part not compared before it is read, as if it had been cut right after that."""
    corpus._map(corpus._manifest.parts[part]).file.check = lambda: None


def open_corpora() -> int:
    """Return how many corpora keep the thread of requests alive: its end is seen only when there is none."""
    from feedline.feed.remote import requests

    return requests._keepers


def reserved_bytes(cache: Any) -> int:
    """Return the bytes of a cache that are reserved for objects in transfer."""
    return cache._holder.own.reserved


# ---- pictures and networks ------------------------------------------------------------------------------------


def work_of(begun: Any) -> Any:
    """Return the work of a transform that was begun, to see that nothing keeps it, or to cancel it."""
    return begun._work


def work_threads(begun: Any) -> list[threading.Thread]:
    """Return the threads of a transform that was begun, to see that they end."""
    threads: list[threading.Thread] = work_of(begun).jobs.threads
    return threads


def fed(network: Any, node: Any) -> list[Any]:
    """Return a list that receives the network's reads of an input from now on, as results do not show its form."""
    seen: list[Any] = []
    plan = network.steps
    slot = next(i for i, input_node, _ in network._feeds if input_node is node)
    for k, (i, below, run, done) in enumerate(plan):
        if slot in below:

            def watched(batch: Any, *values: Any, below: Any = below, run: Any = run) -> Any:
                seen.append(values[below.index(slot)])
                return run(batch, *values)

            plan[k] = (i, below, watched, done)
    return seen


# ---- ranks ----------------------------------------------------------------------------------------------------


def resting_pulse(store: Any, rank: int, count: int, host: int | None) -> Heartbeat:
    """Return a heartbeat whose thread does not run: the test makes each beat with `beat`, so that no time matters."""
    from unittest import mock

    from feedline.collective import heartbeat

    with mock.patch.object(heartbeat, "begin"):
        return heartbeat.Heartbeat(store, rank, count, host, None)


def beat(heartbeat: Heartbeat) -> None:
    """Do the work of a heartbeat's thread between two beats, and read the others' beats."""
    for silence in heartbeat._silences.values():
        silence.add(heartbeat.interval_s)
    heartbeat._read_beats(heartbeat._store)


def notice_beats(notice: Callable[[int], object]) -> None:
    """Have heartbeats of this process call ``notice`` with the number of their beats, as long as it lives.

    For the process of a rank: while it waits for others nothing else of it runs.
    """
    from feedline.collective.heartbeat import Heartbeat

    look = Heartbeat._read_beats

    def looks(heartbeat: Heartbeat, store: Any) -> None:
        look(heartbeat, store)
        notice(heartbeat.reads)

    Heartbeat._read_beats = looks


# ---- stores of weights ----------------------------------------------------------------------------------------


def table_of(store: Any) -> Any:
    """Return the table of a store or a join, as pulled weights, or chunks, show only a part of it."""
    return store._table


def updater_of(store: Any) -> Any:
    """Return the updater of a store of one process: its numbers and states."""
    return table_of(store).updater


def entries_of(store: Any) -> list[Any]:
    """Return the entries of a store of one process by key, to see that memory is used again."""
    return list(table_of(store).entries.values())


def before_next_send(store: Any, what: Callable[[], object]) -> None:
    """Have ``what`` run before the store sends next: so others wait for this rank in the middle of a call."""
    send = store._send

    def late(given: Any) -> None:
        store._send = send
        what()
        send(given)

    store._send = late


def store_of_trainer(trainer: Any) -> Any:
    """Return the store that a Trainer of Gluon has made, None if none, which MXNet's interface does not show."""
    return trainer._store


def exchanges_of_trainer(trainer: Any) -> int:
    """Return how many exchanges a Trainer of Gluon has begun with other ranks: none before it has a store."""
    store = store_of_trainer(trainer)
    return 0 if store is None else store._store.ranks.heartbeat.round


# ---- stores of servers ----------------------------------------------------------------------------------------


def links_of(store: Any) -> list[ServerConnection]:
    """Return the connections of a store to its servers, each of which may be asked for its process."""
    return store._links


def forget_a_push(link: ServerConnection) -> None:
    """Have a connection send its last push again, as if no answer to it had come."""
    link._sent -= 1


def membership_of(store: Any) -> Any:
    """Return the membership of a store of several workers: the `coordinator` to kill, and the `folder` to see go."""
    return store._membership


def fall_silent(store: Any) -> None:
    """Send no more heartbeats, so that others take the worker for killed."""
    membership_of(store)._closed.set()


def disconnect(store: Any) -> None:
    """Close the connection of a store and nothing else: it has been given up as dead."""
    store._undo.close()


def held_back(store: Any, key: Any) -> torch.Tensor:
    """Return the residual of a key's compressed pushes, which a later push sends."""
    import torch

    return torch.cat([store._encoder._channels[key, part.server].residual for part in store._entries[key].parts])


def be_patient(store: Any, seconds: float) -> None:
    """Change how long a store waits at barriers: short for one of them, long for the others."""
    store._timeout_s = seconds


def supervisor_of(cluster: Any) -> int:
    """Return the process that supervises the Ray of an `AsyncCluster`: its descendants are all other processes."""
    return cluster._ray.supervisor


# ---- training -------------------------------------------------------------------------------------------------


def gradients_of(strategy: Any) -> Any:
    """Return what exchanges the gradients of a strategy: its `announced` and `sums` are on their way between ranks."""
    return strategy._gradients


def hold_back_as(strategy: Any, rank: int, count: int, state: Any, sums: Any) -> None:
    """Give ``sums`` the residual that a rank of ``count`` would have, without starting that many ranks."""
    strategy._ranks = SimpleNamespace(rank=rank, count=count)
    strategy.take_advice(state)
    strategy._restore_residuals(sums)


def write_metrics_often(patch: pytest.MonkeyPatch) -> None:
    """Have files of metrics replaced every few milliseconds, not seconds."""
    from feedline.probes import metrics_file

    patch.setattr(metrics_file, "_WRITE_S", 0.005)
