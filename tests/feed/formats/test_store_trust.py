"""A store that changes while it is mapped, or is wrong: a DataError names the file, never a crash or a wrong number."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.data.faults import BadEntriesError
from feedline.feed.formats.store.manifest import MANIFEST, Manifest
from feedline.feed.timeline import block_order
from tests.effort import examples
from tests.feed.formats.test_store import forge, put, write
from tests.inside import copy_ahead_of, never_together, trust_the_size

PAGE = os.sysconf("SC_PAGESIZE")
N = 600


def data_of(n=N, seed=0):
    """No entry is zero, so that zeros read beyond the end are recognised. Lengths are never 0."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 9, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return {
        "x": fl.Value.from_dense(1 + np.arange(5 * n, dtype=np.int32).reshape(n, 5)),
        "t": fl.Value.from_dense(1 + np.arange(offsets[-1]), offsets),
        "y": fl.Value.one_hot([1 + i % 6 for i in range(n)], 7),
        "s": fl.Value.one_hot([np.arange(k) % 6 + 1 for k in lengths], 7),
        "b": fl.Value.from_dense(np.ones((n, 2), np.bool_)),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store of several chunks and two parts, one of some pages."""
    return write(tmp_path_factory.mktemp("trust") / "whole", data_of(), chunk_bytes=9000, part_bytes=60_000)


@pytest.fixture
def store(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "store")


def rows_of(minibatch):
    """By sequence all its entries, comparable."""
    values = [value.sequences() for value in minibatch.values()]
    return {
        int(i): [
            (row.indptr.tolist(), row.indices.tolist(), row.values.tolist())
            if isinstance(row, fl.Value)
            else row.tolist()
            for row in rows
        ]
        for i, *rows in zip(minibatch.ids, *values, strict=True)
    }


@pytest.fixture(scope="module")
def expected(whole):
    found = {}
    for minibatch in fl.MinibatchSource(fl.StoreDeserializer(whole), max_sweeps=1).minibatches(100):
        found.update(rows_of(minibatch))
    assert len(found) == N
    return found


def source_of(path, ahead=False, streams=None, **options):
    source = fl.MinibatchSource(fl.StoreDeserializer(path, streams), **{"seed": 3, "max_sweeps": 1, **options})
    copy_ahead_of(source).threshold = 0 if ahead else 1 << 60
    never_together(source)  # else all of it would have been copied before the cut
    return source


# ---- files that are cut -----------------------------------------------------------------------------------

SIZES = [0, 1, 7, 500, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 2000, -1, -5, -7, -20, -200, -500, -PAGE, -PAGE - 300]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_part_that_is_cut_under_a_source(store, expected, size, ahead, shuffle):
    """Delivered data is right to the byte. Then every call raises an error that names the file."""
    source = source_of(store, ahead, shuffle=shuffle)
    delivered = rows_of(source.next_minibatch(40)) | rows_of(source.next_minibatch(40))
    part = store / ("part-00001.arrow" if shuffle else "part-00000.arrow")
    os.truncate(part, size % part.stat().st_size)
    with pytest.raises(fl.DataError):
        for minibatch in source.minibatches(40):
            delivered |= rows_of(minibatch)
    state = source.state_dict()
    for _ in range(3):
        with pytest.raises(fl.DataError, match=r"truncated|modified|end of the file|expected a file of") as caught:
            source.next_minibatch(40)
        assert caught.value.path == str(part)
        assert source.state_dict() == state
    assert all(expected[i] == rows for i, rows in delivered.items())


@pytest.mark.parametrize("size", [0, 100, 130, 200, -1, -4, -100])
def test_lengths_that_are_cut_under_a_source(tmp_path, size):
    corpus = write(tmp_path / "a", {"t": fl.Value.from_sequences([np.ones(1 + i % 3) for i in range(3000)])})
    deserializer = fl.StoreDeserializer(corpus)
    assert deserializer.lengths(np.arange(3000)).tolist() == [1 + i % 3 for i in range(3000)]
    file = corpus / "lengths-0.npy"
    os.truncate(file, size % file.stat().st_size)
    with pytest.raises(fl.DataError, match=r"expected a file|got one that was truncated") as caught:
        deserializer.lengths(np.arange(3000))
    assert caught.value.path == str(file)
    with pytest.raises(fl.DataError) as caught:
        deserializer.read(0)
    assert caught.value.path == str(file)


CUT_WHILE_READING = """
    import os, sys, threading, time
    import numpy as np
    import feedline as fl

    folder, part = sys.argv[1], sys.argv[1] + "/part-00000.arrow"
    size = os.path.getsize(part)
    whole = open(part, "rb").read()
    done = threading.Event()

    def change():
        # Cut and whole again, over and over, so that every look may be followed by a cut.
        rng = np.random.default_rng(0)
        while not done.is_set():
            os.truncate(part, int(rng.integers(0, size)))
            time.sleep(0.001 * rng.random())
            with open(part, "r+b") as file:
                file.write(whole)
            time.sleep(0.002 * rng.random())

    thread = threading.Thread(target=change)
    thread.start()
    told = 0
    for _ in range(50):
        try:
            corpus = fl.StoreDeserializer(folder, verify=True)
            corpus.select(np.arange(300))
            corpus.lengths(np.arange(300))
            for minibatch in fl.MinibatchSource(corpus, max_sweeps=1).minibatches(64):
                pass
        except fl.DataError:
            told += 1
    done.set()
    thread.join()
    print(told > 0)
