"""User corpora: both kinds resume, restoring reads a window, and data is compared with its declaration."""

import itertools
import threading
import time

import numpy as np
import pytest
import scipy.sparse
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.protocol import is_sized
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples


class Rows(fl.UserDeserializer):
    """One stream `x` of (ordinal in the corpus, step), with unknown chunk sizes before reading. Counts its reads."""

    def __init__(self, lengths):
        self.lengths_of = [list(chunk) for chunk in lengths]
        self.reads = []

    def streams(self):
        return {"x": fl.Stream(2)}

    def num_chunks(self):
        return len(self.lengths_of)

    def get_chunk(self, chunk):
        self.reads.append(chunk)
        first = sum(len(lengths) for lengths in self.lengths_of[:chunk])
        return {
            "x": [
                np.array([[first + i, step] for step in range(n)], np.float32).reshape(n, 2)
                for i, n in enumerate(self.lengths_of[chunk])
            ]
        }


class Told(Rows):
    """With chunk sizes."""

    def chunk_info(self, chunk):
        return len(self.lengths_of[chunk]), sum(self.lengths_of[chunk])


class Sized(Told):
    """With chunk sizes and lengths."""

    def chunk_lengths(self, chunk):
        return self.lengths_of[chunk]


LENGTHS = [[1, 2, 3], [2], [4, 1, 1, 1], [1, 5], [2, 2, 2], [3], [1, 1], [2, 4, 1]]
ALL = [Rows, Told, Sized]


def source(kind, lengths=LENGTHS, **options):
    return fl.MinibatchSource(kind(lengths), **{"seed": 9, "max_sweeps": 2, **options})


def delivered(minibatches):
    return [sequence.tolist() for m in minibatches for sequence in m["x"].sequences()]


def flat(lengths):
    return [[[i, step] for step in range(n)] for i, n in enumerate(n for chunk in lengths for n in chunk)]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("shuffle", [False, fl.Window(chunks=3)])
def test_resumes(kind, shuffle):
    assert_resumes(lambda: source(kind, shuffle=shuffle), sizes=(1, 4, 13), minibatches=5)


def test_only_full_knowledge_of_lengths_makes_a_corpus_sized():
    assert [is_sized(kind(LENGTHS)) for kind in ALL] == [False, False, True]
    assert is_sized(Told([[1, 1], [1]]))
    assert not is_sized(Rows([[1, 1], [1]]))


chunked = st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6).filter(any)


@settings(max_examples=examples(60), deadline=None)
@given(chunked, st.sampled_from(ALL), st.integers(1, 9), st.integers(1, 3), st.integers(0, 40))
def test_each_sweep_delivers_everything_once_and_ends(lengths, kind, size, width, stop):
    # Ragged sequences that happen to have as many samples as there are would need chunk_lengths.
    assume(kind is not Told or not is_sized(Told(lengths)) or flat([[1] * len(n) for n in lengths]) == flat(lengths))
    whole = source(kind, lengths, shuffle=fl.Window(chunks=width), max_sweeps=2)
    minibatches = list(whole.minibatches(size))
    sequences = delivered(minibatches)
    n = len(flat(lengths))
    assert sorted(sequences[:n]) == sorted(sequences[n:]) == sorted(flat(lengths))
    assert sum(m.sweep_end for m in minibatches) in (1, 2)  # one, if a minibatch holds all that is left of both
    assert minibatches[-1].sweep_end
    assert whole.position[:2] == (2, 0)
    in_order = source(kind, lengths, shuffle=False, max_sweeps=1)
    assert delivered(in_order.minibatches(size)) == flat(lengths)
    # Resumed at any minibatch, chunks without sequences included.
    feed = source(kind, lengths, shuffle=fl.Window(chunks=width), max_sweeps=2)
    passed = len(delivered(m for _, m in zip(range(stop), feed.minibatches(size), strict=False)))
    restored = source(kind, lengths, shuffle=fl.Window(chunks=width), max_sweeps=2)
    restored.load_state_dict(feed.state_dict())
    assert delivered(restored.minibatches(3)) == sequences[passed:]


