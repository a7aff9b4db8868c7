"""Values: rows and offsets that agree, whatever way they were made."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedline import DataError, SchemaError, StateError, Stream, Value

shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16"])
lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@st.composite
def sequences(draw):
    """A list of arrays (length, *shape) of one dtype."""
    shape, dtype = draw(shapes), draw(dtypes)
    return [draw(hnp.arrays(dtype, (n, *shape))) for n in draw(lengths)]


@st.composite
def sparse_values(draw):
    """A sparse value with repeated and unordered indices."""
    classes = draw(st.integers(1, 6))
    per = draw(lengths)
    rows = [draw(st.lists(st.integers(0, classes - 1), max_size=4)) for _ in range(sum(per))]
    flat = [i for row in rows for i in row]
    data = draw(hnp.arrays("float32", len(flat), elements=st.floats(-4, 4, width=16)))
    indptr = np.cumsum([0, *map(len, rows)])
    return Value.from_csr(indptr, flat, data, classes, np.cumsum([0, *per]))


def oracle_padded(parts, fill, length=None):
    longest = max(len(p) for p in parts) if length is None else length
    out = np.full((len(parts), longest, *parts[0].shape[1:]), fill, parts[0].dtype)
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out


@given(sequences())
def test_from_sequences_gives_them_back(parts):
    """Sequences, lengths, offsets and mask equal the input."""
    value = Value.from_sequences(parts)
    assert value.lengths.tolist() == [len(p) for p in parts]
    assert value.num_sequences == len(value) == len(parts)
    assert value.num_samples == sum(map(len, parts))
    assert value.one_sample_each == all(len(p) == 1 for p in parts)
    for got, expected in zip(value, parts, strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    assert value.mask.sum(axis=1).tolist() == [len(p) for p in parts]
    assert pickle.loads(pickle.dumps(value)) == value


@given(sequences(), st.sampled_from([0, 1]), st.integers(0, 3))
def test_padded(parts, fill, more):
    """Padding fills up to the longest, or to the length asked for."""
    value = Value.from_sequences(parts)
    expected = oracle_padded(parts, fill)
    if value.one_sample_each:
        expected = expected[:, 0]
        assert value.padded(fill) is value.rows
    np.testing.assert_array_equal(value.padded(fill), expected)
    length = max(len(p) for p in parts) + more
    np.testing.assert_array_equal(value.padded(fill, length), oracle_padded(parts, fill, length))
    np.testing.assert_array_equal(np.asarray(value), value.padded(0))


def test_padding_shorter_than_the_longest_is_refused():
    """Nothing is cut silently."""
    with pytest.raises(ValueError, match="longest"):
        Value.from_sequences([np.zeros(3), np.zeros(5)]).padded(0, 4)


@given(sequences(), st.data())
def test_select(parts, data):
    """Any choice of sequences, repeated or not, in any order."""
    which = data.draw(st.lists(st.integers(0, len(parts) - 1), max_size=10))
    got = Value.from_sequences(parts).select(which)
    assert [g.tobytes() for g in got] == [parts[i].tobytes() for i in which]
    with pytest.raises(IndexError):
        Value.from_sequences(parts).select([len(parts)])


@given(sparse_values())
def test_sparse_values_agree_with_scipy(value):
    """Dense rows, SciPy matrices and single sequences agree. Repeated indices add up."""
    matrix = value.to_scipy()
    dense = value.dense()
    np.testing.assert_allclose(matrix.toarray(), dense.rows, atol=1e-5)
    assert dense.lengths.tolist() == value.lengths.tolist()
    again = Value.from_scipy(matrix, value.offsets)
    assert again == value
    rows = [s.dense().rows for s in value.sequences()]
    np.testing.assert_allclose(np.concatenate(rows), dense.rows, atol=1e-6)
    assert Value.from_sequences([s.to_scipy() for s in value.sequences()]) == value
    assert pickle.loads(pickle.dumps(value)) == value
    with pytest.raises(TypeError, match="to_scipy"):
        value.rows  # noqa: B018


def test_sparse_sequences_of_a_dtype_that_scipy_lacks():
    """Matrices become half precision, which SciPy lacks, by a copy."""
    matrix = scipy.sparse.csr_matrix(np.array([[0, 1.5], [2, 0]]))
    value = Value.from_sequences([matrix, matrix[:1]], "float16")
    matrix.data[:] = 0
    assert value.dtype == np.float16
    assert value.dense().rows.tolist() == [[0, 1.5], [2, 0], [0, 1.5]]
    assert value.lengths.tolist() == [2, 1]


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6))
def test_one_hot_of_sequences(indices):
    """One-hot rows have a one at the class, and give the classes back."""
    value = Value.one_hot(indices, 5)
    assert [s.class_indices().rows.tolist() for s in value] == indices
    np.testing.assert_array_equal(value.dense().rows, np.eye(5, dtype="f4")[[i for row in indices for i in row]])


def test_one_hot_of_samples():
    """A flat list is one sample a sequence."""
    value = Value.one_hot([2, 0, 1], 3)
    assert value.one_sample_each
    np.testing.assert_array_equal(value.padded(), np.eye(3)[[2, 0, 1]])
    with pytest.raises(ValueError, match=r"\[0, 3\)"):
        Value.one_hot([3], 3)


def test_class_indices_needs_one_hot_rows():
    """Rows with no entry or two entries have no class index."""
    with pytest.raises(ValueError, match="exactly one"):
        Value.from_csr([0, 2], [0, 1], [1.0, 1.0], 3).class_indices()


@given(sequences(), sequences())
def test_equality(some, others):
    """Equal means: same kind, dtype, sequences and bytes."""
    same = [
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(some, others, strict=False)
    ]
    assert Value.from_sequences(some) == Value.from_sequences([a.copy() for a in some])
    assert (Value.from_sequences(some) == Value.from_sequences(others)) == (
        len(some) == len(others) and all(same) and some[0].shape[1:] == others[0].shape[1:]
    )
    assert Value.from_sequences(some) != "something else"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Value.from_dense(np.zeros((3, 2)), [0, 2]), "from 0 to 3"),
        (lambda: Value.from_dense(np.zeros((3, 2)), [0, 2, 1, 3]), "ascending"),
        (lambda: Value.from_dense(np.float32(1)), "at least one dimension"),
        (lambda: Value.from_csr([0, 1], [5], [1.0], 5), r"\[0, 5\)"),
        (lambda: Value.from_csr([0, 1], [-1], [1.0], 5), r"\[0, 5\)"),
        (lambda: Value.from_csr([0, 2], [1], [1.0], 5), "indptr"),
        (lambda: Value.from_csr([0, 1], [1], [1.0, 2.0], 5), "one value for each index"),
        (lambda: Value.from_sequences([]), "at least one sequence"),
        (lambda: Value.from_sequences([np.zeros((2, 3)), np.zeros((2, 4))]), "sequence 1"),
        (lambda: Value.from_sequences([scipy.sparse.eye(2), scipy.sparse.eye(3)]), "columns"),
    ],
)
def test_contradictions_are_refused(make, message):
    """Offsets, indices and shapes are checked where values are made."""
    with pytest.raises(ValueError, match=message):
        make()


def test_reprs_teach():
    """Shape, counts and kind, without walls of numbers."""
    assert repr(Value.from_dense(np.zeros((64, 4), "f4"))) == "Value(float32 (4,) dense, 64 samples)"
    ragged = Value.from_sequences([np.zeros((2, 4), "f4"), np.zeros((5, 4), "f4")])
    assert repr(ragged) == "Value(float32 (4,) dense, 2 sequences of 2 to 5 (7 samples))"
    assert repr(Value.one_hot([1, 2], 9)) == "Value(float32 (9,) sparse, 2 samples, 2 non-zeros)"


def test_a_declaration_is_compared():
    """Kind, shape and dtype all count."""
    value = Value.from_dense(np.zeros((3, 2), "f4"))
    value.check("x", Stream(shape=2))
    for other in (Stream(shape=3), Stream(shape=2, dtype="f8"), Stream(shape=2, sparse=True)):
        with pytest.raises(SchemaError, match="`x`"):
            value.check("x", other)


def test_dlpack_and_array_protocols():
    """NumPy takes values through both protocols. A copy is made only where one is needed."""
    value = Value.from_dense(np.arange(6, dtype="f4").reshape(3, 2))
    assert np.shares_memory(np.from_dlpack(value), value.rows)
    assert np.shares_memory(np.asarray(value), value.rows)
    assert np.asarray(value, "f8").dtype == np.float64
    ragged = Value.from_sequences([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="copy"):
        np.asarray(ragged, copy=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Value.from_csr([0, 1], [1.7], [1.0], 5),
        lambda: Value.from_csr([0, 1.5], [1], [1.0], 5),
        lambda: Value.from_dense(np.ones((3, 2)), [0, 1.5, 3]),
        lambda: Value.one_hot([0.7, 1.2], 3),
        lambda: Value.one_hot([[True], [False]], 3),
        lambda: Value.from_dense(np.arange(3.0)).select([0.9]),
        lambda: Value.from_dense(np.arange(3.0)).select(np.array([True, False, True])),
    ],
)
def test_what_is_no_integer_is_not_rounded(make):
    """Indices and offsets are never rounded, and a mask is not taken for indices 0 and 1."""
    with pytest.raises(TypeError, match="expected integers as"):
        make()


def test_an_index_beyond_int32_is_out_of_range():
    """It is not wrapped into the range before it is compared with the classes."""
    with pytest.raises(ValueError, match=r"expected indices in \[0, 5\), got 4294967297"):
        Value.from_csr([0, 1], np.array([2**32 + 1]), [1.0], 5)
    with pytest.raises(ValueError, match="one value for each index"):
        Value.from_csr([0, 1], [1], [[1.0]], 5)


def test_a_data_error_survives_another_process():
    """With its class, its fields and its notes."""
    error = NamedDataError("what", path="p", byte=3, line=2, sequence=1, stream="x", hint="h")
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is NamedDataError
    assert (str(again), vars(again)) == (str(error), vars(error))


class NamedDataError(DataError):
    """One of a user's own."""


