"""The barrier of ``dist_async`` opens if and only if all workers wait at it at once. Without Ray."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.collective.refusal import RefusedError
from feedline.errors import StoreError
from feedline.kvstore.parameter_server import coordinator
from feedline.kvstore.parameter_server.coordinator import Coordinator
from feedline.kvstore.parameter_server.store import AsyncStore
from tests.inside import be_patient
from tests.kvstore.ray_double import ADDRESS, AFTER, TAKEN, Ray

WORKERS = ("a", "b", "c")


async def joined(workers):
    with Ray():
        made = Coordinator("store", len(workers), 1, ".")
    for rank, worker in enumerate(workers):
        await made.join(worker, rank, "here")
    return made


async def settled():
    for _ in range(5):
        await asyncio.sleep(0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "come", "come", "give up", "withdraw"]), st.sampled_from(WORKERS)), max_size=25
)


@given(STEPS)
def test_it_opens_for_waiting_callers_and_not_for_ones_that_gave_up(steps):
    async def follow():
        made, waiting = await joined(WORKERS), {}
        try:
            for what, worker in steps:
                if what == "come" and worker not in waiting:
                    waiting[worker] = asyncio.create_task(made.arrive(worker, None, 1000.0))
                elif what == "give up" and worker in waiting:
                    waiting.pop(worker).cancel()
                elif what == "withdraw" and worker in waiting:
                    await made.withdraw(worker)
                    waiting.pop(worker).cancel()
                await settled()
                done = {worker for worker, task in waiting.items() if task.done()}
                assert done == (set(WORKERS) if len(waiting) == len(WORKERS) else set())
                if done:
                    assert [await task for task in waiting.values()] == [None] * 3
                    waiting = {}
        finally:
            for task in (*waiting.values(), made.watch):
                task.cancel()
            await settled()

    asyncio.run(follow())


def test_who_gave_up_after_a_while_does_not_count():
    async def follow():
        made = await joined("ab")
        ticket, missing = await made.arrive("a", None, 0.01)
        assert missing[1][1].startswith("is alive")
        _, missing = await made.arrive("b", None, 0.01)
        assert missing[0][1].startswith("is alive")
        both = [made.arrive("a", ticket, 1000.0), made.arrive("b", None, 1000.0)]
        assert await asyncio.gather(*both) == [None, None]
        assert await made.arrive("a", ticket, 0.0) is None  # that barrier has opened
        made.watch.cancel()

    asyncio.run(follow())


@pytest.mark.parametrize("how", ["leaves", "is replaced"])
def test_who_left_while_waiting_does_not_count(how):
    async def follow():
        made = await joined("ab")
        first = asyncio.create_task(made.arrive("a", None, 1000.0))
        await settled()
        if how == "leaves":
            await made.leave("a")
        else:
            made.silences["a"].add(coordinator.SILENT_S)
            await made.join("other", 0, "there")
        _, missing = await made.arrive("b", None, 0.01)
        assert list(missing) == [0]
        first.cancel()
        made.watch.cancel()

    asyncio.run(follow())


def test_a_call_that_ends_late_does_not_take_a_later_one_along():
    async def follow():
        made = await joined("ab")
        first = asyncio.create_task(made.arrive("a", None, 0.05))
        await settled()
        again = asyncio.create_task(made.arrive("a", None, 1000.0))
        await first
        assert await made.arrive("b", None, 1000.0) is None
        assert await again is None
        made.watch.cancel()

    asyncio.run(follow())


# ---- as a store calls it ----------------------------------------------------------------------------------------


def two(folder, ray):
    options = {"workers": 2, "servers": 1, "snapshots": folder}
    return [AsyncStore(address=ADDRESS, rank=rank, timeout=20.0, **options) for rank in range(2)]


def test_a_store_that_gave_up_comes_again(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "BEAT_S", 1e6)  # no test lives that long
    with Ray() as ray:
        first, second = two(tmp_path, ray)
        for store in (first, second):  # one after another, never together
            be_patient(store, 0.2)
            with pytest.raises(StoreError, match=rf"missing rank {1 - store.rank}, which is alive"):
                store.barrier()
            be_patient(store, 20.0)
        for _ in range(3):
            other = threading.Thread(target=second.barrier)
            other.start()
            first.barrier()
            other.join()
        first.close()
        second.close()


def test_ranks_and_worker_0(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "BEAT_S", 1e6)  # no test lives that long

    def opened(**options):
        return AsyncStore(address=ADDRESS, servers=1, snapshots=tmp_path, timeout=0.2, **options)

    with Ray(), opened(workers=2, rank=1) as store:
        with pytest.raises(StoreError, match=r"rank 1 is taken by .*process"):
            opened(workers=2, rank=1)
        with pytest.raises(RefusedError, match="expected 2 workers, as the first worker set, got 3"):
            opened(workers=3, rank=0)
        with pytest.raises(StoreError, match="rank 2 is not one of 2"):
            opened(workers=3, rank=2)
        with pytest.raises(StoreError, match="worker 0 to initialise key 'w'"):
            store.init("w", torch.zeros(2))
        with pytest.raises(StoreError, match="worker 0 to set an updater"):
            store.set_optimizer("sgd")
        with pytest.raises(StoreError, match="missing rank 0, which has"):
            store.barrier()


class Interrupted(Ray):
    """A Ray in which Ctrl-C comes while the first worker waits at the barrier, after the second has arrived."""

    armed = False

    def get(self, message, timeout=None):
        if self.armed and message.method == "arrive" and threading.current_thread() is threading.main_thread():
            self.armed = False
            super().get(message, timeout)  # it has opened, but this answer is not received
            raise KeyboardInterrupt
        return super().get(message, timeout)


def test_after_ctrl_c_the_same_barrier_is_entered_again(tmp_path, monkeypatch):
    """The other worker has passed it, and the next barrier is the same one for both."""
    monkeypatch.setattr(coordinator, "BEAT_S", 1e6)  # no test lives that long
    passed = []
    with Interrupted() as ray:
        first, second = two(tmp_path, ray)

        def others():
            for number in range(2):
                second.barrier()
                passed.append(number)

        thread = threading.Thread(target=others)
        thread.start()
        ray.armed = True
        with pytest.raises(KeyboardInterrupt):
            first.barrier()
        first.barrier()
        assert passed in ([], [0])
        first.barrier()
        thread.join()
        assert passed == [0, 1]
        first.close()
        second.close()


@pytest.mark.parametrize("how", [TAKEN, AFTER])
def test_a_coordinator_that_dies_at_the_barrier_comes_back(how, tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "BEAT_S", 1e6)  # no test lives that long
    with Ray() as ray, AsyncStore(address=ADDRESS, workers=1, servers=1, snapshots=tmp_path, timeout=20.0) as store:
        ray.dies[len(ray.messages)] = how
        store.barrier()
        store.init("w", torch.zeros(1))
        store.barrier()
