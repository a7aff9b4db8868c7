"""Memory comes back when the last array over it is gone, and not before."""

import gc
import multiprocessing
import pickle
import threading
import tracemalloc

import numpy as np
import pytest

from feedline.data.recycled import MIN_BYTES, Recycled

SHAPE = (MIN_BYTES // 4, 1)


def address(array):
    return array.__array_interface__["data"][0]


def test_an_array_is_like_any_other():
    made = Recycled().empty((3, MIN_BYTES), np.float32)
    assert (made.shape, made.dtype) == ((3, MIN_BYTES), np.float32)
    assert made.flags.c_contiguous
    assert made.flags.writeable
    made[:] = 1
    assert made.sum() == 3 * MIN_BYTES


@pytest.mark.parametrize("small", [(0,), (5,), (2, 0, 3)])
def test_small_arrays_are_fresh(small):
    assert Recycled().empty(small, np.uint8).flags.owndata


def test_memory_is_used_again_once_nobody_refers_to_it():
    pool = Recycled()
    first = pool.empty(SHAPE, np.float32)
    where = address(first)
    other = pool.empty(SHAPE, np.float32)
    assert address(other) != where
    view = first[5:].T[..., ::2]
    del first
    assert address(pool.empty(SHAPE, np.float32)) != where  # dropped at once
    del view
    found = [pool.empty((MIN_BYTES // 8, 1), np.float64) for _ in range(2)]  # of another dtype
    assert where in [address(one) for one in found]


def test_a_tensor_keeps_its_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pool = Recycled()
    first = pool.empty(SHAPE, np.float32)
    first[:] = 7
    where, tensor = address(first), torch.from_numpy(first)[3:]
    del first
    pool.empty(SHAPE, np.float32)[:] = 1
    assert (tensor == 7).all()
    del tensor
    gc.collect()
    found = [pool.empty(SHAPE, np.float32) for _ in range(3)]
    assert where in [address(one) for one in found]


def test_few_spares_are_kept():
    pool = Recycled(spares=2)
    tracemalloc.start()
    try:
        arrays = [pool.empty(SHAPE, np.float32) for _ in range(5)]
        last = {address(one) for one in arrays[3:]}
        while arrays:
            del arrays[0]
        assert round(tracemalloc.get_traced_memory()[0] / MIN_BYTES) == 2
    finally:
        tracemalloc.stop()
    arrays = [pool.empty(SHAPE, np.float32) for _ in range(2)]
    assert {address(one) for one in arrays} == last


def test_other_sizes_are_not_used():
    pool = Recycled()
    pool.empty(SHAPE, np.float32)
    assert pool.empty((MIN_BYTES // 2, 4), np.float32).nbytes == 8 * MIN_BYTES


def test_threads_share_it():
    pool, wrong = Recycled(), []

    def work(number):
        for _ in range(200):
            mine = pool.empty(SHAPE, np.int32)
            mine[:] = number
            if (mine != number).any():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def child(pool, queue):
    queue.put(pool.empty(SHAPE, np.float32).nbytes)


def test_it_goes_to_other_processes():
    pool = Recycled()
    spare = pool.empty(SHAPE, np.float32)
    del spare
    assert len(pickle.dumps(pool)) < 1000  # its memory does not go along
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    with pool._lock:  # as if a thread held it
        process = context.Process(target=child, args=(pool, queue))
        process.start()
    assert queue.get() == MIN_BYTES
    process.join()
