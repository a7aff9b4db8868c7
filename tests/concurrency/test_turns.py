"""Loaders that read at once, in several threads or nested, draw the same numbers as each alone.

All share the generators of the process, so a defect shows as other numbers, changed generators, or a wait without end.
"""

from __future__ import annotations

import functools
import gc
import random
import signal
import sys
import threading
import weakref

import numpy as np
import pytest

import feedline as fl
from feedline.concurrency import turns as turns_of
from feedline.concurrency.turns import turns
from feedline.feed.loader import sample_seeds as seeding
from tests.effort import stride
from tests.forked import Forked
from tests.laws.items import content
from tests.laws.test_interrupts import Interrupt, moments
from tests.warm import FEW, run

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.timeout(120)

HERE, THREADS, PROCESS = {}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 1}


def states():
    return random.getstate(), str(np.random.get_state(legacy=False)), torch.get_rng_state().tolist()


@pytest.fixture
def quick_switches():
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Items:
    """Item ``i`` is ``i`` and a draw from ``first`` on. With ``inner``, also the items of a loader of that many."""

    def __init__(self, n, first=0, inner=None, **how):
        self.n, self.first, self.inner, self.how = n, first, inner, how

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        drawn = self.draws(index)
        if self.inner is not None:
            drawn += self.read(fl.DataLoader(Items(self.inner, index % 3), batch_size=2, seed=index, **self.how), index)
        return np.array([index, *drawn, *self.draws(index)])

    def draws(self, index):
        if index < self.first:
            return [0.0] * 5
        return [
            random.random(),
            random.gauss(0, 1),
            np.random.standard_normal(),
            torch.rand(()).item(),
            fl.sample_rng().random(),
        ]

    def read(self, loader, index):
        batches = iter(loader)
        first, drawn = next(batches), self.draws(index)  # while threads read ahead
        return [float(first.sum()), *drawn, float(torch.cat(list(batches)).sum())]


class Locked(Items):
    """Reads the inner loader under a lock, as one that several threads share."""

    lock = threading.Lock()

    def read(self, loader, index):
        with self.lock:
            return super().read(loader, index)


def read(data, **how):
    return content(fl.DataLoader(data, batch_size=3, seed=7, **how))


@pytest.mark.usefixtures("quick_switches")
def test_two_loaders_at_once_draw_what_each_draws_alone():
    """One with threads, one without in the main thread, one in another thread. Some draw late, and some never."""
    never = 1000
    programs = [
        (Items(60), THREADS),
        (Items(60, 21), HERE),
        (Items(60, 33), THREADS),
        (Items(60, never), HERE),
        (Items(60, never), THREADS),
        (Items(60), HERE),
    ]
    expected = [read(data) for data, _ in programs]
    before = states()
    got = [None] * len(programs)

    def loop(i):
        data, how = programs[i]
        got[i] = read(data, **how)

    threads = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(1, len(programs))]
    for thread in threads:
        thread.start()
    loop(0)
    for thread in threads:
        thread.join()
    assert got == expected
    assert states() == before


@pytest.mark.usefixtures("quick_switches")
def test_two_loops_in_turns_draw_what_each_draws_alone():
    """The threads of one read ahead while the other one reads in the main thread."""
    expected = read(Items(60)), read(Items(60, 21))
    before = states()
    ahead = fl.DataLoader(Items(60), batch_size=3, seed=7, **THREADS)
    here = fl.DataLoader(Items(60, 21), batch_size=3, seed=7)
    got = [], []
    for pair in zip(ahead, here, strict=True):
        for mine, batch in zip(got, pair, strict=True):
            mine.extend(content([batch]))
    assert got == expected
    assert states() == before


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("outer", [HERE, THREADS, PROCESS], ids=["here", "threads", "process"])
@pytest.mark.parametrize("inner", [HERE, THREADS, PROCESS], ids=["here", "threads", "process"])
@pytest.mark.parametrize("first", [0, 4, 1000], ids=["draws", "draws late", "never draws"])
def test_a_loader_within_a_sample_draws_the_same_numbers(outer, inner, first):
    """Any thread may read either of them, and the sample's own numbers continue afterwards."""
    if outer is PROCESS and inner is PROCESS:
        pytest.skip("a worker process has none of its own")
    expected = read(Items(12, first, 5))
    before = states()
    assert read(Items(12, first, 5, **inner), **outer) == expected
    assert states() == before


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("inner", [HERE, THREADS], ids=["here", "threads"])
@pytest.mark.parametrize("first", [0, 9, 1000], ids=["draws", "draws late", "never draws"])
def test_threads_that_share_a_lock_around_a_loader_do_not_wait_for_each_other(inner, first):
    """One has the lock and would wait for the other one to be done, which waits for the lock."""
    expected = read(Items(24, first, 5))
    before = states()
    assert read(Locked(24, first, 5, **inner), num_workers=3, workers="thread") == expected
    assert states() == before


