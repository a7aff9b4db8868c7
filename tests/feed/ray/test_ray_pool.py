"""The pool with actors of Ray: errors, death, back-pressure, and what is left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import feedline as fl
from feedline.errors import WorkerError
from feedline.feed.workers import Pool, ray_pool
from tests.docs.pages import IMPORTED_FROM, ROOT
from tests.feed.ray.data import Deadly, Failing, Locked, Noting
from tests.feed.workers.tasks import BrokenPickle, BrokenStart, Task, alive, eventually, results
from tests.laws.items import Augmented, Plain, content

# Not imported, as it would read its settings before they are set.
if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed (pip install 'feedline[ray]')", allow_module_level=True)

pytestmark = [
    pytest.mark.frameworks("ray"),
    pytest.mark.slow,
    # Ray's own.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def pool():
    with Pool(Task(), 2, kind="ray") as pool:
        yield pool


def test_results_come_back_whatever_their_size(pool):
    units = [("echo", i) for i in range(50)] + [("copied", i, (64, 64 * (1 + i % 9))) for i in range(50)]
    got = results(pool, units)
    assert got[:50] == list(range(50))
    assert all((array == i).all() and array.flags.writeable for i, array in enumerate(got[50:]))


def test_units_for_one_worker_run_there_in_order(pool):
    before = [pool.result(pool.submit(("count",), worker=1)) for _ in range(2)]
    tickets = [pool.submit(("count",), worker=1) for _ in range(20)]
    assert [pool.result(ticket) for ticket in tickets] == [(1, before[-1][1] + 1 + i) for i in range(20)]


def test_strange_arrays(pool):
    code = (
        "[np.arange(4000.0)[::2], np.asfortranarray(np.ones((70, 80))), np.array(['a' * 2000] * 9), np.zeros((0, 5)), "
        "np.array(['2020'] * 900, 'M8[D]'), np.array([{1: 2}], object), np.broadcast_to(np.float32(3), (90, 90))]"
    )
    here = eval(code)
    for ours, theirs in zip(here, pool.result(pool.submit(("evaluate", code))), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert (ours == theirs).all()


def test_cancelled_units_are_forgotten(pool):
    tickets = [pool.submit(("echo", i)) for i in range(30)]
    pool.cancel(tickets[::2])
    assert [pool.result(ticket) for ticket in tickets[1::2]] == list(range(1, 30, 2))
    with pytest.raises(ValueError, match="unknown"):
        pool.result(tickets[0])


# ---- errors ------------------------------------------------------------------------------------------


def test_an_exception_of_the_users_code_says_where_it_was(pool):
    with pytest.raises(KeyError, match=r"Caught KeyError in DataLoader worker process \d \(Ray, pid \d+ on") as caught:
        pool.result(pool.submit(("fail", KeyError, "planted")))
    assert "tasks.py" in str(caught.value)
    assert pool.result(pool.submit(("echo", 1))) == 1


def test_an_item_that_raises_is_one_batch():
    """As with local workers: the same type, the item, the traceback; the loop may go on."""
    for kind in ("process", "ray"):
        with fl.DataLoader(Failing(40), batch_size=4, num_workers=2, workers=kind, seed=1) as loader:
            iterator = iter(loader)
            got = [content([next(iterator)]) for _ in range(4)]
            with pytest.raises(LookupError, match=r"planted in 17") as caught:
                next(iterator)
            assert "in __getitem__" in str(caught.value)
            assert "17" in str(caught.value)
            got += [content([batch]) for batch in iterator]
            assert len(got) == 9


def test_skipped_items_are_those_of_local_workers():
    found = []
    for kind in ("process", "ray"):
        with fl.DataLoader(Failing(40), 4, num_workers=2, workers=kind, seed=1, on_error="skip") as loader:
            found.append((content(loader), loader.stats().skipped))
    assert found[0] == found[1]
    assert found[1][1] == 1


def test_a_task_that_cannot_start_or_be_unpickled():
    for task, error in ((BrokenStart(), ZeroDivisionError), (BrokenPickle(), LookupError)):
        with Pool(task, 1, kind="ray") as pool, pytest.raises(error):
            pool.result(pool.submit(("echo", 1)))


def test_a_dataset_that_cannot_be_pickled():
    with pytest.raises(TypeError, match=r"dataset, collate_fn and worker_init_fn that can be pickled.*lock"):
        next(iter(fl.DataLoader(Locked(10), num_workers=1, workers="ray")))


def test_arguments():
    with pytest.raises(ValueError, match="'process', 'thread' or 'ray'"):
        Pool(Task(), 1, kind="rays")
    with pytest.raises(ValueError, match="'ray'"):
        fl.DataLoader(Plain(3), num_workers=1, workers="rays")
    with pytest.raises(ValueError, match="no multiprocessing_context"):
        fl.DataLoader(Plain(3), num_workers=1, workers="ray", multiprocessing_context="fork")
    assert content(fl.DataLoader(Plain(3), workers="ray")) == content(fl.DataLoader(Plain(3)))


def test_without_ray_the_error_names_the_extra(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'feedline[ray]'")):
        fl.DataLoader(Plain(3), num_workers=1, workers="ray")
    with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'feedline[ray]'")):
        Pool(Task(), 1, kind="ray")


def test_that_no_worker_starts_is_an_error(monkeypatch):
    monkeypatch.setattr(ray_pool, "_START_S", 0.0)
    monkeypatch.setattr(ray_pool, "_LOOK_S", 0.01)
    with Pool(Task(), 1, kind="ray") as pool, pytest.raises(WorkerError, match=r"no actor within 0 s.*CPUs are free"):
        pool.result(pool.submit(("echo", 1)))


# ---- death -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["kill", "segfault", "exit", "SystemExit"])
def test_a_unit_that_kills_once_is_run_again(how, tmp_path):
    with Pool(Task(), 2, kind="ray") as pool:
        tickets = [pool.submit(("echo", i)) for i in range(20)]
        tickets.append(pool.submit(("die", how, str(tmp_path / "mark"), "")))
        tickets += [pool.submit(("copied", i)) for i in range(20)]
        got = [pool.result(ticket) for ticket in tickets]
        assert got[:21] == [*range(20), "alive"]
        assert all((array == i).all() for i, array in enumerate(got[21:]))
        assert pool.stats().restarts == 1


def test_a_unit_that_kills_twice_is_an_error_and_no_other_is():
    with Pool(Task(), 2, kind="ray") as pool:
        results(pool, [("echo", i) for i in range(40)])  # intervals of many units, now that they are known to be short
        tickets = [pool.submit(("echo", i)) for i in range(20)]
        bad = pool.submit(("die", "kill", None, ""))
        more = [pool.submit(("echo", i)) for i in range(20)]
        with pytest.raises(
            WorkerError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly, twice"
        ) as caught:
            pool.result(bad)
        assert caught.value.unit == ("die", "kill", None, "")
        assert "Ray says" in str(caught.value)
        assert [pool.result(ticket) for ticket in tickets + more] == [*range(20), *range(20)]
        assert pool.stats().restarts == 2


def test_a_deadly_item_is_named_in_the_error():
    with (
        fl.DataLoader(Deadly(40), batch_size=4, num_workers=2, workers="ray") as loader,
        pytest.raises(WorkerError, match=r"<items \[16, 17, 18, 19\] at place 16 of sweep 0>"),
    ):
        list(loader)


def test_a_dead_actors_interval_is_done_once_more(tmp_path):
    """What it had not returned is run again, and nothing else is."""
    with Pool(Noting(tmp_path), 2, kind="ray") as pool:
        assert eventually(lambda: all(pool.pids))
        tickets = [pool.submit(("once", i, 0.05)) for i in range(40)]
        taken = 0
        while pool.stats().workers[0].units < 3:  # from here on, it always runs one
            assert pool.result(tickets[taken]) == taken
            taken += 1
        time.sleep(0.02)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert [pool.result(ticket) for ticket in tickets[taken:]] == list(range(taken, 40))
        runs = [len((tmp_path / str(i)).read_bytes()) for i in range(40)]
        assert set(runs) == {1, 2}
        assert runs.count(2) <= 4  # at most the interval that ran
        assert pool.stats().restarts == 1


# ---- back-pressure -----------------------------------------------------------------------------------


def test_results_that_wait_are_bounded_in_bytes(tmp_path):
    nbytes, budget = 1 << 20, 5 << 20
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=budget) as pool:
        tickets = [pool.submit(("big", i, nbytes)) for i in range(60)]

        def begun():
            return len(os.listdir(tmp_path))

        taken = 0
        for ticket in tickets[:40]:
            assert (pool.result(ticket) == taken % 256).all()
            taken += 1
            if taken % 10 == 0:
                time.sleep(0.3)  # time for workers to run ahead, if they may
            assert begun() - taken <= budget // nbytes
        assert begun() > taken
        # The last one is wanted first: the others must not be in its way, though they fill the budget.
        assert (pool.result(tickets[-1]) == 59).all()
        assert begun() == 60


def test_a_caller_that_wakes_up_late_lets_no_more_results_wait(tmp_path):
    """It waits for a result until it runs, on a busy machine long after the result has come."""

    class Sleepy(threading.Condition):
        def wait(self, timeout=None):
            there = super().wait(timeout)
            self.release()
            time.sleep(1)
            self.acquire()
            return there

    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=5 << 20) as pool:
        shared = pool._backend._shared
        shared.came = Sleepy(shared.lock)
        tickets = [pool.submit(("big", i, 1 << 20)) for i in range(20)]
        assert (pool.result(tickets[0]) == 0).all()
        assert len(os.listdir(tmp_path)) <= 1 + 5


def test_room_that_is_made_is_used_though_nobody_waits(tmp_path):
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=5 << 20) as pool:
        tickets = [pool.submit(("big", i, 1 << 20)) for i in range(20)]
        assert eventually(lambda: len(os.listdir(tmp_path)) == 4)
        time.sleep(0.3)
        assert len(os.listdir(tmp_path)) == 4
        assert all((pool.result(ticket) == i).all() for i, ticket in enumerate(tickets[:2]))
        assert eventually(lambda: len(os.listdir(tmp_path)) == 6)


def test_a_result_beyond_the_budget_comes_all_the_same(tmp_path):
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=1000) as pool:
        tickets = [pool.submit(("big", i, 100_000)) for i in range(6)]
        assert all((pool.result(ticket) == i).all() for i, ticket in enumerate(tickets))


# ---- what is left behind -----------------------------------------------------------------------------


def test_close_ends_the_actors(tmp_path):
    pool = Pool(Task(), 2, kind="ray")
    results(pool, [("echo", 0)] * 20)
    assert eventually(lambda: all(pool.pids))
    pids = pool.pids
    assert all(map(alive, pids))
    pool.close()
    pool.close()
    assert eventually(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(("echo", 1))


def test_a_loader_that_is_dropped_ends_its_actors():
    loader = fl.DataLoader(Augmented(40), batch_size=4, num_workers=2, workers="ray")
    iterator = iter(loader)
    next(iterator)
    pids = [pid for pid in loader.pids if pid]
    del loader, iterator
    assert pids
    assert eventually(lambda: not any(map(alive, pids)))


PROGRAM = """
    import json, os, signal, sys, time
    import feedline as fl
    from feedline.interop import ray_session
    from feedline.interop.ray_supervisor import descendants
    from tests.feed.ray.data import Slow

    if __name__ == "__main__":
        loader = fl.DataLoader(Slow(10**6), batch_size=4, num_workers=2, workers="ray")
        told = False
        for batch in loader:
            if not told and all(loader.pids):
                told = True
                ray = ray_session._private
                everybody = [ray.supervisor, *descendants(ray.supervisor)]
                print(json.dumps({"actors": loader.pids, "all": everybody}), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_stopped_leaves_no_process(number, tmp_path):
    """Ctrl-C, or a kill: neither actors nor any other process of the Ray that it started."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    path = os.pathsep.join([IMPORTED_FROM, str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": "local"}
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        said = json.loads(program.stdout.readline())
        assert all(map(alive, said["actors"]))
        program.send_signal(number)
        _, errors = program.communicate(timeout=60)
    assert program.returncode, errors
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
    assert eventually(lambda: not any(map(alive, said["actors"])))
    assert eventually(lambda: not any(map(alive, said["all"])))


def test_classes_of_the_main_module_go_to_the_workers_and_back(tmp_path, joining):
    """As in a notebook: dataset, sample and exception are defined in the program itself."""
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import typing
            import feedline as fl

            class Sample(typing.NamedTuple):
                x: float

            class Odd(Exception):
                pass

            class Items:
                def __len__(self):
                    return 6
                def __getitem__(self, index):
                    if index == 5:
                        raise Odd("planted")
                    return Sample(float(index))

            loader = fl.DataLoader(Items(), num_workers=1, workers="ray", collate_fn=lambda items: items[0])
            iterator = iter(loader)
            got = [next(iterator) for _ in range(5)]
            assert all(type(each) is Sample for each in got), got
            try:
                next(iterator)
            except Odd as error:
                print("odd", [each.x for each in got], "planted" in str(error))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        env={**os.environ, "PYTHONPATH": IMPORTED_FROM, **joining},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "odd [0.0, 1.0, 2.0, 3.0, 4.0] True" in done.stdout


def test_the_pool_survives_a_pickle_of_its_loader():
    with fl.DataLoader(Augmented(20), batch_size=4, num_workers=1, workers="ray", seed=1) as loader:
        expected = content(loader)
        copy = pickle.loads(pickle.dumps(loader))
        copy.load_state_dict(fl.DataLoader(Augmented(20), batch_size=4, seed=1).state_dict())
        assert content(copy) == expected
        copy.close()


def test_large_arrays_travel_apart_from_the_pickle(pool):
    array = pool.result(pool.submit(("copied", 7, (1000, 1000))))
    assert array.shape == (1000, 1000)
    assert (array == 7).all()
    assert isinstance(array, np.ndarray)
