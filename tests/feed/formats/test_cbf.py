"""CNTK's binary format: values, views, units, and damage to every part of a file."""

import contextlib
import itertools
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.protocol import can
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.oracles.cntk_files import cbf

DENSE = [("x", False, "f", 3), ("label", False, "f", 1)]
MIXED = [("word", True, "f", 50), ("x", False, "d", 2)]


def dense_chunks(sizes):
    """Sequence i is one sample of x, (i, i + 1/2, -i), and of label, (i % 7)."""
    numbers = itertools.count()
    return [[([[i, i + 0.5, -i]], [[i % 7]]) for i in itertools.islice(numbers, size)] for size in sizes]


def mixed_chunks(sizes):
    """Sequence i has i % 4 + 1 samples of word, and one of x."""
    numbers = itertools.count()
    return [
        [
            ([[(k, i + k / 4) for k in range(t % 3)] for t in range(i % 4 + 1)], [[i, -i]])
            for i in itertools.islice(numbers, size)
        ]
        for size in sizes
    ]


@pytest.fixture
def dense(tmp_path):
    path = tmp_path / "dense.cbf"
    path.write_bytes(cbf(DENSE, dense_chunks([5, 1, 1, 1, 9, 3])))
    return path


@pytest.fixture
def mixed(tmp_path):
    path = tmp_path / "mixed.cbf"
    path.write_bytes(cbf(MIXED, mixed_chunks([5, 1, 1, 1, 9, 3])))
    return path


# ---- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [0, 1, 200, 32 << 20])
def test_values_match_the_file(dense, mixed, chunk_size):
    corpus = fl.CBFDeserializer(dense, chunk_size=chunk_size)
    assert corpus.schema == fl.Schema({"x": fl.Stream(3), "label": fl.Stream(1)})
    sequences = everything(corpus)
    assert sequences["x"].rows.tolist() == [[i, i + 0.5, -i] for i in range(20)]
    assert sequences["label"].rows.tolist() == [[i % 7] for i in range(20)]
    corpus = fl.CBFDeserializer(mixed, chunk_size=chunk_size)
    assert corpus.schema == fl.Schema({"word": fl.Stream(50, sparse=True), "x": fl.Stream(2, "float64")})
    assert corpus.lengths(np.arange(20)).tolist() == [i % 4 + 1 for i in range(20)]
    assert [info.samples for info in corpus.chunks()] == [
        sum(corpus.lengths(np.arange(a, b)))
        for a, b in itertools.pairwise(np.cumsum([0] + [info.sequences for info in corpus.chunks()]))
    ]
    sequences = everything(corpus)
    reference = sum(mixed_chunks([20]), [])
    for sequence, expected in zip(sequences["word"].dense().sequences(), reference, strict=True):
        assert [{k: v for k, v in enumerate(row) if v} for row in sequence.tolist()] == [
            {k: v for k, v in sample if v} for sample in expected[0]
        ]
    assert sequences["x"].rows.tolist() == [[i, -i] for i in range(20)]


def counts(corpus):
    return [info.sequences for info in corpus.chunks()]


def test_chunks_of_the_order_are_runs_of_the_files(dense, mixed):
    """CNTK's converter writes a chunk a sequence: a chunk of the order is up to chunk_size of them."""
    for path in (dense, mixed):
        for size in (0, 1):
            assert counts(fl.CBFDeserializer(path, chunk_size=size)) == [5, 1, 1, 1, 9, 3]
    own_chunks = fl.CBFDeserializer(mixed, chunk_size=0).chunks()
    assert counts(fl.CBFDeserializer(mixed, chunk_size=own_chunks[0].bytes + own_chunks[1].bytes)) == [6, 2, 9, 3]
    corpus = fl.CBFDeserializer(mixed)
    assert counts(corpus) == [20]
    assert corpus.chunks()[0].bytes == sum(info.bytes for info in own_chunks)
    # Where all is delivered as views, only chunks of one sequence can be joined.
    assert counts(fl.CBFDeserializer(dense)) == [5, 3, 9, 3]