@pytest.mark.parametrize("shuffle", [False, fl.Window(chunks=1)])
def test_a_single_chunk_with_sequences_is_found_wherever_it_stands(shuffle):
    feed = source(Rows, [[], [], [], [], [3]], shuffle=shuffle, max_sweeps=40)
    assert [(m.num_samples, m.sweep_end, m.position.sweep) for m in feed.minibatches(3)] == [
        (3, True, sweep) for sweep in range(40)
    ]
    with pytest.raises(fl.DataError, match="at least one sequence, got none in any chunk"):
        source(Rows, [[], [], []], shuffle=shuffle).next_minibatch(3)


@pytest.mark.parametrize(("kind", "most"), [(Rows, 3), (Sized, 3)])
def test_restoring_reads_at_most_one_window(kind, most):
    make = lambda: source(kind, shuffle=fl.Window(chunks=3), max_sweeps=None, read_ahead=0)  # noqa: E731
    feed = make()
    states = []
    for _ in range(40):
        minibatch = feed.next_minibatch(1)
        states.append((feed.state_dict(), minibatch))
    for (state, _), (_, expected) in itertools.pairwise(states):
        restored = make()
        restored.load_state_dict(state)
        assert restored.corpus.reads == []
        following = restored.next_minibatch(1)
        assert sequences_of([following]) == sequences_of([expected])
        # Knowing whether a sweep ends here takes the next window where sizes are unknown.
        windows = 2 if kind is Rows and restored.position.sequence == 0 else 1
        assert len(restored.corpus.reads) <= most * windows
    reads = [len(chunk) for chunk in LENGTHS]
    assert sum(reads) < 40  # the states span several sweeps


def test_a_place_far_along_the_axis_is_restored_without_reading_what_came_before():
    far = source(Sized, shuffle=fl.Window(chunks=2), max_sweeps=None, read_ahead=0)
    far.seek(samples=10**6)
    assert far.corpus.reads == []
    far.next_minibatch(1)
    assert len(far.corpus.reads) <= 2


# ---- what users hand over -----------------------------------------------------------------------------


class Fixed(fl.UserDeserializer):
    """One chunk of given data."""

    def __init__(self, schema, data, info=None):
        self.schema = fl.Schema(schema)
        self.data = data

    def num_chunks(self):
        return 1

    def get_chunk(self, chunk):
        return self.data() if callable(self.data) else self.data


ONE_HOT = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float64))


def test_data_comes_as_arrays_matrices_lists_values_or_a_chunk():
    corpus = Fixed(
        {
            "dense": fl.Stream((2, 2)),
            "scalar": fl.Stream((), "int32"),
            "sparse": fl.Stream(3, sparse=True),
            "ragged": fl.Stream(2),
            "ragged_sparse": fl.Stream(3, sparse=True),
            "value": fl.Stream(()),
        },
        {
            "dense": np.arange(12).reshape(3, 2, 2),
            "scalar": [7, 8, 9],
            "sparse": ONE_HOT,
            "ragged": [np.ones((n, 2)) * n for n in (2, 0, 1)],
            "ragged_sparse": [ONE_HOT[:2], ONE_HOT[:1], ONE_HOT],
            "value": fl.Value.from_dense(np.arange(3, dtype=np.float32)),
        },
    )
    chunk = corpus.read(0)
    assert chunk.num_sequences == 3
    assert chunk["dense"].rows.tolist() == np.arange(12).reshape(3, 2, 2).tolist()
    assert (chunk["scalar"].rows.tolist(), chunk["scalar"].dtype) == ([7, 8, 9], np.int32)
    assert chunk["sparse"].dense().rows.tolist() == np.eye(3).tolist()
    assert [s.tolist() for s in chunk["ragged"].sequences()] == [[[2, 2], [2, 2]], [], [[1, 1]]]
    assert chunk["ragged_sparse"].lengths.tolist() == [2, 1, 3]
    assert chunk["ragged_sparse"].dense().rows.tolist() == [*np.eye(3)[:2].tolist(), [1, 0, 0], *np.eye(3).tolist()]
    assert chunk["value"].rows.tolist() == [0, 1, 2]
    assert Fixed(corpus.schema, chunk).read(0) is chunk
    empty = Fixed({"x": fl.Stream(4, "int8")}, {"x": []}).read(0)
    assert (empty.num_sequences, empty["x"].rows.shape, empty["x"].dtype) == (0, (0, 4), np.int8)


