"""Lent buffers come back, and others are reused once nothing refers to them."""

import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch

from feedline.data.scattered import ScatteredBytes
from feedline.feed.files.buffers import ReadBuffers
from tests.forked import Forked


def test_a_buffer_is_reused_when_no_view_is_left():
    buffers = ReadBuffers(64)
    first = buffers.give(1000)
    assert len(first) >= 1000 + 2 * 64
    at = first.ctypes.data
    second = buffers.give(1000)
    assert second.ctypes.data != at
    views = [memoryview(first[100:200].view(np.int16)[:3])]  # of a view of a view
    del first
    third = buffers.give(1000)
    assert third.ctypes.data not in (at, second.ctypes.data)
    views.clear()
    assert buffers.give(900).ctypes.data == at
    assert buffers.give(5000).ctypes.data != at  # too small for it


def test_buffers_are_released_with_their_views():
    """All but two, however many were in use at the same time. All of them after `clear`."""
    buffers, size = ReadBuffers(0), 1 << 20

    def in_memory():
        return round(tracemalloc.get_traced_memory()[0] / size)

    tracemalloc.start()
    try:
        held = [buffers.give(size)[10:] for _ in range(20)]
        assert in_memory() == 20
        held.clear()
        assert in_memory() == 2
        held = [buffers.give(size) for _ in range(3)]
        assert in_memory() == 3
        buffers.clear()
        held.clear()
        assert in_memory() == 0
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[7:][1:].view(np.int16),
        lambda a: a[::-1][3:],
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 9)[4:],
        lambda a: np.asarray(memoryview(a)[5:]),
        lambda a: np.frombuffer(a, np.uint8, 50, 3),
        lambda a: np.from_dlpack(a[2:]),
        lambda a: pa.array(a[1:]).slice(3).to_numpy(),
        lambda a: torch.from_numpy(a)[3:].view(5, -1)[1:].numpy(),
        lambda a: torch.from_dlpack(a)[3:].numpy(),
        lambda a: ScatteredBytes(np.array([[3, 9], [20, 90]]), a, text=False).slice(1, 2).memory,
    ],
)
def test_what_is_seen_through_any_view_stays(view):
    buffers = ReadBuffers(0)
    given = buffers.give(108)
    given[:] = 7
    seen = view(given)
    before = seen.copy()
    del given
    others = [buffers.give(108) for _ in range(3)]
    for other in others:
        other[:] = 9
    np.testing.assert_array_equal(seen, before)


def test_a_child_process_writes_to_its_own():
    buffers = ReadBuffers(0)
    given = buffers.give(64)
    given[:] = 7

    def write():
        nonlocal given
        address = given.ctypes.data
        del given
        again = buffers.give(64)
        again[:] = 9
        return again.ctypes.data == address  # the same place, as nothing refers to it there

    assert Forked(write).status() == 0
    assert given.tobytes() == bytes([7]) * 64


def test_no_two_threads_are_given_the_same_buffer():
    buffers, wrong = ReadBuffers(0), []

    def use(number):
        for _ in range(300):
            mine = buffers.give(64)
            mine[:] = number
            views = [mine[k : k + 8] for k in range(0, 64, 8)]
            del mine
            if any((view != number).any() for view in views):
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
