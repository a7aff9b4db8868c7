"""Laws of balanced shares: the same minibatches for all ranks together, divided by the work of their sequences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline as fl
from feedline.testing import sequences_of
from tests.laws.corpora import worlds
from tests.oracles.balance import balance as slow

RULES = {
    "squares": lambda length: length**2,
    "cubes": lambda length: length**3,
    "fractions": lambda length: length / 3 + 0.125,
    "even": lambda length: 0,
}


def rule(name):
    """Return the value of ``balance`` for a rule."""
    return "squares" if name == "squares" else lambda lengths: np.array([RULES[name](n) for n in lengths.tolist()])


def owners(name, lengths, count, counts=None):
    """Return the rank of each sequence by the twin, which compares fractions by 40 bits."""
    work = [RULES[name](n) for n in lengths]
    largest = max(work, default=0)
    if any(w != int(w) for w in work):
        work = [int(np.ldexp(w, 40 - np.frexp(largest)[1])) for w in work]
    return slow([int(w) for w in work], count, counts)


@given(worlds(), st.sampled_from(sorted(RULES)), st.integers(1, 60), st.integers(2, 5))
def test_ranks_share_each_minibatch_by_work(world, name, size, count):
    """Each sequence goes to the rank of the twin. Minibatches, positions and states are as without balance."""
    whole = world.source(max_sweeps=2)
    ranks = [world.source(max_sweeps=2, partition=fl.Partition((i, count), balance=rule(name))) for i in range(count)]
    plans = [world.source(max_sweeps=2, partition=fl.Partition((i, count), balance=rule(name))) for i in range(count)]
    planned = [list(plan.plan(size)) for plan in plans]
    step = 0
    while expected := whole.next_minibatch(size):
        owner = owners(name, [world.lengths[i] for i in expected.ids], count)
        every = sequences_of([expected])
        for i, rank in enumerate(ranks):
            part = rank.next_minibatch(size)
            assert (part.position, part.sweep_end) == (expected.position, expected.sweep_end)
            assert part.global_samples == expected.num_samples
            assert sequences_of([part]) == [one for one, at in zip(every, owner, strict=True) if at == i]
            assert planned[i][step].ids.tolist() == part.ids.tolist()
            assert planned[i][step].num_samples == part.num_samples
        step += 1
    assert not any(rank.next_minibatch(size) for rank in ranks)
    assert [rank.state_dict() for rank in ranks] == [whole.state_dict()] * count


@given(worlds(), st.integers(1, 30), st.integers(0, 4), st.integers(2, 4), st.integers(1, 4))
def test_a_state_continues_under_other_shares(world, size, steps, count, later):
    """A state of one balanced rank is that of the whole job: any number of ranks goes on from it, by any rule."""
    rank = world.source(partition=fl.Partition((count - 1, count), balance="squares"))
    plain = world.source()
    for _ in range(steps):
        rank.next_minibatch(size)
        plain.next_minibatch(size)
    assert rank.state_dict() == plain.state_dict()
    ranks = [world.source(partition=fl.Partition((i, later), balance=rule("cubes"))) for i in range(later)]
    for other in ranks:
        other.load_state_dict(rank.state_dict())
    together = sorted(one for other in ranks for one in sequences_of([other.next_minibatch(size)]))
    assert together == sorted(sequences_of([plain.next_minibatch(size)]))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=50), st.integers(0, 2**32), st.sampled_from([1, 3, 8]))
def test_rows_count_the_work_of_their_documents(lengths, seed, size):
    """A row of ``Packed`` has the sum of the squares of its documents, in the sweep that packs it."""
    ends = np.cumsum(lengths)
    tokens = np.split(np.arange(1, int(ends[-1]) + 1, dtype=np.int32), ends[:-1])
    row, count = 32, 3

    def source(partition=(0, 1)):
        corpus = fl.Packed(fl.ArrayDeserializer(tokens=tokens), row, seed=7)
        return fl.MinibatchSource(corpus, seed=seed, max_sweeps=2, partition=partition)

    whole = source()
    ranks = [source(fl.Partition((i, count), balance="squares")) for i in range(count)]
    while expected := whole.next_minibatch(size * row):
        segments = expected["segment"].sequences()
        work = [sum(int(n) ** 2 for n in np.bincount(segment)[1:]) for segment in segments]
        owner = np.array(slow(work, count))
        for i, rank in enumerate(ranks):
            part = rank.next_minibatch(size * row)
            assert part.ids.tolist() == expected.ids[owner == i].tolist()
            wanted = [segments[k].tolist() for k in np.flatnonzero(owner == i)]
            assert [segment.tolist() for segment in part["segment"].sequences()] == wanted


def numbers(n, count):
    """Return how many of ``n`` items each rank has by position."""
    return [sum(o * count // n == i for o in range(n)) for i in range(count)]


@pytest.mark.parametrize("drop_last", [False, True])
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.sampled_from(sorted(RULES)),
    st.integers(1, 6),
    st.integers(2, 4),
    st.sampled_from([False, True, "weighted"]),
)
def test_ranks_share_each_batch_by_work_and_number(drop_last, lengths, name, size, count, shuffle):
    """Ranks of a loader get as many items as by position, and the samplers' order is the same."""
    by_length = fl.BatchByLength(lengths=lengths)
    sampler = fl.Weighted(np.arange(1, len(lengths) + 1)) if shuffle == "weighted" else None

    def loader(batch_size, partition):
        return fl.DataLoader(
            [np.full(n, i) for i, n in enumerate(lengths)],
            batch_size=batch_size,
            shuffle=None if sampler else shuffle,
            sampler=sampler,
            seed=5,
            batch_sampler=by_length if isinstance(partition, fl.Partition) else None,
            collate_fn=lambda items: [(len(item), item[:1].tolist()) for item in items],
            drop_last=drop_last,
            partition=partition,
        )

    whole = list(loader(size * count, (0, 1)))
    ranks = [list(loader(size, fl.Partition((i, count), balance=rule(name)))) for i in range(count)]
    assert [len(rank) for rank in ranks] == [len(whole)] * count
    assert len(loader(size, fl.Partition((0, count), balance=rule(name)))) == len(whole)
    for step, expected in enumerate(whole):
        owner = owners(name, [n for n, _ in expected], count, numbers(len(expected), count))
        for i, rank in enumerate(ranks):
            wanted = [item for item, at in zip(expected, owner, strict=True) if at == i]
            assert rank[step] == wanted or (not wanted and len(rank[step]) == 0)


