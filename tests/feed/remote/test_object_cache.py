"""The cache: never too large, never wrong, shared, and left as it should be whatever happens to it."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import feedline as fl
from feedline.feed.files import remote
from feedline.feed.remote import object_cache as caches
from feedline.feed.remote.holders import CacheHolder
from feedline.feed.remote.pages import PAGE_BYTES, ObjectPages
from tests.feed.remote.conftest import delivered
from tests.feed.remote.test_faults import archive
from tests.linux import linux_only
from tests.servers.object_store import ObjectStore
from tests.servers.web import WebServer

MIB = 1 << 20


def rows(seed: int, groups: int = 20, group_bytes: int = 200_000) -> bytes:
    """A Parquet file of groups of rows of random bytes: chunks that are read by themselves."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, file = np.random.default_rng(seed), io.BytesIO()
    values = [rng.bytes(group_bytes // 4) for _ in range(4 * groups)]
    pq.write_table(pa.table({"x": values}), file, row_group_size=4, compression=None, use_dictionary=False)
    return file.getvalue()


FILES = 3
TOTAL = sum(len(rows(seed)) for seed in range(FILES))


@pytest.fixture
def small(monkeypatch):
    """Allow caches of a megabyte."""
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", MIB)


@pytest.fixture
def filled(store, tmp_path):
    """Put three Parquet files into the bucket. Return their sequences from a disk."""
    (tmp_path / "local").mkdir()
    for seed in range(FILES):
        store.put(f"b/{seed}.parquet", rows(seed))
        (tmp_path / "local" / f"{seed}.parquet").write_bytes(rows(seed))
    return delivered(fl.open_corpus(tmp_path / "local"), max_sweeps=4, shuffle=fl.Window(chunks=4))


def on_disk(folder) -> int:
    """Bytes of all files at one moment: chunks are fetched meanwhile, and others dropped for them before."""
    before = None
    while (now := {file: file.stat().st_blocks for file in folder.glob("objects/*/data")}) != before:
        before = now
    return 512 * sum(now.values())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_no_more_is_kept_than_allowed_and_no_more_fetched_than_needed(store, opened, filled, tmp_path, share):
    """From the second sweep on, what cannot be kept is fetched, and nothing else: no order of dropping does better."""
    budget = int(share * TOTAL)
    corpus = opened("*.parquet", cache_bytes=budget)
    source = fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=4, read_ahead=MIB)
    got, fetched = [], []
    for _ in range(4):
        store.reset()
        for minibatch in source.minibatches(7, until=fl.sweeps(1)):
            got.append(minibatch.ids.tolist())
            assert corpus.placeholders.cache.kept_bytes <= budget
            assert on_disk(tmp_path / "cache") <= budget
        fetched.append(store.counters().sent_bytes["GET"] / TOTAL)
    assert [i for part in got for i in part] == [i for ids, _ in filled for i in ids]
    # Chunks of 200 KB begin and end within pages, so that up to a twelfth more is fetched.
    assert sum(fetched[1:]) <= 3 * (1.07 * (1 - share) + 0.02)
    assert sum(fetched[1:]) >= 3 * (1 - share) - 0.1


@pytest.mark.usefixtures("small")
def test_what_is_delivered_does_not_depend_on_the_cache(opened, filled, tmp_path):
    for budget in (MIB, 3 * MIB, 1 << 30):
        corpus = opened("*.parquet", cache=tmp_path / str(budget), cache_bytes=budget)
        assert delivered(corpus, max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled


def test_a_full_cache_is_read_without_a_request(store, opened, filled):
    assert delivered(opened("*.parquet"), max_sweeps=1)
    store.reset()
    corpus = opened("*.parquet")
    assert delivered(corpus, max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled
    assert store.counters().requests["GET"] == 0


def test_damaged_pages_are_fetched_again(store, opened, filled, tmp_path, caplog):
    delivered(opened("*.parquet"), max_sweeps=1)  # which closes it, as a process trusts pages that it has written
    for data in (tmp_path / "cache").glob("objects/*/data"):
        with open(data, "r+b") as file:
            for at in range(100, data.stat().st_size, 3 * PAGE_BYTES):
                file.seek(at)
                file.write(b"damage")
    store.reset()
    assert delivered(opened("*.parquet"), max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled
    assert 0.2 * TOTAL < store.counters().sent_bytes["GET"] < 0.7 * TOTAL
    assert "damaged pages in the cache" in caplog.text


def test_an_object_replaced_by_one_of_the_same_size_is_another(store, opened):
    store.put("b/a.jsonl", b'{"x": 1}\n')
    before = delivered(opened("a.jsonl"), max_sweeps=1)
    store.put("b/a.jsonl", b'{"x": 2}\n')
    after = delivered(opened("a.jsonl"), max_sweeps=1)
    assert [values for _, values in (*before, *after)] == [{"x": [[1]]}, {"x": [[2]]}]


def test_objects_that_nobody_uses_make_room_first(store, opened, filled, tmp_path, monkeypatch):
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", MIB)
    store.put("b/old.parquet", rows(9))
    old = opened("old.parquet", cache_bytes=TOTAL)
    delivered(old, max_sweeps=1)
    assert len(list((tmp_path / "cache").glob("objects/*/data"))) == 1
    old.close()
    corpus = opened("[0-9].parquet", cache_bytes=TOTAL + MIB)
    assert delivered(corpus, max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled
    assert on_disk(tmp_path / "cache") <= TOTAL + MIB
    about = [json.loads(one.read_text())["url"] for one in (tmp_path / "cache").glob("objects/*/object.json")]
    assert sorted(about) == [f"s3://b/{seed}.parquet" for seed in range(FILES)]


def test_a_cache_that_cannot_be_written_is_refused(opened, filled, tmp_path):
    if os.geteuid() == 0:
        (tmp_path / "cache").write_text("a file")
    else:
        (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(fl.DataError, match="expected a folder to keep parts of objects in"):
        opened("*.parquet")


def test_a_cache_that_others_can_write_to_is_refused(opened, filled, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(fl.DataError, match="only you can write"):
        opened("*.parquet")


def test_a_cache_that_is_too_small_is_refused(opened, filled):
    with pytest.raises(ValueError, match="cache_bytes of at least 67108864"):
        opened("*.parquet", cache_bytes=1 << 20)


def test_a_full_disk_keeps_what_it_can_and_delivers_all(mounted, store, opened, filled, caplog):
    folder = mounted("size=3m")
    corpus = opened("*.parquet", cache=folder / "cache", cache_bytes=1 << 30)
    with fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=4) as source:
        assert [minibatch.ids.tolist() for minibatch in source.minibatches(7)] == [ids for ids, _ in filled]
        assert "bytes are kept: No space left" in caplog.text
        assert MIB < corpus.placeholders.cache.kept_bytes < 3 * MIB


@linux_only("files that are opened again by their descriptors")
def test_a_cache_deleted_under_a_run_is_missed_by_nobody(store, opened, filled, tmp_path):
    corpus = opened("*.parquet")
    source = fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=4)
    got = [source.next_minibatch(7).ids.tolist()]
    shutil.rmtree(tmp_path / "cache")
    got += [minibatch.ids.tolist() for minibatch in source.minibatches(7)]
    assert got == [ids for ids, _ in filled]


@pytest.mark.usefixtures("small")
def test_an_archive_whose_index_is_known_is_opened_although_its_beginning_cannot_be_kept(store, opened, tmp_path):
    store.put("b/a.tar", archive(100, 20_000))
    expected = delivered(opened("a.tar"))  # which closes it
    (place,) = (tmp_path / "cache" / "objects").iterdir()
    pages = ObjectPages(place, (place / "data").stat().st_size, {})
    pages.drop(0, 10)
    pages.close()
    assert delivered(opened("a.tar", cache_bytes=MIB)) == expected


def test_a_kill_between_table_and_count_leaves_too_large_a_count(opened, filled, tmp_path, monkeypatch):
    enter, found = ObjectPages.mark, []

    def enter_and_die(pages, first, sums):
        enter(pages, first, sums)
        found.append(len(sums))
        raise MemoryError("killed")

    monkeypatch.setattr(ObjectPages, "mark", enter_and_die)
    with pytest.raises(MemoryError, match="killed"):
        opened("0.parquet")
    assert np.fromfile(tmp_path / "cache" / "state", np.int64)[2] == found[0] > 0


@pytest.mark.parametrize("wrong", [0, 1 << 20])
def test_a_wrong_count_is_corrected_by_the_next_opening_of_a_shared_cache(opened, filled, tmp_path, wrong):
    corpus = opened("*.parquet")
    delivered(corpus, max_sweeps=1)  # which closes it
    state = np.fromfile(tmp_path / "cache" / "state", np.int64)
    kept, state[2] = state[2], wrong
    state.tofile(tmp_path / "cache" / "state")
    other = CacheHolder(tmp_path / "cache" / "holders")
    assert opened("*.parquet").placeholders.cache.kept_bytes == kept * PAGE_BYTES > 0
    other.close()


def test_a_kill_while_leaving_leaves_nothing_for_good(opened, filled, tmp_path, monkeypatch):
    holders, unlink = tmp_path / "cache" / "holders", Path.unlink
    corpus = opened("0.parquet")

    def unlink_one(path, *_):
        if len(list(holders.iterdir())) == 2:
            unlink(path)

    monkeypatch.setattr(Path, "unlink", unlink_one)
    corpus.close()  # killed after the first of its two files was removed
    monkeypatch.undo()
    assert len(list(holders.iterdir())) == 1
    opened("0.parquet").close()
    assert list(holders.iterdir()) == []


# ---- several processes --------------------------------------------------------------------------------


def run(url, options, folder, budget, index, count, results, together):
    caches.MIN_CACHE_BYTES = MIB
    corpus = fl.open_corpus(url, remote=fl.Remote(cache=folder, cache_bytes=budget, storage_options=options))
    source = fl.MinibatchSource(
        corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=4, partition=(index, count), read_ahead=MIB
    )
    os.environ["LOCAL_WORLD_SIZE"] = str(count)
    ids = []
    for minibatch in source.minibatches(7):
        ids.append(minibatch.ids.tolist())
        together.wait(60)  # as ranks do that exchange gradients
    results.put((index, ids))
    source.close()


@pytest.mark.parametrize(("budget", "most"), [(1 << 30, 1.02), (TOTAL // 2, 3.5)])
def test_processes_of_a_node_fetch_together(store, filled, tmp_path, budget, most):
    """One process fetches, others read. They deliver the same as one process alone."""
    context = multiprocessing.get_context("spawn")
    results, together = context.SimpleQueue(), context.Barrier(3)
    given = ("s3://b/*.parquet", store.s3(), str(tmp_path / "cache"), budget)
    processes = [context.Process(target=run, args=(*given, i, 3, results, together)) for i in range(3)]
    for process in processes:
        process.start()
    parts = {}
    while len(parts) < len(processes):
        assert all(process.exitcode in (None, 0) for process in processes)
        if results.empty():
            time.sleep(0.1)
        else:
            parts.update([results.get()])
    for process in processes:
        process.join(30)
    whole = [sorted(sum(ids, [])) for ids in zip(*(parts[i] for i in range(3)), strict=True)]
    assert whole == [sorted(ids) for ids, _ in filled]
    assert store.counters().sent_bytes["GET"] <= most * TOTAL
    assert on_disk(tmp_path / "cache") <= budget


FETCHER = """
import sys, json
import feedline as fl
from feedline.feed.remote import object_cache as caches
caches.MIN_CACHE_BYTES = 1 << 20
url, options, folder, budget = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
corpus = fl.open_corpus(url, remote=fl.Remote(folder, budget, options))
source = fl.MinibatchSource(corpus, seed=3, shuffle=fl.Window(chunks=4), max_sweeps=4)
print("begun", flush=True)
for minibatch in source.minibatches(7):
    pass
"""


def test_killed_at_any_moment_it_leaves_no_wrong_page_and_fetches_none_twice(tmp_path, filled):
    """Each time it continues, complete pages are not fetched again. At the end all pages are right."""
    rng = np.random.default_rng(5)
    with ObjectStore(bytes_per_second=30e6) as slow:
        for seed in range(FILES):
            slow.put(f"b/{seed}.parquet", rows(seed))
        command = [sys.executable, "-c", FETCHER, "s3://b/*.parquet", json.dumps(slow.s3()), str(tmp_path / "cache")]
        kept = 0
        for _ in range(6):
            slow.reset()
            process = subprocess.Popen([*command, str(1 << 30)], stdout=subprocess.PIPE)
            process.stdout.readline()
            time.sleep(float(rng.uniform(0, 0.25)))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            for place in (tmp_path / "cache").glob("objects/*"):
                pages = ObjectPages(place, (place / "data").stat().st_size, {})
                assert pages.damaged(0, pages.count) == []
                pages.close()
            now = sum(
                int(np.count_nonzero(np.fromfile(place, np.uint32)))
                for place in (tmp_path / "cache").glob("objects/*/pages")
            )
            assert now >= kept
            # Sent pages are in the cache, except those in flight.
            assert slow.counters().sent_bytes["GET"] <= (now - kept) * PAGE_BYTES + 40 * 210_000
            kept = now
        slow.set(bytes_per_second=None)
        slow.reset()
        with_cache = fl.open_corpus(
            "s3://b/*.parquet", remote=fl.Remote(cache=tmp_path / "cache", storage_options=slow.s3())
        )
        assert delivered(with_cache, max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled
        assert slow.counters().sent_bytes["GET"] <= TOTAL - kept * PAGE_BYTES + FILES * PAGE_BYTES
        assert with_cache.placeholders.cache.kept_bytes <= TOTAL + FILES * PAGE_BYTES
        with_cache.close()


def test_two_corpora_over_one_object_keep_it_while_either_is_open(store, opened, filled, monkeypatch):
    monkeypatch.setattr(caches, "MIN_CACHE_BYTES", MIB)
    first, second = opened("0.parquet", cache_bytes=2 * TOTAL), opened("0.parquet", cache_bytes=2 * TOTAL)
    delivered(second, max_sweeps=1)  # which closes it
    cache = first.placeholders.cache
    kept = cache.kept_bytes
    assert kept >= len(rows(0))
    assert cache.reserve(cache.budget_bytes // PAGE_BYTES, (), must=True) is None
    assert cache.kept_bytes == kept
    first.close()
    again = opened("1.parquet", cache_bytes=2 * TOTAL)
    room = again.placeholders.cache.reserve(2 * TOTAL // PAGE_BYTES - 100, (), must=False)
    assert room is not None
    assert again.placeholders.cache.kept_bytes < kept
    room.close()


@pytest.mark.usefixtures("small")
def test_an_object_let_go_twice_leaves_others_what_they_hold(opened, filled):
    """As one is that could not be fetched whole: at once, and with its corpus."""
    corpus = opened("0.parquet", cache_bytes=TOTAL)
    (remote,), cache = corpus.placeholders.objects.values(), corpus.placeholders.cache
    remote.unpin()
    held = remote.hold(0, MIB)
    remote.unpin()
    assert cache.reserve(cache.budget_bytes // PAGE_BYTES, (), must=True) is None
    assert remote.has(0, MIB)
    assert not remote.has(0, remote.size)  # what nobody holds was dropped
    held.release()


# ---- files, and links ---------------------------------------------------------------------------------


def modes(folder) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mode & 0o777 for path in folder.rglob("*")}


def test_nothing_is_made_for_others_to_write(store, options, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store.put("b/x.jsonl", b'{"i": 1}\n' * 100)
    before = os.umask(0)
    try:
        corpus = fl.open_corpus("s3://b/x.jsonl", streams={"i": fl.Stream((), "int64")}, remote=fl.Remote(**options))
        assert delivered(corpus)
        found = modes(tmp_path)
        corpus.close()
    finally:
        os.umask(before)
    assert len(found) > 10
    assert found["home/.cache"] == 0o755
    assert {name: oct(mode) for name, mode in found.items() if mode & ~0o755} == {}


@pytest.mark.parametrize("home", [None, "/dev/null"])
def test_a_user_without_a_home_has_a_folder_for_itself(store, options, tmp_path, monkeypatch, home):
    """Or with one that it cannot write to, as container engines set HOME=/ for a user id that they do not know."""

    def no_home(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is None:
        monkeypatch.setattr(Path, "home", classmethod(no_home))
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store.put("b/x.jsonl", b'{"i": 1}\n' * 100)
    corpus = fl.open_corpus("s3://b/x.jsonl", streams={"i": fl.Stream((), "int64")}, remote=fl.Remote(**options))
    assert delivered(corpus)
    assert modes(tmp_path)[f"feedline-{os.geteuid()}"] == 0o700


@pytest.mark.parametrize("what", ["objects", "holders", "names", "lock", "state"])
def test_a_link_in_the_place_of_a_part_of_the_cache_is_refused(opened, filled, tmp_path, what):
    delivered(opened("*.parquet"), max_sweeps=1)
    opened("*.parquet").close()
    (tmp_path / "cache" / what).rename(tmp_path / "elsewhere")
    (tmp_path / "cache" / what).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(fl.DataError, match="expected a folder to keep parts of objects in"):
        opened("*.parquet")


@pytest.mark.parametrize("what", ["data", "pages", ""])
@pytest.mark.parametrize("used", [False, True])
def test_a_link_in_the_place_of_an_object_harms_nothing(opened, filled, tmp_path, what, used):
    """Not even if it leads to a user's file. A process that has the cache alone fetches again."""
    delivered(opened("*.parquet"), max_sweeps=1)
    opened("*.parquet").close()
    (tmp_path / "dear").mkdir()
    (tmp_path / "dear" / "data").write_bytes(b"dear")
    (tmp_path / "dear" / "pages").write_bytes(b"dear")
    for place in (tmp_path / "cache" / "objects").iterdir():
        target = tmp_path / "dear" / what
        if what:
            (place / what).unlink()
            (place / what).symlink_to(target)
        else:
            shutil.rmtree(place)
            place.symlink_to(target)
    other = CacheHolder(tmp_path / "cache" / "holders") if used else None
    if used:
        with pytest.raises(fl.DataError, match="got a link"):
            delivered(opened("*.parquet"), max_sweeps=4, shuffle=fl.Window(chunks=4))
        other.close()
    assert delivered(opened("*.parquet"), max_sweeps=4, shuffle=fl.Window(chunks=4)) == filled
    assert (tmp_path / "dear" / "data").read_bytes() == (tmp_path / "dear" / "pages").read_bytes() == b"dear"


# ---- threads ------------------------------------------------------------------------------------------


def test_a_corpus_that_is_closed_ends_no_look_up_of_another_thread(tmp_path):
    """The last one ends the thread of all requests, which may be at work for one that is being opened."""
    open_ones = []
    with WebServer({"/a.jsonl": b'{"i": 1}\n', "/b.jsonl": b'{"i": 2}\n'}) as web:
        web.before = lambda asked: open_ones.pop().close() if asked.path == "/b.jsonl" and open_ones else None
        streams, remote = {"i": fl.Stream((), "int64")}, fl.Remote(tmp_path / "cache", deadline_s=5.0)
        open_ones.append(fl.open_corpus(f"{web.url}/a.jsonl", streams=streams, remote=remote))
        corpus = fl.open_corpus(f"{web.url}/b.jsonl", streams=streams, remote=remote)
        assert not open_ones
        assert len(delivered(corpus, max_sweeps=1)) == 1
        corpus.close()


def test_a_cache_is_not_ended_while_a_corpus_in_it_is_being_opened(store, opened, monkeypatch):
    for name in "ab":
        store.put(f"b/{name}.jsonl", b'{"i": 1}\n')
    register, first = remote.register, opened("a.jsonl", i=fl.Stream((), "int64"))

    def register_late(objects):
        first.close()
        register(objects)

    monkeypatch.setattr(remote, "register", register_late)
    assert len(delivered(opened("b.jsonl", i=fl.Stream((), "int64")), max_sweeps=1)) == 1


@pytest.mark.parametrize("name", ["x" * 251, "\u00fc" * 125])
def test_an_object_with_a_long_name_is_put_in_the_place_of_its_placeholder(store, opened, name):
    store.put(f"b/{name}.npy", npy())
    corpus = opened(f"{name}.npy")
    for path, found in corpus.placeholders.objects.items():
        found.materialize(path)
        assert Path(path).read_bytes() == npy()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(10, dtype=np.float32))
    return file.getvalue()
