"""Joins against a plain dict, their cached table against damage, their memory against a bound."""

import contextlib
import itertools
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.composed import join_table
from feedline.feed.files import cache_files
from feedline.testing import assert_resumes, sequences_of
from tests.effort import examples
from tests.inside import kept_bytes, table_of

from .keyed import KeyedCorpus, SelectingCorpus


@contextlib.contextmanager
def small_blocks(block=4, crc_rows=3):
    """Everything that is done in blocks is done in several of them, for a handful of keys too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_table, "BLOCK_KEYS", block)
        patch.setattr(join_table, "_CRC_ROWS", crc_rows)
        yield


def join(*parts, **options):
    return fl.Join(*parts, **{"cache": False, **options})


@st.composite
def corpora(draw):
    """A primary that may repeat keys, one to three secondaries that may lack some."""
    key = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1))
    pool = draw(st.lists(key, min_size=1, max_size=24, unique=True))
    parts = []
    for number in range(draw(st.integers(2, 4))):
        if number == 0:
            keys = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=30))
        else:
            keys = draw(st.permutations(pool))[: draw(st.integers(1, len(pool)))]
        ragged = draw(st.booleans())
        lengths = draw(st.lists(st.integers(0, 4), min_size=len(keys), max_size=len(keys))) if ragged else None
        kind = draw(st.sampled_from([KeyedCorpus, SelectingCorpus]))
        parts.append(kind(f"part{number}", keys, lengths, draw(st.integers(1, 7)), sparse=draw(st.booleans())))
    return parts


def twin(parts):
    """For each chunk of the primary: the ordinals in all parts of each joined sequence."""
    places = [{key: i for i, key in enumerate(part.all_keys.tolist())} for part in parts[1:]]
    chunks, at = [], 0
    for info in parts[0].chunks():
        rows = []
        for i in range(at, at + info.sequences):
            key = int(parts[0].all_keys[i])
            if all(key in place for place in places):
                rows.append([i, *(place[key] for place in places)])
        chunks.append(rows)
        at += info.sequences
    return chunks


def expected_chunk(parts, rows):
    """The joined sequences, computed from single sequences of the parts that are read one by one."""
    out = []
    for row in rows:
        sequence = []
        for part, i in zip(parts, row, strict=True):
            sequence.append([i % 97] * part.length(i) if part.schema[part.name].sparse else part.sequence(i).tolist())
        out.append(sequence)
    return out


def plain(chunk):
    columns = []
    for value in chunk.values.values():
        sequences = value.sequences()
        columns.append([s.indices.tolist() if value.is_sparse else s.tolist() for s in sequences])
    return [list(row) for row in zip(*columns, strict=True)]


@settings(max_examples=examples(75), deadline=None)
@given(corpora(), st.data())
def test_equals_a_dict_join(parts, data):
    chunks = twin(parts)
    rows = list(itertools.chain(*chunks))
    with small_blocks(data.draw(st.integers(2, 9)), data.draw(st.integers(1, 5))):
        if not rows:
            with pytest.raises(fl.DataError, match=r"keys in common, got none; sequences: \d+ in part0, \d+ in part1"):
                join(*parts)
            return
        joined = join(*parts)
        lengths = [max(part.length(i) for part, i in zip(parts, row, strict=True)) for row in rows]
        assert joined.dropped == len(parts[0].all_keys) - len(rows)
        found = joined.lengths(np.arange(len(rows)))
        assert (found is None and set(lengths) == {1}) or found.tolist() == lengths
        assert joined.keys(np.arange(len(rows))).tolist() == [int(parts[0].all_keys[row[0]]) for row in rows]
        at = 0
        for number, (info, of_chunk) in enumerate(zip(joined.chunks(), chunks, strict=True)):
            assert info.sequences == len(of_chunk)
            assert info.samples == sum(lengths[at : at + len(of_chunk)])
            assert plain(joined.read(number)) == expected_chunk(parts, of_chunk)
            at += len(of_chunk)
        some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
        chosen = joined.select(np.array(some, np.int64))
        assert plain(chosen) == expected_chunk(parts, [rows[i] for i in some])


def some_parts(**options):
    rng = np.random.default_rng(5)
    keys = rng.permutation(60)
    first = SelectingCorpus("x", keys[:50], rng.integers(1, 5, 50), chunk=8)
    second = KeyedCorpus("y", rng.permutation(keys)[:55], chunk=5, sparse=True, **options)
    return first, second


@pytest.mark.parametrize("shuffle", [False, True, fl.Window(chunks=2)])
def test_resumes_and_delivers_each_joined_sequence_once(shuffle):
    def make(threads=2):
        return fl.MinibatchSource(join(*some_parts()), seed=3, shuffle=shuffle, max_sweeps=2, threads=threads)

    assert_resumes(make, sizes=(2, 3, 17), minibatches=5)
    sweep = [i for i, _ in sequences_of(make().minibatches(7, until=fl.sweeps(1)))]
    count = make().num_sequences
    assert sorted(sweep[:count]) == list(range(count))
    assert 0 < count < 50
    assert sequences_of(make(threads=4).minibatches(5)) == sequences_of(make(threads=1).minibatches(64))


def test_a_list_of_corpora_is_a_join(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = fl.MinibatchSource(some_parts(), seed=3)
    assert isinstance(source.corpus, fl.Join)
    assert list(source.schema) == ["x", "y"]
    assert [path.suffix for path in (tmp_path / "feedline").iterdir()] == [".feedline-join"]
    assert (tmp_path / "feedline").stat().st_mode & 0o777 == 0o700
    alone = some_parts()[0]
    assert fl.MinibatchSource([alone]).corpus is alone
    with pytest.raises(TypeError, match="to join, got str"):
        fl.MinibatchSource([alone, "train.ctf"])


def test_a_join_is_a_part_like_any_other():
    a, b = some_parts()
    c = KeyedCorpus("z", np.random.default_rng(1).permutation(60), chunk=4)
    flat, nested, right = join(a, b, c), join(join(a, b), c), join(c, join(a, b))
    for chunk in range(len(flat.chunks())):
        assert plain(flat.read(chunk)) == plain(nested.read(chunk))
    assert sum(info.sequences for info in right.chunks()) == sum(info.sequences for info in flat.chunks())


# ---- lengths, errors, refusals ------------------------------------------------------------------------


def test_the_stream_that_defines_the_size_gives_the_lengths():
    a = KeyedCorpus("x", [1, 2, 3], [5, 5, 5])
    b = KeyedCorpus("y", [3, 2, 1], [1, 2, 3], defines_size=True)
    joined = join(a, b)
    assert joined.lengths(np.arange(3)).tolist() == [3, 2, 1]
    assert [info.samples for info in joined.chunks()] == [6]
    assert [m.num_samples for m in fl.MinibatchSource(joined, shuffle=False, max_sweeps=1).minibatches(5)] == [5, 1]
    both = KeyedCorpus("z", [1], defines_size=True)
    with pytest.raises(fl.SchemaError, match="at most one stream with defines_size=True, got y, z"):
        join(b, both)


def test_an_unreadable_part_makes_the_joined_sequence_unreadable(tmp_path):
    a = KeyedCorpus("x", range(10), bad=[2, 7])
    b = KeyedCorpus("y", range(9, -1, -1), bad=[2, 4])  # keys 7 and 5
    joined = join(a, b)
    errors = [{i: str(e).split("\n")[0] for i, e in joined.read(chunk).errors.items()} for chunk in range(4)]
    assert errors == [{2: "planted in x"}, {2: "planted in y"}, {1: "planted in x"}, {}]
    with pytest.raises(fl.DataError, match="planted in x"):
        list(fl.MinibatchSource(joined, shuffle=False, max_sweeps=1))
    skipping = fl.MinibatchSource(joined, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "q"))
    assert sorted(i for m in skipping for i in m.ids.tolist()) == [0, 1, 3, 4, 6, 8, 9]


def test_a_key_twice_in_a_secondary_names_key_and_sequences():
    a = KeyedCorpus("x", [4, 4, 4])
    with pytest.raises(fl.DataError, match="each key once in y, got key 4 for sequences 1 and 6"):
        join(a, KeyedCorpus("y", [9, 4, 8, 7, 6, 5, 4]))
    with small_blocks(block=3), pytest.raises(fl.DataError, match="got key 4 for sequences 1 and 6"):
        join(a, KeyedCorpus("y", [9, 4, 8, 7, 6, 5, 4]))  # found when sorted runs are merged


def test_refusals():
    a = KeyedCorpus("x", [1, 2])
    with pytest.raises(ValueError, match="at least two corpora"):
        join(a)
    with pytest.raises(fl.SchemaError, match="got `x` in x and in x \\(part 1\\)"):
        join(a, KeyedCorpus("x", [1, 2]))

    class Unsized(fl.UserDeserializer):
        schema = fl.Schema({"u": fl.Stream(2)})

        def num_chunks(self):
            return 1

        def get_chunk(self, chunk):
            raise AssertionError("not to be read")

    with pytest.raises(ValueError, match=r"to join Unsized; implement `UserDeserializer\.chunk_info`"):
        join(a, Unsized())


# ---- the table ----------------------------------------------------------------------------------------


def only_file(folder):
    (path,) = folder.iterdir()
    return path


class Resolving(KeyedCorpus):
    """One that counts how often all its keys are asked for."""

    resolved = 0

    def keys(self, ordinals):
        self.resolved += len(ordinals) == len(self.all_keys) and (np.diff(ordinals) == 1).all()
        return super().keys(ordinals)


def resolving(name="x", digest="same"):
    corpus = Resolving(name, range(20), [1, 2] * 10, chunk=20)
    corpus.digest = lambda: digest
    return corpus


def test_a_table_is_resolved_once_and_again_for_other_data(tmp_path):
    def asked(keys_of_y, digest):
        x = resolving("x", digest)
        joined = join(x, KeyedCorpus("y", keys_of_y), cache=tmp_path)
        asked = x.resolved
        row = joined.read(0)["y"].sequences()
        return asked, [int(s[0, 0]) for s in row]

    first = asked(range(20), "same")
    assert asked(range(20), "same") == (first[0] - 1, first[1])
    assert asked(range(20), "other") == first
    reversed_keys = asked(range(19, -1, -1), "same")
    assert reversed_keys == (first[0], list(range(19, -1, -1)))
    # A file under the right name that belongs to other parts is not used either.
    files = sorted(tmp_path.iterdir(), key=os.path.getmtime)
    assert len(files) == 3
    files[2].write_bytes(files[0].read_bytes())
    assert asked(range(19, -1, -1), "same") == reversed_keys


def test_equal_data_joined_by_other_keys_has_another_table(tmp_path):
    x = resolving()
    y = KeyedCorpus("y", range(20))
    y.digest = lambda: "same"
    assert [int(s[0, 0]) for s in join(x, y, cache=tmp_path).read(0)["y"].sequences()] == list(range(20))
    y.all_keys = y.all_keys[::-1].copy()
    assert [int(s[0, 0]) for s in join(x, y, cache=tmp_path).read(0)["y"].sequences()] == list(range(19, -1, -1))


def test_every_flipped_bit_is_noticed_and_repaired(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # hundreds of files that need not outlive the machine
    parts = KeyedCorpus("x", [*range(9), 77], [1, 3] * 5), KeyedCorpus("y", range(8, -1, -1))
    with small_blocks():
        expected = [plain(join(*parts).read(chunk)) for chunk in range(4)]
        join(*parts, cache=tmp_path)
        path = only_file(tmp_path)
        good = path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        for byte in range(len(good)):
            bad = bytearray(good)
            bad[byte] ^= 1 << byte % 8
            path.write_bytes(bad)
            joined = join(*parts, cache=tmp_path)
            assert [plain(joined.read(chunk)) for chunk in range(4)] == expected
            assert path.read_bytes() == good, f"byte {byte}"
        for length in (0, 10, 64, len(good) - 1):
            path.write_bytes(good[:length])
            assert plain(join(*parts, cache=tmp_path).read(1)) == expected[1]


def test_rows_that_name_no_sequence_are_refused_from_any_writer(tmp_path):
    x, y = resolving(), KeyedCorpus("y", range(20))
    join(x, y, cache=tmp_path)
    path = only_file(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join_table, "_look_up", lambda p, total, k, o, out: out.__setitem__(slice(None), 10**6))
        patch.setattr(fl.Join, "_part_lengths", lambda self, columns: None)
        path.unlink()
        join(x, y, cache=tmp_path)
    assert [int(s[0, 0]) for s in join(x, y, cache=tmp_path).read(0)["y"].sequences()] == list(range(20))


def test_keys_that_change_unseen_by_the_digest_are_noticed_when_read():
    x = resolving()
    y = KeyedCorpus("y", range(20))
    joined = join(x, y)
    y.all_keys = np.roll(y.all_keys, 1)
    with pytest.raises(fl.DataError, match="expected key 0 in y, as the resolved join says, got 19"):
        joined.read(0)


@pytest.mark.parametrize("mode", [0o777, 0o770])
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_others_can_write_is_refused(tmp_path, mode, there):
    if there:
        join(*some_parts(), cache=tmp_path)
    tmp_path.chmod(mode)
    with pytest.raises(fl.DataError, match="cache folder that only you can write"):
        join(*some_parts(), cache=tmp_path)


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path, monkeypatch, caplog):
    expected = plain(join(*some_parts()).read(2))
    assert plain(join(*some_parts(), cache=tmp_path).read(2)) == expected
    kept = only_file(tmp_path).read_bytes()

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_files, "atomic_file", refuse)
    assert plain(join(*some_parts(), cache=tmp_path).read(2)) == expected  # the existing table is used
    assert not caplog.records
    only_file(tmp_path).write_bytes(kept[:-1])
    assert plain(join(*some_parts(), cache=tmp_path).read(2)) == expected
    assert "cannot be written (Permission denied)" in caplog.text
    assert only_file(tmp_path).read_bytes() == kept[:-1]


# ---- bounds -------------------------------------------------------------------------------------------


def test_secondary_chunks_are_kept_within_the_budget_and_read_once_if_it_suffices():
    keys = np.random.default_rng(0).permutation(60)
    for memory, again in ((1 << 20, False), (300, True)):
        x, y = KeyedCorpus("x", range(60), chunk=6), KeyedCorpus("y", keys, chunk=5)
        joined = join(x, y, memory=memory)
        for chunk in range(10):
            joined.read(chunk)
            assert kept_bytes(joined) <= memory
        assert (len(y.reads) > 12) == again
        assert sorted(set(y.reads)) == list(range(12))
    x, y = KeyedCorpus("x", range(60), chunk=6), KeyedCorpus("y", range(60), chunk=6)
    joined = join(x, y, memory=0)
    for chunk in range(10):
        joined.read(chunk)
    assert y.reads == list(range(10))


class Arithmetic(fl.Deserializer, fl.Keyed):
    """A corpus of any size without memory: the key of i is a bijection of i."""

    def __init__(self, name, count, backwards=False):
        self.name, self.schema = name, fl.Schema({name: fl.Stream(())})
        self._count, self._backwards = count, backwards

    def chunks(self):
        return [fl.ChunkInfo(100_000, 100_000, 800_000)] * (self._count // 100_000)

    def keys(self, ordinals):
        at = self._count - 1 - ordinals if self._backwards else ordinals
        return at.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def digest(self):
        return str(self._count)

    def read(self, chunk):
        raise AssertionError("not to be read")


def test_two_million_keys_in_a_few_blocks_of_memory(tmp_path):
    peaks = []
    with small_blocks(block=1 << 15, crc_rows=1 << 16):
        for count in (500_000, 2_000_000):
            tracemalloc.start()
            joined = join(Arithmetic("x", count), Arithmetic("y", count, backwards=True), cache=tmp_path)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            some = np.array([0, 1, 77_777, count - 1])
            assert table_of(joined).rows(some).tolist() == [[i, count - 1 - i] for i in some.tolist()]
            assert joined.dropped == 0
            assert table_of(joined).path.stat().st_size < 8 * count + 2000
    # Four times the keys, the same memory: a few blocks, where one column alone would be 16 MB.
    assert peaks[1] < 1.3 * peaks[0]
    assert peaks[1] < 8e6
