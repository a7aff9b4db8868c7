"""Fetching under bad conditions: failing disks, truncated files, forks, interrupts, little memory."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pyarrow as pa
import pytest

import feedline as fl
from feedline import _native
from feedline.feed.files import disk
from feedline.feed.reading import sequential_reader
from feedline.feed.reading.fetching_reader import FetchingReader
from feedline.testing import sequences_of
from tests.feed.elsewhere import Elsewhere
from tests.forked import Forked
from tests.inside import blocks_fetched, copies_waiting, disk_of, lookups_in_views, map_chunks, reader_of
from tests.linux import linux_only

ROWS, WIDTH = 3000, 700  # rows of 2.8 KB: most lie on two pages
SHUFFLES = [False, "whole", fl.Window(bytes=2 << 20), fl.Window(chunks=2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store of one file with 9 chunks. Row i of x is i."""
    path = tmp_path_factory.mktemp("store") / "data"
    x = np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH).reshape(ROWS, WIDTH)
    fl.convert(fl.ArrayDeserializer(x=x, y=np.arange(ROWS)), path, chunk_bytes=1 << 20)
    return path


@pytest.fixture
def store(folder, tmp_path):
    """A copy that may be damaged."""
    path = tmp_path / "data"
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def source(path, shuffle, backend="any", **options):
    options = {"seed": 1, "shuffle": shuffle, "max_sweeps": 1, **options}
    found = fl.MinibatchSource(fl.StoreDeserializer(path), **options)
    reader = reader_of(found)
    assert isinstance(reader, FetchingReader)
    reader.backend, reader.forced = backend, True
    return found


def rows_of(path, stream):
    """(byte of the first row, bytes of a row) in each chunk of the only part, from the corpus itself."""
    corpus = fl.StoreDeserializer(path)
    places, first = [], 0
    for number, info in enumerate(corpus.chunks()):
        rows = corpus.read(number)[stream].rows
        (file,) = corpus.files([number])
        at = rows.__array_interface__["data"][0] - file.address
        places += [at + i * rows[0].nbytes for i in range(info.sequences)]
        first += info.sequences
    return places


def fail(feed, begin, end, number):
    """Have reads of these bytes of the only part fail."""
    map_chunks(feed, 1)
    disk_of(feed).fail(0, begin, end, number)


