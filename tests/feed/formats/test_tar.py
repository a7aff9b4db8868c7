"""Tar archives: samples equal WebDataset's, for any writer. The laws hold, and damage costs one sample."""

from __future__ import annotations

import copy
import errno
import gzip
import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
import webdataset as wds
from hypothesis import example, given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import assert_resumes, bytes_digest, sequences_of
from tests.cli.shell import feedline
from tests.effort import stride as every
from tests.linux import linux_only

COUNT = 90
BYTES = fl.Stream(dtype="bytes")
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def member(archive, name, data=b"", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def written(path, members, form=tarfile.GNU_FORMAT):
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            member(archive, name, data)
    return path


def theirs(path):
    """What WebDataset reads."""
    samples = wds.WebDataset(str(path), shardshuffle=False, empty_check=False)
    return [{k: v for k, v in sample.items() if k not in ("__url__", "__local_path__")} for sample in samples]


def ours(path, **options):
    """The same members, by the suffixes of each sample. Samples come one by one, as they may have different
    suffixes."""
    samples = []
    for ordinal, sample in enumerate(theirs(path)):
        streams = {f".{name}": fl.Stream(dtype="bytes", field=name) for name in sample if name != "__key__"}
        corpus = fl.TarDeserializer(path, {**streams, "__key__": fl.Stream(dtype="str")}, **options)
        chunk = corpus.select(np.array([ordinal]))
        if chunk.errors:
            raise chunk.errors[0]
        samples.append({name.removeprefix("."): value.tolist()[0] for name, value in chunk.values.items()})
    return samples


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two shards as WebDataset writes them, and their samples."""
    folder, rng = tmp_path_factory.mktemp("tar"), np.random.default_rng(5)
    samples = [
        {
            "__key__": f"d/{i:05d}",
            "jpg": rng.bytes(int(rng.choice([1, 511, 512, 513, 5000]))),
            "cls": i,
            "x.npy": np.arange(4, dtype=np.float32) + i,
            "json": {"a": i, "b": [i, "é"]},
            "txt": f"text {i} é",
        }
        for i in range(COUNT)
    ]
    for k in range(2):
        with wds.TarWriter(str(folder / f"s-{k}.tar")) as writer:
            for sample in samples[k * 50 : (k + 1) * 50]:
                writer.write(sample)
    return folder, samples


def open_shards(folder, **options):
    return fl.TarDeserializer(str(folder / "s-{0..1}.tar"), **{"chunk_size": 60_000, **options})


# ---- what WebDataset reads ------------------------------------------------------------------------------


def test_what_webdataset_wrote(shards):
    folder, samples = shards
    corpus = fl.open_corpus(str(folder / "s-{0..1}.tar"))
    assert corpus.schema == fl.Schema(
        {
            "cls": fl.Stream((), "int64"),
            "jpg": BYTES,
            "json": fl.Stream(dtype="str"),
            "txt": fl.Stream(dtype="str"),
            "x.npy": fl.Stream(4),
        }
    )
    complete = corpus.select(np.arange(COUNT))
    assert complete["jpg"].tolist() == [sample["jpg"] for sample in samples]
    assert complete["txt"].tolist() == [sample["txt"] for sample in samples]
    assert list(map(json.loads, complete["json"].tolist())) == [sample["json"] for sample in samples]
    assert complete["cls"].rows.tolist() == list(range(COUNT))
    np.testing.assert_array_equal(complete["x.npy"].rows, [sample["x.npy"] for sample in samples])
    again = [sample["jpg"] for k in range(2) for sample in theirs(folder / f"s-{k}.tar")]
    assert complete["jpg"].tolist() == again
    # A folder is the archives in it.
    (folder / "sizes.json").write_text("{}")
    assert fl.open_corpus(folder).digest() == fl.TarDeserializer(folder).digest() == corpus.digest()


NAMES = st.lists(st.sampled_from(["a", "B", ".", "/", "_", "__", "é", "jpg", "x.npy"]), min_size=1, max_size=7).map(
    "".join
)


@given(
    st.lists(st.tuples(NAMES | NAMES.map(lambda n: n * 30), st.binary(max_size=3)), max_size=9),
    st.sampled_from(FORMATS),
)
@example([("__a/b__/c.d", b""), ("__a__/c.d", b"1"), ("p/.b.jpg", b"2"), ("p.x/.b", b""), ("/.b", b"3")], FORMATS[0])
@example([("é./", b""), ("x.npy", b""), ("a.b/", b"")], FORMATS[2])
@example([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3"), ("a.JPG", b"4")], FORMATS[1])
def test_names_are_grouped_as_webdataset_groups_them(tmp_path_factory, members, form):
    path = tmp_path_factory.mktemp("n") / "a.tar"
    try:
        written(path, members, form)
    except ValueError:  # a name that this form cannot hold
        return
    try:
        expected = theirs(path)
    except ValueError:  # a suffix twice
        if any(name.endswith("/") for name, _ in members):
            return
        source = fl.MinibatchSource(_anything(path, members), shuffle=False, max_sweeps=1)
        with pytest.raises(fl.DataError, match=r"got two|expected a member"):
            list(source.minibatches(100))
        return
    if not expected:
        with pytest.raises(fl.DataError, match="at least one sample"):
            fl.TarDeserializer(path, x=BYTES, cache=False)
        return
    assert ours(path, cache=False) == expected


def _anything(path, members):
    fields = {name.rsplit("/")[-1].partition(".")[2].lower() or "x" for name, _ in members}
    return fl.TarDeserializer(path, {f".{name}": fl.Stream(dtype="bytes", field=name) for name in fields}, cache=False)


@pytest.mark.parametrize("form", FORMATS)
def test_every_way_of_long_names(tmp_path, form):
    folder = "/".join(["f" * 50] * 4)
    names = [f"{'n' * 90}.jpg", f"{folder}/{'n' * 40}.jpg", "é" * 30 + ".jpg"]
    if form != tarfile.USTAR_FORMAT:
        names += ["m" * 300 + ".jpg", "/".join(["f" * 90] * 12) + ".JPG"]
    members = [(name, name.encode()) for name in names]
    path = written(tmp_path / "a.tar", members, form)
    assert [sample["jpg"] for sample in ours(path)] == [data for _, data in members]
    assert [sample["__key__"] for sample in ours(path)] == [name.rpartition(".")[0] for name in names]


def test_sizes_in_base_256_and_in_pax(tmp_path):
    """As of members of 8 GiB and more."""
    path = written(tmp_path / "a.tar", [("a.jpg", b"x" * 700), ("b.jpg", b"y")], tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    data[124:136] = b"\x80" + (700).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    assert [sample["jpg"] for sample in ours(path)] == [b"x" * 700, b"y"]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member(archive, "a.jpg", b"z" * 900, pax_headers={"size": "900", "comment": "no matter"})
        member(archive, "b.jpg", b"y", mtime=0.5)
    data = bytearray(path.read_bytes())
    at = data.index(b"a.jpg", 1024)  # the member's own header, which no longer has its size
    data[at + 124 : at + 136] = b"%011o\0" % 0
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    path.write_bytes(data)
    assert [sample["jpg"] for sample in ours(path)] == [b"z" * 900, b"y"]


def test_what_is_skipped_and_archives_one_behind_the_other(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"comment": "of all"}, format=tarfile.PAX_FORMAT) as archive:
        member(archive, "d", type=tarfile.DIRTYPE)
        member(archive, "README", b"no dot")
        member(archive, "__index__/a.json", b"{}")
        member(archive, "d/a.jpg", b"1")
        member(archive, "d/x", b"in between")
        member(archive, "d/p", type=tarfile.FIFOTYPE)
        member(archive, "d/a.cls", b"1")
    assert theirs(tmp_path / "a.tar") == ours(tmp_path / "a.tar") == [{"__key__": "d/a", "jpg": b"1", "cls": b"1"}]
    written(tmp_path / "b.tar", [("b.jpg", b"2"), ("b.cls", b"2")])
    both = tmp_path / "both.tar"
    both.write_bytes((tmp_path / "a.tar").read_bytes() + (tmp_path / "b.tar").read_bytes())
    assert fl.TarDeserializer(both, jpg=BYTES).select(np.arange(2))["jpg"].tolist() == [b"1", b"2"]


def test_other_formats_decline(tmp_path):
    for names, kind, message in (
        (["a.jpg"], tarfile.SYMTYPE, "got a link: 'a.jpg'"),
        (["a.jpg"], tarfile.LNKTYPE, "got a link: 'a.jpg'"),
        (["a.jpg"], tarfile.GNUTYPE_SPARSE, "got a sparse one: 'a.jpg'"),
        (["a.jpg"], b"M", "several volumes: 'a.jpg'"),
    ):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            member(archive, "0.jpg", b"1")
            for name in names:
                member(archive, name, type=kind, linkname="0.jpg")
        with pytest.raises(fl.DataError, match=message) as caught:
            fl.TarDeserializer(tmp_path / "a.tar", jpg=BYTES)
        assert (caught.value.path, caught.value.byte) == (str(tmp_path / "a.tar"), 1024)
    for headers, message in (
        ({"GNU.sparse.major": "1"}, "sparse"),
        ({"GNU.sparse.realsize": "1"}, "sparse"),
    ):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            member(archive, "a.jpg", b"1", pax_headers=headers)
        with pytest.raises(fl.DataError, match=message):
            fl.TarDeserializer(tmp_path / "a.tar", jpg=BYTES)
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"path": "x.jpg"}) as archive:
        member(archive, "a.jpg", b"1")
    with pytest.raises(fl.DataError, match="sets path or size of all"):
        fl.TarDeserializer(tmp_path / "a.tar", jpg=BYTES)
    (tmp_path / "b.tar").write_bytes(os.urandom(2048))
    with pytest.raises(fl.DataError, match="expected a tar header"):
        fl.TarDeserializer(tmp_path / "b.tar", jpg=BYTES)
    for empty in (b"", bytes(10240)):
        (tmp_path / "b.tar").write_bytes(empty)
        with pytest.raises(fl.DataError, match="at least one sample"):
            fl.TarDeserializer(tmp_path / "b.tar", jpg=BYTES)
    with pytest.raises(fl.DataError, match="No such file"):
        fl.TarDeserializer(tmp_path / "none.tar")


# ---- decoding -------------------------------------------------------------------------------------------


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("suffix", "stream", "data", "expected"),
    [
        ("cls", fl.Stream((), "int64"), [b"3", b" -4\n"], [3, -4]),
        ("cls", fl.Stream((), "float32"), [b"3", b"1e3"], [3, 1000]),
        ("txt", fl.Stream(2, "float64"), [b"1 2.5", b"\t3\n4 "], [[1, 2.5], [3, 4]]),
        ("json", fl.Stream((2, 1), "int32"), [b"[[1], [2]]", b"[[3],[-4]]"], [[[1], [2]], [[3], [-4]]]),
        ("json", fl.Stream((), "bool"), [b"true", b"false"], [True, False]),
        ("x.npy", fl.Stream(2), [npy(np.float32([1, 2])), npy(np.float32([3, 4]))], [[1, 2], [3, 4]]),
        ("x.npy", fl.Stream(2), [npy(np.array([1, 2])), npy(np.float64([3, 4]))], [[1, 2], [3, 4]]),
        ("x.npy", fl.Stream((2, 2), "uint8"), [npy(np.uint8([[1, 2], [3, 4]]).T)] * 2, [[[1, 3], [2, 4]]] * 2),
        ("x.npy", fl.Stream((), ">i2"), [npy(np.int16(5)), npy(np.array(6, ">i2"))], [5, 6]),
    ],
)
def test_numbers(tmp_path, suffix, stream, data, expected):
    path = written(tmp_path / "a.tar", [(f"{i}.{suffix}", one) for i, one in enumerate(data)])
    chunk = fl.TarDeserializer(path, {suffix: stream}).read(0)
    assert not chunk.errors
    assert (chunk[suffix].rows.dtype, chunk[suffix].rows.tolist()) == (stream.dtype, expected)


@pytest.mark.parametrize(
    ("suffix", "stream", "bad", "message"),
    [
        ("cls", fl.Stream((), "int64"), b"x", "could not convert"),
        ("cls", fl.Stream((), "int64"), b"", r"expected shape \(\), got \(0,\)"),
        ("cls", fl.Stream((), "uint8"), b"256", "that uint8 can hold, got 256"),
        ("cls", fl.Stream((), "int64"), b"9" * 30, "expected numbers|that int64 can hold"),
        ("cls", fl.Stream((), "int64"), b"1.5", "that int64 can hold, got 1.5"),
        ("json", fl.Stream(2), b"[1, [2]]", r"expected numbers of shape \(2,\)"),
        ("json", fl.Stream(2), b'["a", "b"]', "expected numbers"),
        ("json", fl.Stream(2), b"[" * 100_000, "recursion|Expecting value"),
        ("json", fl.Stream(2), b"\xff", "decode"),
        ("x.npy", fl.Stream(2), npy(np.zeros(3, np.float32)), r"expected shape \(2,\), got \(3,\)"),
        ("x.npy", fl.Stream(2), npy(np.array([1, None])), "pickled Python objects"),
        ("x.npy", fl.Stream(2), npy(np.zeros(2, np.float32))[:-1], "expected 8 bytes of float32"),
        ("x.npy", fl.Stream(2), b"no", "expected a .npy file of version"),
        ("x.npy", fl.Stream(2), b"\x93NUMPY\1\0\xff\xff{        ", "expected the header of a .npy file"),
        ("x.npy", fl.Stream(2), npy(np.zeros(2, complex)), "that float32 can hold"),
        ("x.npy", fl.Stream(2), npy(np.float32([1, 2])).replace(b"'<f4'", b"',,4'"), "a .npy file of numbers"),
        ("x.npy", fl.Stream(2), npy(np.float32([1, 2])).replace(b"'<f4'", b"'2f4'"), "a .npy file of numbers"),
    ],
)
def test_a_number_that_is_none_is_one_bad_sample(tmp_path, suffix, stream, bad, message):
    good = {"cls": b"1", "json": b"[1, 2]", "x.npy": npy(np.float32([1, 2]))}[suffix]
    path = written(tmp_path / "a.tar", [(f"d/{i}.{suffix}", bad if i == 2 else good) for i in range(5)])
    streams = {"n": fl.Stream(stream.shape, stream.dtype, field=suffix)}
    corpus = fl.TarDeserializer(path, streams, chunk_size=1600)  # two samples, if none is long
    counts = [info.sequences for info in corpus.chunks()]
    assert len(counts) > 1
    errors = {sum(counts[:k]) + i: e for k in range(len(counts)) for i, e in corpus.read(k).errors.items()}
    assert list(errors) == [2]
    error = errors[2]
    assert "of sample `d/2`" in error.what
    assert (error.path, error.sequence, error.stream) == (str(path), 2, "n")
    with pytest.raises(AssertionError) if message is None else pytest.raises(fl.DataError, match=message):
        raise error


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([b"a"]), np.zeros(1, "V3"), np.zeros(1, [("a", "i4")])])
def test_npy_files_of_other_things_than_numbers_are_refused_by_name(tmp_path, array):
    written(tmp_path / "a.tar", [("a.npy", npy(array))])
    with pytest.raises(fl.DataError, match=r"a \.npy file of numbers, got one [\s\S]*a\.tar"):
        fl.open_corpus(tmp_path / "a.tar")


def test_what_cannot_be_numbers(tmp_path):
    path = written(tmp_path / "a.tar", [("a.jpg", b"1"), ("a.pickle", pickle.dumps(1)), ("a.cls", b"1")])
    for name, stream, message in (
        ("jpg", fl.Stream(3), "decode its bytes in an fl.Map"),
        ("pickle", fl.Stream(3), "never unpickles"),
        ("cls", fl.Stream(3, sparse=True), "expected bytes or str, or numbers"),
        ("__key__", fl.Stream(), "of keys"),
    ):
        with pytest.raises(fl.SchemaError, match=message):
            fl.TarDeserializer(path, {name: stream})
    with pytest.raises(fl.SchemaError, match="each stream once, got cls"):
        fl.TarDeserializer(path, {"cls": BYTES}, cls=fl.Stream((), "int64"))
    assert fl.TarDeserializer(path).schema["pickle"] == BYTES  # as it is, for whoever trusts it
    with pytest.raises(fl.DataError, match="expected at most 7 bytes decoded"):
        fl.TarDeserializer(path, cls=fl.Stream((), "int64"), memory=7).read(0)


# ---- the laws -------------------------------------------------------------------------------------------


def test_one_order_parts_and_resume(shards):
    folder, samples = shards

    def source(**options):
        streams = {"jpg": BYTES, "n": fl.Stream((), "int64", field="cls"), "k": fl.Stream(dtype="str", field="__key__")}
        return fl.MinibatchSource(open_shards(folder, streams=streams), **{"seed": 3, "max_sweeps": 2, **options})

    for shuffle in (True, fl.Window(samples=30), False):
        digests = {bytes_digest(source(shuffle=shuffle).minibatches(size)) for size in (7, 64)}
        assert len(digests) == 1
        assert_resumes(lambda shuffle=shuffle: source(shuffle=shuffle), sizes=(9,))
    unpartitioned, parts = source(max_sweeps=1), [source(max_sweeps=1, partition=(i, 3)) for i in range(3)]
    numbers_seen = []
    for minibatch in unpartitioned.minibatches(11):
        assert [one for part in parts for one in sequences_of([part.next_minibatch(11)])] == sequences_of([minibatch])
        numbers = minibatch["n"].rows.tolist()
        numbers_seen += numbers
        for n, jpg, key in zip(numbers, minibatch["jpg"].tolist(), minibatch["k"].tolist(), strict=True):
            assert (jpg, key) == (samples[n]["jpg"], samples[n]["__key__"])
    assert sorted(numbers_seen) == list(range(COUNT))


@pytest.mark.filterwarnings("ignore:expected at most")
def test_a_loader_and_other_processes(shards):
    folder, samples = shards
    corpus = open_shards(folder, jpg=BYTES, cls=fl.Stream((), "int64"))
    again = pickle.loads(pickle.dumps(corpus))
    assert (again.digest(), again.schema) == (corpus.digest(), corpus.schema)
    for workers in (0, 2, 3):
        loader = fl.DataLoader(corpus, batch_size=16, shuffle=True, seed=2, num_workers=workers)
        pairs = [pair for batch in loader for pair in zip(batch["cls"].tolist(), batch["jpg"], strict=True)]
        assert sorted(pairs) == [(i, sample["jpg"]) for i, sample in enumerate(samples)]


def test_joined_by_key(shards, tmp_path):
    folder, samples = shards
    labels = written(
        tmp_path / "labels.tar",
        [(f"{sample['__key__']}.y.cls", b"%d" % (7 * i)) for i, sample in enumerate(samples)][::-1],
    )
    joined = fl.Join(
        open_shards(folder, cls=fl.Stream((), "int64")),
        fl.TarDeserializer(labels, y=fl.Stream((), "int64", field="y.cls")),
        cache=False,
    )
    for minibatch in fl.MinibatchSource(joined, max_sweeps=1).minibatches(16):
        assert (minibatch["y"].rows == 7 * minibatch["cls"].rows).all()


def test_numbers_join_ids_of_ctf(tmp_path):
    archive = written(tmp_path / "a.tar", [(f"{i:05}.cls", b"%d" % (3 * i)) for i in range(20)])
    (tmp_path / "a.ctf").write_text("".join(f"{i} |x {i}\n" for i in reversed(range(20))))
    joined = fl.Join(
        fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1)),
        fl.TarDeserializer(archive, y=fl.Stream((), field="cls")),
        cache=False,
    )
    minibatches = list(fl.MinibatchSource(joined, max_sweeps=1).minibatches(7))
    assert all((m["y"].rows == 3 * m["x"].rows[:, 0]).all() for m in minibatches)


def test_resumed_by_another_number_of_workers(shards):
    """Two workers, then three, deliver the samples that one would."""
    streams = {"jpg": BYTES, "cls": fl.Stream((), "int64")}

    def source(**options):
        return fl.MinibatchSource(open_shards(shards[0], streams=streams), seed=8, max_sweeps=1, **options)

    expected = [sequences_of([m]) for m in source().minibatches(10)]
    first, batches = [source(partition=(i, 2)) for i in range(2)], []
    batches += [[one for part in first for one in sequences_of([part.next_minibatch(10)])] for _ in range(4)]
    then = [source(partition=(i, 3)) for i in range(3)]
    for part in then:
        part.load_state_dict(json.loads(json.dumps(first[0].state_dict())))
    while following := [one for part in then for one in sequences_of([part.next_minibatch(10)])]:
        batches.append(following)
    assert batches == expected


def test_converted_and_inspected(shards, tmp_path):
    shard = open_shards(shards[0])
    fl.convert(str(shards[0] / "s-{0..1}.tar"), tmp_path / "store")
    store = fl.StoreDeserializer(tmp_path / "store").select(np.arange(COUNT))
    for name, value in shard.select(np.arange(COUNT)).values.items():
        assert store[name] == value
    report = json.loads(feedline("inspect", str(shards[0] / "s-0.tar"), "--json").stdout)
    assert report["format"] == "tar"
    assert report["sequences"] == 50


def test_members_are_views_until_they_are_delivered(shards):
    """Views of the mapped file. Copies have no gaps."""
    chunk = open_shards(shards[0], jpg=BYTES, chunk_size=1 << 20).read(0)
    value, samples = chunk["jpg"], shards[1]
    assert value.memory.base is not None
    assert len(value.memory) > value.nbytes
    assert value.tolist() == [sample["jpg"] for sample in samples[: len(value)]]
    assert value.slice(2, 5).tolist() == value.tolist()[2:5] == value.select([2, 3, 4]).tolist()
    assert value == fl.Value.from_bytes(value.tolist())
    for copied in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert copied == value
        assert copied.nbytes < 2 * value.nbytes  # without the bytes between them
    assert value.sizes.tolist() == list(map(len, value.tolist()))
    assert fl.ArrayDeserializer(x=value).read(0)["x"].tolist() == value.tolist()


def test_the_index_is_kept_and_checked(shards, tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes((shards[0] / "s-0.tar").read_bytes())
    first = fl.TarDeserializer(path, jpg=BYTES)
    (index,) = tmp_path.glob("*.feedline-index")
    monkeypatch.setattr("feedline._native.TarIndexer", None)
    again = fl.TarDeserializer(path, jpg=BYTES)
    assert again.digest() == first.digest()
    monkeypatch.undo()
    for at in (0, 40, 300, -10):
        content = bytearray(index.read_bytes())
        content[at] ^= 1
        index.write_bytes(content)
        damaged = fl.TarDeserializer(path, jpg=BYTES)
        assert damaged.select(np.arange(50))["jpg"] == first.select(np.arange(50))["jpg"]
    written(path, [("a.jpg", b"1")])
    assert fl.TarDeserializer(path, jpg=BYTES).select(np.arange(1))["jpg"].tolist() == [b"1"]
    done = []
    fl.TarDeserializer(shards[0] / "s-0.tar", jpg=BYTES, cache=False, progress=lambda *n: done.append(n))
    assert done[-1] == (os.path.getsize(shards[0] / "s-0.tar"),) * 2


# ---- damage ---------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    members = [(f"{i}.{suffix}", bytes([65 + i]) * (300 * i)) for i in range(5) for suffix in ("jpg", "txt")]
    return written(tmp_path / "a.tar", members), [data for _, data in members[::2]]


def delivered(path, **options):
    source = fl.MinibatchSource(
        fl.TarDeserializer(path, jpg=BYTES, txt=BYTES, cache=False), shuffle=False, max_sweeps=1, **options
    )
    delivered_pairs = [
        (i, jpg) for m in source.minibatches(3) for i, jpg in zip(m.ids.tolist(), m["jpg"].tolist(), strict=True)
    ]
    return delivered_pairs, source.stats().skipped


def test_a_file_cut_anywhere(small):
    """Complete samples keep their places. The one that was cut is a bad sample."""
    path, data = small
    content = path.read_bytes()
    end = 512 * 10 + sum(2 * -(-len(one) // 512) * 512 for one in data)
    counts = set()
    for size in [*range(0, end, every(97)), end - 1, end]:
        path.write_bytes(content[:size])
        if size == 0:
            continue  # no archive
        good_samples, skipped = delivered(path, on_error=fl.Quarantine(path.with_suffix(".jsonl")))
        assert good_samples == list(enumerate(data))[: len(good_samples)]
        assert skipped <= 2
        counts.add(len(good_samples))
        if skipped:
            with pytest.raises(fl.DataError, match=r"end of the file|expected a member") as caught:
                delivered(path)
            assert caught.value.sequence == len(good_samples)
            assert caught.value.path == str(path)
    assert counts >= set(range(5))


def test_any_byte(small):
    """Is refused, or is a bad sample, or does not matter."""
    path, data = small
    content = path.read_bytes()
    for at in range(0, len(content), every(23)):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        try:
            good_samples, _ = delivered(path, on_error=fl.Quarantine(path.with_suffix(".jsonl")))
        except fl.DataError:
            continue
        wrong = [jpg for i, jpg in good_samples if i >= len(data) or jpg != data[i]]
        assert len(wrong) <= 1


def test_a_header_damaged_after_it_was_indexed(small):
    """The file keeps size, time and the index's excerpts in none of the cases below: reading trusts nothing."""
    path, data = small
    about = path.stat()
    corpus = fl.TarDeserializer(path, jpg=BYTES, txt=BYTES)
    with open(path, "r+b") as file:
        file.seek(512 * 2)  # of 1.jpg
        file.write(b"\xff" * 8)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    chunk = corpus.read(0)
    assert list(chunk.errors) == [1]
    assert "expected a tar header" in chunk.errors[1].what
    assert chunk.take(np.array([0, 2, 3, 4]))["jpg"].tolist() == [data[0], *data[2:]]


def test_repeated_and_missing(tmp_path):
    path = written(
        tmp_path / "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.JPG", b"3"), ("c.txt", b"4"), ("c.y", b"")]
    )
    chunk = fl.TarDeserializer(path, x=fl.Stream(dtype="bytes", field="jpg")).read(0)
    assert list(chunk.errors) == [1, 2]
    assert "one member `.jpg` in sample `b`, got two" in chunk.errors[1].what
    assert "a member `.jpg` in sample `c`, got .txt, .y" in chunk.errors[2].what
    assert {error.stream for error in chunk.errors.values()} == {"x"}


