"""Token files: rows equal plain slices, for any stride. The laws hold, and damage is detected."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats import tokens as module
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.effort import stride as every

CODES = {"uint8": 1, "int32": 4, "int64": 5, "uint16": 8}


def sliced(files, row, stride):
    """The rows of files, by slicing."""
    return [file[at : at + row].tolist() for file in files for at in range(0, len(file) - row + 1, stride)]


def delivered(corpus, **options):
    source = fl.MinibatchSource(corpus, **{"shuffle": False, "max_sweeps": 1, **options})
    return [row for m in source.minibatches(37) for row in m["tokens"].rows.tolist()]


def megatron(path, texts, dtype="uint16", **changes):
    """Megatron's two files, by their documented bytes: the tokens, and the index."""
    path.with_suffix(".bin").write_bytes(b"".join(np.asarray(d, dtype).tobytes() for d in texts))
    lengths = np.array([len(d) for d in texts], "<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * np.dtype(dtype).itemsize
    n = len(texts)
    head = {"magic": b"MMIDIDX\0\0", "version": 1, "code": CODES[dtype], "sequences": n, "documents": n + 1, **changes}
    path.with_suffix(".idx").write_bytes(
        struct.pack("<9sQBQQ", *head.values()) + lengths.tobytes() + pointers.tobytes() + np.arange(n + 1).tobytes()
    )


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Three files, the second with too few tokens for most rows."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(3)
    files = [rng.integers(0, 2**16, n).astype("uint16") for n in (1000, 5, 333)]
    for i, file in enumerate(files):
        file.tofile(folder / f"s-{i}.bin")
    return folder, files


@given(
    length=st.integers(1, 40), stride=st.none() | st.integers(1, 50), targets=st.booleans(), chunk=st.integers(1, 500)
)
def test_rows_match_slicing(shards, length, stride, targets, chunk):
    folder, files = shards
    expected = sliced(files, length + targets, stride or length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BYTES", chunk)
        corpus = fl.TokensDeserializer(str(folder / "s-*.bin"), length=length, stride=stride, targets=targets)
        assert delivered(corpus) == expected
        assert sum(info.sequences for info in corpus.chunks()) == len(expected)
        assert corpus.tokens == 1338
        got = [row for i in range(len(corpus.chunks())) for row in corpus.read(i)["tokens"].rows.tolist()]
        assert got == expected


@pytest.fixture(params=[1, 7, 16, 21])
def make(request, shards):
    """A source over rows of 16 that overlap, touch, or have gaps."""
    folder, _ = shards

    def made(**options):
        corpus = fl.TokensDeserializer(str(folder / "s-{0..2}.bin"), length=16, stride=request.param)
        return fl.MinibatchSource(corpus, **{"seed": 2, "max_sweeps": 2, **options})

    return made


def test_one_order_parts_and_resume(make):
    for shuffle in (True, fl.Window(samples=20)):
        digests = {bytes_digest(make(shuffle=shuffle).minibatches(size)) for size in (5, 64)}
        assert len(digests) == 1
        assert_resumes(lambda shuffle=shuffle: make(shuffle=shuffle), sizes=(7,))
    unpartitioned, parts = make(), [make(partition=(i, 3)) for i in range(3)]
    for minibatch in unpartitioned.minibatches(11):
        delivered = [one for part in parts for one in sequences_of([part.next_minibatch(11)])]
        assert delivered == sequences_of([minibatch])


@pytest.mark.filterwarnings("ignore:expected at most")
def test_a_loader_and_other_processes(shards):
    folder, files = shards
    corpus = fl.TokensDeserializer(folder / "s-0.bin", length=10)
    again = pickle.loads(pickle.dumps(corpus))
    assert again.digest() == corpus.digest()
    assert delivered(again) == delivered(corpus) == sliced(files[:1], 10, 10)
    for workers in (0, 2, 3):
        loader = fl.DataLoader(corpus, batch_size=8, num_workers=workers)
        assert [row for batch in loader for row in batch["tokens"].tolist()] == sliced(files[:1], 10, 10)


def test_rows_are_views(tmp_path):
    """Of a file of 64 GiB, which is a hole but for its ends."""
    path = tmp_path / "holes.bin"
    with open(path, "wb") as file:
        file.write(b"\1\0\2\0")
        file.truncate(64 << 30)
        file.seek(-4, 2)
        file.write(b"\3\0\4\0")
    corpus = fl.TokensDeserializer(path, length=1024, stride=1024)
    assert corpus.tokens == 32 << 30
    last = corpus.select(np.array([(32 << 20) - 1, 0]))["tokens"].rows
    assert (last[0, -2:].tolist(), last[1, :2].tolist()) == ([3, 4], [1, 2])


@pytest.mark.parametrize("stride", [999, 2**62, 2**80])
def test_a_stride_beyond_the_file_is_one_row(tmp_path, stride):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")
    corpus = fl.TokensDeserializer(tmp_path / "a.bin", length=3, stride=stride)
    assert delivered(corpus) == [[0, 1, 2]]
    assert corpus.chunks()[0].bytes == 100


def test_npy_and_dtypes(tmp_path):
    for dtype in ("uint8", "int32", "uint32", "int64"):
        np.save(tmp_path / "a.npy", np.arange(100).astype(dtype))
        np.arange(100).astype(dtype).tofile(tmp_path / "a.bin")
        for corpus in (
            fl.TokensDeserializer(tmp_path / "a.npy", length=7),
            fl.TokensDeserializer(tmp_path / "a.bin", length=7, dtype=dtype),
        ):
            assert corpus.schema == fl.Schema({"tokens": fl.Stream(7, dtype)})
            assert delivered(corpus) == sliced([np.arange(100)], 7, 7)


@pytest.mark.parametrize("dtype", CODES)
def test_megatron(tmp_path, dtype):
    documents = [np.arange(30), np.arange(0), np.arange(50, 120)]
    megatron(tmp_path / "m", documents, dtype)
    for path in (tmp_path / "m.bin", tmp_path / "m.idx", tmp_path):
        corpus = fl.TokensDeserializer(path, length=9, targets=True)
        assert corpus.schema["tokens"] == fl.Stream(10, dtype)
        assert delivered(corpus) == sliced([np.concatenate(documents)], 10, 9)
    opened = fl.open_corpus(tmp_path / "m.bin", streams={"tokens": fl.Stream(10, dtype)})
    assert delivered(opened) == sliced([np.concatenate(documents)], 10, 10)


def test_by_path(shards):
    folder, files = shards
    corpus = fl.open_corpus(str(folder / "s-*.bin"), streams={"tokens": fl.Stream(12, "uint16")})
    assert delivered(corpus) == sliced(files, 12, 12)
    loader = fl.DataLoader(corpus, batch_size=4)
    assert next(iter(loader))["tokens"].shape == (4, 12)
    for streams in ({}, {"x": fl.Stream((), "uint16")}, {"x": fl.Stream(4)}):
        with pytest.raises(fl.SchemaError, match="how long rows are"):
            fl.open_corpus(folder / "s-0.bin", streams=streams)


def test_the_digest_covers_content_and_rows(shards, tmp_path):
    folder, files = shards
    deserializer = fl.TokensDeserializer(folder / "s-0.bin", length=10)
    files[0].tofile(tmp_path / "moved.bin")
    assert fl.TokensDeserializer(tmp_path / "moved.bin", length=10).digest() == deserializer.digest()
    other_settings = [{"length": 11}, {"length": 10, "stride": 9}, {"length": 9, "stride": 10}]
    digests = {fl.TokensDeserializer(folder / "s-0.bin", **other).digest() for other in other_settings}
    assert len({*digests, deserializer.digest()}) == 4


# ---- damage ---------------------------------------------------------------------------------------------


def test_what_is_no_file_of_tokens(tmp_path):
    for size, dtype, message in (
        (7, "uint16", "whole number of uint16 tokens, got 7"),
        (0, "uint16", "at least one row"),
    ):
        (tmp_path / "a.bin").write_bytes(bytes(size))
        with pytest.raises(fl.DataError, match=message):
            fl.TokensDeserializer(tmp_path / "a.bin", length=2, dtype=dtype)
    for array in (np.zeros((2, 2), int), np.zeros(3), np.zeros(3, ">i4"), np.zeros(3, "M8[s]")):
        np.save(tmp_path / "b.npy", array)
        with pytest.raises(fl.DataError, match="one-dimensional integers"):
            fl.TokensDeserializer(tmp_path / "b.npy", length=2)
    np.zeros(9, "uint16").tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.zeros(9, "int32"))
    with pytest.raises(fl.DataError, match=r"tokens of uint16, as in .*a\.bin, got int32\n  at .*b\.npy"):
        fl.TokensDeserializer([tmp_path / "a.bin", tmp_path / "b.npy"], length=2)
    with pytest.raises(fl.DataError, match="No such file"):
        fl.TokensDeserializer(tmp_path / "none.bin", length=2)
    for arguments in ({"length": 0}, {"length": 1, "stride": 0}, {"length": 2, "dtype": "float32"}):
        with pytest.raises(ValueError, match="expected"):
            fl.TokensDeserializer(tmp_path / "a.bin", **arguments)
    with pytest.raises(ValueError, match="empty list"):
        fl.TokensDeserializer([], length=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": b"MMIDIDX\0\1"}, "begins with"),
        ({"version": 2}, "got version 2"),
        ({"code": 6}, "dtype of integers"),
        ({"code": 4}, "of 100 bytes in all, as the tokens have, got 200"),
        ({"sequences": 2**61}, "for 2305843009213693952 sequences"),
        ({"documents": 9}, "9 documents"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path, changes, message):
    megatron(tmp_path / "m", [np.arange(50)], **changes)
    with pytest.raises(fl.DataError, match=message) as caught:
        fl.TokensDeserializer(tmp_path / "m.bin", length=4)
    assert caught.value.path == str(tmp_path / "m.idx")


def test_any_byte_of_an_index(tmp_path):
    """It is refused, or does not matter, and rows equal the tokens."""
    documents = [np.arange(30), np.arange(70)]
    megatron(tmp_path / "m", documents)
    index = tmp_path / "m.idx"
    content = index.read_bytes()
    expected = sliced([np.concatenate(documents)], 8, 8)
    for at in range(0, len(content), every(1)):
        for bit in (1, 128):
            index.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            try:
                corpus = fl.TokensDeserializer(tmp_path / "m.bin", length=8)
            except fl.DataError:
                continue
            if corpus.schema["tokens"].dtype == np.uint16:  # int16 is as long
                assert delivered(corpus) == expected
    for size in range(len(content)):
        index.write_bytes(content[:size])
        with pytest.raises(fl.DataError):
            fl.TokensDeserializer(tmp_path / "m.bin", length=8)


@pytest.mark.parametrize("stride", [1, 600])
def test_a_file_that_is_cut_while_it_is_in_use(tmp_path, stride):
    np.ones(50_000, "uint16").tofile(tmp_path / "a.bin")
    source = fl.MinibatchSource(fl.TokensDeserializer(tmp_path / "a.bin", length=600, stride=stride), shuffle=False)
    source.next_minibatch(1)
    state = source.state_dict()
    with open(tmp_path / "a.bin", "r+b") as file:
        file.truncate(4096)
    with pytest.raises(fl.DataError, match="truncated"):
        source.next_minibatch(80)
    assert source.state_dict() == state


def llm_c(path, magic, version, tokens, count=None):
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens) if count is None else count
    path.write_bytes(header.tobytes() + tokens.tobytes())
    return path


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "uint16"), (20240801, 7, "uint32")])
def test_the_header_of_llm_c_is_not_tokens(tmp_path, magic, version, dtype):
    tokens = np.arange(1024, dtype=dtype)
    path = llm_c(tmp_path / "train_000001.bin", magic, version, tokens)
    for corpus in (
        fl.open_corpus(path, streams={"tokens": fl.Stream(64, dtype)}),
        fl.TokensDeserializer(str(path), length=64),
    ):
        assert corpus.schema["tokens"] == fl.Stream(64, dtype)
        assert corpus.tokens == 1024
        assert corpus.read(0)["tokens"].rows.ravel().tolist() == tokens.tolist()
        batch = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1).next_minibatch(3)
        assert batch["tokens"].rows.ravel().tolist() == list(range(192))


