"""The source as a user meets it: arguments, limits, transforms, threads, Ctrl-C, fork, torch.distributed."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import textwrap
import threading
import time

import numpy as np
import pytest

import feedline as fl
from feedline.feed.protocol import Unsized
from feedline.testing import bytes_digest, sequences_of
from tests.laws.corpora import CountedCorpus
from tests.warm import Python, run


def source(lengths=(1, 2, 3) * 20, chunks=(20, 20, 20), **settings):
    return fl.MinibatchSource(CountedCorpus(lengths, chunks), **settings)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"seed": 1.5}, ValueError),
        ({"order": "random"}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"shuffle": 3}, TypeError),
        ({"partition": (2, 2)}, ValueError),
        ({"partition": 3}, ValueError),
        ({"max_sweeps": -1}, ValueError),
        ({"threads": 0}, ValueError),
        ({"order": "cntk", "shuffle": fl.Window(bytes=10)}, ValueError),
    ],
)
def test_arguments_are_checked(settings, error):
    """Errors of wrong arguments have the expected values."""
    with pytest.raises(error, match="expected"):
        source(**settings)


def test_windows_are_checked():
    """Exactly one measure, at least one."""
    for wrong in ({}, {"chunks": 1, "bytes": 2}, {"samples": 0}, {"bytes": True}):
        with pytest.raises(ValueError, match="expected"):
            fl.Window(**wrong)


def test_what_is_no_corpus_is_refused():
    """A path is not a deserializer."""
    with pytest.raises(TypeError, match=r"Deserializer.*fl\.open_corpus\('train\.ctf'\)"):
        fl.MinibatchSource("train.ctf")
    with pytest.raises(fl.DataError, match="at least one sequence"):
        fl.MinibatchSource(CountedCorpus([], [0]))
    with pytest.raises(ValueError, match="minibatch size of at least 1"):
        source().next_minibatch(0)
    with pytest.raises(TypeError, match=r"fl\.minibatches\(3\)"):
        source().minibatches(5, until=3)


def test_iteration_and_spans():
    """`minibatches` continues from the position, `until` counts from there, and iterating uses size 256."""
    feed = source()
    assert sum(m.global_samples for m in feed.minibatches(10, until=fl.sweeps(1))) >= 120
    sweep = feed.position.sweep
    assert len(list(feed.minibatches(10, until=fl.minibatches(3)))) == 3
    assert sum(m.global_samples for m in feed.minibatches(7, until=fl.samples(30))) in range(30, 38)
    assert list(feed.minibatches(7, until=fl.samples(0))) == []
    assert feed.position.sweep in (sweep, sweep + 1)
    assert [m.num_samples for m in source(max_sweeps=2)] == [240]
    ended = source(max_sweeps=1)
    list(ended)
    assert [bool(ended.next_minibatch(5)) for _ in range(3)] == [False] * 3
    assert isinstance(feed, fl.Feed)


def test_label_samples_are_counted_by_the_trainer():
    """The second counter is saved in the state and restored."""
    feed = source()
    feed.next_minibatch(10)
    feed.count_label_samples(4)
    feed.next_minibatch(10)
    feed.count_label_samples(3)
    assert feed.position.label_samples == 7
    again = source()
    again.load_state_dict(feed.state_dict())
    assert again.position == feed.position


def noise(sequence, rng):
    """A random transform that changes a shape."""
    x = sequence["x"]
    return {"x": np.concatenate([x, rng.normal(size=(len(x), 1))], axis=1).astype("f4")}


def doubled(sequence):
    """A plain transform."""
    return {"x": sequence["x"] * 2}


def test_random_transforms_are_keyed_by_position():
    """The same numbers for any minibatch size, partition and restart, others in the next sweep and in other stages."""

    def make(**settings):
        return source(
            transforms=[fl.Map(noise, x=fl.Stream(3)), doubled, fl.Map(noise, x=fl.Stream(4))],
            seed=5,
            max_sweeps=2,
            **settings,
        )

    whole = sequences_of(make().minibatches(50))
    assert sequences_of(make().minibatches(7)) == whole
    ranks = [make(partition=(i, 3)) for i in range(3)]
    merged = []
    while True:
        parts = [rank.next_minibatch(11) for rank in ranks]
        if not parts[0]:
            break
        merged += sum((sequences_of([p]) for p in parts), [])
    assert merged == whole
    first, second = dict(whole[:60]), dict(whole[60:])
    assert all(first[k] != second[k] for k in first)
    minibatch = make().next_minibatch(20)
    assert minibatch["x"].shape == (4,)
    rows = minibatch["x"].rows
    assert not np.allclose(rows[:, 2], rows[:, 3])
    np.testing.assert_array_equal(rows[:, 0] / 2, np.repeat(minibatch.ids, minibatch["x"].lengths))
    feed = make()
    feed.next_minibatch(33)
    state = feed.state_dict()
    again = make()
    again.load_state_dict(state)
    assert sequences_of(again.minibatches(9)) == sequences_of(feed.minibatches(50))


def test_transforms_are_checked():
    """Undeclared streams and wrong shapes name the stream."""
    with pytest.raises(fl.SchemaError, match="`z`"):
        source(transforms=[lambda s: {"z": s["x"]}]).next_minibatch(5)
    with pytest.raises(fl.SchemaError, match="`x`"):
        source(transforms=[lambda s: {"x": s["x"][:, :1]}]).next_minibatch(5)


def test_frame_mode():
    """Sequences of one sample pass. A longer one is an error that names it."""
    assert source([1] * 60, frame_mode=True).next_minibatch(9).num_sequences == 9
    with pytest.raises(fl.DataError, match="frame mode"):
        source(frame_mode=True).next_minibatch(9)


@pytest.mark.usefixtures("leaves_nothing")
def test_closing_dropping_and_breaking_leave_no_threads():
    """Threads end with the source, however it ends."""
    with source(read_ahead=1 << 20) as feed:
        feed.next_minibatch(5)
        state = feed.state_dict()
    assert feed.state_dict() == state
    with pytest.raises(ValueError, match="closed"):
        feed.next_minibatch(5)
    for minibatch in source(read_ahead=1 << 20).minibatches(5):
        assert minibatch
        break
    dropped = source(read_ahead=1 << 20)
    dropped.next_minibatch(5)
    del dropped

    class Broken(CountedCorpus):
        def read(self, chunk):
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fl.MinibatchSource(Broken([1] * 9, [9])).next_minibatch(1)
    gc.collect()


@pytest.mark.parametrize("ahead", [0, 2])
def test_memory_is_bounded_by_window_and_read_ahead(ahead):
    """Whatever the data's size, the source holds only the window in use and prefetched chunks."""
    lengths, chunks = [10] * 4000, [100] * 40
    corpus = CountedCorpus(lengths, chunks)
    one = corpus.read(0).nbytes
    feed = fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=3), read_ahead=ahead * one + one // 2, max_sweeps=1)
    for _ in feed.minibatches(70):  # does not divide a window: minibatches cross from one into the next
        assert feed.stats().held_bytes <= (3 + ahead) * one * 1.1
    # At a window's end, too: the old one is released before the next is read.
    assert feed.stats().peak_bytes <= (3 + ahead) * one * 1.1
    assert feed.stats().chunks_read <= 40 + 8


