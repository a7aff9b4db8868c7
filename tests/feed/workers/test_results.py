"""Results of a worker are equal to what its code returned, writable and private, as long as they are kept."""

from __future__ import annotations

import collections
import gc
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedline.feed.workers import Pool, empty, message
from feedline.feed.workers.memory import Arena, SharedSpan
from tests.feed.workers.tasks import Task, eventually, results, segments
from tests.forked import Forked
from tests.inside import members_of, segment_sizes, segments_in_use, segments_of

Pair = collections.namedtuple("Pair", "left right")

ARRAYS = hnp.arrays(
    st.sampled_from(["f4", ">i8", "u1", "?", "c16", "M8[ns]", "S3", "U2", "f2", [("a", "i4"), ("b", "f8", (2,))]]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


def views(arrays):
    """Draw arrays, also sliced and transposed."""
    steps = st.sampled_from([1, 2, -1])
    return st.builds(lambda a, turn, step: (a.T if turn else a)[::step] if a.ndim else a, arrays, st.booleans(), steps)


LEAVES = views(ARRAYS) | st.none() | st.integers() | st.text(max_size=5) | st.binary(max_size=100)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(a, b):
    """Equal in type, content, and for arrays dtype and shape."""
    if isinstance(a, np.ndarray):
        content = a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes()
        return a.dtype == b.dtype and a.shape == b.shape and content and b.flags.writeable
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Side:
    """An arena and a reader of its memory, in one process."""

    def __init__(self):
        self.arena = Arena(memoryview(bytearray(5000)), 2)
        self.encoder = message.Encoder(self.arena)

    def round_trip(self, tree):
        pieces, text, _ = self.encoder.encode(tree)
        owns = {own.number: own.bytes for own in segments_of(self.arena)}
        buffers = [owns[n][at : at + size] for n, at, size in pieces]
        if isinstance(text, SharedSpan):
            text = bytes(owns[text.number][text.offset : text.offset + text.nbytes])
        got = message.decode(text, buffers)
        self.arena.sent()
        return got


@given(TREES, st.sampled_from([0, 64, 4096]))
def test_trees_come_back_equal(tree, inline):
    before, message.INLINE_BYTES = message.INLINE_BYTES, inline
    try:
        assert same(tree, Side().round_trip(tree))
    finally:
        message.INLINE_BYTES = before


def test_trees_come_back_equal_from_a_process(pool):
    trees = [
        Pair(np.arange(10), {"x": [np.ones((100, 100)), "s"]}),
        np.zeros((0, 3), ">i2"),
        [np.ones((300, 200)).T, np.arange(100000)[::-3], np.broadcast_to(np.float32(3), (70, 70))],
        "x" * 1_000_000,
        np.array(["a", None], object),
        [{"a": i} for i in range(20000)],
        bytes(300000),
    ]
    for tree, got in zip(trees, results(pool, [("echo", tree) for tree in trees]), strict=True):
        assert same(tree, got)


def test_dense_strides_are_kept(pool):
    array = np.arange(2 * 30 * 40 * 3, dtype="f4").reshape(2, 30, 40, 3).transpose(0, 3, 1, 2)
    got = pool.result(pool.submit(("echo", array)))
    assert got.strides == array.strides
    np.testing.assert_array_equal(got, array)


def test_one_object_twice_is_one_object_twice(pool):
    array = np.ones((100, 100))
    a, b = pool.result(pool.submit(("echo", (array, array))))
    assert a is b


@pytest.mark.parametrize("what", ["fill", "copied"])
def test_a_batch_that_is_kept_stays_as_it_was(pool, what):
    kept = [pool.result(pool.submit((what, i))) for i in range(100)]
    for i, array in enumerate(kept):
        assert (array == i).all()
        array[:] = -i
    for i, array in enumerate(kept):
        assert (array == -i).all()


def test_memory_is_used_again_when_the_last_view_dies(pool):
    for worker in range(pool.workers):  # so that both have been heard of
        for ticket in [pool.submit(("fill", i), worker) for i in range(4)]:
            pool.result(ticket)
    peak = segments()
    for i in range(200):
        row = pool.result(pool.submit(("fill", i)))[3]
        assert (row == i).all()
        del row
    assert segments() <= peak


def test_a_small_view_keeps_the_whole_batch(pool):
    rows = [pool.result(pool.submit(("fill", i)))[5, 1:3] for i in range(30)]
    results(pool, [("fill", -1) for _ in range(30)])
    assert [row.tolist() for row in rows] == [[i, i] for i in range(30)]


def test_what_is_kept_outlives_the_pool():
    with Pool(Task(), 2) as pool:
        kept = results(pool, [("fill", i) for i in range(10)])
    for i, array in enumerate(kept):
        assert (array == i).all()
        array += 1
    del array
    before = segments()
    del kept
    assert segments() < before


def test_more_kept_than_descriptors_are_allowed(pool):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 12, limits[1]))
    try:
        kept = [pool.result(pool.submit(("fill", i))) for i in range(300)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert all((array == i).all() for i, array in enumerate(kept))


def test_units_that_grow_and_shrink(pool):
    for size in [1, 5000, 100, 100_000, 3, 400_000, 50, 2000, 800_000, 2000]:
        for value in range(3):
            assert (pool.result(pool.submit(("fill", value, (size,)))) == value).all()


def test_segments_that_have_become_too_small_go(pool):
    for _ in range(20):
        results(pool, [("fill", 0, (2000,))] * 4)
    for _ in range(20):
        results(pool, [("fill", 0, (500_000,))] * 4)
    assert (
        len([size for size in segment_sizes(pool) if size < 2_000_000]) <= 2
    )  # a worker that got no unit has not noticed yet


def test_segments_that_are_not_needed_any_more_go():
    with Pool(Task(), 1, depth=1) as pool:
        kept = [pool.result(pool.submit(("fill", i))) for i in range(30)]
        del kept
        gc.collect()
        assert segments() >= 30
        for i in range(100):
            assert (pool.result(pool.submit(("fill", i))) == i).all()
        assert segments() <= 5


def test_cancelled_results_give_their_memory_back(pool):
    for _ in range(20):
        tickets = [pool.submit(("fill", 1)) for _ in range(6)]
        pool.any_of(tickets)
        pool.cancel()
    pool.result(pool.submit(("echo", 1)))
    results(pool, [("fill", 1)] * 4)
    for worker in members_of(pool):
        assert eventually(lambda worker=worker: worker.running is None)
    # Segments that are not free after this are being written, and none is.
    pool.result(pool.submit(("echo", 1), worker=0)), pool.result(pool.submit(("echo", 1), worker=1))
    assert segments_in_use(pool) == 0


def test_failed_units_give_their_memory_back(pool):
    for _ in range(30):
        with pytest.raises(ZeroDivisionError):
            pool.result(pool.submit(("evaluate", "(__import__('feedline').feed.workers.empty(9999, 'f8'), 1 / 0)")))
    assert segments_in_use(pool) == 0


def test_empty_outside_of_workers_is_plain():
    array = empty((3, 4), "i2")
    assert array.shape == (3, 4)
    assert array.dtype == np.int16
    assert array.base is None


def test_what_is_made_in_place_is_not_copied(pool):
    code = """[(a := __import__('feedline').feed.workers.empty((1000, 100), 'f4')).ctypes.data,
               *__import__('tests.inside').inside.result_memory(a)]"""
    address, encoded, used = pool.result(pool.submit(("evaluate", code)))
    assert (encoded, used) == (address, [400000])


def test_a_fork_keeps_what_it_inherits(pool):
    held = [pool.result(pool.submit(("fill", 7)))]
    go_reading, go_writing = os.pipe()

    def look():
        os.read(go_reading, 1)
        return (held[0] == 7).all()

    child = Forked(look)
    held.clear()
    results(pool, [("fill", 1)] * 20)
    os.write(go_writing, b"g")
    assert child.status() == 0
    for fd in (go_reading, go_writing):
        os.close(fd)


def test_object_that_cannot_be_pickled(pool):
    with pytest.raises(Exception, match="pickle"):
        pool.result(pool.submit(("evaluate", "lambda: 0")))
    assert pool.result(pool.submit(("echo", 1))) == 1