@pytest.mark.parametrize(
    ("magic", "version", "count", "told"),
    [
        (20240520, 1, 1023, "expected 1023 tokens of uint16"),
        (20240520, 1, 2**31 - 1, "as the header says"),
        (20240520, 1, -1, "expected -1 tokens"),
        (20240520, 2, 1024, "got 20240520 of version 2"),
        (20240801, 1, 1024, "got 20240801 of version 1"),
        (20240522, 1, 1024, "got 20240522 of version 1"),  # its evaluation sets
        (20240326, 3, 1024, "got 20240326 of version 3"),  # its checkpoints
    ],
)
def test_other_headers_of_its_kind_are_refused(tmp_path, magic, version, count, told):
    path = llm_c(tmp_path / "a.bin", magic, version, np.arange(1024, dtype="uint16"), count)
    with pytest.raises(fl.DataError, match=told) as caught:
        fl.open_corpus(path, streams={"tokens": fl.Stream(64, "uint16")})
    assert caught.value.path == str(path)


@pytest.mark.parametrize("size", [4, 512, 1022])
def test_a_header_that_is_cut_is_not_tokens(tmp_path, size):
    path = llm_c(tmp_path / "a.bin", 20240520, 1, np.arange(1024, dtype="uint16"))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(fl.DataError, match=f"1024 bytes of header after 20240520, got {size}"):
        fl.open_corpus(path, streams={"tokens": fl.Stream(2, "uint16")})


def test_tokens_that_begin_like_a_header_are_tokens(tmp_path):
    tokens = np.arange(1, 1025, dtype="uint16")
    tokens[:2] = np.frombuffer(np.int32(20240522).tobytes(), "uint16")
    tokens.tofile(tmp_path / "a.bin")
    assert (
        fl.TokensDeserializer(str(tmp_path / "a.bin"), length=1024).read(0)["tokens"].rows[0].tolist()
        == tokens.tolist()
    )
