"""Laws of rows of several rates: whole documents by their summed cost, all streams of the same documents, in order."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

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
OTHERS = ("patches", "sounds", "names")  # of other lengths than the tokens
STREAMS = ("tokens", "weight", "labels", "segment", "positions", *OTHERS, *(f"{name}_segment" for name in OTHERS))
BOUNDS = ("cu_seqlens", *(f"{name}_cu_seqlens" for name in OTHERS))


def arrays(lengths):
    """Streams of documents by (tokens, patches, sounds, names). All samples of a stream are different."""
    firsts = np.concatenate([np.zeros((1, 4), np.int64), np.cumsum(lengths, axis=0)])[:-1].tolist()
    places = list(zip(lengths, firsts, strict=True))
    return {
        "tokens": [np.arange(n[0], dtype=np.int32) + at[0] + 1 for n, at in places],
        "weight": [(np.arange(n[0]) + at[0]).astype(np.float32) / 2 for n, at in places],
        "patches": [np.arange(3 * n[1], dtype=np.float32).reshape(n[1], 3) + 3 * at[1] for n, at in places],
        "sounds": [np.arange(n[2], dtype=np.int16) + at[2] for n, at in places],
        "names": [[f"{at[3] + k}".encode() for k in range(n[3])] for n, at in places],
    }


def corpus_of(lengths, each=7):
    return fl.ArrayDeserializer(arrays(lengths), chunk_sequences=each)


class Uncounted(fl.UserDeserializer):
    """The same documents, whose lengths are known only once a chunk is read."""

    def __init__(self, lengths, each=7):
        super().__init__()
        self.corpus = corpus_of(lengths, each)
        self.schema = self.corpus.schema

    def num_chunks(self):
        return len(self.corpus.chunks())

    def get_chunk(self, chunk):
        return self.corpus.read(chunk)


@st.composite
def worlds(draw):
    """Lengths of documents, row, cost and method."""
    length = st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 12), st.integers(0, 2))
    number = st.sampled_from([1, 0.25, 0.1, Fraction(1, 3), "0.7", 0])
    cost = {"tokens": draw(st.sampled_from([1, 0.5, 2])), **{name: draw(number) for name in OTHERS}}
    lengths = draw(st.lists(length, min_size=1, max_size=40))
    row, method = draw(st.integers(2, 40)), draw(st.sampled_from(["best-fit", "first-fit"]))
    return lengths, row, cost, method


def packed_of(world, kind=corpus_of, each=7, long="drop"):
    lengths, row, cost, method = world
    return fl.Packed(kind(lengths, each), row, method=method, cost=cost, long=long, tokens="tokens", pad=7, seed=5)


def costs_of(world):
    """The exact cost of each document."""
    lengths, _, cost, _ = world
    return [
        sum((Fraction(str(c)) * n for c, n in zip(cost.values(), doc, strict=True)), Fraction(0)) for doc in lengths
    ]


def packs(world):
    return any(0 < cost <= world[1] for cost in costs_of(world))


def places_of(world):
    return int(world[1] / Fraction(str(world[2]["tokens"])))


def expected_rows(world, sweeps, each=7):
    """The documents of each row, by the slow twins of the kernels, with costs as whole numbers."""
    lengths, row, cost, method = world
    costs = costs_of(world)
    unit = np.lcm.reduce([Fraction(str(c)).denominator for c in cost.values()]).item()
    rows = []
    for sweep in range(sweeps):
        for chunk, first in enumerate(range(0, len(lengths), each)):
            documents = [i for i in range(first, min(first + each, len(lengths))) if 0 < costs[i] <= row]
            sizes = [int(costs[i] * unit) for i in documents]
            order = slow.fisher_yates(slow.hash_key([5, sweep, COMPANIONS, chunk]), len(documents))
            if method == "best-fit":
                places, offsets, count = slow_packing.best_fit(sizes, row * unit, order)
            else:
                places, offsets, count = slow_packing.first_fit(sizes, row * unit)
            by_place = sorted(zip(places, offsets, documents, strict=True))
            rows += [[document for place, _, document in by_place if place == k] for k in range(count)]
    return rows


def expected_streams(world, rows):
    """Streams of a minibatch with these documents in its rows, by a plain loop."""
    data, places = arrays(world[0]), places_of(world)
    streams = {name: [] for name in STREAMS}
    bounds = {name: [0] for name in BOUNDS}
    for documents in rows:
        line = {name: [] for name in STREAMS}
        for number, i in enumerate(documents, start=1):
            tokens = data["tokens"][i].tolist()
            line["tokens"] += tokens
            line["weight"] += data["weight"][i].tolist()
            line["labels"] += [*tokens[1:], IGNORE][: len(tokens)]
            line["segment"] += [number] * len(tokens)
            line["positions"] += range(len(tokens))
            bounds["cu_seqlens"].append(bounds["cu_seqlens"][-1] + len(tokens))
            for name in OTHERS:
                samples = data[name][i]
                line[name] += samples if name == "names" else samples.tolist()
                line[f"{name}_segment"] += [number] * len(samples)
                bounds[f"{name}_cu_seqlens"].append(bounds[f"{name}_cu_seqlens"][-1] + len(samples))
        missing = places - len(line["tokens"])
        for name, fill in {"tokens": 7, "weight": 0, "labels": IGNORE, "segment": 0, "positions": 0}.items():
            line[name] += [fill] * missing
        if missing:
            for name, ends in bounds.items():
                ends.append(ends[-1] + (missing if name == "cu_seqlens" else 0))
        for name, samples in line.items():
            streams[name].append(samples)
    return streams, bounds


def lists(minibatch, name):
    return [sequence if isinstance(sequence, list) else sequence.tolist() for sequence in minibatch[name].sequences()]


def rows_of(minibatch, each=None):
    """The documents of each row, after a check of all streams. ``each``: of documents counted when they were read."""
    rows = lists(minibatch, "document")
    return rows if each is None else [[(i >> 32) * each + i % 2**32 for i in row] for row in rows]


def check(world, minibatch, each=None):
    """Check all streams against a plain loop over the documents of the rows, and return these."""
    rows = rows_of(minibatch, each)
    streams, bounds = expected_streams(world, rows)
    for name in STREAMS:
        assert lists(minibatch, name) == streams[name], name
    for name in BOUNDS:
        assert minibatch[name].rows.tolist() == (bounds[name] if rows else []), name
        assert minibatch[name].rows.dtype == np.int32
        assert minibatch[name].num_sequences == len(rows)
    assert minibatch.num_samples == len(rows) * places_of(world)
    return rows


@given(worlds(), st.integers(1, 5), st.sampled_from([3, 7, 60]))
def test_rows_equal_a_plain_loop(world, count, each):
    if not packs(world):
        with pytest.raises(fl.DataError, match=r"documents with tokens|are longer and left out"):
            packed_of(world, each=each)
        return
    rows = expected_rows(world, 2, each)
    packed = packed_of(world, each=each)
    kept = sum(cost for cost in costs_of(world) if cost <= world[1])
    assert packed.fill == pytest.approx(float(kept / (len(rows) // 2 * world[1])), rel=1e-12)
    with fl.MinibatchSource(packed, shuffle=False, max_sweeps=2) as source:
        assert source.num_sequences == len(rows) / 2
        size = count * places_of(world)
        assert [row for minibatch in source.minibatches(size) for row in check(world, minibatch)] == rows


@given(worlds(), st.integers(1, 5), st.sampled_from([True, fl.Window(chunks=2)]), st.integers(0, 9))
def test_every_document_comes_once_a_sweep_and_no_row_costs_too_much(world, count, window, seed):
    if not packs(world):
        return
    costs, row = costs_of(world), world[1]
    with fl.MinibatchSource(packed_of(world), shuffle=window, seed=seed, max_sweeps=3) as source:
        total = source.num_sequences
        rows = [each for m in source.minibatches(count * places_of(world)) for each in check(world, m)]
    assert len(rows) == 3 * total
    for sweep in range(3):
        documents = [i for each in rows[sweep * total : (sweep + 1) * total] for i in each]
        assert sorted(documents) == [i for i, cost in enumerate(costs) if 0 < cost <= row]
    assert max(sum(costs[i] for i in each) for each in rows) <= row


@given(worlds(), st.sampled_from([corpus_of, Uncounted]), st.data())
def test_from_any_place_under_other_sizes_and_worlds(world, kind, data):
    if not packs(world):
        return
    each = None if kind is corpus_of else 7
    places, window = places_of(world), data.draw(st.sampled_from([True, False, fl.Window(chunks=2)]))

    def source():
        return fl.MinibatchSource(packed_of(world, kind), seed=3, max_sweeps=2, shuffle=window)

    with source() as whole:
        expected = [row for minibatch in whole.minibatches(4 * places) for row in check(world, minibatch, each)]
    rows, state = [], None
    while len(rows) < len(expected):
        with source() as resumed:
            if state is not None:
                resumed.load_state_dict(json.loads(state))
            before = resumed.state_dict()
            size, count = data.draw(st.integers(1, 9)) * places, data.draw(st.integers(1, 3))
            for rank in range(count):
                resumed.load_state_dict(before)
                minibatch = resumed.next_minibatch(size, (rank, count))
                rows += check(world, minibatch, each) if minibatch else []
            state = json.dumps(resumed.state_dict())
    assert rows == expected


@given(worlds(), st.integers(1, 4), st.sampled_from([3, 7, 60]))
def test_documents_counted_when_they_are_read_make_the_same_rows(world, chunks, each):
    if not packs(world):
        return
    size, window = 3 * places_of(world), fl.Window(chunks=chunks)
    with fl.MinibatchSource(packed_of(world, Uncounted, each), shuffle=window, max_sweeps=2) as source:
        packed_when_read = [check(world, minibatch, each) for minibatch in source.minibatches(size)]
    with fl.MinibatchSource(packed_of(world, each=each), shuffle=window, max_sweeps=2) as source:
        assert packed_when_read == [check(world, minibatch) for minibatch in source.minibatches(size)]


@given(worlds(), st.integers(2, 3), st.integers(2, 9))
def test_a_balance_by_several_lengths_gives_each_row_to_one_rank(world, count, rows):
    if not packs(world):
        return
    lengths, size = world[0], rows * places_of(world)
    asked = set()

    def work(tokens, patches):
        asked.update(zip(tokens.tolist(), patches.tolist(), strict=True))
        return tokens + patches / 4

    with fl.MinibatchSource(packed_of(world), seed=2, max_sweeps=1) as source:
        expected = [sorted(check(world, minibatch)) for minibatch in source.minibatches(size)]
    shares = []
    for rank in range(count):
        partition = fl.Partition((rank, count), balance=work)
        with fl.MinibatchSource(packed_of(world), seed=2, max_sweeps=1, partition=partition) as source:
            shares.append([check(world, minibatch) for minibatch in source.minibatches(size)])
    assert [sorted(itertools.chain(*parts)) for parts in zip(*shares, strict=True)] == expected
    assert asked <= {length[:2] for length in lengths}
    assert asked >= {lengths[i][:2] for minibatch in expected for row in minibatch for i in row}


@given(worlds(), st.integers(1, 5))
def test_a_plan_knows_the_documents_of_every_row(world, rows):
    if not packs(world):
        return
    with fl.MinibatchSource(packed_of(world), seed=4, max_sweeps=2) as source:
        documents = PackedDocuments(source.corpus)
        size = rows * places_of(world)
        planned = [documents.of(step.ids, step.chunks).by_row() for step in source.plan(size)]
        assert planned == [check(world, minibatch) for minibatch in source.minibatches(size)]


def test_a_mixture_and_a_loader_give_the_same_rows():
    rng = np.random.default_rng(3)
    cost = {"tokens": 1, "patches": 0.25, "sounds": 0.5, "names": 0}
    world = [tuple(each) for each in rng.integers(0, 9, (90, 4)).tolist()], 24, cost, "best-fit"
    mixture = fl.Mixture({"a": packed_of(world), "b": packed_of(world)}, {"a": 2, "b": 1}, block=3)
    with fl.MinibatchSource(mixture, seed=1, max_samples=24 * 60) as source:
        rows = [row for minibatch in source.minibatches(24 * 5) for row in check(world, minibatch)]
    assert len(rows) == 60
    with fl.MinibatchSource(packed_of(world), shuffle=False, max_sweeps=1) as source:
        minibatches = list(source.minibatches(24 * 5))
    batches = list(fl.DataLoader(packed_of(world), batch_size=5))
    for batch, minibatch in zip(batches, minibatches, strict=True):
        for name in (*BOUNDS, "tokens", "labels", "segment", "patches", "patches_segment", "sounds_segment"):
            expected = minibatch[name].rows if name in BOUNDS else minibatch[name].padded()
            assert batch[name].tolist() == expected.tolist()
        assert batch["names"] == lists(minibatch, "names")
        assert batch["lengths"]["patches"].tolist() == minibatch["patches"].lengths.tolist()
        assert "patches_cu_seqlens" not in batch["lengths"]


def test_a_store_knows_the_lengths_of_all_streams(tmp_path):
    rng = np.random.default_rng(4)
    cost = {"tokens": 1, "patches": 0.25, "sounds": 0.5, "names": 0}
    world = [tuple(each) for each in rng.integers(0, 9, (90, 4)).tolist()], 24, cost, "best-fit"
    fl.convert(corpus_of(world[0]), tmp_path / "store")
    packed = packed_of(world, lambda *_: fl.open_corpus(tmp_path / "store"))
    assert packed.fill == packed_of(world, each=90).fill
    with fl.MinibatchSource(packed, max_sweeps=1) as source:
        documents = [i for m in source.minibatches(240) for row in check(world, m) for i in row]
    assert sorted(documents) == [i for i, each in enumerate(costs_of(world)) if 0 < each <= 24]


def test_a_state_of_other_costs_is_refused():
    lengths, cost = [(4, 8, 2, 1)] * 30, {"tokens": 1, "patches": 0.25, "sounds": 0, "names": 0}
    others = [cost | {"patches": 0.5}, {"tokens": 1, "patches": 0.25, "names": 0, "sounds": 0.25}]
    with fl.MinibatchSource(packed_of((lengths, 16, cost, "best-fit"))) as source:
        source.next_minibatch(32)
        state = source.state_dict()
    for other in others:
        source = fl.MinibatchSource(packed_of((lengths, 16, other, "best-fit")))
        with source, pytest.raises(fl.StateError):
            source.load_state_dict(state)
    same = dict(reversed((cost | {"patches": Fraction(1, 4)}).items()))
    with fl.MinibatchSource(packed_of((lengths, 16, same, "best-fit"))) as source:
        source.load_state_dict(state)


def test_lengths_that_a_format_does_not_know_are_counted_when_read(tmp_path):
    """A text has an index with the longest stream of each line only."""
    lengths = [(1 + i % 5, i % 9) for i in range(60)]
    lines = [json.dumps({"tokens": [i] * n, "patches": [[i, k] for k in range(p)]}) for i, (n, p) in enumerate(lengths)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    streams = {"tokens": fl.Stream((), "int32"), "patches": fl.Stream(2, "float32")}
    corpus = fl.JSONLinesDeserializer(tmp_path / "rows.jsonl", streams, sequences=["tokens", "patches"], chunk_size=400)
    packed = fl.Packed(corpus, 12, cost={"tokens": 1, "patches": 0.5})
    with pytest.raises(ValueError, match="lengths are known before reading"):
        assert packed.fill
    with fl.MinibatchSource(packed, max_sweeps=1) as source:
        seen = []
        for minibatch in source.minibatches(24):
            bounds, of_patches = minibatch["cu_seqlens"].rows, minibatch["patches_cu_seqlens"].rows
            filled = np.flatnonzero(minibatch["segment"].rows[bounds[:-1]])
            tokens, patches = minibatch["tokens"].rows, minibatch["patches"].rows
            seen += [
                (tokens[bounds[k] : bounds[k + 1]].tolist(), patches[of_patches[k] : of_patches[k + 1]].tolist())
                for k in filled
            ]
    assert sorted(seen) == [([i] * n, [[i, k] for k in range(p)]) for i, (n, p) in enumerate(lengths)]


def test_costs_are_not_rounded():
    """Three samples of 0.1 cost 0.3, not 0.30000000000000004."""
    lengths = [(1, 20, 0, 0), (0, 3, 0, 0), (0, 27, 0, 0)] * 20
    packed = packed_of((lengths, 3, {"tokens": 1, "patches": 0.1, "sounds": 0, "names": 0}, "best-fit"), each=60)
    assert packed.fill == 1
    assert packed.dropped == 0


def test_documents_that_cost_more_than_a_row():
    cost = {"tokens": 1, "patches": 0.25, "sounds": 0.5, "names": 0}
    world = [(4, 16, 0, 1), (4, 17, 0, 1), (0, 0, 17, 0), (8, 0, 0, 0), (0, 0, 0, 3)], 8, cost, "best-fit"
    packed = packed_of(world)
    assert packed.dropped == 2
    with fl.MinibatchSource(packed, max_sweeps=1) as source:
        assert sorted(check(world, source.next_minibatch(160))) == [[0], [3]]
    for long in ("error", None):
        with pytest.raises(fl.DataError, match=r"at most 8 by tokens: 1, patches: 1/4.*got one of 8\.25") as raised:
            packed_of(world, long=long)
        assert raised.value.sequence == 1
        source = fl.MinibatchSource(packed_of(world, Uncounted, long=long))
        with source, pytest.raises(fl.DataError, match=r"got one of 8\.25"):
            source.next_minibatch(8)
    with pytest.raises(fl.DataError, match=r"at most 1 by .*: 2 are longer and left out"):
        packed_of(([(2, 0, 0, 0), (0, 5, 0, 0)], 1, cost, "best-fit"))


@pytest.mark.parametrize("kind", [corpus_of, Uncounted])
def test_an_unreadable_document_costs_at_most_its_row(kind, tmp_path):
    class Damaged(fl.UserDeserializer):
        """Documents 3 and 17 cannot be read, and have no samples in their chunks."""

        def __init__(self, lengths, each):
            super().__init__()
            self.corpus = kind(lengths, each)
            self.schema = self.corpus.schema

        def num_chunks(self):
            return -(-40 // 7)

        def get_chunk(self, chunk):
            source = self.corpus if kind is corpus_of else self.corpus.corpus
            read = source.read(chunk)
            bad = {i - 7 * chunk: fl.DataError("planted") for i in (3, 17) if i // 7 == chunk}
            values = {
                name: type(value).from_bytes([[] if i in bad else s for i, s in enumerate(value.sequences())], "bytes")
                if name == "names"
                else fl.Value.from_sequences([s[: 0 if i in bad else None] for i, s in enumerate(value.sequences())])
                for name, value in read.values.items()
            }
            return fl.Chunk(self.schema, values, bad)

    lengths = [(3 + i % 3, i % 5, 1, 1) for i in range(40)]
    world = lengths, 12, {"tokens": 1, "patches": 0.25, "sounds": 0, "names": 0}, "best-fit"
    listed = tmp_path / "bad.jsonl"
    with fl.MinibatchSource(packed_of(world, Damaged), max_sweeps=1, on_error=fl.Quarantine(listed)) as source:
        rows = [row for minibatch in source.minibatches(48) for row in check(world, minibatch, 7)]
    assert sorted(i for row in rows for i in row) == [i for i in range(40) if i not in (3, 17)]
    assert len(listed.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cost": {"patches": 1}}, fl.SchemaError, "cost of Packed for `tokens`"),
        ({"cost": {"tokens": 1, "frames": 1}}, fl.SchemaError, "others of the streams tokens, weight"),
        ({"cost": 3}, TypeError, "mapping from streams"),
        ({"cost": {"tokens": 1, "patches": "x"}}, ValueError, "cost of a sample of `patches`"),
        ({"cost": {"tokens": 1, "patches": -1}}, ValueError, "of at least 0"),
        ({"cost": {"tokens": 1, "patches": float("inf")}}, ValueError, "finite number"),
        ({"cost": {"tokens": 0, "patches": 1}}, ValueError, "cost of a token"),
        ({"cost": {"tokens": 9, "patches": 1}}, ValueError, "up to row, 8"),
        ({"cost": {"tokens": 1, "patches": "0.00000001"}}, ValueError, "smaller common denominator"),
        ({"cost": {"tokens": 1}, "method": "split"}, ValueError, 'got method="split"'),
        ({"cost": {"tokens": 1}, "long": "split"}, ValueError, 'got long="split"'),
    ],
)
def test_arguments_out_of_range(options, error, message):
    with pytest.raises(error, match=message):
        fl.Packed(corpus_of([(3, 4, 0, 0)]), 8, tokens="tokens", **options)


def test_streams_without_a_cost_are_as_long_as_the_tokens():
    corpus = fl.ArrayDeserializer(tokens=[np.arange(4)], patches=[np.zeros((3, 2))])
    source = fl.MinibatchSource(fl.Packed(corpus, 8, cost={"tokens": 1}))
    with source, pytest.raises(fl.DataError, match=r'expected 4 samples(.|\n)*cost=\{"tokens": 1, "patches": \.\.\.\}'):
        source.next_minibatch(8)
    taken = fl.ArrayDeserializer(tokens=[np.arange(4)], patches=[np.zeros((3, 2))], patches_segment=[np.zeros((4, 1))])
    with pytest.raises(fl.SchemaError, match="without a stream `patches_segment`"):
        fl.Packed(taken, 8, cost={"tokens": 1, "patches": 1})


def test_rows_of_several_rates_are_not_cut():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed.device_mesh import init_device_mesh

    from tests.fake_ranks import as_rank

    packed = packed_of(([(3, 4, 0, 0)], 8, dict.fromkeys(("tokens", *OTHERS), 1), "best-fit"))
    assert torch.distributed.is_available()
    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
        with pytest.raises(fl.SchemaError, match="`patches` has a length of its own; leave out cut="):
            fl.MinibatchSource(packed, partition=fl.Partition(mesh, cut="contiguous"))
