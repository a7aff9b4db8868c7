"""Conversions interrupted or killed: the next call continues, and the store has the bytes of one that was not."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.protocol import Unsized, is_sized, num_chunks
from tests.effort import examples, stride
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.feed.test_convert import Counted, Torn
from tests.feed.test_shuffling import Mixed, contents, numbers
from tests.warm import run

WAYS = {
    "in order": {"chunk_bytes": 1000, "part_bytes": 6000},
    "compressed": {"chunk_bytes": 1000, "part_bytes": 3000, "compression": "auto"},
    "by threads": {"chunk_bytes": 1000, "part_bytes": 6000, "jobs": 3},
    "shuffled": {"shuffle": 3, "memory": 20_000, "chunk_bytes": 4000},
}


class Interrupted(BaseException):
    """Planted."""


class Stopping(fl.Deserializer):
    """A corpus that raises at the n-th chunk that is read, and records the chunks."""

    def __init__(self, corpus, stop=None):
        self._corpus, self._stop, self.seen = corpus, stop, []
        self.schema, self.name = corpus.schema, corpus.name

    def chunks(self):
        return self._corpus.chunks()

    def num_chunks(self):
        return num_chunks(self._corpus)

    def capability(self, kind):
        return self if kind is Unsized and not is_sized(self._corpus) else None

    def digest(self):
        return self._corpus.digest()

    def read(self, chunk):
        if len(self.seen) == self._stop:
            raise Interrupted
        self.seen.append(chunk)
        return self._corpus.read(chunk)


@given(
    data=corpora(),
    step=st.integers(1, 4),
    stops=st.lists(st.integers(0, 8), max_size=3),
    part_bytes=st.sampled_from([1, 300, 1000]),
    compression=st.sampled_from([None, "zstd", "auto"]),
    jobs=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
@settings(deadline=None, max_examples=examples(20))
def test_finished_work_is_not_repeated(tmp_path_factory, data, step, stops, part_bytes, compression, jobs):
    """Stopped at any chunk, several times, with any number of threads: the same bytes."""
    folder = tmp_path_factory.mktemp("unfinished")
    corpus = fl.ArrayDeserializer(data, chunk_sequences=step)
    how = {"chunk_bytes": 100, "part_bytes": part_bytes, "compression": compression}
    fl.convert(corpus, folder / "whole", **how)
    assert_same(everything(StoreDeserializer(folder / "whole", verify=True)), data)
    complete = 0
    for stop, threads in zip([*stops, None], jobs, strict=False):
        reading = Stopping(corpus, stop)
        first = _chunks_complete(folder / ".s.converting")
        with contextlib.suppress(Interrupted):
            fl.convert(reading, folder / "s", jobs=threads, **how)
        assert min(reading.seen, default=first) >= first >= complete
        complete = first
        if (folder / "s").exists():
            break
    assert contents(folder / "s") == contents(folder / "whole")
    assert sorted(os.listdir(folder)) == ["s", "whole"]


def _chunks_complete(work):

    records = sorted(work.glob("part-*.json"))
    return json.loads(records[-1].read_text())[-1][0] if records else 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop", range(3, 45, 7))
def test_interrupted_at_any_file_it_goes_on_to_the_same_bytes(tmp_path, way, stop, monkeypatch):
    """Stopped at its n-th file, then called again: the same store, and nothing done twice."""
    how = WAYS[way]
    fl.convert(numbers(), tmp_path / "whole", **how)
    real, calls = os.fsync, 0

    def fsync(file):
        nonlocal calls
        calls += 1
        if calls == stop:
            real(file)
            raise Interrupted
        real(file)

    work = tmp_path / ".s.converting"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(Interrupted) as caught:
            fl.convert(numbers(), tmp_path / "s", **how)
    done = list(work.glob("*-*.json"))
    assert work.exists() is bool(done)
    notes = getattr(caught.value, "__notes__", [])
    assert [f"{work}: call again to continue" in note for note in notes] == [True] * bool(done)
    corpus = Stopping(numbers())
    fl.convert(corpus, tmp_path / "s", **how)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")
    if corpus.seen:
        assert (min(corpus.seen) > 0) is (len(done) > 0)
    assert sorted(os.listdir(tmp_path)) == ["s", "whole"]


DYING = """
import os, sys
import numpy as np
import feedline as fl
from tests.forked import Forked, die

HEARD = {"os.remove", "os.rmdir", "os.rename", "os.link", "os.mkdir", "open"}

def convert(folder, other, dies=None):
    left = dies
    def heard(event, arguments):
        nonlocal left
        if left is not None and event in HEARD:
            left -= 1
            if left < 0:
                die(9)
    data = fl.ArrayDeserializer(x=np.arange(60), chunk_sequences=20)
    how = {"shuffle": 4 if other else 3, "memory": 1000} if shuffled else {"part_bytes": 100 + other}
    if dies is not None:
        sys.addaudithook(heard)
    fl.convert(data, folder, chunk_bytes=80, overwrite=True, **how)

