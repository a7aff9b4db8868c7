"""Several threads at one reader: each minibatch once, or an error that names both threads."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time

import numpy as np
import pytest

import feedline as fl
from feedline.feed.protocol import ChunkInfo
from feedline.feed.timeline.cntk import CntkOrder
from feedline.feed.timeline.elements import ChunkTable
from feedline.feed.timeline.feedline import FeedlineOrder
from tests.feed.loader.datasets import Plain, Resetting
from tests.forked import Forked
from tests.inside import sweeps_kept

THREADS = 8


@pytest.fixture(autouse=True)
def eager():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def from_all(read):
    """Return the results and the errors of all threads. ``read()`` returns one result, or None at the end."""
    got, told = [], []
    start = threading.Barrier(THREADS)

    def work():
        start.wait()
        while True:
            try:
                one = read()
            except RuntimeError as error:
                told.append(str(error))
                time.sleep(1e-4)  # or the thread inside would hardly get the GIL
                continue
            if one is None:
                return
            got.append(one)

    threads = [threading.Thread(target=work, name=f"reader-{i}") for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got, told


def names_both(text, what):
    """The call that came, and the one that was under way, unless its thread has ended since."""
    other = text.count("thread 'reader-") == 2 or "while a thread that has ended" in text
    return "got a call in thread 'reader-" in text and other and what in text


def test_a_source():
    """A slow transform, so that calls overlap."""

    def slow(sequence):
        for _ in range(100):
            pass
        return sequence

    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(900)), seed=1, max_sweeps=1, transforms=[slow])
    got, told = from_all(lambda: source.next_minibatch(3) or None)
    assert sorted(i for minibatch in got for i in minibatch.ids.tolist()) == list(range(900))
    assert told
    assert all(names_both(text, "this source") for text in told)


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": Plain(900)},
        {"dataset": np.arange(900)},
        {"dataset": Plain(900), "num_workers": 2, "workers": "thread"},
        {"dataset": Plain(900), "num_workers": 1},
        {"dataset": Resetting(900)},
        {"dataset": fl.ArrayDeserializer(x=np.arange(900)), "collate_fn": lambda rows: [int(r["x"]) for r in rows]},
    ],
    ids=["items", "columns", "threads", "processes", "iterable", "corpus"],
)
def test_an_iterator_of_a_loader(options):
    with fl.DataLoader(batch_size=3, seed=1, **options) as loader:
        iterator = iter(loader)
        got, told = from_all(lambda: next(iterator, None))
        assert sorted(int(i) for batch in got for i in batch) == list(range(900))
        assert all(names_both(text, "this iterator") for text in told)


def test_the_loop_s_thread_is_named():
    inside, go = threading.Event(), threading.Event()

    def wait(sequence):
        inside.set()
        go.wait()
        return sequence

    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(9)), transforms=[wait])
    reader = threading.Thread(target=lambda: source.next_minibatch(3), name="the loop")
    reader.start()
    inside.wait()
    before = source.position, source.state_dict()  # anybody may look
    refused = [
        lambda: source.next_minibatch(3),
        lambda: next(source.minibatches(3)),
        lambda: source.seek(samples=3),
        lambda: source.load_state_dict(before[1]),
        source.close,
    ]
    for call in refused:
        with pytest.raises(RuntimeError, match=r"in thread 'MainThread'.* while thread 'the loop'"):
            call()
    assert (source.position, source.state_dict()) == before
    go.set()
    reader.join()
    assert source.position.sequence == 3
    assert source.next_minibatch(3).position.sequence == 3
    source.close()


def test_a_call_from_within_is_refused():
    """A transform that calls the source again would get the minibatch that it is called for."""
    told = []

    def again(sequence):
        with pytest.raises(RuntimeError, match="from within") as caught:
            source.next_minibatch(1)
        told.append(caught.value)
        return sequence

    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(4)), transforms=[again], max_sweeps=1)
    assert [m.num_sequences for m in source.minibatches(2)] == [2, 2]
    assert len(told) == 4


def test_threads_that_take_turns():
    """Threads may take turns."""
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(60)), seed=1, max_sweeps=1)
    loader = fl.DataLoader(range(60), batch_size=6, seed=1)
    iterator, lock = iter(loader), threading.Lock()

    def read():
        with lock:
            minibatch, batch = source.next_minibatch(6), next(iterator, None)
            return (minibatch.ids.tolist(), batch.tolist()) if minibatch else None

    got, told = from_all(read)
    assert told == []
    for column in zip(*got, strict=True):
        assert sorted(itertools.chain(*column)) == list(range(60))


def test_threads_that_begin_at_once_are_given_a_sweep_each():
    loader = fl.DataLoader(Plain(20), batch_size=20, shuffle=True, seed=1)
    wanted = [next(iter(loader)).tolist() for _ in range(4 * THREADS)]
    again = fl.DataLoader(Plain(20), batch_size=20, shuffle=True, seed=1)
    left = iter(range(4 * THREADS))
    got, told = from_all(lambda: None if next(left, None) is None else next(iter(again)).tolist())
    assert told == []
    assert sorted(got) == sorted(wanted)


@pytest.mark.parametrize("order", [FeedlineOrder, CntkOrder])
def test_an_order_shared_by_threads_that_are_in_different_sweeps(order):
    """Another thread looks at a sweep while this one compares the sweeps that are kept."""

    others = itertools.count(7)

    class Interrupted(int):
        def __rsub__(self, other):
            thread = threading.Thread(target=shared.window_at, args=(next(others), 0))
            thread.start()
            thread.join()
            return other - int(self)

    def opened():
        return order(ChunkTable([ChunkInfo(4, 4, 4)] * 3), 1, True, None)

    shared = opened()
    shared.window_at(0, 0)
    shared.window_at(1, 0)
    both = shared.window_at(Interrupted(2), 0), opened().window_at(2, 0)
    got, wanted = [[places.tolist() for places in plan.locate(0, 4)] for plan in both]
    assert got == wanted
    assert sweeps_kept(shared) == 2


def test_what_others_look_at_is_a_place():
    """Positions and states read at any moment are after some minibatch."""

    def open_source():
        return fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(400)), seed=1, max_sweeps=1)

    states = [open_source().state_dict()]
    with open_source() as source:
        states += [source.state_dict() for _ in source.minibatches(4)]
        states.append(source.state_dict())
    allowed = {json.dumps(state) for state in states}
    seen, done = [], threading.Event()
    source = open_source()

    def look():
        while not done.is_set():
            seen.append(json.dumps(source.state_dict()))

    looking = threading.Thread(target=look)
    looking.start()
    for _ in source.minibatches(4):
        pass
    done.set()
    looking.join()
    assert set(seen) <= allowed


def test_a_child_forked_at_rest_reads_its_copy():
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(9)), shuffle=False)
    source.next_minibatch(3)
    assert Forked(lambda: source.next_minibatch(3).ids.tolist() == [3, 4, 5]).status() == 0
    assert source.next_minibatch(3).ids.tolist() == [3, 4, 5]