"""


def test_a_part_that_is_cut_at_any_moment(store):
    """Open, verify, read and copy while another thread truncates and restores the file."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CUT_WHILE_READING), str(store)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)


def test_all_ways_to_copy_report_a_cut_file(store, tmp_path):
    """Joins, selections, conversions and loaders copy out of the same maps."""
    other = write(tmp_path / "other", {"z": np.arange(N)})
    for name, use in {
        "join": lambda corpus: fl.MinibatchSource([corpus, fl.StoreDeserializer(other)]).next_minibatch(N),
        "secondary": lambda corpus: fl.MinibatchSource([fl.StoreDeserializer(other), corpus]).next_minibatch(N),
        "select": lambda corpus: corpus.select(np.arange(N)),
        "convert": lambda corpus: fl.convert(corpus, tmp_path / "copy"),
        "take": lambda corpus: corpus.read(0).take(np.arange(3)),
    }.items():
        corpus = fl.StoreDeserializer(shutil.copytree(store, tmp_path / name))
        chunk = corpus.read(0)
        # The sizes are compared before a chunk is read, so the race between that and the copy is played here.
        trust_the_size(corpus, 0)
        corpus.read = lambda i, chunk=chunk, read=corpus.read: chunk if i == 0 else read(i)
        os.truncate(tmp_path / name / "part-00000.arrow", 200)
        with pytest.raises(fl.DataError, match="truncated to 200 bytes") as caught:
            use(corpus)
        assert caught.value.path == str(tmp_path / name / "part-00000.arrow")
    assert not (tmp_path / "copy").exists()