@pytest.mark.parametrize(
    ("stream", "data", "message"),
    [
        (fl.Stream(2), np.zeros((3, 4)), r"samples of shape \(2,\) for stream `x`, got .*\(4,\)"),
        (fl.Stream(2), [np.zeros((3, 2)), np.zeros(2)], r"\(length, 2\) for every sequence, got \(2,\) for sequence 1"),
        (fl.Stream((), "int64"), np.zeros(3), "can become int64, got float64"),
        (fl.Stream((), "uint8"), np.array([3, 300]), "expected 0 to 255 for uint8, got 3 to 300"),
        (fl.Stream(2, sparse=True), np.zeros((3, 2)), "expected sparse float32"),
        (fl.Stream(2), ONE_HOT, "expected dense float32"),
        (fl.Stream(2), ["a", "b"], "can become float32, got str"),
        (fl.Stream(2), None, "can become float32, got object"),
    ],
)
def test_data_unlike_its_declaration_is_refused(stream, data, message):
    with pytest.raises(fl.SchemaError, match=message) as caught:
        Fixed({"x": stream}, {"x": data}).read(0)
    assert "(stream `x` from get_chunk(0) of Fixed)" in str(caught.value)


def test_streams_must_be_declared_and_agree():
    schema = {"x": fl.Stream(()), "y": fl.Stream(())}
    with pytest.raises(fl.SchemaError, match="expected the streams x, y from get_chunk"):
        Fixed(schema, {"x": [1]}).read(0)
    with pytest.raises(fl.SchemaError, match="`x` has 1, `y` has 2"):
        Fixed(schema, {"x": [1], "y": [1, 2]}).read(0)
    with pytest.raises(fl.SchemaError, match="mapping from stream name"):
        Fixed(schema, [1, 2]).read(0)
    with pytest.raises(fl.DataError, match="expected a chunk with the streams of Fixed"):
        Fixed({"x": fl.Stream(())}, Rows(LENGTHS).read(0)).read(0)
    with pytest.raises(NotImplementedError, match="neither `streams\\(\\)` nor the attribute `schema`"):
        type("Bare", (fl.UserDeserializer,), {"num_chunks": lambda s: 1, "get_chunk": lambda s, i: {}})().schema  # noqa: B018


# ---- declared and actual data -------------------------------------------------------------------------


class Lying(Sized):
    """Delivers other sequences than it declares."""

    def __init__(self, said, given):
        super().__init__(given)
        self.said = said

    def chunk_info(self, chunk):
        return len(self.said[chunk]), sum(self.said[chunk])

    def chunk_lengths(self, chunk):
        return self.said[chunk]


@pytest.mark.parametrize(
    ("said", "given", "message"),
    [
        ([[1, 2], [3]], [[1, 2], [3, 1]], "expected 1 sequences with 3 samples in chunk 1, .* got 2 with 4"),
        ([[1, 2], [3]], [[1, 2], [1, 2]], "expected 1 sequences with 3 samples in chunk 1, .* got 2 with 3"),
        ([[1, 2], [3]], [[1, 2], [4]], "expected 1 sequences with 3 samples in chunk 1, .* got 1 with 4"),
        ([[1, 2], [3]], [[2, 1], [3]], "expected 1 samples, as chunk_lengths says, got 2 from get_chunk\\(0\\)"),
        ([[1, 1], [1]], [[2, 0], [1]], "expected 1 samples, as chunk_lengths says, got 2"),
    ],
)
def test_other_counts_than_declared_are_an_error_that_names_both(said, given, message):
    feed = fl.MinibatchSource(Lying(said, given), shuffle=False, max_sweeps=1)
    with pytest.raises(fl.DataError, match=message):
        list(feed)


