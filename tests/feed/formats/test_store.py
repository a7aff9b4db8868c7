"""The store: data is read back without copies, nothing half written stays, damage is detected."""

import itertools
import json
import mmap
import os
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline import _native
from feedline.data import Chunk, Schema, Stream, Value
from feedline.errors import DataError, FeedlineError, SchemaError
from feedline.feed.formats.arrays import ArrayDeserializer
from feedline.feed.formats.store.manifest import MANIFEST, Manifest
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.formats.store.writer import StoreWriter
from tests.effort import examples, stride
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.warm import run


def write(path, data, cuts=(), **options):
    """Write a store of the values ``data``, in pieces split at the ordinals ``cuts``."""
    corpus = ArrayDeserializer(data)
    chunk = corpus.read(0)
    bounds = [0, *sorted(cuts), chunk.num_sequences]
    with StoreWriter(path, corpus.schema, **options) as writer:
        for a, b in itertools.pairwise(bounds):
            writer.write({name: value.slice(a, b) for name, value in chunk.values.items()})
    return path


@pytest.fixture
def small(tmp_path):
    """A store with a dense, a ragged and a sparse stream in several chunks and parts."""
    generator = np.random.default_rng(0)
    n = 60
    data = {
        "x": Value.from_dense(generator.random((n, 4), np.float32)),
        "t": Value.from_sequences([generator.random((k % 4, 3)) for k in range(n)]),
        "y": Value.one_hot(generator.integers(0, 5, n), 5),
    }
    path = write(tmp_path / "small", data, chunk_bytes=300, part_bytes=2000)
    store = StoreDeserializer(path)
    assert len(store.chunks()) > 5
    assert len(list(path.glob("part-*.arrow"))) > 2
    return path, data


# ---- laws -----------------------------------------------------------------------------------------------


@given(corpora(), st.integers(1, 400), st.integers(1, 3000), st.data())
@settings(deadline=None)
def test_round_trip(tmp_path_factory, data, chunk_bytes, part_bytes, draw):
    count = next(iter(data.values())).num_sequences
    cuts = draw.draw(st.lists(st.integers(0, count), max_size=4))
    folder = tmp_path_factory.mktemp("store")
    path = write(folder / "a", data, cuts, chunk_bytes=chunk_bytes, part_bytes=part_bytes)
    store = StoreDeserializer(path, verify=True)
    assert_same(everything(store), data)
    memory = ArrayDeserializer(data)
    assert store.schema == memory.schema
    ordinals = np.arange(count)
    expected = memory.lengths(ordinals)
    got = store.lengths(ordinals)
    assert (got is None) == (expected is None)
    assert got is None or np.array_equal(got, expected)
    start = 0
    for i, info in enumerate(store.chunks()):
        chunk = store.read(i)
        assert info.sequences == chunk.num_sequences
        samples = np.ones(info.sequences) if got is None else got[start : start + info.sequences]
        assert info.samples == samples.sum()
        for name, value in chunk.values.items():
            # A stream with sequences has them in every chunk, so that minibatches look alike.
            assert value.one_sample_each == data[name].one_sample_each
        start += info.sequences


@given(corpora(), st.integers(1, 400), st.data())
@settings(deadline=None, max_examples=examples(20))
def test_chunks_do_not_depend_on_how_sequences_were_handed_over(tmp_path_factory, data, chunk_bytes, draw):
    count = next(iter(data.values())).num_sequences
    cuts = draw.draw(st.lists(st.integers(0, count), max_size=6))
    folder = tmp_path_factory.mktemp("store")
    complete = StoreDeserializer(write(folder / "a", data, chunk_bytes=chunk_bytes))
    pieces = StoreDeserializer(write(folder / "b", data, cuts, chunk_bytes=chunk_bytes))
    assert complete.chunks() == pieces.chunks()
    assert complete.digest() == pieces.digest()


@given(corpora(), st.data())
@settings(deadline=None, max_examples=examples(20))
def test_a_subset_of_streams_counts_its_own_samples(tmp_path_factory, data, draw):
    names = draw.draw(st.lists(st.sampled_from(list(data)), min_size=1, unique=True))
    path = write(tmp_path_factory.mktemp("store") / "a", data, chunk_bytes=200)
    store = StoreDeserializer(path, names)
    selected = {name: data[name] for name in names}
    assert_same(everything(store), selected)
    memory = ArrayDeserializer(selected)
    ordinals = np.arange(next(iter(data.values())).num_sequences)
    expected = memory.lengths(ordinals)
    got = store.lengths(ordinals)
    assert (got is None) == (expected is None)
    assert got is None or np.array_equal(got, expected)
    assert sum(info.samples for info in store.chunks()) == sum(info.samples for info in memory.chunks())