@pytest.mark.parametrize("order", ["feedline", "cntk"])
def test_a_chunk_that_two_windows_need_is_read_once(order):
    corpus = CountedCorpus([2] * 60, [10] * 6)
    feed = fl.MinibatchSource(corpus, shuffle=fl.Window(chunks=3), order=order, read_ahead=0, max_sweeps=1)
    for _ in feed.minibatches(7):
        pass
    assert sorted(corpus.reads) == list(range(6))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_minibatch_that_failed_at_a_windows_edge_is_delivered_when_asked_again(on_error, tmp_path):
    """The previous window was released to make room: its remaining sequences are reread."""

    class Flaky(CountedCorpus):
        failing = False

        def read(self, chunk):
            if self.failing:
                raise OSError("not now")
            return super().read(chunk)

    def feed(corpus):
        quarantine = tmp_path / f"{type(corpus).__name__}.jsonl"
        settings = {"shuffle": fl.Window(chunks=2), "read_ahead": 0, "max_sweeps": 2}
        if on_error == "skip":
            settings["on_error"] = fl.Quarantine(quarantine)
        return fl.MinibatchSource(corpus, **settings)

    bad = (3, 17, 18) if on_error == "skip" else ()
    expected = list(feed(CountedCorpus([1, 2, 3] * 20, [10] * 6, bad=bad)).minibatches(7))
    corpus, got, failures = Flaky([1, 2, 3] * 20, [10] * 6, bad=bad), [], 0
    flaky = feed(corpus)
    while True:
        corpus.failing, minibatch = True, None
        while minibatch is None:  # each of the window's chunks logs once that it failed
            try:
                minibatch = flaky.next_minibatch(7)
            except OSError:
                failures, corpus.failing = failures + 1, False
        if not minibatch:
            break
        got.append(minibatch)
    assert failures >= 6
    assert got == expected


