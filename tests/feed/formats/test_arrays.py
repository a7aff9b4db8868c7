"""`ArrayDeserializer`: its chunks are views of the arrays."""

import mmap
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.data import Value
from feedline.errors import DataError, SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.protocol import Mapped, can
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.inside import copy_ahead_of, never_together, reader_of
from tests.linux import linux_only

# Arrow counts no null in it, as all indices are there.
NULL_ENTRY = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.int8()), pa.array(["a", None]))


@given(corpora(), st.integers(1, 7))
@settings(deadline=None)
def test_all_chunks_together_are_the_data(data, chunk_sequences):
    corpus = ArrayDeserializer(data, chunk_sequences=chunk_sequences)
    assert_same(everything(corpus), data)


@given(corpora(), st.integers(1, 7), st.booleans())
@settings(deadline=None)
def test_sizes_match_the_chunks(data, chunk_sequences, defining):
    first = next(iter(data))
    corpus = ArrayDeserializer(data, chunk_sequences=chunk_sequences, defines_size=first if defining else None)
    counted = [first] if defining else list(data)
    longest = np.max([data[name].lengths for name in counted], axis=0)
    ordinals = np.arange(len(longest))[::-1]
    lengths = corpus.lengths(ordinals)
    if lengths is None:
        assert (longest == 1).all()
    else:
        assert lengths.dtype == np.int64
        assert np.array_equal(lengths, longest[::-1])
    start = 0
    for i, info in enumerate(corpus.chunks()):
        chunk = corpus.read(i)
        assert info.sequences == chunk.num_sequences
        assert info.samples == longest[start : start + info.sequences].sum()
        stored = [v.values.nbytes + v.indices.nbytes if v.is_sparse else v.rows.nbytes for v in chunk.values.values()]
        assert info.bytes == sum(stored)
        start += info.sequences
    assert start == len(longest)


def test_contiguous_arrays_are_not_copied(tmp_path):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (100, 3))
    matrix = scipy.sparse.random(100, 8, 0.3, "csr", dtype=np.float32, rng=0)
    ragged = Value.from_dense(np.arange(200.0), np.arange(0, 202, 2))
    corpus = ArrayDeserializer(x=rows, m=matrix, r=ragged, chunk_sequences=32)
    chunk = corpus.read(1)
    assert chunk["x"].rows.base is not None
    assert np.shares_memory(chunk["x"].rows, rows)
    assert chunk["x"].rows.__array_interface__["data"][0] == rows[32:].__array_interface__["data"][0]
    assert np.shares_memory(chunk["m"].indices, matrix.indices)
    assert np.shares_memory(chunk["m"].values, matrix.data)
    assert np.shares_memory(chunk["r"].rows, ragged.rows)


def test_torch_tensors_share_memory():
    torch = pytest.importorskip("torch")
    x, flags = torch.rand(10, 3), torch.arange(10) > 4
    corpus = ArrayDeserializer(x=x, flags=flags)
    x[3] = 7
    assert corpus.read(0)["x"].rows[3].tolist() == [7, 7, 7]
    assert corpus.schema["flags"].dtype == np.bool_
    with pytest.raises(ValueError, match=r"detach\(\).cpu\(\).*stream `x`"):
        ArrayDeserializer(x=x.requires_grad_())
    with pytest.raises((TypeError, ValueError), match="stream `x`"):
        ArrayDeserializer(x=torch.zeros(3, dtype=torch.bfloat16))


def test_lists_are_sequences():
    dense = [np.zeros((2, 3), np.float32), np.ones((1, 3), np.float32), np.zeros((0, 3), np.float32)]
    sparse = [scipy.sparse.eye(n, 5, format="csr", dtype=np.float64) for n in (1, 4, 2)]
    corpus = ArrayDeserializer(d=dense, s=sparse, n=[1, 2, 3], t=[[1, 2], [3], []])
    assert corpus.schema["d"].shape == (3,)
    assert corpus.schema["s"].dtype == np.float64
    assert corpus.schema["n"].shape == ()
    chunk = corpus.read(0)
    assert [len(a) for a in chunk["d"]] == [2, 1, 0]
    assert chunk["s"].lengths.tolist() == [1, 4, 2]
    assert chunk["n"].one_sample_each
    assert [a.tolist() for a in chunk["t"]] == [[1, 2], [3], []]
    assert corpus.lengths(np.arange(3)).tolist() == [2, 4, 2]