def test_samples_of_a_subset_with_a_plain_stream(tmp_path):
    data = {
        "x": np.zeros(3),
        "t": Value.from_dense(np.zeros(2), [0, 0, 2, 2]),
        "u": Value.from_dense(np.zeros(5), [0, 5, 5, 5]),
    }
    path = write(tmp_path / "a", data)
    samples = {
        names: sum(info.samples for info in StoreDeserializer(path, list(names)).chunks())
        for names in ("x", "t", "u", "xt", "tu", "xtu")
    }
    assert samples == {"x": 3, "t": 2, "u": 5, "xt": 4, "tu": 7, "xtu": 8}


def test_a_stream_that_turns_out_to_have_sequences(tmp_path):
    plain, ragged = np.arange(5.0), [np.arange(n, dtype=float) for n in (2, 0, 1)]
    schema = Schema({"x": Stream((), "float64", defines_size=True), "y": Stream((), "float64")})
    with StoreWriter(tmp_path / "a", schema, chunk_bytes=24) as writer:
        writer.write({"x": Value.from_dense(plain), "y": Value.from_dense(plain)})
        writer.write({"x": Value.from_sequences(ragged), "y": Value.from_dense(plain[:3])})
        writer.write({"x": Value.from_dense(plain), "y": Value.from_dense(plain)})
    store = StoreDeserializer(tmp_path / "a", verify=True)
    assert store.lengths(np.arange(13)).tolist() == [1] * 5 + [2, 0, 1] + [1] * 5
    assert store.lengths(np.array([6, 5])).tolist() == [0, 2]
    assert [len(s) for s in everything(store)["x"]] == [1] * 5 + [2, 0, 1] + [1] * 5
    assert not any(store.read(i)["x"].one_sample_each for i in range(len(store.chunks())))
    assert all(store.read(i)["y"].one_sample_each for i in range(len(store.chunks())))


def test_values_may_be_changed_after_they_were_written(tmp_path):
    rows = np.arange(4.0)
    with StoreWriter(tmp_path / "a", Schema({"x": Stream((), "float64")})) as writer:
        for start in (0, 4):
            rows[:] = np.arange(start, start + 4)
            writer.write({"x": Value.from_dense(rows)})
        rows[:] = -1
    assert everything(StoreDeserializer(tmp_path / "a"))["x"].rows.tolist() == list(range(8))


def test_foreign_byte_order_becomes_native(tmp_path):
    path = write(tmp_path / "a", {"x": np.arange(3, dtype=">i4")})
    value = everything(StoreDeserializer(path))["x"]
    assert value.dtype == np.dtype("=i4")
    assert value.rows.tolist() == [0, 1, 2]


# ---- zero copy ------------------------------------------------------------------------------------------


def test_chunks_are_views_of_the_mapped_files(small):
    path, data = small
    store = StoreDeserializer(path)
    maps = {}
    for i in range(len(store.chunks())):
        chunk = store.read(i)
        for line in Path("/proc/self/maps").read_text().splitlines():
            if str(path) in line:
                low, high = (int(a, 16) for a in line.split()[0].split("-"))
                maps[low] = high
        value, sequences, sparse = chunk["x"], chunk["t"], chunk["y"]
        arrays = [value.rows, sequences.rows, sequences.offsets, sparse.indptr, sparse.indices, sparse.values]
        for array in arrays:
            address = array.__array_interface__["data"][0]
            assert any(low <= address and address + array.nbytes <= high for low, high in maps.items())
            assert not array.flags.writeable
            assert array.flags.aligned
    assert set(data) == set(store.schema)