def test_reading_runs_ahead_of_need():
    """While a window is used, chunks of the next are read on threads."""
    corpus = CountedCorpus([1] * 100, [10] * 10)
    feed = fl.MinibatchSource(corpus, shuffle=False, read_ahead=1 << 20)
    feed.next_minibatch(5)
    for _ in range(200):
        if len(corpus.reads) == 10:
            break
        time.sleep(0.01)
    assert sorted(corpus.reads) == list(range(10))
    once = CountedCorpus([1] * 100, [10] * 10)
    for _ in fl.MinibatchSource(once, shuffle=False, read_ahead=1 << 20, max_sweeps=1):
        pass
    time.sleep(0.05)
    assert sorted(once.reads) == list(range(10))  # nothing of a sweep that never comes
    silent = CountedCorpus([1] * 100, [10] * 10)
    fl.MinibatchSource(silent, shuffle=False, read_ahead=0).next_minibatch(5)
    time.sleep(0.05)
    assert silent.reads == [0]


def test_a_forked_child_goes_on_with_its_own_threads():
    """After fork both processes deliver the same stream."""
    code = textwrap.dedent(
        """
        import os, sys
        import feedline as fl
        from feedline.testing import bytes_digest
        from tests.laws.corpora import CountedCorpus
        feed = fl.MinibatchSource(CountedCorpus([1, 2] * 200, [20] * 20), shuffle=fl.Window(chunks=2), max_sweeps=1)
        feed.next_minibatch(30)
        sys.stdout.flush()
        child = os.fork()
        digest = bytes_digest(feed.minibatches(17))
        os.write(1, (digest + "\\n").encode())  # at once, however stdout is buffered
        if child:
            assert os.waitpid(child, 0)[1] == 0
        """
    )
    out = run(["-c", code], check=True, capture_output=True, text=True, timeout=60).stdout
    one, two = out.split()
    assert one == two


def test_ctrl_c_ends_a_waiting_read():
    """SIGINT during a wait for a slow chunk raises KeyboardInterrupt at once. The position stays, no thread is left."""
    code = textwrap.dedent(
        """
        import os, signal, threading
        import feedline as fl
        from tests.laws.corpora import CountedCorpus

        asked, go = threading.Event(), threading.Event()

        class Slow(CountedCorpus):
            def read(self, chunk):
                asked.set()
                go.wait()
                return super().read(chunk)

        def interrupt():
            asked.wait()
            os.kill(os.getpid(), signal.SIGINT)

        feed = fl.MinibatchSource(Slow([1] * 10, [10]))
        threading.Thread(target=interrupt).start()
        try:
            feed.next_minibatch(3)
        except KeyboardInterrupt:
            pass  # while the chunk is still being read: nothing but what follows lets that end
        else:
            raise SystemExit("not interrupted")
        assert feed.position == fl.Position()
        go.set()
        assert feed.next_minibatch(3).num_sequences == 3
        """
    )
    run(["-c", code], check=True, timeout=60)


