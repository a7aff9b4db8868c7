"""The pool of Ray actors without Ray: intervals, errors, death and back-pressure. An actor is a thread (`actors`)."""

from __future__ import annotations

import importlib.util
import os
import pickle
import random
import re
import threading

import pytest

import feedline as fl
from feedline.errors import WorkerError, install_line
from feedline.feed.workers import Pool, ray_actor, ray_pool
from feedline.interop.ray_session import Pickling, RaySession
from tests.feed.ray.actors import Death, Ray
from tests.feed.ray.data import Locked, Noting
from tests.feed.workers.tasks import BrokenPickle, BrokenStart, Gate, Task, eventually, restarts, results
from tests.inside import shared_of
from tests.laws.items import Plain, content


@pytest.fixture
def ray(monkeypatch):
    """Pools of ``kind="ray"`` get actors of this Ray."""
    made = Ray()
    monkeypatch.setattr(ray_pool.ray_session, "check", lambda: None)
    session = RaySession(made, True)
    pickling = Pickling(lambda value: pickle.dumps(value, 5), pickle.Pickler)
    for module in (ray_pool, ray_actor):
        monkeypatch.setattr(module.ray_session, "join", lambda: session)
        monkeypatch.setattr(module.ray_session, "pickling", lambda: pickling)
        monkeypatch.setattr(module.ray_session, "place", lambda: ("here", True))
    # In Ray an actor is a process. Here the settings of workers would stay in this one.
    monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", None)
    yield made
    for actor in made.actors:
        actor.end()


class Mortal(Noting):
    """A task whose units may kill their actor."""

    def die(self, mark=None):
        """Kill it, or if ``mark`` is a path for a note, only the first time."""
        if mark is not None:
            try:
                os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return "alive"
        raise Death


class DiesAtStart(Noting):
    def start(self, worker, workers):
        raise Death


class Deadly(Plain):
    """One item kills its actor each time."""

    def __getitem__(self, index):
        if index == 17:
            raise Death
        return super().__getitem__(index)


def at_rest(pool):
    """Wait until the pool does nothing before somebody takes a result: the budget stops it, and nothing runs."""
    shared = shared_of(pool)
    assert eventually(lambda: shared.full and not shared.flying)


# ---- errors ------------------------------------------------------------------------------------------


def test_cancelled_units_are_forgotten(ray):
    with Pool(Task(), 2, kind="ray") as pool:
        tickets = [pool.submit(("echo", i)) for i in range(30)]
        pool.cancel(tickets[::2])
        assert [pool.result(ticket) for ticket in tickets[1::2]] == list(range(1, 30, 2))
        with pytest.raises(ValueError, match="unknown"):
            pool.result(tickets[0])


def test_a_task_that_cannot_start_or_be_unpickled(ray):
    for task, error in ((BrokenStart(), ZeroDivisionError), (BrokenPickle(), LookupError)):
        with Pool(task, 1, kind="ray") as pool, pytest.raises(error):
            pool.result(pool.submit(("echo", 1)))


def test_a_dataset_that_cannot_be_pickled(ray):
    with pytest.raises(TypeError, match=r"dataset, collate_fn and worker_init_fn that can be pickled.*lock"):
        next(iter(fl.DataLoader(Locked(10), num_workers=1, workers="ray")))


def test_arguments(ray, tmp_path):
    with pytest.raises(ValueError, match="'process', 'thread' or 'ray'"):
        Pool(Task(), 1, kind="rays")
    with pytest.raises(ValueError, match="'ray'"):
        fl.DataLoader(Plain(3), num_workers=1, workers="rays")
    with pytest.raises(ValueError, match="no multiprocessing_context"):
        fl.DataLoader(Plain(3), num_workers=1, workers="ray", multiprocessing_context="fork")
    assert content(fl.DataLoader(Plain(3), workers="ray")) == content(fl.DataLoader(Plain(3)))
    with pytest.raises(ValueError, match="executor 'local' or 'ray', got 'dask'"):
        fl.convert(Plain(3), tmp_path / "a", executor="dask")
    with pytest.raises(ValueError, match='expected executor="local" for an IterableDataset'):
        fl.convert(iter([1, 2]), tmp_path / "a", executor="ray")
    assert list(tmp_path.iterdir()) == []


def test_without_ray_the_error_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_line("ray"))):
        fl.DataLoader(Plain(3), num_workers=1, workers="ray")
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_line("ray"))):
        Pool(Task(), 1, kind="ray")


def test_that_no_worker_starts_is_an_error(ray, monkeypatch):
    ray.starts = False
    monkeypatch.setattr(ray_pool, "START_S", 0.0)
    monkeypatch.setattr(ray_pool, "_LOOK_S", 0.01)
    with Pool(Task(), 1, kind="ray") as pool, pytest.raises(WorkerError, match=r"no actor within 0 s.*CPUs are free"):
        pool.result(pool.submit(("echo", 1)))


# ---- death -------------------------------------------------------------------------------------------


def test_a_unit_that_kills_once_is_run_again(ray, tmp_path):
    with Pool(Mortal(tmp_path), 2, kind="ray") as pool:
        units = [*[("echo", i) for i in range(20)], ("die", str(tmp_path / "mark")), *[("echo", i) for i in range(20)]]
        assert results(pool, units) == [*range(20), "alive", *range(20)]
        assert restarts(pool) == 1
        assert len(ray.actors) == 3


