"""Things kept within a budget, made once however many ask, and made again in a forked child."""

import pickle
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.concurrency.fork_local import PerProcess
from feedline.feed.files.lru import LruCache
from tests.forked import Forked


@given(st.lists(st.integers(0, 9)), st.integers(0, 20))
def test_keeps_the_latest_that_fit(keys, budget):
    made, kept = [], []  # the content of a slow and obvious cache, latest last
    shelf = LruCache(lambda key: made.append(key) or key, lambda item: item, budget)
    for key in keys:
        expected = [*made] if key in kept else [*made, key]
        assert shelf.get(key) == key
        assert made == expected
        kept = [*(k for k in kept if k != key), key]
        while sum(kept) > budget:
            kept.pop(0)
        assert shelf.used == sum(kept) <= budget


def test_one_thread_makes_and_the_others_wait():
    made = []

    def make(key):
        made.append(key)
        time.sleep(0.02)
        return [key]

    shelf = LruCache(make, len, 10)
    got = []
    threads = [threading.Thread(target=lambda: got.append(shelf.get(5))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [5]
    assert len(got) == 8
    assert all(item is got[0] for item in got)


def test_failures_are_not_kept():
    answers = iter([ValueError("first"), "second"])

    def make(key):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shelf = LruCache(make, len, 10)
    with pytest.raises(ValueError, match="first"):
        shelf.get(1)
    assert shelf.get(1) == "second"


def test_a_forked_child_has_its_own_lock():
    lock = PerProcess(threading.Lock)
    with lock.get():
        assert not lock.get().acquire(blocking=False)
        assert Forked(lambda: lock.get().acquire(blocking=False)).status() == 0
    assert pickle.loads(pickle.dumps(lock)).get().acquire(blocking=False)