def test_partition_is_found_in_torch_distributed():
    """None means the rank of an initialised process group at the first read. A later change is an error."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert torch is not None
    code = textwrap.dedent(
        """
        import sys, warnings
        warnings.simplefilter("ignore")
        import numpy as np, torch.distributed as dist
        import feedline as fl
        from tests.laws.corpora import CountedCorpus

        def worker(rank, path, queue):
            before = fl.MinibatchSource(CountedCorpus([1] * 10, [10]), shuffle=False)
            before.next_minibatch(4)
            dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
            feed = fl.MinibatchSource(CountedCorpus([1] * 10, [10]), shuffle=False)
            ids = feed.next_minibatch(5).ids.tolist()
            try:
                before.next_minibatch(4)
            except fl.StateError as error:
                queue.put((rank, ids, str(error)))
            dist.barrier()
            dist.destroy_process_group()

        if __name__ == "__main__":
            import multiprocessing as mp, tempfile, os
            context = mp.get_context("fork")
            queue = context.Queue()
            path = os.path.join(tempfile.mkdtemp(), "store")
            processes = [context.Process(target=worker, args=(r, path, queue)) for r in range(2)]
            [p.start() for p in processes]
            got = sorted(queue.get(timeout=60) for _ in processes)
            [p.join() for p in processes]
            assert [ids for _, ids, _ in got] == [[0, 1, 2], [3, 4]], got
            assert all("partition" in text for *_, text in got), got
        """
    )
    run(["-c", code], check=True, timeout=120)


@pytest.mark.parametrize(("rank", "count"), [(1, 2), (0, 3)])
def test_a_rank_or_number_of_ranks_that_has_changed_is_an_error(monkeypatch, rank, count):
    """Another rank would repeat sequences that it has delivered before, and leave out others."""

    def launch(rank, count):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", str(count))

    monkeypatch.delenv("RANK", raising=False)
    launch(0, 2)
    feed = source()
    feed.next_minibatch(4)
    launch(rank, count)
    with pytest.raises(fl.StateError, match="partition of the first read"):
        feed.next_minibatch(4)
    launch(0, 2)
    assert feed.next_minibatch(4)


def test_the_main_thread_is_not_needed():
    """A source may be used from any one thread."""
    out = []
    feed = source(max_sweeps=1)
    thread = threading.Thread(target=lambda: out.append(bytes_digest(feed.minibatches(7))))
    thread.start()
    thread.join()
    assert out == [bytes_digest(source(max_sweeps=1).minibatches(50))]


def test_a_killed_process_leaves_nothing():
    """SIGKILL in the middle of reading: no shared memory, no file of ours stays."""
    before = set(os.listdir("/dev/shm"))
    code = (
        "import feedline as fl\nfrom tests.laws.corpora import CountedCorpus\n"
        "f = fl.MinibatchSource(CountedCorpus([1] * 1000, [10] * 100), shuffle=fl.Window(chunks=2))\n"
        "print('up', flush=True)\nwhile True: f.next_minibatch(7)\n"
    )
    process = Python(["-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize("size", [2.0, 2.5, "3", None, True])
def test_sizes_are_whole_numbers(size):
    """A float is not a size, even if it is whole."""
    with pytest.raises(TypeError, match="expected a minibatch size as an int"):
        source().next_minibatch(size)
    with pytest.raises(TypeError, match="expected a minibatch size as an int"):
        source().plan(size)
    assert source().next_minibatch(np.int64(9)).num_samples <= 9


@pytest.mark.parametrize("name", ["max_sweeps", "max_samples", "truncation_length", "threads", "read_ahead"])
def test_limits_are_whole_numbers(name):
    """Each names itself."""
    for wrong in (1.5, "3", True):
        with pytest.raises(TypeError, match=f"expected {name} as an int"):
            source(**{name: wrong})
    with pytest.raises(ValueError, match=f"expected {name} of at least"):
        source(**{name: -1})


def test_one_transform_is_no_list_of_them():
    with pytest.raises(TypeError, match=r"expected a list of transforms.*write \[doubled\]"):
        source(transforms=doubled)


def test_a_closed_source_still_has_its_state():
    """Closing is idempotent. Calls that would read raise an error."""
    feed = source()
    feed.next_minibatch(10)
    state = feed.state_dict()
    feed.close()
    feed.close()
    assert feed.state_dict() == state
    for use in (lambda: feed.next_minibatch(3), lambda: feed.plan(3)):
        with pytest.raises(ValueError, match="expected an open source, got a closed one"):
            use()


def test_a_source_is_not_copied():
    """Its state is."""
    for copy_of in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*state_dict\(\)"):
            copy_of(source())


class UnknownSizes(CountedCorpus, Unsized):
    """Says nothing of its chunks before they are read."""

    def num_chunks(self):
        return len(self._starts) - 1


def test_frames_have_one_sample_wherever_it_is_known():
    """In the index, in the chunks, and in streams that do not count against the budget."""
    counted = fl.ArrayDeserializer(x=np.ones((3, 2)), y=[np.ones((n, 1)) for n in (1, 2, 1)], defines_size="x")
    for corpus in (CountedCorpus([1, 2, 1], [3]), UnknownSizes([1, 2, 1], [3]), counted):
        feed = fl.MinibatchSource(corpus, frame_mode=True, shuffle=False)
        with pytest.raises(fl.DataError, match="one sample in frame mode, got one of 2") as caught:
            feed.next_minibatch(3)
        assert caught.value.sequence == 1
    assert caught.value.stream == "y"


def test_sizes_known_only_by_reading_are_not_counted():
    """Not zero: an error."""
    feed = fl.MinibatchSource(UnknownSizes([1, 2], [2]))
    for count in ("num_sequences", "num_samples"):
        with pytest.raises(ValueError, match="without chunk_info cannot be counted"):
            getattr(feed, count)


COUNTS = [np.int64(5), np.array(5), np.uint8(5)]


@pytest.mark.parametrize("five", COUNTS)
def test_what_counts_as_an_int_becomes_one(five):
    """States are JSON, wherever their numbers came from."""
    feed = source()
    feed.count_label_samples(five)
    assert json.loads(json.dumps(feed.state_dict()))["label_samples"] == 5
    feed.seek(fl.Position(five, five, five, five))
    assert json.loads(json.dumps(feed.state_dict()))["sequence"] == 5
    feed.seek(samples=five)
    state = json.loads(json.dumps(feed.state_dict()))
    source().load_state_dict(state)
    assert state["samples"] >= 5
    assert next(feed.plan(5, start=fl.Position(five, five))).position[:2] == (5, 5)


def test_a_tensor_with_a_count_is_one():
    torch = pytest.importorskip("torch")
    feed = source()
    feed.count_label_samples(torch.tensor([True, False, True]).sum())
    assert json.loads(json.dumps(feed.state_dict()))["label_samples"] == 2


@pytest.mark.parametrize("no_count", [2.0, 2.5, True, float("nan"), "5", None, np.float32(5), -1, 2**63])
def test_no_state_is_made_that_cannot_be_loaded(no_count):
    feed = source()
    before = feed.state_dict()
    error = ValueError if type(no_count) is int else TypeError
    with pytest.raises(error, match="expected a count of label samples"):
        feed.count_label_samples(no_count)
    for field in ("sweep", "sequence", "samples", "label_samples"):
        with pytest.raises((TypeError, IndexError), match="expected"):
            feed.seek(fl.Position(**{field: no_count}))
    with pytest.raises((TypeError, IndexError, ValueError), match="expected"):
        feed.seek(samples=no_count)
    with pytest.raises(TypeError, match="expected a Position"):
        feed.seek((0, 3))
    assert feed.state_dict() == before


class Integer:
    """An integer type of another library."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("kind", [np.int64, np.uint8, Integer])
