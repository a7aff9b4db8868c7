"""Laws of packing: every token comes once a sweep, at its place, after any restore and with any sizes."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.feed.composed.packed import COMPANIONS
from feedline.feed.packed_documents import PackedDocuments
from tests.oracles import order as slow
from tests.oracles import packed as slow_packing

IGNORE = -100
METHODS = ("best-fit", "first-fit", "split")


def documents(lengths, seed=0):
    """One array of tokens for each document. All tokens are different, from 1."""
    ends = np.cumsum(lengths)
    tokens = np.arange(1, int(ends[-1]) + 1, dtype=np.int32) if len(lengths) else np.empty(0, np.int32)
    return np.split(tokens, ends[:-1])


class Read(fl.Deserializer):
    """Documents in several chunks, with a mask of the same length."""

    def __init__(self, docs, each=9, bad=()):
        self.schema = fl.Schema({"tokens": fl.Stream((), "int32"), "mask": fl.Stream((), "uint8")})
        self.docs, self.each, self.bad, self.reads = docs, each, bad, 0

    def chunks(self):
        parts = [self.docs[a : a + self.each] for a in range(0, len(self.docs), self.each)]
        return [fl.ChunkInfo(len(part), sum(map(len, part)), 4 * sum(map(len, part))) for part in parts]

    def read(self, chunk):
        self.reads += 1
        first = chunk * self.each
        part = self.docs[first : first + self.each]
        values = {
            "tokens": fl.Value.from_sequences(part),
            "mask": fl.Value.from_sequences([(doc % 3 == 0).astype(np.uint8) for doc in part]),
        }
        errors = {i: fl.DataError("planted") for i in range(len(part)) if first + i in self.bad}
        return fl.Chunk(self.schema, values, errors)

    def lengths(self, ordinals):
        return np.array([len(self.docs[i]) for i in ordinals.tolist()], np.int64)

    def digest(self):
        return "00"


class ReadUncounted(fl.UserDeserializer):
    """The same documents, whose number and lengths are known only once a chunk is read."""

    schema = fl.Schema({"tokens": fl.Stream((), "int32"), "mask": fl.Stream((), "uint8")})

    def __init__(self, docs, each=9, bad=()):
        super().__init__()
        self.texts = Read(docs, each, bad)

    @property
    def reads(self):
        return self.texts.reads

    def num_chunks(self):
        return len(self.texts.chunks())

    def get_chunk(self, chunk):
        return self.texts.read(chunk)


@st.composite
def worlds(draw):
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=50).filter(any))
    return lengths, draw(st.integers(1, 30)), draw(st.sampled_from(METHODS)), draw(st.sampled_from(["split", "drop"]))


def packed_of(world, each=9, kind=Read):
    lengths, row, method, long = world
    return fl.Packed(kind(documents(lengths), each), row, method=method, long=long, tokens="tokens", seed=5)


def source_of(world, *, each=9, seed=3, kind=Read, **options):
    return fl.MinibatchSource(packed_of(world, each, kind), seed=seed, **options)


def packs(world):
    lengths, row, method, long = world
    return method == "split" or long == "split" or any(0 < n <= row for n in lengths)


def rows_of(minibatch, row):
    """Rows as dictionaries of lists. Bounds are counted from the beginning of the row."""
    rows = []
    bounds = minibatch["cu_seqlens"]
    for i in range(minibatch.num_sequences):
        fields = {
            name: minibatch[name].sequences()[i].tolist()
            for name in ("tokens", "mask", "labels", "segment", "positions", "document")
        }
        row_bounds = [int(b) - i * row for b in bounds.sequences()[i]]
        fields["bounds"] = [b for b in row_bounds if b < row]
        assert all(len(fields[name]) == row for name in ("tokens", "mask", "labels", "segment", "positions"))
        rows.append(fields)
    if rows:
        assert bounds.rows[-1] == len(rows) * row
        assert bounds.rows.dtype == np.int32
    return rows


def check_row(cells, docs):
    """A row has pieces of documents one after the other, then padding. Returns its part of each document."""
    pieces = []
    segment = np.array(cells["segment"])
    at = 0
    for number, document in enumerate(cells["document"], start=1):
        size = int((segment == number).sum())
        places = slice(at, at + size)
        positions = cells["positions"][places]
        assert segment[places].tolist() == [number] * size
        assert positions == list(range(positions[0], positions[0] + size))
        tokens = docs[document].tolist()
        assert cells["tokens"][places] == tokens[positions[0] : positions[0] + size]
        following = [*tokens, IGNORE][positions[0] + 1 : positions[0] + size + 1]
        assert cells["labels"][places] == following
        assert cells["mask"][places] == [int(token % 3 == 0) for token in cells["tokens"][places]]
        pieces.append((document, positions[0], size))
        at += size
    padding = len(segment) - at
    assert cells["tokens"][at:] == [0] * padding
    assert cells["labels"][at:] == [IGNORE] * padding
    assert not segment[at:].any()
    changes = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist()]
    assert cells["bounds"] == changes
    return pieces


@given(worlds(), st.integers(1, 5), st.sampled_from([3, 9, 60]))
def test_every_token_comes_once_a_sweep_where_it_belongs(world, count, each):
    lengths, row, method, long = world
    if not packs(world):
        with pytest.raises(fl.DataError, match=r"documents with tokens|are longer and left out"):
            source_of(world, each=each)
        return
    docs = documents(lengths)
    with source_of(world, each=each, max_sweeps=2) as source:
        total, rows = source.num_sequences, []
        for minibatch in source.minibatches(count * row):
            assert minibatch.num_samples == minibatch.num_sequences * row
            rows += [check_row(one, docs) for one in rows_of(minibatch, row)]
    assert len(rows) == 2 * total
    for sweep in range(2):
        pieces = sorted(piece for one in rows[sweep * total : (sweep + 1) * total] for piece in one)
        tokens_seen = {}
        for document, first, size in pieces:
            assert tokens_seen.get(document, 0) == first
            tokens_seen[document] = first + size
        expected_lengths = {
            i: n for i, n in enumerate(lengths) if n and (method == "split" or long == "split" or n <= row)
        }
        assert tokens_seen == expected_lengths


@given(worlds(), st.integers(1, 3))
def test_rows_follow_the_specification(world, sweeps):
    """Best fit by decreasing length, with equal lengths in keyed order, compared with the slow twins of the kernels."""
    lengths, row, _, long = world
    world = lengths, row, "best-fit", long
    if not packs(world):
        return
    each = 9
    expected = []
    for sweep in range(sweeps):
        for chunk, first in enumerate(range(0, len(lengths), each)):
            pieces = []
            for i, n in enumerate(lengths[first : first + each]):
                if long == "drop" and n > row:
                    continue
                pieces += [(first + i, a, min(row, n - a)) for a in range(0, n, row)]
            order = slow.fisher_yates(slow.hash_key([5, sweep, COMPANIONS, chunk]), len(pieces))
            if not pieces:
                continue
            places, offsets, count = slow_packing.best_fit([size for _, _, size in pieces], row, order)
            rows = [[] for _ in range(count)]
            for place, offset, piece in sorted(zip(places, offsets, pieces, strict=True)):
                rows[place].append((offset, piece))
            expected += [sorted(piece for _, piece in one) for one in rows]
    with source_of(world, each=each, max_sweeps=sweeps, shuffle=False) as source:
        delivered = [
            sorted(check_row(one, documents(lengths)))
            for minibatch in source.minibatches(7 * row)
            for one in rows_of(minibatch, row)
        ]
    assert delivered == expected


@given(worlds(), st.sampled_from([Read, ReadUncounted]), st.data())
def test_from_any_point_under_any_sizes_and_ranks(world, kind, data):
    if not packs(world):
        return
    _, row, _, _ = world
    window = data.draw(st.sampled_from([True, False, fl.Window(chunks=2)]))
    with source_of(world, kind=kind, max_sweeps=2, shuffle=window) as source:
        all_rows = [one for minibatch in source.minibatches(4 * row) for one in rows_of(minibatch, row)]
    out, state = [], None
    while len(out) < len(all_rows):
        with source_of(world, kind=kind, max_sweeps=2, shuffle=window) as source:
            if state is not None:
                source.load_state_dict(json.loads(state), verify=kind is Read and data.draw(st.booleans()))
            before = source.state_dict()
            size, count = data.draw(st.integers(6, 40)) * row, data.draw(st.integers(1, 2))
            for rank in range(count):
                source.load_state_dict(before)
                minibatch = source.next_minibatch(size, (rank, count))
                out += rows_of(minibatch, row) if minibatch else []
            state = json.dumps(source.state_dict())
    assert out == all_rows


def with_ordinals(rows, each):
    """Rows of documents that were counted when they were read, with the ordinals of documents counted before."""
    return [{**one, "document": [(d >> 32) * each + d % 2**32 for d in one["document"]]} for one in rows]


@given(worlds(), st.integers(1, 4), st.booleans(), st.sampled_from([3, 9, 60]), st.integers(1, 5))
def test_documents_counted_when_they_are_read_make_the_same_rows(world, chunks, shuffle, each, count):
    """In the order of the same window of chunks."""
    row = world[1]
    window, size = fl.Window(chunks=chunks) if shuffle else False, count * row
    with source_of(world, each=each, kind=ReadUncounted, max_sweeps=2, shuffle=window) as source:
        if not packs(world):
            with pytest.raises(fl.DataError, match=r"at least one sequence|longer and left out"):
                source.next_minibatch(size)
            return
        packed_when_read = [with_ordinals(rows_of(m, row), each) for m in source.minibatches(size)]
    with source_of(world, each=each, max_sweeps=2, shuffle=window) as source:
        assert packed_when_read == [rows_of(m, row) for m in source.minibatches(size)]


@given(st.integers(1, 40), st.integers(0, 5))
def test_without_a_window_the_first_ones_are_small(chunks, seed):
    """Windows of 1, 2 and 4 chunks, then 8. From the second sweep on all have 8."""
    world = [3, 11, 2] * chunks, 8, "best-fit", "split"
    options = {"each": 3, "kind": ReadUncounted, "max_sweeps": 2}
    with source_of(world, **options, shuffle=False) as source:
        in_order = [rows_of(m, 8)[0] for m in source.minibatches(8)]
    sweeps = in_order[: len(in_order) // 2], in_order[len(in_order) // 2 :]
    expected = []
    for sweep, rows in enumerate(sweeps):
        of_chunks = [[row for row in rows if row["document"][0] >> 32 == chunk] for chunk in range(chunks)]
        order = slow.fisher_yates(slow.hash_key([seed, sweep, 0]), chunks)
        bounds = [*([0, 1, 3] if sweep == 0 else [0]), *range(7 if sweep == 0 else 8, chunks, 8), chunks]
        bounds = [bound for bound in bounds if bound < chunks] + [chunks]
        for window, (a, b) in enumerate(itertools.pairwise(bounds)):
            of_window = [row for chunk in order[a:b] for row in of_chunks[chunk]]
            places = slow.fisher_yates(slow.hash_key([seed, sweep, 1, window]), len(of_window))
            expected += [of_window[place] for place in places]
    with source_of(world, **options, seed=seed) as source:
        assert [row for m in source.minibatches(24) for row in rows_of(m, 8)] == expected
        assert source.state_dict()["order"] == "feedline-2-unsized-swept"


def test_the_first_minibatch_waits_for_one_chunk():
    corpus = ReadUncounted(documents([5] * 90))
    with fl.MinibatchSource(fl.Packed(corpus, 16, tokens="tokens"), read_ahead=0) as source:
        assert source.next_minibatch(16) is not None
    assert corpus.reads == 1


def test_restoring_rows_that_are_counted_when_read_reads_one_window():
    def source_over(corpus):
        packed = fl.Packed(corpus, 16, tokens="tokens")
        return fl.MinibatchSource(packed, seed=3, shuffle=fl.Window(chunks=2), read_ahead=0)

    docs = documents([5] * 90)
    with source_over(ReadUncounted(docs)) as source:
        for _ in range(12):
            source.next_minibatch(32)
        state, expected = source.state_dict(), rows_of(source.next_minibatch(32), 16)
    assert state["order"] == "feedline-1-unsized-swept"
    assert (state["sweep"], state["window"]) == (0, 4)
    corpus = ReadUncounted(docs)
    with source_over(corpus) as source:
        source.load_state_dict(state)
        assert corpus.reads == 0
        assert rows_of(source.next_minibatch(32), 16) == expected
    assert corpus.reads == 2


@pytest.mark.parametrize("method", METHODS)
def test_an_unreadable_document_costs_no_other_its_row_where_rows_are_counted_when_read(tmp_path, method):
    docs = documents([5, 30, 7, 20] * 10)
    packed = fl.Packed(ReadUncounted(docs, bad=(3, 8, 39)), 16, method=method, tokens="tokens")
    listed = tmp_path / "bad.jsonl"
    with fl.MinibatchSource(packed, seed=1, max_sweeps=1, on_error=fl.Quarantine(listed)) as source:
        minibatches = list(source.minibatches(64))
        rows = [one for m in minibatches for one in with_ordinals(rows_of(m, 16), 9)]
    assert {m.num_sequences for m in minibatches[:-1]} == {4}  # and minibatches keep their size
    tokens = sorted(token for one in rows for token in one["tokens"] if token)
    assert tokens == sorted(t for i, doc in enumerate(docs) if i not in (3, 8, 39) for t in doc.tolist())
    assert {document for one in rows for document, _, _ in check_row(one, docs)} == set(range(40)) - {3, 8, 39}
    assert len(listed.read_text().splitlines()) == 3
    with fl.MinibatchSource(packed, seed=1) as source, pytest.raises(fl.DataError, match="planted"):
        for _ in range(20):
            source.next_minibatch(64)


def test_rows_that_are_counted_when_read_refuse_what_needs_their_number():
    packed = packed_of(([5] * 30, 16, "best-fit", "split"), kind=ReadUncounted)
    refused = [
        ("share of padding", lambda: packed.fill),
        ("number of rows", packed.chunks),
        ("documents of the rows", lambda: packed.documents(0)),
        ("MinibatchSource", lambda: fl.DataLoader(packed, batch_size=2)),
        ("order of its own to convert", lambda: fl.convert(packed, "store")),
        (r"fl\.convert", lambda: fl.Mixture({"a": packed})),
        ("balance=", lambda: fl.MinibatchSource(packed, partition=fl.Partition((0, 2), balance="squares"))),
        ("before reading", lambda: fl.MinibatchSource(packed).plan(64)),
        ("without chunk_info", lambda: fl.MinibatchSource(packed, shuffle=fl.Window(bytes=1 << 20))),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
    long = fl.Packed(ReadUncounted(documents([3, 9])), 8, tokens="tokens", long="error")
    with fl.MinibatchSource(long) as source, pytest.raises(fl.DataError, match="at most 8 tokens, got one of 9"):
        source.next_minibatch(8)


def documents_read(minibatches):
    return [rows.tolist() for minibatch in minibatches for rows in minibatch["document"].sequences()]


def documents_planned(corpus, plan):
    documents = PackedDocuments(corpus)
    return [row for step in plan for row in documents.of(step.ids, step.chunks).by_row()]


@given(worlds(), st.data())
def test_a_plan_knows_the_documents_of_every_row(world, data):
    if not packs(world):
        return
    _, row, _, _ = world
    place, size, count = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 9)) * row, data.draw(st.integers(1, 2))
    with source_of(world, max_sweeps=3) as source:
        source.seek(samples=place * row)
        position = source.position
        for rank in range(count):
            source.seek(position)
            planned = documents_planned(source.corpus, source.plan(size, partition=(rank, count)))
            assert planned == documents_read(source.minibatches(size, partition=(rank, count)))


@given(st.lists(worlds(), min_size=2, max_size=3), st.integers(0, 99), st.integers(1, 7))
def test_a_plan_of_a_mixture_of_mixtures_knows_them_too(worlds, seed, size):
    row = worlds[0][1]
    worlds = [(lengths, row, method, long) for lengths, _, method, long in worlds]
    if not all(map(packs, worlds)):
        return
    parts = [packed_of(world) for world in worlds]
    inner = fl.Mixture({"a": parts[0], "b": parts[1]}, {"a": 1, "b": 2}, block=3)
    for corpus in (
        fl.Mixture({"inner": inner, "c": parts[-1]}, {"inner": 2, "c": 3}, block=5),
        fl.Mixture({"a": parts[0], "b": parts[1]}, {"a": 1, "b": 2}, batches="one source", batch_size=2, block=2),
        fl.Bucketed(inner, boundaries=[row], budget=3 * row),
    ):
        with fl.MinibatchSource(corpus, seed=seed, max_samples=40 * row) as source:
            planned = documents_planned(corpus, source.plan(size * row))
            assert planned == documents_read(source.minibatches(size * row))


def test_a_plan_of_what_is_not_packed_has_no_documents():
    corpus = Read(documents([3, 4, 5]))
    with fl.MinibatchSource(corpus, max_sweeps=1) as source:
        (step,) = source.plan(100)
        assert step.chunks is None
        assert PackedDocuments(corpus).of(step.ids, step.chunks) is None


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_loader_gives_the_bounds_of_a_batch_in_one_row(layout):
    world = [5, 9, 30, 2, 2, 8, 17, 1, 12, 3, 3, 3], 16, "best-fit", "split"
    with source_of(world, shuffle=False, max_sweeps=1) as source:
        minibatches = list(source.minibatches(3 * 16))
    batches = list(fl.DataLoader(packed_of(world), batch_size=3, batch_sampler=fl.BatchByLength(layout=layout)))
    assert len(batches) == len(minibatches) > 1
    for batch, minibatch in zip(batches, minibatches, strict=True):
        assert batch["cu_seqlens"].tolist() == minibatch["cu_seqlens"].rows.tolist()
        assert "cu_seqlens" not in batch["lengths"]
        assert batch["lengths"]["document"].tolist() == minibatch["document"].lengths.tolist()
        assert batch["tokens"].tolist() == minibatch["tokens"].torch(layout=layout).tolist()


def test_companions_change_every_sweep_but_their_number_does_not():
    world = np.random.default_rng(1).integers(1, 12, 200).tolist(), 16, "best-fit", "split"
    with source_of(world, each=200, max_sweeps=2) as source:
        total = source.num_sequences
        rows = [frozenset(one["document"]) for m in source.minibatches(160) for one in rows_of(m, 16)]
    assert len(rows) == 2 * total
    assert len(set(rows[:total]) & set(rows[total:])) < total / 4


@pytest.mark.parametrize("method", METHODS)
def test_packed_corpora_are_mixed(method):
    parts, docs = {}, {}
    for k, name in enumerate(("a", "b")):
        docs[name] = [doc + 10_000 * k for doc in documents(np.random.default_rng(k).integers(1, 30, 60))]
        parts[name] = fl.Packed(Read(docs[name]), 32, method=method, tokens="tokens")
    mixture = fl.Mixture(parts, {"a": 3, "b": 1}, block=8)
    with fl.MinibatchSource(mixture, seed=1, max_samples=32 * 300) as source:
        rows_by_corpus = {"a": [], "b": []}
        for minibatch in source.minibatches(32 * 7):
            firsts = mixture.firsts
            for one, k in zip(rows_of(minibatch, 32), minibatch.source.tolist(), strict=True):
                name = mixture.names[k]
                rows_by_corpus[name].append(check_row(one, docs[name]))
            assert (firsts[minibatch.source] <= minibatch.ids).all()
    assert abs(len(rows_by_corpus["a"]) - 225) <= 8
    for name, rows in rows_by_corpus.items():
        total = sum(info.sequences for info in parts[name].chunks())
        for sweep in range(len(rows) // total):
            pieces = [p for row in rows[sweep * total : (sweep + 1) * total] for p in row]
            assert sum(size for _, _, size in pieces) == sum(map(len, docs[name]))


def test_a_row_with_an_unreadable_document_is_unreadable(tmp_path):
    docs = documents([5] * 40)
    packed = fl.Packed(Read(docs, bad=(3, 17)), 20, tokens="tokens")
    listed = tmp_path / "bad.jsonl"
    with fl.MinibatchSource(packed, seed=1, max_sweeps=1, on_error=fl.Quarantine(listed)) as source:
        pieces = [p for m in source.minibatches(60) for one in rows_of(m, 20) for p in check_row(one, docs)]
    gone = set(range(40)) - {document for document, _, _ in pieces}
    assert {3, 17} <= gone
    assert len(gone) <= 8
    assert len(listed.read_text().splitlines()) == len({int(i) for i in range(2)})
    with fl.MinibatchSource(packed, seed=1) as source, pytest.raises(fl.DataError, match="planted"):
        for _ in range(30):
            source.next_minibatch(20)


class Lost(Read):
    """As in formats, an unreadable sequence has no samples in its chunk."""

    def read(self, chunk):
        chunk_data = super().read(chunk)
        values = {
            name: fl.Value.from_sequences(
                [s[: 0 if i in chunk_data.errors else None] for i, s in enumerate(value.sequences())]
            )
            for name, value in chunk_data.values.items()
        }
        return fl.Chunk(self.schema, values, chunk_data.errors)


@pytest.mark.parametrize("method", METHODS)
def test_unreadable_documents_without_tokens_spoil_nothing_but_their_rows(tmp_path, method):
    docs = documents([5, 30, 7, 20] * 10)
    packed = fl.Packed(Lost(docs, bad=(3, 8, 39)), 16, method=method, tokens="tokens")  # 8 and 39 end their chunks
    with fl.MinibatchSource(packed, seed=1, max_sweeps=1, on_error=fl.Quarantine(tmp_path / "bad.jsonl")) as source:
        pieces = [p for m in source.minibatches(64) for one in rows_of(m, 16) for p in check_row(one, docs)]
    assert not {3, 8, 39} & {document for document, _, _ in pieces}
    assert len({document for document, _, _ in pieces}) > 20


def test_packed_alone_has_no_sources():
    with source_of(([3, 4], 8, "best-fit", "split")) as source:
        minibatch = source.next_minibatch(8)
    assert minibatch.source is None
    assert minibatch.sweep_ends == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": 0}, "row of Packed"),
        ({"row": 2**25}, "at most 16777216"),
        ({"row": 8, "method": "worst-fit"}, "method of Packed"),
        ({"row": 8, "long": "cut"}, "long of Packed"),
        ({"row": 8, "pad": 2**40}, "pad of Packed"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        fl.Packed(Read(documents([3])), tokens="tokens", **options)


def test_corpora_that_cannot_be_packed_are_reported():
    with pytest.raises(fl.SchemaError, match="name it: tokens="):
        fl.Packed(Read(documents([3])), 8)
    with pytest.raises(fl.SchemaError, match="expected a stream of integers"):
        fl.Packed(Read(documents([3])), 8, tokens="x")
    named = fl.ArrayDeserializer(tokens=documents([3]), name=["a"])
    with pytest.raises(fl.SchemaError, match="dense streams of numbers to pack"):
        fl.Packed(named, 8, tokens="tokens")
    with pytest.raises(fl.DataError, match="at most 8 tokens, got one of 9"):
        fl.Packed(Read(documents([3, 9])), 8, tokens="tokens", long="error")
    with pytest.raises(ValueError, match="pack each corpus, and mix the rows"):
        fl.Packed(fl.Mixture({"a": Read(documents([3]))}), 8, tokens="tokens")
    with pytest.raises(ValueError, match="packed alike"):
        fl.Mixture(
            {
                "a": fl.Packed(Read(documents([3])), 8, tokens="tokens"),
                "b": fl.Packed(Read(documents([3])), 9, tokens="tokens"),
            }
        )
    with pytest.raises(ValueError, match=r"fl\.Mixture"):
        fl.Concat(fl.Packed(Read(documents([3])), 8, tokens="tokens"))


@pytest.mark.parametrize("method", ["best-fit", "first-fit", "split"])
def test_unreadable_documents_whose_length_is_unknown_are_not_lost_without_a_word(tmp_path, method):
    """The index of a text counts no samples of a row that it cannot read."""
    rows = [json.dumps({"t": [i] * 20}) for i in range(35)]
    bad = {7: '{"t": 5}', 13: '{"t": [1, 2', 30: '{"t": ["x"]}', 34: "{}"}
    (tmp_path / "rows.jsonl").write_text("".join(f"{bad.get(i, row)}\n" for i, row in enumerate(rows)))
    corpus = fl.JSONLinesDeserializer(
        tmp_path / "rows.jsonl", t=fl.Stream((), "int64"), sequences=["t"], cache=False, chunk_size=300
    )
    packed = fl.Packed(corpus, 64, method=method)
    with fl.MinibatchSource(packed, max_sweeps=1) as source, pytest.raises(fl.DataError):
        list(source.minibatches(64))
    listed = fl.Quarantine(tmp_path / "list.jsonl")
    with fl.MinibatchSource(packed, max_sweeps=1, on_error=listed) as source:
        documents = {int(d) for minibatch in source.minibatches(64) for d in minibatch["document"].rows}
    reasons = [json.loads(line)["reason"] for line in next(tmp_path.glob("list*.jsonl")).read_text().splitlines()]
    assert documents.isdisjoint(bad)
    assert 1 <= len(reasons) <= len(bad)
    assert set(range(35)) - documents >= bad.keys()


@pytest.mark.parametrize("name", ["pieces", "segment", "labels", "cu_seqlens"])
def test_documents_with_the_name_of_an_added_stream_are_refused(name):
    documents = [np.arange(5, dtype=np.int32)] * 6
    corpus = fl.ArrayDeserializer({"tokens": documents, name: [np.ones(5, np.float32)] * 6})
    with pytest.raises(fl.SchemaError, match=f"`{name}`"):
        fl.Packed(corpus, 64)