def test_digest_sees_content_and_sizes_and_no_names():
    rows = np.random.default_rng(0).random((50_000, 4))
    digest = ArrayDeserializer(x=rows).digest()
    assert digest == ArrayDeserializer(y=rows.copy(), chunk_sequences=7).digest()
    assert digest != ArrayDeserializer(x=rows[:-1]).digest()
    assert ArrayDeserializer(x=np.zeros(9, "f4")).digest() != ArrayDeserializer(x=np.zeros((9, 2), "f4")).digest()
    zeros = [ArrayDeserializer(x=np.zeros((100_000, width), np.uint8)).digest() for width in (4, 8)]
    assert zeros[0] != zeros[1]
    for at in (0, 25_000, 49_999):
        other = rows.copy()
        other[at, 0] += 1
        assert digest != ArrayDeserializer(x=other).digest(), at


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({}, SchemaError, "at least one stream"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, SchemaError, "`x` has 3, `y` has 4"),
        ({"x": np.array([["a"]])}, ValueError, r"array \(N,\) of <U1, got shape \(1, 1\) \(stream `x`\)"),
        ({"x": np.array([np.datetime64("2026-01-01")])}, TypeError, "dtype datetime64.*class indices.*stream `x`"),
        ({"x": np.array([object()])}, TypeError, "dtype object.*stream `x`"),
        ({"x": [["a"], [b"b"]]}, TypeError, "only str samples, got bytes.*stream `x`"),
        ({"x": ["a", None]}, TypeError, "bytes or str.*None.*stream `x`"),
        ({"x": ["\ud800"]}, ValueError, "UTF-8 can represent.*stream `x`"),
        ({"x": pa.array(["a", None])}, ValueError, "no null, got one at index 1.*stream `x`"),
        ({"x": pa.array(["a", None]).dictionary_encode()}, ValueError, "no null, got one at index 1.*stream `x`"),
        ({"x": NULL_ENTRY}, ValueError, "no null, got one at index 2.*stream `x`"),
        ({"x": pa.chunked_array([NULL_ENTRY[:2], NULL_ENTRY[2:]])}, ValueError, "no null, got one at index 2"),
        ({"x": Value.from_dense(np.array(["a"]))}, TypeError, "dtype <U1|stream `x`"),
        ({"x": scipy.sparse.eye(3, dtype=np.int64)}, TypeError, "float32 or float64 for sparse stream `x`"),
        ({"x": np.zeros((0, 3))}, DataError, "at least one sequence, got none in `x`"),
        ({"x": []}, ValueError, "at least one sequence.*stream `x`"),
        ({"x": np.float32(1)}, ValueError, "scalar.*stream `x`"),
        ({"x": {1: 2}}, TypeError, "got dict.*stream `x`"),
        ({"x": [np.zeros((1, 2)), np.zeros((1, 3))]}, ValueError, "sequence 1.*stream `x`"),
    ],
)
def test_impossible_data_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        ArrayDeserializer(data)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="chunk_sequences"):
        ArrayDeserializer(x=np.zeros(3), chunk_sequences=0)
    with pytest.raises(SchemaError, match="one of x, got 'z'"):
        ArrayDeserializer(x=np.zeros(3), defines_size="z")
    with pytest.raises(SchemaError, match="twice: x"):
        ArrayDeserializer({"x": np.zeros(3)}, x=np.zeros(3))
    with pytest.raises(IndexError, match="from 0 to 0, got 1"):
        ArrayDeserializer(x=np.zeros(3)).read(1)