@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3},
        {"max_sweeps": 2},
        {"max_samples": 7},
        {"threads": 2, "read_ahead": 100},
        {"truncation_length": 3},
        {"limit": 3},
        {"arcs": 4},
        {"shuffle": {"chunks": 2}},
        {"shuffle": {"samples": 5}},
        {"shuffle": {"bytes": 50}},
    ],
    ids=str,
)
def test_any_integer_is_taken_and_a_state_is_json(options, kind):
    corpus = fl.ArrayDeserializer({"x": np.arange(40, dtype="f4").reshape(20, 2)}, chunk_sequences=4)

    def source(kind):
        given = {name: kind(value) if type(value) is int else value for name, value in options.items()}
        if "shuffle" in given:
            given["shuffle"] = fl.Window(**{name: kind(value) for name, value in given["shuffle"].items()})
        if "limit" in given:
            given["on_error"] = fl.Quarantine(limit=given.pop("limit"))
        if "arcs" in given:
            given["order"] = fl.Arcs(given.pop("arcs"))
        return fl.MinibatchSource(corpus, **{"max_sweeps": 1} | given)

    first, second = source(kind), source(int)
    while minibatch := first.next_minibatch(kind(3), (kind(0), kind(1))):
        assert minibatch.ids.tolist() == second.next_minibatch(3).ids.tolist()
        assert json.loads(json.dumps(first.state_dict())) == second.state_dict()
    first.load_state_dict(second.state_dict())


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, np.bool_(True)])
def test_what_is_no_integer_is_refused_everywhere(wrong):
    corpus = fl.ArrayDeserializer({"x": np.zeros((4, 2), "f4")})
    for make in (
        lambda: fl.MinibatchSource(corpus).next_minibatch(wrong),
        lambda: fl.MinibatchSource(corpus, seed=wrong),
        lambda: fl.MinibatchSource(corpus, threads=wrong),
        lambda: fl.Window(chunks=wrong),
        lambda: fl.MinibatchSource(corpus, partition=(wrong, 2) if wrong is not True else (0.5, 2)),
    ):
        with pytest.raises((TypeError, ValueError), match="expected"):
            make()