def test_a_store_that_is_whole_again_goes_on(store, expected):
    """The state is that before the minibatch that failed."""
    source = source_of(store)
    part = store / "part-00000.arrow"
    content = part.read_bytes()
    found = rows_of(source.next_minibatch(300))
    os.truncate(part, PAGE)
    with pytest.raises(fl.DataError):
        source.next_minibatch(300)
    with open(part, "r+b") as file:
        file.write(content)
    for minibatch in source.minibatches(300):
        found |= rows_of(minibatch)
    assert found == expected


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_other_bytes_of_the_same_size(whole, tmp_path_factory, seed, ahead):
    """A part overwritten while mapped: perhaps other numbers, but no errors except DataError."""
    folder = tmp_path_factory.mktemp("changed")
    path = shutil.copytree(whole, folder / "store")
    source = source_of(path, ahead, max_sweeps=2)
    source.next_minibatch(N)
    part = path / "part-00000.arrow"
    content = np.fromfile(part, np.uint8)
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        content[:] = rng.integers(0, 256, len(content))
    else:
        at = rng.integers(0, len(content), 400)
        content[at] = rng.integers(0, 256, 400)
    with open(part, "r+b") as file:
        file.write(content.tobytes())
    for size in (7, 50, 200, 300):
        try:
            minibatch = source.next_minibatch(size)
        except fl.DataError as error:
            assert error.path == str(part)  # noqa: PT017  # not every change is seen
            continue
        for value in minibatch.values():
            value.dense()
            if value.is_sparse:
                value.to_scipy().toarray()
    source.close()
    shutil.rmtree(folder)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_slices_of_chunks_are_slices(whole, data):
    """Read singly, they equal slices of the chunk, with separate offsets."""
    corpus = fl.StoreDeserializer(whole)
    number = data.draw(st.integers(0, len(corpus.chunks()) - 1))
    count = corpus.chunks()[number].sequences
    start, stop = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    chunk, expected = corpus.read_slice(number, start, stop), corpus.read(number).slice(start, stop)
    assert len(chunk.seals) == len(expected.seals) == 1
    for name, value in chunk.values.items():
        assert value == expected[name]
        assert value.one_sample_each == expected[name].one_sample_each
    assert chunk["t"].offsets.flags.writeable


@pytest.mark.parametrize("stream", ["x", "t", "y", "s", "b"])
def test_slices_of_damaged_chunks(store, stream):
    """Random bytes in a part: a slice is refused or can do no harm."""
    part = store / "part-00000.arrow"
    content = part.read_bytes()
    info = Manifest.load(store).parts[0].chunks
    start, size = int(info["byte"][0]), int(info["bytes"][0])
    rng = np.random.default_rng(5)
    told = 0
    for _ in range(300):
        damaged = np.frombuffer(bytearray(content), np.uint8)
        at = start + rng.integers(0, size, 3)
        damaged[at] = rng.integers(0, 256, 3)
        part.write_bytes(damaged.tobytes())
        try:
            chunk = fl.StoreDeserializer(store, [stream]).read_slice(0, 20, 60)
            chunk = chunk.take(np.arange(40))
        except fl.DataError as error:
            assert error.path == str(part)  # noqa: PT017  # most changes are to rows
            told += 1
        else:
            chunk[stream].dense()
    assert told > 0 or stream == "b"


@pytest.mark.parametrize("size", SIZES)
def test_a_part_that_is_cut_under_windows_of_blocks(store, expected, size):
    """Large stores are read in blocks: slices of chunks."""
    options = {"shuffle": fl.Window(bytes=30_000), "seed": 3, "max_sweeps": 1}
    with mock.patch.object(block_order, "BLOCK_BYTES", 2000):
        source = fl.MinibatchSource(fl.StoreDeserializer(store), **options)
    assert source.state_dict()["order"] == "feedline-2"
    delivered = rows_of(source.next_minibatch(100))
    part = store / "part-00000.arrow"
    os.truncate(part, size % part.stat().st_size)
    with pytest.raises(fl.DataError, match=r"truncated|modified|end of the file|expected a file of") as caught:
        for minibatch in source.minibatches(100):
            delivered |= rows_of(minibatch)
    assert caught.value.path == str(part)
    assert all(expected[i] == rows for i, rows in delivered.items())


# ---- entries that cannot be -----------------------------------------------------------------------------


