"""Garbage in any order: the collector, the end of the interpreter and forks may finalise in any order.

Each case is a separate program, as failures here are crashes or hangs. Its last line confirms that it has ended well.
No process, descriptor or mapping of a pool may be left then, nor afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests import warm
from tests.feed.workers.tasks import alive, eventually

HEAD = """
import gc, itertools, os, random, sys, threading, time, warnings
import numpy as np
warnings.simplefilter("ignore")
import feedline as fl
from feedline.feed.workers import Pool
from tests import inside
from tests.forked import die
from tests.feed.workers.items import Rows, Failing, Counting
from tests.feed.workers.tasks import Task, alive, descriptors, eventually, results, segments

KINDS = {"here": {}, "thread": {"num_workers": 2, "workers": "thread"}, "process": {"num_workers": 2}}

def nothing_left(before):
    gc.collect()
    assert eventually(lambda: (len(descriptors()), segments()) <= before), (before, descriptors(), segments())
    print("through", flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def interpreter():
    """Started before anybody counts descriptors."""
    warm.start(warm.FEW)


@pytest.fixture
def through(tmp_path):
    """Run a main module, and check its leftovers."""

    def run(body, timeout=120, cold=False):
        path = tmp_path / "program.py"
        path.write_text(HEAD + "if __name__ == '__main__':\n" + textwrap.indent(textwrap.dedent(body), "    "))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
        options = {"capture_output": True, "text": True, "timeout": timeout, "env": environment}
        if cold:
            done = subprocess.run([sys.executable, path], check=False, **options)
        else:
            done = warm.run([path], imported=warm.FEW, finalized=True, **options)
        assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
        lines = done.stdout.splitlines()
        assert lines, done.stderr
        assert lines[-1] == "through", (done.stdout, done.stderr)
        pids = {int(word) for line in lines[:-1] for word in line.split()}
        assert eventually(lambda: not any(map(alive, pids)))
        return done

    return run


@pytest.mark.parametrize("torch", ["", "import torch"])
def test_failed_loops(through, torch):
    """An exception keeps its frames, these the loader, and all of it becomes garbage in one cycle."""
    done = through(
        f"""
        {torch}
        before = len(descriptors()) + 8, 0  # what multiprocessing keeps once it has started
        for _ in range(2):
            for _ in range(3):
                try:
                    loader = fl.DataLoader(Failing(40, 20), batch_size=4, num_workers=2)
                    for _ in loader:
                        pass
                except ValueError as error:
                    error.seen = loader, error  # a cycle
                    print(*loader.pids)
                    del error, loader
            gc.collect()
        nothing_left(before)
    """,
        cold=True,  # torch comes before the first loader, or with it
    )
    assert done.stderr == ""


def test_by_hand_in_every_order(through):
    """Call the finalisers of all parts of a loader in every order."""
    through("""
        before = len(descriptors()) + 8, 0
        finalisers = dict.fromkeys(KINDS, 0)
        for kind, order in itertools.product(KINDS, range(5)):
            loader = fl.DataLoader(Rows(60), batch_size=4, **KINDS[kind])
            iterators = [iter(loader), iter(loader)]
            batches = [next(iterator) for iterator in iterators]
            print(*loader.pids)
            gc.collect()
            every = ((type(o), o) for o in gc.get_objects())
            ours = [o for t, o in every if hasattr(t, "__del__") and "feedline" in str(t.__module__)]
            random.Random(order).shuffle(ours)
            finalisers[kind] += len(ours)
            for each in ours:
                each.__del__()
            for batch in batches:
                assert np.isfinite(np.asarray(batch)).all()
            del loader, iterators, batches, ours
            each = None
        assert finalisers["thread"] and finalisers["process"], finalisers
        nothing_left(before)
    """)


def test_with_finalisers_of_the_user(through):
    """An object that is garbage together with a loader, older or younger than it, and still uses it."""
    through("""
        before = len(descriptors()) + 8, 0
        told = []

        class Using:
            def __del__(self):
                told.append([])
                for call in (
                    lambda: np.asarray(self.batch).sum(),
                    lambda: next(self.iterator),
                    lambda: self.loader.state_dict(),
                    lambda: next(iter(self.loader)),
                    lambda: self.loader.close(),
                    lambda: self.loader.pids,
                ):
                    try:
                        call()
                        told[-1].append("done")
                    except (RuntimeError, StopIteration) as error:
                        told[-1].append(str(error))

        for round, (kind, first) in enumerate(itertools.product(KINDS, [True, False] * 2)):
            using = Using() if first else None
            loader = fl.DataLoader(Rows(60), batch_size=4, **KINDS[kind])
            iterator = iter(loader)
            kept = [next(iterator) for _ in range(3)]
            print(*loader.pids)
            using = using or Using()
            using.loader, using.iterator, using.batch = loader, iterator, kept[0]
            loader.using = using
            copy = np.array(kept[1])
            del loader, iterator, using
            gc.collect()
            assert len(told) == round + 1
            assert told[-1][0] == told[-1][2] == "done", told
            assert (np.asarray(kept[1]) == copy).all()  # what is held outside lives on
        del kept, copy
        nothing_left(before)
    """)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_in_the_middle_of_the_pool_s_own_calls(through, kind):
    """The collector runs at every allocation, in every thread, and finds iterators that were let go half-way."""
    through(f"""
        before = len(descriptors()) + 8, 0
        gc.set_threshold(1)
        loader = fl.DataLoader(Rows(60), batch_size=4, persistent_workers=True, **KINDS[{kind!r}])
        for sweep in range(40):
            iterator = iter(loader)
            for _ in range(sweep % 4):
                next(iterator)
            cycle = [iterator]
            cycle.append(cycle)
            del iterator, cycle
        print(*loader.pids)
        gc.set_threshold(700)
        assert [len(batch) for batch in loader] == [4] * 15
        gc.collect()
        pool = inside.pool_of(loader)
        assert " 0 outstanding" in repr(pool)  # nothing of iterators that are gone
        del loader, pool
        nothing_left(before)
    """)


def test_in_a_thread_of_the_pool_that_holds_its_lock(through):
    """A worker is interrupted by the collector under the lock that closing would need."""
    through("""
        before = len(descriptors()), 0
        loader = fl.DataLoader(Rows(60), batch_size=4, num_workers=2, workers="thread", persistent_workers=True)
        iterator = iter(loader)
        next(iterator)
        pool = inside.pool_of(loader)
        shared = inside.shared_of(pool)
        held, go = threading.Event(), threading.Event()

        def holder():
            with shared.lock:
                held.set()
                go.wait()

        thread = threading.Thread(target=holder)
        thread.start()
        held.wait()
        del iterator  # must not wait
        assert inside.abandoned_units(pool)
        go.set()
        thread.join()
        assert len(next(iter(loader))) == 4
        assert not inside.abandoned_units(pool)

        # Closing from one of the pool's own threads, as the collector may: it does not wait for itself.
        class Closing:
            def start(self, worker, workers):
                pass

            def run(self, unit):
                with inside.shared_of(inner).lock:
                    inside.end_as_collected(inner)

        inner = Pool(Closing(), 2, kind="thread")
        inner.submit(0)
        assert eventually(lambda: "closed" in repr(inner))
        threads = inner.backend.threads
        assert eventually(lambda: not any(thread.is_alive() for thread in threads))
        del loader, pool, shared
        nothing_left(before)
    """)


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "gc.disable()", "del Rows, np, fl, Pool, gc"])
def test_the_end_of_the_interpreter(through, ending):
    """With everything still in the module, in a cycle, and in threads that continue reading."""
    done = through(f"""
        everything = []
        for kind in KINDS.values():
            loader = fl.DataLoader(Rows(4000), batch_size=4, **kind)
            iterator = iter(loader)
            kept = [next(iterator) for _ in range(3)]
            loader.own = kept.append((loader, iterator)) or kept
            # No torch in that thread: it aborts a process that ends while a daemon thread is in a call of its own.
            reading = fl.DataLoader(Rows(100000), batch_size=4, collate_fn=list, **kind)
            threading.Thread(target=sum, args=((1 for _ in reading),), daemon=True).start()
            assert eventually(lambda: reading.stats().batches > 3)
            everything.append((loader, iterator, kept, reading))
            print(*loader.pids, *reading.pids)
        source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.ones((4000, 500), np.float32)))
        copied = [source.next_minibatch(512) for _ in range(3)]
        print("through", flush=True)
        {ending}
    """)
    assert "Fatal" not in done.stderr


