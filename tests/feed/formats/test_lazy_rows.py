"""Views stay views, and data that is read when sliced is read only when needed."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats import arrays, lazy_rows
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.protocol import can
from feedline.testing import assert_resumes
from tests.effort import examples
from tests.native.test_gather import views

windows = np.lib.stride_tricks.sliding_window_view


class Sliced:
    """The common interface of HDF5 and Zarr, in memory: returns rows by slices, and records every slice."""

    def __init__(self, rows, chunks=None):
        self._rows, self.slices, self.inside = rows, [], 0
        self.shape, self.dtype = rows.shape, rows.dtype
        if chunks is not None:
            self.chunks = chunks

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, rows):
        self.inside += 1
        assert self.inside == 1, "two threads at a time"
        self.slices.append((rows.start, rows.stop))
        found = self._rows[rows].copy()
        self.inside -= 1
        return found

    def __array__(self, *_, **__):
        raise AssertionError("read as a whole")

    @property
    def read(self):
        return sum(stop - start for start, stop in self.slices)


# ---- views --------------------------------------------------------------------------------------------


def test_windows_over_tokens_take_the_memory_of_the_tokens():
    """Regression: they took the memory of the tokens times their length."""
    tokens = np.arange(1_000_000, dtype=np.int32)
    corpus = ArrayDeserializer(x=windows(tokens, 129))
    assert np.shares_memory(corpus.read(3)["x"].rows, tokens)
    feed = fl.MinibatchSource(corpus, seed=1)
    for _ in range(20):
        minibatch = feed.next_minibatch(100)
        assert (minibatch["x"].rows == minibatch.ids[:, None] + np.arange(129)).all()
        assert minibatch["x"].rows.flags.c_contiguous
    tokens[500_000] = -1  # nothing was copied anywhere
    feed.seek(samples=0)
    assert sum((feed.next_minibatch(100_000)["x"].rows == -1).sum() for _ in range(10)) == 129


@pytest.mark.parametrize(
    "view",
    [
        lambda a: windows(a, 16, axis=0),
        lambda a: a[::2],
        lambda a: a[:, ::3],
        lambda a: a.T,
        lambda a: a[::-1, ::-1],
        lambda a: a.reshape(10, 10, 12).transpose(0, 2, 1),
        lambda a: np.broadcast_to(a, (5, *a.shape)),
        np.asfortranarray,
    ],
)
def test_no_view_is_copied(view):
    base = np.arange(1200.0).reshape(100, 12)
    data = view(base)
    corpus = ArrayDeserializer(x=data, chunk_sequences=7)
    assert np.shares_memory(corpus.read(0)["x"].rows, data)
    source = fl.MinibatchSource(corpus, seed=3, max_sweeps=1)
    for minibatch in source.minibatches(5):
        np.testing.assert_array_equal(minibatch["x"].rows, data[minibatch.ids])
    assert source.stats().held_bytes == 0


@given(views(), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_any_view_is_fed_as_its_copy_is(view, chunk_sequences, seed):
    if not len(view) or view.dtype.kind not in "biufc":
        return
    one, two = (ArrayDeserializer(x=x, chunk_sequences=chunk_sequences) for x in (view, view.copy(order="C")))
    assert one.digest() == two.digest()
    assert one.chunks() == two.chunks()
    feeds = [fl.MinibatchSource(c, seed=seed, max_sweeps=2, shuffle=fl.Window(samples=5)) for c in (one, two)]
    for a, b in zip(*(feed.minibatches(4) for feed in feeds), strict=True):
        assert a["x"].rows.tobytes() == b["x"].rows.tobytes()
        assert a.ids.tolist() == b.ids.tolist()
    picked = np.arange(len(view))[::-1]
    assert one.select(picked)["x"].rows.tobytes() == two.select(picked)["x"].rows.tobytes()


def test_a_torch_view_is_not_copied():
    torch = pytest.importorskip("torch")
    base = torch.arange(60).reshape(10, 6)
    assert np.shares_memory(ArrayDeserializer(x=base.T).read(0)["x"].rows, base.numpy())


def test_views_as_sequences_of_several_samples_are_copied_and_reported(monkeypatch):
    rows = windows(np.arange(1000), 50)
    value = fl.Value.from_dense(rows, [0, 3, len(rows)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corpus = ArrayDeserializer(x=value)  # a little is not worth a word
    assert corpus.read(0)["x"] == value
    monkeypatch.setattr(arrays, "_MIN_WARNED_BYTES", 1000)
    with pytest.warns(UserWarning, match=f"copied.* {rows.nbytes} bytes instead of the 8000"):
        corpus = ArrayDeserializer(x=value)
    assert fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1).next_minibatch(2000)["x"] == value


# ---- data that is read when sliced --------------------------------------------------------------------


def test_nothing_is_read_before_it_is_needed():
    data = Sliced(np.arange(3000.0).reshape(1000, 3))
    corpus = ArrayDeserializer(x=data, y=np.arange(1000), chunk_sequences=100)
    assert corpus.schema["x"] == fl.Stream(3, "float64")
    assert (can(corpus, fl.RandomAccess), corpus.in_memory, can(corpus, fl.Sliceable)) == (False, False, False)
    assert [tuple(info) for info in corpus.chunks()[:1]] == [(100, 100, 100 * 32)]
    assert data.read == 0
    chunk = corpus.read(3)
    assert data.slices[-1] == (300, 400)
    assert chunk["x"].rows[:, 0].tolist() == np.arange(900.0, 1200, 3).tolist()
    assert chunk["y"].rows.tolist() == list(range(300, 400))
    source = fl.MinibatchSource(corpus, seed=1, shuffle=fl.Window(chunks=2), read_ahead=0, max_sweeps=1)
    data.slices.clear()
    minibatch = source.next_minibatch(150)
    assert data.read == 200
    assert (minibatch["x"].rows[:, 0] == 3 * minibatch["y"].rows).all()
    rest = [m.ids for m in source.minibatches(150)]
    assert sorted(np.concatenate([minibatch.ids, *rest]).tolist()) == list(range(1000))
    assert data.read == 1000


def test_it_resumes():
    def make_source():
        corpus = ArrayDeserializer(
            x=Sliced(np.arange(50)), words=[np.arange(n % 3) for n in range(50)], chunk_sequences=7
        )
        return fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=3), max_sweeps=2)

    assert_resumes(make_source)


def test_lengths_and_joins():
    ragged = [np.arange(n % 3) for n in range(20)]
    corpus = ArrayDeserializer(x=Sliced(np.arange(20)), words=ragged, chunk_sequences=6)
    assert corpus.lengths(np.arange(4)).tolist() == [1, 1, 2, 1]  # the other stream has one sample each
    assert ArrayDeserializer(x=Sliced(np.arange(20))).lengths(np.arange(3)) is None
    joined = fl.Join(corpus, ArrayDeserializer(y=np.arange(20) * 2))
    assert joined.read(1)["y"].rows.tolist() == [12, 14, 16, 18, 20, 22]
    assert corpus.select(np.array([13, 2, 13]))["x"].rows.tolist() == [13, 2, 13]


def test_chunks_are_whole_blocks_as_they_are_stored(monkeypatch):
    monkeypatch.setattr(lazy_rows, "CHUNK_BYTES", 8000)
    rows = np.zeros((5000, 10))  # 80 bytes each
    for chunks, expected in ((None, 100), ((30, 10), 90), ((300, 5), 300), ((0, 0), 100), (None, 100)):
        corpus = ArrayDeserializer(x=Sliced(rows, chunks))
        assert corpus.chunks()[0].sequences == expected
    assert ArrayDeserializer(x=Sliced(rows, (30, 10)), y=Sliced(rows, (40, 10))).chunks()[0].sequences == 40
    monkeypatch.setattr(lazy_rows, "CHUNK_MEMORY", 1 << 10)  # blocks that no memory would hold are cut
    assert ArrayDeserializer(x=Sliced(rows, (300, 5))).chunks()[0].sequences == 100
    assert ArrayDeserializer(x=Sliced(rows), chunk_sequences=11).chunks()[0].sequences == 11


def test_the_digest_reads_blocks_and_equals_the_digest_of_the_rows():
    rows = np.arange(3_000_000.0)
    data = Sliced(rows)
    assert ArrayDeserializer(x=data).digest() == ArrayDeserializer(x=rows).digest()
    assert data.read < 30_000
    rows[1_500_000] = -1
    assert ArrayDeserializer(x=Sliced(rows)).digest() != ArrayDeserializer(x=np.arange(3_000_000.0)).digest()


def test_several_threads_read_one_at_a_time():
    """As not every library supports two. `Sliced` raises an error."""
    data = Sliced(np.arange(10_000))
    source = fl.MinibatchSource(ArrayDeserializer(x=data, chunk_sequences=10), seed=2, threads=4, max_sweeps=1)
    assert sum(minibatch["x"].rows.sum() for minibatch in source) == 9999 * 5000
    assert threading.active_count() >= 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda rows: rows[:-1], r"expected rows 5 to 9 of stream `x` as int64 \(5, 2\), got int64 \(4, 2\)"),
        (lambda rows: rows[:, :1], r"got int64 \(5, 1\)"),
        (lambda rows: rows.astype("f4"), r"got float32 \(5, 2\)"),
        (lambda rows: 1 / 0, "cannot read rows 5 to 9: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_as_promised_is_an_error_in_its_place(wrong, message):
    class Wrong(Sliced):
        name = "/x"

        def __getitem__(self, rows):
            found = super().__getitem__(rows)
            return wrong(found) if rows.start == 5 else found

    corpus = ArrayDeserializer(x=Wrong(np.arange(20).reshape(10, 2)), chunk_sequences=5)
    corpus.read(0)
    with pytest.raises(fl.DataError, match=message) as caught:
        corpus.read(1)
    assert (caught.value.sequence, caught.value.stream, caught.value.path) == (5, "x", "/x")


def test_impossible_data():
    with pytest.raises(TypeError, match="numbers or bools for stream `x`, got dtype"):
        ArrayDeserializer(x=Sliced(np.array(["a", "b"])))
    with pytest.raises(ValueError, match="got a scalar"):
        ArrayDeserializer(x=Sliced(np.array(1)))
    with pytest.raises(fl.SchemaError, match="same number of sequences"):
        ArrayDeserializer(x=Sliced(np.arange(3)), y=[1, 2])
    with pytest.raises(fl.DataError, match="at least one sequence"):
        ArrayDeserializer(x=Sliced(np.empty((0, 3))))


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    rows = np.arange(30_000, dtype="f4").reshape(10_000, 3)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=rows, chunks=(100, 3), compression="gzip")
        file["y"] = np.arange(10_000)
    with h5py.File(path) as file:
        corpus = ArrayDeserializer(x=file["x"], y=file["y"], chunk_sequences=1000)
        source = fl.MinibatchSource(corpus, seed=4, max_sweeps=1, shuffle=fl.Window(chunks=3))
        for minibatch in source.minibatches(700):
            np.testing.assert_array_equal(minibatch["x"].rows, rows[minibatch.ids])
            np.testing.assert_array_equal(minibatch["y"].rows, minibatch.ids)
        assert source.stats().chunks_read == 10
        assert corpus.digest() == ArrayDeserializer(x=rows, y=np.arange(10_000)).digest()
        assert fl.convert(corpus, tmp_path / "store").sequences == 10_000
    with pytest.raises(fl.DataError, match="cannot read rows 0 to 999") as caught:
        corpus.read(0)  # the file was closed
    assert caught.value.stream == "x"
