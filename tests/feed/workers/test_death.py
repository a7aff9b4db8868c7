"""Workers die, parents die, code raises: nothing hangs, nothing is lost, and the error has the cause."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import types

import numpy as np
import pytest

from feedline.errors import DataError, WorkerError
from feedline.feed.workers import Pool
from feedline.feed.workers import worker_handle as member
from feedline.feed.workers.failure import Failure
from tests.feed.workers.tasks import DiesAtStart, Task, alive, eventually, restarts, results
from tests.forked import Forked
from tests.inside import end_as_collected

# pytest redirects stderr for each phase of a test, so captured processes are started in the test itself.

WAYS = {"kill": "signal SIGKILL", "segfault": "signal SIGSEGV", "exit": "exit code 7", "SystemExit": "exit code 3"}


@pytest.mark.parametrize("how", WAYS)
def test_a_unit_that_kills_once_is_run_again(capfd, how, tmp_path):
    with Pool(Task(), 2) as pool:
        tickets = [pool.submit(("echo", i)) for i in range(5)]
        tickets.append(pool.submit(("die", how, str(tmp_path / "mark"))))
        tickets += [pool.submit(("fill", i)) for i in range(5)]
        got = [pool.result(ticket) for ticket in tickets]
        assert got[:6] == [0, 1, 2, 3, 4, "alive"]
        assert all((array == i).all() for i, array in enumerate(got[6:]))
        assert restarts(pool) == 1
        assert "dying" in capfd.readouterr().err


@pytest.mark.parametrize("how", WAYS)
def test_a_unit_that_kills_twice_is_an_error(capfd, how):
    with Pool(Task(), 2) as pool:
        bad, good = pool.submit(("die", how, None, "famous last words")), pool.submit(("echo", 1))
        with pytest.raises(WorkerError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly") as caught:
            pool.result(bad)
        error = caught.value
        assert WAYS[how] in str(error)
        assert "('die', " in str(error)
        assert "famous last words" in str(error)
        assert error.unit == ("die", how, None, "famous last words")
        assert isinstance(error, RuntimeError)
        if how == "segfault":
            assert "tasks.py" in str(error)  # the Python traceback of the crash
        assert pool.result(good) == 1
        assert restarts(pool) == 2
        # Of each death once, or twice where it came between the lines' being passed on and being taken.
        assert 2 <= capfd.readouterr().err.count("famous last words") <= 4


def test_results_sent_before_a_death_are_kept(pool):
    first = [pool.submit(("fill", i), worker=0) for i in range(4)]
    died = pool.submit(("die", "kill"), worker=0)
    last = [pool.submit(("fill", i), worker=0) for i in range(4, 8)]
    with pytest.raises(WorkerError):
        pool.result(died)
    for i, ticket in enumerate(first + last):
        assert (pool.result(ticket) == i).all()


def test_kept_batches_outlive_their_worker(pool):
    kept = [pool.result(pool.submit(("fill", i), worker=0)) for i in range(5)]
    with pytest.raises(WorkerError):
        pool.result(pool.submit(("die", "kill"), worker=0))
    for _ in range(20):
        pool.result(pool.submit(("fill", -1), worker=0))
    assert all((array == i).all() for i, array in enumerate(kept))


def test_idle_workers_that_are_killed_are_replaced(pool):
    results(pool, [("echo", 0)] * 4)
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)

    def both_are_replaced():  # one may have done all units before the other's end is noticed
        assert results(pool, [("echo", i) for i in range(20)]) == list(range(20))
        return restarts(pool) == 2

    assert eventually(both_are_replaced)


def test_kills_at_any_moment_lose_nothing():
    rng = random.Random(7)
    with Pool(Task(), 3) as pool:
        results(pool, [("echo", 0)] * 9)
        stop = threading.Event()

        def kill():
            while not stop.wait(rng.uniform(0.005, 0.05)):
                try:
                    os.kill(rng.choice(pool.pids), signal.SIGKILL)
                except ProcessLookupError:
                    pass

        killer = threading.Thread(target=kill)
        killer.start()
        got, failed = {}, 0
        try:
            for start in itertools.count(0, 10):
                if start >= 300 and restarts(pool):
                    break
                tickets = {pool.submit(("fill", i, (50, 50))): i for i in range(start, start + 10)}
                for ticket, i in tickets.items():
                    try:
                        got[i] = pool.result(ticket)
                    except WorkerError:
                        failed += 1  # two kills, one unit
        finally:
            stop.set()
            killer.join()
        assert all((array == i).all() for i, array in got.items())
        assert len(got) + failed == start


def test_stderr_passes_through_and_its_end_is_kept(capfd):
    words = "\n".join([*(f"line {i}" for i in range(3000)), "the end"])
    with Pool(Task(), 2) as pool:
        with pytest.raises(WorkerError) as caught:
            pool.result(pool.submit(("die", "exit", None, words)))
        assert caught.value.stderr.splitlines()[-2:] == ["line 2999", "the end"]
        assert len(caught.value.stderr) <= 1 << 14
        err = capfd.readouterr().err
        assert all(err.count(f"line {i}\n") >= 2 for i in range(3000))


def test_a_worker_that_dies_at_every_start(capfd):
    with (
        Pool(DiesAtStart(), 2, method="forkserver") as pool,
        pytest.raises(WorkerError, match="exit code 5, before it was ready") as caught,
    ):
        pool.result(pool.submit(("echo", 1)))
    assert "no way to start" in caught.value.stderr
    assert "no way to start" in capfd.readouterr().err


def test_a_worker_that_closes_its_channel(pool):
    # A worker that closes its connection can do no more.
    code = "[os.close(int(fd)) for fd in os.listdir('/proc/self/fd') if 'socket' in _link(fd)]"
    with pytest.raises(WorkerError):
        pool.result(pool.submit(("evaluate", code)))
    assert pool.result(pool.submit(("echo", 1))) == 1


# ---- exceptions


class Custom(Exception):
    pass


class Keyworded(Exception):
    def __init__(self, *, code):
        super().__init__(code)
        self.code = code


class WithMessage(Exception):
    message = "default"

    def __init__(self, message="default"):
        super().__init__(message)
        self.message = message


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("bad"), ValueError),
        (KeyError("key"), KeyError),
        (FileNotFoundError(2, "No such file", "x.txt"), FileNotFoundError),
        (Custom("mine"), Custom),
        (WithMessage("mine"), WithMessage),
        (Keyworded(code=3), RuntimeError),
        (UnicodeDecodeError("utf8", b"x", 0, 1, "why"), UnicodeDecodeError),
        (DataError("bad value", path="a.ctf", line=3), DataError),
    ],
)
def test_exceptions_keep_their_type(error, kept):
    try:
        raise error
    except Exception as raised:
        failure = Failure(raised, "in DataLoader worker process 0")
    with pytest.raises(kept) as caught:
        failure.throw()
    assert type(caught.value) is kept
    # Exceptions that cannot be created from a text have it as a note.
    text = "".join(getattr(caught.value, "__notes__", [])) or str(caught.value)
    assert text.startswith(f"Caught {type(error).__name__} in DataLoader worker process 0.\nOriginal Traceback")
    assert "test_death.py" in text
    assert "\\n" not in text
    if isinstance(error, DataError):
        assert (caught.value.path, caught.value.line) == ("a.ctf", 3)
    if isinstance(error, FileNotFoundError):
        assert caught.value.__cause__.errno == 2


def test_exceptions_of_types_that_cannot_travel():
    class Local(Exception):
        pass

    with pytest.raises(RuntimeError, match="Caught Local in here"):
        Failure(Local("x"), "in here").throw()


def test_stop_iteration_passes(either):
    with pytest.raises(StopIteration) as caught:
        either.result(either.submit(("fail", StopIteration, 5)))
    assert caught.value.value == 5


def test_raised_in_a_worker(either):
    with pytest.raises(ZeroDivisionError) as caught:
        either.result(either.submit(("fail", ZeroDivisionError, "no")))
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "DataLoader worker" in said
    assert either.result(either.submit(("echo", 1))) == 1


def test_a_thread_reports_its_place(monkeypatch):
    with Pool(Task(), 1, kind="thread") as pool, pytest.raises(KeyError) as caught:
        pool.result(pool.submit(("fail", KeyError, "k")))
    assert caught.value.__notes__ == ["raised in DataLoader worker thread 0"]


# ---- interrupts


class Interrupt(KeyboardInterrupt):
    pass


class Flag:
    def __init__(self):
        self._set = False

    def set(self):
        self._set = True

    def clear(self):
        self._set = False

    def is_set(self):
        return self._set


@pytest.fixture
def interrupts():
    """Interrupt this thread once, at a random moment, unless ended before.

    A flag without a lock: the interrupt may come while this thread holds the lock of an event.
    """
    armed = Flag()
    over = threading.Event()
    rng = random.Random(3)
    main = threading.get_ident()

    def interrupt(*_):
        if armed.is_set():
            armed.clear()
            raise Interrupt

    def disturb():
        while not over.is_set():
            time.sleep(rng.uniform(0, 1e-3))
            if armed.is_set():
                signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=disturb)
    thread.start()
    yield armed
    armed.clear()
    over.set()
    thread.join()
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("worker", [None, 0])
def test_interrupts_lose_no_result(interrupts, worker):
    interrupted, submitted = 0, []
    with Pool(Task(), 2) as pool:
        results(pool, [("echo", 0)] * 4)
        for i in range(300):
            try:
                interrupts.set()
                ticket = pool.submit(("fill", i, (40, 40)), worker)
                interrupts.clear()
                submitted.append((ticket, i))
            except Interrupt:
                interrupted += 1
            while len(submitted) > 3:
                try:
                    interrupts.set()
                    pool.any_of([submitted[0][0]])
                    interrupts.clear()
                    ticket, i = submitted.pop(0)
                    assert (pool.result(ticket) == i).all()
                except Interrupt:
                    interrupted += 1
        assert interrupted > 10
        assert restarts(pool) == 0


@pytest.mark.parametrize("worker", [None, 0])
def test_exceptions_while_taking_in_a_message_lose_no_result(monkeypatch, worker):
    """An interrupt cannot be deferred then, so the workers are replaced."""
    loads, rng, raised = member.pickle.loads, random.Random(5), 0

    def disturbed(text):
        if rng.random() < 0.1:
            raise Interrupt
        return loads(text)

    with Pool(Task(), 2) as pool:
        results(pool, [("echo", 0)] * 4)
        monkeypatch.setattr(member, "pickle", types.SimpleNamespace(loads=disturbed))
        kept = []
        tickets = [pool.submit(("fill", i, (40, 40)), worker) for i in range(100)]
        for ticket in tickets:
            while True:
                try:
                    pool.any_of([ticket])
                    break
                except Interrupt:
                    raised += 1
            kept.append(pool.result(ticket))
        assert all((array == i).all() for i, array in enumerate(kept))
        assert raised > 3
        assert restarts(pool) == 2 * raised


# ---- forks


def test_a_forked_copy_is_inert(pool, gate):
    kept = pool.result(pool.submit(("fill", 3)))
    ticket = pool.submit(gate.unit("mine"))
    reading, writing = os.pipe()

    def inert():
        text = b""
        for call in (lambda: pool.submit(1), lambda: pool.result(ticket)):
            try:
                call()
            except RuntimeError as error:
                text += str(error).encode()
        pool.close()
        pool.cancel()
        end_as_collected(pool)
        os.write(writing, text)
        return np.all(kept == 3)

    assert Forked(inert).status() == 0
    assert os.read(reading, 4096).count(b"belongs to process") == 2
    os.close(reading), os.close(writing)
    gate.let_go()
    assert pool.result(ticket) == "mine"
    assert all(map(alive, pool.pids))


def test_closing_waits_for_a_running_unit_then_kills(gate, tmp_path):
    code = f"[open({str(tmp_path / 'began')!r}, 'w'), time.sleep(0.5), open({str(tmp_path / 'done')!r}, 'w')] and 0"
    with Pool(Task(), 1) as pool:
        pool.submit(("evaluate", code))
        assert eventually((tmp_path / "began").exists)
    assert (tmp_path / "done").exists()

    with Pool(Task(), 1) as pool:
        pids = pool.pids
        pool.submit(gate.unit())
        gate.held()
        pool.backend.close(0.1)
        assert not any(map(alive, pids))
