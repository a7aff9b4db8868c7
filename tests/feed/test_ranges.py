"""Bytes fetched for decoding: the same sequences wherever the bytes are, even if some cannot be read."""

from __future__ import annotations

import errno
import gc
import io
import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline import _native
from feedline.feed.reading.decoding_reader import DecodingReader
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.forked import Forked
from tests.inside import files_of, reader_of, room_to_fetch

ROWS = 400
KINDS = ["ctf", "parquet", "store", "tar"]


def written(kind, folder):
    """Write ragged sequences that contain their number, in dozens of chunks. Return a function that opens the file."""
    rng = np.random.default_rng(2)
    x = [np.full((int(n), 20), i, np.float32) for i, n in enumerate(rng.integers(1, 5, ROWS))]
    y = np.arange(ROWS, dtype=np.float32)[:, None]
    if kind == "ctf":
        fl.write_ctf(folder / "a.ctf", x=fl.Value.from_sequences(x), y=fl.Value.from_dense(y))
        return (
            lambda: fl.CTFDeserializer(folder / "a.ctf", x=fl.Stream(20), y=fl.Stream(1), chunk_size=4000),
            folder / "a.ctf",
        )
    if kind == "parquet":
        table = pa.table({"x": pa.array([list(map(list, s)) for s in x], pa.list_(pa.list_(pa.float32(), 20)))})
        table = table.append_column("y", pa.FixedSizeListArray.from_arrays(pa.array(y[:, 0]), 1))
        pq.write_table(table, folder / "a.parquet", row_group_size=13, compression="none", use_dictionary=False)
        return (lambda: fl.ParquetDeserializer(folder / "a.parquet")), folder / "a.parquet"
    if kind == "tar":  # one sample each
        with tarfile.open(folder / "a.tar", "w") as archive:
            for i in range(ROWS):
                for name, rows in (("x", np.full(20, i, np.float32)), ("y", y[i])):
                    file = io.BytesIO()
                    np.save(file, rows)
                    info = tarfile.TarInfo(f"{i}.{name}.npy")
                    info.size = file.tell()
                    file.seek(0)
                    archive.addfile(info, file)
        streams = {"x": fl.Stream(20, field="x.npy"), "y": fl.Stream(1, field="y.npy")}
        return lambda: fl.TarDeserializer(folder / "a.tar", streams, chunk_size=30_000), folder / "a.tar"
    fl.convert(fl.ArrayDeserializer(x=x, y=y), folder / "data", chunk_bytes=3000, compression="lz4")
    return (lambda: fl.StoreDeserializer(folder / "data")), folder / "data" / "part-00000.arrow"


@pytest.fixture(scope="module", params=KINDS)
def files(request, tmp_path_factory):
    return written(request.param, tmp_path_factory.mktemp(request.param))


def source(corpus, backend="any", forced=True, **options):
    found = fl.MinibatchSource(corpus, **{"seed": 1, "max_sweeps": 1, "shuffle": fl.Window(bytes=20_000), **options})
    reader = reader_of(found)
    assert isinstance(reader, DecodingReader)
    reader.ranges.backend, reader.ranges.forced = backend, forced
    return found


@given(
    backend=st.sampled_from(["any", "threads"]),
    shuffle=st.sampled_from([False, fl.Window(bytes=9000), fl.Window(chunks=5), True]),
    read_ahead=st.sampled_from([None, 0, 1, 10_000]),
    threads=st.integers(1, 3),
    size=st.integers(1, 200),
    room=st.sampled_from([1, 6000, 1 << 20]),
    direct=st.booleans(),
)
@settings(max_examples=examples(6))
def test_fetched_chunks_match_the_file(files, backend, shuffle, read_ahead, threads, size, room, direct):
    """Two sweeps, however much is fetched ahead."""
    reopen, _ = files
    options = {"shuffle": shuffle, "read_ahead": read_ahead, "threads": threads, "max_sweeps": 2}
    with source(reopen(), forced=False, **options) as plain, source(reopen(), backend, **options) as fetched:
        room_to_fetch(fetched, room)
        reader_of(fetched).ranges.direct = direct
        assert sequences_of(plain.minibatches(size)) == sequences_of(fetched.minibatches(size))
        assert plain.state_dict() == fetched.state_dict()
        # Usually 0, but the system may drop pages of the file from its cache at any time.
        assert plain.stats().disk_bytes < fetched.stats().disk_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forced", [False, True])
