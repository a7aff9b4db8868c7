"""Gathered and padded sequences equal slices, for every layout and dtype, and damage is refused."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline import _native
from feedline.data.faults import BadEntriesError
from feedline.errors import DataError
from tests.effort import EFFORT, examples
from tests.linux import linux_only
from tests.oracles import gather as slow

PAIR = [("a", "i4"), ("b", "f8")]
DTYPES = [
    "float32",
    "float64",
    "float16",
    "bool",
    "uint8",
    "int16",
    ">f4",
    "c16",
    "S3",
    "datetime64[s]",
    PAIR,
]
SHAPES = [(), (1,), (3,), (4, 2), (2, 3, 4), (0,), (64,), (100,), (300,)]


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


def bounds(lengths):
    return np.concatenate([[0], np.cumsum(ints(lengths))])


def rows_of(rng, n, shape, dtype):
    """Rows of any dtype from random bytes (of 0 and 1, so that bools stay bools)."""
    dtype = np.dtype(dtype)
    size = n * int(np.prod(shape, dtype=int)) * dtype.itemsize
    return np.frombuffer(rng.integers(0, 2, size, np.uint8).tobytes(), dtype).reshape(n, *shape)


def dense_chunk(rng, n, shape, dtype, ragged):
    if not ragged:
        return rows_of(rng, n, shape, dtype), None
    offsets = bounds(rng.integers(0, 5, n))
    return rows_of(rng, int(offsets[-1]), shape, dtype), offsets


def sparse_chunk(rng, n, dtype, ragged):
    offsets = bounds(rng.integers(0, 4, n)) if ragged else None
    indptr = bounds(rng.integers(0, 6, int(offsets[-1]) if ragged else n))
    return indptr, rng.integers(0, 99, indptr[-1], np.int32), rng.random(indptr[-1]).astype(dtype), offsets


def identical(a, b):
    """Assert that arrays are equal bit by bit and share no memory."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()
    assert a.flags.c_contiguous
    assert a.flags.writeable
    owner = a if a.base is None else a.base
    assert isinstance(owner, _native.ArrayMemory) or owner.flags.owndata
    assert owner.nbytes <= a.nbytes + 64


def same(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            identical(a, b)
            assert a.dtype.kind != "f" or a.ctypes.data % 64 == 0


@given(st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=6), min_size=1, max_size=3), st.data())
@settings(max_examples=examples(30))
def test_byte_strings_with_gaps(chunks, data):
    """Strings in any order that overlap in memory, mixed with chunks without gaps, are gathered alike."""
    gatherer = _native.Gatherer(["bytes"])
    for slot, strings in enumerate(chunks):
        order = data.draw(st.permutations(range(len(strings))))
        memory, spans = b"", np.zeros((len(strings), 2), np.int64)
        for i in order:
            memory += data.draw(st.binary(max_size=5))
            spans[i] = len(memory), len(memory) + len(strings[i])
            memory += strings[i]
        if data.draw(st.booleans()):
            gatherer.add(slot, [(spans.reshape(-1), np.frombuffer(memory, np.uint8))])
        else:
            packed = np.frombuffer(b"".join(strings), np.uint8)
            gatherer.add(slot, [(bounds([len(one) for one in strings]), packed, None)])
    picks = data.draw(
        st.lists(
            st.integers(0, len(chunks) - 1).flatmap(lambda s: st.tuples(st.just(s), st.integers(0, len(chunks[s]) - 1)))
        )
    )
    ((ends, found, offsets),) = gatherer.gather(ints([s for s, _ in picks], np.uint32), ints([i for _, i in picks]))
    assert offsets is None
    expected = [chunks[s][i] for s, i in picks]
    assert [found.tobytes()[a:b] for a, b in itertools.pairwise(ends)] == expected


@pytest.mark.parametrize("spans", [[0], [0, 4, 1], [-1, 2], [2, 1], [0, 6], [0, 2, 3, 2**62]])
def test_spans_outside_their_memory_are_refused(spans):
    with pytest.raises(ValueError, match="begin and end of each sample within 5 bytes"):
        _native.Gatherer(["bytes"]).add(0, [(ints(spans), np.zeros(5, np.uint8))])


def test_spans_that_change_are_refused():
    """Later, in place: the gather looks at them again."""
    spans = ints([0, 2, 2, 5])
    gatherer = _native.Gatherer(["bytes"])
    gatherer.add(0, [(spans, np.zeros(5, np.uint8))])
    spans[3] = 6
    with pytest.raises(DataError, match="impossible ones"):
        gatherer.gather(None, ints([0, 1]))


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.booleans()), max_size=3),
    st.lists(st.tuples(st.sampled_from(["float32", "float64"]), st.booleans()), max_size=2),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(0, 40),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=examples(100))