def test_a_loader_left_in_the_middle_of_a_sample_does_not_wait_for_its_threads():
    """They would wait until the sample is read, and that for them."""
    left = []

    class Left(Items):
        def read(self, loader, index):
            mine = set(threading.enumerate())
            got = next(iter(loader)).flatten().tolist()
            left.extend(thread for thread in threading.enumerate() if thread not in mine)
            return got

    expected = read(Left(4, 0, 40))
    assert read(Left(4, 0, 40, **THREADS)) == expected
    assert not left


class Iterated:
    """An iterable dataset that reads loaders."""

    def __iter__(self):
        for i in range(4):
            yield float(torch.cat(list(fl.DataLoader(Items(5), batch_size=2, seed=i, drop_last=True))).sum())


def test_threads_of_an_iterable_dataset_within_a_sample_may_read_loaders():
    class Outer(Items):
        def __getitem__(self, index):
            drawn = self.draws(index)
            loader = fl.DataLoader(Iterated(), batch_size=None, seed=index, **self.how)
            return np.array([*drawn, sum(loader), *self.draws(index)])

    expected = read(Outer(4))
    before = states()
    assert read(Outer(4, num_workers=1, workers="thread")) == expected
    assert states() == before


def drawn(at, level=0):
    """User code that draws."""
    at(0, level)
    return random.random(), np.random.standard_normal(), torch.rand(()).item()


def seeded(work, key=1):
    """Run user code alone, from its first reading on."""
    return seeding.Seeding(restore=True, seeded=True).run((key, 0), work)


def compared(work, key=1):
    """Run user code at the same time as others, until it draws."""
    return seeding.Seeding(restore=True).run((key, 0), work)


class Held:
    """A thread in the middle of a reading until `released` is set. `count` of them have begun."""

    def __init__(self, how):
        self.count, self.entered, self.released = 0, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: how(self.work), daemon=True)

    def __enter__(self):
        self.thread.start()
        assert self.entered.wait(60)
        return self

    def __exit__(self, *_):
        self.released.set()
        self.thread.join()

    def work(self, at):
        self.count += 1
        at(0)
        self.entered.set()
        assert self.released.wait(60)


