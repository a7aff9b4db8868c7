"""What HDF5 and Zarr have in common: chunks that follow stored blocks, no block decoded twice, one order, resume."""

from __future__ import annotations

import errno
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats.hdf5_zarr import stored_arrays as stored_arrays
from feedline.feed.formats.hdf5_zarr.stored_arrays import StoredArrays, _chunk_rows
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.feed.formats.corpora import everything

h5py = pytest.importorskip("h5py")
pytest.importorskip("zarr")

from tests.feed.formats import zarr_files  # noqa: E402

COUNT = 300
ARRAYS = {
    "number": (np.arange(COUNT), 17),
    "rows": (np.arange(COUNT * 6, dtype="f4").reshape(COUNT, 2, 3), 7),
    "text": (np.array([f"{i}é" * (i % 4) for i in range(COUNT)], object), 11),
}


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        for name, (data, block) in ARRAYS.items():
            file.create_dataset(name, data=data, chunks=(block, *data.shape[1:]))
        file["contiguous"] = np.arange(COUNT) * 2
        ragged = file.create_dataset("ragged", (COUNT,), h5py.vlen_dtype(np.int32), chunks=(13,))
        ragged[:] = [np.arange(i % 5) for i in range(COUNT)]
    return str(path)


def write_zarr(path, **options):
    arrays = {}
    for name, (data, block) in ARRAYS.items():
        more = {"chunks": (block, *data.shape[1:])}
        if data.dtype == object:
            more["dtype"] = str
        if options.get("zarr_format") == 3:
            more["shards"] = (block * 3, *data.shape[1:])
        arrays[name] = (data, more)
    return zarr_files.write(path, arrays, **options)


FORMATS = {
    "hdf5": ("a.h5", write_hdf5, fl.HDF5Deserializer),
    "zarr 2": ("a.zarr", lambda path: write_zarr(path, zarr_format=2), fl.ZarrDeserializer),
    "zarr 3": ("a.zarr", lambda path: write_zarr(path, zarr_format=3), fl.ZarrDeserializer),
    "zip": ("a.zip", lambda path: write_zarr(path, zarr_format=3, zipped=True), fl.ZarrDeserializer),
}


@pytest.fixture(scope="module", params=FORMATS)
def opened(request, tmp_path_factory):
    """Opens a file with every kind of array, by stored blocks of several sizes."""
    name, write, deserializer = FORMATS[request.param]
    path = write(tmp_path_factory.mktemp("stored") / name)
    return lambda **options: deserializer(path, **options)


def test_orders_parts_and_states(opened):
    def make_source(**options):
        return fl.MinibatchSource(
            opened(chunk_sequences=40), shuffle=fl.Window(chunks=3), seed=3, max_sweeps=2, **options
        )

    assert_resumes(make_source, sizes=(60,))
    whole, parts = make_source(), [make_source(partition=(i, 3)) for i in range(3)]
    for minibatch in whole.minibatches(50):
        found = [sequences_of([part.next_minibatch(50)]) for part in parts]
        assert sum(found, []) == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 3}, {"num_workers": 2, "workers": "thread"}])
def test_workers_deliver_the_same(opened, workers):
    corpus = opened()
    corpus.read(0)  # objects that are open or were begun here, too
    loaders = [
        fl.DataLoader(corpus, batch_size=32, shuffle=True, seed=1, collate_fn=list, **options)
        for options in ({}, workers)
    ]
    one, two = ([item for batch in loader for item in batch] for loader in loaders)
    for name in ("number", "rows", "text"):
        assert [np.asarray(item[name]).tolist() for item in one] == [np.asarray(item[name]).tolist() for item in two]


def test_it_is_opened_again_elsewhere(opened):
    corpus = opened(chunk_sequences=50)
    other = pickle.loads(pickle.dumps(corpus))
    assert other.digest() == corpus.digest()
    expected = everything(corpus)
    assert everything(other) == expected
    corpus.close()
    assert everything(corpus) == expected