def test_gather(dense, sparse, sizes, n, by_slot, seed):
    """Any streams, any chunks, each ragged or not, slots with gaps."""
    rng = np.random.default_rng(seed)
    if not dense and not sparse:
        sparse = [("float32", True)]
    slots = rng.permutation(8)[: len(sizes)] if by_slot else [0]
    chunks = {}
    for slot, size in zip(slots, sizes, strict=False):
        some = bool(rng.random() < 0.7)  # a ragged stream may have chunks of one row a sequence
        parts = [dense_chunk(rng, size, shape, dtype, ragged and some) for dtype, shape, ragged in dense]
        chunks[int(slot)] = parts + [sparse_chunk(rng, size, dtype, ragged and some) for dtype, ragged in sparse]
    gatherer = _native.Gatherer([None] * len(dense) + [99] * len(sparse))
    for slot, parts in chunks.items():
        gatherer.add(slot, parts)
    assert gatherer.slots == sorted(chunks)
    assert [gatherer.sequences(s) for s in chunks] == list(sizes[: len(chunks)])

    filled = [slot for slot, size in zip(chunks, sizes, strict=False) if size]
    picked = rng.choice(filled, n) if filled else ints([])
    index = ints([rng.integers(gatherer.sequences(int(slot))) for slot in picked])
    got = gatherer.gather(picked.astype(np.uint32) if by_slot else None, index)
    assert len(got) == len(dense) + len(sparse)
    for s, value in enumerate(got):
        oracle = slow.dense if s < len(dense) else slow.sparse
        expected = oracle({slot: parts[s] for slot, parts in chunks.items()}, picked, index)
        if len(index) == 0:  # no chunk is involved: offsets wherever the stream has any
            ragged = any(parts[s][-1] is not None for parts in chunks.values())
            expected = (*expected[:-1], ints([0]) if ragged else None)
        same(value, expected)

    ends = ints([0, *sorted(rng.integers(0, len(index) + 1, rng.integers(0, 9))), len(index)])
    parts, nbytes = gatherer.gather_parts(picked.astype(np.uint32) if by_slot else None, index, ends)
    assert len(parts) == len(ends) - 1
    assert nbytes == sum(a.nbytes for part in parts for stream in part for a in stream if a is not None)
    for part, a, b in zip(parts, ends, ends[1:], strict=False):
        for one, other in zip(part, gatherer.gather(picked[a:b].astype(np.uint32), index[a:b]), strict=True):
            view(one, other)


def view(got, expected):
    """Equal, each at a multiple of 64 bytes."""
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()
            assert a.flags.c_contiguous
            assert a.flags.writeable
            assert a.size == 0 or a.ctypes.data % 64 == 0


def test_parts_share_no_memory():
    gatherer = _native.Gatherer([None, 9])
    csr = (ints([0, 1, 1, 3]), np.array([1, 2, 3], np.int32), np.ones(3, np.float32), ints([0, 2, 3]))
    gatherer.add(0, [(np.arange(6.0).reshape(2, 3), None), csr])
    parts, _ = gatherer.gather_parts(None, ints([0, 1, 0, 1]), ints([0, 1, 2, 4]))
    arrays = [array for part in parts for stream in part for array in stream if array is not None]
    for i, array in enumerate(arrays):
        before = [other.copy() for other in arrays]
        array += 1
        assert [k for k, other in enumerate(arrays) if not np.array_equal(other, before[k])] == [i]


@pytest.mark.parametrize("ends", [[], [1, 2], [0, 1], [0, 2, 1, 2], [0, 3]])
def test_ends_of_parts_divide_the_places(ends):
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(np.zeros(4), None)])
    with pytest.raises(ValueError, match="end at 2"):
        gatherer.gather_parts(None, ints([0, 1]), ints(ends))


def test_parts_with_bad_entries_are_none():
    """Which minibatch they are of is found by a gather of each."""
    gatherer = _native.Gatherer([2])
    gatherer.add(0, [(ints([0, 1, 2]), np.array([1, 2], np.int32), np.ones(2, np.float32), None)])
    assert gatherer.gather_parts(None, ints([0, 0]), ints([0, 1, 2])) is not None
    assert gatherer.gather_parts(None, ints([0, 1]), ints([0, 1, 2])) is None