def plant(path, stream, sequence, entry):
    """Put a bad entry into one sequence of a store."""
    corpus = fl.StoreDeserializer(path)
    starts = np.cumsum([0] + [info.sequences for info in corpus.chunks()])
    number = int(np.searchsorted(starts, sequence, side="right")) - 1
    chunk = corpus.read(number)
    value, index = chunk[stream], sequence - int(starts[number])
    last = int(value.offsets[index + 1]) - 1  # its last sample
    array = value.indices[last:] if value.is_sparse else value.rows[last, -1:].view(np.uint8)
    address = array.__array_interface__["data"][0]
    from feedline.data.faults import locate

    file, byte = locate(address)
    with open(file, "r+b") as opened:
        opened.seek(byte)
        opened.write(np.array([entry], array.dtype).tobytes())
    return file, byte


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("stream", "entry"), [("y", 7), ("y", -1), ("y", 2**31 - 1), ("s", 1 << 24), ("s", -(2**31)), ("b", 2), ("b", 255)]
)
def test_an_impossible_entry_is_a_bad_sequence(store, stream, entry, verify):
    """The error names file, byte, sequence and stream, without checksums, which would detect it earlier."""
    file, byte = plant(store, stream, 237, entry)
    if verify:
        with pytest.raises(fl.DataError, match="checksum"):
            for _ in fl.MinibatchSource(fl.StoreDeserializer(store, verify=True), max_sweeps=1):
                pass
        return
    for ahead, shuffle in itertools.product((False, True), repeat=2):
        source = source_of(store, ahead, shuffle=shuffle)
        seen = []
        with pytest.raises(fl.DataError, match=rf"expected .*, got {entry}") as caught:
            seen.extend(i for minibatch in source.minibatches(64) for i in minibatch.ids.tolist())
        error = caught.value
        assert (error.path, error.byte, error.sequence, error.stream) == (file, byte, 237, stream)
        assert 237 not in seen


@pytest.mark.parametrize("lanes", [None, 4])
@pytest.mark.parametrize("ahead", [False, True])
def test_bad_sequences_are_skipped_and_shift_nothing(store, whole, tmp_path, ahead, lanes):
    bad = [3, 77, 237, 238, 599]
    for sequence, (stream, entry) in zip(bad, [("y", 7), ("s", -1), ("b", 9), ("s", 7), ("y", -7)], strict=True):
        plant(store, stream, sequence, entry)
    plant(store, "y", 237, 99)
    # In lanes all streams of a sequence have one length.
    streams = ["t", "s"] if lanes else None
    if lanes:
        bad = [77, 238]
    options = {"truncation_length": lanes, "seed": 3, "max_sweeps": 2}
    reference = source_of(whole, streams=streams, **options)
    source = source_of(store, ahead, streams, **options, on_error=fl.Quarantine(tmp_path / "q.jsonl"))
    while True:
        wanted, got = reference.next_minibatch(64), source.next_minibatch(64)
        if not wanted:
            break
        left = [place for place, i in enumerate(wanted.ids.tolist()) if i not in bad]
        assert got.ids.tolist() == wanted.ids[left].tolist()
        for name, value in wanted.items():
            assert got[name] == value.select(left)
        assert got.position == wanted.position
        assert source.state_dict() == reference.state_dict()
    assert source.stats().skipped == 2 * len(bad)
    listed = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert sorted(line["sequence"] for line in listed) == bad
    assert all(line["path"].startswith(str(store)) and line["byte"] for line in listed)


def test_bad_sequences_in_joins_selections_and_conversions(store, tmp_path):
    plant(store, "y", 41, 7)
    plant(store, "b", 300, 3)
    other = write(tmp_path / "other", {"z": np.arange(N)})
    for parts in ([store, other], [other, store]):
        corpora = [fl.StoreDeserializer(part) for part in parts]
        joined = fl.Join(*corpora, cache=False)
        source = fl.MinibatchSource(joined, shuffle=False, on_error=fl.Quarantine(tmp_path / "q.jsonl"))
        assert source.next_minibatch(10 * N).num_sequences >= N - 2
        with pytest.raises(fl.DataError, match=r"indices in \[0, 7\), got 7") as caught:
            fl.MinibatchSource(joined, shuffle=False).next_minibatch(1000)
        assert (caught.value.sequence, caught.value.stream) == (41, "y")
    chunk = fl.StoreDeserializer(store).select(np.array([300, 40, 41]))
    assert {i: (error.sequence, error.stream) for i, error in chunk.errors.items()} == {0: (300, "b"), 2: (41, "y")}
    with pytest.raises(fl.DataError, match="got 7") as caught:
        fl.convert(store, tmp_path / "copy")
    assert (caught.value.sequence, caught.value.stream) == (41, "y")
    assert not (tmp_path / "copy").exists()
    for seed in (None, 1):
        with pytest.raises(fl.DataError, match="got 7"):
            fl.convert(store, tmp_path / "shuffled", shuffle=seed)
        options = {"on_error": "skip", "shuffle": seed, "overwrite": True}
        assert fl.convert(store, tmp_path / "copy", **options).skipped == 2
    copy = fl.StoreDeserializer(tmp_path / "copy", verify=True)
    assert copy.select(np.arange(N - 2)).errors == {}