def test_tiny_chunks_of_several_sequences_are_joined_and_copied(tmp_path):
    """Thousands of them as views would cost more than a copy."""
    path = tmp_path / "tiny.cbf"
    path.write_bytes(cbf(DENSE, dense_chunks([2] * 1100)))
    corpus = fl.CBFDeserializer(path)
    assert not can(corpus, fl.RandomAccess)
    assert counts(corpus) == [2200]
    assert everything(corpus)["x"].rows[:, 0].tolist() == list(range(2200))
    # A chunk that is not of the size that its sequences take is copied, too: a view is promised beforehand.
    path.write_bytes(cbf(DENSE, [*dense_chunks([2, 1, 1]), [([[7.0, 7, 7]], [])]]))
    assert not can(fl.CBFDeserializer(path), fl.RandomAccess)


def test_dense_samples_are_views_of_the_file(dense, mixed, tmp_path):
    corpus = fl.CBFDeserializer(dense, chunk_size=0)
    assert can(corpus, fl.RandomAccess)
    chunk = corpus.read(0)
    x = chunk["x"].rows
    assert not x.flags.owndata
    assert not x.flags.writeable
    assert x.strides == (16, 4)  # each sequence is preceded by its length
    assert corpus.read(0) is chunk
    # A chunk a sequence, all of one size, is a view, too.
    path = tmp_path / "singles.cbf"
    path.write_bytes(cbf(DENSE, dense_chunks([1] * 8)))
    singles = fl.CBFDeserializer(path)
    rows = singles.read(0)["x"].rows
    assert not rows.flags.owndata
    assert rows[:, 0].tolist() == list(range(8))
    assert not can(fl.CBFDeserializer(mixed), fl.RandomAccess)


def test_streams_are_chosen_renamed_and_converted(mixed):
    corpus = fl.CBFDeserializer(mixed, y=fl.Stream(2, "float32", field="x"))
    assert list(corpus.schema) == ["y"]
    assert everything(corpus)["y"].rows.dtype == np.float32
    both = fl.CBFDeserializer(mixed, {"x": fl.Stream((1, 2), "float64")}, word=fl.Stream(50, "float64", sparse=True))
    assert list(both.schema) == ["x", "word"]
    assert everything(both)["x"].rows.shape == (20, 1, 2)
    for wrong in (
        {"z": fl.Stream(2)},
        {"x": fl.Stream(3)},
        {"x": fl.Stream(2, sparse=True)},
        {"word": fl.Stream(50)},
        {"x": fl.Stream(2, "int32")},
    ):
        with pytest.raises(fl.SchemaError):
            fl.CBFDeserializer(mixed, wrong)


def test_a_stream_declared_twice(dense):
    with pytest.raises(fl.SchemaError, match="each stream once, got x"):
        fl.CBFDeserializer(dense, {"x": fl.Stream(3)}, x=fl.Stream(3))


def test_files_are_a_concatenation(dense, mixed, tmp_path):
    corpus = fl.CBFDeserializer([dense, dense], chunk_size=200)
    assert everything(corpus)["x"].rows[:, 0].tolist() == [*range(20), *range(20)]
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.chunks()) == (corpus.digest(), corpus.chunks())
    assert corpus.digest() != fl.CBFDeserializer(dense).digest()
    with pytest.raises(fl.SchemaError, match="in every file"):
        fl.CBFDeserializer([dense, mixed])


@settings(max_examples=examples(30), deadline=None)
@given(corpora(["float32", "float64"], smallest=1), st.integers(1, 400), st.booleans())
def test_round_trip(tmp_path_factory, streams, chunk_size, through):
    """Any corpus, from arrays or a deserializer. Names are ASCII in this format."""
    streams = {name.encode("ascii", "replace").decode() + str(i): v for i, (name, v) in enumerate(streams.items())}
    path = tmp_path_factory.mktemp("cbf") / "data.cbf"
    source = fl.ArrayDeserializer(streams) if through else streams
    fl.write_cbf(path, source, chunk_size=chunk_size)
    declared = {name: fl.Stream(v.shape, v.dtype, v.is_sparse) for name, v in streams.items()}
    sequences = everything(fl.CBFDeserializer(path, declared, chunk_size=chunk_size % 3))
    for name, value in streams.items():
        if value.is_sparse:  # indices are sorted, duplicates stay
            with np.errstate(all="ignore"):
                assert np.array_equal(sequences[name].dense().rows, value.dense().rows, equal_nan=True)
            assert sequences[name].offsets.tolist() == value.offsets.tolist()
        else:
            assert_same({name: sequences[name]}, {name: value})