def test_a_unit_that_kills_twice_is_an_error_and_no_other_is(ray, tmp_path):
    with Pool(Mortal(tmp_path), 2, kind="ray") as pool:
        results(pool, [("echo", i) for i in range(40)])  # intervals of many units, now that they are known to be short
        tickets = [pool.submit(("echo", i)) for i in range(20)]
        bad = pool.submit(("die",))
        more = [pool.submit(("echo", i)) for i in range(20)]
        with pytest.raises(
            WorkerError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly, twice"
        ) as caught:
            pool.result(bad)
        assert caught.value.unit == ("die",)
        assert "Ray says" in str(caught.value)
        assert [pool.result(ticket) for ticket in tickets + more] == [*range(20), *range(20)]
        assert restarts(pool) == 2


def test_a_deadly_item_is_named_in_the_error(ray):
    with (
        fl.DataLoader(Deadly(40), batch_size=4, num_workers=2, workers="ray") as loader,
        pytest.raises(WorkerError, match=r"<items \[16, 17, 18, 19\] at place 16 of sweep 0>"),
    ):
        list(loader)


def test_a_dead_actors_interval_is_done_once_more(ray, tmp_path):
    """What it had not returned is run again, and nothing else is."""
    gate = Gate(tmp_path)
    (notes := tmp_path / "notes").mkdir()
    with Pool(Noting(notes), 2, kind="ray") as pool:
        before = [pool.submit(("once", i), worker=0) for i in range(20)]
        held = pool.submit(gate.unit("held"), worker=0)
        after = [pool.submit(("once", i), worker=0) for i in range(20, 40)]
        gate.held()
        # Returned results were delivered. The remaining results of the interval are lost with its actor.
        back = pool.figures[0].units
        ray.actors[0].die()
        gate.let_go()
        assert [pool.result(ticket) for ticket in [*before, held, *after]] == [*range(20), "held", *range(20, 40)]
        runs = [len((notes / str(i)).read_bytes()) for i in range(40)]
        assert runs == [1] * back + [2] * (20 - back) + [1] * 20
        assert restarts(pool) == 1


def test_actors_killed_at_any_moment_lose_and_repeat_nothing(ray, tmp_path):
    rng = random.Random(3)
    with Pool(Mortal(tmp_path), 3, kind="ray") as pool:
        shared, tickets, noticed = shared_of(pool), [], 0
        for i in range(400):
            tickets.append(pool.submit(("echo", i), worker=rng.choice([None, None, 0, 2])))
            if i < 12:  # this many are in progress
                continue
            assert pool.result(tickets[i - 12]) == i - 12
            if i % 8 == 3 and restarts(pool) >= noticed:  # a unit that dies twice would be to blame
                assert eventually(lambda: not any(pending.deaths for pending in list(shared.wanted.values())))
                noticed = restarts(pool) + 1
                if rng.choice([actor for actor in ray.actors if not actor.dead]).die():  # else noticed by the next
                    assert eventually(lambda noticed=noticed: restarts(pool) >= noticed)
        assert [pool.result(ticket) for ticket in tickets[-12:]] == list(range(388, 400))
        assert restarts(pool) > 10


def test_actors_that_die_one_after_the_other_are_an_error(ray, tmp_path):
    with Pool(DiesAtStart(tmp_path), 2, kind="ray") as pool:
        ticket = pool.submit(("echo", 1))
        with pytest.raises(WorkerError, match=r"the last of (8|9) workers in a row that died without finishing a unit"):
            pool.result(ticket)


# ---- back-pressure -----------------------------------------------------------------------------------


def test_results_that_wait_are_bounded_in_bytes(ray, tmp_path):
    nbytes, budget = 1 << 20, 5 << 20
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=budget) as pool:
        tickets = [pool.submit(("big", i, nbytes)) for i in range(60)]

        def begun():
            return len(os.listdir(tmp_path))

        for taken, ticket in enumerate(tickets[:40], 1):
            assert (pool.result(ticket) == taken - 1).all()
            if taken % 10 == 0:
                at_rest(pool)
            assert begun() - taken <= budget // nbytes
        assert eventually(lambda: begun() > taken)
        # The last one is wanted first: the others must not be in its way, though they fill the budget.
        assert (pool.result(tickets[-1]) == 59).all()
        assert begun() == 60


def test_a_caller_that_wakes_up_late_lets_no_more_results_wait(ray, tmp_path):
    """It waits for a result until it runs, on a busy machine long after the result has come."""
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=5 << 20) as pool:
        shared = shared_of(pool)

        class Sleepy(threading.Condition):
            def wait(self, timeout=None):
                there = super().wait(timeout)
                self.release()
                at_rest(pool)
                self.acquire()
                return there

        shared.came = Sleepy(shared.lock)
        tickets = [pool.submit(("big", i, 1 << 20)) for i in range(20)]
        assert (pool.result(tickets[0]) == 0).all()
        assert len(os.listdir(tmp_path)) <= 1 + 5


def test_room_that_is_made_is_used_though_nobody_waits(ray, tmp_path):
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=5 << 20) as pool:
        tickets = [pool.submit(("big", i, 1 << 20)) for i in range(20)]
        at_rest(pool)
        assert len(os.listdir(tmp_path)) == 4
        assert all((pool.result(ticket) == i).all() for i, ticket in enumerate(tickets[:2]))
        assert eventually(lambda: len(os.listdir(tmp_path)) == 6)


def test_a_result_beyond_the_budget_comes_all_the_same(ray, tmp_path):
    with Pool(Noting(tmp_path), 2, kind="ray", budget_bytes=1000) as pool:
        tickets = [pool.submit(("big", i, 100_000)) for i in range(6)]
        assert all((pool.result(ticket) == i).all() for i, ticket in enumerate(tickets))
