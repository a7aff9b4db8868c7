"""Quarantine files: written by a feed or by `validate`, applied by ``skip``. Listed sequences keep their ticks."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.formats.store.store_reader import StoreDeserializer
from feedline.feed.protocol import Verifiable
from tests.effort import examples
from tests.feed.formats.corpora import assert_same, corpora, everything
from tests.feed.test_convert import Counted, Torn


def listed(path, ordinals):
    path.write_text("".join(json.dumps({"sequence": int(i), "path": None, "reason": "so"}) + "\n" for i in ordinals))
    return path


class Unreadable(fl.Skipping):
    """The same sequences are unreadable."""

    def read(self, chunk):
        return _unreadable(super().read(chunk))

    def read_slice(self, chunk, start, stop):
        return _unreadable(super().read_slice(chunk, start, stop))


def _unreadable(chunk):
    return fl.Chunk(chunk.schema, chunk.values, dict.fromkeys(chunk.errors, fl.DataError("unreadable")))


@given(
    data=corpora(),
    step=st.integers(1, 4),
    size=st.integers(1, 9),
    bad=st.sets(st.integers(0, 30)),
    shuffle=st.sampled_from([True, False, fl.Window(chunks=2)]),
    length=st.sampled_from([None, 2]),
    stop=st.integers(0, 5),
    store=st.booleans(),
)
@settings(deadline=None, max_examples=examples(30))
def test_the_same_minibatches_as_if_it_were_unreadable(
    tmp_path_factory, data, step, size, bad, shuffle, length, stop, store
):
    """Sequence by sequence, at the same positions. States fit with and without ``skip``."""
    folder = tmp_path_factory.mktemp("skip")
    corpus = fl.ArrayDeserializer(data if length is None else dict([next(iter(data.items()))]), chunk_sequences=step)
    if store:
        fl.convert(corpus, folder / "s", chunk_bytes=60)
        corpus = fl.open_corpus(folder / "s")
    count = sum(info.sequences for info in corpus.chunks())
    skip = listed(folder / "q.jsonl", [i for i in bad if i < count])

    def source(corpus, **options):
        return fl.MinibatchSource(corpus, shuffle=shuffle, seed=3, max_sweeps=2, truncation_length=length, **options)

    reading = source(Unreadable(corpus, skip), on_error=fl.Quarantine(folder / "seen.jsonl"))
    expected, got = list(reading.minibatches(size)), list(source(corpus, skip=skip).minibatches(size))
    assert [told(m) for m in got] == [told(m) for m in expected]
    for one, other in zip(got, expected, strict=True):
        assert_same(dict(one.items()), dict(other.items()))
    part, again = source(corpus), source(corpus, skip=skip)
    taken = len(list(zip(range(stop), part.minibatches(size), strict=False)))
    again.load_state_dict(part.state_dict())
    assert [told(m) for m in again.minibatches(size)] == [told(m) for m in expected[taken:]]


def told(minibatch):
    return minibatch.position, minibatch.ids.tolist(), minibatch.global_samples


def test_validate_lists_what_a_feed_lists_and_skip_takes_it(tmp_path):
    """The two files are the same. With it, nothing is raised and nothing listed again."""
    lines = [f"|x {i} |y {i}:1\n" if i % 7 else f"|x {i} {i} |y {i}:1\n" for i in range(50)]
    (tmp_path / "a.ctf").write_text("".join(lines))
    corpus = fl.CTFDeserializer(tmp_path / "a.ctf", x=fl.Stream(1), y=fl.Stream(40, sparse=True), chunk_size=100)
    q = tmp_path / "q.jsonl"
    summary = fl.validate(corpus, quarantine=q)
    bad = [i for i in range(50) if i % 7 == 0 or i >= 40]
    assert (summary.sequences, summary.samples, summary.damaged) == (50, 50, len(bad))
    assert [error.sequence for error in summary.errors] == bad[:10]
    assert summary.bytes == (tmp_path / "a.ctf").stat().st_size
    feed = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "by-feed.jsonl"))
    good = [m.ids.tolist() for m in feed.minibatches(8)]
    assert q.read_text() == (tmp_path / "by-feed.jsonl").read_text()
    source = fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, skip=q)
    assert [m.ids.tolist() for m in source.minibatches(8)] == good
    assert source.stats().skipped == len(bad)
    for way in ({}, {"shuffle": 3}):
        name = f"store{len(way)}"
        done = fl.convert(corpus, tmp_path / name, skip=q, jobs=2, **way)
        assert (done.sequences, done.skipped) == (50 - len(bad), len(bad))
        assert sorted(everything(StoreDeserializer(tmp_path / name))["x"].rows.ravel().tolist()) == sum(good, [])
    assert fl.validate(fl.Skipping(corpus, q)).damaged == 0
    assert fl.validate(tmp_path / "store0") == (50 - len(bad),) * 2 + (fl.validate(tmp_path / "store0").bytes, 0, ())
    with pytest.raises(fl.DataError, match=r"sequence 0") as caught:
        fl.convert(corpus, tmp_path / "t", skip=listed(tmp_path / "some.jsonl", bad[1:]))
    assert caught.value.sequence == 0
    loader = fl.DataLoader(fl.Skipping(corpus, q), batch_size=8)
    assert sum((batch["x"].ravel().tolist() for batch in loader), []) == sum(good, [])


def test_damaged_chunks_are_listed_sequence_by_sequence_and_not_read(tmp_path):
    """Flipped bytes in a compressed store, a Parquet file and a store whose checksums are only compared here."""
    x = np.random.default_rng(0).integers(0, 9, (600, 8)).astype(np.float64)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "plain", chunk_bytes=6400)
    fl.convert(fl.ArrayDeserializer(x=x), tmp_path / "lz4", chunk_bytes=6400, compression="lz4")
    pq.write_table(
        pa.table({"x": x[:, 0]}),
        tmp_path / "a.parquet",
        row_group_size=100,
        compression="zstd",
        write_page_checksum=True,
    )
    column = pq.read_metadata(tmp_path / "a.parquet").row_group(3).column(0)
    at = column.data_page_offset + column.total_compressed_size * 3 // 4
    for name, file, middle in (
        ("plain", "part-00000.arrow", 20_000),
        ("lz4", "part-00000.arrow", 4000),
        ("a.parquet", ".", at),
    ):
        path = tmp_path / name / file
        data = bytearray(path.read_bytes())
        data[middle : middle + 8] = bytes(byte ^ 255 for byte in data[middle : middle + 8])
        path.write_bytes(data)
        q = tmp_path / f"{name}.jsonl"
        corpus = fl.open_corpus(tmp_path / name)
        summary = fl.validate(tmp_path / name, quarantine=q, jobs=2)
        bad = [json.loads(line)["sequence"] for line in q.read_text().splitlines()]
        starts = np.cumsum([0, *(info.sequences for info in corpus.chunks())]).tolist()
        assert (bad[0], bad[-1] + 1) in itertools.pairwise(starts)
        assert bad == list(range(bad[0], bad[-1] + 1))
        assert summary.damaged == len(bad)
        ids = [m.ids.tolist() for m in fl.MinibatchSource(corpus, shuffle=False, max_sweeps=1, skip=q).minibatches(64)]
        assert sum(ids, []) == [i for i in range(600) if i not in bad]
        assert len(ids) == 10
        assert fl.convert(corpus, tmp_path / f"{name}-again", skip=q).sequences == 600 - len(bad)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}\n", 'expected a line such as {"sequence": 17}'),
        ('{"sequence": 3}\n{"sequence": 12}\n', "with a sequence below 12, got sequence 12"),
        ('{"sequence": -1}\n', "got sequence -1"),
        ('{"sequence": true}\n', "got"),
        ('{"sequence": 1', "got"),
        ("[" * 10_000, "got"),
        ("\n", "got"),
        ('{"sequence": 1e3}', "got"),
    ],
)
def test_files_that_list_nothing_of_the_kind(tmp_path, content, says):
    (tmp_path / "q").write_text(content)
    with pytest.raises(fl.DataError) as caught:
        fl.MinibatchSource(Torn(), skip=tmp_path / "q")
    assert says in str(caught.value)
    assert caught.value.line == content.rstrip("\n").count("\n") + 1


def test_what_cannot_be_skipped_or_validated(tmp_path):
    q = listed(tmp_path / "q", [1])
    with pytest.raises(ValueError, match="knows its sizes before reading with skip"):
        fl.MinibatchSource(Counted(), skip=q)
    chunks = [Counted().read(i) for i in range(Counted().num_chunks())]
    sizes = sum(chunk.num_sequences for chunk in chunks), sum(len(chunk.errors) for chunk in chunks)
    assert fl.validate(Counted())[:4] == (sizes[0], sizes[0], 0, sizes[1])
    with pytest.raises(ValueError, match="skip= only with a corpus"):
        fl.convert([1, 2, 3], tmp_path / "s", skip=q)
    with pytest.raises(fl.DataError, match="expected a readable file"):
        fl.MinibatchSource(Torn(), skip=tmp_path / "none")
    assert not (tmp_path / "s").exists()
    several = fl.Skipping(Torn(), [q, listed(tmp_path / "r", [6, 1])])
    assert several.listed.tolist() == [1, 6]


def test_sequences_that_a_part_of_a_join_skips(tmp_path):
    """In the first part or another, in a source, in a conversion, and in a validation."""
    (tmp_path / "a.ctf").write_text("".join(f"{i} |a {i}\n" for i in range(40)))
    (tmp_path / "b.ctf").write_text("".join(f"{i} |b {i}\n" for i in reversed(range(40))))
    a = fl.CTFDeserializer(tmp_path / "a.ctf", a=fl.Stream(1), chunk_size=60)
    b = fl.CTFDeserializer(tmp_path / "b.ctf", b=fl.Stream(1), chunk_size=60)
    q = listed(tmp_path / "q", [3, 5, *range(10, 20)])
    kept = {"a": {i for i in range(40) if i not in (3, 5) and not 10 <= i < 20}}
    kept["b"] = {39 - i for i in kept["a"]}
    for part, corpus in (
        ("a", fl.Join(fl.Skipping(a, q), b, cache=False)),
        ("b", fl.Join(a, fl.Skipping(b, q), cache=False)),
    ):
        source = fl.MinibatchSource(corpus, shuffle=True, max_sweeps=1)
        assert {int(x) for m in source.minibatches(7) for x in m["a"].rows.ravel()} == kept[part]
        assert source.stats().skipped == 12
        assert fl.validate(corpus).damaged == 0
        assert fl.convert(corpus, tmp_path / part).sequences == 28


def test_lists_add_up(tmp_path):
    """Of a corpus that leaves sequences out already."""
    x = fl.ArrayDeserializer(x=np.arange(40.0), chunk_sequences=10)
    some, more = listed(tmp_path / "some", [3, 5]), listed(tmp_path / "more", [*range(10, 20)])
    both = fl.Skipping(fl.Skipping(x, some), more)
    assert both.listed.tolist() == [3, 5, *range(10, 20)]
    source = fl.MinibatchSource(fl.Skipping(x, some), skip=more, shuffle=False, max_sweeps=1)
    assert source.corpus.listed.tolist() == both.listed.tolist()


class Sealed(fl.Deserializer, fl.Keyed, Verifiable):
    """Twelve sequences with keys, of which the fifth is damaged, which only a verified one notices."""

    def __init__(self, stream, verifying=False):
        self.schema, self.verifying, self.closed = fl.Schema({stream: fl.Stream((), "int64")}), verifying, False

    def chunks(self):
        return [fl.ChunkInfo(4, 4, 32)] * 3

    def read(self, chunk):
        assert not self.closed
        (stream,) = self.schema
        values = {stream: fl.Value.from_dense(np.arange(4 * chunk, 4 * chunk + 4))}
        return fl.Chunk(self.schema, values, {1: fl.DataError("damaged")} if self.verifying and chunk == 1 else {})

    def keys(self, ordinals):
        return ordinals.astype(np.uint64)

    def digest(self):
        return "00"

    def verified(self):
        return self if self.verifying else Sealed(*self.schema, verifying=True)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("verifying", [(False, False), (True, False), (False, True), (True, True)])
def test_validate_verifies_parts_and_leaves_them_open(tmp_path, verifying):
    """Corpora around others pass the request on. Files that the caller opened stay open."""
    q = listed(tmp_path / "q", [2])
    x, y = (Sealed(stream, told) for stream, told in zip("xy", verifying, strict=True))
    joined = fl.Join(x, y, cache=False)
    for corpus in (joined, x, y, fl.Skipping(x, q), fl.Skipping(joined, q), fl.Join(x, fl.Skipping(y, q), cache=False)):
        for _ in range(2):
            summary = fl.validate(corpus)
            assert [error.sequence for error in summary.errors] == [5]
            assert corpus.read(2).num_sequences == 4
    joined.close()
    assert x.closed
    assert y.closed


def test_an_old_list_does_not_outlive_its_damage(tmp_path):
    """As ``skip`` would leave out sequences that are good again."""
    q = tmp_path / "q"
    assert fl.validate(Torn(), quarantine=q).damaged == 2
    assert fl.validate(Sealed("x", verifying=True), quarantine=q).damaged == 1
    assert fl.validate(fl.Skipping(Torn(), listed(tmp_path / "all", range(12))), quarantine=q).damaged == 0
    assert q.read_text() == ""
    assert len(fl.Skipping(Torn(), q).listed) == 0
    q.unlink()
    fl.validate(fl.Skipping(Torn(), tmp_path / "all"), quarantine=q)
    assert not q.exists()


@pytest.mark.parametrize("name", sorted(name for name in fl.Deserializer.__annotations__ if name[0] != "_"))
def test_attributes_equal_the_corpus(tmp_path, name):
    """All that `Deserializer` declares, also attributes that are added later."""
    corpus = Sealed("x")
    told = {"schema": fl.Schema({"z": fl.Stream(3)}), "name": "here"}.get(name, True)
    assert getattr(corpus, name) != told
    setattr(corpus, name, told)
    assert getattr(fl.Skipping(corpus, listed(tmp_path / "q", [1])), name) == told


@pytest.mark.parametrize(("place", "says"), [("none/q", "can be written to"), (".", "got a folder")])
def test_a_list_that_cannot_be_written_is_reported_before_reading(tmp_path, place, says):
    with pytest.raises(fl.DataError, match=says) as caught:
        fl.validate(Closed(), quarantine=tmp_path / place)
    assert caught.value.path == str(tmp_path / place)


class Closed(Torn):
    """Must not be read."""

    def read(self, chunk):
        raise AssertionError


def test_a_list_that_can_no_longer_be_written_names_its_path(tmp_path):
    def move(done, total):
        if done == total:
            tmp_path.joinpath("a").rename(tmp_path / "b")

    (tmp_path / "a").mkdir()
    with pytest.raises(fl.DataError, match="cannot list damaged sequences") as caught:
        fl.validate(Torn(), quarantine=tmp_path / "a" / "q", progress=move)
    assert caught.value.path == str(tmp_path / "a" / "q")


def byte_tokens(texts):
    """Return the bytes of each text as its tokens."""
    return [list(text.encode()) for text in texts]


def tokenized(texts):
    return fl.Tokenized(texts, byte_tokens, dtype="uint16")


def documents_delivered(source):
    """Return the ordinals of the documents of all rows, for tokens that are the ordinal of their document."""
    seen = set()
    for minibatch in source.minibatches(64):
        seen |= set(np.unique(minibatch["tokens"].rows[minibatch["segment"].rows > 0]).tolist())
    return seen


@pytest.fixture
def numbered(tmp_path):
    """Documents whose tokens are their ordinals, of which every seventh cannot be read."""
    bad = set(range(3, 60, 7))
    lines = [json.dumps({"tokens": ["x"] if i in bad else [i] * (i % 5 + 1)}) for i in range(60)]
    path = tmp_path / "documents.jsonl"
    path.write_text("\n".join(lines) + "\n")

    def open_documents():
        return fl.open_corpus(path, streams={"tokens": fl.Stream((), "int32")})

    return open_documents, bad


@pytest.mark.parametrize("method", ["best-fit", "first-fit", "split"])
def test_lists_of_rows_name_documents(tmp_path, numbered, method):
    """Rows differ between sweeps, documents do not. The list leaves out the same documents in another run."""
    open_documents, bad = numbered
    q = tmp_path / "q.jsonl"
    packed = fl.Packed(open_documents(), 8, method=method)
    source = fl.MinibatchSource(packed, max_sweeps=30, on_error=fl.Quarantine(q, limit=len(bad)))
    before = documents_delivered(source)
    entries = [json.loads(line) for line in q.read_text().splitlines()]
    documents = [entry["sequence"] for entry in entries]
    assert len(documents) == len(set(documents))
    assert set(documents) <= bad
    assert {entry["documents"] for entry in entries} == {packed.name.removesuffix(", packed")}
    assert [entry["line"] - 1 for entry in entries] == documents
    summary = fl.validate(packed, quarantine=tmp_path / "all.jsonl")
    every = [json.loads(line)["sequence"] for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert set(every) <= bad
    assert summary.damaged > 0
    listed(tmp_path / "bad.jsonl", sorted(bad))
    good = fl.Packed(fl.Skipping(open_documents(), tmp_path / "bad.jsonl"), 8, method=method)
    assert documents_delivered(fl.MinibatchSource(good, max_sweeps=30)) == before
    with pytest.raises(ValueError, match=r"skip before packing, fl.Packed\(fl.Skipping\("):
        fl.MinibatchSource(packed, skip=q)
    with pytest.raises(fl.DataError, match="got one of documents of"):
        fl.Skipping(fl.ArrayDeserializer(x=np.zeros(60)), q)


@pytest.mark.parametrize("pack", [False, True])
def test_lists_of_tokenized_texts_name_texts(tmp_path, pack):
    """Also those that packing finds, and `validate`. Skipping them leaves out no other text."""
    bad = {2, 9, 30}
    samples = [b"\xff" if i in bad else bytes([65 + i]) * (i % 4 + 1) for i in range(40)]
    texts = fl.ArrayDeserializer({"text": fl.Value.from_bytes(samples)}, chunk_sequences=7)

    def corpus(texts):
        return fl.Packed(tokenized(texts), 4) if pack else tokenized(texts)

    def letters(source):
        return sorted({token for m in source.minibatches(16) for token in m["tokens"].rows.tolist()} - {0})

    q, found = tmp_path / "q.jsonl", tmp_path / "validated.jsonl"
    good = letters(fl.MinibatchSource(corpus(texts), max_sweeps=1, on_error=fl.Quarantine(q)))
    assert good == sorted(65 + i for i in range(40) if i not in bad)
    summary = fl.validate(corpus(texts), quarantine=found)
    assert summary.damaged == len(bad)
    assert pack or summary.sequences == 40
    for path in (q, found):
        assert {json.loads(line)["sequence"] for line in path.read_text().splitlines()} == bad
        source = fl.MinibatchSource(corpus(fl.Skipping(texts, path)), max_sweeps=1)
        assert letters(source) == good
        assert source.stats().skipped == len(bad)
    with pytest.raises(fl.DataError) as caught:
        letters(fl.MinibatchSource(corpus(texts), shuffle=False, max_sweeps=1))
    assert caught.value.sequence == 2