MEASURE = """
    import sys
    import numpy as np
    from feedline.feed.assembly import ChunkSet
    from feedline.feed.formats.store.store_reader import StoreDeserializer
    import pyarrow

    def private():
        return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) * 1024

    store = StoreDeserializer(sys.argv[1])
    chunks = ChunkSet(store.schema)
    slots = [chunks.add(store.read(0))]
    chunks.gather(None, np.arange(10))
    before = private()
    slots += [chunks.add(store.read(i)) for i in range(1, len(store.chunks()))]
    total, most, seen = 0, 0, 0
    for slot, info in zip(slots, store.chunks()):
        which = np.random.default_rng(slot).permutation(info.sequences)
        for at in range(0, info.sequences, 256):
            part = which[at:at + 256]
            batch = chunks.gather(np.full(len(part), slot, np.uint32), part)
            total += batch["x"].rows[:, 0].sum()
            seen += batch["x"].nbytes + batch["t"].nbytes
        most = max(most, private() - before)
    assert total > 0
    print(seen, most)
"""


@pytest.mark.slow
def test_private_memory_does_not_grow_with_the_data(tmp_path):
    generator = np.random.default_rng(0)
    schema = Schema({"x": Stream(600), "t": Stream(())})
    with StoreWriter(tmp_path / "big", schema) as writer:
        for _ in range(12):
            rows = generator.random((10_000, 600), np.float32)
            lengths = generator.integers(0, 40, len(rows))
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            writer.write(
                {
                    "x": Value.from_dense(rows),
                    "t": Value.from_dense(np.ones(offsets[-1], np.float32), offsets),
                }
            )
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE), str(tmp_path / "big")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    seen, most = map(int, out.split())
    assert seen > 280e6
    assert most < 16e6


def test_opening_reads_the_manifest_only(small, monkeypatch):
    path, _ = small
    opened = []
    real = mmap.mmap
    monkeypatch.setattr("mmap.mmap", lambda *a, **k: opened.append(a) or real(*a, **k))
    store = StoreDeserializer(path)
    store.chunks()
    store.digest()
    assert opened == []
    store.read(0)
    # The part and the lengths. Arrow gets a buffer instead of a file.
    assert len([descriptor for descriptor, *_ in opened if descriptor >= 0]) == 2


def advice_of(path):
    """Return the advice given to the kernel for maps of files in a folder: flags of /proc/self/smaps."""
    advice = set()
    mine = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            mine = str(path) in line
        elif mine and line.startswith("VmFlags:"):
            advice.add(" ".join(flag for flag in line.split() if flag in ("rr", "sr")))
    return advice


def test_advice_is_taken(small):
    path, data = small
    store = StoreDeserializer(path)
    store.read(0)
    assert advice_of(path / "part-") == {"rr"}
    store.advise("sequential")
    assert advice_of(path / "part-") == {"sr"}
    assert_same(everything(store), data)
    assert advice_of(path / "part-") == {"sr"}
    store.advise("random", 2)
    assert advice_of(path / "part-") == {"sr", "rr"}
    store.advise("willneed", 2)
    with pytest.raises(ValueError, match="one of random"):
        store.advise("often")


def test_closing_lets_go_and_keeps_what_was_handed_out(small):
    path, data = small
    store = StoreDeserializer(path)
    chunk = store.read(0)
    store.close()
    assert np.array_equal(chunk["x"].rows, data["x"].rows[: len(chunk)])
    with pytest.raises(ValueError, match="was closed"):
        store.read(0)
    with pytest.raises(ValueError, match="was closed"):
        store.lengths(np.arange(3))


def test_parts_are_plain_arrow_files(small):
    path, data = small
    tables = [pa.ipc.open_file(file).read_all() for file in sorted(path.glob("part-*.arrow"))]
    rows = [row for table in tables for row in table.to_pylist()]
    for table in tables:
        table.validate(full=True)
    assert len(rows) == 60
    for i, row in enumerate(rows):
        assert row["x"] == data["x"].rows[i].tolist()
        assert row["t"] == data["t"].sequences()[i].tolist()
        assert [entry["index"] for entry in row["y"]] == data["y"].sequences()[i].indices.tolist()
    lengths = np.load(path / "lengths-1.npy", mmap_mode="r")
    assert np.array_equal(lengths, data["t"].lengths)


# ---- writing --------------------------------------------------------------------------------------------