def test_what_was_asked_for_is_counted_wherever_it_was(kind, forced, tmp_path):
    opened, _ = written(kind, tmp_path)
    corpus = opened()
    parts = sum(extent.size for chunk in range(len(corpus.chunks())) for extent in corpus.extents(chunk))
    with fl.MinibatchSource(corpus, max_sweeps=1) as feed:
        reader_of(feed).ranges.forced = forced
        assert sum(minibatch.num_sequences for minibatch in feed) == ROWS
        assert feed.stats().asked_bytes == parts > 0
        assert (feed.stats().disk_bytes > 0) == forced


def test_fetching_resumes(files):
    """From every minibatch, as ever."""
    reopen, _ = files
    assert_resumes(lambda: source(reopen(), max_sweeps=2), (7, 64), 3)


def failing_reads(monkeypatch, path, begin, end):
    """Make every read of these bytes of a file fail, unless it is a native one."""

    def fails(descriptor, offset, size):
        inside = offset < end and offset + size > begin and size
        if inside and os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    preadv, pread = os.preadv, os.pread

    def failing_preadv(descriptor, buffers, offset, *more):
        fails(descriptor, offset, sum(map(len, buffers)))
        return preadv(descriptor, buffers, offset, *more)

    def failing_pread(descriptor, size, offset):
        fails(descriptor, offset, size)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "preadv", failing_preadv)
    monkeypatch.setattr(os, "pread", failing_pread)


def mapped_if_held(path, forced):
    if path.suffix == ".tar" and not forced:
        pytest.skip("what the page cache holds of an archive is mapped, not read")


def expected_losses(corpus, path, begin, end):
    """Ordinals that a failing page costs: the sequences with a part of it, or all of the chunks that have one."""
    page = begin // 4096 * 4096, -(-end // 4096) * 4096
    lost, first = set(), 0
    for number, info in enumerate(corpus.chunks()):
        if any(e.offset < end and e.offset + e.size > begin for e in corpus.extents(number)):
            lost |= set(range(first, first + info.sequences))
        first += info.sequences
    if path.suffix != ".ctf":
        return lost
    entries = np.concatenate([files_of(corpus)[0].index.entries(i) for i in range(len(corpus.chunks()))])
    offsets = entries["offset"].astype(int)
    inside = (offsets < page[1]) & (offsets + entries["size"] > page[0])
    return set(np.flatnonzero(inside).tolist()) & lost


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("shuffle", [False, fl.Window(bytes=20_000)])
def test_a_failing_disk_costs_what_it_holds_and_no_more(files, tmp_path, monkeypatch, shuffle, forced):
    """With EIO in the middle, lost sequences are listed with file and byte. Others keep place and values."""
    reopen, path = files
    mapped_if_held(path, forced)
    corpus = reopen()
    begin = path.stat().st_size // 2
    expected = [m.ids.tolist() for m in source(reopen(), forced=False, shuffle=shuffle).minibatches(64)]
    listed = tmp_path / "listed.jsonl"
    with source(corpus, "any", forced, shuffle=shuffle, on_error=fl.Quarantine(listed)) as feed:
        feed.state_dict()
        reader_of(feed).ranges.fail(str(path), begin, begin + 10, errno.EIO)
        failing_reads(monkeypatch, path, begin, begin + 10)
        found = list(feed.minibatches(64))
    monkeypatch.undo()
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    lost = {line["sequence"] for line in lines}
    assert lost <= expected_losses(corpus, path, begin, begin + 10)
    assert 0 < len(lost) < ROWS / 4
    assert [m.ids.tolist() for m in found] == [[i for i in ids if i not in lost] for ids in expected]
    for m in found:
        np.testing.assert_array_equal(m["y"].rows[:, 0], m.ids)
        for i, rows in zip(m.ids.tolist(), m["x"].sequences(), strict=True):
            assert (rows == i).all()
    assert all("Input/output error" in line["reason"] for line in lines)
    assert {line["path"] for line in lines} == {str(path)}
    assert all(abs(line["byte"] - begin) <= 4096 for line in lines) or path.suffix != ".ctf"
    assert all(line["byte"] is not None for line in lines)