@given(worlds(order="feedline"), st.integers(1, 6), st.integers(2, 4))
def test_ranks_share_each_batch_of_a_corpus_by_work_and_number(world, size, count):
    def loader(batch_size, partition):
        return fl.DataLoader(
            world.corpus(), batch_size=batch_size, shuffle=True, seed=3, partition=partition, collate_fn=list
        )

    def content(items):
        # A sequence of one sample has no dimension for samples if all sequences of the batch's chunks are like that.
        return [(np.reshape(item["x"], (-1, 2))[:, 0].tolist(), np.reshape(item["t"], -1).tolist()) for item in items]

    whole = [content(items) for items in loader(size * count, (0, 1))]
    ranks = [list(loader(size, fl.Partition((i, count), balance="squares"))) for i in range(count)]
    assert [len(rank) for rank in ranks] == [len(whole)] * count
    for step, expected in enumerate(whole):
        owner = owners("squares", [len(x) for x, _ in expected], count, numbers(len(expected), count))
        for i, rank in enumerate(ranks):
            assert content(rank[step]) == [item for item, at in zip(expected, owner, strict=True) if at == i]


@given(st.lists(st.integers(1, 50), min_size=12, max_size=40), st.integers(0, 3), st.integers(2, 3))
def test_a_loader_resumes_with_other_balanced_ranks(lengths, steps, later):
    """The batches after a state are those of the whole job, whoever goes on."""

    def loader(size, partition):
        return fl.DataLoader(
            [np.full(n, i) for i, n in enumerate(lengths)],
            batch_size=size,
            shuffle=True,
            seed=5,
            batch_sampler=fl.BatchByLength(lengths=lengths),
            collate_fn=lambda items: [int(item[0]) for item in items],
            partition=partition,
        )

    first = loader(2, fl.Partition((1, 2), balance="squares"))
    batches = iter(first)
    for _ in range(steps):
        next(batches)
    state = first.state_dict()
    whole = loader(12 // later * later, fl.Partition((0, 1), balance="squares"))
    whole.load_state_dict(state)
    ranks = [loader(12 // later, fl.Partition((i, later), balance="squares")) for i in range(later)]
    for rank in ranks:
        rank.load_state_dict(state)
    for expected, *parts in zip(whole, *ranks, strict=True):
        assert sorted(item for part in parts for item in part) == sorted(expected)


def test_shares_are_as_even_as_longest_first_makes_them():
    lengths = np.random.default_rng(0).lognormal(6, 1, 20000).astype(int).clip(16, 8192)
    corpus = fl.ArrayDeserializer(t=[np.zeros(n, np.int8) for n in lengths])
    loads = {"samples": [], "squares": []}
    for name, found in loads.items():
        ranks = [fl.MinibatchSource(corpus, partition=fl.Partition((i, 64), balance=name)) for i in range(64)]
        for _ in range(2):
            parts = [next(rank.plan(64 * 65536)) for rank in ranks]
            work = [float((lengths[part.ids].astype(float) ** 2).sum()) for part in parts]
            found.append(max(work) / np.mean(work))
    assert max(loads["squares"]) < 1.05 < 1.5 < min(loads["samples"])


TEXTS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3]
PATCHES = [(7 * n) % 11 for n in range(len(TEXTS))]


def two_streams(texts=TEXTS, patches=PATCHES):
    """Return a corpus of two streams of different lengths, and a label."""
    return fl.ArrayDeserializer(
        text=[np.full(n, i, np.int32) for i, n in enumerate(texts)],
        patches=[np.zeros((n, 2), np.float32) for n in patches],
        label=np.arange(len(texts)),
        defines_size="text",
        chunk_sequences=4,
    )


def stored(folder):
    fl.convert(two_streams(), folder)
    return fl.open_corpus(folder)


def joined(_):
    """Return the same from two corpora, of which one has but one stream, and its sequences in reverse."""
    keys = np.arange(len(TEXTS))[::-1]
    images = fl.ArrayDeserializer(patches=[np.zeros((PATCHES[i], 2), np.float32) for i in keys])
    texts = fl.ArrayDeserializer(text=[np.full(n, i, np.int32) for i, n in enumerate(TEXTS)], defines_size="text")
    return fl.Join(texts, Reversed(images), cache=False)


class Reversed(fl.Deserializer, fl.Keyed):
    """A corpus of one stream that knows lengths of sequences alone, and whose keys count down."""

    def __init__(self, corpus):
        self.corpus, self.schema, self.name = corpus, corpus.schema, "reversed"

    def chunks(self):
        return self.corpus.chunks()

    def read(self, chunk):
        return self.corpus.read(chunk)

    def digest(self):
        return self.corpus.digest()

    def lengths(self, ordinals):
        return self.corpus.lengths(ordinals)

    def keys(self, ordinals):
        return (len(TEXTS) - 1 - ordinals).astype(np.uint64)


#: Corpora that know the lengths of their streams.
KNOWN = {
    "arrays": lambda _: two_streams(),
    "store": stored,
    "concatenated": lambda _: fl.Concat(two_streams(TEXTS[:9], PATCHES[:9]), two_streams(TEXTS[9:], PATCHES[9:])),
    "taken": lambda _: fl.Take(two_streams([8, 8, *TEXTS], [1, 9, *PATCHES]), 2, None),
    "joined": joined,
    "bucketed": lambda _: fl.Bucketed(two_streams(), 2, budget=40),
}


@pytest.mark.parametrize("kind", sorted(KNOWN))
def test_work_may_follow_from_several_streams(tmp_path, kind):
    """Parameters name the streams, whatever the samples of a sequence are. Nothing is read to know their lengths."""
    corpus, count = KNOWN[kind](tmp_path / "store"), 3
    whole = fl.MinibatchSource(corpus, seed=2, max_sweeps=2)

    def work(patches, text):
        return text**2 + 10 * patches

    ranks = [
        fl.MinibatchSource(corpus, seed=2, max_sweeps=2, partition=fl.Partition((i, count), balance=work))
        for i in range(count)
    ]
    uneven, reads = False, 0
    while expected := whole.next_minibatch(40):
        lengths = [
            (len(t), len(p)) for t, p in zip(*(expected[n].sequences() for n in ("text", "patches")), strict=True)
        ]
        owner = np.array(slow([text**2 + 10 * patches for text, patches in lengths], count))
        uneven = uneven or not np.array_equal(owner, slow([text**2 for text, _ in lengths], count))
        for i, rank in enumerate(ranks):
            part = rank.next_minibatch(40)
            assert part.ids.tolist() == expected.ids[owner == i].tolist()
        reads += 1
    assert uneven
    assert reads > 3


def test_a_function_of_one_parameter_takes_samples_unless_it_is_a_stream():
    short = [np.zeros(n) for n in PATCHES]  # streams with the names of parameters that take samples by place
    texts = [np.zeros(n) for n in TEXTS]
    corpus = fl.ArrayDeserializer(text=texts, patches=short, x=short, lengths=short, label=TEXTS, defines_size="text")

    def first(balance):
        source = fl.MinibatchSource(corpus, partition=fl.Partition((0, 3), balance=balance))
        return source.next_minibatch(60).ids.tolist()

    assert first(lambda anything: anything**2) == first(lambda text: text**2) == first("squares") == first(np.square)
    assert first(lambda patches: patches**2) == first(lambda *, patches: patches**2) != first("squares")
    assert first(lambda label: label) == first(lambda n: np.ones(len(n)))


def test_a_loader_balances_a_corpus_by_several_streams():
    def loader(batch_size, partition):
        return fl.DataLoader(
            two_streams(), batch_size=batch_size, shuffle=True, seed=3, partition=partition, collate_fn=list
        )

    def work(text, patches):
        return text + 5 * patches

    whole = list(loader(6, (0, 1)))
    ranks = [list(loader(2, fl.Partition((i, 3), balance=work))) for i in range(3)]
    for step, expected in enumerate(whole):
        loads = [len(item["text"]) + 5 * len(item["patches"]) for item in expected]
        owner = slow(loads, 3, numbers(len(expected), 3))
        for i, rank in enumerate(ranks):
            wanted = [int(item["label"]) for item, at in zip(expected, owner, strict=True) if at == i]
            assert [int(item["label"]) for item in rank[step]] == wanted


def test_all_streams_of_documents_in_rows_have_one_length():
    tokens = [np.ones(n, np.int32) for n in TEXTS]
    corpus = fl.Packed(fl.ArrayDeserializer(tokens=tokens, mask=tokens, defines_size="tokens"), 12, tokens="tokens")

    def shares(balance):
        ranks = [fl.MinibatchSource(corpus, partition=fl.Partition((i, 2), balance=balance)) for i in range(2)]
        return [rank.next_minibatch(72).ids.tolist() for rank in ranks]

    assert shares(lambda tokens, mask: tokens * mask) == shares("squares")


def test_lengths_that_are_unknown_before_reading_are_refused(tmp_path):
    fl.write_ctf(tmp_path / "two.ctf", text=[np.ones((n, 1)) for n in (1, 2, 3)], patches=[np.ones((2, 1))] * 3)
    text = fl.open_corpus(tmp_path / "two.ctf", streams={"text": fl.Stream(1), "patches": fl.Stream(1)})
    partition = fl.Partition((0, 2), balance=lambda text, patches: text + patches)
    with pytest.raises(ValueError, match=r"lengths of stream `text` that are known before .* writes a store"):
        fl.MinibatchSource(text, partition=partition)
    with pytest.raises(ValueError, match=r"lengths of stream `text` that are known before"):
        fl.DataLoader(text, batch_size=2, partition=partition)
    with pytest.raises(ValueError, match=r"names of streams \(text, patches, label\), got the parameter `pictures`"):
        fl.MinibatchSource(two_streams(), partition=fl.Partition((0, 2), balance=lambda text, pictures: text))
    by_length = fl.BatchByLength(lengths=TEXTS)
    with pytest.raises(ValueError, match=r"\(a dataset has none\), got the parameter `text`"):
        fl.DataLoader(range(len(TEXTS)), batch_size=2, batch_sampler=by_length, partition=partition)


def test_work_that_is_no_number_names_all_lengths():
    source = fl.MinibatchSource(
        two_streams(), shuffle=False, partition=fl.Partition((0, 2), balance=lambda text, patches: text - 4.0 * patches)
    )
    with pytest.raises(ValueError, match=r"got -27.0 for length text 1, patches 7"):
        source.next_minibatch(60)


# ---- how uneven ranks are -----------------------------------------------------------------------------


def unevenness(rules, lengths, count):
    """Return the largest work of a rank over the mean, by balance and measure, slow and obvious."""
    starts, total = np.cumsum([0, *lengths]), sum(lengths)
    owners = {"samples": [min(int(o) * count // total if total else count, count - 1) for o in starts[:-1]]}
    owners |= {name: slow([rule(n) for n in lengths], count) for name, rule in rules.items()}
    figures = {}
    for balance, owner in owners.items():
        figures[balance] = {}
        for measure, rule in {"samples": lambda n: n, **rules}.items():
            loads = [sum(rule(n) for n, at in zip(lengths, owner, strict=True) if at == i) for i in range(count)]
            figures[balance][measure] = pytest.approx(max(loads) * count / sum(loads) if sum(loads) else 1.0)
    return figures


@given(worlds(), st.integers(1, 60), st.integers(2, 5), st.sampled_from(["samples", "squares", "function"]))
def test_a_plan_shows_how_uneven_ranks_are_under_each_balance(world, size, count, balance):
    """The figures are the same on every rank, and those of the source after the minibatch, without reading."""
    rules = {"squares": RULES["squares"]} | ({"function": RULES["cubes"]} if balance == "function" else {})
    partitions = [
        fl.Partition((i, count), balance=rule("cubes") if balance == "function" else balance) for i in range(count)
    ]
    ranks = [world.source(max_sweeps=2, partition=partition) for partition in partitions]
    planned = [list(rank.plan(size)) for rank in ranks]
    assert all(rank.corpus.reads == [] for rank in ranks)
    whole = world.source(max_sweeps=2)
    for step, expected in enumerate(whole.minibatches(size)):
        figures = unevenness(rules, [world.lengths[i] for i in expected.ids], count)
        for i, rank in enumerate(ranks):
            assert planned[i][step].unevenness() == figures
            assert rank.next_minibatch(size)
            assert (rank.stats().balance, rank.stats().unevenness) == (balance, figures)


def test_rows_are_as_uneven_as_their_documents():
    tokens = [np.ones(n, np.int32) for n in TEXTS * 4]
    corpus = fl.Packed(fl.ArrayDeserializer(tokens=tokens), 12)
    source = fl.MinibatchSource(corpus, partition=(0, 4))
    expected = fl.MinibatchSource(corpus, partition=(0, 1)).next_minibatch(288)
    work = [sum(int(n) ** 2 for n in np.bincount(segment)[1:]) for segment in expected["segment"].sequences()]
    by_place = [sum(work[i : i + 6]) for i in range(0, 24, 6)]
    by_work = np.bincount(slow(work, 4), weights=work)
    figures = next(source.plan(288)).unevenness()
    assert figures["samples"] == {"samples": 1.0, "squares": pytest.approx(max(by_place) / np.mean(by_place))}
    assert figures["squares"]["squares"] == pytest.approx(by_work.max() / by_work.mean())
    # Documents are looked up for a plan and a balance alone.
    balanced = fl.MinibatchSource(corpus, partition=fl.Partition((0, 4), balance="squares"))
    for each in (source, balanced):
        each.next_minibatch(288)
    assert source.stats().unevenness == {}
    assert balanced.stats().unevenness == figures


def test_figures_of_a_plan_are_those_of_its_order():
    """Another order of the source, from a later place on, does not change what was planned."""
    parts = {
        name: fl.ArrayDeserializer(x=[np.zeros(n) for n in lengths])
        for name, lengths in (("a", TEXTS * 9), ("b", [50, 1] * 90))
    }
    source = fl.MinibatchSource(fl.Mixture(parts, weights={"a": 9, "b": 1}, block=8), partition=(0, 3))
    source.next_minibatch(100)
    planned = list(itertools.islice(source.plan(100), 12))
    figures = [each.unevenness() for each in planned]
    source.change_weights({"a": 1, "b": 9})
    assert [each.unevenness() for each in planned] == figures
    assert [each.unevenness() for each in itertools.islice(source.plan(100), 12)] != figures
    assert source.stats().unevenness == {}  # the minibatch before the change was of the other order


class Unsized(fl.UserDeserializer):
    """Chunks whose sizes are unknown before they are read."""

    def __init__(self):
        self.reads = []

    def streams(self):
        return {"x": fl.Stream(())}

    def num_chunks(self):
        return 9

    def get_chunk(self, chunk):
        self.reads.append(chunk)
        return {"x": [np.zeros(n, np.float32) for n in TEXTS]}


def test_figures_of_corpora_of_unknown_sizes_are_not_read():
    corpus = Unsized()
    source = fl.MinibatchSource(
        corpus, shuffle=fl.Window(chunks=1), partition=fl.Partition((0, 2), balance="squares"), read_ahead=0
    )
    for _ in range(3):
        source.next_minibatch(110)  # a chunk has 118 samples
        before = list(corpus.reads)
        assert source.stats().unevenness == {}
        assert corpus.reads == before


def test_feeds_that_cannot_be_balanced_have_no_figures():
    corpus = fl.ArrayDeserializer(x=[np.zeros(3), np.zeros(2)] * 20, chunk_sequences=2)
    for settings in ({"filling": "cntk"}, {"truncation_length": 4}, {"order": fl.Arcs(4)}):
        source = fl.MinibatchSource(corpus, partition=(0, 2), max_sweeps=1, **settings)
        assert next(source.plan(10)).unevenness() == {}
        assert source.next_minibatch(10)
        assert source.stats().unevenness == {}
    alone = fl.MinibatchSource(corpus, partition=(0, 1))
    alone.next_minibatch(10)
    assert alone.stats().unevenness == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filling": "cntk"}, 'got filling="cntk": each worker fills its own minibatches'),
        ({"truncation_length": 4}, "got truncation_length: a lane stays with the rank that has its state"),
        ({"order": fl.Arcs(4)}, r"either fl.Arcs\(4\) or fl.Partition\(balance=...\), got both"),
    ],
)
def test_feeds_that_cannot_be_balanced_are_refused(settings, message):
    corpus = fl.ArrayDeserializer(x=[np.zeros(3), np.zeros(2)])
    with pytest.raises(ValueError, match=message):
        fl.MinibatchSource(corpus, partition=fl.Partition((0, 2), balance="squares"), **settings)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda lengths: [1.0], r"expected work \(n,\) for n = 2 lengths from .*, got shape \(1,\)"),
        (lambda lengths: -lengths, "finite work of at least 0 from .*, got -3.0 for length 3"),
        (lambda lengths: lengths * np.nan, "got nan for length"),
        (lambda lengths: lengths * np.inf, "got inf for length"),
    ],
)
def test_work_that_is_no_number_is_refused(work, message):
    corpus = fl.ArrayDeserializer(x=[np.zeros(3), np.zeros(2)])
    source = fl.MinibatchSource(corpus, shuffle=False, partition=fl.Partition((0, 2), balance=work))
    with pytest.raises(ValueError, match=message):
        source.next_minibatch(5)
    assert source.position.samples == 0


def test_a_dataset_needs_lengths():
    with pytest.raises(ValueError, match=r"expected batch_sampler=fl.BatchByLength\(lengths=...\) with fl.Partition"):
        fl.DataLoader(range(9), partition=fl.Partition((0, 2), balance="squares"))


def test_arguments_of_a_balance_are_checked():
    with pytest.raises(TypeError, match='balance to be "samples", "squares" or a function, got \'squared\''):
        fl.Partition((0, 2), balance="squared")
    source = fl.MinibatchSource(fl.ArrayDeserializer(x=np.arange(8.0)), partition=(0, 2))
    with pytest.raises(ValueError, match=r"expected the balance of the feed, 'samples', got 'squares'"):
        source.next_minibatch(4, partition=fl.Partition((0, 2), balance="squares"))