def test_an_exception_leaves_nothing(tmp_path):
    with (  # the exception comes out of the middle of the block
        pytest.raises(ZeroDivisionError),
        StoreWriter(tmp_path / "a", Schema({"x": Stream(())})) as writer,
    ):
        writer.write({"x": Value.from_dense(np.zeros(10, np.float32))})
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_nothing_written_is_an_error(tmp_path):
    with (
        pytest.raises(DataError, match="at least one sequence"),
        StoreWriter(tmp_path / "a", Schema({"x": Stream(())})),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_store_appears_at_the_end(tmp_path):
    with StoreWriter(tmp_path / "a", Schema({"x": Stream(())}), chunk_bytes=16) as writer:
        writer.write({"x": Value.from_dense(np.zeros(100, np.float32))})
        assert not (tmp_path / "a").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_existing_target_is_kept(tmp_path):
    path = write(tmp_path / "a", {"x": np.arange(3)})
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write(path, {"x": np.arange(4)})
    assert everything(StoreDeserializer(path))["x"].rows.tolist() == [0, 1, 2]
    write(path, {"x": np.arange(4)}, overwrite=True)
    assert everything(StoreDeserializer(path))["x"].rows.tolist() == [0, 1, 2, 3]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="not a feedline store"):
        write(tmp_path / "mine", {"x": np.arange(4)}, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "mine"]
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_target_that_appears_meanwhile_is_kept(tmp_path):
    with (  # the exception comes at the end of the block
        pytest.raises(FileExistsError),
        StoreWriter(tmp_path / "a", Schema({"x": Stream(())})) as writer,
    ):
        writer.write({"x": Value.from_dense(np.zeros(1, np.float32))})
        (tmp_path / "a").write_text("mine")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "mine"