def test_a_state_error_survives_another_process():
    """Whatever the constructor of its class takes, which here is not its text."""
    error = NumberedStateError(5)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is NumberedStateError
    assert (str(again), vars(again)) == (str(error), vars(error))


class NumberedStateError(StateError):
    """Another one."""

    def __init__(self, number):
        super().__init__(f"expected state {number}", saved={"number": number}, hint="h")


HANDED_ON = {
    "dense": lambda value: value.dense(),
    "padded": Value.padded,
    "class_indices": lambda value: value.class_indices(),
    "to_scipy": lambda value: value.to_scipy(),
    "sequences": lambda value: [row.dense() for row in value],
    "slice": lambda value: value.slice(2, 4).to_scipy(),
    "torch": Value.torch,
    "torch, packed": lambda value: value.torch(layout="packed"),
    "array": np.asarray,
    "select": lambda value: value.select([3]),
}


@pytest.mark.parametrize("way", HANDED_ON)
@pytest.mark.parametrize("index", [-1, 7, 2**31 - 1, -(2**31)])
def test_no_index_out_of_range_is_handed_on(way, index):
    """SciPy and torch write where an index points, and `class_indices` would give a class that does not exist."""
    pytest.importorskip("torch")
    value = Value.one_hot([1, 2, 3, 4, 5], 7)
    value.indices[3] = index  # as a damaged file has it
    with pytest.raises(DataError, match=rf"expected indices in \[0, 7\), got {index}"):
        HANDED_ON[way](value)


def test_an_index_out_of_range_is_reported_with_its_sequence():
    value = Value.one_hot([[0], [1, 2], [3, 4]], 5)
    value.indices[4] = 5
    with pytest.raises(DataError, match="got 5 in the sequence at index 2"):
        value.to_scipy()


def test_values_under_a_mask_are_no_data():
    masked = np.ma.masked_array([1.0, 2.0], [False, True])
    for make in (Value.from_dense, lambda data: Value.from_sequences([data])):
        with pytest.raises(ValueError, match="masked entries"):
            make(masked)
        assert make(np.ma.masked_array([1.0, 2.0])).rows.tolist() == [1, 2]