@pytest.mark.parametrize("forced", [False, True])
def test_a_failing_disk_is_an_error_with_file_and_byte(files, monkeypatch, forced):
    """If no sequences are skipped. The position stays."""
    reopen, path = files
    mapped_if_held(path, forced)
    begin = path.stat().st_size // 2
    with source(reopen(), "any", forced, shuffle=False) as feed:
        feed.state_dict()
        reader_of(feed).ranges.fail(str(path), begin, begin + 10, errno.EIO)
        failing_reads(monkeypatch, path, begin, begin + 10)
        for _ in range(2):
            with pytest.raises(fl.DataError, match="Input/output error") as caught:
                list(feed.minibatches(64))
            assert caught.value.path == str(path)
            assert caught.value.byte is not None
            assert caught.value.sequence is not None
            position = feed.position
        with pytest.raises(fl.DataError, match="Input/output error"):
            feed.next_minibatch(64)
        assert feed.position == position


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_is_an_error_until_it_is_restored(tmp_path, kind, forced):
    """Its index describes the old content, so nothing of it is trusted. Earlier minibatches stay delivered."""
    reopen, path = written(kind, tmp_path)
    expected = sequences_of(source(reopen(), forced=False, shuffle=False).minibatches(20))
    whole, about = path.read_bytes(), path.stat()
    with source(reopen(), "any", forced, shuffle=False, read_ahead=0) as feed:
        found = [feed.next_minibatch(20)]
        feed.state_dict()
        os.truncate(path, len(whole) // 2)
        for _ in range(2):
            with pytest.raises(fl.DataError) as caught:
                found.extend(feed.minibatches(20))
            assert caught.value.path == str(path)
        path.write_bytes(whole)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        found.extend(feed.minibatches(20))
        assert sequences_of(found) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["any", "threads"])
def test_a_forked_child_reads_on(files, backend):
    """The child rereads what the parent's threads were reading, and both deliver the same."""
    reopen, _ = files
    parent, expected = source(reopen(), backend), sequences_of(source(reopen(), forced=False).minibatches(32))
    parent.next_minibatch(32)
    done = len(sequences_of([source(reopen(), forced=False).next_minibatch(32)]))

    def read_on():
        with parent:
            return sequences_of(parent.minibatches(32)) == expected[done:]

    child = Forked(read_on)
    assert read_on()
    assert child.status() == 0


def test_a_jump_drops_what_was_fetched(files, leaves_nothing):
    """Seek back and forth, abandoning reads in flight."""
    reopen, _ = files
    with source(reopen(), max_sweeps=3) as plain:
        states, expected = [], []
        for minibatch in plain.minibatches(30):
            expected.append(minibatch.ids.tolist())
            states.append(plain.position)
    with source(reopen(), max_sweeps=3) as feed:
        for k in (20, 3, 11, 1, 29, 5):
            feed.seek(states[k])
            assert [feed.next_minibatch(30).ids.tolist() for _ in range(2)] == expected[k + 1 : k + 3]
        assert reader_of(feed).ranges.used_bytes >= 0


def test_files_are_closed_again(tmp_path, monkeypatch):
    """Of a corpus of many files some are open at a time."""
    for i in range(40):
        pq.write_table(pa.table({"x": np.arange(i * 10.0, i * 10.0 + 10)}), tmp_path / f"{i:02}.parquet")
    monkeypatch.setattr("feedline.feed.reading.ranges._FILES", 4)
    most = 0
    gc.collect()  # files that earlier tests left open would be closed in between
    # Read ahead as far as there is room, all of these small files could be in use at once.
    with source(fl.ParquetDeserializer(tmp_path), shuffle=fl.Window(chunks=3), read_ahead=1) as feed:
        before = len(os.listdir("/proc/self/fd"))
        ids = []
        for m in feed.minibatches(7):
            ids += m["x"].rows.astype(int).tolist()
            most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert sorted(ids) == list(range(400))
        assert 0 < most < 40


def test_files_that_cannot_be_opened_again_are_read_as_ever(files, monkeypatch):
    """If there are more of them than descriptors, for example."""
    reopen, _ = files
    expected = sequences_of(source(reopen(), forced=False).minibatches(32))

    def refused(*_, **__):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(_native.Fetcher, "add", refused)
    with source(reopen()) as feed:
        assert sequences_of(feed.minibatches(32)) == expected
        assert feed.stats().disk_bytes == 0