def test_what_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "x.cbf"
    for streams, what in (
        ({"strøm": np.zeros((2, 1))}, "ASCII"),
        ({"x": np.full((2, 1), 2**24 + 1)}, "can hold"),
        ({"x": np.zeros((2, 0))}, "values in a sample"),
        ({"x": np.zeros((2, 1), complex)}, "can hold"),
    ):
        with pytest.raises(ValueError, match=what):
            fl.write_cbf(path, streams)
    with pytest.raises(ValueError, match="got both"):
        fl.write_cbf(path, fl.ArrayDeserializer(x=np.zeros(2)), x=np.zeros(2))
    with pytest.raises(ValueError, match="float32"):
        fl.write_cbf(path, x=np.zeros(2), dtype="int8")
    assert not path.exists()
    fl.write_cbf(path, x=np.arange(3), flag=np.array([True, False, True]), dtype="float64")
    assert everything(fl.CBFDeserializer(path))["x"].rows.tolist() == [[0], [1], [2]]


# ---- laws ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True, fl.Window(chunks=2), fl.Window(bytes=300)])
@pytest.mark.parametrize("kind", ["dense", "mixed"])
def test_it_resumes_and_workers_share_one_order(request, kind, shuffle):
    path = request.getfixturevalue(kind)

    def make(**options):
        return fl.MinibatchSource(
            fl.CBFDeserializer(path, chunk_size=150), shuffle=shuffle, max_sweeps=2, seed=5, **options
        )

    assert_resumes(make)
    uninterrupted = sequences_of(make().minibatches(7))
    assert sequences_of(make(threads=3, read_ahead=0).minibatches(4)) == uninterrupted
    assert sorted(ordinal for ordinal, _ in uninterrupted) == sorted([*range(20)] * 2)
    for count in (2, 3):
        parts = [[sequences_of([m]) for m in make(partition=(i, count)).minibatches(7)] for i in range(count)]
        joined = [sum(batch, []) for batch in zip(*parts, strict=True)]
        assert sum(joined, []) == uninterrupted


def test_a_bad_sequence_keeps_its_tick(mixed):
    unpartitioned = fl.MinibatchSource(fl.CBFDeserializer(mixed, chunk_size=0), max_sweeps=2, seed=3)
    sound = [sequences_of([m]) for m in unpartitioned.minibatches(6)]
    text = bytearray(mixed.read_bytes())
    at = chunk_at(mixed, 4) + 4 * 9  # the first stream of the chunk of nine
    text[at : at + 4] = struct.pack("<I", 2**31)
    mixed.write_bytes(text)
    source = fl.MinibatchSource(fl.CBFDeserializer(mixed, chunk_size=0), max_sweeps=2, seed=3, on_error="skip")
    good = [sequences_of([m]) for m in source.minibatches(6)]
    bad = set(range(8, 17))
    assert good == [[s for s in batch if s[0] not in bad] for batch in sound]
    assert source.state_dict() == unpartitioned.state_dict()


# ---- damage -------------------------------------------------------------------------------------------


def chunk_at(path, number):
    corpus = fl.CBFDeserializer(path, chunk_size=0)
    return 12 + sum(info.bytes for info in corpus.chunks()[:number])


def poke(path, at, data):
    text = bytearray(path.read_bytes())
    text[at : at + len(data)] = data
    path.write_bytes(text)


