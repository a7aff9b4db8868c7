"""`NDArrayIter` delivers each row once per epoch, handles the last batch as requested, and resumes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
import feedline.mxnet as mx


def rows_of(iterator):
    """Batches of one epoch: lists of row numbers, and the padding."""
    return [(batch.data[0].asnumpy()[:, 0].astype(int).tolist(), batch.pad) for batch in iterator]


def numbered(n, width=2):
    return np.repeat(np.arange(n, dtype="f4")[:, None], width, 1)


SIZES = st.integers(1, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(SIZES, st.booleans(), st.sampled_from(["pad", "discard", "roll_over"]))
def test_every_row_once_an_epoch(sizes, shuffle, handling):
    n, batch = sizes
    iterator = mx.io.NDArrayIter(numbered(n), np.arange(n), batch, shuffle, handling)
    left = []
    for _ in range(3):
        batches = rows_of(iterator)
        assert all(len(rows) == batch for rows, _ in batches)
        rows = left + [row for rows, pad in batches for row in rows[: batch - pad]] if not left else []
        if handling == "pad":
            assert sorted(rows) == list(range(n))
            assert [pad for _, pad in batches] == [0] * (n // batch) + ([batch - n % batch] if n % batch else [])
            if batches[-1][1]:
                assert batches[-1][0][-batches[-1][1] :] == batches[0][0][: batches[-1][1]]
        elif handling == "discard":
            assert len(batches) == n // batch
            assert len(set(rows)) == len(rows)
        if not shuffle and handling != "roll_over":
            assert rows == list(range(n if handling == "pad" else n // batch * batch))
        iterator.reset()


@given(SIZES, st.booleans())
def test_rows_that_are_left_roll_over(sizes, shuffle):
    n, batch = sizes
    iterator = mx.io.NDArrayIter(numbered(n), None, batch, shuffle, "roll_over")
    seen, epochs = [], 4
    for epoch in range(1, epochs + 1):
        seen += [row for rows, _ in rows_of(iterator) for row in rows]
        assert len(seen) == n * epoch // batch * batch
        iterator.reset()
    for epoch in range(len(seen) // n):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_another_order_every_epoch_and_the_same_for_a_seed():
    one = mx.io.NDArrayIter(numbered(50), batch_size=10, shuffle=True, seed=4)
    two = mx.io.NDArrayIter(numbered(50), batch_size=25, shuffle=True, seed=4)
    orders = []
    for _ in range(2):
        first, second = (sum((rows for rows, _ in rows_of(i)), []) for i in (one, two))
        assert first == second
        orders.append(first)
        one.reset()
        two.reset()
    assert orders[0] != orders[1]
    assert orders[0] != sum((r for r, _ in rows_of(mx.io.NDArrayIter(numbered(50), batch_size=10, shuffle=True))), [])


@given(st.integers(0, 7), st.sampled_from(["pad", "discard", "roll_over"]))
def test_it_goes_on_where_it_stood(steps, handling):
    def make():
        return mx.io.NDArrayIter(numbered(7), np.arange(7), 3, True, handling)

    def endless(iterator):
        while True:
            yield from rows_of(iterator)
            iterator.reset()

    def step(iterator):
        if not iterator.iter_next():
            iterator.reset()
            assert iterator.iter_next()
        return iterator.getdata()[0].asnumpy().tolist(), iterator.getlabel()[0].asnumpy().tolist(), iterator.getpad()

    whole = make()
    for _ in range(steps):
        step(whole)
    state = json.loads(json.dumps(whole.state_dict()))
    resumed = make()
    resumed.load_state_dict(state)
    assert [step(whole) for _ in range(6)] == [step(resumed) for _ in range(6)]
    with pytest.raises(fl.StateError):
        mx.io.NDArrayIter(numbered(8), np.arange(8), 3, True, handling).load_state_dict(state)


def test_a_batch_and_its_descriptions():
    data = {"word": np.arange(12).reshape(4, 3), "where": mx.nd.array([1, 2, 3, 4], dtype="int32")}
    iterator = mx.io.NDArrayIter(data, {"score": [1.0, 2, 3, 4]}, batch_size=2)
    assert iterator.provide_data == [("word", (2, 3)), ("where", (2,))]
    assert iterator.provide_label == [("score", (2,))]
    assert [d.dtype for d in iterator.provide_data] == [np.float32, np.int32]
    assert str(iterator.provide_data[0]) == "DataDesc[word,(2, 3),<class 'numpy.float32'>,NCHW]"
    name, shape = iterator.provide_label[0]
    assert (name, shape) == ("score", (2,))
    batch = next(iterator)
    assert [a.dtype for a in batch.data] == [np.float32, np.int32]
    assert batch.label[0].asnumpy().tolist() == [1, 2]
    assert (batch.pad, batch.index) == (0, None)
    assert str(batch) == "DataBatch: data shapes: [(2, 3), (2,)] label shapes: [(2,)]"
    batch.data[0][:] = 0  # a batch is the caller's own
    iterator.hard_reset()
    assert next(iterator).data[0].asnumpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    several = mx.io.NDArrayIter([np.zeros((2, 1)), np.zeros((2, 1))], label_name="y", label=np.zeros(2))
    assert [d.name for d in (*several.provide_data, *several.provide_label)] == ["_0_data", "_1_data", "y"]
    assert mx.io.DataDesc.get_batch_axis("TNC") == 1
    assert mx.io.DataDesc.get_batch_axis(None) == 0


def test_reset_before_the_first_batch_changes_nothing():
    iterator = mx.io.NDArrayIter(numbered(9), batch_size=3, shuffle=True)
    untouched = rows_of(mx.io.NDArrayIter(numbered(9), batch_size=3, shuffle=True))
    iterator.reset()
    assert rows_of(iterator) == untouched
    iterator.reset()
    next(iterator)
    iterator.reset()  # in the middle: the rest of that epoch is gone
    assert sorted(row for rows, _ in rows_of(iterator) for row in rows) == list(range(9))


def test_what_does_not_fit_is_refused():
    for arguments, message in (
        ((None,), "expected data"),
        (([],), "expected data, got none"),
        ((numbered(3), np.zeros(4)), "arrays of equal lengths"),
        ((numbered(3), None, 4), "from 1 to 3, the number of rows"),
        ((numbered(3), None, 0), "from 1 to 3, the number of rows"),
        ((np.float32(3), None, 1), "rows for data, got a single number"),
        ((numbered(3), np.float32(3), 1), "rows for softmax_label"),
        ((numbered(3), None, 1, False, "keep"), "pad, discard or roll_over"),
    ):
        with pytest.raises(ValueError, match=message):
            mx.io.NDArrayIter(*arguments)
    with pytest.raises(ValueError, match="none yet in this epoch"):
        mx.io.NDArrayIter(numbered(3)).getdata()
    with pytest.raises(TypeError, match="Data must be list of NDArrays"):
        mx.io.DataBatch(mx.nd.ones(2))
    with pytest.raises(NotImplementedError, match=r"DataIter\.iter_next"):
        next(mx.io.DataIter())


@pytest.mark.parametrize("state", [{}, None, {"epoch": 1, "begun": True}, {"epoch": 0, "begun": False, "source": {}}])
def test_other_objects_than_states_are_refused(state):
    """And leaves the iterator where it stood."""
    batches = mx.io.NDArrayIter(numbered(4), None, 2)
    next(batches)
    with pytest.raises(fl.StateError):
        batches.load_state_dict(state)
    assert [batch.data[0].asnumpy().tolist() for batch in batches] == [numbered(4)[2:].tolist()]
