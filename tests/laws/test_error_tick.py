"""Law 4, nothing lost, nothing twice: a bad sample keeps its tick, and a failed read loses nothing."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.protocol import Unread
from feedline.testing import sequences_of
from tests.effort import examples
from tests.inside import copy_ahead_of
from tests.laws.corpora import CountedCorpus, worlds
from tests.oracles.cntk_files import cbf


@settings(max_examples=examples(30))
@given(worlds(), st.integers(1, 30), st.integers(1, 3), st.data())
def test_a_skipped_sequence_shifts_nothing(tmp_path_factory, world, size, count, data):
    """Positions, fingerprints and all other sequences are as in the undamaged corpus, on every rank."""
    bad = tuple(data.draw(st.sets(st.integers(0, world.total - 1), max_size=5)))
    # Some are detected only when they are copied, by their entries.
    hidden = tuple(i for i in bad if world.lengths[i] and data.draw(st.booleans()))
    reported = tuple(set(bad) - set(hidden))
    ahead = data.draw(st.sampled_from([0, 1 << 60]))  # minimum bytes of minibatches that are copied ahead
    folder = tmp_path_factory.mktemp("q")
    unpartitioned = world.source(max_sweeps=2)
    damaged = dataclasses.replace(world, bad=reported, hidden=hidden, step=16384)
    ranks = [
        damaged.source(max_sweeps=2, partition=(i, count), on_error=fl.Quarantine(folder / f"{i}.jsonl"))
        for i in range(count)
    ]
    for rank in ranks:
        copy_ahead_of(rank).threshold = ahead
    while True:
        expected = unpartitioned.next_minibatch(size)
        parts = [rank.next_minibatch(size) for rank in ranks]
        if not expected:
            break
        good = [s for s in sequences_of([expected]) if s[0] not in bad]
        assert functools.reduce(operator.iadd, (sequences_of([p]) for p in parts), []) == good
        assert sum(p.num_samples for p in parts) == sum(world.lengths[o] for o, _ in good)
        assert {p.global_samples for p in parts} == {expected.num_samples}
        assert [rank.state_dict() for rank in ranks] == [unpartitioned.state_dict()] * count
    listed = [json.loads(line)["sequence"] for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    # A rank lists a sequence once, but in the second sweep another rank may list it.
    assert set(listed) == set(bad)
    assert sum(rank.stats().skipped for rank in ranks) == 2 * len(bad)


def test_a_bad_sequence_raises_and_the_position_stays():
    """Without skipping, the minibatch with the bad sequence raises each time, until it is skipped or repaired."""
    source = fl.MinibatchSource(CountedCorpus([1] * 10, [5, 5], bad=[6]), shuffle=False)
    source.next_minibatch(4)
    before = source.state_dict()
    for _ in range(2):
        with pytest.raises(fl.DataError, match="planted"):
            source.next_minibatch(4)
        assert source.state_dict() == before
    assert source.next_minibatch(2).ids.tolist() == [4, 5]


@pytest.mark.parametrize("truncated", [None, 3])
@pytest.mark.parametrize("random_access", [False, True])
def test_an_index_out_of_range_is_a_bad_sequence(tmp_path, random_access, truncated):
    """It is raised with its location each time, or skipped and listed, also in lanes and after transforms."""
    corpus = CountedCorpus([3] * 10, [5, 5], random_access, bad=[2], hidden=[6, 7])
    settings = {"shuffle": False, "max_sweeps": 1, "truncation_length": truncated, "transforms": [dict]}
    source = fl.MinibatchSource(corpus, **settings)
    source.seek(samples=9)
    if not truncated:  # lanes hold more sequences than they have delivered
        assert source.next_minibatch(9).ids.tolist() == [3, 4, 5]
    before = source.state_dict()
    for _ in range(2):
        with pytest.raises(fl.DataError, match=r"expected indices in \[0, 7\), got 2147483647") as caught:
            source.next_minibatch(9)
        assert (caught.value.sequence, caught.value.stream, caught.value.path) == (6, "y", "data")
        assert source.state_dict() == before
    file = tmp_path / "q.jsonl"
    source = fl.MinibatchSource(corpus, on_error=fl.Quarantine(file), **settings)
    ids = [i for minibatch in source.minibatches(9) for i in minibatch.ids.tolist()]
    assert sorted(ids) == [0, 1, 3, 4, 5, 8, 9]  # lanes take turns
    assert source.stats().skipped == 3
    listed = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["sequence"] for line in listed] == [2, 6, 7]
    assert listed[2]["reason"] == "expected indices in [0, 7), got -2147483648"


def test_a_chunk_that_cannot_be_read_once_is_read_again():
    """A temporary failure, as of a network file system, causes an exception but loses no sequence."""

    class Flaky(CountedCorpus):
        away = True

        def read(self, chunk):
            if chunk == 1 and self.away:
                raise fl.DataError("the disk went away", path="somewhere")
            return super().read(chunk)

    corpus = Flaky([1] * 10, [5, 5])
    source = fl.MinibatchSource(corpus, shuffle=False)
    assert source.next_minibatch(5).ids.tolist() == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(fl.DataError, match="the disk went away"):
            source.next_minibatch(5)
    corpus.away = False
    assert source.next_minibatch(5).ids.tolist() == [5, 6, 7, 8, 9]


def test_skipping_is_logged_once(tmp_path, caplog):
    """The first skipped sequence logs a warning with the file."""
    corpus = CountedCorpus([1] * 10, [5, 5], bad=[1, 3, 7])
    path = tmp_path / "q.jsonl"
    source = fl.MinibatchSource(corpus, shuffle=False, on_error=fl.Quarantine(path), max_sweeps=1)
    with caplog.at_level("WARNING", logger="feedline"):
        list(source)
    assert [str(path) in record.getMessage() and "planted" in record.getMessage() for record in caplog.records] == [
        True
    ]


def test_a_limit_of_errors(tmp_path):
    """The first error after the limit is raised, and the file lists the ones before it."""
    corpus = CountedCorpus([1] * 10, [5, 5], bad=[1, 3, 7])
    path = tmp_path / "q.jsonl"
    source = fl.MinibatchSource(corpus, shuffle=False, on_error=fl.Quarantine(path, limit=2), max_sweeps=1)
    assert source.next_minibatch(5).ids.tolist() == [0, 2, 4]
    with pytest.raises(fl.DataError, match="at most 2 unreadable sequences"):
        source.next_minibatch(5)
    assert [json.loads(line)["sequence"] for line in path.read_text().splitlines()] == [1, 3]


def test_the_quarantine_is_named_after_the_requested_partition(tmp_path, monkeypatch):
    """A partition for one call names the file, and does not become the source's own."""
    monkeypatch.chdir(tmp_path)
    source = fl.MinibatchSource(CountedCorpus([1] * 6, [6], bad=[5]), on_error="skip", shuffle=False)
    source.next_minibatch(6, partition=(1, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["quarantine-rank1.jsonl"]


def test_a_quarantine_that_cannot_be_written(tmp_path):
    """Nothing is skipped silently: the error has advice, and the position stays."""
    quarantine = tmp_path / "missing" / "q.jsonl"
    source = fl.MinibatchSource(CountedCorpus([1] * 6, [6], bad=[5]), on_error=fl.Quarantine(quarantine))
    with pytest.raises(fl.DataError, match=r"quarantine file: No such file[\s\S]*missing[\s\S]*pass on_error=fl"):
        source.next_minibatch(6)
    assert source.position == fl.Position()
    quarantine.parent.mkdir()
    assert source.next_minibatch(6).num_sequences == 5


def test_the_quarantine_lists_exceptions_of_users(tmp_path):
    """Paths and NumPy numbers in an error can be listed, too."""

    class Corpus(CountedCorpus):
        def read(self, chunk):
            chunk_data = super().read(chunk)
            error = fl.DataError("odd", path=tmp_path / "file", byte=chunk_data["x"].offsets.sum())
            return fl.Chunk(self.schema, chunk_data.values, {0: error})

    file = tmp_path / "q.jsonl"
    fl.MinibatchSource(Corpus([1] * 3, [3]), on_error=fl.Quarantine(file)).next_minibatch(3)
    assert json.loads(file.read_text()) == {
        "sequence": 0,
        "path": str(tmp_path / "file"),
        "line": None,
        "byte": 6,
        "stream": None,
        "reason": "odd",
    }


def write_parquet(path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table({"x": range(5)}), path, row_group_size=3)


def write_arrow(path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({"x": range(5)})
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file:
        file.write_table(table, max_chunksize=3)


def write_cbf(path):
    chunks = [[([[(i, 1)]],) for i in numbers] for numbers in (range(3), range(2))]
    path.write_bytes(cbf([("x", True, "f", 9)], chunks))


@pytest.mark.parametrize(
    ("write", "kind", "options"),
    [
        (write_parquet, fl.ParquetDeserializer, {}),
        (write_arrow, fl.ArrowDeserializer, {}),
        (write_cbf, fl.CBFDeserializer, {"chunk_size": 0}),
    ],
)
def test_unreadable_sequences_are_named_by_their_place_in_the_corpus(tmp_path, write, kind, options):
    """Whichever file has it, and whatever its number in that file."""
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        write(path)
    corpus, first = kind(paths, **options), 0
    assert [info.sequences for info in corpus.chunks()] == [3, 2, 3, 2]
    for chunk, path in enumerate(2 * paths[:1] + 2 * paths[1:]):
        lost = corpus.read_fetched(chunk, [Unread(errno.EIO, extent.offset) for extent in corpus.extents(chunk)])
        expected = {i: (str(path), first + i) for i in range(len(lost))}
        assert {i: (error.path, error.sequence) for i, error in lost.errors.items()} == expected
        first += len(lost)