@st.composite
def views(draw):
    """An array whose rows are a view of another: cut, stepped, turned, repeated, overlapping."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    size = int(np.prod(shape))
    base = rows_of(np.random.default_rng(draw(st.integers(0, 99))), size, (), dtype).reshape(shape)
    for _ in range(draw(st.integers(0, 4))):
        axis = draw(st.integers(0, base.ndim - 1))
        kind = draw(st.sampled_from(["step", "turn", "swap", "repeat", "window", "cut"]))
        if kind == "step":
            base = base[(slice(None),) * axis + (slice(None, None, draw(st.sampled_from([1, 2, 3, -1, -2]))),)]
        elif kind == "turn":
            base = base.transpose(draw(st.permutations(range(base.ndim))))
        elif kind == "swap":
            base = base.swapaxes(0, axis)
        elif kind == "repeat":
            base = np.broadcast_to(base, (3, *base.shape))
        elif kind == "window" and base.ndim < 6 and base.shape[axis]:
            width = draw(st.integers(1, base.shape[axis]))
            base = np.lib.stride_tricks.sliding_window_view(base, width, axis)
        elif kind == "cut":
            base = base[(slice(None),) * axis + (slice(draw(st.integers(0, 1)), None),)]
    return base


@given(st.lists(views(), min_size=1, max_size=3), st.integers(0, 30), st.integers(0, 2**32), st.booleans())
@settings(max_examples=examples(150))
def test_rows_may_be_any_view(arrays, n, seed, ragged):
    """Views are copied row by row. Chunks with and without strides or offsets may be mixed."""
    rng = np.random.default_rng(seed)
    chunks = {0: (arrays[0], None)}
    for other in arrays[1:]:
        if other.shape[1:] == arrays[0].shape[1:] and other.dtype == arrays[0].dtype:
            chunks[len(chunks)] = (other, None)
    rows = np.ascontiguousarray(arrays[0])
    offsets = ints([*(np.arange(len(rows)) // 2 * 2), len(rows)]) if ragged else None
    chunks[len(chunks)] = (rows, offsets)
    gatherer = _native.Gatherer([None])
    for slot, part in chunks.items():
        gatherer.add(slot, [part])
    filled = [slot for slot, (rows, _) in chunks.items() if len(rows)]
    picked = rng.choice(filled, n if filled else 0) if filled else ints([])
    index = ints([rng.integers(len(chunks[int(slot)][0])) for slot in picked])
    expected = slow.dense(chunks, picked, index)
    if len(index) == 0:
        expected = (expected[0], None if offsets is None else ints([0]))
    same(gatherer.gather(picked.astype(np.uint32), index)[0], expected)
    if len(index):
        same(gatherer.start(picked.astype(np.uint32), index).result()[0], expected)


def test_views_are_kept_alive_and_not_copied():
    base = np.arange(100)
    windows = np.lib.stride_tricks.sliding_window_view(base, 10)
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(windows, None)])
    base[50] = -1
    del base, windows
    gc.collect()
    ((rows, _),) = gatherer.gather(None, ints([41, 0, 90]))
    assert rows[0].tolist() == [*range(41, 50), -1]
    assert rows[1].tolist() == list(range(10))
    assert rows[2].tolist() == list(range(90, 100))
    gatherer.remove(0)
    with pytest.raises(IndexError):
        gatherer.gather(None, ints([0]))


def test_views_of_sequences_of_several_rows_are_refused():
    rows = np.arange(20)[::2]
    gatherer = _native.Gatherer([None])
    with pytest.raises(ValueError, match="C-contiguous"):
        gatherer.add(0, [(rows, ints([0, 10]))])
    gatherer.add(0, [(rows, None)])
    gatherer.add(1, [(np.arange(6), ints([0, 2, 6]))])
    assert gatherer.gather(np.zeros(2, np.uint32), ints([3, 1]))[0][0].tolist() == [6, 2]
    ((taken, offsets),) = gatherer.gather(np.array([0, 1, 0], np.uint32), ints([4, 1, 9]))
    assert (taken.tolist(), offsets.tolist()) == ([8, 2, 3, 4, 5, 18], [0, 1, 5, 6])


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 12, 16, 17, 32, 40, 63, 64, 65, 128, 200, 256, 257, 600])
def test_every_row_size_across_blocks(width):
    rng = np.random.default_rng(width)
    rows = rng.integers(0, 256, (700, width), np.uint8)
    index = rng.integers(0, 700, 1300)
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(rows, None)])
    gatherer.add(1, [(rows[::-1].copy(), None)])
    assert np.array_equal(gatherer.gather(None, index)[0][0], rows[index])
    slots = rng.integers(0, 2, 1300).astype(np.uint32)
    expected = rows[np.where(slots == 0, index, 699 - index)]
    assert np.array_equal(gatherer.gather(slots, index)[0][0], expected)


@pytest.mark.parametrize("threads", [1, 2, 3, 50])
def test_threads_do_not_change_a_large_copy(threads):
    rng = np.random.default_rng(0)
    parts = [
        dense_chunk(rng, 9000, (40,), "float32", ragged=False),
        dense_chunk(rng, 9000, (20,), "float32", ragged=True),
        sparse_chunk(rng, 9000, "float64", ragged=True),
    ]
    gatherer = _native.Gatherer([None, None, 99])
    gatherer.add(0, parts)
    index = rng.permutation(9000)
    got = gatherer.gather(None, index, threads=threads)
    assert sum(array.nbytes for value in got for array in value if array is not None) > 2**20
    for value, part, oracle in zip(got, parts, [slow.dense, slow.dense, slow.sparse], strict=True):
        same(value, oracle({0: part}, None, index))


def test_large_copy_of_fewer_sequences_than_threads():
    rows = np.arange(2**19, dtype=np.float64).reshape(2, -1)
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(rows, None)])
    assert np.array_equal(gatherer.gather(None, ints([1]), threads=8)[0][0], rows[1:])


# ---- the chunks of a gatherer


def test_chunks_live_as_long_as_they_are_held():
    class Rows(np.ndarray):
        pass

    def chunk():
        rows = np.ones((3, 2)).view(Rows)
        return rows, weakref.ref(rows)

    gatherer = _native.Gatherer([None])
    (a, dead_a), (b, dead_b), (c, dead_c) = chunk(), chunk(), chunk()
    for slot, rows in enumerate([a, b, c]):
        gatherer.add(slot, [(rows, None)])
    del a, b, c, rows
    assert np.array_equal(gatherer.gather(None, ints([2]))[0][0], np.ones((1, 2)))
    gatherer.remove(1)
    assert (dead_a() is None, dead_b() is None, dead_c() is None) == (False, True, False)
    gatherer.clear()
    assert dead_a() is None
    assert gatherer.slots == []
    gatherer.add(0, [(np.ones(3, np.uint8), None)])  # clear() also forgets dtype and shape

    # A cycle through a chunk is found by the garbage collector.
    d, dead_d = chunk()
    d.holder = cyclic = _native.Gatherer([None])
    cyclic.add(0, [(d, None)])
    del d, cyclic
    gc.collect()
    assert dead_d() is None


def test_slots_are_used_again_and_keep_the_type():
    gatherer = _native.Gatherer([None])
    gatherer.add(5, [(np.zeros((2, 3)), None)])
    gatherer.remove(5)
    assert gatherer.slots == []
    with pytest.raises(ValueError, match=r"stream 0 of slot 5: expected rows of shape \(3,\) .* got \(4,\)"):
        gatherer.add(5, [(np.zeros((2, 4)), None)])
    gatherer.add(5, [(np.ones((2, 3)), None)])
    assert gatherer.gather(ints([5], np.uint32), ints([1]))[0][0].sum() == 3


def test_chunks_may_come_and_go_while_others_are_copied():
    """A second thread gathers, without the GIL, from a slot that the first keeps taking away."""
    gatherer = _native.Gatherer([None, 20_000])
    n = 20_000

    def chunk(value):
        return [
            (np.full((n, 8), value), None),
            (np.arange(n + 1), np.full(n, value, np.int32), np.full(n, value, np.float32), None),
        ]

    gatherer.add(0, chunk(0))
    gatherer.add(1, chunk(1))
    index = np.random.default_rng(0).permutation(n)
    slots = ints(np.arange(n) % 2, np.uint32)
    wrong, done, stop = [], [0], threading.Event()

    def read():
        while not stop.is_set():
            try:
                (rows, _), (_, indices, values, _) = gatherer.gather(slots, index, threads=2)
            except IndexError:
                continue  # the moment between remove and add
            done[0] += 1
            if not all(np.array_equal(got, slots) for got in (rows[:, 0], indices, values)):
                wrong.append(rows)

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(150):
        gatherer.remove(1)
        gatherer.add(1, chunk(1))
        gatherer.add(2 + k, chunk(9))  # the table grows
        gatherer.remove(2 + k)
    while done[0] < 5:
        pass
    stop.set()
    reader.join()
    assert not wrong


# ---- damage


GOOD = [
    (np.zeros((4, 2), np.float32), ints([0, 1, 4])),
    (ints([0, 2, 3]), ints([7, 8, 9], np.int32), np.ones(3), None),
]


def with_dense(rows=GOOD[0][0], offsets=GOOD[0][1]):
    return [(rows, offsets), GOOD[1]]


def with_sparse(indptr=GOOD[1][0], indices=GOOD[1][1], values=GOOD[1][2], offsets=None):
    return [GOOD[0], (indptr, indices, values, offsets)]


@pytest.mark.parametrize(
    ("streams", "error", "message"),
    [
        (
            with_dense(offsets=ints([1, 1, 4])),
            ValueError,
            "stream 0 of slot 3: .*`offsets` to start at 0, got 1",
        ),
        (with_dense(offsets=ints([0, 5, 4])), ValueError, "to never decrease, got 5 then 4 at entries 1 and 2"),
        (with_dense(offsets=ints([0, 1, 3])), ValueError, "to end at the number of rows, 4, got 3"),
        (with_dense(offsets=ints([0, 1, 5])), ValueError, "to end at the number of rows, 4, got 5"),
        (with_dense(offsets=ints([])), ValueError, "to have at least one entry, got none"),
        (
            with_dense(offsets=ints([0, 1, 4], np.int32)),
            TypeError,
            "slot 3: .* int64 .* `offsets`, got int32",
        ),
        (with_dense(offsets=ints([0, 1, 4], ">i8")), TypeError, "int64 array for `offsets`, got >i8"),
        (with_dense(offsets=ints([0, 9, 1, 9, 4])[::2]), TypeError, "got int64 array .*, not C-contiguous"),
        (with_dense(offsets=None), ValueError, "stream 1 of slot 3: expected 4 sequences .*, got 2"),
        (
            with_dense(rows=np.zeros((2, 4), np.float32).T),
            ValueError,
            "`rows` to be C-contiguous, .*ascontiguous",
        ),
        (with_dense(rows=np.zeros((4, 2), object)), ValueError, "dtype of fixed size for `rows`, got object"),
        (with_dense(rows=np.float32(1)[None][0]), TypeError, "`rows` to be a numpy array, got float32"),
        (with_dense(rows=np.array(1.0)), ValueError, "at least one axis"),
        (with_dense(rows=[[1.0]]), TypeError, "got list"),
        (
            with_sparse(indptr=ints([0, 1, 2])),
            ValueError,
            "`indptr` to end at the number of values, 3, got 2",
        ),
        (
            with_sparse(indptr=ints([0, 4, 3])),
            ValueError,
            "stream 1 of slot 3: .*`indptr` to never decrease, got 4",
        ),
        (with_sparse(indptr=ints([-1, 2, 3])), ValueError, "`indptr` to start at 0, got -1"),
        (with_sparse(indices=ints([1, 2, 3])), TypeError, "int32 array for `indices`, got int64"),
        (with_sparse(indices=ints([1, 2], np.int32)), ValueError, "as many `indices` as `values`, 3, got 2"),
        (with_sparse(values=ints([1, 2, 3])), ValueError, "float32 or float64 `values`, got int64"),
        (with_sparse(values=np.ones(3, ">f4")), ValueError, "float32 or float64 `values`, got >f4"),
        (with_sparse(values=np.ones((3, 1))), ValueError, "one-dimensional float32"),
        (with_sparse(offsets=ints([0, 1])), ValueError, "`offsets` to end at the number of rows, 2, got 1"),
        (GOOD[:1], ValueError, "expected 2 streams, got 1"),
        ([GOOD[0][0], GOOD[1]], TypeError, "stream 0 .* expected a tuple, got float32 array"),
        ([GOOD[1], GOOD[0]], ValueError, r"expected \(rows, offsets\)"),
        ([GOOD[0], GOOD[0]], ValueError, r"expected \(indptr, indices, values, offsets\)"),
    ],
)
def test_add_refuses_and_changes_nothing(streams, error, message):
    gatherer = _native.Gatherer([None, 20_000])
    gatherer.add(0, GOOD)
    with pytest.raises(error, match=message):
        gatherer.add(3, streams)
    assert gatherer.slots == [0]
    gatherer.add(3, GOOD)


def test_add_refuses_other_types_and_taken_slots():
    gatherer = _native.Gatherer([None, 20_000])
    gatherer.add(0, GOOD)
    with pytest.raises(ValueError, match=r"stream 0 of slot 1: expected dtype float32 .*, got float64"):
        gatherer.add(1, with_dense(rows=np.zeros((4, 2))))
    with pytest.raises(ValueError, match=r"stream 1 of slot 1: expected dtype float64 .*, got float32"):
        gatherer.add(1, with_sparse(values=np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="a vacant slot, got slot 0, which holds a chunk; remove it first"):
        gatherer.add(0, GOOD)
    for slot in (-1, 2**24):
        with pytest.raises(ValueError, match=rf"0 <= slot < 2\*\*24, got {slot}"):
            gatherer.add(slot, GOOD)
    for call in gatherer.remove, gatherer.sequences:
        with pytest.raises(IndexError, match=r"a slot that holds a chunk, one of \[0\], got slot 7"):
            call(7)
    with pytest.raises(ValueError, match="at least one stream"):
        _native.Gatherer([])


@pytest.mark.parametrize("bad", [-1, 10, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("place", [0, 57, 99])
def test_bad_index_is_found_wherever_it_is(bad, place):
    gatherer = _native.Gatherer([None])
    for slot in (0, 2):
        gatherer.add(slot, [(np.zeros(10), None)])
    index = np.arange(100) % 10
    index[place] = bad
    for slots, slot in (None, 0), (np.full(100, 2, np.uint32), 2):
        with pytest.raises(IndexError, match=f"place {place}: .* 0 to below 10 in slot {slot}, got {bad}"):
            gatherer.gather(slots, index)


@pytest.mark.parametrize("slot", [1, 3, 2**32 - 1])
def test_bad_slot_is_found(slot):
    gatherer = _native.Gatherer([None])
    for held in (0, 2):
        gatherer.add(held, [(np.zeros(10), None)])
    with pytest.raises(IndexError, match=f"place 1: expected a slot that holds a chunk, got slot {slot}"):
        gatherer.gather(ints([0, slot], np.uint32), ints([0, 0]))


def test_gather_refuses_other_arguments():
    gatherer = _native.Gatherer([None])
    with pytest.raises(ValueError, match=r"call add\(\) first"):
        gatherer.gather(None, ints([]))
    gatherer.add(1, [(np.zeros(10), None)])
    with pytest.raises(IndexError, match="got slot 0"):
        gatherer.gather(None, ints([0]))
    for index in [0], None, ints([0], np.int32), ints([0], np.uint64), ints([[0]]), ints([0, 0, 0])[::2]:
        with pytest.raises(TypeError, match="int64 array for `index`, got"):
            gatherer.gather(None, index)
    with pytest.raises(TypeError, match="uint32 array for `slots`, got int64"):
        gatherer.gather(ints([1]), ints([0]))
    with pytest.raises(ValueError, match="equal length, got 2 and 1"):
        gatherer.gather(ints([1, 1], np.uint32), ints([0]))
    with pytest.raises(ValueError, match="threads >= 1, got 0"):
        gatherer.gather(None, ints([]), threads=0)


@pytest.mark.parametrize("value", [-1, 2**62, -(2**63)])
def test_offsets_that_change_later_are_an_error_and_not_a_wild_read(value):
    offsets, indptr = ints([0, 1, 2, 4]), ints([0, 1, 2, 3, 3])
    gatherer = _native.Gatherer([None, 20_000])
    sparse = (indptr, ints([0, 1, 2], np.int32), np.ones(3), ints([0, 1, 2, 4]))
    gatherer.add(0, [(np.zeros(4), offsets), sparse])
    offsets[1] = value
    with pytest.raises(DataError, match="expected offsets as they were when their chunk was read"):
        gatherer.gather(None, ints([2, 0]))
    offsets[1] = 1
    indptr[2] = value
    with pytest.raises(DataError, match="expected offsets as they were when their chunk was read"):
        gatherer.gather(None, ints([1]))


@pytest.mark.parametrize(("row", "value"), [(1, -1), (1, 2**62), (1, 3), (2, 0)])
def test_bounds_within_a_sequence_that_change_later_are_an_error(row, value):
    """Its ends are looked at when it is planned, its rows where they have been copied to."""
    indptr = ints([0, 1, 2, 3, 4])
    gatherer = _native.Gatherer([5])
    gatherer.add(0, [(indptr, ints([0, 1, 2, 3], np.int32), np.ones(4), ints([0, 0, 3, 4]))])
    gatherer.gather(None, ints([1]))
    indptr[row] = value
    with pytest.raises(DataError, match="expected offsets as they were when their chunk was read"):
        gatherer.gather(None, ints([0, 1, 2]))
    with pytest.raises(DataError, match="expected offsets as they were when their chunk was read"):
        gatherer.start(None, ints([1])).result()
    assert gatherer.gather(None, ints([0, 2]))[0][0].tolist() == [0, 1]


def test_totals_beyond_int64_are_an_error():
    rows = np.empty((2**62, 0), np.uint8)
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(rows, ints([0, 2**62]))])
    assert gatherer.gather(None, ints([0]))[0][0].shape == (2**62, 0)
    with pytest.raises(DataError, match="under 2\\*\\*63 rows in all"):
        gatherer.gather(None, ints([0, 0]))
    gatherer.remove(0)
    gatherer.add(0, [(np.empty((2**63 - 1, 0), np.uint8), ints([0, 2**63 - 1]))])
    gatherer.add(1, [(np.empty((1, 0), np.uint8), None)])
    with pytest.raises(DataError, match="under 2\\*\\*63 rows in all"):
        gatherer.gather(ints([0, 1], np.uint32), ints([0, 0]))


# ---- entries

# On either side of both bounds, and of what 16 and 32 bits hold.
EDGES = [0, 1, 2, 6, 7, 8, 2**15, 2**16, 2**24, 2**31 - 2, 2**31 - 1, -1, -2, -7, -(2**31)]


@given(st.lists(st.sampled_from(EDGES), max_size=70), st.sampled_from([0, 1, 7, 2**16, 2**31 - 1, 2**31, 2**40]))
def test_bad_indices_are_found(indices, classes):
    array = ints(indices, np.int32)
    assert _native.first_bad_index(array, classes) == slow.bad_index(array, classes)


@pytest.mark.parametrize("n", [1, 7, 8, 31, 32, 33, 1023, 1024, 1025, 5000])
def test_bad_indices_are_found_wherever_they_are(n):
    for place in {0, n // 2, n - 1}:
        for bad in (7, -1):
            array = np.full(n, 6, np.int32)
            array[place] = bad
            assert _native.first_bad_index(array, 7) == place
            assert _native.first_bad_index(array[:place], 7) == -1


@given(st.lists(st.integers(0, 9), max_size=40), st.data())
def test_uneven_lengths_are_found(lengths, data):
    offsets, wanted = bounds(lengths), ints(lengths, np.int32)
    assert _native.first_uneven(offsets, wanted) == -1
    for array in (offsets, wanted):
        if len(array):
            place = data.draw(st.integers(0, len(array) - 1))
            array[place] += data.draw(st.sampled_from([1, -1, 2**30]))
    assert _native.first_uneven(offsets, wanted) == slow.uneven(offsets, wanted)


def test_bounds_and_their_end():
    assert _native.bounds_end(ints([0, 0, 3]), "offsets") == 3
    for array, message in (
        ([], "at least one entry"),
        ([1, 3], "`offsets` to start at 0, got 1"),
        ([0, 4, 3, 5], "`offsets` to never decrease, got 4 then 3 at entries 1 and 2"),
        ([0, -1], "`offsets` to never decrease, got 0 then -1 at entries 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.bounds_end(ints(array), "offsets")


@given(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 20))
def test_a_copy_of_an_array(dtype, shape, n):
    rows = rows_of(np.random.default_rng(n), n, shape, dtype)
    identical(_native.copied(rows), rows)
    for view in (rows[::2], rows[::-1], rows.T, np.broadcast_to(rows, (2, *rows.shape)), rows[:1].reshape(-1)[:1]):
        identical(_native.copied(view), view)
    with pytest.raises(TypeError, match="numpy array"):
        _native.copied([1])
    with pytest.raises(ValueError, match="dtype of fixed size"):
        _native.copied(np.array([None]))


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(0, 1500),
    st.sampled_from([1, 7, 99]),
    st.booleans(),
    st.sampled_from([1, 3, 2000]),
    st.integers(0, 2**32),
)
@settings(max_examples=examples(50))
def test_bad_entries_are_reported_and_replaced(sizes, n, classes, ragged, threads, seed):
    """Sparse indices and bools: the sequences with bad ones, the first bad value, and 0 in their place."""
    rng = np.random.default_rng(seed)
    chunks = []
    for size in sizes:
        flags, offsets = dense_chunk(rng, size, (3,), "bool", ragged)
        flags = flags.copy()
        flags.view(np.uint8)[rng.random(flags.shape) < 0.02] = rng.integers(2, 256)
        indptr, _, values, bounds_ = sparse_chunk(rng, size, "float32", ragged)
        indices = rng.integers(0, classes, len(values), np.int32)
        indices[rng.random(len(values)) < 0.02] = rng.choice(ints([classes, -1, 2**31 - 1, -(2**31)]))
        # Any byte may be a number.
        plain = (np.full((len(flags), 2), 200, np.uint8), offsets)
        chunks.append([(flags, offsets), (indptr, indices, values, bounds_), plain])
    gatherer = _native.Gatherer([None, classes, None], bools=True)
    for slot, chunk in enumerate(chunks):
        gatherer.add(slot, chunk)
    slots = rng.integers(0, len(sizes), n).astype(np.uint32)
    index = ints([rng.integers(sizes[slot]) for slot in slots])
    flags = slow.dense({slot: chunk[0] for slot, chunk in enumerate(chunks)}, slots, index)
    sparse = slow.sparse({slot: chunk[1] for slot, chunk in enumerate(chunks)}, slots, index)
    plain = slow.dense({slot: chunk[2] for slot, chunk in enumerate(chunks)}, slots, index)
    expected, found = [], []
    for stream, (value, good) in enumerate([(flags, lambda b: b < 2), (sparse, lambda i: 0 <= i < classes)]):
        whole, bad = slow.mended(value, good)
        expected.append(whole)
        found += [(place, stream, entry, classes if stream else None) for place, entry in bad.items()]
    for call in (
        lambda: gatherer.gather(slots, index, threads=threads),
        lambda: gatherer.start(slots, index).result(),
    ):
        try:
            got = call()
            assert found == []
        except BadEntriesError as error:
            assert [entry[:4] for entry in error.entries] == sorted(found)  # noqa: PT017  # some have no bad entry
            got = error.arrays
        if n:
            for value, oracle in zip(got, [*expected, plain], strict=True):
                same(value, oracle)


def test_bools_are_left_alone_unless_asked():
    rows = ints([0, 1, 2, 255], np.uint8).view(bool)
    plain, asked = _native.Gatherer([None]), _native.Gatherer([None], bools=True)
    for gatherer in (plain, asked):
        gatherer.add(0, [(rows, None)])
    assert plain.gather(None, ints([3, 2]))[0][0].view(np.uint8).tolist() == [255, 2]
    with pytest.raises(BadEntriesError, match="expected bools of 0 or 1, got 255"):
        asked.gather(None, ints([0, 3, 2]))


def test_bad_bools_of_views():
    flags = np.zeros(50, np.uint8)
    flags[[17, 30]] = 5, 9
    gatherer = _native.Gatherer([None], bools=True)
    gatherer.add(0, [(np.lib.stride_tricks.sliding_window_view(flags.view(bool), 4), None)])
    with pytest.raises(BadEntriesError) as caught:
        gatherer.gather(None, ints([0, 14, 17, 28, 40]))
    found = [(entry.place, entry.entry, entry.address) for entry in caught.value.entries]
    start = flags.__array_interface__["data"][0]
    assert found == [(1, 5, start + 14), (2, 5, start + 17), (3, 9, start + 28)]
    assert not caught.value.arrays[0][0].view(np.uint8).any()


@pytest.mark.parametrize(
    ("classes", "error"), [(True, TypeError), (False, TypeError), ("5", TypeError), (-1, ValueError)]
)
def test_classes_are_numbers_or_none(classes, error):
    with pytest.raises(error, match="classes"):
        _native.Gatherer([classes])


@pytest.mark.skipif("FEEDLINE_SIMD" in os.environ, reason="this run already is a variant")
def test_the_portable_variant_passes_all_of_this():
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-k",
            "bad or gather or threads",
            __file__,
        ],
        env={**os.environ, "FEEDLINE_SIMD": "portable", "FEEDLINE_EFFORT": str(EFFORT / 3)},
        check=True,
        stdout=subprocess.DEVNULL,
    )


# ---- files that are cut under their maps

PAGE = os.sysconf("SC_PAGESIZE")


def mapped(path, array):
    """A map of a file that holds ``array``."""
    array.tofile(path)
    return np.memmap(path, array.dtype, "r", shape=array.shape)


@linux_only("a table of all maps")
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("what", ["rows", "offsets", "ragged", "indptr", "indices", "values", "bounds"])
def test_a_file_that_is_cut_under_a_copy_is_an_error_that_names_it(tmp_path, what, large):
    """Each array that a gather reads, by itself. Small copies have the GIL, large ones run on threads without it."""
    n = 40_000 if large else 4000
    arrays = {
        "rows": np.ones((n, 8)),
        "offsets": np.arange(n + 1),
        "ragged": np.ones((n, 8)),
        "indptr": np.arange(n + 1),
        "indices": np.ones(n, np.int32),
        "values": np.ones(n),
        "bounds": np.arange(n + 1),
    }
    path = tmp_path / f"the {what}"
    arrays[what] = mapped(path, arrays[what])
    gatherer = _native.Gatherer([None, None, 2])
    sparse = tuple(arrays[name] for name in ("indptr", "indices", "values", "bounds"))
    chunk = [(arrays["rows"], None), (arrays["ragged"], arrays["offsets"]), sparse]
    gatherer.add(0, chunk)
    index = np.random.default_rng(0).permutation(n)
    expected = gatherer.gather(None, index)
    os.truncate(path, PAGE + 100)
    calls = [
        lambda: gatherer.gather(None, index, threads=3),
        lambda: gatherer.gather(None, ints([n - 1])),
        lambda: gatherer.start(None, index).result(),
        lambda: _native.copied(np.asarray(arrays[what])),
        lambda: _native.crc32c(arrays[what]),
    ]
    if what in ("offsets", "indptr", "bounds"):
        calls += [lambda: gatherer.add(1, chunk), lambda: _native.bounds_end(np.asarray(arrays[what]), "x")]
    for call in calls * 2:
        with pytest.raises(DataError, match=f"got one that was truncated to {PAGE + 100} bytes") as caught:
            call()
        assert caught.value.path == str(path)
        assert caught.value.byte >= PAGE
    assert gatherer.slots == [0]
    # Remaining bytes are copied as before, and so is everything once the file is whole again.
    few = gatherer.gather(None, ints([3, 1]))
    assert [array.tolist() for array in few[0][:1]] == [arrays["rows"][[3, 1]].tolist()]
    whole = np.ones((n, 8)) if what in ("rows", "ragged") else np.ones(n, arrays[what].dtype)
    whole = np.arange(n + 1) if what in ("offsets", "indptr", "bounds") else whole
    with open(path, "r+b") as file:
        file.write(whole.tobytes())
    for value, oracle in zip(gatherer.gather(None, index), expected, strict=True):
        same(value, oracle)


@linux_only("a table of all maps")
@pytest.mark.parametrize("cut", range(1, 9))
def test_a_seal_detects_a_file_that_is_cut_within_a_page(tmp_path, cut):
    """The end of the file reads as zeros, without a fault, also when other slots' files are complete."""
    rows = [mapped(tmp_path / name, np.arange(1, 51, dtype=np.uint8).reshape(10, 5)) for name in ("a", "b", "c")]
    gatherer = _native.Gatherer([None])
    for slot, array in enumerate(rows):
        seal = np.asarray(array).reshape(-1)[-8:]
        gatherer.add(slot, [(array, None)], [seal] if slot < 2 else ())
    gatherer.gather(ints([0, 1, 2], np.uint32), ints([9, 9, 9]))
    os.truncate(tmp_path / "a", 50 - cut)
    os.truncate(tmp_path / "c", 50 - cut)
    for _ in range(2):
        for slots, index in (([0], [0]), ([1, 0, 1], [1, 2, 3]), ([2, 1, 0], [1, 1, 1])):
            for call in (gatherer.gather, lambda *at: gatherer.start(*at).result()):
                with pytest.raises(DataError, match="got one that was") as caught:
                    call(ints(slots, np.uint32), ints(index))
                assert caught.value.path == str(tmp_path / "a")
    assert gatherer.gather(ints([1, 2], np.uint32), ints([9, 9]))[0][0][0].tolist() == [46, 47, 48, 49, 50]
    gatherer.remove(0)
    with pytest.raises(DataError, match="got one that was"):
        fresh = _native.Gatherer([None])
        fresh.add(0, [(rows[1], None)], [np.asarray(rows[1]).reshape(-1)[-8:]])
        os.truncate(tmp_path / "b", 0)
        fresh.gather(None, ints([0]))
    with pytest.raises(ValueError, match="a seal of 8 bytes"):
        gatherer.add(0, [(np.zeros((2, 5), np.uint8), None)], [np.zeros(7, np.uint8)])