def test_first_come_first_served():
    """A reading that only compares does not pass one that seeds, which would wait forever."""
    order, threads = [], []
    with Held(seeded):
        for number, how in enumerate([seeded, compared, seeded, compared]):
            loop = functools.partial(how, lambda at, number=number: order.append(number))
            threads.append(threading.Thread(target=loop, daemon=True))
            threads[-1].start()
            while len(turns.queue) <= number:
                threads[-1].join(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_readings_that_only_compare_pass_waiting_ones(monkeypatch):
    """A reading may wait for its own thread, so a waiting reading must not keep that thread from reading."""
    monkeypatch.setattr(turns_of, "PATIENCE_S", 0.01)
    waits = threading.Thread(target=seeded, args=(drawn,), daemon=True)

    def work(at):
        waits.start()
        while not turns.queue:
            waits.join(0.001)
        own = threading.Thread(target=compared, args=(lambda at: None,), daemon=True)
        own.start()
        own.join()

    compared(work)
    waits.join()


def test_a_reading_that_seeds_within_another_one_waits_for_nobody():
    """So a stranger may have drawn its numbers, and the other way round: all read again, and the outer one alone."""
    expected, before = seeded(drawn, 2), states()
    outer, got = seeding.Seeding(restore=True), []

    def work(at):
        got.append(seeded(drawn, 2))
        stranger.released.set()
        return got[-1]

    with Held(compared) as stranger:
        assert outer.run((1, 0), work) == expected
    assert stranger.count == 2
    assert len(got) == 2
    with Held(compared) as stranger:
        thread = threading.Thread(target=outer.run, args=((1, 1), work), daemon=True)
        thread.start()
        while not turns.queue:
            thread.join(0.001)
    thread.join()
    assert stranger.count == 1
    assert len(got) == 3
    assert states() == before


def in_a_child(work):
    """Fork, return the exit status of a child that calls ``work``."""
    return Forked(lambda: work() or True).status()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_reads_reads_at_once():
    expected = read(Items(6))

    def work():
        assert read(Items(6)) == expected

    with Held(seeded):
        assert in_a_child(work) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_in_the_middle_of_a_batch_reads_in_any_thread():
    expected, statuses = read(Items(6)), []

    def work():
        got = []
        thread = threading.Thread(target=lambda: got.append(read(Items(6), **THREADS)))
        thread.start()
        thread.join()
        assert got == [expected]

    class Forking(Items):
        def __getitem__(self, index):
            statuses.append(in_a_child(work))
            return super().__getitem__(index)

    read(Forking(1))
    assert statuses
    assert set(statuses) == {0}


def nested(at):
    """User code that reads another loader between two draws."""
    return drawn(at), seeded(drawn, 2), compared(drawn, 3), drawn(at, 1)


class Mark:
    """The state of a generator."""


def test_a_reading_that_ends_keeps_no_states():
    """A cycle would keep those of every batch until the next collection of garbage."""
    marks = [Mark()]
    kept = weakref.ref(marks[0])
    gc.disable()
    try:
        reading = turns_of.Reading(lambda: False)
        turns.begin(reading, lambda: [marks.pop()])
        assert reading.base is reading.root is reading
        turns.inside.pop(reading)
        turns.end(reading)
        assert kept() is not None
        del reading
        assert kept() is None
    finally:
        gc.enable()


def test_ctrl_c_at_any_moment_gives_the_turn_back():
    """The generators of the loop are unchanged, wherever it interrupts."""
    expected, before = compared(nested), states()
    for tried, moment in enumerate(moments("Ctrl-C", stride(17))):
        interrupt = Interrupt(moment)
        try:
            with interrupt:
                got = compared(nested)
        except KeyboardInterrupt:
            assert not turns.inside, interrupt.where
            assert not turns.queue, interrupt.where
            assert turns.current(turns_of._thread.reading) is None, interrupt.where
            assert states() == before, interrupt.where
        else:
            assert interrupt.where is None
            break
        if tried % 10 == 0:
            thread = threading.Thread(target=seeded, args=(drawn,), daemon=True)
            thread.start()
            thread.join()
    assert got == expected
    assert tried > 10


def test_a_signal_handler_may_read_a_loader_at_any_moment(request, monkeypatch):
    """In the middle of a batch of another one, or of taking or giving back its turn."""
    monkeypatch.setattr(turns_of, "PATIENCE_S", 1000.0)  # it waits for nobody
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    expected, before = compared(nested), states()
    handled, other = [], compared(drawn, 4)
    signal.signal(signal.SIGINT, lambda *_: handled.append((compared(drawn, 4), seeded(drawn, 4))))
    for moment in moments("handler", stride(17)):
        interrupt = Interrupt(moment)
        handled.clear()
        with interrupt:
            got = compared(nested)
        assert got == expected, interrupt.where
        assert states() == before, interrupt.where
        if interrupt.where is None:
            break
        assert handled == [(other, other)], interrupt.where
    assert moment > 100


ENDING = """
import random, threading
import torch
import feedline as fl

class Items:
    def __len__(self): return 10**9
    def __getitem__(self, index): return index

def loop():
    for _ in fl.DataLoader(Items(), batch_size=2, seed=1, collate_fn=list):
        read.set()

for _ in range(3):
    read = threading.Event()
    threading.Thread(target=loop, daemon=True).start()
    read.wait()
"""


def test_a_process_ends_while_daemon_threads_read():
    for _ in range(3):
        ran = run(["-c", ENDING], imported=FEW, finalized=True, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr  # torch aborts a process that ends while a thread calls it
