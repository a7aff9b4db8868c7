"""Stages of sources and loaders: their times fit into the loop's, their counts equal what was delivered."""

import gc
import multiprocessing
import pickle
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.concurrency.conditions import process_conditions
from feedline.concurrency.hooks import hook_name
from feedline.concurrency.stages import FEEDS, STAGES, Durations, FeedStage, add_stages
from feedline.system import activity_of
from tests.linux import linux_only


class Items:
    """A dataset whose item 70 takes long."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        time.sleep(0.25 if i == 70 else 0.001)
        return np.full(10, i, np.float32)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / "words.ctf"
    rng = np.random.default_rng(0)
    fl.write_ctf(path, x=[rng.random((n, 4), np.float32) for n in rng.integers(1, 9, 3000)])
    return path


def fits(stages, began, ended):
    """Return whether the loop's parts take no longer than the loop."""
    return sum(stage.waiting for stage in stages.values()) + stages["step"].seconds <= 1.001 * (ended - began)


def test_a_source_says_what_each_stage_did(words):
    began = time.perf_counter()
    with fl.MinibatchSource(fl.open_corpus(words), max_sweeps=1, transforms=[lambda s: {"x": 2 * s["x"]}]) as source:
        count = sum(1 for _ in source.minibatches(64))
        stages, stats = source.stats().stages, source.stats()
    assert fits(stages, began, time.perf_counter())
    assert list(stages) == [name for name in STAGES if name in stages]
    assert {"plan", "decode", "gather", "transform", "step"} <= stages.keys()
    assert stages["transform"].units == 3000
    assert stages["gather"].units == count
    assert stages["decode"].bytes == stats.decoded_bytes >= 4 * 4 * stats.samples
    assert stages["decode"].slowest[0]["name"] == f"{words}, byte 0"
    assert stats.to_json()["stages"]["decode"] == stages["decode"].to_json()


def test_short_minibatches_are_measured_in_part(words):
    """What is estimated from one call in sixteen still fits into the loop, over all ways to make minibatches."""
    for read_ahead, shuffle in ((None, True), (0, True), (None, False)):
        began = time.perf_counter()
        with fl.MinibatchSource(fl.open_corpus(words), max_sweeps=3, shuffle=shuffle, read_ahead=read_ahead) as source:
            for _ in source.minibatches(4):
                pass
            stages = source.stats().stages
        took = time.perf_counter() - began
        assert 0 < sum(stage.waiting for stage in stages.values()) <= 1.001 * took


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_loader_names_its_slowest_item(workers, kind):
    began = time.perf_counter()
    with fl.DataLoader(Items(), batch_size=8, num_workers=workers, workers=kind, shuffle=True) as loader:
        for _ in loader:
            time.sleep(0.002)
        stages = loader.stats().stages
    assert fits(stages, began, time.perf_counter())
    reading = max((stages["fetch"], stages.get("decode", FeedStage())), key=lambda stage: stage.median_seconds)
    assert reading.units == 96
    assert reading.slowest[0]["name"].startswith(("item 70", "one of 8 items"))
    assert reading.slowest[0]["seconds"] > 0.2
    assert reading.median_seconds < 0.1
    assert stages["step"].units == 12
    assert stages["step"].median_seconds >= 0.0015
    if workers:
        assert stages["hand_over"].units == 12
        assert 0 <= stages["hand_over"].fullness <= 1
        assert stages["fetch"].threads == 2
        assert all(worker.pid for worker in loader.stats().workers)


def test_a_loader_of_a_corpus_has_the_stages_of_its_sources(words):
    with fl.DataLoader(fl.open_corpus(words), batch_size=50) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        stages = loader.stats().stages
    assert {"plan", "decode", "gather", "step"} <= stages.keys()
    assert stages["gather"].units == 120
    with fl.MinibatchSource(fl.open_corpus(words), max_sweeps=1) as source:
        list(source.minibatches(50))
        assert stages["decode"].bytes == 2 * source.stats().decoded_bytes


def test_copies_of_a_loader_go_on_from_its_stages(words):
    """The copy has no corpus in its figures, which would be pickled with it."""
    loader = fl.DataLoader(fl.open_corpus(words), batch_size=50)
    for _ in loader:
        pass
    before = loader.stats().stages
    copied = pickle.loads(pickle.dumps(loader.stats()))
    assert copied.stages == before
    assert copied.facts == loader.stats().facts


def test_fetched_bytes_are_in_the_stage_that_fetches(tmp_path):
    fl.convert(fl.ArrayDeserializer(x=np.random.default_rng(0).random((4000, 64))), tmp_path / "s", compression="zstd")
    with fl.MinibatchSource(fl.open_corpus(tmp_path / "s"), max_sweeps=1) as source:
        list(source.minibatches(100))
        stats = source.stats()
    assert stats.stages.get("fetch", FeedStage()).bytes in (0, stats.disk_bytes)  # 0 if it took no time at all
    assert stats.stages["decode"].bytes >= 4000 * 64 * 8


