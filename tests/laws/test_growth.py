"""Data that grows behind its end: a sweep ends over what it began with, in the order it had, and later ones have all.

Each sweep is compared with that of a source over its version alone, which knows of no other.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import tarfile

import numpy as np
import pytest

import feedline as fl
from tests.effort import examples

SEEDS = range(examples(4))


class Growth:
    """Files of a format, to which more are added."""

    def __init__(self, folder, form):
        self.folder, self.form = folder, form
        self.counts = []

    def append(self, rows):
        first = sum(self.counts)
        numbers = list(range(first, first + rows))
        path = self.folder / f"{len(self.counts):03}.{self.form}"
        if self.form == "jsonl":
            path.write_text("".join(f'{{"n": {n}, "x": {[n] * (1 + n % 3)}}}\n' for n in numbers))
        elif self.form == "csv":
            path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
        elif self.form == "ctf":
            path.write_text("".join(f"{n} |n {n}\n" for n in numbers))
        elif self.form.startswith("tar"):
            with tarfile.open(path, "w:gz" if self.form == "tar.gz" else "w") as archive:
                for n in numbers:
                    info = tarfile.TarInfo(f"{n:06}.txt")
                    info.size = 6
                    archive.addfile(info, io.BytesIO(b"%06d" % n))
        elif self.form != "arrays":
            pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
            import pyarrow.parquet as pq

            table = pa.table({"n": numbers})
            if self.form == "parquet":
                pq.write_table(table, path, row_group_size=3)
            else:
                with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table, max_chunksize=3)
        self.counts.append(rows)

    def corpus(self, files=None):
        """The corpus of the first files."""
        files = len(self.counts) if files is None else files
        paths = [str(self.folder / f"{i:03}.{self.form}") for i in range(files)]
        if self.form == "arrays":
            bounds = np.cumsum([0, *self.counts])
            parts = [fl.ArrayDeserializer(n=np.arange(a, b)) for a, b in itertools.pairwise(bounds[: files + 1])]
            return parts[0] if files == 1 else fl.Concat(*parts)
        if self.form == "jsonl":
            streams = {"n": fl.Stream((), "int64"), "x": fl.Stream((), "int64")}
            return fl.JSONLinesDeserializer(paths, streams, sequences=["x"], chunk_size=60)
        if self.form == "csv":
            return fl.CSVDeserializer(paths, n=fl.Stream((), "int64"), chunk_size=9)
        if self.form == "ctf":
            return fl.CTFDeserializer(paths, n=fl.Stream(1, "float32"), chunk_size=30)
        return fl.open_corpus(paths)


FORMS = ["parquet", "arrow", "jsonl", "csv", "ctf", "tar", "tar.gz", "arrays"]
ORDERS = [{"shuffle": fl.Window(chunks=2)}, {"shuffle": True}, {"shuffle": False}, {"shuffle": fl.Window(bytes=100)}]


def sweep_of(growth, files, sweep, options):
    """The ids of a sweep, by a source that has these files only."""
    source = fl.MinibatchSource(growth.corpus(files), seed=5, max_sweeps=sweep + 1, **options)
    source.seek(fl.Position(sweep, 0))
    return [i for planned in source.plan(1000) for i in planned.ids.tolist()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_sequence_comes_once_a_sweep_from_its_version_on(tmp_path, form, seed):
    chance = random.Random(f"{form} {seed}")
    growth, options = Growth(tmp_path, form), chance.choice(ORDERS)
    growth.append(chance.randint(4, 20))
    source = fl.MinibatchSource(growth.corpus(), seed=5, **options)
    versions, delivered, states = [(0, 1)], [], []
    for _ in range(9):
        for _ in range(chance.randint(0, 4)):
            minibatch = source.next_minibatch(chance.randint(1, 9))
            delivered += minibatch.ids.tolist()
        state = json.loads(json.dumps(source.state_dict()))
        assert state.get("versions", [[0, None]])[-1][0] <= state["sweep"] + 1
        states.append((state, len(delivered)))
        for _ in range(chance.choice([0, 1, 1, 2])):
            growth.append(chance.randint(1, 9))
        if chance.random() < 0.2:  # a step is taken back
            state, count = chance.choice(states[-3:])
            if state["corpus"] == states[-1][0]["corpus"] or len(states) == 1:
                del delivered[count:]
                versions = [row for row in versions if row[0] <= state["sweep"]] or versions[:1]
            else:
                state = states[-1][0]
        source.close()
        source = fl.MinibatchSource(growth.corpus(), seed=5, **options)
        source.load_state_dict(state, verify=True)
        begins = state["sweep"] + (state["sequence"] > 0)
        if versions[-1][1] != len(growth.counts):
            versions = [row for row in versions if row[0] < begins] + [(begins, len(growth.counts))]
    expected, sweep = [], 0
    while len(expected) < len(delivered):
        files = next(files for first, files in reversed(versions) if first <= sweep)
        ids = sweep_of(growth, files, sweep, options)
        assert sorted(ids) == list(range(sum(growth.counts[:files])))
        expected, sweep = expected + ids, sweep + 1
    assert delivered == expected[: len(delivered)]


def test_a_state_names_its_versions(tmp_path):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.next_minibatch(8)
    first = source.state_dict()
    assert "versions" not in first
    growth.append(5)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.load_state_dict(first)
    state = source.state_dict()
    assert state["versions"] == [[0, first["corpus"]], [1, state["corpus"]]]
    assert {**state, "corpus": 0} == {**first, "corpus": 0, "versions": state["versions"]}
    assert source.num_sequences == 15
    ids = [i for minibatch in source.minibatches(7) for i in minibatch.ids.tolist()]
    assert len(ids) == 10 - first["sequence"] + 15 + 15
    assert source.share_done == 1.0
    again = fl.MinibatchSource(growth.corpus(), seed=5)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_counting_and_seeking_know_of_versions(tmp_path):
    growth = Growth(tmp_path, "csv")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(6)
    source = fl.MinibatchSource(growth.corpus(), seed=5, max_sweeps=3)
    source.load_state_dict(state)
    assert len(source) == 1  # 6 + 16 + 16 sequences in minibatches of 256
    assert sum(planned.ids.size for planned in source.plan(5)) == 6 + 16 + 16
    assert source.share_done == 4 / (10 + 16 + 16)
    for samples, position in ((9, (0, 9)), (10, (1, 0)), (25, (1, 15)), (26, (2, 0)), (41, (2, 15))):
        source.seek(samples=samples)
        assert source.position[:3] == (*position, samples)
    with pytest.raises(IndexError, match="sequence < 10 in a sweep"):
        source.seek(fl.Position(0, 12))
    source.seek(fl.Position(1, 12))


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_were_replaced_or_removed_are_an_error(tmp_path, form):
    growth = Growth(tmp_path, form)
    growth.append(10)
    growth.append(4)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(3)
    fl.MinibatchSource(growth.corpus(), seed=5).load_state_dict(state)
    for counts in ([10, 5, 3], [10], [9, 4, 3], [4, 10]):
        other = Growth(tmp_path, form)
        for count in counts:
            other.append(count)
        with pytest.raises(
            fl.StateError, match="Rows that were replaced or removed do not fit: restore them"
        ) as caught:
            fl.MinibatchSource(other.corpus(), seed=5).load_state_dict(state)
        assert list(caught.value.saved) == ["corpus"]


def test_orders_that_cannot_grow_say_so(tmp_path):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5, order=fl.Arcs(2))
    source.next_minibatch(4)
    state = source.state_dict()
    growth.append(3)
    with pytest.raises(fl.StateError, match='which needs order="feedline" over a plain corpus'):
        fl.MinibatchSource(growth.corpus(), seed=5, order=fl.Arcs(2)).load_state_dict(state)


@pytest.mark.parametrize(
    "versions", [5, [], [[0]], [[1, "a"]], [[0, 5]], [[0, "a"], [0, "b"]], [[0, "a"], [1, "b"]], [["0", "a"]]]
)
def test_damaged_versions_are_refused(tmp_path, versions):
    growth = Growth(tmp_path, "jsonl")
    growth.append(10)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    state = source.state_dict()
    with pytest.raises(fl.StateError, match="damaged"):
        source.load_state_dict({**state, "versions": versions})
    with pytest.raises(fl.StateError, match="names a version of the data that its first chunks are not"):
        source.load_state_dict({**state, "versions": [[0, "a"], [1, state["corpus"]]]})
    assert source.state_dict() == state


def test_a_file_without_rows_adds_nothing(tmp_path):
    growth = Growth(tmp_path, "csv")
    growth.append(9)
    source = fl.MinibatchSource(growth.corpus(), seed=5)
    source.next_minibatch(4)
    state, rest = source.state_dict(), [source.next_minibatch(5).ids.tolist() for _ in range(3)]
    growth.append(0)
    again = fl.MinibatchSource(growth.corpus(), seed=5)
    again.load_state_dict(state)
    assert sorted(again.next_minibatch(5).ids.tolist()) == sorted(rest[0])
    growth.append(3)
    last = fl.MinibatchSource(growth.corpus(), seed=5)
    last.load_state_dict(again.state_dict())
    assert last.next_minibatch(99).num_sequences > 0


@pytest.mark.parametrize("grows_last", [False, True])
def test_a_run_over_growing_data_is_audited(tmp_path, grows_last):
    from feedline.feed.audit import LoggedFeed, audit_steps

    growth = Growth(tmp_path, "jsonl")
    growth.append(9)
    records, delivered, state = [], [], None
    for run in range(3):
        source = fl.MinibatchSource(growth.corpus(), seed=5)
        if state is not None:
            source.load_state_dict(state)
        for _ in range(12):
            records.append(LoggedFeed(len(delivered), 5, source.state_dict()))
            delivered.append(source.next_minibatch(5).ids.tolist())
        state = source.state_dict()
        if grows_last or run < 2:
            growth.append(4)
    records.append(LoggedFeed(len(delivered), 5, state))
    for chosen in (records, records[::7] + records[-1:], [records[0], records[-1]]):
        steps = list(audit_steps(growth.corpus(), chosen))
        assert [step.ids.tolist() for step in steps] == delivered[chosen[0].step : chosen[-1].step]