def test_writers_refuse_indices_out_of_range(tmp_path):
    value = fl.Value.one_hot([[1, 0], [1], [0, 1, 1]], 2)
    value.indices[4] = 2
    schema = fl.Schema({"y": fl.Stream(2, sparse=True)})
    with fl.StoreWriter(tmp_path / "a", schema) as writer:
        with pytest.raises(fl.DataError, match=r"indices in \[0, 2\), got 2 in the sequence at index 2") as caught:
            writer.write({"y": value})
        assert caught.value.stream == "y"
        writer.write({"y": value.slice(0, 2)})
    assert fl.StoreDeserializer(tmp_path / "a").chunks()[0].sequences == 2


def test_views_of_a_chunk_are_the_files_bytes(store):
    """As docs/formats/store.md states, they are unchecked until they are copied."""
    plant(store, "y", 0, 7)
    chunk = fl.StoreDeserializer(store).read(0)
    assert chunk["y"].indices[0] == 7
    assert chunk.errors == {}
    assert list(chunk.take(np.arange(4)).errors) == [0]
    with pytest.raises(BadEntriesError, match="got 7"):
        chunk["y"].select([0])


# ---- figures that contradict each other -----------------------------------------------------------------


def rewrite(path, change):
    """Write the first part again with ``change(column number, array)``, as an attacker would, in one chunk."""
    part = path / "part-00000.arrow"
    table = pa.ipc.open_file(part).read_all().combine_chunks()
    batch = table.to_batches()[0]
    arrays = [change(i, column) for i, column in enumerate(batch.columns)]
    with pa.ipc.new_file(part, table.schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=table.schema))
    content = part.read_bytes()
    head = 16 + int.from_bytes(content[12:16], "little")

    def one_chunk(tree):
        row = tree["parts"][0]
        for key in ("sequences", "samples"):
            row["chunks"][key] = [sum(row["chunks"][key])]
        row["chunks"] |= {"byte": [head], "bytes": [len(content) - head], "crc32c": [0]}
        row["totals"] = {name: [sum(totals)] for name, totals in row["totals"].items()}
        row["bytes"] = len(content)

    forge(path, one_chunk)