def test_equal_counts_of_unequal_sequences_are_noticed_without_lengths_too():
    class Hiding(Rows):
        def chunk_info(self, chunk):
            return 2, 2

    with pytest.raises(fl.DataError, match="expected 1 samples, as chunk_info says, got 2"):
        Hiding([[2, 0]]).read(0)


def test_lengths_and_infos_must_agree():
    class Off(Told):
        def chunk_lengths(self, chunk):
            return [1]

    with pytest.raises(fl.DataError, match=r"expected 3 lengths with a sum of 6 from chunk_lengths\(0\)"):
        fl.MinibatchSource(Off(LENGTHS)).next_minibatch(4)

    class Negative(Rows):
        def chunk_info(self, chunk):
            return -1, 2

    with pytest.raises(fl.DataError, match=r"from chunk_info\(0\), got \(-1, 2\)"):
        fl.MinibatchSource(Negative(LENGTHS))


def test_bytes_are_the_declared_ones_or_the_samples():
    class Bytes(Sized):
        def chunk_info(self, chunk):
            return fl.ChunkInfo(*super().chunk_info(chunk), 1000 + chunk)

    assert [info.bytes for info in Bytes(LENGTHS).chunks()] == [1000 + i for i in range(8)]
    assert [info.bytes for info in Sized(LENGTHS).chunks()] == [8 * sum(lengths) for lengths in LENGTHS]


# ---- users' exceptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("read_ahead", [0, 1 << 20])
def test_an_exception_reaches_the_caller_and_the_position_stays(kind, read_ahead):
    class Flaky(kind):
        broken = frozenset({5})

        def get_chunk(self, chunk):
            if chunk in self.broken:
                raise KeyError("no such shard")
            return super().get_chunk(chunk)

    feed = fl.MinibatchSource(Flaky(LENGTHS), seed=2, shuffle=False, max_sweeps=1, read_ahead=read_ahead)
    with pytest.raises(fl.WorkerError, match=r"get_chunk\(5\) of Flaky raised KeyError: 'no such shard'") as caught:
        list(feed.minibatches(3))
    assert isinstance(caught.value.__cause__, KeyError)
    position, state = feed.position, feed.state_dict()
    with pytest.raises(fl.WorkerError):
        feed.next_minibatch(3)
    assert (feed.position, feed.state_dict()) == (position, state)
    feed.corpus.broken = frozenset()
    rest = list(feed.minibatches(3))
    assert rest[0].position == position
    whole = list(source(kind, shuffle=False, max_sweeps=1, seed=2).minibatches(3))
    assert sequences_of(rest) == sequences_of(m for m in whole if m.position.samples >= position.samples)


def test_errors_of_feedline_itself_stay_what_they_are():
    def fail():
        raise fl.DataError("bad magic", path="shard-7")

    with pytest.raises(fl.DataError, match="bad magic") as caught:
        Fixed({"x": fl.Stream(())}, fail).read(0)
    assert caught.value.path == "shard-7"
    assert caught.value.__notes__ == ["raised by get_chunk(0) of Fixed"]


def test_a_chunk_may_hold_sequences_that_cannot_be_read(tmp_path):
    class Holed(Sized):
        def get_chunk(self, chunk):
            data = super().get_chunk(chunk)["x"]
            data[0] = data[0][:0]
            value = fl.Value.from_sequences(data)
            return fl.Chunk(self.schema, {"x": value}, {0: fl.DataError("torn", sequence=chunk)})

    with pytest.raises(fl.DataError, match="torn"):
        list(source(Holed))
    skipping = source(Holed, on_error=fl.Quarantine(tmp_path / "q"), max_sweeps=1)
    good = [s for lengths in LENGTHS for s in [*lengths[1:]]]
    assert sorted(len(s) for s in delivered(skipping)) == sorted(good)