def test_chunks_shrink_with_memory(opened):
    """They made 32 MiB whatever memory= said, so that by default all rows were unreadable."""
    assert [info.sequences for info in opened().chunks()] == [COUNT]
    small = opened(memory=2500)
    assert len(small.chunks()) > 3
    assert not any(small.read(i).errors for i in range(len(small.chunks())))
    assert everything(small) == everything(opened())


# ---- decoding -------------------------------------------------------------------------------------------


class Recorded:
    """An array of which every read is recorded, by block. Blocks ``bad`` cannot be read."""

    path, ragged, concurrent = "memory", False, True

    def __init__(self, data, block, bad=()):
        self.data, self.block, self.bad, self.read = data, block, bad, []
        self.shape, self.dtype = data.shape, data.dtype

    def rows(self, start, stop):
        numbers = range(start // self.block, (stop - 1) // self.block + 1)
        self.read += numbers
        if set(numbers) & set(self.bad):
            raise ValueError("damaged")
        return self.data[start:stop]

    def map_rows(self):
        return None


class InMemory(StoredArrays):
    def __init__(self, arrays, chunk_sequences=None, memory=2 << 30):
        self.arrays = arrays
        super().__init__("memory", chunk_sequences=chunk_sequences, memory=memory)

    def _list_paths(self, path):
        return [path]

    def _arrays(self, path, group, streams, memory_bytes):
        names = lambda: iter(self.arrays)  # noqa: E731
        return self._columns_of(self.arrays.__getitem__, names, streams, path=path, memory_bytes=memory_bytes)

    def _add_file(self, digest, path, part):
        digest.numbers(int(part.digest(), 16))


@settings(max_examples=examples(20))
@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(1, 50)),
    st.integers(1, 3),
    st.data(),
)
def test_in_order_no_block_is_decoded_twice(count, columns, chunk_sequences, threads, data):
    """With any blocks and chunks. Damage costs the rows of its block."""
    arrays, bad = {}, {}
    for i, (block, width) in enumerate(columns):
        rows = np.arange(count * width, dtype="i8").reshape(count, width)
        bad[f"x{i}"] = data.draw(st.sets(st.integers(0, (count - 1) // block), max_size=2))
        arrays[f"x{i}"] = Recorded(rows, block, bad[f"x{i}"])
    corpus = InMemory(arrays, chunk_sequences)
    for array in arrays.values():
        array.read.clear()
    lost = {row for name, array in arrays.items() for row in range(count) if row // array.block in bad[name]}
    found, start = {}, 0
    if any(bad.values()) or threads == 1:
        for number in range(len(corpus.chunks())):
            chunk = corpus.read(number)
            assert set(chunk.errors) == {row - start for row in lost if start <= row < start + chunk.num_sequences}
            for name in arrays:
                found.setdefault(name, []).extend(chunk[name].rows.tolist())
            start += chunk.num_sequences
    else:
        source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, threads=threads)
        for array in arrays.values():
            array.read.clear()
        for minibatch in source.minibatches(17):
            for name in arrays:
                found.setdefault(name, []).extend(minibatch[name].rows.tolist())
    for name, array in arrays.items():
        assert all(found[name][row] == array.data[row].tolist() for row in range(count) if row not in lost)
        sound = [block for block in array.read if block not in bad[name]]
        if not bad[name]:  # else it is looked for
            assert sorted(sound) == list(range((count - 1) // array.block + 1)), name


def test_a_lack_of_descriptors_is_no_damage():
    """Sizes of strings are looked up once: had they been taken for damaged, chunks would have been others. And rows
    that were would have stayed so for as long as their window was held."""

    class Lacking(Recorded):
        lacking = True

        def rows(self, start, stop):
            if self.lacking:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().rows(start, stop)

    array = Lacking(np.array(["x" * 100] * 400), 100)
    array.dtype = np.dtype("U")
    with pytest.raises(fl.DataError, match="cannot read rows"):
        InMemory({"x": array})
    array.lacking = False
    corpus = InMemory({"x": array}, memory=20000)
    assert len(corpus.chunks()) > 1
    digest, array.lacking = corpus.digest(), True
    with pytest.raises(fl.DataError, match="cannot read rows"):
        corpus.digest()
    array.lacking = False
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, read_ahead=0)
    source.next_minibatch(10)
    array.lacking = True
    with pytest.raises(fl.DataError, match="cannot read rows"):
        for _ in range(400):
            source.next_minibatch(1)
    array.lacking = False
    seen = source.position.sequence
    assert sum(minibatch.num_sequences for minibatch in source.minibatches(50)) == 400 - seen
    array.lacking, array.bad = False, [0]
    assert InMemory({"x": array}).digest() != digest


def test_cut_blocks_are_kept_no_further_than_memory_allows(monkeypatch):
    monkeypatch.setattr(stored_arrays, "_MAX_KEPT_BYTES", 1000)
    array = Recorded(np.arange(400), 100)
    corpus = InMemory({"x": array}, chunk_sequences=10)
    array.read.clear()
    for _ in range(2):
        for number in range(40):
            corpus.read(number)
    assert array.read == [block for _ in range(2) for block in range(4)]
    monkeypatch.setattr(stored_arrays, "_MAX_KEPT_BYTES", 700)
    larger = Recorded(np.arange(400), 100)
    corpus = InMemory({"x": larger}, chunk_sequences=10)
    larger.read.clear()
    for number in range(40):
        corpus.read(number)
    assert len(larger.read) == 40


class Sized:
    def __init__(self, step, row_bytes):
        self.step, self.row_bytes = step, row_bytes


def rows_of(*columns, memory=2 << 30):
    return _chunk_rows([Sized(*column) for column in columns], memory)


def test_chunks_follow_the_blocks():
    mib = 1 << 20
    assert rows_of((100, 1024)) == 32 * mib // 1024 // 100 * 100
    assert rows_of((100, 1024), memory=mib) == 1000
    # Whole blocks of all, even if that takes more than 32 MiB.
    assert rows_of((1000, 512), (1024, 512)) == 128000
    assert rows_of((1000, 4096), (1024, 4096)) != 128000
    # Cut the cheap ones.
    assert rows_of((1000, 4000), (1024, 90)) % 1000 == 0
    assert rows_of((1000, 90), (1024, 4000)) % 1024 == 0
    # A block of many small rows does not make the chunk as long.
    assert rows_of((1000, 20480), (20000, 8)) == 1000
    # A block that is larger than memory allows cannot be read. Rows of one byte need not end with it.
    assert rows_of((5000, 100), memory=10000) == 100
    assert rows_of((1 << 20, 1 << 10)) == 1 << 20


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 20000)), min_size=1, max_size=4),
    st.integers(1, 1 << 28),
)
def test_no_other_whole_blocks_cost_less(columns, memory):
    """The decoding that is done twice, at the worst, for each row: an obvious search finds nothing better."""
    rows, row = rows_of(*columns, memory=memory), sum(size for _, size in columns)

    def twice(n):
        ends = range(n, n * 60, n)
        cut = [sum(1 for end in ends if end % step) * step * size for step, size in columns]
        return sum(cut) / (len(ends) * n)

    assert rows >= 1
    together = math.lcm(*(step for step, _ in columns))
    if together * row <= min(memory, 32 << 20):
        assert rows % together == 0
        assert twice(rows) == 0
        assert rows * row <= min(memory, 32 << 20)
    for step, size in columns:
        whole = max(1, min(memory, 32 << 20) // row // step) * step
        if whole * row <= (memory if 2 * size >= row else min(memory, 128 << 20)):
            assert twice(rows) <= twice(whole) * 1.2 + 1e-9