def test_forks(through):
    """A child that exits, and collects its copies of objects, changes nothing in the parent."""
    through("""
        before = len(descriptors()) + 8, 0
        loader = fl.DataLoader(Rows(60), batch_size=4, num_workers=2)
        threads = fl.DataLoader(Rows(60), batch_size=4, num_workers=2, workers="thread")
        iterators = [iter(loader), iter(threads)]
        kept = [next(iterator) for iterator in iterators for _ in range(2)]
        copies = [np.array(batch) for batch in kept]
        print(*loader.pids, flush=True)
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                del loader, threads, iterators
                gc.collect()
                same = all((np.asarray(batch) == copy).all() for batch, copy in zip(kept, copies))
                sys.stdout.close()
                sys.exit(0 if same else 1)  # with all that runs at exit
            assert os.waitpid(pid, 0)[1] == 0
        for iterator in iterators:
            assert sum(len(batch) for batch in iterator) == 60 - 8
        assert all((np.asarray(batch) == copy).all() for batch, copy in zip(kept, copies))
        del loader, threads, iterators, iterator, kept, copies
        nothing_left(before)
    """)


def test_forks_of_forks(through):
    """What a child opens, perhaps by numbers that descriptors of its parent had, stays open in its own children."""
    through("""
        loader = fl.DataLoader(Rows(60), batch_size=4, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        print(*loader.pids, flush=True)
        if (pid := os.fork()) == 0:
            opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
            if (pid := os.fork()) == 0:
                for fd in opened:
                    os.fstat(fd)
                die()
            die(os.waitpid(pid, 0)[1] != 0)
        assert os.waitpid(pid, 0)[1] == 0
        assert sum(len(batch) for batch in iterator) == 60 - 4
        print("through")
    """)


def test_memory_and_views_in_every_order(through):
    """Mappings and loans are not collected before the last view is freed."""
    through("""
        from feedline import _native
        for order in itertools.permutations(range(5)):
            fd = os.memfd_create("feedline-test")
            os.ftruncate(fd, 8192)
            table, memory = _native.SharedMemory(fd, 8192), _native.SharedMemory(fd, 8192)
            os.close(fd)
            watched = memoryview(table)
            watched[7] = 1
            loan = _native.Loan(memory, table, 7, 0, 2)
            assert not any(map(gc.is_tracked, (table, memory, loan)))
            loan.begin()
            view = memoryview(loan)
            array = np.frombuffer(view, np.uint8)[4096:]
            held = [table, memory, loan, view, array]
            del table, memory, loan, view, array
            for i in order:
                held[i] = None
                # The loan lives as long as itself or a view of it.
                assert watched[7] == any(one is not None for one in held[2:])
        for bad in ((-1, 10), (0, 0)):
            try:
                _native.SharedMemory(*bad)
            except OSError as error:
                assert error.errno
            else:
                raise AssertionError(bad)
        print("through")
    """)