def in_a_process(script):
    """How a Python process ends that has a gatherer over a mapped file ``path``, and `cut` to cut it."""
    start = """
    import faulthandler, os, resource, signal, sys, tempfile, time
    import numpy as np
    from feedline import _native, DataError
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path = tempfile.mkstemp()[1]
    np.ones((5000, 8)).tofile(path)
    rows = np.memmap(path, float, "r", shape=(5000, 8))
    gatherer = _native.Gatherer([None])
    gatherer.add(0, [(rows, None)])
    index = np.arange(5000)
    gatherer.gather(None, index)

    def cut():
        os.truncate(path, 4096)
        os.unlink(path)

    def gather():
        try:
            gatherer.gather(None, index)
        except DataError as error:
            print("told", flush=True)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("enabled", ["never", "before", "after", "and disabled"])
def test_others_keep_the_signal(enabled):
    """Outside of a copy a bus error ends the process, with faulthandler's traceback where that was asked for."""
    done = in_a_process(f"""
    enabled = {enabled!r}
    if enabled != "never":
        faulthandler.enable()
    if enabled == "and disabled":
        faulthandler.disable()
    if enabled == "after":
        time.sleep(0.1)  # the handler is looked for again
    cut()
    time.sleep(0.1)
    gather()
    gather()
    print(rows.sum())
    """)
    assert done.stdout == "told\n" * 2
    assert done.returncode == -7
    assert ("Fatal Python error: Bus error" in done.stderr) == (enabled in ("before", "after"))