@pytest.mark.parametrize("ahead", [False, True, "together"])
def test_a_mapped_array_that_is_truncated_is_an_error(tmp_path, ahead):
    """In any read: copies, now or ahead, and the digest in a state. Also if rows read as zeros."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1, 80_001).reshape(20_000, 4))
    content = path.read_bytes()
    source = fl.MinibatchSource(fl.open_corpus(path), shuffle=False)
    copy_ahead_of(source).threshold = 0 if ahead is True else 1 << 60
    if ahead != "together":
        never_together(source)
    for _ in range(3):
        source.next_minibatch(100)
    source.state_dict()  # holds a digest of the content, which is made once
    os.truncate(path, 128 + 32 * 5000)
    with pytest.raises(DataError, match="truncated to 160128 bytes"):
        for minibatch in source.minibatches(100):  # minibatches that were copied already
            assert minibatch["x"].rows[:, 0].tolist() == (4 * minibatch.ids + 1).tolist()
    state = source.state_dict()
    assert state["sequence"] <= (5000 if ahead == "together" else 500)
    for size in (100, 100, 10_000):
        with pytest.raises(DataError, match="truncated to 160128 bytes") as caught:
            source.next_minibatch(size)
        assert caught.value.path == str(path)
        assert source.state_dict() == state
    with pytest.raises(DataError, match="truncated to 160128 bytes"):
        source.corpus.digest()
    with pytest.raises(DataError, match="truncated to 160128 bytes"):
        fl.ArrayDeserializer(x=source.corpus.read(0)["x"].rows)
    path.write_bytes(content)
    assert source.next_minibatch(100).ids[0] == state["sequence"]
    source.close()


@pytest.mark.parametrize("as_list", [False, True])
def test_what_is_masked_is_not_fed(as_list):
    masked = np.ma.masked_array(np.arange(4.0), [False, True, False, False])
    with pytest.raises(ValueError, match=r"masked entries.*\.filled.*stream `x`"):
        ArrayDeserializer(x=[masked, masked] if as_list else masked)
    without = np.ma.masked_array(np.arange(4.0), np.zeros(4, bool))
    assert ArrayDeserializer(x=without).read(0)["x"].rows.tolist() == [0, 1, 2, 3]


def test_tensors_whose_sign_is_to_be_turned_are_turned():
    torch = pytest.importorskip("torch")
    negative = torch.complex(torch.zeros(3), torch.ones(3)).conj().imag
    assert negative.is_neg()
    assert ArrayDeserializer(x=negative).read(0)["x"].rows.tolist() == [-1, -1, -1]


@linux_only("a table of all maps")
def test_mapped_files_are_known(tmp_path):
    """Mappings of any kind and any place in the file, but no memory, private copies, or deleted files."""
    np.save(tmp_path / "x.npy", np.arange(6000.0).reshape(3000, 2))
    np.arange(30_000.0).tofile(tmp_path / "raw")
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    far = np.memmap(tmp_path / "raw", float, "r", offset=81920, shape=(3000, 2))
    with open(tmp_path / "raw", "rb") as file:
        other = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), float)[::-1][::-1][3:3003]
    corpus = ArrayDeserializer(x=x, tail=x[::-1][::-1][:, :], far=far, other=other, memory=np.zeros(3000))
    assert can(corpus, Mapped)
    files = corpus.files([0])
    assert [os.path.basename(file.path) for file in files] == ["x.npy", "raw", "raw"]
    about = os.stat(tmp_path / "raw")
    assert {file.identity for file in files[1:]} == {(about.st_dev, about.st_ino)}
    assert [file.first for file in files] == [0, 81920, 0]
    assert [far.ctypes.data - file.address for file in files[1:2]] == [81920]
    assert [other.ctypes.data - file.address for file in files[2:]] == [24]
    assert files[1].size == min(about.st_size, -(-(81920 + far.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE)
    again = pickle.loads(pickle.dumps(corpus))
    assert not can(again, Mapped)
    assert again.files([0]) == []
    assert not can(ArrayDeserializer(x=np.zeros(30)[3:]), Mapped)
    assert not can(ArrayDeserializer(x=np.memmap(tmp_path / "raw", float, "c")), Mapped)
    assert not can(ArrayDeserializer(x=x[::2]), Mapped)
    os.remove(tmp_path / "x.npy")
    assert not can(ArrayDeserializer(x=x), Mapped)


@pytest.mark.parametrize("shuffle", [False, "whole", fl.Window(samples=500)])
def test_maps_that_begin_within_a_file_are_fetched(tmp_path, shuffle):
    """Rows with gaps, which are not copied, and arrays in memory, too."""
    np.arange(30_000.0).tofile(tmp_path / "raw")
    far = np.memmap(tmp_path / "raw", float, "r", offset=81920, shape=(3000, 2))
    near = np.memmap(tmp_path / "raw", float, "r", shape=(3000, 4))
    arrays = {"far": far, "near": near, "gaps": near[:, 1:3], "memory": np.arange(3000)}
    with fl.MinibatchSource(ArrayDeserializer(arrays, chunk_sequences=700), shuffle=shuffle, max_sweeps=1) as feed:
        reader_of(feed).forced = True
        seen = 0
        for m in feed.minibatches(64):
            for name, array in arrays.items():
                np.testing.assert_array_equal(m[name].rows, array[m.ids])
            seen += len(m.ids)
        assert seen == 3000
        assert feed.stats().disk_bytes > 0


def test_streams_come_by_name():
    """A single array is refused with advice. Frames are mappings, though they have no truth value."""
    with pytest.raises(TypeError, match=r"mapping from stream name to data, got ndarray; write .*x="):
        ArrayDeserializer(np.zeros(3))

    class Frame(dict):
        def __bool__(self):
            raise ValueError("ambiguous")

    assert ArrayDeserializer(Frame(a=np.zeros(3))).schema.keys() == {"a"}