@pytest.mark.parametrize(
    ("where", "value", "what"),
    [
        (0, b"\0", "expected a CBF file"),
        (8, struct.pack("<I", 2), "version 1 of CBF, got 2"),
        (-8, struct.pack("<q", -1), "the header at byte"),
        (-8, struct.pack("<q", 2**40), "the header at byte"),
        (-8, struct.pack("<q", 13), "begins as the file does"),
        ("chunks", struct.pack("<I", 2**32 - 1), "table of 4294967295 chunks"),
        ("streams", struct.pack("<I", 0), "streams, got 0"),
        ("streams", struct.pack("<I", 2**32 - 1), "streams, got 4294967295"),
        ("name", struct.pack("<I", 2**32 - 1), "name, got a length of 4294967295"),
        ("encoding", b"\7", "encoding 0 or 1"),
        ("table", struct.pack("<q", 2**62), "within the file"),
        ("table", struct.pack("<q", 0), "within the file"),
        ("sequences", struct.pack("<I", 2**32 - 1), "room for its sequences"),
    ],
)
def test_a_damaged_header_is_refused(dense, where, value, what):
    text = dense.read_bytes()
    (header,) = struct.unpack("<q", text[-8:])
    table = len(text) - 8 - 6 * 16
    places = {
        "chunks": header + 8,
        "streams": header + 12,
        "encoding": header + 16,
        "name": header + 17,
        "table": table,
        "sequences": table + 8,
    }
    at = places.get(where, where)
    poke(dense, at if at >= 0 else len(text) + at, value)
    with pytest.raises(fl.DataError, match=what) as caught:
        fl.CBFDeserializer(dense)
    assert caught.value.path == str(dense)
    assert caught.value.byte is not None


@pytest.mark.parametrize("size", [0, 7, 12, 30, 200])
def test_a_cut_file_is_refused(dense, size):
    dense.write_bytes(dense.read_bytes()[:size])
    with pytest.raises(fl.DataError):
        fl.CBFDeserializer(dense)


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [
        (4 * 9, 2**31, "a sequence of"),  # samples of the first stream
        (4 * 9 + 4, 2**32 - 1, "stored values"),  # nnz -1
        (4 * 9 + 4, 2**31 - 1, "a sequence of"),
        (0, 77, "its longest stream"),  # the told length
    ],
)
def test_a_damaged_chunk_is_so_many_unreadable_sequences(mixed, offset, value, what):
    begin = chunk_at(mixed, 4)
    poke(mixed, begin + offset, struct.pack("<I", value))
    chunk = fl.CBFDeserializer(mixed).read(0)
    assert sorted(chunk.errors) == list(range(8, 17))
    error = chunk.errors[8]
    assert what in error.what
    assert error.path == str(mixed)
    assert begin <= error.byte < begin + 4 * 9 + 12
    selected = chunk.take(np.array([*range(8), *range(17, 20)]))
    assert selected["x"].rows[:, 0].tolist() == [*range(8), *range(17, 20)]


def test_values_per_sample_that_do_not_add_up_are_one_unreadable_sequence(tmp_path):
    path = tmp_path / "x.cbf"
    pairs = [(1, 1.0), (2, 2.0)]
    path.write_bytes(cbf([("w", True, "f", 5)], [[([pairs, pairs],), ([pairs],), ([pairs, []],)]]))
    first = 12 + 3 * 4
    for value in (3, -1, 2**31 - 1):
        poke(path, first + 8 + 4 * 4 + 4 * 4, struct.pack("<i", value))
        chunk = fl.CBFDeserializer(path).read(0)
        assert list(chunk.errors) == [0]
        assert chunk.take(np.array([1, 2]))["w"].dense().rows.tolist() == [[0, 1, 2, 0, 0]] * 2 + [[0] * 5]


def test_an_index_out_of_range_is_one_unreadable_sequence(tmp_path):
    path = tmp_path / "x.cbf"
    path.write_bytes(cbf([("w", True, "f", 5)], [[([[(1, 1.0)]],), ([[(5, 1.0)]],), ([[(2, 1.0)]],)]]))
    source = fl.MinibatchSource(fl.CBFDeserializer(path), shuffle=False, max_sweeps=1, on_error="skip")
    assert [m.ids.tolist() for m in source.minibatches(9)] == [[0, 2]]