FULL = """
    import resource, sys
    import numpy as np
    from feedline.data import Schema, Stream, Value
    from feedline.errors import DataError
    from feedline.feed.formats.store.writer import StoreWriter
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    lengths = np.tile([0, 2], 5000)
    value = Value.from_dense(np.zeros(10_000, np.float32), np.concatenate([[0], np.cumsum(lengths)]))
    try:
        with StoreWriter(sys.argv[1], Schema({"x": Stream(())}), chunk_bytes=4096) as writer:
            for _ in range(10):
                writer.write({"x": value})
    except DataError as error:
        print(error)
    else:
        print("written")
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0, 100, 5000, 100_000, 300_000, 450_000])
def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path, limit):
    out = run(
        ["-c", textwrap.dedent(FULL), str(tmp_path / "a"), str(limit)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout.startswith("cannot write the store: File too large"), out
    assert out.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_what_a_store_cannot_hold(tmp_path):
    with pytest.raises(SchemaError, match="two floats"):
        StoreWriter(tmp_path / "a", Schema({"z": Stream((), "complex64")}))
    schema = Schema({"x": Stream(())})
    with StoreWriter(tmp_path / "a", schema) as writer:
        writer.write({"x": Value.from_dense(np.zeros(2, np.float32))})
        with pytest.raises(SchemaError, match="float64"):
            writer.write({"x": Value.from_dense(np.zeros(2))})
        bad = Chunk(schema, {"x": Value.from_dense(np.zeros(2, np.float32))}, {1: DataError("torn")})
        with pytest.raises(DataError, match="unreadable one at index 1"):
            writer.write(bad)
    assert len(everything(StoreDeserializer(tmp_path / "a"))["x"]) == 2
    with pytest.raises(DataError, match="cannot write the store"):
        StoreWriter(tmp_path / "no" / "such" / "folder", schema)


# ---- damage ---------------------------------------------------------------------------------------------


def read_all(path, **options):
    store = StoreDeserializer(path, **options)
    return everything(store), store.lengths(np.arange(60)), store.chunks()


def test_flipped_bytes_of_the_manifest_are_noticed(small):
    path, _ = small
    good = (path / MANIFEST).read_bytes()
    generator = np.random.default_rng(0)
    for at in {*range(300), *generator.integers(0, len(good), 300).tolist(), len(good) - 1}:
        for flip in (1 << int(generator.integers(8)), 0xFF):
            damaged = bytearray(good)
            damaged[at] ^= flip
            (path / MANIFEST).write_bytes(damaged)
            with pytest.raises(DataError, match=r"feedline\.json"):
                StoreDeserializer(path)


def test_a_cut_manifest_is_noticed(small):
    path, _ = small
    good = (path / MANIFEST).read_bytes()
    for size in {*range(0, len(good), 37), len(good) - 1, len(good) - 2}:
        (path / MANIFEST).write_bytes(good[:size])
        with pytest.raises(DataError):
            StoreDeserializer(path)
    (path / MANIFEST).unlink()
    with pytest.raises(DataError, match="expected a store"):
        StoreDeserializer(path)


def test_cut_files_are_noticed(small):
    path, _ = small
    for file in [*path.glob("part-*"), *path.glob("lengths-*")]:
        good = file.read_bytes()
        for size in {0, 1, 8, len(good) // 2, len(good) - 1}:
            file.write_bytes(good[:size])
            with pytest.raises(DataError, match=f"expected a file of {len(good)} bytes, got {size}"):
                StoreDeserializer(path)
        file.write_bytes(good + b"\0")
        with pytest.raises(DataError, match="expected a file of"):
            StoreDeserializer(path)
        file.unlink()
        with pytest.raises(DataError, match=file.name):
            StoreDeserializer(path)
        file.write_bytes(good)


def test_a_file_cut_while_it_is_mapped_is_noticed(small):
    path, _ = small
    store = StoreDeserializer(path)
    store.read(0)
    store.lengths(np.arange(3))
    for name in ("part-00000.arrow", "lengths-1.npy"):
        os.truncate(path / name, 5)
    with pytest.raises(DataError, match="got 5"):
        store.read(0)
    with pytest.raises(DataError, match="got 5"):
        store.lengths(np.arange(3))


def test_flipped_bytes_of_the_data_are_noticed_when_verified(small):
    path, _ = small
    parts = Manifest.load(path).parts
    generator = np.random.default_rng(1)
    for part in parts:
        file = path / part.file
        good = file.read_bytes()
        inside = range(int(part.chunks["byte"][0]), int((part.chunks["byte"] + part.chunks["bytes"])[-1]))
        for at in generator.choice(inside, 40).tolist():
            damaged = bytearray(good)
            damaged[at] ^= 1 << int(generator.integers(8))
            file.write_bytes(damaged)
            with pytest.raises(DataError, match="checksum"):
                read_all(path, verify=True)
        file.write_bytes(good)
    file = path / "lengths-1.npy"
    good = bytearray(file.read_bytes())
    good[-3] ^= 1
    file.write_bytes(good)
    with pytest.raises(DataError, match="checksum"):
        read_all(path, verify=True)


def test_a_store_that_is_verified_is_so_in_other_processes(small):
    path, _ = small
    (extent,) = StoreDeserializer(path).extents(0)
    data = bytearray(Path(extent.path).read_bytes())
    data[extent.offset + extent.size - 1] ^= 1
    Path(extent.path).write_bytes(data)
    copy = pickle.loads(pickle.dumps(StoreDeserializer(path, verify=True)))
    with pytest.raises(DataError, match="checksum"):
        copy.read(0)


def test_flipped_bytes_of_the_data_never_crash_nor_change_counts(small):
    path, data = small
    generator = np.random.default_rng(2)
    for file in [*sorted(path.glob("part-*"))[:2], *path.glob("lengths-*")]:
        good = file.read_bytes()
        for at in range(0, len(good), stride(10)):
            damaged = bytearray(good)
            damaged[at] ^= 1 << int(generator.integers(8))
            file.write_bytes(damaged)
            try:
                got, _, _ = read_all(path)
            except (FeedlineError, MemoryError):
                continue
            for name, value in got.items():
                assert value.num_sequences == data[name].num_sequences
                assert value.shape == data[name].shape
        file.write_bytes(good)


def forge(path, change):
    """Change the manifest and give it a right checksum, as an enemy would."""
    tree = json.loads((path / MANIFEST).read_text())
    change(tree)
    tree["crc32c"] = "00000000"
    text = json.dumps(tree).encode()
    crc = b'"crc32c": "%08x"' % _native.crc32c(text)
    (path / MANIFEST).write_bytes(text.replace(b'"crc32c": "00000000"', crc, 1))


def put(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(tree):
        for key in keys:
            tree = tree[key]
        tree[last] = value

    return change


def shift_byte(tree):
    tree["parts"][0]["chunks"]["byte"][0] += 8


def swap_counts(tree):
    counts = tree["parts"][0]["chunks"]["sequences"]
    counts[0], counts[1] = counts[0] + 1, counts[1] - 1


def swap_totals(tree):
    totals = tree["parts"][0]["totals"]["t"]
    totals[0], totals[1] = totals[0] + 1, totals[1] - 1


@pytest.mark.parametrize(
    "change",
    [
        put("version", 2),
        put("format", "other"),
        put("sequences", 61),
        put("samples", -1),
        put("sequences", 60.0),
        put("sequences", True),
        put("parts", []),
        put("parts", {}),
        put("parts", 0, "file", "../../etc/passwd"),
        put("parts", 0, "file", "part-00000.arrow\n"),
        put("parts", 0, "bytes", 2**62),
        put("parts", 0, "chunks", "byte", 0, 0),
        put("parts", 0, "chunks", "bytes", 0, 2**47),
        put("parts", 0, "chunks", "sequences", 0, 2**63),
        put("parts", 0, "chunks", "sequences", 0, -1),
        put("parts", 0, "chunks", "sequences", [60]),
        put("parts", 0, "chunks", {}),
        put("parts", 0, "ragged", []),
        put("parts", 0, "ragged", ["x"]),
        put("parts", 0, "totals", {}),
        put("lengths", {}),
        put("lengths", "t", "file", "part-00000.arrow"),
        put("streams", []),
        put("streams", 0, "name", "t"),
        put("streams", 0, "name", None),
        put("streams", 0, "shape", [5]),
        put("streams", 0, "shape", [2**40]),
        put("streams", 0, "shape", -1),
        put("streams", 0, "dtype", "object"),
        put("streams", 0, "dtype", "float64"),
        put("streams", 0, "sparse", True),
        put("streams", 2, "shape", [4]),
        put("streams", 2, "shape", [2, 2]),
        shift_byte,
        swap_counts,
        swap_totals,
    ],
)
def test_forged_figures_are_noticed(small, change):
    path, _ = small
    forge(path, lambda tree: None)
    read_all(path)
    forge(path, change)
    with pytest.raises(DataError):
        read_all(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("sequences", 61), "expected 61 sequences in all parts together, got 60"),
        (put("parts", 0, "samples", 7), r"expected 7 samples in the chunks of part-00000\.arrow"),
        (put("parts", 0, "file", "../../etc/passwd"), "expected a file name"),
        (put("streams", 0, "name", "t"), "a distinct valid name"),
    ],
)
def test_forged_figures_are_named(small, change, message):
    path, _ = small
    forge(path, change)
    with pytest.raises(DataError, match=message):
        StoreDeserializer(path)


def test_negative_lengths_are_noticed(small):
    path, _ = small
    file = path / "lengths-1.npy"
    raw = bytearray(file.read_bytes())
    raw[128 + 4 * 3 :] = (-1).to_bytes(4, "little", signed=True) * 57
    file.write_bytes(raw)
    store = StoreDeserializer(path)
    assert store.lengths(np.arange(3)).tolist() == [1, 1, 2]
    with pytest.raises(DataError, match="at least 0, got -1"):
        store.lengths(np.arange(4))


def test_offsets_past_the_rows_are_noticed(small):
    path, _ = small
    file = path / "part-00000.arrow"
    store = StoreDeserializer(path)
    offsets = store.read(0)["t"].offsets
    raw = bytearray(file.read_bytes())
    at = raw.find(offsets.tobytes()) + 8 * (len(offsets) - 1)
    raw[at : at + 8] = (10**12).to_bytes(8, "little")
    file.write_bytes(raw)
    with pytest.raises(DataError, match="expected 0 samples in sequence 4 of those read, got 999999999994"):
        StoreDeserializer(path).read(0)


def test_damage_is_reported_with_its_place(small):
    path, _ = small
    file = path / "part-00000.arrow"
    store = StoreDeserializer(path)
    start = int(Manifest.load(path).parts[0].chunks["byte"][0])
    offsets = store.read(0)["t"].offsets
    raw = bytearray(file.read_bytes())
    at = raw.find(offsets.tobytes(), start)
    raw[at + 8 : at + 16] = (10**12).to_bytes(8, "little")
    file.write_bytes(raw)
    with pytest.raises(DataError, match="never decrease, got 1000000000000 then 1 at entries 1 and 2") as caught:
        StoreDeserializer(path).read(0)
    assert (caught.value.path, caught.value.byte, caught.value.stream) == (str(file), start, "t")


def test_a_compressed_part_is_refused(small):
    path, _ = small
    part = path / "part-00000.arrow"
    table = pa.ipc.open_file(part).read_all().combine_chunks()
    with pa.ipc.new_file(part, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    size = part.stat().st_size

    def one_chunk(tree):
        row = tree["parts"][0]
        head = 16 + int.from_bytes(part.read_bytes()[12:16], "little")
        chunks = row["chunks"]
        for key in ("sequences", "samples"):
            chunks[key] = [sum(chunks[key])]
        chunks["byte"], chunks["bytes"], chunks["crc32c"] = [head], [size - head], [0]
        row["totals"] = {"t": [sum(row["totals"]["t"])]}
        row["bytes"] = size

    forge(path, one_chunk)
    with pytest.raises(DataError, match="expected an uncompressed Arrow record batch"):
        StoreDeserializer(path).read(0)


# ---- the rest -------------------------------------------------------------------------------------------


def test_unknown_streams_and_chunks(small):
    path, _ = small
    with pytest.raises(SchemaError, match=re.escape("which has x, t, y; got z")):
        StoreDeserializer(path, ["x", "z"])
    with pytest.raises(SchemaError, match="each stream once"):
        StoreDeserializer(path, ["x", "x"])
    with pytest.raises(TypeError, match="list of stream names"):
        StoreDeserializer(path, "x")
    with pytest.raises(IndexError, match="from 0 to"):
        StoreDeserializer(path).read(1000)


def test_digest_follows_the_content(tmp_path):
    rows = np.arange(1000.0)
    digest = StoreDeserializer(write(tmp_path / "a", {"x": rows})).digest()
    assert digest == StoreDeserializer(write(tmp_path / "b", {"x": rows})).digest()
    rows[333] += 1
    assert digest != StoreDeserializer(write(tmp_path / "c", {"x": rows})).digest()


def test_importing_does_not_import_arrow():
    code = (
        "import sys, feedline.feed.conversion.convert, feedline.feed.formats.arrow.parquet, feedline.feed.formats.csv; "
        "assert 'pyarrow' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert feedline


# ---- bytes and text -------------------------------------------------------------------------------------


def test_only_stores_with_byte_strings_have_the_version_that_holds_them(tmp_path):
    """All other stores are unchanged, byte for byte: version 1, or 2 if compressed."""
    numbers, strings = {"x": Stream(())}, {"x": Stream(()), "t": Stream(dtype="str")}
    for streams, compression, version in (
        (numbers, None, 1),
        (numbers, "lz4", 2),
        (strings, None, 3),
        (strings, "lz4", 3),
    ):
        path = tmp_path / f"{len(streams)}-{compression}"
        with StoreWriter(path, Schema(streams), compression=compression) as writer:
            values = {"x": Value.from_dense(np.zeros(2, np.float32)), "t": Value.from_bytes(["a", "é"])}
            writer.write({name: values[name] for name in streams})
        manifest = json.loads((path / MANIFEST).read_text())
        assert (manifest["version"], manifest.get("compression")) == (version, compression)
        assert StoreDeserializer(path).schema == Schema(streams)


def test_arrow_reads_byte_strings(tmp_path):
    data = {"b": Value.from_bytes([b"", b"\0", b"abc"]), "t": Value.from_bytes([["x"], [], ["é", ""]])}
    with StoreWriter(tmp_path / "a", Schema({"b": Stream(dtype="bytes"), "t": Stream(dtype="str")})) as writer:
        writer.write(data)
    table = pa.ipc.open_file(pa.memory_map(str(tmp_path / "a" / "part-00000.arrow"))).read_all()
    table.validate(full=True)
    assert table["b"].to_pylist() == [b"", b"\0", b"abc"]
    assert table["t"].to_pylist() == [["x"], [], ["é", ""]]


def test_a_store_of_nothing_but_empty_sequences_of_strings(tmp_path):
    with StoreWriter(tmp_path / "a", Schema({"t": Stream(dtype="str"), "x": Stream(())})) as writer:
        writer.write({"t": Value.from_bytes([[], []], "str"), "x": Value.from_dense(np.zeros(2, np.float32))})
    assert StoreDeserializer(tmp_path / "a").read(0)["t"].tolist() == [[], []]


def test_text_that_is_not_utf8_is_not_written(tmp_path):
    with StoreWriter(tmp_path / "a", Schema({"t": Stream(dtype="str")})) as writer:
        writer.write({"t": Value.from_bytes(["a"])})
        with pytest.raises(DataError, match="UTF-8, got other bytes in the sequence at index 1"):
            writer.write({"t": Value.from_buffer(b"a\xff", [0, 1, 2], "str")})
