"""Random corpora for the tests of formats: by stream name a `Value`."""

import pickle

import numpy as np
from hypothesis import strategies as st

from feedline.data import Value

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64"]
NAMES = ["x", "y", "label", "ein Strom", "流"]


@st.composite
def values(draw, sequences, dtypes=DTYPES, smallest=0):
    """Draw a value of ``sequences`` sequences: dense or sparse, one sample each or ragged (even empty)."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    offsets, rows = None, sequences
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(0, 3), min_size=sequences, max_size=sequences))
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        rows = int(offsets[-1])
    seed = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (smallest,), (2, smallest, 3)]))
        return Value.from_dense(random_array(seed, (rows, *shape), dtype), offsets)
    classes = draw(st.integers(1, 9))
    dtype = np.dtype(draw(st.sampled_from(["float32", "float64"])))
    counts = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    entries = int(indptr[-1])
    indices = np.random.default_rng(seed).integers(0, classes, entries)
    return Value.from_csr(indptr, indices, random_array(seed, entries, dtype), classes, offsets)


def random_array(seed, shape, dtype):
    """Any bits, NaN and infinity among them."""
    generator = np.random.default_rng(seed)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(generator.bytes(count * dtype.itemsize), dtype).reshape(shape)


@st.composite
def corpora(draw, dtypes=DTYPES, smallest=0, most=20):
    """By stream name a value, all with the same number of sequences (at least one)."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(1, most))
    return {name: draw(values(count, dtypes, smallest)) for name in names}


def assert_same(got, expected):
    """The same sequences in all streams, bit for bit."""
    assert list(got) == list(expected)
    for name in expected:
        a, b = got[name], expected[name]
        assert a == b, name
        for x, y in zip(bits(a), bits(b), strict=True):
            assert np.array_equal(x, y), name


def bits(value):
    stored = value.values if value.is_sparse else value.rows
    return [np.frombuffer(np.ascontiguousarray(stored).tobytes(), np.uint8)]


def assert_read(corpus, rows, check):
    """Chunks, selections and a pickled copy hold ``rows``, as ``check(chunk, rows)`` finds them, of the sizes told."""
    assert len(corpus.chunks()) > 4
    first = 0
    for i, info in enumerate(corpus.chunks()):
        chunk = corpus.read(i)
        assert (len(chunk), chunk.errors) == (info.sequences, {})
        check(chunk, rows[first : first + len(chunk)])
        lengths = corpus.lengths(np.arange(first, first + len(chunk)))
        assert lengths.tolist() == chunk.lengths.tolist()
        assert info.samples == lengths.sum()
        first += len(chunk)
    assert first == len(rows)
    wanted = [len(rows) - 1, 3, 3, 120]
    check(corpus.select(np.array(wanted)), [rows[i] for i in wanted])
    check(pickle.loads(pickle.dumps(corpus)).read(0), rows[: len(corpus.read(0))])


def everything(corpus):
    """All sequences of a deserializer, in corpus order."""
    return corpus.select(np.arange(sum(info.sequences for info in corpus.chunks()))).values
