"""Prefetching under bad conditions: interrupts, forks, sources that are never closed."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

import feedline as fl
from feedline.concurrency.thread_pool import NAME, Job
from feedline.feed.protocol import Unsized
from feedline.feed.reading import decoding_reader
from feedline.testing import sequences_of
from tests.forked import Forked
from tests.inside import chunks_held, reader_of, reading_locks, timeline_of
from tests.laws.corpora import CountedCorpus
from tests.linux import linux_only


def source(**settings):
    settings = {"seed": 1, "shuffle": fl.Window(chunks=5), **settings}
    return fl.MinibatchSource(CountedCorpus([3] * 400, [20] * 20), **settings)


def wait_for(condition):
    end = time.monotonic() + 120
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


class Told(CountedCorpus):
    """Chunks with given stored bytes, whatever their decoded size."""

    stored = np.full(1000, 1 << 40)

    def chunks(self):
        return [
            fl.ChunkInfo(info.sequences, info.samples, size)
            for info, size in zip(super().chunks(), self.stored.tolist(), strict=False)
        ]


class ToldOnceRead(Told, Unsized):
    """The same, with sizes that are known only once it is read."""

    def num_chunks(self):
        return len(self.chunks())


@pytest.mark.parametrize("sized", [True, False])
def test_by_default_the_whole_next_window_is_read_ahead_and_no_more(monkeypatch, sized):
    """With half a window ahead there would be a wait at the beginning of each. The memory is two windows."""
    monkeypatch.setattr(decoding_reader, "MIN_AHEAD_BYTES", 1)
    corpus = (Told if sized else ToldOnceRead)([3] * 400, [20] * 20)
    two = 10 * max(corpus.read(chunk).nbytes for chunk in range(20))  # texts differ in length
    corpus.reads.clear()
    feed = fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=5), max_sweeps=1)
    for window in range(4):
        feed.next_minibatch(100)
        expected = min(20, 5 * (window + 2))
        wait_for(lambda expected=expected: feed.stats().chunks_read >= expected)
        feed.next_minibatch(100)
        assert len(corpus.reads) == feed.stats().chunks_read == expected
        wait_for(lambda: feed.stats().held_bytes <= two)
        feed.next_minibatch(100)
    assert feed.stats().peak_bytes <= two * 3 // 2  # the old window is released when the new one is in use


@pytest.mark.parametrize(("chunks", "ahead"), [(1, 6), (5, 6), (9, 9)])
def test_of_unknown_sizes_the_next_window_is_read_ahead_or_two_chunks_for_each_thread(chunks, ahead):
    """Such chunks are often computed: all of a small corpus ahead would take the cores from the first steps."""
    corpus = ToldOnceRead([3] * 400, [20] * 20)
    with fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=chunks), threads=3, max_sweeps=1) as feed:
        feed.next_minibatch(1)
        wait_for(lambda: feed.stats().chunks_read >= chunks + ahead)
        feed.next_minibatch(1)
        assert len(corpus.reads) == chunks + ahead


@pytest.mark.parametrize("sized", [True, False])
def test_reading_ahead_goes_on_while_a_window_is_in_use(sized):
    """Once a chunk's size is known, more chunks are read as far as there is room, not only at the next window."""
    how = {"shuffle": fl.Window(chunks=10), "threads": 1, "max_sweeps": 1}
    sizes = [3] * 400, [10] * 40
    first = timeline_of(fl.MinibatchSource(Told(*sizes), **how)).window_at(0, 0).chunks
    one = Told(*sizes).read(0).nbytes
    corpus = (Told if sized else ToldOnceRead)(*sizes)
    # Chunks after the first window decode to a tenth of the size expected from those in the first.
    corpus.stored = np.where(np.isin(np.arange(40), first), one, 10 * one)
    feed = fl.MinibatchSource(corpus, read_ahead=11 * one, **how)
    for _ in range(5):
        feed.next_minibatch(30)
        wait_for(lambda: feed.stats().chunks_read == len(chunks_held(feed)))
    assert 20 <= len(corpus.reads) <= 21


@pytest.mark.parametrize("at", [1, 3, 5])
def test_an_interrupt_while_waiting_for_a_chunk_loses_nothing(monkeypatch, at):
    """Ctrl-C between two chunks of a window: the window is read on, and all of it is let go in the end."""
    expected = sequences_of([source().next_minibatch(50)])
    interrupted, result, calls = source(read_ahead=0), Job.result, []

    def interrupting(self):
        chunk = result(self)
        calls.append(self)
        if len(calls) == at:
            raise KeyboardInterrupt
        return chunk

    with monkeypatch.context() as patch:
        patch.setattr(Job, "result", interrupting)
        with pytest.raises(KeyboardInterrupt):
            interrupted.next_minibatch(50)
    assert sequences_of([interrupted.next_minibatch(50)]) == expected
    assert sorted(interrupted.corpus.reads) == sorted(set(interrupted.corpus.reads))
    interrupted.seek(samples=300)  # of the next window: a seek within a window keeps it
    wait_for(lambda: interrupted.stats().held_bytes == 0)