@linux_only("pages that are mapped ahead")
def test_a_page_that_is_lost_under_the_map(shards, monkeypatch):
    """The kernel reports it when the chunk is mapped, and only the samples on it are lost."""
    path, begin = shards[0] / "s-0.tar", 40 * 4096
    preadv = os.preadv

    def failing(descriptor, buffers, offset):
        if offset < begin + 10 and offset + sum(map(len, buffers)) > begin:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    monkeypatch.setattr("feedline.system.linux._POPULATE_READ", -2)
    complete = fl.TarDeserializer(path, jpg=BYTES, chunk_size=1 << 30).read(0)
    assert not complete.errors  # as on a kernel that does not know how
    corpus = fl.TarDeserializer(path, jpg=BYTES, chunk_size=1 << 30)
    monkeypatch.setattr("feedline.system.linux.errno.EINVAL", -1)
    chunk = corpus.read(0)
    assert 0 < len(chunk.errors) < 9
    assert all("Input/output error" in error.what for error in chunk.errors.values())
    intact = np.array([i for i in range(50) if i not in chunk.errors])
    assert chunk.take(intact)["jpg"] == complete.take(intact)["jpg"]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_that_is_cut_while_it_is_in_use(shards, tmp_path, shuffle):
    path = tmp_path / "a.tar"
    path.write_bytes((shards[0] / "s-0.tar").read_bytes())
    source = fl.MinibatchSource(fl.TarDeserializer(path, jpg=BYTES), shuffle=shuffle)
    source.next_minibatch(1)
    state = source.state_dict()
    with open(path, "r+b") as file:
        file.truncate(4096)
    with pytest.raises(fl.DataError, match="truncated"):
        source.next_minibatch(60)
    assert source.state_dict() == state


