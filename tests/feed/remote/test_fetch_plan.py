"""The plan equals the fetched bytes, by the order and the cache."""

from __future__ import annotations

import asyncio
import functools
import io
import random
import time

import numpy as np
import pytest

import feedline as fl
from feedline.feed.fetch_plan import Cluster, PlannedTraffic, fetch_plan
from feedline.feed.reading.ranges import RangeFetcher
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote import requests
from feedline.feed.remote.requests import PART_BYTES
from tests.inside import chunks_decided, reserved_bytes
from tests.servers.object_store import ObjectStore

MIB = 1 << 20
FILES = 3


@functools.cache
def rows(seed: int, groups: int, group_bytes: int) -> bytes:
    """A Parquet file of groups of rows of random bytes, of other sizes each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, file = np.random.default_rng(seed), io.BytesIO()
    schema = pa.schema({"x": pa.binary()})
    with pq.ParquetWriter(file, schema, compression=None, use_dictionary=False) as writer:
        for size in rng.integers(group_bytes // 2, 2 * group_bytes, groups).tolist():
            writer.write_table(pa.table({"x": [rng.bytes(size // 4) for _ in range(4)]}, schema))
    return file.getvalue()


@pytest.fixture(scope="module")
def bucket():
    with ObjectStore() as server:
        for seed in range(FILES):
            server.put(f"b/small/{seed}.parquet", rows(seed, 20, 150_000))
        server.put("b/large.parquet", rows(9, 3, 2 * PART_BYTES))
        yield server


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Allow caches of a megabyte, and no hedged requests, which a busy machine would cause."""
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", MIB)
    monkeypatch.setattr(requests, "_MIN_SAMPLES", 1 << 30)


def total(bucket) -> int:
    return sum(len(rows(seed, 20, 150_000)) for seed in range(FILES))


@pytest.fixture
def opened(bucket, tmp_path):
    corpora = []

    def open_it(name: str, cache_bytes: int, folder: str = "cache"):
        bucket.reset()
        corpora.append(
            fl.open_corpus(
                f"s3://b/{name}",
                remote=fl.Remote(cache=tmp_path / folder, cache_bytes=cache_bytes, storage_options=bucket.s3()),
            )
        )
        return corpora[-1]

    yield open_it
    for corpus in corpora:
        corpus.close()


def sent(bucket):
    counters = bucket.counters()
    return counters.requests["GET"], counters.sent_bytes["GET"]


OPTIONS = {"seed": 3, "shuffle": fl.Window(chunks=4)}


def planned(corpus, cache_bytes, **more):
    corpus.digest()
    given = {"size": 7, "max_sweeps": 4, "kept": corpus.placeholders.cache.kept_pages(), **OPTIONS, **more}
    return fetch_plan(corpus, Cluster(cache_bytes=cache_bytes), **given)


@pytest.fixture
def delayed(monkeypatch):
    """Let answers come late, and threads take their time, now and then, as on a busy machine."""
    rng, fetched, reserve, drop = random.Random(5), caches.fetch_range, caches.Cache.reserve, caches.Cache.drop

    async def late(*given, **named):
        await asyncio.sleep(rng.choice([0, 0, 0.002, 0.01, 0.03]))
        return await fetched(*given, **named)

    def slowly(do):
        def done(*given):
            time.sleep(rng.choice([0, 0, 0.001, 0.01]))
            result = do(*given)
            time.sleep(rng.choice([0, 0, 0.001, 0.01]))
            return result

        return done

    monkeypatch.setattr(caches, "fetch_range", late)
    monkeypatch.setattr(caches.Cache, "reserve", slowly(reserve))
    monkeypatch.setattr(caches.Cache, "drop", slowly(drop))


@pytest.mark.parametrize(
    ("share", "arcs"), [(0.12, None), (0.2, 4), (0.35, None), (0.5, 4), (0.7, None), (0.9, 4), (2, None)]
)
def test_what_is_planned_is_what_is_fetched(bucket, opened, share, arcs):
    check_planned(bucket, opened, share, arcs)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.7, 2])
@pytest.mark.parametrize("arcs", [None, 4])
def test_however_late_answers_come(bucket, opened, delayed, share, arcs):
    check_planned(bucket, opened, share, arcs)


