"""Streams, schemas, chunks, minibatches and the clock: declared once, checked where made, readable when printed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import feedline as fl
from feedline import Chunk, DataError, Minibatch, Position, Schema, SchemaError, StateError, Stream, Value


def test_a_stream_is_normalised():
    """An int is a vector. Dtypes are NumPy's."""
    assert Stream(shape=4) == Stream((4,), np.float32)
    assert Stream().shape == ()
    assert Stream(shape=(2, 3)).size == 6
    assert repr(Stream(3, sparse=True, field="S0")) == "Stream(shape=(3,), dtype='float32', sparse=True, field='S0')"
    assert pickle.loads(pickle.dumps(Stream(3, "int8"))) == Stream(3, "int8")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), ValueError),
        (((2, -3),), ValueError),
        ((2, object), TypeError),
        ((2, "S"), ValueError),
        (((), "str", True), ValueError),
        ((2, "V"), TypeError),
        ((2, "float99"), TypeError),
    ],
)
def test_a_stream_refuses(arguments, error):
    """Negative dimensions and dtypes without a size."""
    with pytest.raises(error, match="expected"):
        Stream(*arguments)


def test_sparse_streams_are_vectors():
    """A sparse sample has one dimension."""
    with pytest.raises(ValueError, match="one dimension"):
        Stream((2, 2), sparse=True)


def test_schema():
    """The digest covers exactly the delivered streams."""
    schema = Schema({"x": Stream(4), "y": Stream(2, sparse=True, defines_size=True)})
    assert list(schema) == ["x", "y"]
    assert schema.size_stream == "y"
    assert schema.digest == Schema({"x": Stream(4, field="other"), "y": schema["y"]}).digest
    for other in ({"x": Stream(5), "y": schema["y"]}, {"y": schema["y"], "x": Stream(4)}, {"x": Stream(4)}):
        assert Schema(other).digest != schema.digest
    with pytest.raises(KeyError, match="x, y"):
        schema["z"]
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert repr(schema).splitlines()[0] == "Schema(2 streams)"


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ({}, "at least one"),
        ({"": Stream()}, "non-empty"),
        ({"x\udcff": Stream()}, "that UTF-8 can encode"),
        ({"x": 4}, "fl.Stream"),
        ({"x": Stream(defines_size=True), "y": Stream(defines_size=True)}, "x, y"),
    ],
)
def test_schema_refuses(streams, message):
    """An impossible schema is refused with the reason."""
    with pytest.raises(SchemaError, match=message):
        Schema(streams)


def test_chunk():
    """A chunk has the schema's streams, which agree on the number of sequences."""
    schema = Schema({"x": Stream(2), "y": Stream()})
    x, y = Value.from_dense(np.zeros((3, 2), "f4")), Value.from_dense(np.zeros(3, "f4"))
    chunk = Chunk(schema, {"y": y, "x": x}, {1: DataError("bad")})
    assert list(chunk) == ["x", "y"]
    assert chunk.valid.tolist() == [True, False, True]
    assert list(chunk.take(np.array([2, 1, 1])).errors) == [1, 2]
    assert "1 unreadable" in repr(chunk)
    with pytest.raises(SchemaError, match="x, y"):
        Chunk(schema, {"x": x})
    with pytest.raises(SchemaError, match="same number of sequences"):
        Chunk(schema, {"x": x, "y": Value.from_dense(np.zeros(2, "f4"))})
    with pytest.raises(SchemaError, match="`y`"):
        Chunk(schema, {"x": x, "y": Value.from_dense(np.zeros(3, "f8"))})


def test_minibatch_truth():
    """Only the end is false. An empty part is true."""
    schema = Schema({"x": Stream()})
    empty = Minibatch(
        schema,
        {"x": Value.empty(schema["x"])},
        np.empty(0, np.int64),
        num_samples=0,
        global_samples=5,
        position=Position(),
        sweep_end=False,
    )
    end = Minibatch.end(schema, Position(1))
    assert empty
    assert not end
    assert empty != end
    with pytest.raises(KeyError, match="ended"):
        end["x"]
    with pytest.raises(KeyError, match="no stream `z`"):
        empty["z"]
    assert pickle.loads(pickle.dumps(empty)) == empty
    assert repr(end) == "Minibatch(end of source, Position(sweep 1, sequence 0, 0 samples))"
    assert repr(empty).splitlines()[0] == "Minibatch(0 sequences, 0 samples, from sweep 0 sequence 0)"


def test_spans():
    """The repr of spans names their unit."""
    assert repr(fl.sweeps(2)) == "sweeps(2)"
    assert repr(fl.minibatches(3)) == "minibatches(3)"
    assert fl.samples(5).unit is fl.Unit.SAMPLE
    with pytest.raises(ValueError, match="at least 0"):
        fl.samples(-1)
    assert type(fl.samples(np.int64(5)).count) is int
    for count in (1.5, "5", True, None):
        with pytest.raises(TypeError, match="count of minibatches as an int, got"):
            fl.minibatches(count)


def test_errors_have_their_place_and_survive_pickling():
    """Expected, got, where, what next. Fields stay readable after a process boundary."""
    error = DataError("expected 784 values, got 783", path="a.ctf", line=7, byte=99, sequence=6, hint="do this")
    assert str(error) == "expected 784 values, got 783\n  at a.ctf:7 (byte 99), sequence 6\n  do this"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.sequence) == (str(error), 7, 6)
    state = StateError("does not fit", saved={"seed": 1}, current={"seed": 2})
    assert "saved:   1" in str(state)
    assert pickle.loads(pickle.dumps(state)).current == {"seed": 2}
    assert all(issubclass(getattr(fl, n), fl.FeedlineError) for n in fl.__all__ if n.endswith("Error"))