# ---- any number of members ------------------------------------------------------------------------------


def with_several(path):
    """Samples of no to four pictures, and the expected ones by sample."""
    rng, members, expected = np.random.default_rng(2), [], []
    for i in range(40):
        pictures = [rng.bytes(rng.integers(0, 2000)) for _ in range(i % 5)]
        expected.append(pictures)
        members.append((f"d/{i:03}.txt", f"{i}".encode()))
        members += [(f"d/{i:03}.{k}.JPG", picture) for k, picture in enumerate(pictures)]
        members.append((f"d/{i:03}.jpg.json", b"[]"))
    return written(path, members), expected


SEVERAL = {"n": fl.Stream((), "int64", field="txt"), "image": fl.Stream(dtype="bytes", field="*.jpg")}


@pytest.mark.parametrize("packed", [False, True])
def test_a_pattern_has_all_members_that_match(tmp_path, packed):
    path, expected = with_several(tmp_path / "a.tar")
    if packed:
        path = tmp_path / "a.tar.gz"
        path.write_bytes(gzip.compress((tmp_path / "a.tar").read_bytes()))
    corpus = fl.TarDeserializer(path, SEVERAL, chunk_size=4000)
    assert len(corpus.chunks()) > 3
    with fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1) as source:
        minibatches = list(source.minibatches(7))
    assert [m.num_samples for m in minibatches] == [7] * 5 + [5]
    assert [pictures for m in minibatches for pictures in m["image"].tolist()] == expected
    assert [n for m in minibatches for n in m["n"].rows.tolist()] == list(range(40))
    fl.convert(corpus, tmp_path / "store")
    stored = fl.open_corpus(tmp_path / "store")
    assert sum(info.samples for info in stored.chunks()) == 40
    assert corpus.select(np.array([33, 4, 4])).values["image"].tolist() == [expected[33], expected[4], expected[4]]


