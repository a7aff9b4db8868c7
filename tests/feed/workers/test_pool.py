"""Units go in, and results come out by ticket, whichever workers run them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from types import SimpleNamespace

import pytest

from feedline.feed.workers import Pool
from feedline.feed.workers import pool as pools
from tests.feed.workers.tasks import BrokenPickle, BrokenStart, Task, eventually, restarts, results
from tests.inside import has_backlog, is_listened_to, listens


def test_results_by_ticket_in_any_order(either):
    tickets = [either.submit(("echo", i)) for i in range(50)]
    assert tickets == list(range(50))
    for i in reversed(tickets):
        assert either.result(i) == i


@pytest.mark.parametrize("method", ["spawn", "fork", multiprocessing.get_context("forkserver")])
def test_start_methods(method):
    with Pool(Task(), 2, method=method) as pool:
        assert results(pool, [("echo", i) for i in range(5)]) == list(range(5))
        assert len(set(pool.pids)) == 2


def test_the_default_matches_multiprocessing():
    with Pool(Task(), 1) as pool:
        kind = pool.result(pool.submit(("evaluate", "type(sys.modules['multiprocessing'].current_process()).__name__")))
        assert kind == multiprocessing.get_context().Process.__name__ != multiprocessing.Process.__name__


def test_fork_pickles_no_task():
    task = Task()
    task.function = lambda: "not picklable"
    with Pool(task, 1, method="fork") as pool:
        assert pool.result(pool.submit(("evaluate", "1 + 1"))) == 2


def test_any_idle_worker_takes_the_next_unit(either, gate):
    slow = either.submit(gate.unit("slow"))
    fast = [either.submit(("echo", i)) for i in range(40)]
    for i, ticket in enumerate(fast):
        assert either.result(ticket) == i
    assert not either.ready(slow)
    gate.let_go()
    assert either.result(slow) == "slow"


def test_a_unit_for_one_worker(either):
    tickets = [either.submit(("count",), worker=i % 2) for i in range(20)]
    got = [either.result(ticket) for ticket in tickets]
    assert [worker for worker, _ in got] == [i % 2 for i in range(20)]
    assert [count for _, count in got] == [i // 2 + 1 for i in range(20)]


def test_any_of(either, gate):
    slow, fast = either.submit(gate.unit()), either.submit(("echo", 1))
    assert either.any_of([slow, fast]) == fast
    gate.let_go()
    assert either.any_of([slow]) == slow
    assert either.any_of([slow, fast]) in (slow, fast)
    with pytest.raises(ValueError, match="at least one ticket"):
        either.any_of([])


def test_large_units(pool):
    units = [("echo", list(range(i * 1000))) for i in range(30)]
    assert results(pool, units) == [unit[1] for unit in units]


def test_more_units_than_the_queue_holds(pool, gate):
    pool.submit(gate.unit()), pool.submit(gate.unit())
    tickets = [pool.submit(("echo", i)) for i in range(5000)]
    assert has_backlog(pool)
    gate.let_go()
    assert [pool.result(ticket) for ticket in tickets] == list(range(5000))


def test_cancel_one_and_all(either, gate):
    hold = [either.submit(gate.unit()) for _ in range(2)]
    a, b, c = (either.submit(("echo", i)) for i in range(3))
    either.cancel([b])
    gate.let_go()
    assert either.result(a) == 0
    assert either.result(c) == 2
    with pytest.raises(ValueError, match=f"ticket {b} is unknown"):
        either.result(b)
    either.cancel()
    for ticket in hold:
        with pytest.raises(ValueError, match="unknown"):
            either.result(ticket)
    assert either.result(either.submit(("echo", "on"))) == "on"


def test_cancelled_units_do_not_run(pool, gate, tmp_path):
    hold = [pool.submit(gate.unit()) for _ in range(2)]
    gate.held()
    note = tmp_path / "note"
    pool.cancel([pool.submit(("evaluate", f"open({str(note)!r}, 'w').close()")) for _ in range(3)])
    gate.let_go()
    for ticket in hold:
        pool.result(ticket)
    results(pool, [("echo", i) for i in range(10)])
    assert not note.exists()


def test_timeout(gate):
    with Pool(Task(), 1, timeout_s=60) as pool:
        assert pool.result(pool.submit(("echo", 1))) == 1  # it has started, which may take longer
        pool.timeout_s = 0.2
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
            pool.result(pool.submit(gate.unit()))
        gate.let_go()


def test_every_result_extends_the_timeout(monkeypatch):
    """Results come every 40 seconds: after 120 the third has not timed out, as there were never 60 without any."""

    class Waiting(Task):
        results = queue.SimpleQueue()

        def run(self, unit):
            return self.results.get()

    clock = SimpleNamespace(now=0)
    monkeypatch.setattr(pools, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with Pool(Waiting(), 1, kind="thread", timeout_s=60) as pool:
        poll = pool.backend.poll

        def poll_for_one(timeout_s):
            clock.now += 40
            Waiting.results.put(clock.now)
            return poll(timeout_s)

        monkeypatch.setattr(pool.backend, "poll", poll_for_one)
        tickets = [pool.submit(None) for _ in range(3)]
        assert pool.result(tickets[2]) == 120


def test_start_that_raises_is_raised_by_units():
    for kind in ("process", "thread"):
        with Pool(BrokenStart(), 2, kind=kind) as pool, pytest.raises(ZeroDivisionError, match="no start"):
            pool.result(pool.submit(("echo", 1)))


def test_task_that_cannot_be_unpickled_is_raised_by_units():
    with Pool(BrokenPickle(), 1, method="spawn") as pool, pytest.raises(LookupError, match="cannot be unpickled here"):
        pool.result(pool.submit(1))


def test_unit_that_cannot_be_pickled(pool):
    with pytest.raises(Exception, match="pickle"):
        pool.submit(("echo", lambda: 0))
    assert pool.result(pool.submit(("echo", 1))) == 1


def test_wrong_arguments():
    with pytest.raises(ValueError, match="at least 1 worker"):
        Pool(Task(), 0)
    with pytest.raises(ValueError, match="timeout"):
        Pool(Task(), 1, timeout_s=-1)
    with pytest.raises(ValueError, match="kind"):
        Pool(Task(), 1, kind="fibre")
    with pytest.raises(ValueError, match="start method"):
        Pool(Task(), 1, method="beg")
    with pytest.raises(TypeError, match="context"):
        Pool(Task(), 1, method=3)


def test_submit_for_a_worker_there_is_not(either):
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        either.submit(1, worker=2)


def test_closed(either):
    ticket = either.submit(("echo", 1))
    either.close()
    either.close()
    either.cancel()
    for call in (lambda: either.submit(1), lambda: either.result(ticket), lambda: either.ready(ticket)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_figures():
    with Pool(Task(), 2) as pool:
        results(pool, [("copied", i) for i in range(10)])
        assert sum(worker.units for worker in pool.figures) == 10
        assert sum(worker.bytes for worker in pool.figures) > 10 * 64 * 64 * 4
        assert all(worker.seconds > 0 for worker in pool.figures if worker.units)
        assert restarts(pool) == 0


def test_several_threads_may_wait(either):
    tickets = [either.submit(("sleep", 0.001 * (i % 7), i)) for i in range(200)]
    got = {}

    def take(mine):
        for ticket in mine:
            got[ticket] = either.result(ticket)

    threads = [threading.Thread(target=take, args=(tickets[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {ticket: i for i, ticket in enumerate(tickets)}


def test_what_came_in_between_looking_and_listening_is_not_waited_for(either):
    assert listens(either, lambda: True)
    assert not listens(either, lambda: False)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_threads_that_close_a_pool_at_once_close_it_once(kind):
    """A second close of a descriptor would hit whatever has its number by then."""
    for _ in range(8):
        pool = Pool(Task(), 2, kind=kind)
        pool.submit(("sleep", 0.2, 0))  # still running, so that each closes it in two steps
        raised, together = [], threading.Barrier(4)

        def close(pool=pool, raised=raised, together=together):
            together.wait(30)
            try:
                pool.backend.close(0.01)
            except OSError as error:
                raised.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not raised
        pool.close()


def test_closing_frees_who_waits(either, gate):
    ticket = either.submit(gate.unit())
    gate.held()
    raised = []

    def wait():
        try:
            either.result(ticket)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert eventually(lambda: is_listened_to(either))
    closing = threading.Thread(target=either.close)
    closing.start()
    assert eventually(lambda: "closed" in repr(either))
    gate.let_go()
    closing.join(30)
    thread.join(30)
    assert raised == ["this pool of workers is closed"]


def test_workers_have_one_torch_thread(pool):
    pytest.importorskip("torch")
    assert pool.result(pool.submit(("evaluate", "__import__('torch').zeros(1).shape"))) == (1,)
    assert pool.result(pool.submit(("evaluate", "__import__('torch').get_num_threads()"))) == 1


def test_interrupts_are_the_parents(pool):
    pids = {pool.result(pool.submit(("who",), worker=i))[2] for i in range(2)}
    assert pids == set(pool.pids)
    for pid in pids:
        os.kill(pid, 2)
    assert results(pool, [("echo", i) for i in range(20)]) == list(range(20))
    assert restarts(pool) == 0