def with_nulls(array, level):
    """The array, with a bitmap in which item 0 of some level is null."""
    bitmap = pa.py_buffer(b"\xfe" + b"\xff" * (array.nbytes // 8 + 8))

    def rebuild(array, depth):
        buffers = array.buffers()
        kind = array.type
        mine, nulls = (bitmap, 1) if depth == level else (None, 0)
        if pa.types.is_struct(kind):
            children = [rebuild(array.field(i), depth + 1) for i in range(2)]
            return pa.Array.from_buffers(kind, len(array), [mine], null_count=nulls, children=children)
        if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            child = rebuild(array.values, depth + 1)
            own = [mine] if pa.types.is_fixed_size_list(kind) else [mine, buffers[1]]
            return pa.Array.from_buffers(kind, len(array), own, null_count=nulls, children=[child])
        return pa.Array.from_buffers(kind, len(array), [mine, buffers[1]], null_count=nulls)

    return rebuild(array, 0)


@pytest.mark.parametrize(
    ("column", "level"),
    [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2), (3, 3), (4, 0), (4, 1)],
)
def test_nulls_of_any_level_are_noticed(store, column, level):
    rewrite(store, lambda i, array: array)
    fl.StoreDeserializer(store).read(0)
    rewrite(store, lambda i, array: with_nulls(array, level) if i == column else array)
    with pytest.raises(fl.DataError, match="expected no nulls"):
        fl.StoreDeserializer(store).read(0)


def swap_samples(tree):
    counts = tree["parts"][0]["chunks"]["samples"]
    counts[0], counts[1] = counts[0] + 1, counts[1] - 1


def wrap_around(tree):
    # Four times 2^46 in each of 2^16 chunks comes to 2^64 again.
    part = tree["parts"][0]
    count = 1 << 16
    part["chunks"] = {key: [0] * count for key in part["chunks"]}
    part["chunks"]["byte"] = [16 + 8 * i for i in range(count)]
    part["chunks"]["bytes"] = [8] * count
    part["chunks"]["sequences"] = [1] * count
    part["chunks"]["samples"] = [1 << 47] * count + []
    part["chunks"]["samples"][: 1 << 15] = [3 << 47] * (1 << 15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_samples, "samples in the chunk, got"),
        (put("parts", 1, "file", "part-00000.arrow"), "each file once"),
        (put("lengths", "t", "file", "lengths-3.npy"), "each file once"),
        (put("lengths", "t", "bytes", 0), "expected 2528 bytes in lengths-1.npy for 600 sequences, got 0"),
        (put("version", True), "version 1 to 3 of the store format, got True"),
        (put("streams", 0, "name", "\ud800"), "a distinct valid name"),
        (wrap_around, "expected counts as samples of chunks"),
    ],
)
def test_figures_that_were_believed_are_noticed(store, change, message):
    forge(store, change)
    with pytest.raises(fl.DataError, match=message):
        for minibatch in fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=False, max_sweeps=1):
            assert minibatch


def test_lengths_that_contradict_the_data_are_noticed(store):
    """Minibatches are planned by the file of lengths, and missing samples would be counted."""
    file = store / "lengths-1.npy"
    lengths = np.load(file)
    lengths[[5, 6]] += np.array([1, -1], np.int32)
    file.write_bytes(file.read_bytes()[:128] + lengths.tobytes())
    with pytest.raises(fl.DataError, match=rf"expected {lengths[5]} samples in sequence 5 of those read") as caught:
        fl.MinibatchSource(fl.StoreDeserializer(store), shuffle=False).next_minibatch(100)
    assert (caught.value.stream, caught.value.path) == ("t", str(store / "part-00000.arrow"))


def test_a_manifest_too_large_to_be_one(store):
    os.truncate(store / MANIFEST, 1 << 40)
    with pytest.raises(fl.DataError, match="expected a manifest of at most"):
        fl.StoreDeserializer(store)


@pytest.mark.parametrize("name", ["part-00000.arrow", "part-00001.arrow", "lengths-1.npy", MANIFEST])
@pytest.mark.parametrize("late", [False, True])
def test_nothing_outside_the_folder_is_read(store, tmp_path, name, late):
    """A link, a pipe or a folder in the place of a file, there at once or after the store was opened."""
    kept = tmp_path / "kept"
    os.rename(store / name, kept)

    def put_back():
        if (store / name).is_dir() and not (store / name).is_symlink():
            (store / name).rmdir()
        elif os.path.lexists(store / name):
            (store / name).unlink()
        shutil.copy(kept, store / name)

    for what, place in {
        "got a link": lambda: os.symlink(kept, store / name),
        "it is a FIFO": lambda: os.mkfifo(store / name),
        "it is a folder": lambda: os.mkdir(store / name),
    }.items():
        if late and name != MANIFEST:
            put_back()
            corpus = fl.StoreDeserializer(store)
            (store / name).unlink()
            place()
            with pytest.raises(fl.DataError, match=what) as caught:
                fl.MinibatchSource(corpus, shuffle=False).next_minibatch(10 * N)
        else:
            place()
            with pytest.raises(fl.DataError, match=what) as caught:
                fl.StoreDeserializer(store)
        assert caught.value.path == str(store / name)
        put_back()
        (store / name).unlink()


def test_a_store_may_itself_be_reached_by_a_link(store, tmp_path, expected):
    os.symlink(store, tmp_path / "link")
    assert rows_of(source_of(tmp_path / "link").next_minibatch(100))