def test_a_handler_of_python_and_a_forked_child():
    done = in_a_process("""
    signal.signal(signal.SIGBUS, lambda *_: print("got it", flush=True))
    time.sleep(0.1)
    cut()
    gather()
    os.kill(os.getpid(), signal.SIGBUS)
    if os.fork() == 0:
        gather()
        os._exit(0)
    os.wait()
    """)
    assert (done.stdout, done.returncode, done.stderr) == ("told\ngot it\ntold\n", 0, "")


# ---- padding


@given(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.lists(st.integers(0, 9), max_size=12), st.data())
def test_pad(dtype, shape, lengths, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = rows_of(rng, sum(lengths), shape, dtype)
    fill = rows_of(rng, 1, (), dtype)
    if data.draw(st.booleans()):
        fill = fill.reshape(())
    length = data.draw(st.sampled_from([-1, max(lengths, default=0), max(lengths, default=0) + 3]))
    padded, mask = _native.pad(rows, bounds(lengths), fill, length)
    same((padded, mask), slow.pad(rows, bounds(lengths), fill, length))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"length": 2}, ValueError, "at least the longest sequence, 3, or -1 for that, got 2"),
        ({"length": -2}, ValueError, "got -2"),
        ({"offsets": ints([0, 3, 5])}, ValueError, "pad: .*`offsets` to end at .* 4, got 5"),
        ({"offsets": ints([0, 5, 4])}, ValueError, "never decrease"),
        ({"offsets": ints([0, 4], np.int32)}, TypeError, "pad: expected .*`offsets`, got int32"),
        ({"fill": np.zeros(1)}, ValueError, "`fill` to be one float32 value in an array, got float64"),
        ({"fill": np.zeros(2, np.float32)}, ValueError, "`fill` to be one float32 value"),
        ({"fill": 0.0}, TypeError, "`fill` to be a numpy array, got float"),
        ({"rows": np.zeros((8, 2), np.float32)[::2]}, ValueError, "C-contiguous"),
        ({"rows": np.zeros((), np.float32)}, ValueError, "at least one axis"),
        ({"length": 2**62}, ValueError, "fit into memory"),
    ],
)
def test_pad_refuses(changes, error, message):
    rows, fill = np.zeros((4, 2), np.float32), np.zeros(1, np.float32)
    good = {"rows": rows, "offsets": ints([0, 3, 4]), "fill": fill, "length": -1}
    _native.pad(**good)
    with pytest.raises(error, match=message):
        _native.pad(**{**good, **changes})