# ---- threads, names, digests --------------------------------------------------------------------------


@pytest.mark.parametrize("concurrent", [False, True])
def test_one_call_at_a_time_by_default(concurrent):
    inside, most = 0, 0
    lock, together = threading.Lock(), threading.Barrier(2)

    class Watched(Sized):
        def get_chunk(self, chunk):
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            if concurrent:
                try:
                    together.wait(timeout=150)
                except threading.BrokenBarrierError:
                    pass
            else:
                time.sleep(0.002)
            with lock:
                inside -= 1
            return super().get_chunk(chunk)

    Watched.concurrent = concurrent
    feed = source(Watched, shuffle=fl.Window(chunks=8), max_sweeps=1, threads=4)
    assert sorted(delivered(feed)) == sorted(flat(LENGTHS))
    assert (most > 1) == concurrent


def test_names_and_digests():
    class Named(Sized):
        name = "my shards"

    assert Rows(LENGTHS).name == "Rows"
    assert Named(LENGTHS).name == "my shards"
    assert type("Sub", (Named,), {})(LENGTHS).name == "Sub"
    assert Rows(LENGTHS).digest() == Rows(LENGTHS).digest() != Sized(LENGTHS).digest()
    assert Sized(LENGTHS).digest() != Sized(LENGTHS[:-1]).digest()
    state = source(Sized).state_dict()
    with pytest.raises(fl.StateError, match="other data"):
        source(Sized, LENGTHS[1:]).load_state_dict(state)


def test_a_window_that_does_not_exist_is_a_damaged_state():
    feed = source(Rows, shuffle=fl.Window(chunks=3))
    state = feed.state_dict()
    for window in (3, -1, None):
        with pytest.raises(fl.StateError, match="damaged"):
            feed.load_state_dict({**state, "window": window})


def test_unknown_sizes_raise_with_the_method_to_implement():
    with pytest.raises(ValueError, match="knows the sizes of its chunks before reading them, got Rows without chunk_"):
        Rows([[1]]).chunks()


def test_user_corpora_are_joined_by_their_keys():
    class Keyed(Sized, fl.Keyed):
        schema = fl.Schema({"k": fl.Stream(2)})

        def get_chunk(self, chunk):
            return {"k": super().get_chunk(chunk)["x"]}

        def keys(self, ordinals):
            return (np.arange(19)[::-1] * 5)[ordinals].astype(np.uint64)

    class Fives(Sized, fl.Keyed):
        def keys(self, ordinals):
            return ordinals.astype(np.uint64) * np.uint64(5)

    joined = fl.Join(Fives(LENGTHS), Keyed(LENGTHS), cache=False)
    feed = fl.MinibatchSource(joined, seed=1, max_sweeps=1)
    pairs = [(x[0, 0] if len(x) else -1, k[0, 0] if len(k) else -1) for m in feed for x, k in zip(m["x"], m["k"])]  # noqa: B905
    assert sorted(pairs) == [(i, 18 - i) for i in range(19)]


@pytest.mark.parametrize("as_list", [False, True])
def test_arrays_that_are_no_numbers_are_an_error_with_their_chunk(as_list):
    """NumPy would return the values under a mask, and torch raises a RuntimeError."""
    torch = pytest.importorskip("torch")
    masked = np.ma.masked_array(np.ones((3, 2), np.float32), [[False, True]] * 3)
    for data, message in ((masked, "masked entries"), (torch.ones(3, 2, requires_grad=True), "requires grad")):
        rows = Rows([[1]])
        rows.get_chunk = lambda _, data=data: {"x": [data] if as_list else data}
        with pytest.raises(fl.SchemaError, match=rf"{message}.*stream `x` from get_chunk\(0\) of Rows"):
            fl.MinibatchSource(rows).next_minibatch(3)