def test_a_table_with_wrong_single_samples(tmp_path):
    """As many samples as sequences, but one has none and one two: the table promised one each."""
    path = tmp_path / "x.cbf"
    path.write_bytes(cbf([("x", False, "f", 1)], [[([[1.0]],), ([],), ([[2.0], [3.0]],)]]))
    corpus = fl.CBFDeserializer(path)
    assert corpus.lengths(np.arange(3)) is None
    assert sorted(corpus.read(0).errors) == [1, 2]


def test_a_damaged_chunk_among_views_keeps_its_tick(tmp_path):
    """The other chunks are views of the file, and sequences of damaged ones have no samples."""
    data = bytearray(cbf([("x", False, "f", 3)], [[[[[i, i, i]]] for i in (2 * k, 2 * k + 1)] for k in range(4)]))
    at = 12 + 2 * 40 + 8  # how many samples sequence 4 has
    data[at : at + 4] = struct.pack("<I", 7)
    (tmp_path / "a.cbf").write_bytes(data)
    corpus = fl.CBFDeserializer(tmp_path / "a.cbf", chunk_size=0)
    assert can(corpus, fl.RandomAccess)
    for shuffle in (False, True):
        source = fl.MinibatchSource(corpus, shuffle=shuffle, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "q.jsonl"))
        (minibatch,) = source.minibatches(99)
        assert sorted(minibatch["x"].rows[:, 0].tolist()) == [0, 1, 2, 3, 6, 7]


def test_a_stream_without_samples_among_views(tmp_path):
    """Allowed: a stream of a sequence may be empty where another one is not."""
    chunks = [[[[[1, 1]], [[2]]], [[[3, 3]], [[4]]]], [[[], [[5]]]]]
    (tmp_path / "a.cbf").write_bytes(cbf([("x", False, "f", 2), ("y", False, "f", 1)], chunks))
    source = fl.MinibatchSource(fl.CBFDeserializer(tmp_path / "a.cbf", chunk_size=0), shuffle=False, max_sweeps=1)
    (minibatch,) = source.minibatches(99)
    assert [x.tolist() for x in minibatch["x"].sequences()] == [[[1, 1]], [[3, 3]], []]
    assert minibatch["y"].rows.tolist() == [[2], [4], [5]]


def test_lengths_that_contradict_the_table(mixed):
    poke(mixed, chunk_at(mixed, 4), struct.pack("<I", 77))
    corpus = fl.CBFDeserializer(mixed)
    with pytest.raises(fl.DataError, match="add up to"):
        corpus.lengths(np.arange(20))


def test_a_file_cut_while_open(dense, mixed):
    for path in (dense, mixed):
        corpus = fl.CBFDeserializer(path)
        with open(path, "r+b") as file:
            file.truncate(100)
        with pytest.raises(fl.DataError, match="got 100"):
            corpus.read(0)


def test_any_changed_byte_reads_or_refuses(mixed):
    """Never a crash, never another error, and always as many sequences as in the table."""
    sound = mixed.read_bytes()
    for at in range(0, len(sound), 3):
        for flip in (0x01, 0x80, 0xFF):
            text = bytearray(sound)
            text[at] ^= flip
            mixed.write_bytes(text)
            with contextlib.suppress(fl.DataError):
                corpus = fl.CBFDeserializer(mixed, chunk_size=at % 2 * 32)
                for number, info in enumerate(corpus.chunks()):
                    chunk = corpus.read(number)
                    assert len(chunk) == info.sequences
                    chunk.take(np.arange(len(chunk)))


def test_nothing_to_read(tmp_path):
    with pytest.raises(fl.DataError, match="readable"):
        fl.CBFDeserializer(tmp_path / "none.cbf")
    path = tmp_path / "empty.cbf"
    path.write_bytes(cbf(DENSE, []))
    with pytest.raises(fl.DataError, match="at least one sequence"):
        fl.CBFDeserializer(path)
    with pytest.raises(IndexError):
        path.write_bytes(cbf(DENSE, dense_chunks([2])))
        fl.CBFDeserializer(path).read(1)