def test_a_member_that_matches_twice_or_is_cut_costs_its_sample(tmp_path):
    path, expected = with_several(tmp_path / "a.tar")
    with tarfile.open(path) as archive:
        last = next(info for info in archive.getmembers() if info.name == "d/038.2.JPG")
    data = path.read_bytes()
    path.write_bytes(data[: last.offset_data + last.size // 2])
    doubled = written(tmp_path / "b.tar", [("a.txt", b"7"), ("a.0.jpg", b"x"), ("a.0.jpg", b"y")])
    chunk = fl.TarDeserializer([path, doubled], SEVERAL).read(0)
    assert list(chunk.errors) == [38]
    kept = chunk.take(np.arange(38)).values["image"].tolist()
    assert kept == expected[:38]
    chunk = fl.TarDeserializer(doubled, SEVERAL).read(0)
    with pytest.raises(fl.DataError, match=r"different names in sample `a`, got one twice"):
        raise chunk.errors[0]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ({"image": SEVERAL["image"]}, "one member a sample to define the size.*got none"),
        (SEVERAL | {"image": fl.Stream(dtype="bytes", field="*.jpg", defines_size=True)}, "define the size.*got image"),
        (SEVERAL | {"image": fl.Stream((), "int64", field="*.jpg")}, "`bytes` or `str` for stream `image`"),
    ],
)
def test_a_pattern_needs_another_stream_and_bytes(tmp_path, streams, message):
    path, _ = with_several(tmp_path / "a.tar")
    with pytest.raises(fl.SchemaError, match=message):
        fl.TarDeserializer(path, streams)