@pytest.mark.parametrize("backend", ["any", "threads"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_failing_disk_costs_the_sequences_it_holds_and_no_others(folder, tmp_path, shuffle, backend):
    """With EIO in the middle of a row, that row is listed, with file and byte. All others keep place and values."""
    listed = tmp_path / "listed.jsonl"
    place = rows_of(folder, "x")[1234]
    expected = [m.ids.tolist() for m in source(folder, shuffle).minibatches(64)]
    with source(folder, shuffle, backend, on_error=fl.Quarantine(listed)) as feed:
        fail(feed, place + 100, place + 200, errno.EIO)
        found = list(feed.minibatches(64))
        assert feed.stats().skipped == 1
    assert [m.ids.tolist() for m in found] == [[i for i in ids if i != 1234] for ids in expected]
    for m in found:
        np.testing.assert_array_equal(m["x"].rows[:, 0], m.ids)
        np.testing.assert_array_equal(m["x"].rows[:, -1], m.ids)
        np.testing.assert_array_equal(m["y"].rows, m.ids)
    (line,) = listed.read_text().splitlines()
    entry = json.loads(line)
    assert entry["sequence"] == 1234
    assert "Input/output error" in entry["reason"]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_failing_disk_is_an_error_with_file_byte_and_sequence(folder, shuffle):
    """And the source stays where it was: the same minibatch is tried again."""
    place = rows_of(folder, "x")[77]
    with source(folder, shuffle) as feed:
        fail(feed, place + 5, place + 6, errno.EIO)
        done = []
        with pytest.raises(fl.DataError, match="Input/output error") as caught:
            done.extend(feed.minibatches(64))
        assert caught.value.path == str(folder / "part-00000.arrow")
        assert caught.value.byte == place + 5
        assert (caught.value.sequence, caught.value.stream) == (77, "x")
        position = feed.position
        with pytest.raises(fl.DataError, match="Input/output error"):
            feed.next_minibatch(64)
        assert feed.position == position


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_truncated_file_costs_the_items_after_the_cut(store, tmp_path, shuffle):
    """In known chunks, sequences before the truncation are delivered, and those after it are listed."""
    place = rows_of(store, "x")[2950]
    with source(store, shuffle, on_error=fl.Quarantine(tmp_path / "listed.jsonl"), read_ahead=0) as feed:
        map_chunks(feed)
        os.truncate(store / "part-00000.arrow", place)
        found = list(feed.minibatches(64))
        ids = np.concatenate([m.ids for m in found])
        # The labels of a chunk follow its rows.
        starts = np.cumsum([0] + [info.sequences for info in feed.corpus.chunks()])
        assert set(range(ROWS)) - set(ids.tolist()) == set(range(starts[starts <= 2950].max(), ROWS))
        for m in found:
            np.testing.assert_array_equal(m["x"].rows[:, WIDTH // 2], m.ids)


@pytest.mark.parametrize("kind", ["store", "npy"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_file_that_is_cut_while_it_is_in_memory(store, tmp_path, shuffle, kind):
    """The page cache held all of it, so that nothing was fetched before: the same sequences are lost, and no others."""
    place, part = rows_of(store, "x")[2000], store / "part-00000.arrow"
    corpus = fl.StoreDeserializer(store)
    if kind == "npy":
        place, part = 128 + 2000 * WIDTH * 4, tmp_path / "x.npy"
        np.save(part, np.repeat(np.arange(ROWS, dtype=np.float32), WIDTH).reshape(ROWS, WIDTH))
        corpus = fl.ArrayDeserializer(x=np.load(part, mmap_mode="r"), chunk_sequences=300)
    listed, sizes = tmp_path / "listed.jsonl", [info.sequences for info in corpus.chunks()]
    options = {"seed": 1, "shuffle": shuffle, "max_sweeps": 1, "on_error": fl.Quarantine(listed)}
    with fl.MinibatchSource(corpus, **options) as feed:
        map_chunks(feed)
        before = feed.next_minibatch(64)
        feed.state_dict()  # looks at samples of the data, once
        os.truncate(part, place)
        found = [before, *feed.minibatches(64)]
    for m in found:
        np.testing.assert_array_equal(m["x"].rows[:, WIDTH // 2], m.ids)
    ids = np.concatenate([m.ids for m in found]).tolist()
    lost = [json.loads(line) for line in listed.read_text().splitlines()]
    assert sorted(ids + [line["sequence"] for line in lost]) == list(range(ROWS))
    starts = np.cumsum([0, *sizes])
    readable = 2000 if kind == "npy" else int(starts[starts <= 2000].max())  # labels follow the rows of a chunk
    assert set(range(readable)) <= set(ids)
    assert {line["path"] for line in lost} == {str(part)}
    assert all(line["byte"] >= place for line in lost)


def test_a_file_that_was_cut_before_its_chunk_is_known(store):
    """It is an error, as for mapped chunks."""
    with source(store, False, read_ahead=0) as feed:
        feed.next_minibatch(10)
        os.truncate(store / "part-00000.arrow", 5 << 20)
        with pytest.raises(fl.DataError, match="expected a file of"):
            list(feed.minibatches(64))


def test_another_file_in_the_place_of_a_mapped_one_is_not_read(store, caplog):
    """The mapped file is delivered, even if it has been unlinked."""
    with source(store, "whole") as feed:
        part = store / "part-00000.arrow"
        feed.corpus.read(0)
        os.rename(part, store / "moved")
        part.write_bytes(b"\0" * (store / "moved").stat().st_size)
        for m in feed.minibatches(100):
            np.testing.assert_array_equal(m["x"].rows[:, 3], m.ids)
    assert "cannot be opened a second time" in caplog.text


def test_no_more_descriptors_than_there_are(store, caplog, monkeypatch):
    """A file that cannot be opened again is read through its map."""
    with source(store, False) as feed:
        monkeypatch.setattr(
            _native.Fetcher,
            "add",
            lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EMFILE, os.strerror(errno.EMFILE))),
        )
        assert sequences_of(feed.minibatches(100)) == sequences_of(source(store, False).minibatches(100))
    assert "ulimit -n" in caplog.text


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_memory_is_the_window_and_what_is_read_ahead(folder, shuffle):
    """Never the data."""
    with source(folder, shuffle, read_ahead=1 << 20) as feed:
        peak = 0
        for _ in feed.minibatches(16):
            peak = max(peak, disk_of(feed).memory)
        window = {True: 0}.get(shuffle is False or shuffle == "whole", 2 << 20)
        assert 0 < peak < window + (1 << 20) + (9 << 20)
        stats = feed.stats()
        assert stats.peak_bytes <= window + (1 << 20) + (9 << 20)
        assert stats.disk_bytes >= ROWS * WIDTH * 4
        feed.seek(samples=0)
    assert stats.held_bytes == 0


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_rank_that_takes_nothing_fetches_nothing(store, shuffle):
    """A minibatch of one sequence belongs to rank 0."""
    with source(store, shuffle, read_ahead=0) as feed:
        minibatch = feed.next_minibatch(1, partition=(1, 2))
        assert (minibatch.num_sequences, minibatch.global_samples) == (0, 1)
        assert minibatch["x"].shape == (WIDTH,)
        assert (feed.stats().disk_bytes, feed.stats().held_bytes) == (0, 0)
        second = feed.next_minibatch(1, partition=(0, 2))
        np.testing.assert_array_equal(second["x"].rows[:, 0], second.ids)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("length", [None, 2])
def test_nulls_are_not_counted_among_what_is_fetched(tmp_path, shuffle, length):
    """Neither in minibatches nor in lanes."""
    rows = [[float(i), None] if i % 7 == 3 else [float(i)] * (i % 3 + 1) for i in range(200)]
    table = pa.table({"x": pa.array(rows, pa.list_(pa.float32()))})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=50)
    corpus = fl.ArrowDeserializer(tmp_path / "x.arrow")
    options = {"shuffle": shuffle, "max_sweeps": 1, "on_error": fl.Quarantine(tmp_path / "listed.jsonl")}
    with fl.MinibatchSource(corpus, truncation_length=length, **options) as feed:
        reader_of(feed).forced = True
        found = list(feed.minibatches(16))
    assert all(m.num_samples == m["x"].num_samples for m in found)
    numbers = np.sort(np.concatenate([m["x"].rows for m in found]))
    np.testing.assert_array_equal(numbers, np.concatenate([row for row in rows if None not in row]))


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("forced", [False, True])
def test_what_was_asked_for_is_counted_wherever_it_was(folder, shuffle, forced):
    with source(folder, shuffle) as feed:
        reader_of(feed).forced = forced
        assert feed.stats().asked_bytes == 0
        half = sum(feed.next_minibatch(16).num_sequences for _ in range(ROWS // 32))
        assert feed.stats().asked_bytes >= half * (WIDTH * 4 + 8)  # minibatches that are copied ahead count, too
        assert sum(minibatch.num_sequences for minibatch in feed.minibatches(16)) == ROWS - half
        assert feed.stats().asked_bytes == pytest.approx(ROWS * (WIDTH * 4 + 8), rel=0.05)
        assert (feed.stats().disk_bytes > 0) == forced


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["any", "threads"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_forked_child_reads_on(folder, shuffle, backend):
    """The child rereads what the parent's threads were reading, and both deliver the same."""
    parent, plain = source(folder, shuffle, backend), source(folder, shuffle)
    expected = sequences_of(plain.minibatches(64))
    for _ in range(3):
        parent.next_minibatch(64)

    def read_on():
        with parent:
            return sequences_of(parent.minibatches(64)) == expected[3 * 64 :]

    child = Forked(read_on)
    assert read_on()
    assert child.status() == 0


@pytest.mark.parametrize("shuffle", [False, fl.Window(bytes=2 << 20)])
def test_processes_of_one_machine_share_the_page_cache(folder, shuffle, monkeypatch):
    """Blocks are read through it, so that they come from the disk once, and dropped when they are done with."""
    added, forgotten = [], []
    add, forget = _native.Fetcher.add, _native.Staged.forget
    monkeypatch.setattr(_native.Fetcher, "add", lambda *a, **k: added.append(k["share"]) or add(*a, **k))
    monkeypatch.setattr(_native.Staged, "forget", lambda s: forgotten.append(s) or forget(s))
    parts = [source(folder, shuffle, partition=(rank, 2)) for rank in range(2)]
    whole = source(folder, shuffle, partition=(0, 1))
    for one, two, both in zip(*(p.minibatches(64) for p in parts), whole.minibatches(64), strict=True):
        assert sequences_of([one, two]) == sequences_of([both])
    assert added == [True, True, False]
    assert forgotten
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with source(folder, shuffle, partition=(1, 2)) as alone:
        alone.next_minibatch(64)
    assert added[3:] == [False]
    for feed in (*parts, whole):
        feed.close()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_jump_drops_what_was_fetched(folder, shuffle, leaves_nothing):
    """Seek back and forth, abandoning reads in flight."""
    expected = sequences_of(source(folder, shuffle, max_sweeps=3).minibatches(64))
    with source(folder, shuffle, max_sweeps=3) as feed:
        for start in (0, 2500, 64, 5990, 3001, 128):
            feed.seek(samples=start)
            got = sequences_of([feed.next_minibatch(64), feed.next_minibatch(31)])
            assert got == expected[start : start + 95]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_interrupt_while_waiting_loses_nothing(folder, shuffle, monkeypatch):
    """Ctrl-C during a wait for the disk. The same minibatch comes afterwards."""
    expected = sequences_of(source(folder, shuffle).minibatches(64))
    with source(folder, shuffle) as feed:
        staged = _native.Gatherer.stage
        calls = []

        def interrupted(*arguments):
            calls.append(1)
            if len(calls) in (2, 5):
                raise KeyboardInterrupt
            return staged(*arguments)

        monkeypatch.setattr(_native.Gatherer, "stage", interrupted)
        found = []
        while True:
            try:
                minibatch = feed.next_minibatch(64)
            except KeyboardInterrupt:
                continue
            if not minibatch:
                break
            found.append(minibatch)
        assert sequences_of(found) == expected


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_lanes_are_cut_from_what_is_fetched(tmp_path, shuffle):
    """Truncated BPTT, restored in the middle."""
    rng = np.random.default_rng(3)
    lists = [rng.normal(size=(int(n), 50)).astype(np.float32) for n in rng.integers(1, 90, 200)]
    fl.convert(fl.ArrayDeserializer(x=lists), tmp_path / "data", chunk_bytes=100_000)
    shuffle = fl.Window(chunks=2) if isinstance(shuffle, fl.Window) else shuffle
    options = {"truncation_length": 20, "shuffle": shuffle}
    plain = fl.MinibatchSource(fl.StoreDeserializer(tmp_path / "data"), seed=1, max_sweeps=1, **options)
    expected = list(plain.minibatches(80))
    with source(tmp_path / "data", **options) as feed:
        states, found = [], []
        for minibatch in feed.minibatches(80):
            found.append(minibatch)
            states.append(feed.state_dict())
    assert [m["x"].rows.tobytes() for m in found] == [m["x"].rows.tobytes() for m in expected]
    with source(tmp_path / "data", **options) as feed:
        feed.load_state_dict(states[40])
        assert feed.next_minibatch(80)["x"].rows.tobytes() == found[41]["x"].rows.tobytes()


def test_what_a_jump_needs_does_not_share_the_disk_with_what_is_read_ahead(folder, monkeypatch):
    calls = blocks_fetched(monkeypatch)
    with source(folder, False) as feed:
        feed.seek(fl.Position(0, 1500, 1500))
        feed.next_minibatch(64)
    begun = [units for kind, units in calls if kind == "begin"]
    assert len(begun) > 1
    # Everything that the first minibatch needs was read before other requests.
    before = calls[: calls.index(("begin", begun[1]))]
    assert {unit for kind, unit in before if kind == "take"} == set(begun[0])


@linux_only("a page cache that tells what it holds")
def test_the_first_minibatch_of_a_whole_shuffle_reads_no_neighbours(folder):
    """Later minibatches read them, since they stay in the page cache for the minibatches that need them."""
    with source(folder, "whole") as feed:
        reader_of(feed).forced = False
        paths = feed.corpus.paths()
        disk.evict(paths)
        if disk.resident(paths) != 0:
            pytest.skip("these files stay in the page cache: their file system is in memory, or does not tell")
        feed.seek(fl.Position(0, 100, 100))
        feed.next_minibatch(16)
        assert disk.resident(paths) < 0.1  # with neighbours, a third


def test_a_jump_in_order_requests_little_before_its_minibatch_is_delivered(folder, monkeypatch):
    """The read-ahead begins with a group or two, and goes on with the minibatch after it."""
    monkeypatch.setattr(sequential_reader, "GROUP_BYTES", 1 << 20)
    calls = blocks_fetched(monkeypatch)
    with source(folder, False) as feed:
        feed.seek(fl.Position(0, 100, 100))
        feed.next_minibatch(16)
        requests = [kind for kind, _ in calls].count("begin")
        feed.next_minibatch(16)
    assert 2 <= requests <= 3  # of the minibatch, and a group or two after it
    assert [kind for kind, _ in calls].count("begin") > requests


def test_chunks_in_memory_are_looked_up_once_a_segment(tmp_path, monkeypatch):
    """Not for each minibatch: that cost a third of a tiny one."""
    looked = lookups_in_views(monkeypatch)
    # Chunks are known one after the other, as of a large store.
    monkeypatch.setattr(sequential_reader, "_LOOK_BLOCKS", 1)
    rows = 40_000
    fl.convert(fl.ArrayDeserializer(x=np.arange(rows)), tmp_path / "store", chunk_bytes=100_000)
    with fl.MinibatchSource(fl.StoreDeserializer(tmp_path / "store"), shuffle=False, max_sweeps=1) as feed:
        found = [i for minibatch in feed.minibatches(16) for i in minibatch["x"].rows.tolist()]
    assert found == list(range(rows))
    assert 0 < len(looked) <= 8  # of at most 4 segments


@pytest.mark.parametrize("failing", [False, True])
def test_a_transform_is_begun_as_soon_as_the_next_minibatch_is_read(folder, tmp_path, failing):
    """For staged sequences. If some of them cannot be read, it waits until they are requested."""
    expected = list(source(folder, "whole", transforms=[Elsewhere()]).minibatches(64))
    bad = int(expected[20].ids[7])
    stage, got = Elsewhere(), []
    options = {"on_error": fl.Quarantine(tmp_path / "listed.jsonl")}
    with source(folder, "whole", transforms=[stage], **options) as feed:
        if failing:
            place = rows_of(folder, "x")[bad]
            fail(feed, place + 100, place + 200, errno.EIO)
        while minibatch := feed.next_minibatch(64):
            got.append(minibatch)
            while not all(getattr(copy, "done", True) for copy in copies_waiting(feed)):
                os.sched_yield()
        assert feed.stats().skipped == failing
    for i, (one, other) in enumerate(zip(expected, got, strict=True)):
        left = one.ids != bad if failing else np.ones(len(one.ids), bool)
        assert left.all() == (not failing or i != 20)
        assert other.ids.tolist() == one.ids[left].tolist()
        assert other["x"].rows.tolist() == one["x"].rows[left].tolist()
    # All but the first two, which nobody plans, and the third, which may not have been read when it is looked at.
    assert len(expected) - 3 - failing <= stage.finished <= len(expected) - 2 - failing