def test_feeds_are_announced_and_forgotten(words):
    seen = []
    stop = FEEDS.listen(seen.append)
    source = fl.MinibatchSource(fl.open_corpus(words))
    loader = fl.DataLoader([1, 2, 3])
    list(loader), list(loader)
    copied = pickle.loads(pickle.dumps(loader))
    assert [figures.facts["feed"] for figures in seen[-2:]] == ["MinibatchSource", "DataLoader"]
    list(copied)
    assert seen.pop() is copied.stats()
    assert [figures.facts["feed"] for figures in seen[-2:]] == ["MinibatchSource", "DataLoader"]
    stop()
    list(fl.DataLoader([4]))
    assert seen[-1] is loader.stats()
    own = {id(source.stats()), id(loader.stats())}
    assert own <= {id(figures) for figures in FEEDS}
    seen.clear()
    del source, loader
    assert not own & {id(figures) for figures in FEEDS}


def test_a_loader_of_a_corpus_has_the_facts_of_its_source(words):
    with fl.MinibatchSource(fl.open_corpus(words), shuffle=fl.Window(100)) as source:
        of_source = source.stats().facts
    with fl.DataLoader(fl.open_corpus(words), 4, shuffle=fl.Window(100)) as loader:
        of_loader = loader.stats().facts
    shared = of_source.keys() & of_loader.keys() - {"feed"}
    assert {"corpus", "format", "files", "stored_bytes", "compressed", "shuffle", "whole_shuffle"} <= shared
    assert {name: of_loader[name] for name in shared} == {name: of_source[name] for name in shared}


stages = st.builds(
    FeedStage,
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(0, 10**9),
    st.integers(0, 2**50),
    st.integers(1, 64),
    slowest=st.lists(st.fixed_dictionaries({"seconds": st.floats(0, 99), "name": st.text(max_size=3)}), max_size=3),
)


@given(st.dictionaries(st.sampled_from(STAGES), stages), st.dictionaries(st.sampled_from(STAGES), stages))
def test_sums_and_differences_of_stages_agree(first, second):
    total = add_stages(first, second)
    assert total.keys() == first.keys() | second.keys()
    for name, stage in total.items():
        left = stage.since(first.get(name, FeedStage()))
        right = second.get(name, FeedStage())
        assert (left.units, left.bytes) == (right.units, right.bytes)
        assert left.seconds == pytest.approx(right.seconds, abs=1e-6 * stage.seconds + 1e-9)
        assert len(stage.slowest) <= 3
        assert all(unit in right.slowest for unit in left.slowest)  # what was slow before is not listed again


@given(st.lists(st.floats(1e-8, 100), min_size=1, max_size=200))
def test_the_median_is_within_a_step_of_the_histogram(seconds):
    durations = Durations()
    for number, duration in enumerate(seconds):
        durations.add(duration, lambda number=number: f"unit {number}")
    lower = sorted(seconds)[(len(seconds) - 1) // 2]
    assert lower / 1.2 <= durations.median_s <= lower * 1.2
    assert [duration for duration, _ in durations.slowest] == sorted(seconds, reverse=True)[:3]
    assert seconds[int(durations.slowest[0][1].removeprefix("unit "))] == max(seconds)


def test_hooks_are_named():
    import sys

    assert hook_name() == ""
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        named = hook_name()
    finally:
        sys.setprofile(before)
    assert "lambda" in named or named == "tests"


@linux_only("what other processes do")
def test_processes_are_described_until_they_end():
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    with lock:
        process = context.Process(target=lock.acquire)
        process.start()
        while activity_of(process.pid) not in ("lock", "waiting"):
            time.sleep(0.01)
        assert process_conditions(process.pid).cpu_seconds >= 0
    process.join()
    assert process_conditions(process.pid) is None
    assert activity_of(process.pid) == ""


class Unpicklable:
    """A dataset that cannot be copied, with slow items at uneven keys."""

    def __init__(self):
        self.lock = threading.Lock()

    def __len__(self):
        return 8

    def __getitem__(self, key):
        time.sleep(0.002)
        return len(key) if isinstance(key, tuple) else key

    def __getitems__(self, keys):
        return [self[key] for key in keys]


def test_figures_of_a_dataset_do_not_copy_it():
    loader = fl.DataLoader(Unpicklable(), batch_size=2)
    list(loader)
    assert loader.stats().to_json()["stages"]["fetch"]["units"] == 8
    corpus = fl.ArrayDeserializer(x=np.zeros((200_000, 50)))
    corpus.lock = threading.Lock()
    source = fl.MinibatchSource(corpus)
    source.next_minibatch(5)
    assert source.stats().to_json()["minibatches"] == 1
    assert len(pickle.dumps(source.stats())) < 10_000


def test_slow_items_of_any_keys_are_delivered():
    """Names of slow items are made of the keys as they are."""
    batches = [[(1, 2), (3,)], [("a", 1), ("b",)]] * 3
    assert list(fl.DataLoader(Unpicklable(), batch_sampler=batches, collate_fn=list)) == [[2, 1]] * 6


def test_figures_that_were_asked_for_do_not_keep_the_data():
    loader = fl.DataLoader(Unpicklable(), batch_size=2)
    dataset, stats = weakref.ref(loader.dataset), loader.stats()
    assert stats.facts["dataset"] == "Unpicklable"
    del loader
    gc.collect()
    assert dataset() is None
    corpus = fl.ArrayDeserializer(x=np.zeros(9))
    source = fl.MinibatchSource(corpus)
    held, stats = weakref.ref(corpus), source.stats()
    assert stats.facts["sequences"] == 9
    del corpus, source
    gc.collect()
    assert held() is None