@pytest.mark.parametrize("share", [0.5, 2])
def test_the_same_ranges_are_asked_for_however_late_threads_are(bucket, opened, monkeypatch, share):
    """A page that two chunks share comes with the first of them in the order, not with the first that finds room."""

    def asked(folder):
        corpus = opened("small/*.parquet", int(share * total(bucket)), folder)
        with fl.MinibatchSource(corpus, max_sweeps=2, **OPTIONS) as source:
            source.state_dict()
            bucket.reset()
            for _ in source.minibatches(7):
                pass
        return sorted((entry.name, entry.span) for entry in bucket.log() if entry.kind == "GET")

    ranges, reserve, rng = asked("at once"), caches.Cache.reserve, random.Random(5)

    def late(*given):
        time.sleep(rng.choice([0, 0.03]))
        return reserve(*given)

    monkeypatch.setattr(caches.Cache, "reserve", late)
    assert asked("late") == ranges


def test_nothing_stays_reserved_by_what_is_no_longer_wanted(bucket, opened, delayed):
    corpus = opened("small/*.parquet", MIB)
    cache = corpus.placeholders.cache
    with fl.MinibatchSource(corpus, max_sweeps=4, read_ahead=MIB, **OPTIONS) as source:
        for at in np.random.default_rng(1).integers(source.num_sequences, size=20).tolist():
            source.seek(fl.Position(0, at, at))
            source.next_minibatch(7)
            time.sleep(0.003)
    for _ in range(500):
        if not reserved_bytes(cache):
            break
        time.sleep(0.01)
    assert reserved_bytes(cache) == 0


def check_planned(bucket, opened, share, arcs):
    budget = max(MIB, int(share * total(bucket)))
    order = "feedline" if arcs is None else fl.Arcs(arcs)
    plan = planned(opened("small/*.parquet", budget, "plan"), budget, order=order)
    corpus = opened("small/*.parquet", budget)
    with fl.MinibatchSource(corpus, max_sweeps=4, read_ahead=MIB, order=order, **OPTIONS) as source:
        source.state_dict()  # which has a digest of the data, and belongs to opening
        bucket.reset()
        for _ in source.minibatches(7):
            pass
        fetched = source.stats().fetched_bytes
    assert len(plan.asked.sweeps) == 4
    assert fetched == sum(one.bytes for one in plan.asked.sweeps)
    assert sent(bucket) == (sum(one.requests for one in plan.asked.sweeps), fetched)
    assert plan.asked.peak_bytes <= budget


def test_what_is_kept_is_decided_in_the_order_of_need(opened, monkeypatch):
    """Not in the order in which threads happen to take chunks, or decisions would differ from run to run."""
    decided = chunks_decided(monkeypatch)
    fetcher = RangeFetcher(opened("small/*.parquet", MIB), 60, room=1)
    for chunk in range(6):
        fetcher.want(chunk, chunk)
    assert decided == [0]
    for chunk in (3, 1, 5, 0, 2, 4):
        assert fetcher.take(chunk) is not None
    assert decided == list(range(6))
    fetcher.close()


@pytest.mark.parametrize("share", [0.2, 0.5, 2])
def test_after_a_restore_one_window_is_fetched(bucket, opened, share):
    budget = int(share * total(bucket))
    corpus = opened("small/*.parquet", budget)
    with fl.MinibatchSource(corpus, max_sweeps=2, read_ahead=0, **OPTIONS) as source:
        position = fl.Position(0, int(0.9 * source.num_sequences), int(0.9 * source.num_samples))
        source.state_dict()
        plan = planned(corpus, budget, start=position, max_sweeps=2)
        bucket.reset()
        source.seek(position)
        source.next_minibatch(7)
        assert PlannedTraffic(*sent(bucket)) == plan.asked.first_window
        for _ in source.minibatches(7):
            pass
    assert sent(bucket)[1] == sum(one.bytes for one in plan.asked.sweeps)


def test_large_chunks_are_fetched_in_parts(bucket, opened):
    budget = 40 * MIB
    plan = planned(opened("large.parquet", budget, "plan"), budget, max_sweeps=2)
    corpus = opened("large.parquet", budget)
    with fl.MinibatchSource(corpus, max_sweeps=2, read_ahead=0, **OPTIONS) as source:
        source.state_dict()
        bucket.reset()
        for _ in source.minibatches(7):
            pass
    assert sum(one.bytes for one in plan.asked.sweeps) == sent(bucket)[1]
    assert sum(one.requests for one in plan.asked.sweeps) == sent(bucket)[0] > 9