def test_a_minibatch_that_can_never_be_full_is_refused():
    corpus = fl.ArrayDeserializer({"x": np.zeros((4, 2), "f4")})
    endless, ended = fl.MinibatchSource(corpus), fl.MinibatchSource(corpus, max_sweeps=2)
    for source in (endless, ended):
        for call in (source.next_minibatch, source.plan):
            with pytest.raises(ValueError, match=r"at most 2\*\*62"):
                call(2**80)
            with pytest.raises(ValueError, match=r"at most 2\*\*62"):
                call(2**62 + 1)
    for call in (endless.next_minibatch, endless.plan):
        with pytest.raises(ValueError, match="fits into memory, as this source has no end"):
            call(2**62)
    assert endless.position == fl.Position()
    assert ended.next_minibatch(2**62).num_sequences == 8
    assert not ended.next_minibatch(2**62)
    assert endless.next_minibatch(1000).num_sequences == 1000


def test_sweeps_of_which_nothing_can_be_read_are_an_error(tmp_path):
    """A loop over the sweeps would never end."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"x": "no number"}\n' * 6)

    def source(**options):
        corpus = fl.open_corpus(path, streams={"x": fl.Stream()})
        return fl.MinibatchSource(corpus, on_error=fl.Quarantine(tmp_path / "bad.jsonl"), **options)

    with source(max_sweeps=1) as finite:
        assert [m.num_sequences for m in finite.minibatches(4)] == [0, 0]
    endless = source()
    with endless, pytest.raises(fl.DataError, match="got none in 2 whole sweeps: "):
        for _ in range(20):
            endless.next_minibatch(4)
    path.write_text('{"x": "no number"}\n' * 60 + '{"x": 1}\n')
    with source(seed=3) as some:
        assert sum(some.next_minibatch(4).num_sequences for _ in range(160)) > 5


def test_a_rank_whose_share_is_unreadable_does_not_end_before_the_others(tmp_path):
    """It delivers empty parts, as its ranks' collectives wait for it."""
    (tmp_path / "a.jsonl").write_text("".join('{"x": "bad"}\n' if i == 3 else f'{{"x": {i}}}\n' for i in range(8)))
    corpus = fl.open_corpus(tmp_path / "a.jsonl", streams={"x": fl.Stream((), "int64")})
    quarantine = fl.Quarantine(tmp_path / "q.jsonl")
    for rank in (2, 3):
        source = fl.MinibatchSource(corpus, shuffle=False, partition=(rank, 8), on_error=quarantine)
        counts = [source.next_minibatch(8).num_sequences for _ in range(9)]
        assert counts == [int(rank != 3)] * 9