def test_an_interrupt_while_chunks_are_taken_in_hides_no_error():
    """A chunk is never in use without its errors."""

    class Awkward(fl.Chunk):
        """Interrupt the first caller that checks for errors."""

        looked = False

        @property
        def errors(self):
            if not Awkward.looked:
                Awkward.looked = True
                raise KeyboardInterrupt
            return self._found

        @errors.setter
        def errors(self, found):
            self._found = found

    class Corpus(CountedCorpus):
        def read(self, chunk):
            whole = super().read(chunk)
            return Awkward(self.schema, whole.values, whole.errors)

    damaged = fl.MinibatchSource(Corpus([3] * 8, [8], bad=range(8)))
    with pytest.raises(KeyboardInterrupt):
        damaged.next_minibatch(50)
    with pytest.raises(fl.DataError, match="planted"):
        damaged.next_minibatch(50)


@pytest.mark.parametrize("sized", [True, False])
def test_a_source_dropped_while_it_reads_ahead_is_freed_at_once(sized):
    """The read-ahead list refers to windows, which refer to the reader if sizes are unknown."""
    gc.collect()
    gc.disable()
    try:
        corpus = (CountedCorpus if sized else ToldOnceRead)([3] * 400, [20] * 20)
        dropped = fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=2), read_ahead=3 * corpus.read(0).nbytes)
        dropped.next_minibatch(20)
        reader = weakref.ref(reader_of(dropped))
        wait_for(lambda: len(corpus.reads) > 3)
        del dropped
        wait_for(lambda: reader() is None)
    finally:
        gc.enable()


def reading_threads():
    """Ids of the threads that read ahead: not of the kind that `threading` knows."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as name:
            if name.read().strip() == NAME:
                found.add(task)
    return found


@linux_only("names of threads")
def test_a_dropped_source_is_freed_at_once():
    """No reference cycle keeps a window in memory until the next collection. Threads end, also after an error."""
    gc.collect()
    gc.disable()
    try:
        for bad in ((), (3,)):
            before = reading_threads()
            corpus = CountedCorpus([3] * 40, [10] * 4, bad=bad)
            dropped = fl.MinibatchSource(corpus, shuffle=False)
            minibatch = None
            try:
                minibatch = dropped.next_minibatch(60)
            except fl.DataError:
                assert bad
            reader = weakref.ref(reader_of(dropped))
            wait_for(lambda corpus=corpus, bad=bad: len(corpus.reads) >= (1 if bad else 4))
            begun = reading_threads() - before  # threads of an earlier test may end meanwhile
            assert begun
            del dropped, minibatch
            wait_for(lambda reader=reader: reader() is None)
            wait_for(lambda begun=begun: not reading_threads() & begun)
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("locked", ["jobs", "reader"])
def test_a_forked_child_reads_on_during_any_work_of_the_threads(locked):
    """Locks that a reading thread holds at the fork stay locked in the child, which waits for none of them."""
    parent, plain = source(read_ahead=1 << 30), source(read_ahead=0)
    parent.next_minibatch(50)
    plain.next_minibatch(50)
    wait_for(lambda: len(parent.corpus.reads) == 20)
    expected = [sequences_of([plain.next_minibatch(290)]) for _ in range(5)]
    assert any(entry.slot < 0 for entry in chunks_held(parent))
    locks = reading_locks(parent, locked)
    assert locks
    held, over = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)

    def read_on():
        good = [sequences_of([parent.next_minibatch(290)]) for _ in range(5)] == expected
        parent.close()
        return good and parent.stats().held_bytes == 0

    child = Forked(read_on, 30)
    over.set()
    thread.join()
    assert child.status() == 0
    assert [sequences_of([parent.next_minibatch(290)]) for _ in range(5)] == expected


def test_what_failed_ahead_of_need_is_read_again_when_needed():
    """A temporary failure of the disk, or lack of descriptors, is reported only if it persists."""

    class Flaky(CountedCorpus):
        failing = True

        def read(self, chunk):
            if self.failing and self.reads:
                raise fl.DataError("too many open files")
            return super().read(chunk)

    corpus = Flaky([1] * 40, [10] * 4)
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, threads=1)
    first = source.next_minibatch(10)
    while not any(entry.job.done and entry.slot < 0 for entry in chunks_held(source)):
        time.sleep(0.01)
    corpus.failing = False
    assert [first.ids.tolist(), *(m.ids.tolist() for m in source.minibatches(10))] == [
        list(range(start, start + 10)) for start in range(0, 40, 10)
    ]
