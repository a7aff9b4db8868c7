"""However a program ends, its workers end, too, and report errors."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from feedline.feed.workers import Pool
from tests.feed.workers.tasks import Task, alive, eventually
from tests.linux import linux_only

HEAD = """
import os, signal, sys, time
import numpy as np
from feedline.feed.workers import Pool
from tests.feed.workers.tasks import Task, restarts, results
"""


@pytest.fixture
def program(tmp_path):
    """Run a main module. Return its process and output."""

    def run(body, guard=True, wait=True, head=HEAD):
        path = tmp_path / "program.py"
        body = textwrap.dedent(body)
        if guard:
            body = "if __name__ == '__main__':\n" + textwrap.indent(body, "    ")
        path.write_text(head + body)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
        process = subprocess.Popen(
            [sys.executable, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        if wait:
            process.out, process.err = process.communicate(timeout=100)
        return process

    return run


METHODS = ["forkserver", "spawn", "fork"]


def pids(line):
    return [int(word) for word in line.split()]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["", "del pool", "raise ValueError('consumer')", "sys.exit(3)", "pool.close()"])
def test_ordinary_ends(program, method, end):
    done = program(f"""
        pool = Pool(Task(), 2, method={method!r})
        kept = results(pool, [("fill", i) for i in range(6)])
        print(*pool.pids)
        pool.submit(("echo", 1))
        {end}
    """)
    workers = pids(done.out)
    assert len(workers) == 2
    assert eventually(lambda: not any(map(alive, workers)))
    assert done.returncode == {"raise ValueError('consumer')": 1, "sys.exit(3)": 3}.get(end, 0)
    wanted = "ValueError: consumer" if "consumer" in end else ""
    said = [line for line in done.err.splitlines() if "RuntimeWarning" not in line and "Pool(" not in line]
    assert (wanted in done.err) if wanted else not said, done.err


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_takes_busy_workers_along(program, method, number):
    running = program(
        f"""
        pool = Pool(Task(), 2, method={method!r})
        results(pool, [("echo", 1)] * 4)
        pool.submit(("sleep", 1000), worker=0)
        print(*pool.pids, flush=True)
        time.sleep(1000)
    """,
        wait=False,
    )
    workers = pids(running.stdout.readline())
    assert all(map(alive, workers))
    running.send_signal(number)
    running.communicate(timeout=150)
    assert eventually(lambda: not any(map(alive, workers)))


def test_a_killed_parent_whose_descriptors_live_on(program):
    # A fork that Python does not see keeps the channels open.
    running = program(
        """
        import ctypes
        pool = Pool(Task(), 2)
        results(pool, [("echo", 1)] * 4)
        if ctypes.CDLL(None).fork() == 0:
            time.sleep(1000)
        print(*pool.pids, flush=True)
        time.sleep(1000)
    """,
        wait=False,
    )
    workers = pids(running.stdout.readline())
    try:
        running.kill()
        running.wait(30)
        assert eventually(lambda: not any(map(alive, workers)))
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=150)


@pytest.mark.parametrize("method", METHODS)
def test_interrupt_from_the_keyboard(program, method):
    running = program(
        f"""
        with Pool(Task(), 2, method={method!r}) as pool:
            for i in range(2):
                pool.result(pool.submit(("echo", 1), worker=i))  # one that is still starting would be replaced
            try:
                print(*pool.pids, flush=True)
                pool.result(pool.submit(("sleep", 1.0)))
            except KeyboardInterrupt:
                print(results(pool, [("echo", i) for i in range(5)]), restarts(pool))
                raise
    """,
        wait=False,
    )
    workers = pids(running.stdout.readline())
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does it: to all of them
    out, err = running.communicate(timeout=150)
    assert out.strip() == "[0, 1, 2, 3, 4] 0"
    assert err.count("KeyboardInterrupt") == 1
    assert eventually(lambda: not any(map(alive, workers)))


@pytest.mark.parametrize("form", ["with pool:", "try:"])
def test_a_pool_closed_by_an_interrupt_does_not_wait(program, form):
    running = program(
        f"""
        pool = Pool(Task(), 2, method="fork")
        results(pool, [("echo", 1)] * 4)
        {form}
            pool.submit(("sleep", 1000))
            print(*pool.pids, flush=True)
            time.sleep(1000)
        {"" if form == "with pool:" else "finally: pool.close()"}
    """,
        wait=False,
        head=HEAD + "from feedline.feed.workers import limits\nlimits.GRACE_S = 1000.0\n",
    )
    workers = pids(running.stdout.readline())
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=100)
    assert err.count("KeyboardInterrupt") == 1, err
    assert eventually(lambda: not any(map(alive, workers)))


def test_a_pool_waits_for_units_of_a_dropped_one(gate):
    pool = Pool(Task(), 1)
    pids = pool.pids
    pool.submit(gate.unit())
    gate.held()
    del pool
    gc.collect()
    assert all(map(alive, pids))
    gate.let_go()
    with Pool(Task(), 1):
        assert not any(map(alive, pids))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_main_module_without_guard(program, method):
    done = program(
        f"pool = Pool(Task(), 2, method={method!r})\nprint(pool.result(pool.submit(('echo', 1))))\n", guard=False
    )
    assert done.returncode == 1
    assert done.err.count("Traceback") == 1  # the parent's alone
    assert "WorkerError" in done.err
    assert f"start method {method!r} imports it in each worker" in done.err
    assert "if __name__ == '__main__'" in done.err
    assert 'workers="thread" or multiprocessing_context="fork"' in done.err


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_pickled(program, method):
    done = program(f"task = Task()\ntask.function = lambda: 1\nPool(task, 2, method={method!r})\n")
    assert done.returncode == 1
    assert done.err.count("Traceback") == 1
    assert f"can be pickled, as start method {method!r} sends them to workers; got: " in done.err
    assert 'workers="thread" or multiprocessing_context="fork"' in done.err.splitlines()[-1]


def test_threads_at_the_end(program):
    done = program("""
        pool = Pool(Task(), 2, kind="thread")
        print(results(pool, [("echo", i) for i in range(3)]))
        pool.submit(("sleep", 0.2))
    """)
    assert (done.out.strip(), done.err, done.returncode) == ("[0, 1, 2]", "", 0)


def test_too_few_descriptors(program):
    done = program("""
        import resource
        with Pool(Task(), 1) as pool:
            results(pool, [("echo", 1)])
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, used + 20))
        before = len(os.listdir("/proc/self/fd"))
        try:
            Pool(Task(), 64)
        except OSError as error:
            print(error.errno, error)
        print(before == len(os.listdir("/proc/self/fd")))
    """)
    assert done.out.startswith("24 [Errno 24] Too many open files: expected to open 463 more")
    assert "ulimit -n" in done.out
    assert done.out.endswith("True\n"), done.out + done.err
    assert done.err == ""


@linux_only("figures of free memory")
def test_too_little_memory(program):
    # Little is said to be there, so that even without the check nothing big is allocated.
    done = program("""
        from feedline.feed.workers import limits
        limits.available = lambda: 100 << 20
        with Pool(Task(), 1, method="fork") as pool:
            try:
                pool.result(pool.submit(("fill", 0, (50 << 20,), "u1")))
            except MemoryError as error:
                print(error)
            print(pool.result(pool.submit(("echo", 1))))
    """)
    assert "expected room for 50.0 MiB of shared memory" in done.out
    assert "free on the machine" in done.out
    assert done.out.endswith("\n1\n")


@pytest.mark.parametrize("cycles", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_starting_and_stopping_leaves_nothing(program, cycles):
    done = program(f"""
        import gc, threading
        from tests.feed.workers.tasks import alive, descriptors, eventually, segments

        def cycle(i):
            pool = Pool(Task(), 2, kind="thread" if i % 5 == 4 else "process")
            tickets = [pool.submit(("fill", i)) for i in range(6)]
            if i % 5 == 0:
                kept = [pool.result(ticket) for ticket in tickets]
                pool.close()
            elif i % 5 == 1:
                pool.result(tickets[0])  # the rest is dropped
            elif i % 5 == 2:
                os.kill(pool.pids[0], signal.SIGKILL)
                pool.result(tickets[5])
            return [] if i % 5 == 4 else pool.pids

        cycle(0)
        gc.collect()
        before = len(descriptors()), segments(), threading.active_count()
        workers = [pid for i in range({cycles}) for pid in cycle(i)]
        gc.collect()
        assert eventually(lambda: not any(map(alive, workers)))
        print(before == (len(descriptors()), segments(), threading.active_count()))
        print(before, len(descriptors()), segments(), threading.active_count(), len(workers), file=sys.stderr)
    """)
    assert done.out == "True\n", done.err