def forked(*arguments):
    return Forked(lambda: [convert(*arguments)]).status()

def contents(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}

base, stride, shuffled = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shuffled"
os.mkdir(base)
convert(base + "/whole", False)
expected, dies, code = contents(base + "/whole"), 0, 9
while code == 9:
    convert(base + "/s", True)
    if dies % 2:  # work under another plan is in the way
        forked(base + "/s", True, 60)
    code = forked(base + "/s", False, dies)
    assert code in (0, 9), code
    assert forked(base + "/s", False, dies // 2) in (0, 9)
    assert forked(base + "/s", False) == 0, dies
    assert contents(base + "/s") == expected, dies
    assert sorted(os.listdir(base)) == ["s", "whole"], (dies, os.listdir(base))
    dies += stride
print(dies)
"""


@pytest.mark.parametrize("way", ["in order", "shuffled"])
def test_killed_at_every_file_it_goes_on_to_the_same_bytes(tmp_path, way):
    """The process ends at files that it opens, links, renames or removes, twice in a row, with a store replaced."""
    arguments = [tmp_path / "d", str(stride(3)), way]
    ran = run(["-c", DYING, *arguments], stdout=subprocess.PIPE, text=True, timeout=200)
    assert ran.returncode == 0
    assert int(ran.stdout) > 40


@pytest.mark.parametrize("way", WAYS)
def test_two_at_once_are_refused(tmp_path, way):
    """The second gets an error. The first is not disturbed."""
    (tmp_path / ".s.converting").mkdir()
    with open(tmp_path / ".s.converting" / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(fl.DataError, match="no other process to convert into the same store"):
            fl.convert(numbers(), tmp_path / "s", **WAYS[way])
    fl.convert(numbers(), tmp_path / "s", **WAYS[way])


def interrupted(corpus, path, stop, **how):
    with pytest.raises(Interrupted):
        fl.convert(Stopping(corpus, stop), path, **how)


def test_what_was_skipped_is_counted_once(tmp_path):
    """Also by a call that continues. Corpora need not know their sizes."""
    how = {"on_error": "skip", "chunk_bytes": 8, "part_bytes": 1}
    for corpus, name in ((Torn(), "s"), (Counted(), "t")):
        interrupted(corpus, tmp_path / name, 2, **how)
        summary = fl.convert(corpus, tmp_path / name, **how)
        assert (summary.sequences, summary.skipped) == (10, 2)
        x = everything(StoreDeserializer(tmp_path / name))["x"].rows.ravel().tolist()
        assert x == [i for i in range(12) if i not in (1, 6)]


class StopAt:
    """Raises after a number of chunks."""

    def __init__(self, count):
        self.left = count

    def __call__(self, done, total):
        self.left -= 1
        if self.left == 0:
            raise Interrupted


def test_work_with_another_list_is_not_continued(tmp_path):
    """Neither of the corpus nor of a part of a join."""
    (tmp_path / "a.ctf").write_text("".join(f"{i} |x {i}\n" for i in range(400)))
    (tmp_path / "b.ctf").write_text("".join(f"{i} |y {i}\n" for i in reversed(range(400))))
    a, b = (fl.CTFDeserializer(tmp_path / f"{n}.ctf", {s: fl.Stream(1)}, chunk_size=500) for n, s in ("ax", "by"))
    for name, number in (("first", 1), ("last", 390)):
        (tmp_path / name).write_text(json.dumps({"sequence": number}) + "\n")
    how = {"chunk_bytes": 80, "part_bytes": 400}
    skipping = {(c, name): fl.Skipping(c, tmp_path / name) for c in (a, b) for name in ("first", "last")}

    def join(*parts):
        return fl.Join(*parts, cache=False)

    for one, other, left_out in (
        (skipping[a, "first"], skipping[a, "last"], 390),
        (join(skipping[a, "first"], b), join(skipping[a, "last"], b), 390),
        (join(b, skipping[a, "first"]), join(b, skipping[a, "last"]), 390),
        (join(a, skipping[b, "first"]), join(a, skipping[b, "last"]), 9),
        (join(skipping[a, "last"], b), join(a, skipping[b, "last"]), 9),
        (fl.Skipping(join(skipping[a, "last"], b), []), join(a, b), None),
    ):
        with pytest.raises(Interrupted):
            fl.convert(one, tmp_path / "s", overwrite=True, progress=StopAt(6), **how)
        fl.convert(other, tmp_path / "s", overwrite=True, **how)
        rows = everything(StoreDeserializer(tmp_path / "s"))["x"].rows.ravel().tolist()
        assert sorted(rows) == [i for i in range(400) if i != left_out]


@pytest.mark.parametrize("chunks", [12, 13])
@pytest.mark.parametrize("memory", [1, 100, 300])
def test_a_shuffle_counts_what_was_skipped_once(tmp_path, chunks, memory):
    """Wherever its first pass stops, and if nothing can be read of its last chunks."""
    corpus, how = Damaged(chunks), {"on_error": "skip", "shuffle": 3, "memory": memory}
    for stop in (None, *range(chunks)):
        if stop is not None:
            interrupted(corpus, tmp_path / "s", stop, overwrite=True, **how)
        summary = fl.convert(corpus, tmp_path / "s", overwrite=True, **how)
        assert summary.skipped == sum(len(corpus.read(i).errors) for i in range(chunks))
        assert summary.sequences + summary.skipped == 4 * chunks


@pytest.mark.parametrize("way", [{}, {"shuffle": 3, "memory": 1}])
def test_errors_name_the_sequence_of_the_corpus(tmp_path, way):
    """Also errors of a call that continues."""
    corpus, how = Damaged(4, first=2), {"chunk_bytes": 8, "part_bytes": 1, **way}
    for _ in range(2):
        with pytest.raises(fl.DataError, match="damaged") as caught:
            fl.convert(corpus, tmp_path / "s", **how)
        assert caught.value.sequence == 8


class Damaged(fl.Deserializer):
    """Chunks of four sequences. From number ``first`` on, the first 1, 2, 3, 4, 1 ... of them are unreadable."""

    schema = fl.Schema({"x": fl.Stream((), "int64")})

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def chunks(self):
        return [fl.ChunkInfo(4, 4, 32)] * self.count

    def read(self, chunk):
        bad = (chunk - self.first) % 4 + 1 if chunk >= self.first else 0
        values = {"x": fl.Value.from_dense(np.arange(4 * chunk, 4 * chunk + 4))}
        return fl.Chunk(self.schema, values, {i: fl.DataError("damaged") for i in range(bad)})

    def digest(self):
        return "00"


@pytest.mark.parametrize("stop", [5, 20, 30])
def test_a_stream_that_is_ragged_in_later_parts_only(tmp_path, stop):
    how = {"chunk_bytes": 80, "part_bytes": 500}
    fl.convert(Mixed(), tmp_path / "whole", **how)
    interrupted(Mixed(), tmp_path / "s", stop, **how)
    fl.convert(Mixed(), tmp_path / "s", **how)
    assert contents(tmp_path / "s") == contents(tmp_path / "whole")


def test_work_on_something_else_is_not_continued(tmp_path):
    """Other chunks of the same text, other columns for a stream, another size of parts."""
    (tmp_path / "a.ctf").write_text("".join(f"|a {i} |b {-i}\n" for i in range(400)))

    def corpus(field="a", chunk_size=500):
        return fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1, field=field), chunk_size=chunk_size)

    how = {"chunk_bytes": 80, "part_bytes": 400}
    for number, (other, options) in enumerate(
        [(corpus("b"), how), (corpus(chunk_size=530), how), (corpus(), how | {"part_bytes": 401})]
    ):
        assert len(other.chunks()) == len(corpus().chunks())
        interrupted(corpus(), tmp_path / "s", 6, overwrite=True, **how)
        fl.convert(other, tmp_path / "s", overwrite=True, **options)
        fl.convert(other, tmp_path / f"whole{number}", **options)
        assert contents(tmp_path / "s") == contents(tmp_path / f"whole{number}")


def test_records_without_their_files_are_not_believed(tmp_path):
    """A part that is gone or cut, lengths that are gone: those parts are written again."""
    data = {"x": fl.Value.from_sequences([np.arange(i % 5) for i in range(60)])}
    corpus, how = fl.ArrayDeserializer(data, chunk_sequences=4), {"chunk_bytes": 80, "part_bytes": 300}
    fl.convert(corpus, tmp_path / "whole", **how)
    for damage in (
        lambda store: os.unlink(store / "part-00001.arrow"),
        lambda store: os.truncate(store / "part-00000.arrow", 100),
        lambda store: os.unlink(store / "lengths-0.npy"),
        lambda store: os.truncate(store / "lengths-0.npy", 140),
    ):
        interrupted(corpus, tmp_path / "s", 12, overwrite=True, **how)
        damage(tmp_path / ".s.converting" / "store")
        fl.convert(corpus, tmp_path / "s", overwrite=True, **how)
        assert contents(tmp_path / "s") == contents(tmp_path / "whole")


class Meeting(fl.Deserializer):
    """Chunks that are only read two at a time."""

    schema = fl.Schema({"x": fl.Stream((), "int64")})

    def __init__(self):
        self.barrier = threading.Barrier(2)
        self.held = self.most = 0

    def chunks(self):
        return [fl.ChunkInfo(10, 10, 80)] * 20

    def read(self, chunk):
        self.barrier.wait(timeout=60)
        return fl.Chunk(self.schema, {"x": fl.Value.from_dense(np.arange(10 * chunk, 10 * chunk + 10))})

    def digest(self):
        return "00"


def test_jobs_read_at_the_same_time(tmp_path):
    seen = []
    fl.convert(Meeting(), tmp_path / "s", jobs=2, progress=lambda *at: seen.append(at))
    assert everything(StoreDeserializer(tmp_path / "s"))["x"].rows.tolist() == list(range(200))
    assert seen == [(80 * i, 1600) for i in range(1, 21)]
